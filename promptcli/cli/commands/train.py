"""The command ``train``: trains an encoder by a method of the papers and saves it as a model."""

import contextlib
import functools
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from promptcli import training as library
from promptcli.cli.console import (
    note,
    print_document,
    print_json,
    print_line,
    print_table,
)
from promptcli.cli.options import (
    RUNTIME,
    Csv,
    DataDir,
    Force,
    Json,
    SkipBad,
    data_folder,
    default_backbone,
    field_option,
    parse_pairs,
    spell_name,
    takes_options,
)
from promptcli.cli.stopping import ended_by_signals
from promptcli.data.csv_options import csv_options
from promptcli.errors import NotFoundError, UsageError, unknown_name_error
from promptcli.settings import BUILT_IN, DEFAULT_MODEL, spell_value
from promptcli.storage.typed_documents import convert, parse_toml
from promptcli.training.methods import METHODS, find_method, setting_types
from promptcli.training.methods.method import (
    InBatchSettings,
    TemplateSettings,
    TrainingSettings,
)

if TYPE_CHECKING:
    from promptcli.training.run import Trained

_PANEL = "Settings"
_setting_option = functools.partial(field_option, TrainingSettings, panel=_PANEL)
#: Option -> the parameter of ``promptcli.train``, or the setting, that has another name.
_FIELD_NAMES = {"from": "start", "test": "tests", "prompt": "template"}
#: Parameters of ``promptcli.train`` that ``training_settings`` lacks.
_NOT_SETTINGS = ("name", "report_to", "device", "tests")


@dataclass
class TrainingOptions:
    """The options of a training, in `train` and `tune`: arguments of ``promptcli.train`` and its
    settings.
    """

    method: Annotated[
        str | None,
        typer.Argument(
            metavar="METHOD",
            help=f"One of {', '.join(METHODS)}; or, with --resume, the name of the run.",
        ),
    ] = None
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Training data: a file, demo, wiki1m_for_simcse or nli_for_simcse; repeatable. It"
            " has sentences; pairs or triplets (sent0, sent1, hard_neg), which may be mixed,"
            " with empty or several negatives (negative_1, negative_2); for sbert and consert"
            " labelled pairs (premise, hypothesis, label); for sbert-regression graded pairs"
            " (sentence1, sentence2, score); for defsent definitions (word, definition)."
            " Default: demo."
        ),
    ] = None
    backbone: Annotated[
        str | None,
        typer.Option(
            help="Pre-trained model: a shipped name, a folder, or a hub id. Matrix products are in"
            " bfloat16 if the hardware computes in it; weights stay float32. Default: mini-bert."
        ),
    ] = None
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="MODEL",
            help="Model whose trained backbone or adapter the run starts from.",
        ),
    ] = None
    name: Annotated[str | None, typer.Option(help="Name of the model. Default: the method's.")] = (
        None
    )
    supervised: Annotated[
        bool,
        typer.Option(
            "--supervised", help="Require pairs or triplets; with --paper, train on nli_for_simcse."
        ),
    ] = False
    paper: Annotated[
        bool,
        typer.Option(
            "--paper",
            help="Use the published settings, backbone and data, and the choices behind the"
            " published figures.",
        ),
    ] = False
    on: Annotated[
        str | None,
        typer.Option(
            help="Graded pairs that choose the best checkpoint: a task, or a file; or queries with"
            " their documents, retrieval:FILE, by nDCG@10. Default: demo:dev, or STS-B:dev."
        ),
    ] = None
    tests: Annotated[
        list[str] | None,
        typer.Option(
            "--test",
            help="Task to score at the end; repeatable. Default: the test split of the development"
            " task.",
        ),
    ] = None
    data_dir: DataDir = None
    report_to: Annotated[
        str | None,
        typer.Option(
            metavar="TRACKER,...",
            help="Trackers that receive loss, learning rate, gradient norm, speed, development"
            " score and settings: tensorboard, wandb, mlflow, trackio.",
        ),
    ] = None
    csv: Csv = None
    skip_bad: SkipBad = False
    batch_size: Annotated[int | None, _setting_option("batch_size")] = None
    learning_rate: Annotated[float | None, _setting_option("learning_rate")] = None
    epochs: Annotated[float | None, _setting_option("epochs")] = None
    steps: Annotated[int | None, _setting_option("steps")] = None
    max_length: Annotated[int | None, _setting_option("max_length")] = None
    temperature: Annotated[
        float | None, field_option(InBatchSettings, "temperature", panel=_PANEL)
    ] = None
    template: Annotated[
        list[str] | None, field_option(TemplateSettings, "template", "--prompt", panel=_PANEL)
    ] = None
    seed: Annotated[int | None, _setting_option("seed")] = None
    set: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            rich_help_panel=_PANEL,
            help="Another setting; repeatable. `train METHOD --dry-run` lists those of a method.",
        ),
    ] = None

    def typed(self) -> dict[str, Any]:
        """Return the options and the settings that were typed."""
        typed = {
            field: value
            for field, value in vars(self).items()
            if value is not None and value is not False and value != []
        }
        pairs = typed.pop("set", ())
        return typed | parse_pairs(setting_types(self.method or ""), pairs)


Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Resume an unfinished run: `--resume NAME` without other options, which the run has"
        " kept. It ends with the weights of a run that was never stopped. With a method and its"
        " options instead (and --name NAME): start the run if it does not exist, resume it if it"
        " is unfinished, do nothing if it is finished.",
    ),
]


