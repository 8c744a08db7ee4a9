"""The rows of files as a search and an index take them: passages or lines of texts, rows of
tables.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from promptcli.data.bad_lines import REFUSED, BadRows
from promptcli.data.cells import Cells, cells_array, converted_cells
from promptcli.data.column_choice import ColumnChoice
from promptcli.data.file_arguments import extension_of, split_columns
from promptcli.data.input_files import open_file, open_text
from promptcli.data.layouts import CELLS, ID, TEXT
from promptcli.data.row_batches import Rows
from promptcli.data.rows import numbered_rows, recognise
from promptcli.data.vectors import escape_name
from promptcli.embedding.passages import WAYS, Passage, has_passages, passages_of
from promptcli.errors import NotFoundError, UsageError, one_line, unknown
from promptcli.index.found_files import FoundFiles
from promptcli.notes import note

if TYPE_CHECKING:
    from promptcli.encoder.sentence_encoder import Encoder


#: Our own columns; the front matter of a file does not change them.
_PLACE = frozenset((ID, TEXT, "file", "line", "end_line", "heading"))


@dataclass(frozen=True)
class FileRows:
    """The rows of a file that are not blank, and all its lines."""

    lines: Sequence[str]  #: of a text, or the texts of a table
    rows: Sequence[Passage]
    cells: Any = None  #: the other columns of each row, an Arrow array of maps, see ``cells_array``
    ids: Sequence[str] | None = None  #: of the rows of a table, if they were asked for
    doubts: Mapping[str, str] = field(default_factory=dict)  #: see ``ColumnForms``


class Reader:
    """Reads files in one way.

    ``opener`` returns the encoder, if passages are to fit its window; ``fields`` are the columns of
    tables; ``bad`` gets the rows that cannot be read.
    """

    def __init__(
        self,
        rows: str,
        opener: "Callable[[], Encoder]",
        fields: ColumnChoice,
        bad: BadRows = REFUSED,
    ) -> None:
        if rows not in WAYS:
            raise unknown("rows", rows, WAYS)
        self._rows = rows
        self._opener = opener
        self._fields = fields
        self._bad = bad
        self._kinds = set[str]()
        self.tables = 0  #: read so far

    @property
    def unit(self) -> str:
        """What the rows that were read are called."""
        if len(self._kinds) == 1:
            return next(iter(self._kinds))
        return "row"

    def read(self, file: str, found: FoundFiles | None) -> FileRows | None:
        """Return the rows of a file.

        With ``found``, a file that cannot be read is noted there and has None; else it is an error.
        """
        try:
            return self._read(file, in_folder=found is not None)
        except (UsageError, NotFoundError, OSError) as error:
            if found is None:
                raise
            if not isinstance(
                error, UsageError
            ):  # it was removed in the meantime, or may not be opened
                error = UsageError(f"{file}: {one_line(error, 100)}")
            found.unreadable[file] = error
            return None

    def _read(self, file: str, *, in_folder: bool) -> FileRows:
        """Return the rows of a file, of the form that it has for every command.

        In a folder, a text that looks like a table and cannot be read as one is read by its lines.
        """
        path, named = split_columns(file)
        fields = replace(self._fields, named=named) if named else self._fields
        guesses = list[str]()
        with recognise(path, fields, tell=guesses.append, bad=self._bad) as opened:
            is_unnamed = opened.is_told_by_head
            head = "" if opened.text is None else opened.text.head
            if in_folder and (is_unnamed or opened.is_text) and "\0" in head:
                raise UsageError(f"{file}: not text")  # whatever its single lines are
            if opened.text is not None and opened.is_text and not named:
                read = self._text(file, _without_ends(opened.text.lines))
            else:
                try:
                    with opened.rows() as rows:
                        read = self._table(numbered_rows(rows))
                except UsageError:
                    if not (in_folder and is_unnamed):
                        raise
                    read = None
        if read is None:
            with open_file(file) as stream:
                text = open_text(stream, file, extension_of(file)[1], note, self._bad)
                return self._text(file, _without_ends(text.lines))
        for guess in guesses:
            note(guess)
        return read

    def _table(self, source: Rows) -> FileRows:
        table = pa.Table.from_batches(source)
        self.tables += 1
        self._kinds.add("row")
        texts = table.column(TEXT).to_pylist()
        filled = [bool(text.strip()) for text in texts]
        rows = [_single(number, text) for number, text in enumerate(texts, 1) if text.strip()]
        table = table.filter(pa.array(filled, pa.bool_()))
        cells = None
        if CELLS in table.column_names:
            cells = converted_cells(table.column(CELLS).combine_chunks(), source.forms.decide())
        ids = None
        if self._fields.id is not None:
            ids = [str(name) for name in table.column(ID).to_pylist()]
        return FileRows(texts, rows, cells, ids, source.forms.doubts)

    def _text(self, file: str, lines: list[str]) -> FileRows:
        if not has_passages(lines, file, self._rows):
            self._kinds.add("line")
            rows = [_single(number, line) for number, line in enumerate(lines, 1) if line.strip()]
            cells_of = line_cells
        else:
            self._kinds.add("passage")
            rows = list(passages_of(lines, lines, file, self._opener()))
            cells_of = place_cells
        if not self._fields.cells:
            return FileRows(lines, rows)
        return FileRows(lines, rows, cells_array([cells_of(file, row) for row in rows]))


def _without_ends(lines: Iterable[str]) -> list[str]:
    return [line.rstrip("\r\n") for line in lines]


def _single(number: int, text: str) -> Passage:
    return Passage(number, number, "", text, text.strip())


def place_cells(file: str, passage: Passage) -> Cells:
    """Return the columns with the place of a passage."""
    cells = (*line_cells(file, passage), ("end_line", str(passage.end_line)))
    if passage.heading:
        cells = (*cells, ("heading", passage.heading))
    return (*cells, *((name, value) for name, value in passage.fields if name not in _PLACE))


def line_cells(file: str, passage: Passage) -> Cells:
    """Return the columns with the place of a line, or of a passage's first line."""
    return (("file", escape_name(file)), ("line", str(passage.line)))


def place_ids(
    file: str, passages: Sequence[Passage], counts: dict[str, int] | None = None
) -> list[str]:
    """Return the ids of passages, ``FILE:FIRST-LAST``.

    If several are on the same lines, the id of the second ends in #2.

    ``counts`` holds how often each id was given, for further passages of the same file.
    """
    names = list[str]()
    seen = {} if counts is None else counts
    for passage in passages:
        if passage.end_line == passage.line:
            last = ""
        else:
            last = f"-{passage.end_line}"
        name = f"{file}:{passage.line}{last}"
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names
