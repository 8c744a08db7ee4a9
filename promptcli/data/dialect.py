"""How a file of rows is written, and which of its columns are read: every guess about a file is
made here.
"""

import contextlib
import csv
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from promptcli.data.column_forms import finite_number
from promptcli.data.input_files import COMPRESSED, STANDARD, Text, check_file, is_remote
from promptcli.errors import NoColumnError, UsageError, did_you_mean
from promptcli.notes import keyword, note

#: A layout is the names of the columns of a batch. That of sentences: ``text``, and ``id`` if the
#: file has ids.
SENTENCES: tuple[str, ...] = ()
TEXT = "text"
ID = "id"
#: Column of a batch that holds the file's other columns, if they are wanted: a map of names to
#: texts for each row.
CELLS = "cells"
#: In place of the column of ids: rows are numbered.
NONE = "-"
#: A column that a row may leave empty, or an object leave out: a triplet's hard negative. Further
#: ones have a number.
OPTIONAL = "hard_neg"
#: Columns whose cells may be numbers.
NUMERIC = ("label", "score", "grade")
#: Layouts, each by the names of its columns; pairs and triplets as SimCSE's files name them.
PAIRS = ("sent0", "sent1")
TRIPLETS = (*PAIRS, OPTIONAL)
#: A pair of natural language inference; a pair graded for its similarity; a word's definition.
LABELLED_PAIRS = ("premise", "hypothesis", "label")
GRADED_PAIRS = ("sentence1", "sentence2", "score")
DEFINITIONS = ("definition", "word")

#: Column of a batch -> names of it in files, best first; case, spaces, ``_`` and ``-`` do not
#: count.
ALIASES: dict[str, tuple[str, ...]] = {
    TEXT: ("text", "sentence", "texts", "sentences"),
    ID: ("id", "_id"),
    "label": ("gold_label", "label", "entailment_judgment"),
    "score": (
        "score",
        "similarity",
        "relatedness_score",
        "similarity_score",
        "label",
        "is_duplicate",
    ),
    OPTIONAL: (OPTIONAL, "negative", "hard_negative"),
    "grade": ("grade", "relevance", "score"),
    "query": ("query", "question"),
    "document": ("document", "passage", "answer"),
}
#: Names of the two sides of a pair, best first.
SIDES = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("sentence_A", "sentence_B"),
    ("question1", "question2"),
    ("text1", "text2"),
    PAIRS,
)
#: The same if the second side is a positive of the first, graded or not.
POSITIVES = (
    ("anchor", "positive"),
    ("query", "positive"),
    ("query", "answer"),
    ("question", "answer"),
)
#: Name of a file -> column of a batch that it is read as without a word.
_USUAL = {
    "sentence": TEXT,
    "_id": ID,
    "sentence1": "premise",
    "sentence2": "hypothesis",
    "gold_label": "label",
}

#: Extension -> format; any other extension is plain text. An ending of ``COMPRESSED`` may follow
#: all but ``.parquet`` and ``.xlsx``.
FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".xlsx": "xlsx",
}

_LABELS = ("entailment", "neutral", "contradiction", "-")
#: Columns of tab-separated files without a header, and whether the fields of a first line are such.
HEADLESS: dict[tuple[str, ...], Callable[[list[str]], bool]] = {
    ("label", "premise", "hypothesis"): lambda fields: len(fields) > 2 and fields[0] in _LABELS,
    ("word", "definition"): lambda fields: len(fields) == 2 and "definition" not in fields,
    # STS-B as distributed
    ("genre", "file", "year", "number", "score", "sentence1", "sentence2"): lambda fields: (
        len(fields) > 6
        and [finite_number(field) is None for field in fields[4:7]] == [False, True, True]
    ),
}

