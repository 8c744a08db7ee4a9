"""Options that several commands share: single ones as types, groups as dataclasses.

A command takes ``choice: ModelChoice`` and ``runtime: Runtime`` as parameters; ``expand`` turns each group into the
options of its fields. ``options_of`` makes a group from a dataclass of settings: a field's help, bounds and panel are
its metadata, so that an option is described where its value is.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer

from promptcli.recipe import Recipe


def option_in(panel: str) -> Callable[..., Any]:
    """Return ``typer.Option`` for options under a heading of the help page."""
    return functools.partial(typer.Option, rich_help_panel=panel)


_PANEL = "Model and recipe"
recipe_option, _runtime_option = option_in(_PANEL), option_in("Runtime")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="SentEval folder of the tasks.")]
BackboneName = Annotated[
    str | None, typer.Option("--backbone", help="A local folder or a hub id. Default: mini-bert (shipped).")
]
DevelopmentPairs = Annotated[
    str | None,
    typer.Option(
        "--on",
        "--task",
        metavar="TASK",
        help="Development set, or FILE of graded pairs. Default: STS-B:dev with --data-dir, else demo:dev (our own"
        " pairs, no benchmark).",
    ),
]
SentenceField = Annotated[str | None, typer.Option("--text-field", help="Field of the sentence in the file.")]
Corpus = Annotated[str, typer.Option("--corpus", help="Sentences to count idf on: a file, a task or `demo`.")]
BackendName = Annotated[
    str,
    typer.Option(
        "--backend",
        help="What computes the encoder on a processor: torch; openvino, onnx: one graph, made once and kept, whose"
        " vectors are checked; onnx-int8: weights and activations of 8 bits, their loss measured; auto: what pays.",
        rich_help_panel="Runtime",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there under that name.")]


class FieldOptions:
    """A group of options made by ``options_of``."""

    def changes(self) -> dict[str, Any]:
        """Return the fields that were given, lists as tuples."""
        fields = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}  # type: ignore[arg-type]
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        return {name: value for name, value in given.items() if value is not None and value != ()}


Group = TypeVar("Group", bound=FieldOptions)


def options_of(
    described: type, *, panel: str | None = None, flags: Mapping[str, str] | None = None, defaults: bool = False
) -> Callable[[type[Group]], type[Group]]:
    """Decorate a class so that it holds one option for every field of ``described`` that has a help text.

    A field's metadata: ``help``; ``min`` and ``max`` of a number; ``panel`` of the help page. A field that is a tuple
    becomes an option that may be repeated, a bool a pair ``--name/--no-name``.

    Args:
        described: A dataclass of settings.
        panel: Of the fields that name none.
        flags: Field -> how its option is written, where that is not ``--field``: names parted by blanks.
        defaults: The options take the fields' defaults; else None, so that ``changes`` knows what was given.

    Example:
        >>> @dataclass(frozen=True)
        ... class Plan:
        ...     layers: int = dataclasses.field(default=4, metadata={"help": "Layers.", "min": 1})
        >>> @options_of(Plan)
        ... class PlanOptions(FieldOptions):
        ...     pass
        >>> PlanOptions().changes(), PlanOptions(layers=2).changes()
        ({}, {'layers': 2})
    """
    hints = get_type_hints(described)
    fields: list[Any] = []
    for item in dataclasses.fields(described):
        if "help" in item.metadata:
            names = (flags or {}).get(item.name, "").split()
            about = {name: item.metadata[name] for name in ("help", "min", "max") if name in item.metadata}
            about |= {"rich_help_panel": item.metadata.get("panel", panel), "show_default": defaults}
            default = item.default if defaults else None
            fields.append(
                (item.name, Annotated[_option_type(hints[item.name]), typer.Option(*names, **about)], default)
            )

    def make(group: type[Group]) -> type[Group]:
        namespace = {"__module__": group.__module__, "__doc__": group.__doc__}
        return dataclasses.make_dataclass(group.__name__, fields, bases=(group,), namespace=namespace, frozen=True)

    return make


def _option_type(hint: Any) -> Any:
    """Return what the command line parses for a field's type, or None where nothing is given."""
    if get_origin(hint) is tuple:
        return list[get_args(hint)[0]] | None  # type: ignore[misc]
    return hint if type(None) in get_args(hint) else hint | None


@options_of(Recipe, panel=_PANEL, flags={"prompt": "--prompt --template", "transforms": "--transform"})
class RecipeOptions(FieldOptions):
    """Changes of single recipe fields."""


@dataclass(frozen=True)
class RecipeChanges(RecipeOptions):
    """Changes of single recipe fields, and whether the fields left open are the papers'."""

    paper: Annotated[
        bool,
        recipe_option(
            "--paper",
            help="What is left open is the papers': bert-base-uncased, PromptBERT's manual template, their data.",
        ),
    ] = False

    def changes(self) -> dict[str, Any]:
        """Return the recipe fields that were given as single options."""
        fields = {item.name for item in dataclasses.fields(Recipe)}
        return {name: value for name, value in super().changes().items() if name in fields}


@dataclass(frozen=True)
class OneModel:
    """A registry entry or a recipe."""

    model: Annotated[
        str | None, recipe_option("--model", "-m", help="Entry or alias of the registry (`promptcli models list`).")
    ] = None
    recipe: Annotated[
        str | None,
        recipe_option(
            "--recipe", "-r", help="Named recipe (`models list --recipes`), JSON text, or a .json/.toml file."
        ),
    ] = None


@dataclass(frozen=True)
class ModelChoice(RecipeChanges, OneModel):
    """Which encoder: a registry entry or a recipe, and changes of single recipe fields."""


@dataclass(frozen=True)
class Runtime:
    """Where and how the work is done; never changes what a model is."""

    device: Annotated[str, _runtime_option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto"
    dtype: Annotated[
        str,
        _runtime_option(
            help="auto, float32, bfloat16, float16, tf32 (on a GPU). auto: for figures float32, and for causal models"
            " that of their files where the device computes in it; for embed, index and serve bfloat16 where the"
            " hardware has it."
        ),
    ] = "auto"
    threads: Annotated[int | None, _runtime_option(min=1, max=4096, help="Processor threads. Default: all cores.")] = (
        None
    )
    offline: Annotated[bool, _runtime_option("--offline", help="Never use the network.")] = False
    quiet: Annotated[bool, _runtime_option("--quiet", "-q", help="No progress and no notes on stderr.")] = False


Result = TypeVar("Result")


def expand(command: Callable[..., Result]) -> Callable[..., Result]:
    """Replace every parameter whose type is an option group by that group's fields, and put it together at the call."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            groups[name] = hint
            fields = get_type_hints(hint, include_extras=True)
            parameters += [
                inspect.Parameter(
                    item.name, inspect.Parameter.KEYWORD_ONLY, default=item.default, annotation=fields[item.name]
                )
                for item in dataclasses.fields(hint)
            ]
        else:
            parameters.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def call(**given: Any) -> Result:
        for name, group in groups.items():
            given[name] = group(**{item.name: given.pop(item.name) for item in dataclasses.fields(group)})
        return command(**given)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call
