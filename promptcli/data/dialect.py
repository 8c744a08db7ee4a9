"""How a file of rows is written, and which of its columns are read: every guess about a file is
made here.
"""

import contextlib
import csv
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from promptcli.data.files import COMPRESSED, STANDARD, Text
from promptcli.data.given import finite_number
from promptcli.errors import UsageError
from promptcli.notes import note

#: A layout is the names of the columns of a batch. That of sentences: ``text``, and ``id`` if the
#: file has ids.
SENTENCES: tuple[str, ...] = ()
TEXT, ID = "text", "id"
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
#: all but ``.parquet``.
FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
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

    #: ``text``, ``jsonl``, ``array`` (one of JSON) or ``table``: a method of ``rows._Reader``
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
        return len(self.rows[0]) if self.rows else 0

    @property
    def evenness(self) -> float:
        """The share of its rows that have the most frequent number of columns."""
        widths = Counter(map(len, self.rows)).most_common(1)
        return widths[0][1] / len(self.rows) if widths else 0.0

    def has_column(self, names: Set[str]) -> bool:
        """Return whether the first row has one of these names, given by their keys."""
        return bool(self.rows) and not names.isdisjoint(map(_key, self.rows[0]))

    def columns_that(self, test: Callable[[str], bool], header: Sequence[str]) -> list[str]:
        """Return the columns most of whose first cells pass a test."""
        columns = zip(header, zip(*self.rows, strict=False), strict=False)
        return [
            name for name, cells in columns if 2 * sum(map(test, cells)) > sum(map(bool, cells))
        ]


