"""What a training command shows: bars and scores while it goes on, tables and pictures at its end, its dry run."""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from promptcli.cli.console import note, progress, result, result_json, result_table
from promptcli.cli.pictures.plots import BLUE, RED, drawing

if TYPE_CHECKING:
    from promptcli.training.checkpoint import DevScore
    from promptcli.training.run import TrainingRun
    from promptcli.training.train_method import TrainingReport
    from promptcli.training.training_loop import TrainingCallbacks
    from promptcli.training.trials import Trial, TrialResult


#: Words that a note names of those left out.
_NAMED = 8


class TrialProgress(contextlib.AbstractContextManager["TrialProgress"]):
    """Shows the runs of one command, one after the other: a bar each, a line for each development score."""

    def __init__(self, *, assumed: str | None) -> None:
        """Make it; ``assumed`` is the backbone, where the data were not named."""
        self._assumed = assumed
        self._begun = False
        self._bar = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def begin(self, run: "TrainingRun", trials: "Sequence[Trial]", number: int) -> "TrainingCallbacks":
        """Begin a run's bar; return what listens to the run."""
        from promptcli.training.epochs import steps_of
        from promptcli.training.training_loop import TrainingCallbacks

        self._bar.close()
        settings, trial = run.settings, trials[number - 1]
        if not self._begun:
            self._say(run)
        self._begun = True
        steps, on = steps_of(settings, run.examples.sizes), run.development.label
        advance = self._bar.enter_context(progress(f"train {run.method.name}", steps))
        if len(trials) > 1:
            about = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in trial.changes.items())
            note(f"run {number} of {len(trials)}: {about}{', ' if about else ''}seed {trial.seed}")
        done, best = 0, float("-inf")

        def step(taken: int, loss: float) -> None:
            nonlocal done
            advance(taken - done)
            done = taken
            advance.describe(f"loss {loss:.4f}  best {best:.2f}")

        def dev_score(score: "DevScore") -> None:
            nonlocal best
            best = max(best, score.value)
            parts = [f"step {score.step}/{steps}", "" if score.loss is None else f"loss {score.loss:.4f}"]
            rate = "" if score.rate is None else f"{score.rate:.0f} examples/s"
            parts += [f"{on} {score.value:.2f}{' *' if score.best else ''}", rate]
            note("  ".join(part for part in parts if part))
            if score.noise and score.step:
                note(
                    f"the development score is noise: the run has diverged; try a --learning-rate below"
                    f" {settings.learning_rate:g}"
                )

        return TrainingCallbacks(step, dev_score, note)

    def _say(self, run: "TrainingRun") -> None:
        """Say what was assumed and what was found in the data."""
        examples, source = run.examples, run.source
        if self._assumed is not None:
            note(
                f"assumed: {self._assumed}, {len(examples):,} demo sentences, chosen by {run.development.label}; the"
                " papers' setting: --paper"
            )
        for count, what in (
            (examples.blank, "rows with a blank sentence left out"),
            (examples.unlabelled, "rows without a label left out"),
            (examples.columns[2].count("") if len(examples.columns) > 2 else 0, "pairs without a hard negative"),
            (examples.repeated, "rows repeat one before them; they stay"),
        ):
            if count:
                note(f"{source}: {count:,} {what}")
        if len(examples.sizes) > 1:
            from promptcli.training.epochs import source_shares

            shares = source_shares(examples.sizes, run.settings.data_temperature)
            mix = ", ".join(f"{share:,} of {size:,}" for share, size in zip(shares, examples.sizes, strict=True))
            note(f"{source}: rows an epoch: {mix}")
        if words := examples.untokenised:
            named = ", ".join(words[:_NAMED]) + (", ..." if len(words) > _NAMED else "")
            note(f"{source}: {len(words):,} words that are no single token left out: {named}")


def print_settings(shown: dict[str, Any], *, as_json: bool) -> None:
    """Print what a run would do."""
    if as_json:
        result_json(shown)
        return
    for key, value in shown.items():
        if key not in ("recipe", "template"):  # views show them
            result(f"{key.replace('_', '-')} = {' | '.join(value) if isinstance(value, list) else value}")


def print_results(report: "TrainingReport", name: str, *, as_json: bool) -> None:
    """Print the figures of all runs: one run's before and after, several runs' mean and spread."""
    from promptcli.training.trials import summarise

    rows, best = report.results, report.best
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
                    *(f"{value:.2f}" for value in (summary.mean, summary.std, summary.least, summary.largest)),
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