#: Column of a batch -> column of the file; plain text has one column without a name.
Columns = dict[str, str]
#: Gets a line about a guess.
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Dialect:
    """How the rows of a file are written."""

    #: ``text``, ``jsonl``, ``array`` (one of JSON), ``table``, ...: ``rows`` reads each by itself
    format: str
    delimiter: str = ","
    quoted: bool = True  #: whether cells may be in double quotes
    skipped: int = 0  #: lines before the table
    header: tuple[
        str, ...
    ] = ()  #: columns of a table without a header line, by number if nothing names them
    ragged: bool = False  #: whether a row of such a table may have more fields, which are ignored
    rows: Sequence[Sequence[str]] = ()  #: first rows of a table

    @property
    def numbered(self) -> bool:
        """Whether columns have numbers as names."""
        return self.header[:1] == ("1",)

    @property
    def width(self) -> int:
        """The number of columns of its first row."""
        if self.rows:
            return len(self.rows[0])
        return 0

    @property
    def evenness(self) -> float:
        """The share of its rows that have the most frequent number of columns."""
        if not self.rows:
            return 0.0
        widths = Counter(len(row) for row in self.rows)
        return max(widths.values()) / len(self.rows)

    def has_column(self, names: Set[str]) -> bool:
        """Return whether the first row has one of these names, given by their keys."""
        return bool(self.rows) and not names.isdisjoint(map(_key, self.rows[0]))

    def columns_that(self, test: Callable[[str], bool], header: Sequence[str]) -> list[str]:
        """Return the columns most of whose first cells pass a test."""
        passing = []
        for name, cells in zip(header, zip(*self.rows, strict=False), strict=False):
            filled = sum(cell != "" for cell in cells)
            passed = sum(test(cell) for cell in cells)
            if 2 * passed > filled:
                passing.append(name)
        return passing

    def cells_of(self, column: str, header: Sequence[str]) -> list[str]:
        """Return the first cells of a column that are not empty; none if they are not known."""
        place = header.index(column)
        cells = [row[place] for row in self.rows if place < len(row)]
        return [cell for cell in cells if cell.strip()]

    def holds_numbers(self, column: str, header: Sequence[str]) -> bool:
        """Return whether all first cells of a column are numbers."""
        cells = self.cells_of(column, header)
        return bool(cells) and all(map(_is_number, cells))


