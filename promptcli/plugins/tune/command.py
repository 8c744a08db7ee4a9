"""``promptcli tune``: trains with several settings or seeds, and prints a table of all runs."""

import contextlib
import statistics
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from promptcli.cli.commands.train import (
    Resume,
    TrainingOptions,
    last_line,
    library_arguments,
)
from promptcli.cli.console import note, print_json, print_table
from promptcli.cli.options import (
    Force,
    Json,
    field_of,
    parse_pairs,
    spell_name,
    takes_options,
)
from promptcli.errors import UsageError
from promptcli.plugins.tune.tuning import tune
from promptcli.settings import spell_settings, spell_value
from promptcli.training.methods import setting_types

if TYPE_CHECKING:
    from promptcli.plugins.tune.runs import Tuned


@takes_options("options", TrainingOptions, first=True)
def tune_command(
    options: TrainingOptions,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SETTING=V,V",
            help="Try each value, e.g. `--sweep batch-size=64,128`. Repeatable: every combination"
            " is run. With --trials also a range, e.g. `--sweep temperature=0.01..0.2`.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, max=1000, help="Run N seeds, 0, 1, ..., and print their mean and spread."
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="Draw N combinations of the swept settings by a tree-structured Parzen estimator,"
            " instead of all; a run below the median ends early.",
        ),
    ] = None,
    keep_runs: Annotated[
        bool,
        typer.Option(
            "--keep-runs",
            help="Keep every run as a separate model, NAME.run-N, not only the best run.",
        ),
    ] = False,
    resume: Resume = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Train with several settings or seeds; the best on the development pairs becomes the model."""
    arguments = library_arguments(options.typed(), resume=resume)
    with contextlib.redirect_stdout(sys.stderr):  # trackers print
        tuned = tune(
            **arguments,
            sweep=_parse_sweep(sweep or ()),
            seeds=seeds,
            trials=trials,
            keep_runs=keep_runs,
            resume=resume,
            force=force,
        )
    if json:
        print_json(_document(tuned))
    elif tuned.drawn:
        _print_trials(tuned)
    else:
        _print_spread(tuned)
    best = tuned.best
    changes = ", ".join(spell_settings(tuned.trials[tuned.chosen].changes))
    note(
        f"{best.facts['chosen_by']} chose {changes}; all runs: promptcli models show"
        f" {best.entry.name} --json"
    )
    note(last_line(best))


def _parse_sweep(pairs: Sequence[str]) -> dict[str, Any]:
    """Return the values of each setting in ``--sweep SETTING=V,V``; a range stays a text."""
    types = setting_types()
    ranges = dict[str, str]()
    values = dict[str, list[Any]]()
    for pair in pairs:
        setting, _, text = pair.partition("=")
        field = field_of(pair)
        kind = types.get(field)
        if field in ("seed", "template"):
            raise UsageError(f"{setting} is not swept; give --seeds, or a run for each template")
        if ".." in text and {int, float}.intersection(get_args(kind) or (kind,)):
            ranges[field] = text
        else:
            for value in text.split(","):
                parsed = parse_pairs(types, [f"{setting}={value}"], "--sweep")
                values.setdefault(field, []).append(parsed[field])
    for field in ranges.keys() & values.keys():
        raise UsageError(
            f"{spell_name(field)} is given as a range and as values; give only one of the two"
        )
    return ranges | values


def _document(tuned: "Tuned") -> dict[str, Any]:
    chosen = tuned.trials[tuned.chosen].changes
    document = {"model": tuned.best.entry.name, **tuned.best.to_dict(), "chosen": chosen}
    if tuned.drawn:
        document["trials"] = [trial.row() for trial in tuned.trials]
    else:
        document["runs"] = [{**trial.record, "changes": trial.changes} for trial in tuned.trials]
        document["summary"] = summary(tuned)
    return document


def _print_trials(tuned: "Tuned") -> None:
    """Print the settings of each trial, its score, its last step and its state."""
    rows = []
    for number, trial in enumerate(tuned.trials):
        cells = [str(number + 1), *map(spell_value, trial.changes.values())]
        cells.append("-" if trial.value is None else f"{trial.value:.2f}")
        cells.append("*" if number == tuned.chosen else "")
        cells.append(str(trial.curve[-1]["step"]) if trial.curve else "-")
        rows.append([*cells, trial.state])
    settings = map(spell_name, tuned.trials[0].changes)
    headers = ("trial", *settings, tuned.best.facts["chosen_by"], "best", "steps", "state")
    print_table(headers, rows)


def summary(tuned: "Tuned") -> list[dict[str, Any]]:
    """Return the mean, the standard deviation (n - 1), the minimum and the maximum over the seeds
    of each combination, by task.
    """
    by_row: dict[str, tuple[dict[str, Any], str, list[float]]] = {}
    for trial in tuned.trials:
        changes = {field: value for field, value in trial.changes.items() if field != "seed"}
        for score in trial.record.get("scores", ()):
            row = by_row.setdefault(repr((changes, score["task"])), (changes, score["task"], []))
            row[2].append(score["trained"])
    return [
        {
            "changes": changes,
            "task": task,
            "seeds": len(values),
            "mean": statistics.fmean(values),
            "std": statistics.stdev(values) if len(values) > 1 else None,
            "min": min(values),
            "max": max(values),
        }
        for changes, task, values in by_row.values()
    ]


def _print_spread(tuned: "Tuned") -> None:
    figures = ("mean", "std", "min", "max")
    rows = summary(tuned)
    cells = []
    for row in rows:
        shown = ["-" if row[figure] is None else f"{row[figure]:.2f}" for figure in figures]
        before = f"{tuned.best.untrained_scores[row['task']]:.2f}"
        settings = map(str, row["changes"].values())
        cells.append([*settings, row["task"], before, *shown, str(row["seeds"])])
    headers = map(spell_name, rows[0]["changes"])
    print_table((*headers, "task", "untrained", *figures, "seeds"), cells)
