"""Tables that fit a terminal without breaking a word or a number."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from promptcli.cli.visible import visible

#: A cell of a column of numbers, which is aligned on the right.
_NUMBER = re.compile(r"[-+±]?\d[\d,]*(\.\d+)?[%*]?|<0\.001|-?")
_GAP = 2
#: Columns of sentences are folded to no less than this, if the terminal has it.
_SENTENCE = 24


@dataclass(frozen=True)
class _Column:
    head: str
    cells: list[str]

    @property
    def is_numeric(self) -> bool:
        """Whether all cells are numbers or empty."""
        return all(map(_NUMBER.fullmatch, self.cells)) and any(self.cells)

    @property
    def most(self) -> int:
        """The width in which nothing is folded."""
        return max(cell_len(line) for line in self._text().split("\n"))

    @property
    def least(self) -> int:
        """The smallest width: no word is broken, and a sentence keeps a few words in a line."""
        longest = max(map(cell_len, self._text().split()), default=0)
        return max(longest, min(self.most, _SENTENCE))

    def _text(self) -> str:
        return "\n".join([self.head, *self.cells])


@dataclass(frozen=True)
class Grid:
    """Rows under their heads, if there are any; columns of numbers are aligned on the right.

    Columns for which the terminal has no room follow below, next to the first column again. A
    column without a head belongs to the one before it.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    #: row and column of the best scores, which papers print in bold; the terminal does not
    best: Collection[tuple[int, int]] = ()

    @classmethod
    def with_best(
        cls,
        heads: Sequence[str],
        rows: Sequence[Sequence[str]],
        columns: Iterable[int],
        among: Iterable[int],
    ) -> "Grid":
        """Return a grid that marks the best scores of some columns among some rows."""
        return cls(heads, rows, best_cells(rows, columns, among))

    def numeric_columns(self) -> list[bool]:
        """Return of each column whether it is one of numbers."""
        return [column.is_numeric for column in self._columns()]

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yield the blocks of columns, one below the other."""
        for number, block in enumerate(_blocks(self._columns(), options.max_width)):
            if number:
                yield Text("")
            yield _table(block, options.max_width, headed=bool(self.heads))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return that any width will do."""
        return Measurement(1, options.max_width)

    def _columns(self) -> list[_Column]:
        heads = list(map(visible, self.heads))
        if not self.rows:
            return [_Column(head, []) for head in heads]
        heads = heads or [""] * len(self.rows[0])
        cells = zip(*self.rows, strict=True)
        return [
            _Column(head, list(map(visible, column)))
            for head, column in zip(heads, cells, strict=True)
        ]


#: The text of a score in a cell; an interval or a dash does not match.
_SCORE = re.compile(r"-?\d+(\.\d+)?")


def best_cells(
    rows: Sequence[Sequence[str]], columns: Iterable[int], among: Iterable[int]
) -> set[tuple[int, int]]:
    """Return the greatest scores of each column among some rows; of a single score none.

    Scores that are equal as printed are all the best.
    """
    best: set[tuple[int, int]] = set()
    compared = list(among)
    for column in columns:
        scores = {}
        for number in compared:
            if _SCORE.fullmatch(rows[number][column]):
                scores[number] = float(rows[number][column])
        if len(scores) < 2:
            continue
        greatest = max(scores.values())
        best |= {(number, column) for number, score in scores.items() if score == greatest}
    return best


def _blocks(columns: Sequence[_Column], width: int) -> list[list[_Column]]:
    """Divide columns into blocks of that width; each begins with the first column."""
    if not columns:
        return []
    first, *others = columns
    headed = any(column.head for column in columns)
    groups: list[list[_Column]] = []
    for column in others:
        if headed and groups and not column.head:
            groups[-1].append(column)  # it belongs to the one before it
        else:
            groups.append([column])
    blocks: list[list[_Column]] = []
    block = [first]
    for group in groups:
        if len(block) > 1 and _least_width([*block, *group]) > width:
            blocks.append(block)
            block = [first]
        block += group
    blocks.append(block)
    return blocks


def _least_width(columns: Sequence[_Column]) -> int:
    return sum(column.least for column in columns) + _GAP * (len(columns) - 1)


def _table(columns: Sequence[_Column], width: int, *, headed: bool) -> Table:
    grid = Table(box=None, pad_edge=False, show_header=headed, padding=(0, _GAP, 0, 0))
    for column, room in zip(columns, _widths(columns, width), strict=True):
        grid.add_column(
            Text(column.head),
            justify="right" if column.is_numeric else "left",
            overflow="fold",
            width=room,
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        if any(row):
            grid.add_row(*map(Text, row))
    return grid


def _widths(columns: Sequence[_Column], width: int) -> list[int]:
    """Return the widths of columns; too wide ones are folded, the widest first, to their least."""
    widths = [column.most for column in columns]
    room = width - _GAP * (len(columns) - 1)
    while sum(widths) > room:
        foldable = [
            number for number, column in enumerate(columns) if widths[number] > column.least
        ]
        if not foldable:  # a word is longer than the terminal is wide
            widest = max(range(len(widths)), key=widths.__getitem__)
            excess = sum(widths) - room
            widths[widest] = max(1, widths[widest] - excess)
            break
        widest = max(foldable, key=widths.__getitem__)
        widths[widest] -= 1
    return widths
