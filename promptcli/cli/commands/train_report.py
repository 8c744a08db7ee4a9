"""What a training command prints and draws at its end, and its dry run. Part of the entrance."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.cli.console import note, result, result_json, result_table
from promptcli.cli.pictures.plots import BLUE, RED, drawing
from promptcli.training.methods.method import OWN

if TYPE_CHECKING:
    from promptcli.training.methods.method import Method, TrainingSettings
    from promptcli.training.trials import TrialResult


def print_settings(
    method: "Method", settings: "TrainingSettings", backbone: str, family: str, data: str, on: str, *, as_json: bool
) -> None:
    """Print what a run would do."""
    variant = method.variant(family)
    values = dataclasses.asdict(settings)
    shown = {
        "method": method.name,
        "source": method.source,
        "backbone": backbone,
        "data": data,
        "chosen_by": on,
        "views": list(variant.prompts(settings)),
        "pooling": method.pooling,
        "learns": [*method.learns, "head"],
        "head": f"{variant.head}, {'kept' if method.keeps_head else 'while training only'}",
        "recipe": method.recipe(backbone, family, settings).to_dict(),
        **{name: value for name, value in values.items() if name not in OWN or name in method.reads},
    }
    if as_json:
        result_json(shown)
        return
    for key, value in shown.items():
        if key not in ("recipe", "template"):  # views show them
            result(f"{key.replace('_', '-')} = {' | '.join(value) if isinstance(value, list) else value}")


def print_rows(rows: "Sequence[TrialResult]", name: str, *, as_json: bool, quiet: bool) -> None:
    """Print the figures of all runs: one run's before and after, several runs' mean and spread."""
    from promptcli.training.trials import summarise

    best = max(rows, key=lambda row: row.chosen_by)
    summaries = summarise(rows)
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
            document["nearest_words"] = best.nearest_words
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
                    *(f"{value:.2f}" for value in (summary.mean, summary.std, summary.least, summary.largest)),
                    str(summary.seeds),
                )
                for summary in summaries
            ],
        )
    if best.nearest_words and not as_json:
        result("")
        result_table(
            ("word", "nearest to its vector"), [(row["word"], " ".join(row["nearest"])) for row in best.nearest_words]
        )
    worse = sum(not row.better for row in rows)
    if worse:
        which = "training" if len(rows) == 1 else f"{worse} of {len(rows)} runs"
        note(
            f"{which} made it no better than the untrained encoder on the development pairs; the best numbers seen are"
            " kept, the start among them: try another --learning-rate or more --epochs",
            quiet=quiet,
        )
    note(f"saved as model {name!r}; use it: promptcli embed FILE -m {name}", quiet=quiet)


def draw(path: Path, rows: "Sequence[TrialResult]", curve: Sequence[dict[str, Any]], title: str, on: str) -> None:
    """Draw one run's loss and development score by step, or of a sweep the score by the first swept setting."""
    with drawing(path, 8, 4.5, dpi=120) as figure:
        axes = figure.subplots()
        axes.set_title(title)
        if rows[0].changes:
            _draw_sweep(axes, rows, on)
        else:
            _draw_curve(axes, curve, on)


def _draw_curve(axes: Any, curve: Sequence[dict[str, Any]], on: str) -> None:
    axes.plot([look["step"] for look in curve], [look["value"] for look in curve], "o-", color=BLUE, label=on)
    best = [look for look in curve if look["best"]][-1]
    axes.plot(best["step"], best["value"], "*", color=BLUE, markersize=14, label="kept")
    axes.set(xlabel="step", ylabel=f"Spearman x 100, {on}")
    losses = [look for look in curve if look["loss"] is not None]
    other = axes.twinx()
    other.plot([look["step"] for look in losses], [look["loss"] for look in losses], "--", color=RED, label="loss")
    other.set_ylabel("loss")
    handles = [line for axis in (axes, other) for line in axis.get_lines()]
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def _draw_sweep(axes: Any, rows: "Sequence[TrialResult]", on: str) -> None:
    from promptcli.training.trials import summarise

    name, *others = rows[0].changes
    lines: dict[str, list[tuple[str, float, float]]] = {}
    for summary in (summary for summary in summarise(rows) if summary.task == on):
        rest = ", ".join(f"{other.replace('_', '-')} {summary.changes[other]}" for other in others)
        lines.setdefault(rest, []).append((str(summary.changes[name]), summary.mean, summary.std))
    markers = "osD^vPX*"
    for number, (label, points) in enumerate(lines.items()):
        at, means, spreads = zip(*points, strict=True)
        axes.errorbar(at, means, spreads, marker=markers[number % len(markers)], capsize=3, label=label or None)
    axes.axhline(rows[0].untrained[on], color="0.5", linestyle=":", label="untrained")
    axes.set(xlabel=name.replace("_", " "), ylabel=f"Spearman x 100, {on}")
    axes.legend()
