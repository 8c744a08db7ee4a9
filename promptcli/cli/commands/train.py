"""`promptcli train`: train an encoder by a method and save it as a model."""

import itertools
import json
import os
import shlex
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli.console import note, result, result_json, result_table
from promptcli.cli.options import (
    Fields,
    Json,
    Section,
    choice_of,
    kinds_of,
    parsed,
    set_help,
    value_typed,
)
from promptcli.cli.signatures import Flag, command_of
from promptcli.cli.stopping import ended_by_signals
from promptcli.errors import UsageError
from promptcli.training import train as library
from promptcli.training.launch import launch
from promptcli.training.methods import METHODS, all_settings, find_method

if TYPE_CHECKING:
    from promptcli.training.run import Trained

_many_option = partial(typer.Option, rich_help_panel="Several runs")
#: Settings that --sweep does not take, and what to give instead.
_UNSWEPT = {"seed": "--seeds N", "template": "--prompt, a run for each"}

_AllSettings = all_settings()
#: Settings of many methods, each with its own option.
_OWN = (
    "batch_size",
    "learning_rate",
    "epochs",
    "steps",
    "max_length",
    "temperature",
    "template",
    "seed",
)


_SETTINGS = Fields(
    _AllSettings,
    panel="Settings (all: train METHOD --help)",
    flags={"template": "--prompt"},
    only=_OWN,
)


def _sources(data: list[str] | None) -> str | list[Path] | None:
    return None if not data else data[0] if len(data) == 1 else [Path(file) for file in data]