@takes_options("options", TrainingOptions, first=True)
def train(
    options: TrainingOptions,
    resume: Resume = False,
    force: Force = False,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML file of options and settings, by their names (`batch-size = 64`); typed"
            " options win. `--dry-run --format toml` writes such a file.",
        ),
    ] = None,
    method_option: Annotated[
        str | None,
        typer.Option("--method", help="Method, if METHOD is the name of the run to resume."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the settings and stop.")
    ] = False,
    format: Annotated[
        str | None,
        typer.Option(metavar="toml", help="With --dry-run: print the file that --config reads."),
    ] = None,
    json: Json = False,
) -> None:
    """Train a sentence encoder; the checkpoint that is best on the development pairs is kept."""
    if format is not None and (format != "toml" or not dry_run):
        raise UsageError("only toml is allowed, and only with --dry-run", parameter="format")
    if dry_run and resume:
        raise UsageError(
            "a resumed run keeps its settings; leave out --dry-run or --resume", parameter="dry_run"
        )
    typed = {**_read_config(config), **options.typed()}
    arguments = library_arguments(typed, resume=resume, method_option=method_option)
    if dry_run:
        for field in _NOT_SETTINGS:
            arguments.pop(field, None)
        settings = library.training_settings(**arguments)
        if format is not None:
            print_document(_as_toml(typed, settings))
        elif json:
            print_json(settings)
        else:
            for name, value in settings.items():
                if name not in ("recipe", "template"):  # ``views`` has both
                    text = " | ".join(value) if isinstance(value, list) else spell_value(value)
                    print_line(f"{spell_name(name)} = {text}")
        return
    from promptcli.training.step import number_of_processes  # loads torch

    is_distributed = number_of_processes(os.environ) > 1
    # trackers also print
    with ended_by_signals(is_distributed), contextlib.redirect_stdout(sys.stderr):
        trained = library.train(**arguments, resume=resume, force=force)
    if not trained.is_main:
        return
    if json:
        print_json({"model": trained.entry.name, **trained.to_dict()})
    else:
        _print_scores(trained)
    note(last_line(trained))


def library_arguments(
    typed: Mapping[str, Any], *, resume: bool, method_option: str | None = None
) -> dict[str, Any]:
    """Return the typed options, the program's device and the user's defaults as arguments of
    ``promptcli.train``.

    A resumed run takes all arguments but its name from its folder.
    """
    arguments = dict(typed)
    argument = arguments.pop("method", "")
    method = method_option or argument
    name = arguments.pop("name", None)
    if resume and name is None:
        if argument and method_option:
            name = argument
        elif not (arguments and method in METHODS):
            name, method = method, ""
    if resume and not (name or method):
        raise UsageError("the name of the run is missing; type it after --resume")
    if "data" in arguments:
        sources = arguments["data"]
        arguments["data"] = sources[0] if len(sources) == 1 else list(map(Path, sources))
    if "csv" in arguments:
        arguments["csv"] = csv_options(arguments["csv"])
    if "report_to" in arguments:
        arguments["report_to"] = arguments["report_to"].split(",")
    if "template" in arguments:
        arguments["template"] = tuple(arguments["template"])
    runtime = RUNTIME.get()
    if runtime.device != "auto":
        arguments["device"] = runtime.device
    if runtime.dtype is not None:
        arguments["dtype"] = runtime.dtype
    if method:
        folder = data_folder(arguments.get("data_dir"))
        if folder is not None:
            arguments["data_dir"] = folder
        backbone = default_backbone()  # the user's default counts as if it were typed
        if backbone != BUILT_IN.backbone and not ({"paper", "start"} & arguments.keys()):
            arguments.setdefault("backbone", backbone)
    return {"method": method, "name": name or method, **arguments}


