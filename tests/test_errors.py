"""Messages about unknown names: the name given, the valid ones, and the nearest."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcli.errors import if_stopped, install_command, state_after, unknown_name_error
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
    message = str(unknown_name_error("name", given, valid))
    assert message.startswith(f"unknown name {given!r}; valid: {', '.join(valid)}")
    assert (
        message.endswith(f"; did you mean {nearest}?") if nearest else "did you mean" not in message
    )


@given(given=st.text(), valid=st.lists(st.text()))
def test_any_name_and_any_table(given, valid):
    message = str(unknown_name_error("name", given, valid))
    assert repr(given) in message and all(name in message for name in valid)


def test_an_extra_of_a_checkout_is_installed_from_it():
    assert install_command("serve") == "pip install '.[serve]' in the checkout"


def test_an_extra_is_of_the_distribution_of_the_project(tmp_path, monkeypatch):
    """The index has another program called ``promptcli``."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    monkeypatch.setattr("promptcli.errors.__file__", str(tmp_path / "promptcli" / "errors.py"))
    assert install_command("serve") == f"pip install '{project['name']}[serve]'"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize(("instead", "said"), [(False, "parts are kept"), (True, "all is kept")])
def test_a_stopped_block_says_what_it_leaves_and_the_inner_one_wins(error, instead, said):
    vars(error).pop("__notes__", None)
    with pytest.raises(type(error)), if_stopped("all is kept", instead=instead):
        with if_stopped("parts are kept"):
            raise error
    assert state_after(error) == said
