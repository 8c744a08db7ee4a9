"""Tables of results, as the terminal shows them."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from promptcli.cli.visible import visible

_NUMBER = re.compile(r"[-+±]?\d[\d,]*(\.\d+)?[%*]?|<0\.001|-?")
#: The text of a score in a cell; an interval or a dash does not match.
_SCORE = re.compile(r"-?\d+(\.\d+)?")


@dataclass(frozen=True)
class Grid:
    """Rows under their heads, if there are any; columns of numbers are aligned on the right."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    #: row and column of the best scores, which papers print in bold; the terminal does not
    best: Collection[tuple[int, int]] = ()

    def numeric_columns(self) -> list[bool]:
        """Return of each column whether it is one of numbers."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.heads)
        return [any(cells) and all(map(_NUMBER.fullmatch, cells)) for cells in columns]

    def __rich__(self) -> Table:
        table = Table(box=None, pad_edge=False, show_header=bool(self.heads), padding=(0, 2, 0, 0))
        numeric = self.numeric_columns()
        for head, of_numbers in zip(self.heads or [""] * len(numeric), numeric, strict=True):
            table.add_column(
                Text(visible(head)),
                justify="right" if of_numbers else "left",
                overflow="fold",
                no_wrap=of_numbers,
            )
        for row in self.rows:
            if any(row):
                table.add_row(*(Text(visible(cell)) for cell in row))
        return table


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
        if len(scores) > 1:
            greatest = max(scores.values())
            best |= {(number, column) for number, score in scores.items() if score == greatest}
    return best
