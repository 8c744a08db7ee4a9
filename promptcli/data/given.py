"""What a program hands over in memory: rows in their order, each one a text or an id of the kind that is stored."""

from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Integral
from typing import Any

from promptcli.errors import UsageError


def check_rows(given: Any, what: str, kind: str = "text") -> list[Any]:
    """Return rows as a list; messages call them ``what``, and each one a ``kind``.

    Raises:
        UsageError: It is one text, cannot be walked, or is walked by something else than its rows: the keys of a
            mapping, the columns of a data frame, the numbers of bytes, or a set in an order of chance.
    """
    frame = hasattr(given, "columns") and hasattr(given, "iloc")
    if frame or isinstance(given, str | bytes | Mapping | Set) or not isinstance(given, Iterable):
        hint = "one of its columns" if frame else "a list, in order"
        raise UsageError(f"{what} are {type(given).__name__}, not {kind} in a list; give {hint}")
    return list(given)


def check_texts(sentences: str | Sequence[str]) -> list[str]:
    """Return the sentences as a list; one alone as a list of one.

    Raises:
        UsageError: Something that is no text, with its index and type.
    """
    if isinstance(sentences, str):
        sentences = [sentences]
    texts = check_rows(sentences, "sentences")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise UsageError(f"sentence {index} is {type(text).__name__} ({text!r:.40}), not text; give strings only")
        if not is_unicode(text):
            raise UsageError(f"sentence {index} ({text!r:.40}) holds half a surrogate pair; give UTF-8 text")
    return texts


def check_ids(ids: Any) -> Sequence[Any]:
    """Return ids as whole numbers of 64 bits and texts; a range as it is.

    Raises:
        UsageError: Something else, with its index and type.
    """
    if isinstance(ids, range):
        return ids
    names = check_rows(ids, "ids", "numbers or text")
    for index, name in enumerate(names):
        if isinstance(name, str) and is_unicode(name):
            continue
        if isinstance(name, Integral) and not isinstance(name, bool) and -(1 << 63) <= int(name) < 1 << 63:
            continue
        raise UsageError(f"id {index} is {type(name).__name__} ({name!r:.40}); an id is UTF-8 text or a whole number")
    return names


def is_unicode(text: str) -> bool:
    """Return whether a text can be written as UTF-8: it holds no half of a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
