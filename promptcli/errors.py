"""The errors a user may see, and the exit code of each.

A message is one line: what was given, what is allowed, what to type next. Only the entrance prints it.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

Row = TypeVar("Row")

#: Characters of the longest message.
LONGEST_MESSAGE = 400


def short_line(message: str) -> str:
    """Return a message as one line; of one that is too long (somebody's file quoted) the middle is left out."""
    line = one_line(message)
    return line if len(line) <= LONGEST_MESSAGE else f"{line[: LONGEST_MESSAGE - 143]} … {line[-140:]}"


def one_line(error: BaseException | str, most: int | None = None) -> str:
    """Return a library's message as one line, cut to ``most`` characters."""
    return " ".join(str(error).split())[:most]


class PromptcliError(Exception):
    """A failure that the user can understand and fix; exit code 1."""

    exit_code = 1


class UsageError(PromptcliError, ValueError):
    """A name, key, value or file content that is not allowed; exit code 2."""

    exit_code = 2


class WrongKindError(UsageError):
    """A recipe of masked models with a causal one, or the reverse."""


class NotFoundError(PromptcliError, FileNotFoundError):
    """Data or a model that is not there, or cannot be reached offline; exit code 3."""

    exit_code = 3


class CheckFailedError(PromptcliError):
    """A stored artefact that is not what its manifest says; exit code 4."""

    exit_code = 4


class OutOfMemoryError(PromptcliError, MemoryError):
    """Memory does not hold the smallest piece of the work; exit code 1."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says so: Python's, CUDA's, or the plain RuntimeError of torch on a processor."""
    named = type(error).__name__ == "OutOfMemoryError"  # torch's own, without loading torch
    return named or isinstance(error, MemoryError) or "can't allocate memory" in str(error)


def unknown(kind: str, given: str, valid: Iterable[str]) -> UsageError:
    """Return the error for a name that is not in a table: the names that are, and the nearest of them.

    Example:
        >>> print(unknown("method", "dcpse", ["simcse", "dcpcse"]))
        unknown method 'dcpse'; valid: simcse, dcpcse; did you mean dcpcse?
    """
    names = list(valid)
    return UsageError(f"unknown {kind} {given!r}; valid: {', '.join(names)}{did_you_mean(given, names)}")


def look_up(kind: str, given: str, table: Mapping[str, Row]) -> Row:
    """Return the row of a table by its name.

    Raises:
        UsageError: There is none of that name; see ``unknown``.
    """
    if given not in table:
        raise unknown(kind, given, table)
    return table[given]


def did_you_mean(given: str, valid: Iterable[str], *, likeness: float = 0.6) -> str:
    """Return the end of a message that names what is nearest to a mistyped name; empty where nothing is near.

    Near is from difflib's ``likeness`` on, 0 to 1.
    """
    by_lower = {name.lower(): name for name in valid}
    near = difflib.get_close_matches(given.lower(), by_lower, n=1, cutoff=likeness)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""
