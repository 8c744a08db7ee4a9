"""Texts and Markdown as passages: paragraphs under their heading, short ones joined, long ones
split.

A passage is the unit that a search shows: enough text to be understood, and short enough
that its vector is about one thing.
"""

import re
from bisect import bisect
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, chain, count, dropwhile, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from semantic_text_splitter import TextSplitter

from promptcli.data.input_files import MARKDOWN, ORG, PROSE, extension_of
from promptcli.embedding.front_matter import read_front_matter
from promptcli.embedding.splitting import Splitter

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

    from promptcli.encoder.sentence_encoder import Encoder

#: How the lines of a text become rows: by its kind and its blank lines, or all in one way.
AUTO, PASSAGES, LINES = WAYS = ("auto", "passages", "lines")

#: Characters of a passage without its heading. Longer ones were found less often
#: (benchmarks/passages.py).
_CHARACTERS = 300
#: Characters of a heading that its passages begin with.
_LONGEST_HEADING = 120
#: Characters of a heading that is kept beside its passages; a longer one is a text.
_LONGEST_TITLE = 1000
#: Characters split at once: the library's time for a line grows with the square of its length.
_CHARACTERS_AT_ONCE = 8192
#: Characters of the longest Markdown that is parsed.
_PARSED = 1 << 21

#: A heading of Org: its level is the number of stars.
_ORG_HEADING = re.compile(r"(\*+)\s+(.*\S)")
#: A line of one repeated sign, which underlines a heading.
_UNDERLINE = re.compile(r"([=\-~^\"'`#*+.:_])\1{2,}\s*$")
#: The start of a line that continues no paragraph: a list item, a quotation, a table row, a
#: directive.
_OWN_LINE = re.compile(r"\s*([-*+>|#]\s|\d+[.)]\s|\.\. |\||```|~~~)")
#: A line break within a hyphenated word and the rest of the word, as in text from PDF files; not
#: the hyphen of "pre- and post-war".
_BROKEN = re.compile(
    r"(?<=[^\W\d_])(?:-\n(?!(?:and|or|und|oder)\b)[^\W\d_A-Z](?:[^\s-]|-(?!\n))*)+"
)
_INDENTED = ("    ", "\t")
#: The line ends that are hard breaks in Markdown.
_HARD_BREAKS = ("  ", "\\")
#: HTML whose line breaks count.
_VERBATIM = re.compile(r"\s*<(pre|script|style|textarea)\b", re.IGNORECASE)


class Passage(NamedTuple):
    """A part of a text, or a line of it."""

    line: int  #: its first line, from 1
    end_line: int  #: its last line
    heading: str  #: the headings above it, joined by `` > ``; empty without any
    body: str
    text: str  #: the encoded text: the headings, shortened, on a separate line, and the body
    fields: Mapping[str, str] = {}  #: values of the front matter of its file, by their names


class Heading(NamedTuple):
    """A heading of a text."""

    line: int  #: from 1; 0 if it is the name of the file
    level: int  #: 0 is above all others
    title: str


class TextLine(NamedTuple):
    """A line that is not a heading."""

    number: int  #: from 1
    text: str
    verbatim: bool = False  #: its line break counts, and it is not joined with the next line: code


Elements = Iterable[Heading | TextLine]


def has_passages(head: Sequence[str], name: str | Path, way: str) -> bool:
    """Return whether the rows of a text are passages rather than lines: in Markdown, reST and Org,
    and in a text with more than one blank line in twenty.

    Args:
        head: Its first lines, without their ends.
        name: File; its extension tells Markdown, reST and Org.
        way: One of ``WAYS``.
    """
    if way == AUTO:
        filled = sum(bool(line.strip()) for line in head)
        return extension_of(name)[0] in PROSE or 20 * (len(head) - filled) > filled
    return way == PASSAGES