@dataclass(frozen=True)
class ColumnChoice:
    """The columns to read: those of the first layout that a file has.

    ``text`` and ``id`` name the file's columns of the sentence and its id if the user has chosen
    them, ``named`` those of the layout with as many columns, in its order; all by name, or by
    number from 1. ``remedy`` tells how a user names columns: by ``text_field`` if it is None; by
    ``FILE:COLUMN,...`` if it is "". With ``cells`` the other columns of a table are read, too.
    ``text_before`` and ``id_before`` are the columns of an index so far, which are read of files
    that have them.
    """

    text: str | None = None
    id: str | None = None
    layouts: tuple[tuple[str, ...], ...] = (SENTENCES,)
    named: tuple[str, ...] = ()
    remedy: str | None = None
    cells: bool = False
    text_before: str | None = None
    id_before: str | None = None

    def choose(
        self,
        header: Sequence[str] | None,
        name: str,
        dialect: Dialect = Dialect("jsonl"),
        tell: Tell = note,
    ) -> Columns:
        """Return the columns to read of the file ``name`` with this header; plain text has none.

        Columns of one name have those of ``unique_names`` here and in the rows.
        """
        if header is None:
            return self._chosen(None, name, dialect, tell)
        names = unique_names(header)
        columns = self._chosen(names, name, dialect, tell)
        self._check_repeated(header, columns, name, dialect)
        renamed = [new for old, new in zip(header, names, strict=True) if new != old]
        if renamed and self.cells:
            tell(
                f"{name}: several columns have one name; the further ones are called"
                f" {', '.join(renamed)}"
            )
        return columns

    def of_sheet(self, sheets: Sequence[str]) -> tuple[str | None, "ColumnChoice"]:
        """Return the sheet that stands before the first column, and the choice without it.

        None: the first. A word that is a sheet's name alone chooses its usual columns.
        """
        given = self.named[0] if self.named else self.text
        if given is None:
            return None, self
        sheet, colon, column = given.rpartition(":")
        if not colon and given in sheets:
            sheet = given
            column = ""
        elif not colon:
            return None, self
        if self.named:
            rest = (column, *self.named[1:]) if column else self.named[1:]
            return sheet, replace(self, named=rest)
        return sheet, replace(self, text=column or None)

    def _check_repeated(
        self, header: Sequence[str], columns: Columns, name: str, dialect: Dialect
    ) -> None:
        """Refuse a column that shares its name with another, unless its number was given."""
        names = unique_names(header)
        by_number = set()
        for given in (self.text, self.id, *self.named):
            if given and given.isdecimal() and given not in names:
                by_number.add(names[int(given) - 1])
        for role, column in columns.items():
            if header.count(column) > 1 and column not in by_number and not is_optional(role):
                hint = f"rename them, or give the number of one; {_listed(names, dialect)}"
                raise UsageError(f"{name}: several columns are named {column!r}; {hint}")

    def _chosen(
        self, header: Sequence[str] | None, name: str, dialect: Dialect, tell: Tell
    ) -> Columns:
        if self.named:
            return self._named(header, name, dialect)
        columns = self._first_layout_in(header)
        if columns is None and dialect.numbered:
            columns = self._graded(dialect)
        if columns is None and SENTENCES in self.layouts:
            columns = self._with_those_before(header, name, tell)._sentences(header, name, dialect)
        if columns is None:
            raise self._no_columns(header, name, dialect)
        text = columns.get(TEXT)
        if self.text and header is not None and text and dialect.holds_numbers(text, header):
            tell(f"{name}: column {text!r} holds numbers, which are read as sentences")
        guesses = self._guesses(header, columns, dialect)
        if guesses:
            word = "column" if len(guesses) == 1 else "columns"
            tell(f"{name}: {word} {', '.join(guesses)}")
        return columns

    def _first_layout_in(self, header: Sequence[str] | None) -> Columns | None:
        """Return the columns of the first layout that a file has all columns of."""
        for layout in self.layouts:
            columns = _columns_of(layout, header or ())
            if columns:
                return columns
        return None

    def _no_columns(self, header: Sequence[str] | None, name: str, dialect: Dialect) -> UsageError:
        wanted = " or ".join(", ".join(layout) for layout in self.layouts)
        if header is None:
            return UsageError(
                f"{name} is plain text and has no columns; give a file with the columns {wanted}"
            )
        return self._unnamed(f"no columns {wanted}", header, name, dialect)

    def _guesses(
        self, header: Sequence[str] | None, columns: Columns, dialect: Dialect
    ) -> list[str]:
        """Return which columns are read as what, where neither user nor name says so."""
        known = {self.text, self.id}
        if not dialect.numbered:
            known.update(dialect.header)
        others_than_id = [column for column in header or () if column != columns.get(ID)]
        guesses = []
        for role, column in columns.items():
            if column == role or column in known or _USUAL.get(column) == role:
                continue
            if role == TEXT and len(others_than_id) < 2:
                continue
            guesses.append(f"{column} as {role}")
        return guesses

    def _with_those_before(
        self, header: Sequence[str] | None, name: str, tell: Tell
    ) -> "ColumnChoice":
        """Return the columns to read with those of the index where the user names none and the file
        has them.
        """
        columns = {"text": self.text, "id": self.id}
        for role, before in (("text", self.text_before), ("id", self.id_before)):
            if header is None or before is None or columns[role] is not None:
                continue
            if before == NONE or _find(before, header) is not None:
                columns[role] = before
            else:
                tell(
                    f"{name}: no column {before!r}, the {role} of the index so far; its columns are"
                    " guessed"
                )
        return replace(self, text=columns["text"], id=columns["id"])

    def _named(self, header: Sequence[str] | None, name: str, dialect: Dialect) -> Columns:
        if header is None:
            raise UsageError(
                f"{name} is plain text and has no columns; leave out :{','.join(self.named)}"
            )
        layout = layout_of_width(self.layouts, len(self.named))
        if layout is None:
            wanted = " or ".join(", ".join(layout or (TEXT,)) for layout in self.layouts)
            raise UsageError(
                f"{name}:{','.join(self.named)} names {len(self.named)} columns; name those of"
                f" {wanted}"
            )
        columns = dict[str, str]()
        for column, given in zip(layout or (TEXT,), self.named, strict=True):
            place = _find(given, header)
            if place is None:
                remedy = did_you_mean(given, header)
                example = _example(layout, name, header, dialect)
                if not remedy and example is not None:
                    remedy = f"; name others, e.g. {example}"
                raise UsageError(
                    f"{name}: {_how_many(given, header)} {given!r};"
                    f" {_listed(header, dialect)}{remedy}"
                )
            if column not in NUMERIC and dialect.holds_numbers(place, header):
                raise UsageError(
                    f"{name}: column {given!r} holds numbers, and {column} is text; leave it out,"
                    " or name another"
                )
            columns[column] = place
        return columns

    def _graded(self, dialect: Dialect) -> Columns | None:
        """Return the columns of graded pairs: two of sentences, and one of numbers."""
        graded = [layout for layout in self.layouts if layout[2:] and layout[2] in NUMERIC]
        sentences = dialect.columns_that(_is_sentence, dialect.header)
        numbers = dialect.columns_that(_is_number, dialect.header)
        if not graded or len(sentences) != 2 or len(numbers) != 1:
            return None
        return dict(zip(graded[0], [*sentences, *numbers], strict=True))

    def _sentences(self, header: Sequence[str] | None, name: str, dialect: Dialect) -> Columns:
        if header is None:
            if self.text or self.id not in (None, NONE):
                raise UsageError(
                    f"{name} is plain text and has no fields; leave out {keyword('text_field')} and"
                    f" {keyword('id_field')}"
                )
            return {TEXT: ""}
        text = None
        if self.text is not None:
            text = _given_column("text_field", self.text, header, name, dialect)
        if self.id is not None and self.id != NONE:
            id_column: str | None = _given_column("id_field", self.id, header, name, dialect)
        else:
            id_column = _guessed_id(header, text, name, dialect)
        if text is None:
            text = self._guessed_text(header, id_column, name, dialect)
        columns = {TEXT: text}
        if id_column is not None and self.id != NONE:
            columns[ID] = id_column
        return columns

    def _guessed_text(
        self, header: Sequence[str], id_column: str | None, name: str, dialect: Dialect
    ) -> str:
        """Return the column of the sentence: by its usual name, or the only one that may be it."""
        for alias in ALIASES[TEXT]:
            usual = _find(alias, header)
            if usual:
                return usual
        candidates = [column for column in header if column != id_column]
        if len(candidates) > 1:
            candidates = []
            if dialect.numbered:
                numeric = dialect.columns_that(_is_figure, header)
            else:
                numeric = []
            if numeric:
                candidates = [column for column in header if column not in numeric]
        if len(candidates) != 1:
            problem = "no column 'text' or 'sentence'"
            if dialect.numbered:
                problem = "which column is the sentence is not known"
            raise self._unnamed(problem, header, name, dialect)
        text = candidates[0]
        if text in dialect.columns_that(_is_number, header):
            raise self._unnamed(f"column {text!r} holds numbers", header, name, dialect)
        return text

    def _unnamed(
        self, problem: str, header: Sequence[str], name: str, dialect: Dialect
    ) -> NoColumnError:
        """Return the error for columns that the user has to name."""
        hint = self._hint(name, header, dialect)
        return NoColumnError(name, problem, hint, _listed(header, dialect))

    def _hint(self, name: str, header: Sequence[str], dialect: Dialect) -> str:
        """Return how a user names the columns, with those of this file as an example."""
        if self.remedy is None:
            return f"choose one with {keyword('text_field')}"
        if self.remedy:
            return self.remedy
        given = [_example(layout, name, header, dialect) for layout in self.layouts]
        examples = [example for example in given if example]
        if not examples:
            return "none of its columns fits; give another file"
        return f"name the columns, e.g. {' or '.join(examples)}"


