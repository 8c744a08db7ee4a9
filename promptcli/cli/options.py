"""Options that several commands share: how one is typed, groups of them, and the program's own."""

import dataclasses
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from promptcli.errors import UsageError, unknown
from promptcli.recipe import Choice, Recipe
from promptcli.settings import BARE, PAPER, expand_user, read_settings, setting, typed_value

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
#: A model as an argument, for ``with_argument``.
NamedModel = Annotated[str | None, typer.Argument(metavar="MODEL", help="The same as --model.")]


@dataclass(frozen=True)
class Flag:
    """How a value is given on the command line, if its name, type and help text do not say it
    all.
    """

    #: ``--output -o``, ``--text/--no-text``; of an argument its metavar: ``FILE...``, ``[KEY]``
    names: str = ""
    min: float | None = None
    max: float | None = None
    metavar: str | None = None
    panel: str | None = None

    def option(self, name: str, annotation: Any, default: Any, help: str) -> inspect.Parameter:
        """Return a parameter of a function as Typer takes it."""
        details: dict[str, Any] = {"help": help, "rich_help_panel": self.panel}
        details |= {"min": self.min, "max": self.max}
        names = self.names.split()
        if not self.names.startswith("-") and (names or default is inspect.Parameter.empty):
            option = typer.Argument(
                **details, metavar=(self.metavar or self.names or name.upper()).strip("[].")
            )
        else:
            if not names and default is False:
                names = [f"--{written_name(name)}"]  # no --no-name beside it
            option = typer.Option(*names, **details, metavar=self.metavar)
        if default is None:
            annotation |= None
        typed: Any = Annotated[annotation, option]
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=typed
        )


