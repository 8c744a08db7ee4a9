"""A measured figure of a table, and figures over several runs of one row: mean, standard deviation, extremes."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptcli.reproducing.published import Value

Figures = dict[str, dict[str, Any]]

#: Columns that show another column's extreme, not its mean.
EXTREMES: Mapping[str, Callable[[Sequence[float]], float]] = {"max": max, "min": min}


@dataclass(frozen=True)
class Figure:
    """One measured figure."""

    value: Value  # in the unit of its column
    ci95: tuple[float, float] | None = None
    on: tuple[str, ...] = ()  # names of the data it was measured on

    def to_dict(self) -> dict[str, Any]:
        """Return the figure as JSON-ready values."""
        return {"value": self.value, "ci95": None if self.ci95 is None else list(self.ci95), "on": list(self.on)}


def rounded(value: float, ci95: tuple[float, float] | None, on: tuple[str, ...]) -> Figure:
    """Return a measured figure with the four decimals that results keep."""
    return Figure(round(value, 4), None if ci95 is None else (round(ci95[0], 4), round(ci95[1], 4)), on)


def over_runs(runs: Sequence[Figures]) -> Figures:
    """Return the figures of one row from those of its runs; a single run's are its own.

    Of several a figure is the mean, ``std`` the standard deviation (n - 1), and there is no interval over pairs.
    """
    if len(runs) == 1:
        return runs[0]
    found: Figures = {}
    for column in runs[0]:
        values = [run[column]["value"] for run in runs]
        mean, spread = statistics.fmean(values), statistics.stdev(values)
        common = {"ci95": None, "on": runs[0][column]["on"], "runs": len(runs)}
        found[column] = {"value": round(mean, 4), "std": round(spread, 4), **common}
        if column == "Avg":
            found |= {name: {"value": round(of(values), 4), **common} for name, of in EXTREMES.items()}
    return found