def _given_column(
    option: str, given: str, header: Sequence[str], name: str, dialect: Dialect
) -> str:
    """Return the column that the user has named by an option; refuse one that is missing."""
    column = _find(given, header)
    if column is None:
        listed = _listed(header, dialect)
        raise UsageError(
            f"{name}: {keyword(option)} {given!r}: {_how_many(given, header)} of that name;"
            f" {listed}{did_you_mean(given, header)}"
        )
    return column


def _example(
    layout: tuple[str, ...], name: str, header: Sequence[str], dialect: Dialect
) -> str | None:
    """Return how a user names the columns of a layout; None if the file seems to lack one."""
    columns = _likely_columns(layout, header, dialect)
    if columns is None:
        return None
    return f'"{name}:{",".join(columns)}" for {", ".join(layout or (TEXT,))}'


def _likely_columns(
    layout: tuple[str, ...], header: Sequence[str], dialect: Dialect
) -> list[str] | None:
    """Return columns that may be those of a layout: of text, and of numbers for a score.

    A column of ids is neither. None if the file has too few.
    """
    figures = {*dialect.columns_that(_is_number, header), *dialect.columns_that(_is_figure, header)}
    cells_known = bool(dialect.rows)
    if not cells_known:
        figures = {column for column in header if _key(column) in _NUMERIC_NAMES}
    texts = [column for column in header if column not in figures and not _ID_NAME.search(column)]
    numbers = [column for column in header if column in figures and not _ID_NAME.search(column)]
    if layout == SENTENCES:  # a pair's first one; else the longest ones are most likely sentences
        texts.sort(
            key=lambda column: (
                _key(column) not in _FIRST_SIDES,
                -sum(map(len, dialect.cells_of(column, header))),
            )
        )
    columns = []
    for role in layout or (TEXT,):
        of_role = texts
        has_numbers = cells_known and role != "label"  # a label may be a word
        if role in NUMERIC and (numbers or has_numbers):
            of_role = numbers
        if not of_role:
            return None
        columns.append(of_role.pop(0))
    return columns