@dataclass(frozen=True)
class Fields:
    """The columns to read: those of the first layout that a file has.

    ``text`` and ``id`` name the file's columns of the sentence and its id if the user has chosen
    them, ``named`` those of the layout with as many columns, in its order; all by name, or by
    number from 1. ``remedy`` tells how a user names columns; without one, by ``FILE:COLUMN,...``.
    With ``cells`` the other columns of a table are read, too. ``text_before`` and ``id_before`` are
    the columns of an index so far, which are read of files that have them.
    """

    text: str | None = None
    id: str | None = None
    layouts: tuple[tuple[str, ...], ...] = (SENTENCES,)
    named: tuple[str, ...] = ()
    remedy: str = "choose one with `text_field`"
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

    def _check_repeated(
        self, header: Sequence[str], columns: Columns, name: str, dialect: Dialect
    ) -> None:
        """Refuse a column whose name another one has, too, unless its number was given."""
        names = unique_names(header)
        given = (self.text, self.id, *self.named)
        by_number = {
            names[int(word) - 1]
            for word in given
            if word and word.isdecimal() and word not in names
        }
        for role, column in columns.items():
            if header.count(column) > 1 and column not in by_number and not is_optional(role):
                hint = f"rename them, or give the number of one; {_listed(names, dialect)}"
                raise UsageError(f"{name}: several columns are named {column!r}; {hint}")

    def _chosen(
        self, header: Sequence[str] | None, name: str, dialect: Dialect, tell: Tell
    ) -> Columns:
        if self.named:
            return self._named(header, name, dialect)
        columns = next(
            filter(None, (_columns_of(layout, header or ()) for layout in self.layouts)), None
        )
        if columns is None and dialect.numbered:
            columns = self._graded(dialect)
        if columns is None and SENTENCES in self.layouts:
            columns = self._with_those_before(header, name, tell)._sentences(header, name, dialect)
        if columns is None:
            wanted = " or ".join(", ".join(layout) for layout in self.layouts)
            if header is None:
                raise UsageError(
                    f"{name} is plain text and has no columns; give a file with the columns"
                    f" {wanted}"
                )
            raise UsageError(
                f"{name}: no columns {wanted}; {self._hint(name, header)};"
                f" {_listed(header, dialect)}"
            )
        chosen = {self.text, self.id, *(dialect.header if not dialect.numbered else ())}
        only = len([column for column in header or () if column != columns.get(ID)]) < 2
        guesses = [
            f"{file} as {column}"
            for column, file in columns.items()
            if file != column
            and file not in chosen
            and _USUAL.get(file) != column
            and not (only and column == TEXT)
        ]
        if guesses:
            tell(f"{name}: column{'s' if len(guesses) > 1 else ''} {', '.join(guesses)}")
        return columns

    def _with_those_before(self, header: Sequence[str] | None, name: str, tell: Tell) -> "Fields":
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
                raise UsageError(
                    f"{name}: no column {given!r}, or several; {_listed(header, dialect)}"
                )
            columns[column] = place
        return columns

    def _graded(self, dialect: Dialect) -> Columns | None:
        """Return the columns of graded pairs: the only two of sentences, and the only one of
        numbers.
        """
        layout = next(
            (layout for layout in self.layouts if layout[2:] and layout[2] in NUMERIC), None
        )
        sentences = dialect.columns_that(
            lambda cell: " " in cell.strip() and not _is_figure(cell), dialect.header
        )
        numbers = dialect.columns_that(_is_number, dialect.header)
        if layout is None or (len(sentences), len(numbers)) != (2, 1):
            return None
        return dict(zip(layout, [*sentences, *numbers], strict=True))

    def _sentences(self, header: Sequence[str] | None, name: str, dialect: Dialect) -> Columns:
        if header is None:
            if self.text or self.id not in (None, NONE):
                raise UsageError(
                    f"{name} is plain text and has no fields; leave out `text_field` and `id_field`"
                )
            return {TEXT: ""}
        listed = _listed(header, dialect)
        chosen = {}
        for option, column in (
            ("text_field", self.text),
            ("id_field", None if self.id == NONE else self.id),
        ):
            chosen[option] = None if column is None else _find(column, header)
            if column is not None and chosen[option] is None:
                raise UsageError(
                    f"{name}: `{option}` {column!r} is not a column, or not unique; {listed}"
                )
        text, id_column = chosen.values()
        ids = (
            [ID]
            if ID in header and text != ID
            else [name for name in header if _key(name) == ID and name != text]
        )
        if id_column is None and len(ids) > 1:
            raise UsageError(f"{name}: several columns are named {ids[0]!r}; rename them; {listed}")
        id_column = id_column or next(iter(ids), None)
        if text is None:
            usual = list(filter(None, (_find(column, header) for column in ALIASES[TEXT])))
            others = [column for column in header if column != id_column]
            if not usual and len(others) > 1:
                figures = dialect.columns_that(_is_figure, header) if dialect.numbered else []
                others = [column for column in header if column not in figures] if figures else []
            if len(others := usual[:1] or others) != 1:
                problem = (
                    "which column is the sentence?"
                    if dialect.numbered
                    else "no column 'text' or 'sentence';"
                )
                raise UsageError(f"{name}: {problem} {self._hint(name, header)}; {listed}")
            (text,) = others
            if not usual and text in dialect.columns_that(_is_number, header):
                raise UsageError(
                    f"{name}: column {text!r} holds numbers; {self._hint(name, header)}"
                )
        return {TEXT: text} | ({} if id_column is None or self.id == NONE else {ID: id_column})

    def _hint(self, name: str, header: Sequence[str]) -> str:
        """Return how a user names the columns, with those of this file as an example."""
        if self.remedy:
            return self.remedy
        examples = []
        for layout in self.layouts:
            names = layout or (TEXT,)
            columns = [*header, *"ABC"][: len(names)]
            examples.append(f'"{name}:{",".join(columns)}" for {", ".join(names)}')
        return f"name the columns, e.g. {' or '.join(examples)}"


def _key(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).casefold()


#: Names by which a first line is recognised as a header.
_KNOWN = {
    _key(name)
    for names in (*ALIASES.values(), *SIDES, *POSITIVES, ("word", "definition"))
    for name in names
}


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
    return (
        with_negatives(width - len(PAIRS))
        if TRIPLETS in layouts and width > len(TRIPLETS)
        else None
    )


def unique_names(header: Sequence[str]) -> list[str]:
    """Return the names of columns.

    Of several with one name the further ones have a number, as in pandas.

    Example:
        >>> unique_names(["tag", "text", "tag", "tag"])
        ['tag', 'text', 'tag.1', 'tag.2']
    """
    names = list[str]()
    for name in header:
        unique, number = name, 0
        while unique in names or (number and unique in header):
            number += 1
            unique = f"{name}.{number}"
        names.append(unique)
    return names


