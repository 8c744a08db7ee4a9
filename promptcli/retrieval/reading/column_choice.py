"""Which columns of a file are read: those that the user names, else those that its names and cells
suggest.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from promptcli.errors import NoColumnError, UsageError, did_you_mean
from promptcli.notes import keyword, note
from promptcli.retrieval.reading.dialect import (
    DELIMITERS,
    Dialect,
    is_figure,
    is_number,
    is_sentence,
)
from promptcli.retrieval.reading.layouts import (
    ALIASES,
    FIRST_SIDES,
    ID,
    ID_NAME,
    NONE,
    NUMERIC,
    NUMERIC_NAMES,
    SENTENCES,
    TEXT,
    Columns,
    columns_of_layout,
    find_column,
    how_many,
    is_optional,
    layout_of_width,
    name_key,
    unique_names,
)

#: Name of a file -> column of a batch that it is read as without a word.
_USUAL = {
    "sentence": TEXT,
    "_id": ID,
    "sentence1": "premise",
    "sentence2": "hypothesis",
    "gold_label": "label",
}
#: Gets a line about a guess.
Tell = Callable[[str], None]


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
        dialect: Dialect = Dialect("jsonl"),  # noqa: B008
        tell: Tell = note,
    ) -> Columns:
        """Return the columns to read of the file ``name`` with this header; plain text has none.

        Columns of one name have those of ``unique_names`` here and in the rows.
        """
        if header is None:
            return self._choose_columns(None, name, dialect, tell)
        names = unique_names(header)
        columns = self._choose_columns(names, name, dialect, tell)
        self._check_repeated(header, columns, name, dialect)
        renamed = [new for old, new in zip(header, names, strict=True) if new != old]
        if renamed and self.cells:
            tell(
                f"{name}: several columns have one name; the further ones are called"
                f" {', '.join(renamed)}"
            )
        return columns

    def of_sheet(self, sheets: Sequence[str]) -> tuple[str | None, "ColumnChoice"]:
        """Return the sheet named before the first column, and the choice without it.

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
                hint = f"rename them, or give the number of one; {_columns_line(names, dialect)}"
                raise UsageError(f"{name}: several columns are named {column!r}; {hint}")

    def _choose_columns(
        self, header: Sequence[str] | None, name: str, dialect: Dialect, tell: Tell
    ) -> Columns:
        if self.named:
            return self._columns_by_name(header, name, dialect)
        columns = self._first_layout_in(header)
        if columns is None and dialect.numbered:
            columns = self._graded_columns(dialect)
        if columns is None and SENTENCES in self.layouts:
            columns = self._with_columns_of_index(header, name, tell)._sentence_columns(
                header, name, dialect
            )
        if columns is None:
            raise self._no_columns_error(header, name, dialect)
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
            columns = columns_of_layout(layout, header or ())
            if columns:
                return columns
        return None

    def _no_columns_error(
        self, header: Sequence[str] | None, name: str, dialect: Dialect
    ) -> UsageError:
        wanted = " or ".join(", ".join(layout) for layout in self.layouts)
        if header is None:
            return UsageError(
                f"{name} is plain text and has no columns; give a file with the columns {wanted}"
            )
        return self._unnamed_error(f"no columns {wanted}", header, name, dialect)

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

    def _with_columns_of_index(
        self, header: Sequence[str] | None, name: str, tell: Tell
    ) -> "ColumnChoice":
        """Return the columns to read with those of the index where the user names none and the file
        has them.
        """
        columns = {"text": self.text, "id": self.id}
        for role, before in (("text", self.text_before), ("id", self.id_before)):
            if header is None or before is None or columns[role] is not None:
                continue
            if before == NONE or find_column(before, header) is not None:
                columns[role] = before
            else:
                tell(
                    f"{name}: no column {before!r}, the {role} of the index so far; its columns are"
                    " guessed"
                )
        return replace(self, text=columns["text"], id=columns["id"])

    def _columns_by_name(
        self, header: Sequence[str] | None, name: str, dialect: Dialect
    ) -> Columns:
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
            place = find_column(given, header)
            if place is None:
                remedy = did_you_mean(given, header)
                example = _example(layout, name, header, dialect)
                if not remedy and example is not None:
                    remedy = f"; name others, e.g. {example}"
                raise UsageError(
                    f"{name}: {how_many(given, header)} {given!r};"
                    f" {_columns_line(header, dialect)}{remedy}"
                )
            if column not in NUMERIC and dialect.holds_numbers(place, header):
                raise UsageError(
                    f"{name}: column {given!r} holds numbers, and {column} is text; leave it out,"
                    " or name another"
                )
            columns[column] = place
        return columns

    def _graded_columns(self, dialect: Dialect) -> Columns | None:
        """Return the columns of graded pairs: two of sentences, and one of numbers."""
        graded = [layout for layout in self.layouts if layout[2:] and layout[2] in NUMERIC]
        sentences = dialect.columns_that(is_sentence, dialect.header)
        numbers = dialect.columns_that(is_number, dialect.header)
        if not graded or len(sentences) != 2 or len(numbers) != 1:
            return None
        return dict(zip(graded[0], [*sentences, *numbers], strict=True))

    def _sentence_columns(
        self, header: Sequence[str] | None, name: str, dialect: Dialect
    ) -> Columns:
        if header is None:
            if self.text or self.id not in (None, NONE):
                raise UsageError(
                    f"{name} is plain text and has no fields; leave out {keyword('text_field')} and"
                    f" {keyword('id_field')}"
                )
            return {TEXT: ""}
        text = None
        if self.text is not None:
            text = _require_column("text_field", self.text, header, name, dialect)
        if self.id is not None and self.id != NONE:
            id_column: str | None = _require_column("id_field", self.id, header, name, dialect)
        else:
            id_column = _guess_id(header, text, name, dialect)
        if text is None:
            text = self._guess_text(header, id_column, name, dialect)
        columns = {TEXT: text}
        if id_column is not None and self.id != NONE:
            columns[ID] = id_column
        return columns

    def _guess_text(
        self, header: Sequence[str], id_column: str | None, name: str, dialect: Dialect
    ) -> str:
        """Return the column of the sentence: by its usual name, or the only one that may be it."""
        for alias in ALIASES[TEXT]:
            usual = find_column(alias, header)
            if usual:
                return usual
        candidates = [column for column in header if column != id_column]
        if len(candidates) > 1:
            candidates = []
            if dialect.numbered:
                numeric = dialect.columns_that(is_figure, header)
            else:
                numeric = []
            if numeric:
                candidates = [column for column in header if column not in numeric]
        if len(candidates) != 1:
            problem = "no column 'text' or 'sentence'"
            if dialect.numbered:
                problem = "which column is the sentence is not known"
            raise self._unnamed_error(problem, header, name, dialect)
        text = candidates[0]
        if text in dialect.columns_that(is_number, header):
            raise self._unnamed_error(f"column {text!r} holds numbers", header, name, dialect)
        return text

    def _unnamed_error(
        self, problem: str, header: Sequence[str], name: str, dialect: Dialect
    ) -> NoColumnError:
        """Return the error for columns that the user has to name."""
        hint = self._hint(name, header, dialect)
        return NoColumnError(name, problem, hint, _columns_line(header, dialect))

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


