"""`promptcli train`: train an encoder by a method and save it as a model."""

import dataclasses
import itertools
import json
import os
import shlex
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

import promptcli
from promptcli import training as library
from promptcli.cli.console import (
    note,
    only_results_on_stdout,
    result,
    result_document,
    result_json,
    result_table,
)
from promptcli.cli.job_options import JobOptions
from promptcli.cli.options import (
    Given,
    Json,
    Section,
    SettingOptions,
    choice_of,
    field_of,
    kinds_of,
    parse_pairs,
    set_help,
    words_of,
    written_name,
)
from promptcli.cli.pictures import PictureOptions
from promptcli.cli.run_files import as_toml, reads_run_file, settings_in_file
from promptcli.cli.stopping import ended_by_signals
from promptcli.errors import UsageError
from promptcli.extensions import absent_plugin
from promptcli.settings import typed_settings, typed_value
from promptcli.training import TrainJob
from promptcli.training.launch import launch
from promptcli.training.methods import METHODS, all_settings, find_method
from promptcli.training.ranges import Range

if TYPE_CHECKING:
    from promptcli.training.trained import Trained

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


_PANEL = "Settings (all: train METHOD --help)"
_SETTINGS = SettingOptions(_AllSettings, panel=_PANEL, flags={"template": "--prompt"}, only=_OWN)


def train(
    ctx: typer.Context,
    job: TrainJob,
    picture: PictureOptions,
    given: Annotated[Given, _SETTINGS],
    named: Annotated[str | None, typer.Option("--method", help="The same as the argument.")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            rich_help_panel="Several runs",
            help="Run N seeds, 0, 1, ...: mean and spread.",
        ),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SETTING=V,V",
            rich_help_panel="Several runs",
            help=(
                "Try each value, e.g. `--sweep batch-size=64,128`; repeatable: every combination is"
                " run. With --trials also a range, e.g. `--sweep learning-rate=1e-5..1e-4:log`."
            ),
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--trials",
            min=1,
            max=10_000,
            rich_help_panel="Several runs",
            help=(
                "Draw N combinations of the swept settings instead, by optuna: a tree-structured"
                " Parzen estimator, and a run below the median is ended."
            ),
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            callback=reads_run_file(_AllSettings),
            is_eager=True,  # before the options whose defaults it changes
            metavar="FILE",
            help=(
                "TOML file of options and settings, by their names (`batch-size = 64`); what is"
                " typed wins. `--dry-run --format toml` writes one."
            ),
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the settings in force and stop.")
    ] = False,
    format: Annotated[
        str | None,
        typer.Option(metavar="toml", help="With --dry-run: what `--config` reads."),
    ] = None,
    json: Json = False,
) -> None:
    _check_dry_run(dry_run=dry_run, resume=job.resume, format=format)
    job = _complete_job(job, named, ctx)
    pairs = [*settings_in_file(ctx), *given.pairs]  # what is typed wins
    changes = Given(_SETTINGS, {**given.values, "set": pairs}).changes()
    job = dataclasses.replace(job, changes=changes)
    name = job.name or job.method
    picture.check()
    trials, space = _plan_trials(sweep or [], seeds, count)
    if dry_run:
        jobs = list(map(job.with_further, trials))
        shown = library.describe_several(jobs, space)
        if format is None:
            _print_settings(shown, as_json=json)
            return
        several = {"seeds": seeds, "sweep": sweep, "trials": count}
        swept = {*trials[0], *(space or {})}
        result_document(
            as_toml({**_options_of(job, shown), **several, **_settings_of(shown, swept)})
        )
        return
    search = None
    if job.resume and not (sweep or seeds):
        trials = library.unfinished_trials(name) or trials
        search = library.unfinished_search(name)
    if search is not None:
        space, count_before = search
        count = count or count_before
    _check_kept(count, trials, keep_runs=job.keep_runs)
    job = dataclasses.replace(job, name=name)
    found = None
    with ended_by_signals(launch(os.environ).number > 1), only_results_on_stdout():
        if space is not None and count is not None:
            found = _search_function()(space, count, **vars(job))
        elif len(trials) == 1:
            runs = [job.with_further(trials[0]).run()]
        else:
            runs = library.train_sweep(trials, **vars(job))
            if len(runs) < len(trials):  # they had ended before
                trials = [{}]
    if found is not None:
        _print_search(found, name, as_json=json)
        _draw_records(found.records(), found.best, name, picture)
        return
    if runs[0].is_main:
        _print_results(runs, trials, name, as_json=json)
        _draw(runs, trials, name, picture)


def _search_function() -> Any:
    """Return the library's function that searches settings, which a plug-in has."""
    try:
        return promptcli.train_search
    except ImportError:
        raise absent_plugin("--trials") from None


