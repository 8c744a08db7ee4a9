"""How the rows of a file are written: a dialect, with the first rows of a table."""

import re
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from promptcli.retrieval.reading.column_forms import finite_number
from promptcli.retrieval.reading.layouts import name_key


@dataclass(frozen=True)
class Dialect:
    """How the rows of a file are written."""

    format: str  #: a row of ``input_formats.INPUT_FORMATS``
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
        return bool(self.rows) and not names.isdisjoint(map(name_key, self.rows[0]))

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
        return bool(cells) and all(map(is_number, cells))


def is_number(cell: str) -> bool:
    """Return whether a cell is a finite number."""
    return finite_number(cell) is not None


_FIGURE = re.compile(r"[\s.,:/%+-]*\d[\d\s.,:/%+TZ-]*")


def is_figure(cell: str) -> bool:
    """Return whether a cell is a number, a date or a time, as no name of a column is."""
    return _FIGURE.fullmatch(cell) is not None


def is_sentence(cell: str) -> bool:
    """Return whether a cell has several words."""
    return " " in cell.strip() and not is_figure(cell)


DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
QUOTED = re.compile(r'"(?:[^"]|"")*"')


def is_doubled(cell: str) -> bool:
    """Return whether a cell is in double quotes with doubled ones inside, as no sentence is."""
    return '""' in cell[1:-1] and QUOTED.fullmatch(cell) is not None