def inclusive_bounds(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bounds of a field, by its metadata, that Typer checks: none if one of them is
    exclusive, which Typer does not know, so that one message, the field's own, says them all.
    """
    if "above" in about or "below" in about:
        return {}
    return {"min": about.get("min"), "max": about.get("max")}


@dataclass(frozen=True)
class SettingOptions:
    """A dataclass of settings as options: one for every field with a help text, or for some of them
    and ``--set``.

    A field that is a tuple becomes an option that may be repeated, a bool a pair
    ``--name/--no-name``.
    """

    #: a field's metadata are its ``help``, ``names``, ``min``, ``max`` and ``panel``
    described: type
    panel: str | None = None  #: of the fields that name none
    #: field -> names of its option, if not ``--field``
    flags: Mapping[str, str] = field(default_factory=dict)
    #: options take the fields' defaults; else None, so that ``changes`` knows what was given
    defaults: bool = False
    #: the fields that have an option; the others are given by ``--set FIELD=VALUE``
    only: Sequence[str] = ()
    rest: str | None = None  #: help of ``--set``; by default it names the others

    def options(self) -> Iterator[inspect.Parameter]:
        """Yield every option."""
        kinds = kinds_of(self.described)
        for item in dataclasses.fields(self.described):
            if item.name not in (self.only or kinds):
                continue
            about = item.metadata
            flag = Flag(
                self.flags.get(item.name) or about.get("names", ""),
                **inclusive_bounds(about),
                panel=about.get("panel", self.panel),
            )
            hint = kinds[item.name]
            if get_origin(hint) is tuple:
                hint = list[get_args(hint)[0]]  # type: ignore[misc]
            default = item.default if self.defaults else None
            yield flag.option(item.name, hint, default, about["help"])
        if self.only:
            rest = self.rest or f"Another setting; repeatable: {', '.join(self.others())}"
            option = Flag("--set", metavar="FIELD=VALUE", panel=self.panel).option(
                "set", list[str], None, rest
            )
            group: Any = Annotated[option.annotation, self]  # fields_by_set finds it
            yield option.replace(annotation=group)

    def others(self) -> list[str]:
        """Return the fields that ``--set`` takes, spelled as on the command line."""
        return [written_name(name) for name in self.fields_by_set()]

    def fields_by_set(self) -> list[str]:
        """Return the fields that ``--set`` takes."""
        return [name for name in kinds_of(self.described) if name not in self.only]

    def changes(self, arguments: Mapping[str, Any], *, but: Collection[str] = ()) -> dict[str, Any]:
        """Return the fields that were given, lists as tuples.

        ``but`` are names after ``--set`` that belong to others.
        """
        kinds = kinds_of(self.described)
        changes = dict[str, Any]()
        for name in self.only or kinds:
            value = arguments[name]
            if isinstance(value, list):
                value = tuple(value)
            if value not in (None, ()):
                changes[name] = value
        pairs = []
        if self.only:
            pairs = [pair for pair in arguments["set"] or () if field_of(pair) not in but]
        return changes | parse_pairs(kinds, pairs)

    def read(self, arguments: Mapping[str, Any]) -> Any:
        """Return the object that the values of a command's options describe."""
        return self.described(**self.changes(arguments))


#: A section at the end of a help page: its heading, and names with their descriptions.
Section = tuple[str, list[tuple[str, str]]]


def set_help(settings: Any, heading: str, *, leave_out: Sequence[str] = ()) -> Section:
    """Return what ``--set`` takes: the described fields of a dataclass object, with their
    values.
    """
    rows = []
    for item in dataclasses.fields(settings):
        if "help" in item.metadata and item.name not in leave_out:
            value = typed_value(getattr(settings, item.name))
            rows.append((f"{written_name(item.name)}={value}", item.metadata["help"]))
    return heading, rows


def kinds_of(described: Any) -> dict[str, Any]:
    """Return the types of the described fields of a dataclass."""
    hints = get_type_hints(described)
    kinds = {}
    for item in dataclasses.fields(described):
        if "help" in item.metadata:
            kinds[item.name] = hints[item.name]
    return kinds


def parse_pairs(
    kinds: Mapping[str, Any], pairs: Sequence[str], option: str = "--set", *, many: bool = False
) -> dict[str, Any]:
    """Return the values of ``FIELD=VALUE`` by the fields' types.

    With ``many`` each is a list, ``FIELD=V,V``: of a field that is given twice the values are
    joined, and each counts once.
    """
    fields = dict[str, Any]()
    for pair in pairs:
        written, _, text = pair.partition("=")
        name = field_of(pair)
        if not text:
            raise UsageError(
                f"{option} takes FIELD=VALUE, one of {', '.join(map(written_name, kinds))}; got"
                f" {pair!r}"
            )
        if name not in kinds:
            raise unknown("setting", written, map(written_name, kinds))
        members = get_args(kinds[name]) or (kinds[name],)
        kind = next((member for member in members if member in _READERS), str)
        read, takes = _READERS[kind]
        try:
            if many:
                values = [*fields.get(name, ()), *map(read, text.split(","))]
                fields[name] = list(dict.fromkeys(values))
            else:
                fields[name] = read(text)
        except (KeyError, ValueError):
            raise UsageError(
                f"{option} {written}: {text!r} is not allowed; it takes {takes}"
            ) from None
    return fields


def field_of(pair: str) -> str:
    """Return the field that ``FIELD=VALUE`` names."""
    return pair.partition("=")[0].replace("-", "_")


def written_name(name: str) -> str:
    """Return the spelling of a field on the command line."""
    return name.replace("_", "-")


#: Type -> its parser, and its name in messages.
_READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    bool: ({"true": True, "false": False}.__getitem__, "true or false"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    str: (str, "text"),
}


#: Changes of a recipe.
RECIPE = SettingOptions(
    Recipe,
    panel="Model",
    flags={"transforms": "--transform"},
    only=("backbone", "prompt", "pooling", "transforms"),
    rest=(
        "Another field of the recipe; repeatable: denoise=none, hidden, head or logits; period=true"
        " or false; max-length=N; text-rule=prompteol."
    ),
)


@dataclass(frozen=True)
class Given:
    """What was given of a group of options, for a command that shares ``--set`` with the group."""

    group: SettingOptions
    values: Mapping[str, Any]

    @property
    def pairs(self) -> Sequence[str]:
        """The words after ``--set``."""
        return self.values["set"] or ()

    def changes(self, *, but: Collection[str] = ()) -> dict[str, Any]:
        """Return the fields that were given, see ``SettingOptions.changes``."""
        return self.group.changes(self.values, but=but)


#: The changes of a recipe, as a parameter of a command and as its value.
RecipeChanges = Annotated[dict[str, Any], RECIPE]
RecipeGiven = Annotated[Given, RECIPE]
_MODEL = (
    "Encoder: a model's name, a recipe (name, JSON text, .json or .toml file), a folder, or a hub"
    " id."
)
_DIM = (
    "Keep the first dimensions of each vector, of a model trained for it (`train --set"
    " dims=128,64`)."
)


@dataclass(frozen=True)
class _ModelFields(SettingOptions):
    """Which encoder: its name, and changes of its recipe."""

    default: str = "mini"  #: the model if none is given

    def options(self) -> Iterator[inspect.Parameter]:
        yield from super().options()
        about = f"{_MODEL} Default: {self.default}."
        yield Flag("--model -m", panel=self.panel).option("model", str, None, about)
        yield Flag(min=1, panel=self.panel).option("dim", int, None, _DIM)

    def read(self, arguments: Mapping[str, Any]) -> Choice:
        model = arguments["model"]
        changes = self.changes(arguments)
        if model is None and not changes and self.default != "mini":
            model = self.default
        return choice_of(model, changes, dim=arguments["dim"])

    def with_default(self, model: Any) -> "_ModelFields":
        """Return the options with another default, if a field has the name of a model as one."""
        if not isinstance(model, str) or model in ("mini", BARE.backbone):
            return self
        return dataclasses.replace(self, default=model)


MODEL = _ModelFields(**vars(RECIPE))


_RECIPE_HELP = {item.name: item.metadata.get("help") for item in dataclasses.fields(Recipe)}

# --- aliases of parameters, for commands that are written out ---

_OF_MODEL = "Model"
Model = Annotated[
    str | None,
    typer.Option("--model", "-m", help=f"{_MODEL} Default: mini.", rich_help_panel=_OF_MODEL),
]
Backbone = Annotated[
    str | None,
    typer.Option(help=_RECIPE_HELP["backbone"], rich_help_panel=_OF_MODEL),
]
Prompt = Annotated[str | None, typer.Option(help=_RECIPE_HELP["prompt"], rich_help_panel=_OF_MODEL)]
Pooling = Annotated[
    str | None, typer.Option(help=_RECIPE_HELP["pooling"], rich_help_panel=_OF_MODEL)
]
Transforms = Annotated[
    list[str] | None,
    typer.Option("--transform", help=_RECIPE_HELP["transforms"], rich_help_panel=_OF_MODEL),
]
RecipeFields = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help=RECIPE.rest, rich_help_panel=_OF_MODEL),
]
Dim = Annotated[int | None, typer.Option(min=1, help=_DIM, rich_help_panel=_OF_MODEL)]
TextField = Annotated[
    str | None,
    typer.Option(
        help="Column of the sentence, by name or number. Default: `text`, else `sentence`, else"
        " the only one."
    ),
]
BadLines = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="File that gets the rows that cannot be read, as JSON lines with number, reason and"
        " line; they are left out. Default: the first one is refused.",
    ),
]
IdField = Annotated[
    str | None,
    typer.Option(
        help="Column of the id, by name or number; - for row numbers. Default: `id`, else row"
        " numbers."
    ),
]
DataDir = Annotated[Path | None, typer.Option(help="SentEval folder of the tasks.")]


