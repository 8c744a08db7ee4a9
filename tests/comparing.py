"""What tests compare: numbers, and the errors of promptcli."""

import contextlib

import pytest

from promptcli.errors import UsageError


def gap(one, other):
    """Return the largest difference between the numbers of two arrays, or of two tensors."""
    return abs(one - other).max()


@contextlib.contextmanager
def refusal(said, error=UsageError):
    """Expect an error of promptcli, one line that matches ``said``."""
    with pytest.raises(error, match=said) as refused:
        yield refused
    assert "\n" not in str(refused.value)
