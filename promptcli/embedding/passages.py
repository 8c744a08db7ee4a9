"""Texts and Markdown as passages: paragraphs under their heading, short ones joined, long ones
split.

A passage is what a search shows: enough text to be understood, and short enough that its vector is
about one thing.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from semantic_text_splitter import TextSplitter

from promptcli.data.dialect import format_of
from promptcli.embedding.splitting import Splitter

if TYPE_CHECKING:
    from promptcli.encoder.sentence_encoder import SentenceEncoder

#: How the lines of a text become rows: by the look of each text, or all in one way.
AUTO, PASSAGES, LINES = WAYS = ("auto", "passages", "lines")

#: Characters of a passage without its heading. Longer ones were found less often
#: (benchmarks/passages.py).
_CHARACTERS = 300
#: Characters of a heading that its passages begin with.
_LONGEST_HEADING = 120
#: Characters that are split at once: the time that the library takes grows with their square.
_BLOCK = 8192
#: Lines by which a text is judged.
_HEAD = 2000
#: Extensions of Markdown, and of texts that are paragraphs even if no line is blank.
_MARKDOWN = (".md", ".markdown", ".mdx", ".rmd", ".qmd")
_PARAGRAPHS = (*_MARKDOWN, ".rst")

_HEADING = re.compile(r" {0,3}(#{1,6})\s+(\S.*)")
_FENCE = re.compile(r"\s{0,3}(```|~~~)")
#: A line of one sign, which makes the line above it a heading.
_UNDERLINE = re.compile(r"([=\-~^\"'`#*+.:_])\1{2,}\s*$")
#: The first signs of a line that goes on no paragraph: an item of a list, a quotation, a row of a
#: table, a directive.
_OWN_LINE = re.compile(r"\s*([-*+>|#]\s|\d+[.)]\s|\.\. |\||```|~~~)")
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
    text: str  #: what is encoded: the headings, shortened, on a line of their own, and the body


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
        return _extension(name) in _PARAGRAPHS or not look_listed(_without_end(head))
    return way == PASSAGES


def passages_of(
    lines: Iterable[str], head: Sequence[str], name: str | Path, encoder: "SentenceEncoder"
) -> Iterator[Passage]:
    """Yield the passages of a text, which fit the window of an encoder.

    Lines are read when they are needed.

    Args:
        lines: All lines, without their ends.
        head: See ``has_passages``.
        name: See ``has_passages``.
        encoder: The one that will encode them.
    """
    markdown = _extension(name) in _MARKDOWN
    wrapped = markdown or look_wrapped(_without_end(head))
    return _Reader(encoder, markdown=markdown, wrapped=wrapped).passages(lines)


def _without_end(head: Sequence[str]) -> Sequence[str]:
    """Return the first lines, which decide how a text is read, without blank ones at the end."""
    end = min(len(head), _HEAD)
    while end and not head[end - 1].strip():
        end -= 1
    return head[:end]


def _extension(name: str | Path) -> str:
    path = Path(name)
    compressed = format_of(path)[1]
    return Path(path.stem if compressed else path).suffix.lower()


@dataclass
class _Section:
    """Lines under a heading, or a part of them."""

    path: list[str]  #: the headings above them
    line: int  #: number of the first of ``lines``
    lines: list[str]


class _Reader:
    """Reads the passages of a text."""

    def __init__(self, encoder: "SentenceEncoder", *, markdown: bool, wrapped: bool) -> None:
        self._markdown = markdown
        self._wrapped = wrapped
        # its Markdown splitter takes code in a sentence for a better place to split than the end of
        # the sentence
        self._chunks = TextSplitter(_CHARACTERS)
        self._splitter = Splitter(encoder)
        self._longest_heading = min(_LONGEST_HEADING, self._splitter.window // 4)
        self._underlines = list[
            tuple[str, bool]
        ]()  # signs of underlined headings, the highest level first

    def passages(self, lines: Iterable[str]) -> Iterator[Passage]:
        """Yield the passages of lines, in order; lines are read when they are needed."""
        for section in self._sections(lines):
            heading = " > ".join(section.path)
            begin = self._short_heading(section.path)
            original = "\n".join(section.lines)
            line = section.line
            counted = 0
            for start, body in self._bodies(self._unwrapped(section.lines), begin):
                line += original.count("\n", counted, start)
                counted = start
                end_line = line + original.count("\n", start, start + len(body))
                yield Passage(line, end_line, heading, body, f"{begin}{body}")

    def _bodies(self, text: str, begin: str) -> Iterator[tuple[int, str]]:
        """Yield the parts of a text and their offsets.

        Each fits the window behind the text ``begin``.
        """
        start = 0
        while start < len(text):
            end = len(text)
            if end - start > 2 * _BLOCK:  # one long line
                blank = text.rfind(" ", start + 1, start + _BLOCK)
                if blank > 0:
                    end = blank
                else:
                    end = start + _BLOCK
            for place, chunk in self._chunks.chunk_indices(text[start:end]):
                for inside, part in self._splitter.parts_at(chunk, begin):
                    yield start + place + inside, part
            start = end

    def _short_heading(self, path: Sequence[str]) -> str:
        """Return the last headings of a path that are not too long together, as the first line of a
        passage.
        """
        shown = ""
        for heading in reversed(path):
            if shown:
                longer = f"{heading} > {shown}"
            else:
                longer = heading[: self._longest_heading]
            if len(longer) > self._longest_heading:
                break
            shown = longer
        if shown:
            return f"{shown}\n"
        return ""

    def _sections(self, lines: Iterable[str]) -> Iterator[_Section]:
        """Yield the lines between headings.

        A heading that has neither lines nor headings below it is a line itself.
        """
        path = list[tuple[int, str]]()  # levels and titles
        section = _Section([], 1, [])
        size = 0
        in_code = False
        for number, line in enumerate(lines, 1):
            if self._markdown and _FENCE.match(line):
                in_code = not in_code
            heading = None
            if not in_code:
                heading = self._heading(line, section.lines)
            if heading is not None:
                level, title, above = heading
                if above:
                    del section.lines[-above:]
                if any(map(str.strip, section.lines)):
                    yield section
                elif path and level <= path[-1][0]:
                    yield _childless(path, number - above)
                path = [(higher, name) for higher, name in path if higher < level]
                path.append((level, title))
                section = _Section([name for _, name in path], number + 1, [])
                size = 0
                continue
            section.lines.append(line)
            size += len(line) + 1
            if (size > _BLOCK and not line.strip() and not in_code) or size > 2 * _BLOCK:
                yield section
                section = _Section(section.path, number + 1, [])
                size = 0
        if any(map(str.strip, section.lines)):
            yield section
        elif path:
            yield _childless(path, section.line)

    def _heading(self, line: str, above: Sequence[str]) -> tuple[int, str, int] | None:
        """Return level and title of a heading that ends with a line, and how many lines ``above``
        are part of it.
        """
        marked = None
        if self._markdown:
            marked = _HEADING.match(line)
        if marked is not None:
            title = marked[2].rstrip()
            # it may end with a row of #
            return (
                len(marked[1]),
                title.rstrip("#").rstrip() or title,
                0,
            )
        underline = _UNDERLINE.match(line)
        if above:
            title = above[-1].rstrip()
        else:
            title = ""
        if (
            underline is None
            or not title
            or title[0].isspace()
            or _OWN_LINE.match(title)
            or _UNDERLINE.match(title)
        ):
            return None
        if len(above) > 1:
            before = above[-2]
        else:
            before = ""
        overlined = before.rstrip() == line.rstrip()
        if before.strip() and not overlined:
            return None  # the last line of a paragraph
        if self._markdown:
            levels = {"=": 1, "-": 2}
            if underline[1] in levels:
                return (levels[underline[1]], title, 1)
            return None
        if len(line.rstrip()) < len(title):
            return None
        style = underline[1], overlined
        if style not in self._underlines:
            self._underlines.append(style)
        return self._underlines.index(style) + 1, title.strip(), 1 + overlined

    def _unwrapped(self, lines: Sequence[str]) -> str:
        """Return lines as one text of the same length in which a wrapped paragraph is one line."""
        joined = list[str]()
        in_code = False
        for number, line in enumerate(lines):
            if self._markdown and _FENCE.match(line):
                in_code = not in_code
            joined.append(line)
            if number + 1 < len(lines):
                following = lines[number + 1]
            else:
                following = ""
            joined.append(" " if self._goes_on(line, following) and not in_code else "\n")
        return "".join(joined[:-1])

    def _goes_on(self, line: str, following: str) -> bool:
        """Return whether two lines are of one paragraph."""
        if not self._wrapped or not line.strip() or not following.strip():
            return False
        hard = line.endswith(("  ", "\\")) and self._markdown
        code = line.startswith(_INDENTED) and following.startswith(_INDENTED)
        return not (
            hard or code or line.startswith("|") or _FENCE.match(line) or _OWN_LINE.match(following)
        )


def _childless(path: Sequence[tuple[int, str]], following: int) -> _Section:
    """Return a heading without lines below it as a line under the headings above it."""
    titles = [name for _, name in path]
    return _Section(titles[:-1], following - 1, [titles[-1]])
