"""Texts and Markdown as passages: short paragraphs under a heading are joined, long ones are split.

A passage is the unit that a search shows: long enough to be understood, and short enough for a
vector about one thing.
"""

import re
import tomllib
from bisect import bisect
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, chain, count, dropwhile, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from semantic_text_splitter import TextSplitter

from promptcli.data.cells import cell_text
from promptcli.data.input_files import MARKDOWN, ORG, PROSE, extension_of
from promptcli.embedding.splitting import Splitter

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

    from promptcli.encoder.sentence_encoder import Encoder

#: The rows of a text: passages, lines, or (auto) whatever fits its kind and its blank lines.
AUTO, PASSAGES, LINES = WAYS = ("auto", "passages", "lines")

#: Characters of a passage without its heading. Searches found longer passages less often
#: (benchmarks/passages.py).
_CHARACTERS = 300
#: Characters of a heading that its passages begin with.
_LONGEST_HEADING = 120
#: Characters of a heading that is stored with its passages; a longer heading is a text.
_LONGEST_TITLE = 1000
#: Characters that are split at once; the library's time for a line grows with the square of its
#: length.
_CHARACTERS_AT_ONCE = 8192
#: Characters of the longest Markdown that is parsed.
_MAX_PARSED = 1 << 21

#: A heading of Org: its level is the number of stars.
_ORG_HEADING = re.compile(r"(\*+)\s+(.*\S)")
#: A line of one repeated sign, which underlines a heading.
_UNDERLINE = re.compile(r"([=\-~^\"'`#*+.:_])\1{2,}\s*$")
#: The start of a line that begins a paragraph: a list item, a quotation, a table row, a directive.
_OWN_LINE = re.compile(r"\s*([-*+>|#]\s|\d+[.)]\s|\.\. |\||```|~~~)")
#: A line break within a hyphenated word and the rest of the word, as in text from PDF files. The
#: hyphen of "pre- and post-war" does not match.
_BROKEN = re.compile(
    r"(?<=[^\W\d_])(?:-\n(?!(?:and|or|und|oder)\b)[^\W\d_A-Z](?:[^\s-]|-(?!\n))*)+"
)
_INDENTED = ("    ", "\t")
#: The line ends that are hard breaks in Markdown.
_HARD_BREAKS = ("  ", "\\")
#: HTML whose line breaks count.
_VERBATIM = re.compile(r"\s*<(pre|script|style|textarea)\b", re.IGNORECASE)

#: Lines and characters of the longest front matter. The memory of a dotted key of TOML grows with
#: the square of its length.
_MAX_LINES, _MAX_CHARACTERS = 1000, 1 << 13
#: Fields that are stored with each passage, characters of a field, and characters of its name.
_MAX_FIELDS, _LONGEST_FIELD, _LONGEST_NAME = 32, 300, 100
#: A field of malformed YAML, such as ``title: Boats: a guide``.
_YAML_FIELD = re.compile(r"^([\w-]+):[ \t]+([^\s\[{].*)$", re.MULTILINE)
#: The line before front matter -> the lines that may end it.
_FENCES = {"---": ("---", "..."), "+++": ("+++",)}


class Passage(NamedTuple):
    """A piece of a text, or a line of it."""

    line: int  #: its first line, from 1
    end_line: int  #: its last line
    heading: str  #: the headings above it, joined by `` > ``; empty without headings
    body: str
    text: str  #: the encoded text: the headings, shortened, on a separate line, and the body
    fields: Mapping[str, str] = {}  #: values of the front matter of its file, by their names


class Heading(NamedTuple):
    """A heading of a text."""

    line: int  #: from 1; 0 for the name of the file
    level: int  #: 0 is above all others
    title: str


class TextLine(NamedTuple):
    """A line that is not a heading."""

    number: int  #: from 1
    text: str
    verbatim: bool = False  #: whether the line is code, whose line breaks are kept


Elements = Iterable[Heading | TextLine]


def has_passages(first_lines: Sequence[str], name: str | Path, way: str) -> bool:
    """Return whether the rows of a text are passages: in Markdown, reST and Org, and in a text with
    more than one blank line for every 20 others.

    Args:
        first_lines: The first lines of the text, without their ends.
        name: The file, whose extension tells Markdown, reST and Org.
        way: One of ``WAYS``.
    """
    if way == AUTO:
        filled = sum(bool(line.strip()) for line in first_lines)
        blank = len(first_lines) - filled
        return extension_of(name)[0] in PROSE or 20 * blank > filled
    return way == PASSAGES