def _find(name: str, header: Sequence[str]) -> str | None:
    """Return the only column of that name: by its spelling, else regardless of case and spaces,
    else by number.
    """
    for same in (lambda column: column == name, lambda column: _key(column) == _key(name) != ""):
        columns = list(filter(same, header))
        if columns:
            return columns[0] if len(columns) == 1 else None
    place = int(name) - 1 if name.isdecimal() and len(name) < 10 else -1
    return header[place] if 0 <= place < len(header) and header.count(header[place]) == 1 else None


def _columns_of(layout: tuple[str, ...], header: Sequence[str]) -> Columns | None:
    """Return the columns of a layout other than sentences; None if a header lacks one."""
    if not layout or not header:
        return None

    def column(name: str) -> str | None:
        return next(
            filter(None, (_find(alias, header) for alias in ALIASES.get(name, (name,)))), None
        )

    further = [column(name) for name in layout[2:]]
    if layout == TRIPLETS:
        negatives = list(filter(is_negative, header))
        layout, further = with_negatives(len(negatives)), [*negatives] or [None]
    sides = [layout[:2], *SIDES, *POSITIVES]
    if layout[:2] == PAIRS:
        sides = [PAIRS, *POSITIVES, *(() if column("label") or column("score") else SIDES)]
    found = [[column(name) for name in layout[:2]]]
    if layout[:2] in SIDES:
        found = [[_find(name, header) for name in pair] for pair in sides]
    pair = next((pair for pair in found if None not in pair), [None])
    columns = [*pair, *further]
    return None if None in columns else dict(zip(layout, map(str, columns), strict=True))


def _listed(header: Sequence[str], dialect: Dialect) -> str:
    """Return the columns of a file for a message.

    Those without names by number, with their first cells.
    """
    if not dialect.numbered:
        return f"columns: {', '.join(header)}"
    cells = zip(header, dialect.rows[0], strict=False)
    return (
        "it has no header; columns by number:"
        f" {', '.join(f'{number} ({cell:.20})' for number, cell in cells)}"
    )


def _is_number(cell: str) -> bool:
    return finite_number(cell) is not None


_FIGURE = re.compile(r"[\s.,:/%+-]*\d[\d\s.,:/%+TZ-]*")


def _is_figure(cell: str) -> bool:
    """Return whether a cell is a number, a date or a time, as no name of a column is."""
    return _FIGURE.fullmatch(cell) is not None


def split_columns(word: str) -> tuple[str, tuple[str, ...]]:
    """Return the file and the columns of ``FILE`` or ``FILE:first,second,score``.

    Example:
        >>> split_columns("pairs.csv:question,answer,gold")[1]
        ('question', 'answer', 'gold')
    """
    name, colon, listed = word.rpartition(":")
    if (
        colon
        and not os.path.exists(word)
        and (os.path.exists(name) or ("," in listed and "/" not in listed))
    ):
        return name, tuple(column.strip() for column in listed.split(","))
    return word, ()


# The form of a file, by its name and its beginning

_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_QUOTED = re.compile(r'"(?:[^"]|"")*"')


def is_doubled(cell: str) -> bool:
    """Return whether a cell is in double quotes and has doubled ones inside, as no sentence is
    written.
    """
    return '""' in cell[1:-1] and _QUOTED.fullmatch(cell) is not None


def format_of(name: str | Path) -> tuple[str, str]:
    """Return the format of a file by its extension, and the ending of a compressed one."""
    path = Path(name)
    ending = path.suffix.lower() if path.suffix.lower() in COMPRESSED else ""
    suffix = (Path(path.stem) if ending else path).suffix.lower()
    return FORMATS.get(suffix, "text"), ending


def dialect_of(path: str | Path, text: Text, fields: Fields, name: str, tell: Tell) -> Dialect:
    """Return the dialect of a file by its extension and its beginning.

    ``tell`` gets what is not plain.
    """
    form, start = format_of(path)[0], text.head.lstrip()
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
    return (
        Dialect(form)
        if form == "jsonl"
        else _table(text, form, fields, name, tell) or Dialect("text")
    )


