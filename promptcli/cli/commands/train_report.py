"""What a training command shows: tables and pictures at its end, its dry run."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.cli.console import note, result, result_json, result_table
from promptcli.cli.pictures.plots import BLUE, RED, drawing

if TYPE_CHECKING:
    from promptcli.api.training import Trained


def print_settings(shown: dict[str, object], *, as_json: bool) -> None:
    """Print what a run would do."""
    if as_json:
        result_json(shown)
        return
    for key, value in shown.items():
        if key not in ("recipe", "template"):  # views show them
            result(f"{key.replace('_', '-')} = {' | '.join(value) if isinstance(value, list) else value}")


def print_results(trained: "Trained", name: str, *, as_json: bool) -> None:
    """Print the figures of all runs: one run's before and after, several runs' mean and spread."""
    rows, best, summaries = trained.runs, trained.best, trained.summary
    if as_json:
        scores = [
            {"task": task, "untrained": round(before, 2), "trained": round(best.values[task], 2)}
            for task, before in best.untrained.items()
        ]
        document: dict[str, Any] = {
            "model": name,
            "steps": best.steps,
            "best_step": best.best_step,
            "seconds": best.seconds,
            "better": best.better,
            "scores": scores,
        }
        if best.nearest_words:
            document["nearest_words"] = [dataclasses.asdict(word) for word in best.nearest_words]
        if len(rows) > 1:
            document["runs"] = [dataclasses.asdict(row) for row in rows]
            document["summary"] = [dataclasses.asdict(summary) for summary in summaries]
        result_json(document)
    elif len(rows) == 1:
        result_table(
            ("task", "untrained", "trained"),
            [(task, f"{before:.2f}", f"{best.values[task]:.2f}") for task, before in best.untrained.items()],
        )
    else:
        settings = [name.replace("_", "-") for name in rows[0].changes]
        result_table(
            (*settings, "task", "untrained", "mean", "std", "min", "max", "seeds"),
            [
                (
                    *(f"{value}" for value in summary.changes.values()),
                    summary.task,
                    f"{best.untrained[summary.task]:.2f}",
                    *(f"{value:.2f}" for value in (summary.mean, summary.std, summary.min, summary.max)),
                    str(summary.seeds),
                )
                for summary in summaries
            ],
        )
    if best.nearest_words and not as_json:
        result("")
        result_table(
            ("word", "nearest to its vector"), [(one.word, " ".join(one.nearest)) for one in best.nearest_words]
        )
    worse = sum(not row.better for row in rows)
    if worse:
        which = "training" if len(rows) == 1 else f"{worse} of {len(rows)} runs"
        note(
            f"{which} made it no better than the untrained encoder on the development pairs; the best numbers seen are"
            " kept, the start among them: try another --learning-rate or more --epochs"
        )
    note(f"saved as model {name!r}; use it: promptcli embed FILE -m {name}")


def draw(path: Path, trained: "Trained", title: str) -> None:
    """Draw one run's loss and development score by step, or of a sweep the score by the first swept setting."""
    on = next(iter(trained.scores))
    with drawing(path, 8, 4.5, dpi=120) as figure:
        axes = figure.subplots()
        axes.set_title(title)
        if trained.runs[0].changes:
            _draw_sweep(axes, trained, on)
        else:
            _draw_curve(axes, trained, on)


def _draw_curve(axes: Any, trained: "Trained", on: str) -> None:
    curve = trained.curve
    axes.plot([score.step for score in curve], [score.value for score in curve], "o-", color=BLUE, label=on)
    best = [score for score in curve if score.best][-1]
    axes.plot(best.step, best.value, "*", color=BLUE, markersize=14, label="kept")
    axes.set(xlabel="step", ylabel=f"Spearman x 100, {on}")
    losses = [score for score in curve if score.loss is not None]
    other = axes.twinx()
    other.plot([score.step for score in losses], [score.loss for score in losses], "--", color=RED, label="loss")
    other.set_ylabel("loss")
    handles = [line for axis in (axes, other) for line in axis.get_lines()]
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def _draw_sweep(axes: Any, trained: "Trained", on: str) -> None:
    name, *others = trained.runs[0].changes
    lines: dict[str, list[tuple[str, float, float]]] = {}
    for summary in (summary for summary in trained.summary if summary.task == on):
        rest = ", ".join(f"{other.replace('_', '-')} {summary.changes[other]}" for other in others)
        lines.setdefault(rest, []).append((str(summary.changes[name]), summary.mean, summary.std))
    markers = "osD^vPX*"
    for number, (label, points) in enumerate(lines.items()):
        at, means, spreads = zip(*points, strict=True)
        axes.errorbar(at, means, spreads, marker=markers[number % len(markers)], capsize=3, label=label or None)
    axes.axhline(trained.runs[0].untrained[on], color="0.5", linestyle=":", label="untrained")
    axes.set(xlabel=name.replace("_", " "), ylabel=f"Spearman x 100, {on}")
    axes.legend()
