"""The fields at the top of a Markdown file, which site generators and editors of notes read."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from promptcli.data.cells import cell_text

#: Lines and characters of the longest front matter: the memory that a dotted key of TOML takes
#: grows with the square of its length. The limits kept beside each passage: fields, characters of a
#: field and of its name.
_LINES, _CHARACTERS = 1000, 1 << 13
_FIELDS, _LONGEST_FIELD, _LONGEST_NAME = 32, 300, 100
#: A field of what is nearly YAML, such as ``title: Boats: a guide``.
_FIELD = re.compile(r"^([\w-]+):[ \t]+([^\s\[{].*)$", re.MULTILINE)
#: The line before front matter -> the lines that may end it.
_ENDS = {"---": ("---", "..."), "+++": ("+++",)}


def read_front_matter(lines: Iterable[str]) -> tuple[dict[str, str], int, Iterator[str]]:
    """Return the fields of the front matter of a text, how many lines it has, and the lines behind
    it.

    Front matter is YAML between lines ``---``, or TOML between lines ``+++``. Single values and
    lists of them are fields, as text; nested ones are left out. Anything else, or more than 8 KB,
    is text.
    """
    rest = iter(lines)
    head, size = list(islice(rest, 1)), 0
    ends = _ENDS.get("".join(head).rstrip(), ())
    for line in islice(rest, _LINES) if ends else ():
        head.append(line)
        size += len(line)
        if line.rstrip() in ends:
            document = _parsed(head[0].rstrip(), "\n".join(head[1:-1]))
            if isinstance(document, dict):
                return dict(islice(_fields(document), _FIELDS)), len(head), rest
            break
        if size > _CHARACTERS:
            break
    return {}, 0, chain(head, rest)


def _parsed(fence: str, text: str) -> Any:
    """Return the value of a text as YAML or TOML; None if it is neither."""
    import yaml

    try:
        if fence == "+++":
            return tomllib.loads(text)
        # every value is a text: YAML takes no for false, and 12:30 for 750
        return yaml.load(text, yaml.BaseLoader) or {}
    except yaml.YAMLError:
        return dict(_FIELD.findall(text)) or None
    except (ValueError, RecursionError):
        return None


def _fields(document: dict[Any, Any]) -> Iterator[tuple[str, str]]:
    for name, value in document.items():
        values = value if isinstance(value, list) else [value]
        if any(isinstance(each, dict | list) for each in values) or len(name) > _LONGEST_NAME:
            continue
        text = ", ".join(filter(None, (" ".join(cell_text(each).split()) for each in values)))
        if text:
            yield name, text[:_LONGEST_FIELD]
