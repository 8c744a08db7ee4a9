"""The outline of Markdown texts by CommonMark: headings, code, and front matter.

Headings of a quotation or an item of a list are part of it, not of the outline.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

#: Characters of the longest text that is parsed.
_PARSED = 1 << 21
#: Lines and characters of the longest front matter, which site generators read from the top of a
#: file, and the most of it that is kept beside each passage: fields, and characters of one.
_FRONT_LINES = 1000
_FRONT_CHARACTERS = 1 << 16
_FIELDS = 32
_LONGEST_FIELD = 300
#: The line before front matter -> the lines that may end it, and the sign behind a name.
_FRONT = {"---": (("---", "..."), ":"), "+++": (("+++",), "=")}
#: HTML whose line breaks count.
_VERBATIM = re.compile(r"\s*<(pre|script|style|textarea)\b", re.IGNORECASE)


class Heading(NamedTuple):
    """A heading of the outline."""

    line: int  #: its first line, from 1
    end_line: int  #: its last line
    level: int
    title: str


class TextLine(NamedTuple):
    """A line that is of no heading."""

    number: int  #: from 1
    text: str
    verbatim: bool  #: its end counts, and it is not to be joined with the next: code


class FrontMatter(NamedTuple):
    """The fields at the top of a file."""

    lines: int = 0  #: how many it has
    title: str = ""
    title_line: int = 0
    fields: tuple[tuple[str, str], ...] = ()  #: the others that are a value, or a list of values


def read_front_matter(lines: Iterable[str]) -> tuple[FrontMatter, Iterator[str]]:
    """Return the front matter of a text, without lines if it has none, and all lines.

    It is lines ``name: value`` between lines ``---``, or ``name = value`` between lines ``+++``; a
    value may be a list of single ones. What is nested, or longer than 64 KB, is text.
    """
    rest = iter(lines)
    head = list(islice(rest, 1))
    endings, sign = _FRONT.get("".join(head).rstrip(), ((), ""))
    for line in _up_to(islice(rest, _FRONT_LINES), _FRONT_CHARACTERS) if endings else ():
        head.append(line)
        if line.rstrip() in endings:
            fields = _fields(head[1:-1], sign)
            if fields is not None:
                return _front_matter(fields, head[1:-1]), chain(head, rest)
            break
    return FrontMatter(), chain(head, rest)


def _front_matter(fields: dict[str, str], inside: Sequence[str]) -> FrontMatter:
    title = fields.pop("title", "")
    places = (
        number for number, line in enumerate(inside, 2) if line.lstrip("\"'").startswith("title")
    )
    kept = [(name, text[:_LONGEST_FIELD]) for name, text in islice(fields.items(), _FIELDS)]
    return FrontMatter(len(inside) + 2, title, next(places, 1), tuple(kept))


def _fields(lines: Sequence[str], sign: str) -> dict[str, str] | None:
    """Return the fields of lines that are not empty; None if a line is none."""
    fields: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        if sign == "=" and line.startswith("["):
            break  # a table within: what follows is nested
        item = re.fullmatch(r"\s*- +(.*)", line.rstrip())
        if item is not None and name:
            fields[name].append(_value(item[1]))
            continue
        field = re.fullmatch(
            rf"""["']?([\w.$-][^{sign}#]{{0,100}}?)["']?\s*{sign}(\s.*|)""", line.rstrip()
        )
        if field is None:
            return None
        name, text = field[1], field[2].strip()
        if text[:1] in ("{", "[") and not re.fullmatch(r"\[[^\[\]{}]*\]", text):
            fields[name] = []  # nested, or cut off
        elif text.startswith("["):
            fields[name] = [_value(each) for each in text[1:-1].split(",")]
        else:
            fields[name] = [_value(text)]
    joined = {name: ", ".join(filter(None, values)) for name, values in fields.items()}
    return {name: text for name, text in joined.items() if text}


def _value(text: str) -> str:
    """Return a value without its quotes."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1]
    return " ".join(text.split())


def outline(lines: Iterable[str], first: int = 1) -> Iterator[Heading | TextLine]:
    """Yield the headings of a text and its other lines, in order; of a text of more than 2 million
    characters all lines, which are read when they are needed.

    Args:
        lines: Without their ends.
        first: Number of the first of them.
    """
    rest = iter(lines)
    block = list(_up_to(rest, _PARSED))
    following = list(islice(rest, 1))
    if following:
        for number, line in enumerate(chain(block, following, rest), first):
            yield TextLine(number, line, False)
        return
    # to the parser, a carriage return ends a line too
    yield from _elements(block, _parser().parse("\n".join(block).replace("\r", " ")), first)


def _up_to(lines: Iterator[str], characters: int) -> Iterator[str]:
    """Yield lines until they have a number of characters, at least one line."""
    for line in lines:
        yield line
        characters -= len(line) + 1
        if characters <= 0:
            return


@cache
def _parser() -> "MarkdownIt":
    """Return CommonMark's parser, which does not parse the text inside of blocks."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark")
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


def _elements(
    lines: Sequence[str], tokens: "Sequence[Token]", first: int
) -> Iterator[Heading | TextLine]:
    elements: list[Heading | TextLine | None] = [
        TextLine(number, line, False) for number, line in enumerate(lines, first)
    ]
    for place, token in enumerate(tokens):
        start, end = token.map or (0, 0)
        if token.type == "heading_open" and token.level == 0:
            title = " ".join(tokens[place + 1].content.split("\n")).strip()
            heading = Heading(first + start, first + end - 1, int(token.tag[1:]), title)
            elements[start:end] = [heading, *[None] * (end - start - 1)]
        if token.type == "fence" or (token.type == "html_block" and _VERBATIM.match(token.content)):
            elements[start:end] = [
                TextLine(first + number, lines[number], True) for number in range(start, end)
            ]
    return filter(None, elements)
