"""Which columns of a table are read: those that the user names, else those with usual names."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from promptcli.data.layouts import (
    ID,
    NONE,
    SENTENCES,
    TEXT,
    ColumnNames,
    columns_of_layout,
    find_any,
    find_column,
    layout_of_width,
    name_key,
)
from promptcli.errors import UsageError, did_you_mean

#: The columns of a document of BEIR, whose title and text are read as one.
_BEIR = {"_id", "title", "text"}


@dataclass(frozen=True)
class ColumnChoice:
    """The columns to read: those of the first layout that a file has.

    ``text`` and ``id`` name the file's columns of the sentence and its id if the user has chosen
    them, ``named`` those of the layout with as many columns, in its order; all by name, or by
    number from 1. Several named columns of a sentence, ``first,second``, are joined by a space.
    ``remedy`` tells how a user names columns: by the option of the text's column if it is None; by
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

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that the user names."""
        return tuple(name for name in (self.text, self.id, *self.named) if name)

    def choose(self, header: Sequence[str], name: str, *, only: bool = True) -> ColumnNames:
        """Return the columns to read of the file ``name``, by their roles.

        Args:
            header: The columns of the file.
            name: For messages.
            only: Whether a single column, whatever its name, is that of the sentence.
        """
        if self.named:
            layout = layout_of_width(self.layouts, len(self.named))
            if layout:
                places = [self._place(given, header, name) for given in self.named]
                return dict(zip(layout, places, strict=True))
        else:
            found = (columns_of_layout(layout, header) for layout in self.layouts)
            columns = next(filter(None, found), None)
            if columns:
                return columns
        if SENTENCES not in self.layouts:
            wanted = " or ".join(", ".join(layout) for layout in self.layouts)
            raise self._unnamed_error(f"no columns {wanted}", header, name)
        return self._sentence_columns(header, name, only=only)

    def _sentence_columns(self, header: Sequence[str], name: str, *, only: bool) -> ColumnNames:
        text = self.text or ",".join(self.named) or self._before(self.text_before, header)
        identifier = self.id or self._before(self.id_before, header)
        columns: ColumnNames = {}
        if identifier and identifier != NONE:
            columns[ID] = self._place(identifier, header, name, "id_field" if self.id else "")
        elif not identifier:
            ids = [column for column in header if name_key(column) == ID and column != text]
            if len(ids) > 1:
                raise UsageError(f"{name}: several columns are named {ids[0]!r}; rename them")
            columns.update({ID: ids[0]} if ids else {})
        if text:
            option = "text_field" if self.text else ""
            parts = [text] if find_column(text, header) else text.split(",")
            places = (self._place(part.strip(), header, name, option) for part in parts)
            return {TEXT: ",".join(places), **columns}
        usual = find_any(TEXT, header)
        if _BEIR <= set(header):
            usual = "title,text"
        others = [column for column in header if column != columns.get(ID)]
        if usual is None and len(others) == 1 and (only or ID in columns):
            usual = others[0]
        if usual is None:
            raise self._unnamed_error("no column 'text' or 'sentence'", header, name)
        return {TEXT: usual, **columns}

    def _before(self, column: str | None, header: Sequence[str]) -> str | None:
        """Return a column of an index so far, if this file has it."""
        if column is None or column == NONE or find_column(column, header):
            return column
        return column if all(find_column(part, header) for part in column.split(",")) else None

    def _place(self, given: str, header: Sequence[str], name: str, option: str = "") -> str:
        """Return the column that the user has named; refuse one that is missing."""
        column = find_column(given.rpartition("[].")[2], header)
        if column is None:
            raise UsageError(
                f"{name}: no column {given!r}; columns: {', '.join(header)}"
                f"{did_you_mean(given, header)}",
                parameter=option,
            )
        return column

    def _unnamed_error(self, problem: str, header: Sequence[str], name: str) -> UsageError:
        """Return the error for columns that the user has to name."""
        hint = "choose one" if self.remedy is None else self.remedy
        if not hint:
            widths = sorted({len(layout or (TEXT,)) for layout in self.layouts})
            named = (f'"{name}:{",".join(header[:width])}"' for width in widths)
            hint = f"name the columns, e.g. {' or '.join(named)}"
        return UsageError(
            f"{name}: {problem}; {hint}; columns: {', '.join(header)}",
            parameter="text_field" if self.remedy is None else "",
        )

    def without_sheet(self) -> tuple[str, "ColumnChoice"]:
        """Return the sheet before the first column that the user names, ``SHEET:COLUMN``, or "",
        and the choice without it.
        """
        first = self.named[0] if self.named else self.text or ""
        sheet, colon, column = first.rpartition(":")
        if not colon:
            return "", self
        if self.named:
            return sheet, replace(self, named=tuple(filter(None, (column, *self.named[1:]))))
        return sheet, replace(self, text=column or None)
