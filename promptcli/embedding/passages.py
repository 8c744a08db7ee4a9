"""Texts and Markdown as passages: paragraphs under their heading, short ones joined, long ones
split.

A passage is the unit that a search shows: enough text to be understood, and short enough
that its vector is about one thing.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, dropwhile, groupby, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from semantic_text_splitter import TextSplitter

from promptcli.data.file_arguments import MARKDOWN, PROSE, extension_of
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
_BLOCK = 8192
#: Lines by which a text is judged.
_HEAD = 2000

#: A line of one sign, which makes the line above it a heading.
_UNDERLINE = re.compile(r"([=\-~^\"'`#*+.:_])\1{2,}\s*$")
#: The first signs of a line that goes on no paragraph: an item of a list, a quotation, a row of a
#: table, a directive.
_OWN_LINE = re.compile(r"\s*([-*+>|#]\s|\d+[.)]\s|\.\. |\||```|~~~)")
#: The end of a line within a word, as texts of PDF files have it; not that of "pre- and post-war".
_BROKEN = re.compile(r"[^\W\d_]-\n(?!(?:and|or|und|oder)\b)[^\W\d_A-Z]")
_INDENTED = ("    ", "\t")
#: The end of a sentence inside a line.
_STOP = re.compile(r"[.!?…][\"'”’»)\]]*(?=\s)|[。！？]")  # noqa: RUF001
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
    markdown = extension in MARKDOWN
    wrapped = markdown or look_wrapped(_without_end(head))
    title = Path(name).name[: -len(extension + ending)]
    return _Reader(encoder, title, markdown=markdown, wrapped=wrapped).passages(lines)


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
    line: int  #: number of the first of ``lines``
    lines: list[str] = field(default_factory=list)
    verbatim: set[int] = field(default_factory=set)  #: offsets of the lines of code


class _Outline:
    """Collects lines into sections: those between two headings.

    A heading that has neither lines nor headings below it is a line itself.
    """

    def __init__(self) -> None:
        self._path = list[tuple[int, str]]()  # levels and titles
        self._place: int | None = None  # the line of the last heading, if no text has followed
        self._section = _Section([], 1)
        self._size = 0

    @property
    def above(self) -> list[str]:
        """The lines since the last heading."""
        return self._section.lines

    def add(self, number: int, line: str, *, verbatim: bool = False) -> Iterator[_Section]:
        """Add a line; yield the section if it is long enough."""
        section = self._section
        if not section.lines:
            section.line = number
        if verbatim:
            section.verbatim.add(len(section.lines))
        section.lines.append(line)
        self._size += len(line) + 1
        at_pause = not line.strip() and not verbatim
        if (self._size > _BLOCK and at_pause) or self._size > 2 * _BLOCK:
            yield section
            self._begin(number + 1)

    def open(self, heading: Heading) -> Iterator[_Section]:
        """Begin a section under a heading; yield the one before."""
        yield from self._end_section(heading.level)
        self._path = [(level, title) for level, title in self._path if level < heading.level]
        title = heading.title
        if title:
            self._path.append((heading.level, title[:_LONGEST_TITLE]))
        self._place = heading.line
        self._begin(heading.end_line + 1)
        if len(title) > _LONGEST_TITLE:
            self._place = None
            yield _Section([name for _, name in self._path], heading.line, [title])

    def close(self) -> Iterator[_Section]:
        """Yield the last section."""
        yield from self._end_section(0)

    def _begin(self, line: int) -> None:
        self._section = _Section([name for _, name in self._path], line)
        self._size = 0

    def _end_section(self, following: int) -> Iterator[_Section]:
        """Yield the section before a heading of the level ``following``."""
        if any(map(str.strip, self._section.lines)):
            yield self._section
        elif self._path and self._place and following <= self._path[-1][0]:
            titles = [name for _, name in self._path]
            yield _Section(titles[:-1], self._place, [titles[-1]])


class _Reader:
    """Reads the passages of a text."""

    def __init__(self, encoder: "Encoder", title: str, *, markdown: bool, wrapped: bool) -> None:
        self._title = title  # of Markdown without a title
        self._markdown = markdown
        self._wrapped = wrapped
        # its Markdown splitter takes code in a sentence for a better place to split than the end of
        # the sentence
        self._chunks = TextSplitter(_CHARACTERS)
        self._splitter = Splitter(encoder)
        self._longest_heading = min(_LONGEST_HEADING, self._splitter.window // 4)
        #: signs of underlined headings, the highest level first
        self._underlines = list[tuple[str, bool]]()
        self._fields: tuple[tuple[str, str], ...] = ()  # of the front matter

    def passages(self, lines: Iterable[str]) -> Iterator[Passage]:
        """Yield the passages of lines, in order; lines are read when they are needed."""
        read = self._markdown_sections if self._markdown else self._underlined_sections
        for section in read(lines):
            heading = " > ".join(section.path)
            begin = self._short_heading(section.path)
            original = "\n".join(section.lines)
            line = section.line
            counted = 0
            for start, body in self._bodies(self._unwrap(section), begin):
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
            end = len(text)
            if end - start > 2 * _BLOCK:  # one long line
                end = _end_of_block(text, start)
            for place, chunk in self._chunks.chunk_indices(text[start:end]):
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

    def _markdown_sections(self, lines: Iterable[str]) -> Iterator[_Section]:
        """Yield the lines between the headings of Markdown.

        The heading of all is the title of front matter, or the name of a file that begins without
        a heading of the first level, with the aliases of front matter.
        """
        outlined = _Outline()
        front, rest = read_front_matter(lines)
        begin, title, title_line = 0, "", 0
        if front is not None:
            begin, title, self._fields = front.lines, front.title, front.fields
            title_line = front.title_line
        elements = dropwhile(_is_blank, outline(islice(rest, begin, None), begin + 1))
        first = list(islice(elements, 1))
        if not title and not any(isinstance(each, Heading) and each.level == 1 for each in first):
            title, title_line = self._title, 0
        names = filter(None, (title, dict(self._fields).get("aliases")))
        yield from outlined.open(Heading(title_line, begin, 0, ", ".join(names)))
        for element in chain(first, elements):
            if not isinstance(element, Heading):
                yield from outlined.add(element.number, element.text, verbatim=element.verbatim)
            elif element.level == 1 and element.title == title:  # once more
                yield from outlined.open(element._replace(title=""))
            else:
                yield from outlined.open(element)
        yield from outlined.close()

    def _underlined_sections(self, lines: Iterable[str]) -> Iterator[_Section]:
        """Yield the lines between underlined headings."""
        outlined = _Outline()
        for number, line in enumerate(lines, 1):
            heading = self._heading(line, outlined.above)
            if heading is None:
                yield from outlined.add(number, line)
                continue
            level, title, above = heading
            del outlined.above[-above:]
            yield from outlined.open(Heading(number - 1, number, level, title))
        yield from outlined.close()

    def _heading(self, line: str, above: Sequence[str]) -> tuple[int, str, int] | None:
        """Return level and title of a heading that ends with a line, and how many lines ``above``
        are part of it.
        """
        underline = _UNDERLINE.match(line)
        title = above[-1].rstrip() if above else ""
        is_title = bool(title) and not title[0].isspace() and len(line.rstrip()) >= len(title)
        if underline is None or not is_title or _OWN_LINE.match(title) or _UNDERLINE.match(title):
            return None
        before = above[-2].rstrip() if len(above) > 1 else ""
        overlined = before == line.rstrip()
        if before and not overlined:
            return None  # the last line of a paragraph
        style = underline[1], overlined
        if style not in self._underlines:
            self._underlines.append(style)
        return self._underlines.index(style) + 1, title.strip(), 1 + overlined

    def _unwrap(self, section: _Section) -> str:
        """Return lines as one text of the same length in which a wrapped paragraph is one line."""
        lines, ends = list(section.lines), list[str]()
        for place, (line, following) in enumerate(pairwise(lines)):
            code = place in section.verbatim or place + 1 in section.verbatim
            if not self._markdown and line.endswith("-") and _BROKEN.search(f"{line}\n{following}"):
                ends.append("")
            else:
                ends.append(" " if not code and self._goes_on(line, following) else "\n")
        for place in reversed(range(len(ends))):
            if not ends[place]:
                # the rest of a broken word comes to its beginning; space stands for hyphen and end
                rest = lines[place + 1].split(maxsplit=1)[0]
                lines[place] = f"{lines[place][:-1]}{rest}  "
                lines[place + 1] = lines[place + 1][len(rest) :]
        return "".join(map("".join, zip(lines, [*ends, ""], strict=True)))

    def _goes_on(self, line: str, following: str) -> bool:
        """Return whether two lines are of one paragraph."""
        if not self._wrapped or not line.strip() or not following.strip():
            return False
        hard = line.endswith(("  ", "\\")) and self._markdown
        code = line.startswith(_INDENTED) and following.startswith(_INDENTED)
        return not (hard or code or line.startswith("|") or _OWN_LINE.match(following))


def _is_blank(element: Heading | TextLine) -> bool:
    return isinstance(element, TextLine) and not element.text.strip()


def _end_of_block(text: str, start: int) -> int:
    """Return where a long line is cut: behind the last sentence of a block, else behind a word."""
    limit = start + _BLOCK
    end = 0
    for stop in _STOP.finditer(text, start + 1, limit):
        end = stop.end()
    return end or max(text.rfind(" ", start + 1, limit), 0) or limit
