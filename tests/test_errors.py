"""Messages of unknown names: what was given, what there is, what is nearest."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcli.errors import unknown
from promptcli.recipe import RECIPES
from promptcli.training.methods import METHODS


@pytest.mark.parametrize(
    ("given", "valid", "nearest"),
    [
        ("dcpse", METHODS, "dcpcse"),
        ("sttic-avg", RECIPES, "static-avg"),
        ("STSB", ["STS12", "STS-B"], "STS-B"),
        ("sts-b", ["STS12", "STS-B"], "STS-B"),
        ("nothing like it", METHODS, None),
    ],
)
def test_the_nearest_name_is_suggested(given, valid, nearest):
    message = str(unknown("name", given, valid))
    assert message.startswith(f"unknown name {given!r}; valid: {', '.join(valid)}")
    assert message.endswith(f"; did you mean {nearest}?") if nearest else "did you mean" not in message


@settings(deadline=None)
@given(given=st.text(), valid=st.lists(st.text()))
def test_any_name_and_any_table(given, valid):
    message = str(unknown("name", given, valid))
    assert repr(given) in message and all(name in message for name in valid)
