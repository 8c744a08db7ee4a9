"""The errors that a user may see, their exit codes, and the wording of their messages.

A message is one line: the given value, the allowed values, the next command to type. Only the
command line prints it.
"""

import contextlib
import difflib
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

Row = TypeVar("Row")

LONGEST_MESSAGE = 700  #: characters of the longest message
_LONGEST_VALUE = 80  #: characters of the longest value in a message
_LONGEST_NAME = 200  #: characters of the longest name for which a similar name is suggested


def shorten_message(message: str) -> str:
    """Return a message as one line; the middle of a long one is left out."""
    line = join_lines(message)
    if len(line) <= LONGEST_MESSAGE:
        return line
    return f"{line[: LONGEST_MESSAGE - 143]} … {line[-140:]}"


def join_lines(error: BaseException | str, max_length: int | None = None) -> str:
    """Return a library's message as one line, cut to ``max_length`` characters."""
    return " ".join(str(error).split())[:max_length]


def short_repr(value: Any) -> str:
    """Return a value as a short, printable text for a message."""
    if isinstance(value, str) and not value.isprintable():
        text = ascii(value)
    else:
        text = repr(value)
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= _LONGEST_VALUE:
        return text
    return f"{text[: _LONGEST_VALUE - 3]}..."


def with_count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun.

    Example:
        >>> with_count(1, "row"), with_count(2000, "row"), with_count(2, "query", "queries")
        ('1 row', '2,000 rows', '2 queries')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


@contextlib.contextmanager
def if_stopped(state: str, *, instead: bool = False) -> Iterator[None]:
    """Attach ``state``, what is on disk now, to an interrupt or a disk's error in the block.

    The command line prints it instead of "nothing was changed". The text of an inner block is kept,
    unless this one replaces it (``instead``).
    """
    try:
        yield
    except (KeyboardInterrupt, OSError) as error:
        if instead or not state_after(error):
            error.__notes__ = [state]
        raise


def state_after(error: BaseException) -> str:
    """Return the text that ``if_stopped`` attached to an error, or ""."""
    return "; ".join(getattr(error, "__notes__", ()))


class PromptcliError(Exception):
    """A failure that the user can understand and fix; exit code 1.

    Args:
        message: The given value, the allowed values, and the next command to type. An option is
            written as in Python, ``force=True``, ``seeds=N``; the command line shows ``--force``,
            ``--seeds N``.
        parameter: The function parameter that the message is about. Python shows ``batch_size: must
            be at least 1``, the command line ``--batch-size: must be ...``.
    """

    exit_code = 1

    def __init__(self, message: str = "", *, parameter: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.parameter = parameter

    def __str__(self) -> str:
        return f"{self.parameter}: {self.message}" if self.parameter else self.message


class UsageError(PromptcliError, ValueError):
    """A name, key, value or file content that is not allowed; exit code 2."""

    exit_code = 2


class WrongKindError(UsageError):
    """A recipe for masked models on a causal model, or the reverse."""


class NotFoundError(PromptcliError, FileNotFoundError):
    """Data or a model that is missing, or cannot be reached offline; exit code 3."""

    exit_code = 3


class CheckFailedError(PromptcliError):
    """A stored file that does not match its manifest; exit code 4."""

    exit_code = 4


class OutOfMemoryError(PromptcliError, MemoryError):
    """Memory is too small for the smallest batch; exit code 1."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python or torch says that memory ran out."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # of CUDA
        return True
    message = str(error)  # torch raises a plain RuntimeError on a CPU, and on MPS
    return "can't allocate memory" in message or "backend out of memory" in message


def unknown_name_error(kind: str, name: str, valid: Iterable[str]) -> UsageError:
    """Return the error for a name that is not in a table; it lists the valid names and suggests
    the most similar one.

    Example:
        >>> print(unknown_name_error("method", "dcpse", ["simcse", "dcpcse"]))
        unknown method 'dcpse'; valid: simcse, dcpcse; did you mean dcpcse?
    """
    names = list(valid)
    return UsageError(
        f"unknown {kind} {name!r}; valid: {', '.join(names) or 'none'}{did_you_mean(name, names)}"
    )


def look_up(kind: str, name: str, table: Mapping[str, Row]) -> Row:
    """Return the row of a table with a name, or raise an ``unknown_name_error``."""
    if name not in table:
        raise unknown_name_error(kind, name, table)
    return table[name]


def missing_libraries(*names: str) -> list[str]:
    """Return the libraries that are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def require_libraries(*names: str, extra: str) -> None:
    """Refuse to run without libraries, which ``extra`` installs."""
    if missing := missing_libraries(*names):
        raise UsageError(
            f"this needs {', '.join(missing)}, not installed here: {install_command(extra)}"
        )


def install_command(extra: str) -> str:
    """Return the command that installs an extra of promptcli."""
    if (Path(__file__).parents[1] / "pyproject.toml").is_file():
        return f"pip install '.[{extra}]' in the checkout"
    # the package index has another program under the name ``promptcli``
    return f"pip install 'promptcli-encoders[{extra}]'"


def did_you_mean(word: str, valid: Iterable[str], *, likeness: float = 0.6) -> str:
    """Return the end of a message that suggests the most similar name.

    It is "" if no name reaches difflib's ratio ``likeness``.
    """
    if len(word) > _LONGEST_NAME:  # difflib's time grows with the square of the length
        return ""
    by_lower = {name.lower(): name for name in valid}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=likeness)
    if matches:
        return f"; did you mean {by_lower[matches[0]]}?"
    return ""