def _require_column(
    option: str, given: str, header: Sequence[str], name: str, dialect: Dialect
) -> str:
    """Return the column that the user has named by an option; refuse one that is missing."""
    column = find_column(given, header)
    if column is None:
        listed = _columns_line(header, dialect)
        raise UsageError(
            f"{name}: {keyword(option)} {given!r}: {how_many(given, header)} of that name;"
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
    figures = {*dialect.columns_that(is_number, header), *dialect.columns_that(is_figure, header)}
    cells_known = bool(dialect.rows)
    if not cells_known:
        figures = {column for column in header if name_key(column) in NUMERIC_NAMES}
    texts = [column for column in header if column not in figures and not ID_NAME.search(column)]
    numbers = [column for column in header if column in figures and not ID_NAME.search(column)]
    if layout == SENTENCES:  # a pair's first one; else the longest ones are most likely sentences
        texts.sort(
            key=lambda column: (
                name_key(column) not in FIRST_SIDES,
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


def _guess_id(header: Sequence[str], text: str | None, name: str, dialect: Dialect) -> str | None:
    """Return the column named id, however it is spelt, unless it is the text."""
    if ID in header and text != ID:
        return ID
    ids = [column for column in header if name_key(column) == ID and column != text]
    if len(ids) > 1:
        listed = _columns_line(header, dialect)
        raise UsageError(f"{name}: several columns are named {ids[0]!r}; rename them; {listed}")
    if ids:
        return ids[0]
    return None


def _columns_line(header: Sequence[str], dialect: Dialect) -> str:
    """Return the columns of a file for a message.

    Those without names by number, with their first cells.
    """
    hint = ""
    if _may_have_title(header, dialect):
        hint = "; if their names stand in a later line, remove the lines above it"
    if not dialect.numbered:
        return f"columns: {', '.join(header)}{hint}"
    columns = []
    for number, cell in zip(header, dialect.rows[0], strict=False):
        columns.append(f"{number} ({cell:.20})")
    return f"it has no header; columns by number: {', '.join(columns)}{hint}"


def _may_have_title(header: Sequence[str], dialect: Dialect) -> bool:
    """Return whether the first line may be a title above the names of the columns.

    A title has no separator of cells, or leaves cells empty that a later row fills. Its first cell
    does not count: pandas leaves it empty.
    """
    if len(header) == 1:
        separators = set(DELIMITERS) - {","}
        cells = itertools.chain.from_iterable(dialect.rows)
        return any(not separators.isdisjoint(cell) for cell in cells)
    if dialect.numbered:
        has_name = [bool(cell.strip()) for cell in dialect.rows[0]]
    else:  # a column without a name is called by its number
        has_name = [name != str(number) for number, name in enumerate(header, 1)]
    if all(has_name[1:]):
        return False
    return not dialect.rows or any(all(map(str.strip, row)) for row in dialect.rows)