def chosen_model(
    model: str | None,
    *,
    backbone: str | None = None,
    prompt: str | None = None,
    pooling: str | None = None,
    transforms: Sequence[str] | None = None,
    set: Sequence[str] | None = None,
    dim: int | None = None,
) -> Choice:
    """Return the encoder that the options of the panel Model describe, with the program's device
    and dtype.
    """
    kinds = kinds_of(Recipe)
    given = {
        "backbone": backbone,
        "prompt": prompt,
        "pooling": pooling,
        "transforms": tuple(transforms or ()) or None,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    others = {name: kind for name, kind in kinds.items() if name not in given}
    return choice_of(model, changes | parse_pairs(others, set or ()), dim=dim)


def field_option(described: type, name: str, *flags: str, panel: str | None = None) -> Any:
    """Return the option of a described field, in the signature of a command that is written out."""
    about = next(item for item in dataclasses.fields(described) if item.name == name).metadata
    return typer.Option(
        *flags,
        help=about["help"],
        **inclusive_bounds(about),
        rich_help_panel=about.get("panel", panel),
    )


def choice_of(
    model: str | None,
    changes: Mapping[str, Any] | None = None,
    *,
    dim: int | None = None,
    paper: bool = False,
) -> Choice:
    """Return a model's name, changes of its recipe, and the command's device and dtype, as the
    library takes them.
    """
    runtime = RUNTIME.get()
    dtype = None if runtime.dtype == "auto" else runtime.dtype
    backbone = default_backbone(paper=paper)
    return Choice(
        model,
        changes or {},
        backbone,
        runtime.device,
        dtype,
        runtime.backend,
        dim=dim,
        threads=runtime.threads,
    )


def words_of(values: Any) -> list[str]:
    """Return what was typed for a field that the library also gives other values."""
    return [str(value) for value in values]


def with_argument(choice: Choice, named: str | None) -> Choice:
    """Return a choice with the model that an argument names, in place of ``--model``."""
    if named is None:
        return choice
    if choice.model is not None:
        raise UsageError(f"{named!r} and --model {choice.model} both name an encoder; give one")
    return dataclasses.replace(choice, model=named)


def default_backbone(*, paper: bool = False) -> str:
    """Return the default backbone: the papers', or the one in the user's settings."""
    if paper:
        return PAPER.backbone
    return str(read_settings(os.environ)["backbone"].value)


def data_folder(folder: Path | None) -> Path | None:
    """Return the SentEval folder: the one given, else the settings', else none."""
    stored = read_settings(os.environ)["data_dir"].value
    if folder is None and stored:
        return expand_user(stored)
    return folder


_PANEL = "Options of every command"


@dataclass(frozen=True)
class Runtime:
    """Where and how the work is done.

    Never changes what a model is. Every command takes these options.
    """

    device: str = setting("auto", "auto, cpu, cuda, cuda:1, mps.", panel=_PANEL)
    dtype: str = setting(
        "auto",
        "auto, float32, bfloat16, float16, tf32 (on a GPU), int8 (with a backend; its loss is not"
        " checked)."
        " auto: float32 for scores; bfloat16 for embed, index and serve if the hardware supports"
        " it; causal models as stored.",
        panel=_PANEL,
    )
    backend: str = setting(
        "torch",
        "What computes on a processor: torch; openvino or onnx (a graph, made once and kept, its"
        " vectors checked); openvino-int8 or onnx-int8 (8 bits, the loss is measured); auto (what"
        " pays).",
        panel=_PANEL,
    )
    threads: int | None = setting(
        None, "Processor threads. Default: all cores.", panel=_PANEL, min=1, max=4096
    )
    offline: bool = setting(False, "Never use the network.", panel=_PANEL)
    quiet: bool = setting(
        False, "No progress and no notes on stderr.", panel=_PANEL, names="--quiet -q"
    )

    def configure_libraries(self) -> None:
        """Set what libraries read at import: quiet, and no network if ``--offline`` is given."""
        # of the 1,024 products that oneDNN keeps by itself, one for every shape of a batch,
        # training uses few again
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        if self.quiet:
            os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
        if self.offline:
            os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
        if self.threads is not None:
            os.environ["RAYON_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(self.threads)
            for library, function in (
                ("torch", "set_num_threads"),
                ("faiss", "omp_set_num_threads"),
            ):
                if library in sys.modules:  # else it reads the variable when it is loaded
                    getattr(sys.modules[library], function)(self.threads)


#: The options of the running command.
RUNTIME: ContextVar[Runtime] = ContextVar("runtime", default=Runtime())  # noqa: B039
