"""Options that several commands share, and the values of the program's own options."""

import dataclasses
import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, BinaryIO, get_args, get_type_hints

import typer

from promptcli.errors import UsageError, unknown_name_error
from promptcli.recipe import ModelChoice, Recipe
from promptcli.settings import PAPER, expand_user, read_settings

Force = Annotated[bool, typer.Option("--force", help="Replace what exists already.")]
NewName = Annotated[str, typer.Option("--name", help="Name of the model to save.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
#: A model as an argument, see ``with_argument``.
ModelArgument = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="Model: a name, a recipe, a folder or a hub id."),
]
_model_option = functools.partial(typer.Option, rich_help_panel="Model")
Model = Annotated[
    str | None,
    _model_option(
        "--model",
        "-m",
        help="Encoder: a model's name, a recipe (name, JSON text, .json or .toml file), a"
        " folder, or a hub id. Default: mini; for `search`, `index`, `dups` and `similarity`"
        " mini-multi.",
    ),
]
BackboneModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        "--backbone",
        help="Backbone: mini-bert (default), a folder, a hub id, or a model (its backbone).",
    ),
]
RecipeFields = Annotated[
    list[str] | None,
    _model_option(
        "--set",
        metavar="FIELD=VALUE",
        help="Another field of the recipe; repeatable: denoise=none, hidden, head or logits;"
        " period=true or false; max-length=N; text-rule=prompteol.",
    ),
]
TextField = Annotated[
    str | None,
    typer.Option(
        help="Column of the sentence, by name or number. Default: `text`, else `sentence`, else"
        " the only one."
    ),
]
IdField = Annotated[
    str | None,
    typer.Option(
        help="Column of the id, by name or number; - for row numbers. Default: `id`, else row"
        " numbers."
    ),
]
Csv = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OPTIONS",
        help="Format of a table, as NAME=VALUE,NAME=VALUE: delim, decimal_separator, dateformat"
        " (%d.%m.%Y), encoding (cp1252), skip (lines above the names), header (false),"
        " quote, sheets (all).",
    ),
]
SkipBad = Annotated[
    bool,
    typer.Option(
        "--skip-bad",
        help="Leave out rows that cannot be read, and say how many and why; such a line of a"
        " text becomes empty. Default: stop at the first one.",
    ),
]
By = Annotated[
    str | None,
    typer.Option(
        help="Ranking: meaning (cosine), words (BM25), or both together. Default: both; meaning"
        " for an index without words.",
    ),
]
MinScore = Annotated[
    float | None,
    typer.Option(
        help="Leave out hits whose printed score is lower: the cosine, or BM25 with --by words."
        " 1 finds exact copies of the query."
    ),
]
Where = Annotated[
    str | None,
    typer.Option(
        help="Condition on the other columns, the place of a passage (file, line, end_line,"
        " heading), its front matter, the id or the text, e.g. 'year > 2020 and lang ="
        ' "en"\'. It is SQL: =, !=, <, <=, >, >=, between, in (...), like "%part%", is'
        " null; and, or, not, parentheses."
    ),
]
Rows = Annotated[
    str | None,
    typer.Option(
        help="How a text becomes rows: passages (paragraphs, joined or split to a good length),"
        " lines, or auto (the default: passages of Markdown, reST and Org, and of a text with"
        " more than one blank line in twenty; else lines). A table keeps its rows."
    ),
]
Split = Annotated[
    bool,
    typer.Option(
        "--split",
        help="Split lines and table rows that are longer than the model's window, at the ends of"
        " paragraphs and sentences; a hit shows the best piece.",
    ),
]
NoIgnore = Annotated[
    bool, typer.Option("--no-ignore", help="Also read files that .gitignore and .ignore list.")
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help="Leave out files of a folder by a pattern, as in .gitignore; repeatable.",
    ),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Name every file that is left out, with the reason.")
]
Check = Annotated[
    bool, typer.Option("--check", help="For scripts: end with exit code 4 if a row is found.")
]
Threshold = Annotated[
    float, typer.Option(help="Lowest cosine of near rows; 1 compares the texts, without a model.")
]
DataDir = Annotated[Path | None, typer.Option(help="SentEval's folder of tasks.")]


