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


def refused(ran, code, *parts):
    """Return the one line on stderr, which holds every part; nothing is on stdout."""
    assert (ran.code, ran.out) == (code, ""), ran.err
    assert ran.err.count("\n") == 1 and ran.err.startswith("promptcli: ")
    for part in parts:
        assert part in ran.err
    return ran.err
