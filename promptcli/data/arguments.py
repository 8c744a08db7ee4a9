"""Sentences, ids and folders that a program or the command line passes, checked and converted."""

import os
from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Integral
from pathlib import Path
from typing import Any

from promptcli.errors import UsageError


def as_list_of(items: Any, noun: str, kind: str = "text") -> list[Any]:
    """Return items as a list; in messages ``noun`` names all of them, and ``kind`` their type."""
    is_frame = hasattr(items, "columns") and hasattr(items, "iloc")
    is_scalar = not isinstance(items, Iterable) or getattr(items, "ndim", 1) == 0
    if is_frame or is_scalar or isinstance(items, str | bytes | Mapping | Set):
        hint = "one of its columns" if is_frame else "a list, in order"
        raise UsageError(f"{noun} are {type(items).__name__}, not {kind} in a list; give {hint}")
    return list(items)


def as_texts(sentences: str | Sequence[str]) -> list[str]:
    """Return the sentences as a list; a single string becomes a list of one."""
    if isinstance(sentences, str):
        sentences = [sentences]
    texts = as_list_of(sentences, "sentences")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise UsageError(
                f"sentence {index} is {type(text).__name__} ({text!r:.40}), not text; all must be"
                " strings"
            )
        if not is_unicode(text):
            raise UsageError(
                f"sentence {index} ({text!r:.40}) holds half a surrogate pair; give UTF-8 text"
            )
    return texts


def check_query(query: Any) -> None:
    """Refuse a query that is not one sentence."""
    if not isinstance(query, str):
        raise UsageError(
            f"must be text, got {type(query).__name__} ({query!r:.40})",
            parameter="query",
        )
    if not query.strip():
        raise UsageError("is empty; give a few words, or a sentence", parameter="query")


def as_folder(folder: Any) -> Path:
    """Return the name of a folder as a path."""
    if not isinstance(folder, str | Path):
        raise UsageError(f"a folder must be a string or a Path, got {folder!r:.40}")
    return Path(folder)


def as_ids(ids: Any) -> Sequence[Any]:
    """Return ids as a list of 64-bit integers and texts; a range is returned unchanged."""
    if isinstance(ids, range):
        return ids
    names = as_list_of(ids, "ids", "numbers or text")
    for index, name in enumerate(names):
        if isinstance(name, str) and is_unicode(name):
            continue
        if (
            isinstance(name, Integral)
            and not isinstance(name, bool)
            and -(1 << 63) <= int(name) < 1 << 63
        ):
            continue
        raise UsageError(
            f"id {index} is {type(name).__name__} ({name!r:.40}); an id is UTF-8 text or a whole"
            " number"
        )
    return names


def is_unicode(text: str) -> bool:
    """Return whether a text can be written as UTF-8; half a surrogate pair cannot."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def are_sentences(texts: Sequence[str]) -> bool:
    """Return whether all words of the command line are sentences: each has spaces, and no file has
    its name.
    """
    return all(
        " " in word.strip() and "\n" not in word and not os.path.exists(word) for word in texts
    )


def check_encodable(sentence: str) -> None:
    """Refuse a sentence of the command line that the terminal's encoding has damaged."""
    if not is_unicode(sentence):
        raise UsageError(f"{sentence!r} is not UTF-8; set a UTF-8 locale, e.g. LC_ALL=C.UTF-8")