def _guessed_id(header: Sequence[str], text: str | None, name: str, dialect: Dialect) -> str | None:
    """Return the column named id, however it is spelt, unless it is the text."""
    if ID in header and text != ID:
        return ID
    ids = [column for column in header if _key(column) == ID and column != text]
    if len(ids) > 1:
        listed = _listed(header, dialect)
        raise UsageError(f"{name}: several columns are named {ids[0]!r}; rename them; {listed}")
    if ids:
        return ids[0]
    return None


def _key(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).casefold()


#: Names by which a first line is recognised as a header.
_KNOWN = {
    _key(name)
    for names in (*ALIASES.values(), *SIDES, *POSITIVES, ("word", "definition"))
    for name in names
}


#: Names of columns of numbers.
#: Names of a pair's first sentence.
_FIRST_SIDES = {_key(first) for first, _ in (*SIDES, *POSITIVES)}
_NUMERIC_NAMES = {_key(name) for role in NUMERIC for name in ALIASES[role]}
#: A name of a column of ids: ``id``, ``_id``, ``user_id``, ``userId``.
_ID_NAME = re.compile(r"^id$|[\s_.-]id$|[a-z]Id$|^ID$|[\s_.-]ID$")

#: The key of a column of hard negatives: ``negative``, ``negative_1`` (sentence-transformers),
#: ``negative.1`` (pandas).
_NEGATIVE = re.compile(rf"({'|'.join(map(_key, ALIASES[OPTIONAL]))})(\.?\d+)?")


def is_negative(name: str) -> bool:
    """Return whether a file's column of that name holds hard negatives."""
    return _NEGATIVE.fullmatch(_key(name)) is not None


def with_negatives(count: int) -> tuple[str, ...]:
    """Return the layout of a pair with that many hard negatives, at least one."""
    return (*TRIPLETS, *(f"{OPTIONAL}_{number}" for number in range(2, count + 1)))


def is_optional(column: str) -> bool:
    """Return whether a column of a batch holds hard negatives, which a row may lack."""
    return column.startswith(OPTIONAL)


def layout_of_width(layouts: Sequence[tuple[str, ...]], width: int) -> tuple[str, ...] | None:
    """Return the first layout with that many columns; a triplet may have more hard negatives."""
    for layout in layouts:
        if len(layout or (TEXT,)) == width:
            return layout
    if TRIPLETS in layouts and width > len(TRIPLETS):
        return with_negatives(width - len(PAIRS))
    return None


def unique_names(header: Sequence[str]) -> list[str]:
    """Return the names of columns.

    Further columns of one name get a number, as in pandas.

    Example:
        >>> unique_names(["tag", "text", "tag", "tag"])
        ['tag', 'text', 'tag.1', 'tag.2']
    """
    names = list[str]()
    for name in header:
        unique = name
        number = 0
        while unique in names or (number and unique in header):
            number += 1
            unique = f"{name}.{number}"
        names.append(unique)
    return names


def _find(name: str, header: Sequence[str]) -> str | None:
    """Return the only column of that name or number; None if none or several have it."""
    matches = _matching(name, header)
    if len(matches) == 1:
        return matches[0]
    return None


def _how_many(name: str, header: Sequence[str]) -> str:
    """Return "no column" or "several columns", by how many have that name."""
    if _matching(name, header):
        return "several columns"
    return "no column"


def _matching(name: str, header: Sequence[str]) -> list[str]:
    """Return the columns of that name or number.

    The spelling counts first, then the name regardless of case and spaces, then the number.
    """
    matches = [column for column in header if column == name]
    key = _key(name)
    if not matches and key:
        matches = [column for column in header if _key(column) == key]
    if not matches and name.isdecimal() and len(name) < 10 and 1 <= int(name) <= len(header):
        numbered = header[int(name) - 1]
        matches = [column for column in header if column == numbered]
    return matches


def _find_any(names: Sequence[str], header: Sequence[str]) -> str | None:
    """Return the column of the first of these names that a header has."""
    for name in names:
        column = _find(name, header)
        if column:
            return column
    return None


def _columns_of(layout: tuple[str, ...], header: Sequence[str]) -> Columns | None:
    """Return the columns of a layout other than sentences; None if a header lacks one."""
    if not layout or not header:
        return None
    if layout == TRIPLETS:
        further: list[str | None] = [column for column in header if is_negative(column)]
        if not further:
            return None
        layout = with_negatives(len(further))
    else:
        further = [_find_any(ALIASES.get(name, (name,)), header) for name in layout[2:]]
    columns = {}
    for role, column in zip(layout, [*_sides_of(layout[:2], header), *further], strict=True):
        if column is None:
            return None
        columns[role] = column
    return columns


