"""`promptcli train`: a method on a backbone, into a model of your own."""

import dataclasses
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
from promptcli.errors import UsageError
from promptcli.training import train as library
from promptcli.training.methods import METHODS, all_settings, find_method

if TYPE_CHECKING:
    from promptcli.training.run import Trained

_many_option = partial(typer.Option, rich_help_panel="Several runs")
#: Settings that are no axis of a sweep, and what to give instead.
_UNSWEPT = {"seed": "--seeds N", "template": "--prompt, a run for each"}

_AllSettings = all_settings()
#: Settings of many methods, which have options of their own.
_OWN = ("batch_size", "learning_rate", "epochs", "steps", "max_length", "temperature", "template", "seed")


_SETTINGS = Fields(_AllSettings, panel="Settings (all: train METHOD --help)", flags={"template": "--prompt"}, only=_OWN)


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
        "on": Flag("--on", type=str),
        "tests": "--test",
        "settings": _SETTINGS,
    },
)
def train(
    train: "partial[Trained]",
    word: Annotated[str | None, typer.Argument(metavar="METHOD", help=f"{', '.join(METHODS)}.")] = None,
    method: Annotated[str | None, typer.Option(help="The same as the argument.")] = None,
    seeds: Annotated[int | None, _many_option(min=1, max=1000, help="Run N seeds, 0, 1, ...: mean and spread.")] = None,
    sweep: Annotated[
        list[str] | None,
        _many_option(
            metavar="SETTING=V,V",
            help="Try each value, e.g. `--sweep batch-size=64,128`; repeatable: every combination is run.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the settings in force and stop.")] = False,
    json: Json = False,
) -> None:
    method = method or word
    if not method:
        raise UsageError(f"give a method, e.g. `promptcli train simcse`; methods: {', '.join(METHODS)}")
    name = train.keywords["name"] or method
    trials = _trials(sweep or [], seeds)
    run = partial(train, method=method)
    if dry_run:
        _print_settings(_settings(run, trials[0]), as_json=json)
        return
    runs = [run(name=name, **trials[0])] if len(trials) == 1 else _train_all(run, trials, name)
    best = max(runs, key=_chosen_by)
    if not best.is_main:
        return
    _print_results(runs, trials, name, as_json=json)


def _settings(train: "partial[Trained]", changes: dict[str, Any]) -> dict[str, object]:
    given = train.keywords.keys() - {"name", "tests", "resume", "force"}
    return library.training_settings(**{name: train.keywords[name] for name in given} | changes)


def _train_all(train: "partial[Trained]", trials: Sequence[dict[str, Any]], name: str) -> list["Trained"]:
    """Train every trial as a model ``NAME.run-N``; then keep the best one as NAME, and remove the others.

    A sweep that was stopped finds the models of its finished trials.
    """
    from promptcli.models.loading import open_registry
    from promptcli.storage.runs import RunFolder
    from promptcli.training.run import Trained

    resume, force = train.keywords["resume"], train.keywords["force"]
    identity, *_ = [_settings(train, changes) for changes in trials]  # which refuses wrong values of all trials
    registry, names = open_registry(), [f"{name}.run-{number}" for number in range(1, len(trials) + 1)]
    registry.check_free(name, force=force or resume)
    sweep = RunFolder(registry.run_folder(f"{name}.sweep"))
    if os.environ.get("RANK", "0") == "0":  # of several processes the first
        if force and not resume and sweep.begun:
            for trial in names:
                RunFolder(registry.run_folder(trial)).discard()
            for trial in set(names) & set(registry.names()):
                registry.remove(trial)
        elsewhere = "`force` starts it again, or give another `name`"
        sweep.open(identity | {"trials": trials}, resume=resume, name=Path(name), elsewhere=elsewhere, force=force)
    finished = set(names) & set(registry.names())
    runs: list[Trained] = []
    try:
        for trial, changes in zip(names, trials, strict=True):
            note(f"run {len(runs) + 1} of {len(trials)}: {', '.join(_typed(changes))}")
            if trial in finished:
                runs.append(Trained(registry.load(trial)))
            else:
                begun = RunFolder(registry.run_folder(trial)).begun
                runs.append(train(**changes, name=trial, resume=resume and begun))
    except KeyboardInterrupt as stopped:
        stopped.args = (f"`resume` continues the runs of {name!r}, `force` starts them again",)
        raise
    best = max(runs, key=_chosen_by)
    if best.is_main:
        registry.save(dataclasses.replace(best.entry, name=name), force=True)
        for trial in names:
            registry.remove(trial)
        sweep.discard()
    return runs