def passages_of(lines: Iterable[str], name: str | Path, encoder: "Encoder") -> Iterator[Passage]:
    """Yield the passages of a text in order; each fits the encoder's window.

    Args:
        lines: All lines, without their ends; they are read as needed.
        name: The file, whose extension tells Markdown and Org.
        encoder: The encoder that will encode the passages.
    """
    extension, ending = extension_of(name)
    is_markdown = extension in MARKDOWN
    fields: Mapping[str, str] = {}
    elements: Elements
    if is_markdown:
        title = Path(name).name[: -len(extension + ending)]
        fields, elements = _read_markdown(lines, title)
    elif extension == ORG:
        elements = _read_org(lines)
    else:
        elements = _read_underlined(lines)
    splitter = Splitter(encoder)
    longest = min(_LONGEST_HEADING, splitter.window // 4)
    for section in _split_into_sections(elements):
        begin = _short_heading(section.path, longest)
        starts = list(accumulate((len(line.text) + 1 for line in section.lines), initial=0))
        for start, body in _split_section(_unwrap(section.lines, is_markdown), begin, splitter):
            first = section.lines[bisect(starts, start) - 1].number
            last = section.lines[bisect(starts, start + len(body) - 1) - 1].number
            heading = " > ".join(section.path)
            yield Passage(first, last, heading, body, f"{begin}{body}", fields)


def _short_heading(path: Sequence[str], longest: int) -> str:
    """Return the last headings of a path that fit on the first line of a passage."""
    line = "".join(path[-1:])[:longest]
    for heading in reversed(path[:-1]):
        if len(f"{heading} > {line}") > longest:
            break
        line = f"{heading} > {line}"
    return f"{line}\n" if line else ""


def _split_section(text: str, begin: str, splitter: Splitter) -> Iterator[tuple[int, str]]:
    """Yield the pieces of a text and their offsets.

    Each piece fits the window if the text ``begin`` is put in front.
    """
    # not MarkdownSplitter, which would rather split at code within a sentence than at its end
    chunks_of = TextSplitter(_CHARACTERS).chunk_indices
    start = 0
    while start < len(text):
        end = start + 2 * _CHARACTERS_AT_ONCE
        chunks = chunks_of(text[start:end])
        if end < len(text) and len(chunks) > 1:  # one long line: the last chunk may continue
            end = start + chunks.pop()[0]
        for place, chunk in chunks:
            for offset, part in splitter.parts_at(chunk, begin):
                yield start + place + offset, part
        start = end


# Headings


@dataclass
class _Section:
    """Lines under a heading, all or some."""

    path: list[str]  #: the headings above them
    lines: list[TextLine] = field(default_factory=list)


def _split_into_sections(elements: Elements) -> Iterator[_Section]:
    """Yield the lines between two headings; many lines are several sections.

    A heading without lines or headings below it is a line itself.
    """
    path = list[Heading]()
    size = 0  # characters of the section
    is_bare = False  # whether no text has followed the last heading
    section = _Section([])
    for element in chain(elements, [Heading(0, 0, "")]):
        if isinstance(element, TextLine):
            section.lines.append(element)
            size += len(element.text) + 1
            # a section ends at a blank line if there is one
            if size > _CHARACTERS_AT_ONCE * (2 if element.text.strip() else 1):
                yield section
                size, is_bare = 0, False
                section = _Section(section.path)
            continue
        if any(line.text.strip() for line in section.lines):
            yield section
        elif is_bare and path[-1].line and element.level <= path[-1].level:
            yield _Section(section.path[:-1], [TextLine(path[-1].line, path[-1].title)])
        path = [heading for heading in path if heading.level < element.level]
        if element.title and element.title not in (heading.title for heading in path[-1:]):
            path.append(element)
        size, is_bare = 0, bool(path)
        section = _Section([heading.title for heading in path])


def _read_org(lines: Iterable[str]) -> Iterator[Heading | TextLine]:
    """Yield the headings of an Org text, and its other lines."""
    for number, line in enumerate(lines, 1):
        heading = _ORG_HEADING.match(line)
        if heading is None or len(line) > _LONGEST_TITLE:
            yield TextLine(number, line)
        else:
            yield Heading(number, len(heading[1]), heading[2])


def _read_underlined(lines: Iterable[str]) -> Iterator[Heading | TextLine]:
    """Yield the underlined headings of a text, and its other lines."""
    styles = list[tuple[str, bool]]()  # signs of underlines, the highest level first
    above = deque[TextLine]()  # the last two lines
    for number, line in enumerate(lines, 1):
        style = _match_underline(line, [previous.text.rstrip() for previous in above])
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


def _match_underline(line: str, above: Sequence[str]) -> tuple[str, bool] | None:
    """Return the sign of a line that underlines a title, and whether the title is also overlined;
    None for another line. ``above`` has the last two lines.
    """
    sign = _UNDERLINE.match(line)
    before, title = ["", "", *above][-2:]
    if sign is None or not 0 < len(title) <= min(len(line.rstrip()), _LONGEST_TITLE):
        return None
    is_overlined = before == line.rstrip()
    if title[0].isspace() or _OWN_LINE.match(title) or _UNDERLINE.match(title):
        return None
    if before and not is_overlined:  # the title is the last line of a paragraph
        return None
    return sign[1], is_overlined


# Markdown


def _read_markdown(lines: Iterable[str], name: str) -> tuple[Mapping[str, str], Elements]:
    """Return the front matter of Markdown, and its headings and other lines.

    The top heading is the title in the front matter. Without a title it is the ``name`` of the file
    unless the text begins with a first-level heading. Aliases from the front matter are added.
    """
    fields, length, rest = read_front_matter(lines)
    elements = dropwhile(_is_blank, outline(rest, length + 1))
    first = list(islice(elements, 1))
    title = fields.pop("title", "")
    top = Heading(1, 0, title)
    if not title:
        has_title = any(isinstance(item, Heading) and item.level == 1 for item in first)
        top = Heading(0, 0, "" if has_title else name)
    names = filter(None, (top.title, fields.get("aliases")))
    return fields, chain([top._replace(title=", ".join(names))], first, elements)


def _is_blank(element: Heading | TextLine) -> bool:
    return isinstance(element, TextLine) and not element.text.strip()


def read_front_matter(lines: Iterable[str]) -> tuple[dict[str, str], int, Iterator[str]]:
    """Return the fields of a text's front matter, the number of its lines, and the other lines.

    Front matter is YAML between lines ``---``, or TOML between lines ``+++``. Its values and lists
    of values are fields, as text; nested values are left out. Other lines, and front matter of more
    than 8 KB, are text.
    """
    rest = iter(lines)
    first_lines, size = list(islice(rest, 1)), 0
    ends = _FENCES.get("".join(first_lines).rstrip(), ())
    for line in islice(rest, _MAX_LINES) if ends else ():
        first_lines.append(line)
        size += len(line)
        if line.rstrip() in ends:
            document = _parse_front_matter(first_lines[0].rstrip(), "\n".join(first_lines[1:-1]))
            if isinstance(document, dict):
                return dict(islice(_read_fields(document), _MAX_FIELDS)), len(first_lines), rest
            break
        if size > _MAX_CHARACTERS:
            break
    return {}, 0, chain(first_lines, rest)


def _parse_front_matter(fence: str, text: str) -> Any:
    """Return the value of YAML or TOML text; None for other text."""
    import yaml

    try:
        if fence == "+++":
            return tomllib.loads(text)
        # BaseLoader keeps every value a text; YAML itself reads no as false, and 12:30 as 750
        return yaml.load(text, yaml.BaseLoader) or {}
    except yaml.YAMLError:
        return dict(_YAML_FIELD.findall(text)) or None
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


@cache
def _parser() -> "MarkdownIt":
    """Return CommonMark's parser without inline parsing."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark")
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


def outline(lines: Iterable[str], first: int = 1) -> Iterator[Heading | TextLine]:
    """Yield the headings of Markdown (CommonMark) and its other lines, in order.

    A heading inside a quotation or a list item is a line. Markdown of more than 2 million
    characters is not parsed: all its lines are yielded, read as needed.

    Args:
        lines: The lines, without their ends.
        first: The number of the first line.
    """
    rest = iter(lines)
    block, size = list[TextLine](), 0
    for line in map(TextLine, count(first), rest):
        block.append(line)
        size += len(line.text) + 1
        if size > _MAX_PARSED:
            yield from chain(block, map(TextLine, count(first + len(block)), rest))
            return
    elements: list[Heading | TextLine | None] = [*block]
    # for the parser, a carriage return also ends a line
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


def _unwrap(lines: Sequence[TextLine], is_markdown: bool) -> str:
    """Return lines as one text of the same length, in which a wrapped paragraph is one line.

    Words hyphenated at a line end are joined, except in Markdown.
    """
    text = lines[0].text
    for line, following in pairwise(lines):
        text += f"{' ' if _continues(line, following, is_markdown) else chr(10)}{following.text}"
    return text if is_markdown else _BROKEN.sub(_join_word, text)


def _join_word(broken: re.Match[str]) -> str:
    """Return a word without hyphens and line breaks, padded with spaces to the same length."""
    rest = broken[0].replace("-\n", "")
    return rest.ljust(len(broken[0]))


def _continues(line: TextLine, following: TextLine, is_markdown: bool) -> bool:
    """Return whether two lines belong to one paragraph."""
    if line.verbatim or following.verbatim or _is_blank(line) or _is_blank(following):
        return False
    ends = line.text.endswith(_HARD_BREAKS if is_markdown else "-")
    code = line.text.startswith(_INDENTED) and following.text.startswith(_INDENTED)
    return not (ends or code or line.text.startswith("|") or _OWN_LINE.match(following.text))
