"""Measured figures as plain, JSON-ready data: one figure, and the mean over several runs of a row."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from promptcli.reproducing.published import Value

#: Column -> its figure.
Figures = dict[str, dict[str, Any]]

#: Columns that show another column's extreme, not its mean.
EXTREMES: Mapping[str, Callable[[Sequence[float]], float]] = {"max": max, "min": min}


def figure(value: Value, ci95: tuple[float, float] | None = None, on: Sequence[str] = ()) -> dict[str, Any]:
    """Return a figure as it is kept.

    Args:
        value: In the unit of its column.
        ci95: 95% interval, where there is one.
        on: Names of the data it was measured on.
    """
    return {"value": value, "ci95": None if ci95 is None else list(ci95), "on": list(on)}


def rounded(value: float, ci95: tuple[float, float] | None = None, on: Sequence[str] = ()) -> dict[str, Any]:
    """Return ``figure`` with the four decimals that results keep."""
    return figure(round(value, 4), None if ci95 is None else (round(ci95[0], 4), round(ci95[1], 4)), on)


def over_runs(runs: Sequence[Figures]) -> Figures:
    """Return the figures of one row from those of its runs; a single run's are its own.

    Of several a figure is the mean, ``std`` the standard deviation (n - 1), and there is no interval over pairs.
    """
    if len(runs) == 1:
        return runs[0]
    found: Figures = {}
    for column in runs[0]:
        values = [run[column]["value"] for run in runs]
        common = {"ci95": None, "on": runs[0][column]["on"], "runs": len(runs)}
        mean, std = round(statistics.fmean(values), 4), round(statistics.stdev(values), 4)
        found[column] = {"value": mean, "std": std, **common}
        if column == "Avg":
            found |= {name: {"value": round(of(values), 4), **common} for name, of in EXTREMES.items()}
    return found
