"""Curves of trainings: the score on the development pairs and the loss, step by step, as a table
and as a picture.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcli.cli.grids import Grid
from promptcli.cli.pictures import COLOURS, MARKERS, drawing, figure_title
from promptcli.errors import UsageError
from promptcli.settings import typed_settings

#: Most curves of one picture, each with its own colour and mark.
_MOST = len(COLOURS)
_AXES = {"value": "Spearman x 100 on {}", "loss": "training loss"}


@dataclass(frozen=True)
class Point:
    """The mean over the seeds at a step, and their standard deviation (0 for one seed)."""

    step: int
    mean: float
    spread: float


@dataclass(frozen=True)
class Curve:
    """The development scores of runs that differ in their seed only."""

    name: str  #: their settings, in their typed form; empty if only the seed differs
    runs: list[list[dict[str, Any]]]  #: of each seed, its scores in order

    def points(self, figure: str) -> list[Point]:
        """Return the points of ``value`` or ``loss``, by step."""
        by_step: dict[int, list[float]] = {}
        for scores in self.runs:
            for score in scores:
                if score[figure] is not None:
                    by_step.setdefault(score["step"], []).append(score[figure])
        points = []
        for step, values in sorted(by_step.items()):
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            points.append(Point(step, statistics.fmean(values), spread))
        return points


def curves_of(records: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Return the curves of runs, each with its ``changes`` of the settings and its ``curve``."""
    runs_of: dict[str, list[list[dict[str, Any]]]] = {}
    for record in records:
        changes = dict(record["changes"])
        changes.pop("seed", None)
        name = ", ".join(typed_settings(changes))
        runs_of.setdefault(name, []).append(record["curve"])
    return [Curve(name, runs) for name, runs in runs_of.items()]


def curve_records(facts: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return the runs of a trained model, from the facts of its training in its record."""
    if not facts.get("curve"):
        raise UsageError(
            f"model {name!r} was not trained here, so it has no curve; `promptcli train` makes one"
        )
    runs: list[Mapping[str, Any]] = facts.get("runs") or [{"changes": {}, "curve": facts["curve"]}]
    return runs


def curve_grid(curves: Sequence[Curve], task: str) -> Grid:
    """Lay out the scores by step: of one run with its loss and speed, of several their mean."""
    if len(curves) == 1 and len(curves[0].runs) == 1:
        return _grid_of_run(curves[0].runs[0], task)
    cells_of_step: dict[int, list[str]] = {}
    for number, curve in enumerate(curves):
        for point in curve.points("value"):
            cells = cells_of_step.setdefault(point.step, ["-"] * len(curves))
            cells[number] = _mean(point, len(curve.runs))
    rows = [(str(step), *cells) for step, cells in sorted(cells_of_step.items())]
    heads = [curve.name or task for curve in curves]
    return Grid(("step", *heads), rows)


def _grid_of_run(scores: Sequence[Mapping[str, Any]], task: str) -> Grid:
    rows = []
    for score in scores:
        loss = _number(score["loss"], ".4f")
        best = "*" if score["best"] else ""
        rate = _number(score["rate"], ".0f")
        rows.append((str(score["step"]), loss, f"{score['value']:.2f}", best, rate))
    return Grid(("step", "loss", task, "best", "examples/s"), rows)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _mean(point: Point, seeds: int) -> str:
    if seeds == 1:
        return f"{point.mean:.2f}"
    return f"{point.mean:.2f} ±{point.spread:.2f}"


def draw_curves(path: Path, curves: Sequence[Curve], title: str, task: str) -> None:
    """Draw score and loss by step; of several seeds the mean, and one standard deviation as a band.

    If there are many curves, those with the best scores are drawn.
    """
    shown = sorted(curves, key=_best, reverse=True)[:_MOST]
    with drawing(path, 9.0, 4.0 + 0.16 * len(shown)) as figure:
        panels = figure.subplots(1, len(_AXES), sharex=True)
        for panel, (of_figure, axis) in zip(panels, _AXES.items(), strict=True):
            for number, curve in enumerate(shown):
                _draw_curve(panel, curve, of_figure, COLOURS[number], MARKERS[number])
            panel.set(xlabel="step", ylabel=axis.format(task))
            panel.xaxis.get_major_locator().set_params(integer=True)
            panel.grid(alpha=0.3)
            panel.spines[["top", "right"]].set_visible(False)
        lines = [title]
        if len(shown) < len(curves):
            lines.append(f"The best {len(shown)} of {len(curves)} settings.")
        seeds = max(len(curve.runs) for curve in shown)
        if seeds > 1:
            lines.append(f"Mean of {seeds} seeds; band: one standard deviation.")
        figure_title(figure, *lines)
        if len(shown) > 1:
            handles, labels = panels[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", fontsize="small")


def _best(curve: Curve) -> float:
    return max(point.mean for point in curve.points("value"))


def _draw_curve(panel: Any, curve: Curve, figure: str, colour: str, mark: str) -> None:
    points = curve.points(figure)
    steps = [point.step for point in points]
    means = [point.mean for point in points]
    panel.plot(steps, means, color=colour, marker=mark, markersize=4, label=curve.name)
    if len(curve.runs) > 1:
        low = [point.mean - point.spread for point in points]
        high = [point.mean + point.spread for point in points]
        panel.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