def _sides_of(sides: tuple[str, ...], header: Sequence[str]) -> list[str | None]:
    """Return the columns of the two sides of a pair, by any of the names that pairs have."""
    if sides not in SIDES:
        return [_find_any(ALIASES.get(name, (name,)), header) for name in sides]
    names_of_sides: list[tuple[str, ...]] = [sides, *SIDES, *POSITIVES]
    if sides == PAIRS:
        graded = _find_any((*ALIASES.get("label", ("label",)), *ALIASES["score"]), header)
        names_of_sides = [PAIRS, *POSITIVES]
        if graded is None:  # else a pair need not be a positive one
            names_of_sides.extend(SIDES)
    for names in names_of_sides:
        columns = [_find(name, header) for name in names]
        if None not in columns:
            return columns
    return [None, None]


def _listed(header: Sequence[str], dialect: Dialect) -> str:
    """Return the columns of a file for a message.

    Those without names by number, with their first cells.
    """
    hint = ""
    if _has_title(header, dialect):
        hint = "; if their names stand in a later line, remove the lines above it"
    if not dialect.numbered:
        return f"columns: {', '.join(header)}{hint}"
    columns = []
    for number, cell in zip(header, dialect.rows[0], strict=False):
        columns.append(f"{number} ({cell:.20})")
    return f"it has no header; columns by number: {', '.join(columns)}{hint}"


def _has_title(header: Sequence[str], dialect: Dialect) -> bool:
    """Return whether the first line may be a title above the names: it has fewer cells than a
    later one, the first not counted, which pandas leaves empty, or no separator.
    """
    if len(header) == 1:
        cells = itertools.chain.from_iterable(dialect.rows)
        return any(sign in cell for cell in cells for sign in _DELIMITERS if sign != ",")
    if dialect.numbered:
        unnamed = [place for place, cell in enumerate(dialect.rows[0]) if not cell.strip()]
    else:
        unnamed = [place for place, name in enumerate(header) if name == str(place + 1)]
    filled = [row for row in dialect.rows if all(map(str.strip, row))]
    return bool(unnamed[-1:] > [0] and (filled or not dialect.rows))


def _is_number(cell: str) -> bool:
    return finite_number(cell) is not None


_FIGURE = re.compile(r"[\s.,:/%+-]*\d[\d\s.,:/%+TZ-]*")


def _is_figure(cell: str) -> bool:
    """Return whether a cell is a number, a date or a time, as no name of a column is."""
    return _FIGURE.fullmatch(cell) is not None


def _is_sentence(cell: str) -> bool:
    return " " in cell.strip() and not _is_figure(cell)


_WORKBOOK = re.compile(r"(?s)(.*?\.xlsx):(.+)", re.IGNORECASE)


def split_columns(word: str) -> tuple[str, tuple[str, ...]]:
    """Return the file and the columns of ``FILE`` or ``FILE:first,second,score``.

    In ``FILE.xlsx:SHEET:first,second`` the sheet stands before the first column, with its colon.

    Example:
        >>> split_columns("pairs.csv:question,answer,gold")[1]
        ('question', 'answer', 'gold')
    """
    workbook = _WORKBOOK.match(word)
    if workbook is not None and os.path.exists(workbook[1]) and not os.path.exists(word):
        sheet, colon, listed = workbook[2].rpartition(":")
        first, *others = listed.split(",")
        return workbook[1], (f"{sheet}{colon}{first.strip()}", *map(str.strip, others))
    name, colon, listed = word.rpartition(":")
    if (
        colon
        and not os.path.exists(word)
        and (os.path.exists(name) or ("," in listed and "/" not in listed))
    ):
        return name, tuple(column.strip() for column in listed.split(","))
    return word, ()


def names_file(word: str) -> bool:
    """Return whether a word of the command line is a file that exists, or ``FILE:COLUMN`` of one.

    A sentence may begin with the name of a file, too, but has a space after its colon.
    """
    if os.path.exists(word):
        return not os.path.isdir(word)
    name, columns = split_columns(word)
    return bool(columns) and ": " not in word and os.path.exists(name) and not os.path.isdir(name)