def _complete_job(job: TrainJob, named: str | None, ctx: typer.Context) -> TrainJob:
    """Return the job as the library takes it: its method, its name, and its sources.

    ``train --resume NAME`` names a run, whose record tells the method. A method that is typed wins
    over that of a file.
    """
    method = job.method
    name = job.name
    if job.resume and name is None and method:
        name = method
        _check_begun(name)
        method = ""
    source = ctx.get_parameter_source("named")
    if named and (not method or (source is not None and source.name == "COMMANDLINE")):
        method = named
    if not method and not (job.resume and name):
        raise UsageError(
            f"give a method, e.g. `promptcli train simcse`; methods: {', '.join(METHODS)}"
        )
    words = words_of(job.data or ())
    data: Any = None
    if words:
        data = words[0] if len(words) == 1 else [Path(word) for word in words]
    trackers = ",".join(job.report_to).split(",") if job.report_to else ()
    return dataclasses.replace(job, method=method, name=name, data=data, report_to=trackers)


def _options_of(job: TrainJob, shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a job for a file: those that are given, and what is in force."""
    options = {
        name: value
        for name, value in JobOptions(TrainJob).typed_values(job).items()
        if value is not False and name not in ("resume", "force")
    }
    data = job.data if isinstance(job.data, list) else [job.data or shown["data"]]
    name = None if job.name == job.method else job.name
    in_force = {"backbone": shown["backbone"], "on": shown["chosen_by"]}
    dtype = choice_of(None).dtype
    return {
        "method": job.method,
        **options,
        "name": name,
        "data": [str(source) for source in data],
        **in_force,
        "dtype": dtype,
    }


def _check_begun(name: str) -> None:
    """Refuse to resume a run by the name of a method if it does not exist."""
    if name in METHODS and not (library.is_unfinished(name) or library.is_trained(name)):
        raise UsageError(
            f"no unfinished run of {name!r}; leave out --resume to start one, or name it, and one"
            f" line starts and resumes it: promptcli train {name} --name {name} --resume"
        )


def _check_kept(count: int | None, trials: Sequence[Mapping[str, Any]], *, keep_runs: bool) -> None:
    """Refuse ``--keep-runs`` without several runs, and with a search, which keeps its best only."""
    if keep_runs and (count is not None or len(trials) == 1):
        raise UsageError("--keep-runs keeps the runs of --seeds and --sweep; give one of them")


def _check_dry_run(*, dry_run: bool, resume: bool, format: str | None) -> None:
    """Refuse options that do not go with ``--dry-run``, or not without it."""
    if format is not None and (format != "toml" or not dry_run):
        raise UsageError("--format takes toml, with --dry-run")
    if dry_run and resume:
        raise UsageError(
            "--dry-run shows the settings of a new run, and --resume keeps those that the run began"
            " with; give one of them"
        )


def _plan_trials(
    sweep: Sequence[str], seeds: int | None, count: int | None
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Return the changes of each run, or one without any and what a search draws from."""
    if count is None:
        return _trials(sweep, seeds), None
    return [{}], _space(sweep, seeds)


def _trials(sweep: Sequence[str], seeds: int | None) -> list[dict[str, Any]]:
    """Return the changes of every combination of the swept settings with every seed."""
    ranges, values = _split_ranges(sweep)
    for setting, drawn_from in ranges.items():
        raise UsageError(
            f"--sweep {setting.replace('_', '-')}={drawn_from} is a range; --trials N says how many"
            " runs draw from it"
        )
    axes = parse_pairs(kinds_of(_AllSettings), values, "--sweep", many=True)
    _check_swept(axes)
    if seeds:
        axes["seed"] = range(seeds)
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _check_swept(settings: Mapping[str, Any]) -> None:
    for name in settings.keys() & _UNSWEPT.keys():
        raise UsageError(f"--sweep does not take {name}; give {_UNSWEPT[name]}")


def _types_of(hint: Any) -> tuple[Any, ...]:
    """Return the types that a setting may have."""
    return get_args(hint) or (hint,)


def _split_ranges(sweep: Sequence[str]) -> tuple[dict[str, Range], list[str]]:
    """Return the ranges of ``--sweep`` by setting, and the other sweeps unchanged."""
    kinds = kinds_of(_AllSettings)
    ranges: dict[str, Range] = {}
    others = []
    for pair in sweep:
        setting = field_of(pair)
        written = pair.partition("=")[2]
        is_number = bool({int, float}.intersection(_types_of(kinds.get(setting))))
        if ".." in written and is_number:
            if setting in ranges:
                raise _swept_twice_error(setting)
            ranges[setting] = Range.of(written)
        else:
            others.append(pair)
    return ranges, others


def _space(sweep: Sequence[str], seeds: int | None) -> dict[str, Any]:
    """Return the ranges and values that a search draws from, by setting."""
    if seeds:
        raise UsageError("--trials draws settings, and --seeds repeats them; give one of them")
    if not sweep:
        raise UsageError(
            "--trials needs settings to draw, e.g. `--sweep learning-rate=1e-5..1e-4:log`"
        )
    ranges, written = _split_ranges(sweep)
    values = parse_pairs(kinds_of(_AllSettings), written, "--sweep", many=True)
    for setting in ranges.keys() & values.keys():
        raise _swept_twice_error(setting)
    space = {**ranges, **values}
    _check_swept(space)
    return space


def _swept_twice_error(setting: str) -> UsageError:
    return UsageError(
        f"--sweep {written_name(setting)} is given twice, with a range; give one range, or values"
    )


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


def _settings_of(shown: Mapping[str, Any], swept: Collection[str]) -> dict[str, Any]:
    """Return the settings in force, by the names of their options, but those that are swept."""
    settings = {}
    for field in kinds_of(_AllSettings):
        if field in shown and field not in swept:
            settings["prompt" if field == "template" else field] = shown[field]
    return settings


def _print_settings(shown: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        result_json(shown)
        return
    for key, value in shown.items():
        if key in ("recipe", "template"):  # views show them
            continue
        written = typed_value(value)
        if isinstance(value, list):
            written = " | ".join(value)
        result(f"{key.replace('_', '-')} = {written}")


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
        chosen = f"{best.facts['chosen_by']} chose {', '.join(typed_settings(document['chosen']))}"
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
    # one whose best checkpoint is step 0 may be better than the plain encoder: by the head as drawn
    worse = sum(not ran.better or ran.facts["best_step"] == 0 for ran in runs)
    if worse:
        which = "training" if len(runs) == 1 else f"{worse} of {len(runs)} runs"
        note(
            f"{which} did not improve on the untrained encoder on the development pairs; the best"
            " checkpoint is kept (step 0 counts as one); try another --learning-rate or more"
            " --epochs"
        )
    note(_last_line(best, name))


def _draw(
    runs: Sequence["Trained"],
    trials: Sequence[dict[str, Any]],
    name: str,
    picture: PictureOptions,
) -> None:
    """Draw the curves of all runs, if a file is named."""
    records = []
    for changes, ran in zip(trials, runs, strict=True):
        records.append({"changes": changes, "curve": ran.facts["curve"]})
    _draw_records(records, runs[0], name, picture)


def _draw_records(
    records: Sequence[Mapping[str, Any]], run: "Trained", name: str, picture: PictureOptions
) -> None:
    from promptcli.cli.curves import curves_of, draw_curves

    title = f"Training of {name} ({run.facts['method']})"
    picture.draw(draw_curves, curves_of(records), title, run.facts["chosen_by"])


def _print_search(found: Any, name: str, *, as_json: bool) -> None:
    """Print the table of trials, and how to use the best one."""
    best = found.trials[found.chosen]
    if as_json:
        trials = [trial.to_dict() for trial in found.trials]
        document = {"model": name, **found.best.to_dict(), "chosen": best.changes}
        result_json({**document, "trials": trials})
    else:
        rows = [_cells_of_trial(trial, is_best=trial is best) for trial in found.trials]
        numbered = [(str(number), *cells) for number, cells in enumerate(rows, start=1)]
        settings = [field.replace("_", "-") for field in best.changes]
        heads = ("trial", *settings, found.best.facts["chosen_by"], "best", "steps", "state")
        result_table(heads, numbered)
        note(f"chosen: {', '.join(typed_settings(best.changes))}")
    note(_last_line(found.best, name))


def _cells_of_trial(trial: Any, *, is_best: bool) -> list[str]:
    """Return the settings of a trial, its score and how far it went."""
    cells = [typed_value(value) for value in trial.changes.values()]
    cells.append("-" if trial.value is None else f"{trial.value:.2f}")
    cells.append("*" if is_best else "")
    cells.append(str(trial.curve[-1]["step"]) if trial.curve else "-")
    cells.append(trial.state)
    return cells


def _last_line(trained: "Trained", name: str) -> str:
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
            row = {"changes": changes, "task": task, "seeds": len(values)}
            row["mean"] = statistics.fmean(values)
            row["std"] = spread
            row["min"] = min(values)
            row["max"] = max(values)
            rows.append(row)
    return rows


def _print_spread(best: "Trained", summary: Sequence[dict[str, Any]]) -> None:
    figures = ("mean", "std", "min", "max")
    rows = []
    for row in summary:
        cells = [str(value) for value in row["changes"].values()]
        cells += [row["task"], f"{best.untrained[row['task']]:.2f}"]
        for figure in figures:
            if row[figure] is None:
                cells.append("-")
            else:
                cells.append(f"{row[figure]:.2f}")
        rows.append((*cells, str(row["seeds"])))
    heads = [field.replace("_", "-") for field in summary[0]["changes"]]
    result_table((*heads, "task", "untrained", *figures, "seeds"), rows)