def field_option(settings: type, field: str, *names: str, panel: str | None = None) -> Any:
    """Return the option of a setting, by the field of its dataclass.

    Typer checks inclusive bounds; the dataclass checks the others.
    """
    metadata = next(item for item in dataclasses.fields(settings) if item.name == field).metadata
    return typer.Option(
        *names,
        help=metadata["help"],
        min=metadata.get("min"),
        max=metadata.get("max"),
        rich_help_panel=metadata.get("panel", panel),
    )


_recipe_option = functools.partial(field_option, Recipe, panel="Model")


def chosen_model(
    model: Model = None,
    *,
    backbone: Annotated[str | None, _recipe_option("backbone")] = None,
    prompt: Annotated[str | None, _recipe_option("prompt")] = None,
    pooling: Annotated[str | None, _recipe_option("pooling")] = None,
    transforms: Annotated[list[str] | None, _recipe_option("transforms", "--transform")] = None,
    set: RecipeFields = None,
    dim: Annotated[
        int | None,
        _model_option(
            min=1,
            help="Keep only the first dimensions of each vector, for a model that was trained for"
            " it (`train --set dims=128,64`).",
        ),
    ] = None,
) -> ModelChoice:
    """Return the choice made by the Model panel's options and the program's device and dtype."""
    fields = {
        "backbone": backbone,
        "prompt": prompt,
        "pooling": pooling,
        "transforms": tuple(transforms or ()) or None,
    }
    changes = {name: value for name, value in fields.items() if value is not None}
    return choice_of(model, changes | parse_recipe_fields(set or ()), dim=dim)


#: Field of a recipe -> the option that sets it.
_OPTION_OF_FIELD = {
    "backbone": "--backbone",
    "prompt": "--prompt",
    "pooling": "--pooling",
    "transforms": "--transform",
}