def _read_config(path: Path | None) -> dict[str, Any]:
    """Return the parameters and settings in a TOML file of options."""
    if path is None:
        return {}
    try:
        document: dict[str, Any] = parse_toml(path.read_bytes())
    except OSError as problem:
        raise NotFoundError(
            f"{path} cannot be read ({problem.strerror}); --dry-run --format toml writes such a"
            " file",
            parameter="config",
        ) from None
    except ValueError as problem:
        raise UsageError(f"{path}: {problem}", parameter="config") from None
    kinds = setting_types() | get_type_hints(TrainingOptions) | {"data_dir": str, "dtype": str}
    del kinds["set"]
    arguments = {}
    for key, value in document.items():
        field = _FIELD_NAMES.get(key, key.replace("-", "_"))
        if field not in kinds:
            raise unknown_name_error(f"key of {path}", key, map(spell_name, sorted(kinds)))
        kind, *_ = get_args(kinds[field]) or [kinds[field]]  # without the None of an option
        if kind == list[str] and isinstance(value, str):
            value = [value]
        try:
            arguments[field] = convert(value, kind)
        except ValueError as problem:
            raise UsageError(f"{path}: {problem}", parameter=field) from None
    return arguments


def _as_toml(typed: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Return the typed options and the settings in force, as ``--config`` reads them."""
    values = {"method": settings["method"], **typed}
    values |= {"backbone": settings["backbone"], "on": settings["chosen_by"]}
    values.setdefault("data", [settings["data"]])
    if settings["dtype"] != "auto":
        values["dtype"] = settings["dtype"]
    values |= {field: settings[field] for field in setting_types() if field in settings}
    names = {field: name for name, field in _FIELD_NAMES.items()}
    lines = ["# promptcli train --config FILE; typed options win over this file"]
    for field, value in values.items():
        if value not in (None, "", [], ()):
            # JSON writes strings, numbers and arrays as TOML does
            text = json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")
            lines.append(f"{names.get(field, spell_name(field))} = {text}")
    return "\n".join(lines)


def _print_scores(trained: "Trained") -> None:
    """Print the scores on every task before and after training, and the words nearest to learned
    vectors.
    """
    columns = {**trained.references, "trained": trained.scores}
    rows = []
    for task in trained.scores:
        values = [f"{scores[task]:.2f}" if task in scores else "-" for scores in columns.values()]
        rows.append((task, *values))
    print_table(("task", *columns), rows)
    words = trained.facts["nearest_words"]
    if words:
        print_line("")
        nearest = [(row["word"], " ".join(row["nearest"])) for row in words]
        print_table(("word", "nearest to its vector"), nearest)


def last_line(trained: "Trained") -> str:
    """Return the last line: the command that uses the model, or the better model and advice."""
    name = trained.entry.name
    references = trained.better_references
    if not references:
        return f"saved as model {name!r}; use it: promptcli embed FILE -m {name}"
    better = max(references, key=references.__getitem__)
    development, value = next(iter(trained.scores.items()))
    scores = f"{better} is better on {development}, {references[better]:.2f} to {value:.2f}"
    advice = "try another --learning-rate or more --epochs"
    if better == DEFAULT_MODEL:
        advice = f"promptcli embed FILE -m {DEFAULT_MODEL}"
        facts = trained.facts
        learns = find_method(facts["method"], supervised=facts["supervised"]).learns
        if "backbone" in learns and "started_from" not in facts:
            advice += f"; or train from it: --from {DEFAULT_MODEL}"
    return f"saved as model {name!r}, but {scores}: {advice}"
