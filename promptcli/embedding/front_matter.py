"""The fields at the top of a Markdown file, which site generators and editors of notes read."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from promptcli.data.cells import cell_text

#: Lines and characters of the longest front matter. The memory of a dotted key of TOML grows with
#: the square of its length.
_MAX_LINES, _MAX_CHARACTERS = 1000, 1 << 13
#: Fields that are stored with each passage, characters of a field, and characters of its name.
_MAX_FIELDS, _LONGEST_FIELD, _LONGEST_NAME = 32, 300, 100
#: A field of malformed YAML, such as ``title: Boats: a guide``.
_FIELD = re.compile(r"^([\w-]+):[ \t]+([^\s\[{].*)$", re.MULTILINE)
#: The line before front matter -> the lines that may end it.
_ENDS = {"---": ("---", "..."), "+++": ("+++",)}


def read_front_matter(lines: Iterable[str]) -> tuple[dict[str, str], int, Iterator[str]]:
    """Return the fields of a text's front matter, the number of its lines, and the other lines.

    Front matter is YAML between lines ``---``, or TOML between lines ``+++``. Its values and lists
    of values are fields, as text; nested values are left out. Other lines, and front matter of more
    than 8 KB, are text.
    """
    rest = iter(lines)
    first_lines, size = list(islice(rest, 1)), 0
    ends = _ENDS.get("".join(first_lines).rstrip(), ())
    for line in islice(rest, _MAX_LINES) if ends else ():
        first_lines.append(line)
        size += len(line)
        if line.rstrip() in ends:
            document = _parse(first_lines[0].rstrip(), "\n".join(first_lines[1:-1]))
            if isinstance(document, dict):
                return dict(islice(_read_fields(document), _MAX_FIELDS)), len(first_lines), rest
            break
        if size > _MAX_CHARACTERS:
            break
    return {}, 0, chain(first_lines, rest)


def _parse(fence: str, text: str) -> Any:
    """Return the value of YAML or TOML text; None for other text."""
    import yaml

    try:
        if fence == "+++":
            return tomllib.loads(text)
        # BaseLoader keeps every value a text; YAML itself reads no as false, and 12:30 as 750
        return yaml.load(text, yaml.BaseLoader) or {}
    except yaml.YAMLError:
        return dict(_FIELD.findall(text)) or None
    except (ValueError, RecursionError):
        return None


def _read_fields(document: dict[Any, Any]) -> Iterator[tuple[str, str]]:
    for name, value in document.items():
        values = value if isinstance(value, list) else [value]
        if any(isinstance(item, dict | list) for item in values) or len(name) > _LONGEST_NAME:
            continue
        text = ", ".join(filter(None, (" ".join(cell_text(item).split()) for item in values)))
        if text:
            yield name, text[:_LONGEST_FIELD]