@command_of(
    library.train,
    flags={
        "method": None,
        "data": Flag("--data", type=list[str], read=_sources),
        "backbone": Flag("--backbone", type=str, read=choice_of),
        "start": Flag("--from", metavar="MODEL"),
        "name": Flag("--name", help="Name of the model. Default: the method's."),
        "resume": Flag(
            help=(
                "Resume the unfinished run of that name: `train --resume NAME` needs no more. It"
                " ends with the weights of a run that was never killed."
            )
        ),
        "on": Flag("--on", type=str),
        "tests": "--test",
        "settings": _SETTINGS,
    },
)
def train(
    train: "partial[Trained]",
    word: Annotated[
        str | None, typer.Argument(metavar="METHOD", help=f"{', '.join(METHODS)}.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="The same as the argument.")] = None,
    seeds: Annotated[
        int | None, _many_option(min=1, max=1000, help="Run N seeds, 0, 1, ...: mean and spread.")
    ] = None,
    sweep: Annotated[
        list[str] | None,
        _many_option(
            metavar="SETTING=V,V",
            help=(
                "Try each value, e.g. `--sweep batch-size=64,128`; repeatable: every combination is"
                " run."
            ),
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the settings in force and stop.")
    ] = False,
    json: Json = False,
) -> None:
    name, resume = train.keywords["name"], train.keywords["resume"]
    if resume and name is None and word:
        name = word
        if library.is_begun(name) or word not in METHODS:
            word = None  # the record of the run tells the method
    method = method or word
    if not method and (dry_run or not (resume and name)):
        raise UsageError(
            f"give a method, e.g. `promptcli train simcse`; methods: {', '.join(METHODS)}"
        )
    name = name or method or ""
    trials = _trials(sweep or [], seeds)
    if resume and not (sweep or seeds):
        trials = library.begun_trials(name) or trials
    run = partial(train, method=method, name=name)
    if dry_run:
        _print_settings(_settings(run, trials[0]), as_json=json)
        return
    with ended_by_signals(launch(os.environ).number > 1):
        runs = (
            [run(**trials[0])]
            if len(trials) == 1
            else library.train_several(**run.keywords, trials=trials)
        )
    best = max(runs, key=lambda trained: trained.chosen_by)
    if not best.is_main:
        return
    _print_results(runs, trials, name, as_json=json)


def _settings(train: "partial[Trained]", changes: dict[str, Any]) -> dict[str, object]:
    given = train.keywords.keys() - {"name", "tests", "resume", "force"}
    return library.training_settings(**{name: train.keywords[name] for name in given} | changes)


def _trials(sweep: Sequence[str], seeds: int | None) -> list[dict[str, Any]]:
    """Return the changes of every combination of the swept settings with every seed."""
    axes = parsed(kinds_of(_AllSettings), sweep, "--sweep", many=True)
    for name in axes.keys() & _UNSWEPT.keys():
        raise UsageError(f"--sweep does not take {name}; give {_UNSWEPT[name]}")
    axes |= {"seed": range(seeds)} if seeds else {}
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _typed(changes: Mapping[str, Any]) -> list[str]:
    return [f"{field.replace('_', '-')} {value_typed(value)}" for field, value in changes.items()]


def settings_in_force(words: Sequence[str]) -> Section:
    """Return the settings of the method on the command line."""
    method = next((word for word in words if word in METHODS), None)
    if method is None:
        return "Settings of a method", [
            ("promptcli train METHOD --help", "lists them, with their values")
        ]
    small = find_method(method, supervised=METHODS[method][0] is None).small
    return set_help(
        small, f"Settings of {method} by --set, and their values for mini-bert", leave_out=_OWN
    )


def _print_settings(shown: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        result_json(shown)
        return
    for key, value in shown.items():
        if key not in ("recipe", "template"):  # views show them
            result(
                f"{key.replace('_', '-')} ="
                f" {' | '.join(value) if isinstance(value, list) else value_typed(value)}"
            )


def _print_results(
    runs: Sequence["Trained"], trials: Sequence[dict[str, Any]], name: str, *, as_json: bool
) -> None:
    """Print the figures of all runs: one run's before and after, several runs' mean and spread."""
    best = max(runs, key=lambda trained: trained.chosen_by)
    document = {"model": name, **best.to_dict()}
    if len(runs) > 1:
        document["chosen"] = trials[runs.index(best)]
        document["runs"] = [
            {"changes": row, **ran.to_dict()} for row, ran in zip(trials, runs, strict=True)
        ]
        document["summary"] = _summary(runs, trials)
    if as_json:
        result_json(document)
    elif len(runs) > 1:
        _print_spread(best, document["summary"])
        chosen = f"{best.facts['chosen_by']} chose {', '.join(_typed(document['chosen']))}"
        note(f"{chosen}; all runs: promptcli models show {name} --runs")
    else:
        columns = {**best.references, "trained": best.scores}
        rows = []
        for task in best.scores:
            values = [
                f"{scores[task]:.2f}" if task in scores else "-" for scores in columns.values()
            ]
            rows.append((task, *values))
        result_table(("task", *columns), rows)
    if "nearest_words" in document and not as_json:
        result("")
        words = [(row["word"], " ".join(row["nearest"])) for row in document["nearest_words"]]
        result_table(("word", "nearest to its vector"), words)
    if worse := sum(not ran.better for ran in runs):
        which = "training" if len(runs) == 1 else f"{worse} of {len(runs)} runs"
        note(
            f"{which} did not improve on the untrained encoder on the development pairs; the best"
            " checkpoint is kept (step 0 counts as one); try another --learning-rate or more"
            " --epochs"
        )
    note(_saved(best, name))


def _saved(trained: "Trained", name: str) -> str:
    """Return the last line: how the model is used, or what is better than it and how that is
    used.
    """
    if not trained.below:
        return f"saved as model {name!r}; use it: promptcli embed FILE -m {name}"
    better = max(trained.below, key=trained.below.__getitem__)
    development, value = next(iter(trained.scores.items()))
    short = f"{better} is better on {development}, {trained.below[better]:.2f} to {value:.2f}"
    return f"saved as model {name!r}, but {short}: {_use_instead(trained, better)}"


def _use_instead(trained: "Trained", better: str) -> str:
    """Return what to type to use a reference that is better than a trained model, and to train on
    from it.
    """
    from promptcli.models.loading import open_registry
    from promptcli.settings import BARE

    facts = trained.facts
    is_model = better in open_registry().names()
    if not is_model and "started_from" in facts:
        return "try another --learning-rate or more --epochs"
    if not is_model:
        recipe = facts["untrained"][0]["recipe_fields"]
        flags = [
            f"--{field} {shlex.quote(recipe[field])}" for field in ("backbone", "prompt", "pooling")
        ]
        return f"promptcli embed FILE {' '.join(flags)}; or try another --learning-rate"
    use = f"promptcli embed FILE -m {better}"
    tunes = "backbone" in find_method(facts["method"], supervised=facts["supervised"]).learns
    if tunes and "started_from" not in facts and trained.entry.recipe.backbone == BARE.backbone:
        return f"{use}; or train from it: --from {better}"
    return use


def _summary(runs: Sequence["Trained"], trials: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return mean, standard deviation (n - 1), min and max of each combination over its seeds, by
    task.
    """
    groups: dict[str, list[Trained]] = {}
    for changes, trained in zip(trials, runs, strict=True):
        groups.setdefault(json.dumps({**changes, "seed": None}), []).append(trained)
    rows = []
    for key, members in groups.items():
        changes = {field: value for field, value in json.loads(key).items() if field != "seed"}
        for task in members[0].scores:
            values = [trained.scores[task] for trained in members]
            spread = statistics.stdev(values) if len(values) > 1 else None
            figures = {
                "mean": statistics.fmean(values),
                "std": spread,
                "min": min(values),
                "max": max(values),
            }
            rows.append({"changes": changes, "task": task, "seeds": len(values), **figures})
    return rows


def _print_spread(best: "Trained", summary: Sequence[dict[str, Any]]) -> None:
    figures = ("mean", "std", "min", "max")
    rows = []
    for row in summary:
        numbers = [best.untrained[row["task"]], *(row[figure] for figure in figures)]
        changes = map(str, row["changes"].values())
        shown = ["-" if number is None else f"{number:.2f}" for number in numbers]
        rows.append((*changes, row["task"], *shown, str(row["seeds"])))
    heads = [field.replace("_", "-") for field in summary[0]["changes"]]
    result_table((*heads, "task", "untrained", *figures, "seeds"), rows)
