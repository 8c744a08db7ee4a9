"""Texts and Markdown as passages: paragraphs under their heading, short ones joined, long ones
split.

A passage is the unit that a search shows: enough text to be understood, and short enough
that its vector is about one thing.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, dropwhile, groupby, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from semantic_text_splitter import TextSplitter

from promptcli.data.input_files import MARKDOWN, ORG, PROSE, extension_of
from promptcli.embedding.markdown import Heading, TextLine, outline, read_front_matter
from promptcli.embedding.splitting import Splitter

if TYPE_CHECKING:
    from promptcli.encoder.sentence_encoder import Encoder

#: How the lines of a text become rows: by the look of each text, or all in one way.
AUTO, PASSAGES, LINES = WAYS = ("auto", "passages", "lines")

#: Characters of a passage without its heading. Longer ones were found less often
#: (benchmarks/passages.py).
_CHARACTERS = 300
#: Characters of a heading that its passages begin with.
_LONGEST_HEADING = 120
#: Characters of a heading that are kept beside each of its passages; a longer one is a text of its
#: own too.
_LONGEST_TITLE = 1000
#: Characters that are split at once: the time that the library takes grows with their square.
_CHARACTERS_AT_ONCE = 8192
#: Lines by which a text is judged.
_HEAD = 2000

#: A heading of Org: its level is the number of stars.
_ORG_HEADING = re.compile(r"(\*+)\s+(.*\S)")
#: A line of one sign, which makes the line above it a heading.
_UNDERLINE = re.compile(r"([=\-~^\"'`#*+.:_])\1{2,}\s*$")
#: The first signs of a line that goes on no paragraph: an item of a list, a quotation, a row of a
#: table, a directive.
_OWN_LINE = re.compile(r"\s*([-*+>|#]\s|\d+[.)]\s|\.\. |\||```|~~~)")
#: The end of a line within a word, as texts of PDF files have it; not that of "pre- and post-war".
_BROKEN = re.compile(r"[^\W\d_]-\n(?!(?:and|or|und|oder)\b)[^\W\d_A-Z]")
_INDENTED = ("    ", "\t")
_SENTENCE_END = re.compile(r"[.!?:;…。！？][\"'”’»)\]]*\s*$")  # noqa: RUF001

#: Widths at which people wrap lines.
_WIDTHS = range(30, 161)
#: Characters of a line that is a sentence or two, not a paragraph.
_LONGEST_SENTENCE = 500


class Passage(NamedTuple):
    """A part of a text, or a line of it."""

    line: int  #: its first line, from 1
    end_line: int  #: its last line
    heading: str  #: the headings above it, joined by `` > ``; empty without any
    body: str
    text: str  #: the encoded text: the headings, shortened, on a separate line, and the body
    fields: tuple[tuple[str, str], ...] = ()  #: names and values of the front matter of its file


def look_wrapped(lines: Sequence[str]) -> bool:
    """Return whether lines are parts of wrapped paragraphs: most end where the next word would not
    have fitted.
    """
    breaks = full = unfinished = 0
    first_words = set[str]()
    for paragraph in _paragraphs(lines):
        lengths = sorted(map(len, paragraph))
        width = lengths[len(lengths) * 19 // 20]  # a few lines are longer: links, code
        for line, following in pairwise(paragraph):
            if _OWN_LINE.match(following):
                continue
            first_word = following.split()[0]
            first_words.add(first_word)
            breaks += 1
            full += width in _WIDTHS and len(line) + 1 + len(first_word) > width
            unfinished += _SENTENCE_END.search(line) is None
    alike = 5 * len(first_words) < breaks  # a list: its lines begin with the same words
    return breaks > 1 and 2 * full > breaks and 3 * unfinished > breaks and not alike


def _paragraphs(lines: Sequence[str]) -> Iterator[list[str]]:
    """Yield the runs of lines that are not blank."""
    for filled, run in groupby(lines, lambda line: bool(line.strip())):
        if filled:
            yield list(run)


def look_listed(lines: Sequence[str]) -> bool:
    """Return whether lines are sentences or other items, one a line, rather than paragraphs."""
    filled = [line for line in lines if line.strip()]
    blank = len(lines) - len(filled)
    long = sum(len(line) > _LONGEST_SENTENCE for line in filled)
    return 20 * blank <= len(filled) and 20 * long <= len(filled) and not look_wrapped(lines)


def has_passages(head: Sequence[str], name: str | Path, way: str) -> bool:
    """Return whether the rows of a text are its passages, rather than its lines.

    Args:
        head: Its first lines, without their ends.
        name: File; its extension tells Markdown and reST.
        way: One of ``WAYS``.
    """
    if way == AUTO:
        return extension_of(name)[0] in PROSE or not look_listed(_without_end(head))
    return way == PASSAGES


def passages_of(
    lines: Iterable[str], head: Sequence[str], name: str | Path, encoder: "Encoder"
) -> Iterator[Passage]:
    """Yield the passages of a text, which fit the window of an encoder.

    Lines are read when they are needed.

    Args:
        lines: All lines, without their ends.
        head: See ``has_passages``.
        name: See ``has_passages``.
        encoder: The one that will encode them.
    """
    extension, ending = extension_of(name)
    wrapped = extension in MARKDOWN or look_wrapped(_without_end(head))
    title = Path(name).name[: -len(extension + ending)]
    return _Reader(encoder, title, extension, wrapped=wrapped).passages(lines)


def _without_end(head: Sequence[str]) -> Sequence[str]:
    """Return the first lines, which decide how a text is read, without blank ones at the end."""
    end = min(len(head), _HEAD)
    while end and not head[end - 1].strip():
        end -= 1
    return head[:end]


@dataclass
class _Section:
    """Lines under a heading, or a part of them."""

    path: list[str]  #: the headings above them
    lines: list[TextLine] = field(default_factory=list)


def _sections(elements: Iterable[Heading | TextLine]) -> Iterator[_Section]:
    """Yield the lines between two headings, many of them in parts.

    A heading that has neither lines nor headings below it is a line itself.
    """
    path = list[tuple[int, str]]()  # levels and titles
    place = size = 0  # the line of the last heading, if no text has followed
    section = _Section([])
    for element in chain(elements, [Heading(0, 0, 0, "")]):
        if isinstance(element, TextLine):
            section.lines.append(element)
            size += len(element.text) + 1
            at_pause = not element.text.strip() and not element.verbatim
            if (size > _CHARACTERS_AT_ONCE and at_pause) or size > 2 * _CHARACTERS_AT_ONCE:
                yield section
                place = size = 0
                section = _Section(section.path)
            continue
        titles = [title for _, title in path]
        if any(line.text.strip() for line in section.lines):
            yield section
        elif place and path and element.level <= path[-1][0]:
            yield _Section(titles[:-1], [TextLine(place, titles[-1], False)])
        path = [(level, title) for level, title in path if level < element.level]
        if element.title:
            path.append((element.level, element.title[:_LONGEST_TITLE]))
        place, size = element.line, 0
        section = _Section([title for _, title in path])
        if len(element.title) > _LONGEST_TITLE:
            place = 0
            yield _Section(section.path, [TextLine(element.line, element.title, False)])


def _starred(lines: Iterable[str]) -> Iterator[Heading | TextLine]:
    """Yield the headings of an Org text, and its other lines."""
    for number, line in enumerate(lines, 1):
        heading = _ORG_HEADING.match(line)
        if heading is None:
            yield TextLine(number, line, False)
        else:
            yield Heading(number, number, len(heading[1]), heading[2])


def _underlined(lines: Iterable[str]) -> Iterator[Heading | TextLine]:
    """Yield the headings of a text that are underlined, and its other lines."""
    styles = list[tuple[str, bool]]()  # signs of underlines, the highest level first
    above = deque[TextLine]()  # the last two lines
    for number, line in enumerate(lines, 1):
        style = _underline(line, [each.text.rstrip() for each in above])
        if style is None:
            above.append(TextLine(number, line, False))
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
        yield Heading(number - 1, number, styles.index(style) + 1, title)
    yield from above


def _underline(line: str, above: Sequence[str]) -> tuple[str, bool] | None:
    """Return the sign of a line under a title, the last of those ``above``, and whether it is over
    it, too.
    """
    sign = _UNDERLINE.match(line)
    before, title = ["", "", *above][-2:]
    if sign is None or not title or title[0].isspace() or len(line.rstrip()) < len(title):
        return None
    overlined = before == line.rstrip()
    if _OWN_LINE.match(title) or _UNDERLINE.match(title) or (before and not overlined):
        return None  # the last: of a paragraph
    return sign[1], overlined


class _Reader:
    """Reads the passages of a text."""

    def __init__(self, encoder: "Encoder", title: str, extension: str, *, wrapped: bool) -> None:
        self._title = title  # of Markdown without a title
        self._markdown = extension in MARKDOWN
        self._outline = _starred if extension == ORG else _underlined
        if self._markdown:
            self._outline = self._markdown_elements
        self._wrapped = wrapped
        # its Markdown splitter takes code in a sentence for a better place to split than the end of
        # the sentence
        self._chunks = TextSplitter(_CHARACTERS)
        self._splitter = Splitter(encoder)
        self._longest_heading = min(_LONGEST_HEADING, self._splitter.window // 4)
        self._fields: tuple[tuple[str, str], ...] = ()  # of the front matter

    def passages(self, lines: Iterable[str]) -> Iterator[Passage]:
        """Yield the passages of lines, in order; lines are read when they are needed."""
        for section in _sections(self._outline(lines)):
            heading = " > ".join(section.path)
            begin = self._short_heading(section.path)
            original = "\n".join(line.text for line in section.lines)
            line = section.lines[0].number
            counted = 0
            for start, body in self._bodies(self._unwrap(section.lines), begin):
                line += original.count("\n", counted, start)
                counted = start
                end_line = line + original.count("\n", start, start + len(body))
                yield Passage(line, end_line, heading, body, f"{begin}{body}", self._fields)

    def _bodies(self, text: str, begin: str) -> Iterator[tuple[int, str]]:
        """Yield the parts of a text and their offsets.

        Each fits the window behind the text ``begin``.
        """
        start = 0
        while start < len(text):
            end = start + 2 * _CHARACTERS_AT_ONCE
            chunks = self._chunks.chunk_indices(text[start:end])
            if end < len(text) and len(chunks) > 1:  # one long line: the last part may go on
                end = start + chunks.pop()[0]
            for place, chunk in chunks:
                for inside, part in self._splitter.parts_at(chunk, begin):
                    yield start + place + inside, part
            start = end

    def _short_heading(self, path: Sequence[str]) -> str:
        """Return the last headings of a path that are not too long together, as the first line of a
        passage.
        """
        shown = "".join(path[-1:])[: self._longest_heading]
        for heading in reversed(path[:-1]):
            if len(f"{heading} > {shown}") > self._longest_heading:
                break
            shown = f"{heading} > {shown}"
        return f"{shown}\n" if shown else ""

    def _markdown_elements(self, lines: Iterable[str]) -> Iterator[Heading | TextLine]:
        """Yield the headings of Markdown and its other lines.

        The heading of all is the title of front matter, or the name of a file that begins without
        a heading of the first level, with the aliases of front matter.
        """
        front, rest = read_front_matter(lines)
        self._fields = front.fields
        elements = dropwhile(_is_blank, outline(islice(rest, front.lines, None), front.lines + 1))
        first = list(islice(elements, 1))
        title, title_line = front.title, front.title_line
        if not title and not any(isinstance(each, Heading) and each.level == 1 for each in first):
            title, title_line = self._title, 0
        names = filter(None, (title, dict(self._fields).get("aliases")))
        yield Heading(title_line, front.lines, 0, ", ".join(names))
        for element in chain(first, elements):
            if isinstance(element, Heading) and (element.level, element.title) == (1, title):
                element = element._replace(title="")  # once more
            yield element

    def _unwrap(self, lines: Sequence[TextLine]) -> str:
        """Return lines as one text of the same length in which a wrapped paragraph is one line."""
        texts, ends = [line.text for line in lines], list[str]()
        for line, following in pairwise(lines):
            code = line.verbatim or following.verbatim
            broken = not self._markdown and line.text.endswith("-")
            if broken and _BROKEN.search(f"{line.text}\n{following.text}"):
                ends.append("")
            else:
                goes_on = not code and self._goes_on(line.text, following.text)
                ends.append(" " if goes_on else "\n")
        for place in reversed(range(len(ends))):
            if not ends[place]:
                # the rest of a broken word comes to its beginning; space stands for hyphen and end
                rest = texts[place + 1].split(maxsplit=1)[0]
                texts[place] = f"{texts[place][:-1]}{rest}  "
                texts[place + 1] = texts[place + 1][len(rest) :]
        return "".join(map("".join, zip(texts, [*ends, ""], strict=True)))

    def _goes_on(self, line: str, following: str) -> bool:
        """Return whether two lines are of one paragraph."""
        if not self._wrapped or not line.strip() or not following.strip():
            return False
        hard = line.endswith(("  ", "\\")) and self._markdown
        code = line.startswith(_INDENTED) and following.startswith(_INDENTED)
        return not (hard or code or line.startswith("|") or _OWN_LINE.match(following))


def _is_blank(element: Heading | TextLine) -> bool:
    return isinstance(element, TextLine) and not element.text.strip()