def split_text_column(words: Sequence[str], text_field: str | None) -> tuple[list[str], str | None]:
    """Return files, and the column of their sentences: ``FILE:COLUMN`` names it, or ``text_field``.

    Example:
        >>> split_text_column(["notes.txt"], None)
        (['notes.txt'], None)
    """
    files = list[str]()
    chosen = dict[str | None, None]()  # in order
    for word in words:
        file = word
        columns: tuple[str, ...] = ()
        if not is_remote(word):
            file, columns = split_columns(word)
        if len(columns) > 1:
            check_file(Path(file))
            raise UsageError(
                f'{word!r} names {len(columns)} columns; name that of the sentence: "{file}:'
                f'{columns[0]}"'
            )
        if columns and text_field is not None:
            raise UsageError(
                f"{word!r} names a column, and so does {keyword('text_field')}; leave one out"
            )
        files.append(file)
        chosen[columns[0] if columns else text_field] = None
    if len(chosen) > 1:
        raise UsageError(
            f"all files have one column of sentences; name it as {keyword('text_field')}"
        )
    return files, next(iter(chosen), text_field)


# The form of a file, by its name and its beginning

_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_QUOTED = re.compile(r'"(?:[^"]|"")*"')


def is_doubled(cell: str) -> bool:
    """Return whether a cell is in double quotes with doubled ones inside, as no sentence is."""
    return '""' in cell[1:-1] and _QUOTED.fullmatch(cell) is not None


def format_of(name: str | Path) -> tuple[str, str]:
    """Return the format of a file by its extension, and the ending of a compressed one."""
    path = Path(name)
    if path.suffix.lower() in COMPRESSED:
        ending = path.suffix.lower()
    else:
        ending = ""
    suffix = (Path(path.stem) if ending else path).suffix.lower()
    return FORMATS.get(suffix, "text"), ending


def dialect_of(
    path: str | Path, text: Text, fields: ColumnChoice, name: str, tell: Tell
) -> Dialect:
    """Return the dialect of a file by its extension and its beginning.

    ``tell`` gets what is not plain.
    """
    form = format_of(path)[0]
    start = text.head.lstrip()
    if str(path) == str(STANDARD) and (
        fields.text or fields.id or fields.named or fields.layouts != (SENTENCES,)
    ):
        form = "jsonl" if start[:1] in ("{", "[") else "csv"
    if form == "jsonl" and start.startswith("["):
        tell(f"{name}: read as one JSON array")
        return Dialect("array")
    if form == "text" and start.startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):
            if json.loads(start.partition("\n")[0]):
                tell(f"{name}: read as JSON lines")
                form = "jsonl"
    if form == "jsonl":
        return Dialect(form)
    return _table(text, form, fields, name, tell) or Dialect("text")


def _table(text: Text, form: str, fields: ColumnChoice, name: str, tell: Tell) -> Dialect | None:
    """Return how a table is written; None for text (``form``) that is not a table."""
    lines = [f"{line}\n" for line in text.head.split("\n")]
    if not text.complete or lines[-1] == "\n":
        lines = lines[:-1] or lines
    blank = next((number for number, line in enumerate(lines) if line.strip()), 0)
    if blank and form == "text":
        return None
    lines = lines[blank:]
    first = lines[0].rstrip("\r\n").split("\t")
    for columns, fits in HEADLESS.items():
        if fits(first) and any(_columns_of(layout, columns) for layout in fields.layouts):
            tell(f"{name}: no header; its columns: {', '.join(columns)}")
            return Dialect("table", "\t", False, blank, header=columns, ragged=True)
    named = set(_KNOWN)
    for column in (fields.text, fields.id, *fields.named, fields.text_before, fields.id_before):
        if column and not column.isdecimal():
            named.add(_key(column))
    usual = "," if form == "csv" else "\t"
    tables = _readings(lines, usual, blank)
    best = max(tables, key=lambda table: (table.has_column(named), table.evenness))
    even = best.evenness == 1
    if form == "text":
        plain = not best.skipped and not best.has_column(named) and best.delimiter != "\t"
        if plain or best.width < 2 or not even or len(best.rows) < 2:
            return None
    elif even and not best.has_column(named) and sum(table.evenness == 1 for table in tables) > 1:
        signs = [_DELIMITERS[table.delimiter] for table in tables if table.evenness == 1]
        raise UsageError(
            f"{name}: columns separated by {' or '.join(signs)}? write sep={best.delimiter}, say,"
            " as its first line"
        )
    remarks = []
    if best.delimiter != usual or form == "text":
        sign = _DELIMITERS.get(best.delimiter, repr(best.delimiter))
        remarks.append(f" as a table separated by {sign}")
    if best.quoted and best.delimiter == "\t":
        remarks.append(", its cells in double quotes")
    return _with_header(best, form, named, remarks, name, tell)