def parse_recipe_fields(pairs: Sequence[str], further: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Return the values that ``--set`` gives to fields of a recipe, or to ``further`` fields.

    Args:
        pairs: ``FIELD=VALUE``.
        further: Name -> type.
    """
    for name in map(field_of, pairs):
        if name in _OPTION_OF_FIELD:
            raise UsageError(f"--set does not change {name}; use {_OPTION_OF_FIELD[name]}")
    types = field_types(Recipe)
    for name in _OPTION_OF_FIELD:
        del types[name]
    return parse_pairs({**further, **types}, pairs)


def takes_options(
    parameter: str, source: Callable[..., Any], *without: str, first: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a command's parameter with the options of ``source``, except those in ``without``.

    The command gets the result of ``source``. A field of a dataclass that has a help
    text becomes its option. With ``first``, its options are shown before the command's own.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        source_options = dict(inspect.signature(source).parameters)
        if dataclasses.is_dataclass(source):
            for name, kind in field_types(source).items():
                option = Annotated[kind, field_option(source, name)]  # type: ignore[valid-type]
                source_options[name] = source_options[name].replace(annotation=option)
        for name in without:
            del source_options[name]
        own_options = dict(inspect.signature(command).parameters)
        del own_options[parameter]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            arguments = {name: values.pop(name) for name in source_options}
            command(**{parameter: source(**arguments)}, **values)

        groups = (source_options, own_options) if first else (own_options, source_options)
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
                for group in groups
                for option in group.values()
            ]
        )
        return run

    return decorate


def takes_model(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the command's parameter ``choice`` with the options of the Model panel, except those
    in ``without``.
    """
    return takes_options("choice", chosen_model, *without)


def stream_or_name(name: str) -> str | BinaryIO:
    """Return the name of a file, or standard input for ``-``."""
    return sys.stdin.buffer if name == "-" else name


def format_name(format: str | None, *, json: bool) -> str:
    """Return the format chosen by ``--format`` or ``--json``."""
    if json and format not in (None, "json"):
        raise UsageError(f"{format} and --json exclude each other", parameter="format")
    return "json" if json else format or "table"


def field_types(settings: Any) -> dict[str, Any]:
    """Return the types of the fields of a dataclass that have a help text."""
    hints = get_type_hints(settings)
    return {
        item.name: hints[item.name]
        for item in dataclasses.fields(settings)
        if "help" in item.metadata
    }


#: Type -> its parser, and its name in messages.
_PARSERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    bool: ({"true": True, "false": False}.__getitem__, "true or false"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    str: (str, "text"),
}


def parse_pairs(
    types: Mapping[str, Any], pairs: Sequence[str], option: str = "--set"
) -> dict[str, Any]:
    """Return the values of ``FIELD=VALUE`` by the fields' types."""
    values = dict[str, Any]()
    for pair in pairs:
        typed_field, _, text = pair.partition("=")
        field = field_of(pair)
        if not text:
            raise UsageError(
                f"{option} must be FIELD=VALUE, got {pair!r}; the fields are"
                f" {', '.join(map(spell_name, types))}"
            )
        if field not in types:
            raise unknown_name_error("setting", typed_field, map(spell_name, types))
        members = get_args(types[field]) or (types[field],)
        parse, allowed = next(
            (_PARSERS[member] for member in members if member in _PARSERS), _PARSERS[str]
        )
        try:
            values[field] = parse(text)
        except (KeyError, ValueError):
            raise UsageError(
                f"{option} {typed_field}: {text!r} is not allowed; it must be {allowed}"
            ) from None
    return values


def field_of(pair: str) -> str:
    """Return the field that ``FIELD=VALUE`` names."""
    return pair.partition("=")[0].replace("-", "_")


def spell_name(field: str) -> str:
    """Return the spelling of a field on the command line."""
    return field.replace("_", "-")


#: Device, dtype, backend and threads of the running command.
RUNTIME: ContextVar[ModelChoice] = ContextVar("runtime", default=ModelChoice())  # noqa: B039


def choice_of(
    model: str | None,
    changes: Mapping[str, Any] | None = None,
    *,
    dim: int | None = None,
    paper: bool = False,
) -> ModelChoice:
    """Return the choice of a model by its name and changes of its recipe, with the command's device
    and dtype.
    """
    return dataclasses.replace(
        RUNTIME.get(),
        model=model,
        changes=changes or {},
        backbone=default_backbone(paper=paper),
        dim=dim,
    )


def with_argument(choice: ModelChoice, model_argument: str | None) -> ModelChoice:
    """Return a choice with the model that an argument names instead of ``--model``, if any."""
    if model_argument is None:
        return choice
    if choice.model is not None:
        raise UsageError(
            f"{model_argument!r} and --model {choice.model} name two encoders; leave one out"
        )
    return dataclasses.replace(choice, model=model_argument)


def default_backbone(*, paper: bool = False) -> str:
    """Return the papers' backbone, or the default one of the user."""
    if paper:
        return PAPER.backbone
    return str(read_settings(os.environ)["backbone"].value)


def data_folder(folder: Path | None) -> Path | None:
    """Return the SentEval folder of ``--data-dir``, else of the user's settings, if any."""
    default = read_settings(os.environ)["data_dir"].value
    if folder is None and default:
        return expand_user(default)
    return folder


def configure_libraries(threads: int | None, *, offline: bool, quiet: bool) -> None:
    """Set the variables that libraries read when they are imported."""
    # oneDNN would cache 1,024 products, one for each shape of a batch; training reuses few of them
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if quiet:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    if offline:
        os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    if threads is not None:
        os.environ["RAYON_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(threads)
        for library, function in (("torch", "set_num_threads"), ("faiss", "omp_set_num_threads")):
            if library in sys.modules:  # otherwise it reads the variable when it is imported
                getattr(sys.modules[library], function)(threads)