def _table(text: Text, form: str, fields: Fields, name: str, tell: Tell) -> Dialect | None:
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
    before = fields.text_before, fields.id_before
    given = [
        column
        for column in (fields.text, fields.id, *fields.named, *before)
        if column and not column.isdecimal()
    ]
    named, usual = {*_KNOWN, *map(_key, given)}, "," if form == "csv" else "\t"
    tables = _readings(lines, usual, blank)
    best = max(tables, key=lambda table: (table.has_column(named), table.evenness))
    even = best.evenness == 1
    if form == "text":
        plain = not best.skipped and not best.has_column(named) and best.delimiter != "\t"
        if plain or best.width < 2 or not even or len(best.rows) < 2:
            return None
    elif even and not best.has_column(named) and sum(table.evenness == 1 for table in tables) > 1:
        signs = " or ".join(_DELIMITERS[table.delimiter] for table in tables if table.evenness == 1)
        raise UsageError(
            f"{name}: columns separated by {signs}? write sep={best.delimiter}, say, as its first"
            " line"
        )
    remarks = []
    if best.delimiter != usual or form == "text":
        remarks.append(
            f" as a table separated by {_DELIMITERS.get(best.delimiter, repr(best.delimiter))}"
        )
    if best.quoted and best.delimiter == "\t":
        remarks.append(", its cells in double quotes")
    return _with_header(best, named, remarks, name, tell)


def _readings(lines: Sequence[str], usual: str, blank: int) -> list[Dialect]:
    """Return lines as tables by every delimiter that may be meant, the usual one first."""
    if excel := re.fullmatch(r"sep=(.)\r?\n", lines[0], re.IGNORECASE):
        return [_split(lines[1:], excel[1], blank + 1)]
    tables = [_split(lines, delimiter, blank) for delimiter in dict.fromkeys([usual, *_DELIMITERS])]
    for table in tables:
        columns = (
            zip(*table.rows, strict=False)
            if table.delimiter != "," and table.evenness == 1 < table.width
            else ()
        )
        # such as 3,8
        if any(all("," in cell and _is_number(cell) for cell in column) for column in columns):
            tables = [other for other in tables if other.delimiter != ","]
            break
    return [table for table in tables if table.width > 1] or tables[:1]


def _rows(lines: Sequence[str], delimiter: str, quoted: bool) -> list[list[str]]:
    """Return the rows of a table that are not empty; none if it is not written so."""
    try:
        rows = (
            list(csv.reader(lines, delimiter=delimiter))
            if quoted
            else [line.rstrip("\r\n").split(delimiter) for line in lines]
        )
    except csv.Error:
        return []
    return [row for row in rows if any(map(str.strip, row))]


def _split(lines: Sequence[str], delimiter: str, skipped: int) -> Dialect:
    """Return lines as a table; with tabs a quote is a character like others, as in GLUE's, unless
    all are doubled.
    """
    rows, quoted = _rows(lines, delimiter, True), True
    if delimiter == "\t":
        plain = _rows(lines, delimiter, False)
        marked = [cell for row in plain for cell in row if '"' in cell]
        doubled = all(map(_QUOTED.fullmatch, marked)) and any(
            is_doubled(cell) or cell in plain[0] for cell in marked
        )
        quoted = len(set(map(len, rows))) == 1 and (doubled or len(set(map(len, plain))) > 1)
        rows = rows if quoted else plain
    return Dialect("table", delimiter, quoted, skipped, rows=rows)


def _with_header(
    table: Dialect, named: Set[str], remarks: list[str], name: str, tell: Tell
) -> Dialect:
    """Return a table without its header among the rows, or with numbers in its place."""
    if not table.rows:
        return table
    (first, *rows), known = table.rows, table.has_column(named)
    columns = [list(filter(None, column)) for column in zip(*rows, strict=False)]
    words = [cell.strip() for cell in first if cell.strip()]
    short = all(cell[-1] not in ".!?" and len(cell.split()) < 4 for cell in words)
    above_figures = any(column and all(map(_is_figure, column)) for column in columns)
    if known or ((short or above_figures) and not any(map(_is_figure, first))):
        if not known:
            remarks.append(f" with the header {', '.join(first)}")
        table = replace(table, rows=rows)
    else:
        remarks.append(" without a header")
        least = min(map(len, table.rows))
        ragged = table.delimiter == "\t" and 1 < least and table.evenness < 1  # as STS-B
        numbers = tuple(str(number) for number in range(1, (least if ragged else table.width) + 1))
        table = replace(table, header=numbers, ragged=ragged)
    if remarks:
        tell(f"{name}: read{''.join(remarks)}")
    return table