def _chosen_by(trained: "Trained") -> float:
    return next(iter(trained.scores.values()))


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
        return "Settings of a method", [("promptcli train METHOD --help", "lists them, with their values")]
    small = find_method(method, supervised=METHODS[method][0] is None).small
    return set_help(small, f"Settings of {method} by --set, and their values for mini-bert", leave_out=_OWN)


def _print_settings(shown: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        result_json(shown)
        return
    for key, value in shown.items():
        if key not in ("recipe", "template"):  # views show them
            result(f"{key.replace('_', '-')} = {' | '.join(value) if isinstance(value, list) else value_typed(value)}")


def _print_results(runs: Sequence["Trained"], trials: Sequence[dict[str, Any]], name: str, *, as_json: bool) -> None:
    """Print the figures of all runs: one run's before and after, several runs' mean and spread."""
    best = max(runs, key=_chosen_by)
    document = {"model": name, **best.to_dict()}
    if len(runs) > 1:
        document["runs"] = [{"changes": row, **ran.to_dict()} for row, ran in zip(trials, runs, strict=True)]
        document["summary"] = _summary(runs, trials)
    if as_json:
        result_json(document)
    elif len(runs) > 1:
        _print_spread(best, document["summary"])
    else:
        columns = {**best.references, "trained": best.scores}
        rows = []
        for task in best.scores:
            values = [f"{scores[task]:.2f}" if task in scores else "-" for scores in columns.values()]
            rows.append((task, *values))
        result_table(("task", *columns), rows)
    if "nearest_words" in document and not as_json:
        result("")
        words = [(row["word"], " ".join(row["nearest"])) for row in document["nearest_words"]]
        result_table(("word", "nearest to its vector"), words)
    if worse := sum(not ran.better for ran in runs):
        which = "training" if len(runs) == 1 else f"{worse} of {len(runs)} runs"
        note(
            f"{which} did not improve on the untrained encoder on the development pairs; the best checkpoint is kept"
            " (step 0 counts as one); try another --learning-rate or more --epochs"
        )
    note(_saved(best, name))


def _saved(trained: "Trained", name: str) -> str:
    """Return the last line: how the model is used, or what is better than it and how that is used."""
    if not trained.below:
        return f"saved as model {name!r}; use it: promptcli embed FILE -m {name}"
    better = max(trained.below, key=trained.below.__getitem__)
    development, value = next(iter(trained.scores.items()))
    short = f"{better} is better on {development}, {trained.below[better]:.2f} to {value:.2f}"
    return f"saved as model {name!r}, but {short}: {_use_instead(trained, better)}"


def _use_instead(trained: "Trained", better: str) -> str:
    """Return what to type to use a reference that is better than a trained model, and to train on from it."""
    from promptcli.models.loading import open_registry
    from promptcli.settings import BARE

    facts = trained.facts
    is_model = better in open_registry().names()
    if not is_model and "started_from" in facts:
        return "try another --learning-rate or more --epochs"
    if not is_model:
        recipe = facts["untrained"][0]["recipe_fields"]
        flags = [f"--{field} {shlex.quote(recipe[field])}" for field in ("backbone", "prompt", "pooling")]
        return f"promptcli embed FILE {' '.join(flags)}; or try another --learning-rate"
    use = f"promptcli embed FILE -m {better}"
    tunes = "backbone" in find_method(facts["method"], supervised=facts["supervised"]).learns
    if tunes and "started_from" not in facts and trained.entry.recipe.backbone == BARE.backbone:
        return f"{use}; or train from it: --from {better}"
    return use


def _summary(runs: Sequence["Trained"], trials: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return mean, standard deviation (n - 1; 0 for one), min and max of each combination over its seeds, by task."""
    groups: dict[str, list[Trained]] = {}
    for changes, trained in zip(trials, runs, strict=True):
        groups.setdefault(json.dumps({**changes, "seed": None}), []).append(trained)
    rows = []
    for key, members in groups.items():
        changes = {field: value for field, value in json.loads(key).items() if field != "seed"}
        for task in members[0].scores:
            values = [trained.scores[task] for trained in members]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            figures = {"mean": statistics.fmean(values), "std": spread, "min": min(values), "max": max(values)}
            rows.append({"changes": changes, "task": task, "seeds": len(values), **figures})
    return rows


def _print_spread(best: "Trained", summary: Sequence[dict[str, Any]]) -> None:
    figures = ("mean", "std", "min", "max")
    rows = []
    for row in summary:
        numbers = [best.untrained[row["task"]], *(row[figure] for figure in figures)]
        changes = map(str, row["changes"].values())
        rows.append((*changes, row["task"], *(f"{number:.2f}" for number in numbers), str(row["seeds"])))
    heads = [field.replace("_", "-") for field in summary[0]["changes"]]
    result_table((*heads, "task", "untrained", *figures, "seeds"), rows)