def _readings(lines: Sequence[str], usual: str, blank: int) -> list[Dialect]:
    """Return lines as tables by every delimiter that may be meant, the usual one first."""
    excel = re.fullmatch(r"sep=(.)\r?\n", lines[0], re.IGNORECASE)
    if excel:
        return [_split(lines[1:], excel[1], blank + 1)]
    delimiters = dict.fromkeys([usual, *_DELIMITERS])
    tables = [_split(lines, delimiter, blank) for delimiter in delimiters]
    if any(_has_decimal_commas(table) for table in tables):
        tables = [table for table in tables if table.delimiter != ","]
    return [table for table in tables if table.width > 1] or tables[:1]


def _has_decimal_commas(table: Dialect) -> bool:
    """Return whether a column of an even table holds only numbers such as 3,8."""
    if table.delimiter == "," or table.evenness != 1 or table.width < 2:
        return False
    for column in zip(*table.rows, strict=False):
        if all("," in cell and _is_number(cell) for cell in column):
            return True
    return False


def _rows(lines: Sequence[str], delimiter: str, quoted: bool) -> list[list[str]]:
    """Return the rows of a table that are not empty; none if it is not written so."""
    if quoted:
        try:
            rows = list(csv.reader(lines, delimiter=delimiter))
        except csv.Error:
            return []
    else:
        rows = [line.rstrip("\r\n").split(delimiter) for line in lines]
    return [row for row in rows if any(cell.strip() for cell in row)]


def _split(lines: Sequence[str], delimiter: str, skipped: int) -> Dialect:
    """Return lines as a table.

    With tabs a quote is a character like others, as in GLUE's, unless quotes make the rows even.
    """
    quoted_rows = _rows(lines, delimiter, True)
    if delimiter == "\t":
        plain_rows = _rows(lines, delimiter, False)
        quotes_are_needed = _has_quoted_cells(plain_rows) or not _is_even(plain_rows)
        if not (_is_even(quoted_rows) and quotes_are_needed):
            return Dialect("table", delimiter, False, skipped, rows=plain_rows)
    return Dialect("table", delimiter, True, skipped, rows=quoted_rows)


def _is_even(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether there are rows, and all have as many cells."""
    return len({len(row) for row in rows}) == 1


def _has_quoted_cells(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether every cell with a quote is in quotes, and one of them as no sentence is.

    That is a name in the first row, or a cell with doubled quotes inside.
    """
    marked: list[str] = []
    for row in rows:
        marked.extend(cell for cell in row if '"' in cell)
    if not all(_QUOTED.fullmatch(cell) for cell in marked):
        return False
    return any(is_doubled(cell) or cell in rows[0] for cell in marked)


def _with_header(
    table: Dialect, form: str, named: Set[str], remarks: list[str], name: str, tell: Tell
) -> Dialect:
    """Return a table without its header among the rows, or with numbers in its place."""
    if not table.rows:
        return table
    first, *rows = table.rows
    if table.has_column(named):
        table = replace(table, rows=rows)
    elif _looks_like_header(first, rows, form):
        remarks.append(f" with the header {', '.join(first)}")
        table = replace(table, rows=rows)
    else:
        remarks.append(" without a header")
        width = table.width
        least = min(len(row) for row in table.rows)
        ragged = table.delimiter == "\t" and 1 < least and table.evenness < 1  # as STS-B
        if ragged:
            width = least
        numbers = tuple(str(number) for number in range(1, width + 1))
        table = replace(table, header=numbers, ragged=ragged)
    if remarks:
        tell(f"{name}: read{''.join(remarks)}")
    return table


def _looks_like_header(first: Sequence[str], rows: Sequence[Sequence[str]], form: str) -> bool:
    """Return whether the cells of a first row are names: words above numbers, or short ones.

    In a text (``form``) short ones may be a list's first item: they are no names.
    """
    if any(_is_figure(cell) for cell in first):
        return False
    names = [cell.strip() for cell in first if cell.strip()]
    are_short = all(name[-1] not in ".!?" and len(name.split()) < 4 for name in names)
    if are_short and form != "text":
        return True
    for column in zip(*rows, strict=False):
        filled = [cell for cell in column if cell]
        if filled and all(_is_figure(cell) for cell in filled):
            return True
    return False
