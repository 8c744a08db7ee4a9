"""Figures over several runs of one row: mean, standard deviation, extremes. Arithmetic on plain data."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Figures = dict[str, dict[str, Any]]

#: Columns that show another column's extreme, not its mean.
EXTREMES: Mapping[str, Callable[[Sequence[float]], float]] = {"max": max, "min": min}


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