def passages_of(lines: Iterable[str], name: str | Path, encoder: "Encoder") -> Iterator[Passage]:
    """Yield the passages of a text in order; each fits the encoder's window.

    Args:
        lines: All lines, without their ends; they are read when they are needed.
        name: File; its extension tells Markdown and Org.
        encoder: The encoder that will encode the passages.
    """
    extension, ending = extension_of(name)
    is_markdown = extension in MARKDOWN
    fields: Mapping[str, str] = {}
    elements: Elements
    if is_markdown:
        title = Path(name).name[: -len(extension + ending)]
        fields, elements = _markdown(lines, title)
    elif extension == ORG:
        elements = _starred(lines)
    else:
        elements = _underlined(lines)
    splitter = Splitter(encoder)
    longest = min(_LONGEST_HEADING, splitter.window // 4)
    for section in _sections(elements):
        begin = _short_heading(section.path, longest)
        starts = list(accumulate((len(line.text) + 1 for line in section.lines), initial=0))
        for start, body in _bodies(_unwrapped(section.lines, is_markdown), begin, splitter):
            first, last = (
                section.lines[bisect(starts, place) - 1].number
                for place in (start, start + len(body) - 1)
            )
            heading = " > ".join(section.path)
            yield Passage(first, last, heading, body, f"{begin}{body}", fields)


def _short_heading(path: Sequence[str], longest: int) -> str:
    """Return as many of a path's last headings as fit on the first line of a passage."""
    shown = "".join(path[-1:])[:longest]
    for heading in reversed(path[:-1]):
        if len(f"{heading} > {shown}") > longest:
            break
        shown = f"{heading} > {shown}"
    return f"{shown}\n" if shown else ""


def _bodies(text: str, begin: str, splitter: Splitter) -> Iterator[tuple[int, str]]:
    """Yield the parts of a text and their offsets.

    Each fits the window behind the text ``begin``.
    """
    # its Markdown splitter takes code in a sentence for a better place to split than the end of the
    # sentence
    chunks_of = TextSplitter(_CHARACTERS).chunk_indices
    start = 0
    while start < len(text):
        end = start + 2 * _CHARACTERS_AT_ONCE
        chunks = chunks_of(text[start:end])
        if end < len(text) and len(chunks) > 1:  # one long line: the last part may continue
            end = start + chunks.pop()[0]
        for place, chunk in chunks:
            for inside, part in splitter.parts_at(chunk, begin):
                yield start + place + inside, part
        start = end


# Headings


@dataclass
class _Section:
    """Lines under a heading, or a part of them."""

    path: list[str]  #: the headings above them
    lines: list[TextLine] = field(default_factory=list)


def _sections(elements: Elements) -> Iterator[_Section]:
    """Yield the lines between two headings, many of them in parts.

    A heading that has neither lines nor headings below it is a line itself.
    """
    path = list[Heading]()
    size, lone = 0, False  # characters; whether no text has followed the last heading
    section = _Section([])
    for element in chain(elements, [Heading(0, 0, "")]):
        if isinstance(element, TextLine):
            section.lines.append(element)
            size += len(element.text) + 1
            # a part ends at a blank line, if there is one
            if size > _CHARACTERS_AT_ONCE * (2 if element.text.strip() else 1):
                yield section
                size, lone = 0, False
                section = _Section(section.path)
            continue
        if any(line.text.strip() for line in section.lines):
            yield section
        elif lone and path[-1].line and element.level <= path[-1].level:
            yield _Section(section.path[:-1], [TextLine(path[-1].line, path[-1].title)])
        path = [heading for heading in path if heading.level < element.level]
        if element.title and element.title not in (each.title for each in path[-1:]):
            path.append(element)
        size, lone = 0, bool(path)
        section = _Section([heading.title for heading in path])


def _starred(lines: Iterable[str]) -> Iterator[Heading | TextLine]:
    """Yield the headings of an Org text, and its other lines."""
    for number, line in enumerate(lines, 1):
        heading = _ORG_HEADING.match(line)
        if heading is None or len(line) > _LONGEST_TITLE:
            yield TextLine(number, line)
        else:
            yield Heading(number, len(heading[1]), heading[2])


def _underlined(lines: Iterable[str]) -> Iterator[Heading | TextLine]:
    """Yield the underlined headings of a text, and its other lines."""
    styles = list[tuple[str, bool]]()  # signs of underlines, the highest level first
    above = deque[TextLine]()  # the last two lines
    for number, line in enumerate(lines, 1):
        style = _underline(line, [each.text.rstrip() for each in above])
        if style is None:
            above.append(TextLine(number, line))
            if len(above) > 2:
                yield above.popleft()
            continue
        if style not in styles:
            styles.append(style)
        title = above.pop().text.strip()
        if style[1]:
            above.pop()
        yield from above
        above.clear()
        yield Heading(number - 1, styles.index(style) + 1, title)
    yield from above


def _underline(line: str, above: Sequence[str]) -> tuple[str, bool] | None:
    """Return the sign that underlines a title (the last line ``above``), and whether it also
    overlines it.
    """
    sign = _UNDERLINE.match(line)
    before, title = ["", "", *above][-2:]
    if sign is None or not 0 < len(title) <= min(len(line.rstrip()), _LONGEST_TITLE):
        return None
    overlined = before == line.rstrip()
    if title[0].isspace() or _OWN_LINE.match(title) or _UNDERLINE.match(title):
        return None
    if before and not overlined:  # the last line of a paragraph
        return None
    return sign[1], overlined


# Markdown


def _markdown(lines: Iterable[str], name: str) -> tuple[Mapping[str, str], Elements]:
    """Return the front matter of Markdown, its headings and its other lines.

    The top heading is the front matter's title, or the ``name`` of a file that does not begin with
    a first-level heading; aliases from front matter are added.
    """
    fields, length, rest = read_front_matter(lines)
    elements = dropwhile(_is_blank, outline(rest, length + 1))
    first = list(islice(elements, 1))
    title = fields.pop("title", "")
    top = Heading(1, 0, title)
    if not title:
        has_title = any(isinstance(each, Heading) and each.level == 1 for each in first)
        top = Heading(0, 0, "" if has_title else name)
    names = filter(None, (top.title, fields.get("aliases")))
    return fields, chain([top._replace(title=", ".join(names))], first, elements)


def _is_blank(element: Heading | TextLine) -> bool:
    return isinstance(element, TextLine) and not element.text.strip()


@cache
def _parser() -> "MarkdownIt":
    """Return CommonMark's parser without inline parsing."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark")
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


def outline(lines: Iterable[str], first: int = 1) -> Iterator[Heading | TextLine]:
    """Yield Markdown's headings (CommonMark) and its other lines, in order; beyond 2 million
    characters all lines, read lazily.

    A heading inside a quotation or a list item is not part of the outline.

    Args:
        lines: Without their ends.
        first: Number of the first of them.
    """
    rest = iter(lines)
    block, size = list[TextLine](), 0
    for line in map(TextLine, count(first), rest):
        block.append(line)
        size += len(line.text) + 1
        if size > _PARSED:
            yield from chain(block, map(TextLine, count(first + len(block)), rest))
            return
    elements: list[Heading | TextLine | None] = [*block]
    # to the parser, a carriage return ends a line too
    tokens = _parser().parse("\n".join(line.text for line in block).replace("\r", " "))
    for place, token in enumerate(tokens):
        start, end = token.map or (0, 0)
        if token.type == "heading_open" and token.level == 0:
            title = " ".join(tokens[place + 1].content.split("\n")).strip()
            if len(title) <= _LONGEST_TITLE:
                heading = Heading(first + start, int(token.tag[1:]), title)
                elements[start:end] = [heading, *[None] * (end - start - 1)]
        if token.type == "fence" or (token.type == "html_block" and _VERBATIM.match(token.content)):
            elements[start:end] = [line._replace(verbatim=True) for line in block[start:end]]
    yield from filter(None, elements)


# Paragraphs


def _unwrapped(lines: Sequence[TextLine], is_markdown: bool) -> str:
    """Return lines as one text of the same length. Wrapped paragraphs become one line; except in
    Markdown, words hyphenated at a line end are joined.
    """
    text = lines[0].text
    for line, following in pairwise(lines):
        text += f"{' ' if _goes_on(line, following, is_markdown) else chr(10)}{following.text}"
    return text if is_markdown else _BROKEN.sub(_joined, text)


def _joined(broken: re.Match[str]) -> str:
    """Return a word without hyphens and line breaks, padded with spaces to the same length."""
    rest = broken[0].replace("-\n", "")
    return rest.ljust(len(broken[0]))


def _goes_on(line: TextLine, following: TextLine, is_markdown: bool) -> bool:
    """Return whether two lines belong to one paragraph."""
    if line.verbatim or following.verbatim or _is_blank(line) or _is_blank(following):
        return False
    ends = line.text.endswith(_HARD_BREAKS if is_markdown else "-")
    code = line.text.startswith(_INDENTED) and following.text.startswith(_INDENTED)
    return not (ends or code or line.text.startswith("|") or _OWN_LINE.match(following.text))
