"""Options that several commands share, each group a dataclass; ``expand`` turns a group into single options.

A command takes ``choice: ModelChoice`` and ``runtime: Runtime`` as parameters; the command line sees their fields.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from promptcli.encoder.recipe import Recipe

_PANEL = "Model and recipe"


def _recipe_option(field: str, *names: str) -> Any:
    """Return the option of a recipe field: its help is the field's own."""
    metadata = {item.name: item.metadata for item in dataclasses.fields(Recipe)}[field]
    return typer.Option(*names, help=metadata["help"], rich_help_panel=_PANEL, show_default=False)


@dataclass(frozen=True)
class RecipeChanges:
    """Changes of single recipe fields."""

    backbone: Annotated[str | None, _recipe_option("backbone", "--backbone")] = None
    prompt: Annotated[str | None, _recipe_option("prompt", "--prompt", "--template")] = None
    period: Annotated[bool | None, _recipe_option("period", "--period/--no-period")] = None
    pooling: Annotated[str | None, _recipe_option("pooling", "--pooling")] = None
    transform: Annotated[list[str] | None, _recipe_option("transforms", "--transform")] = None
    denoise: Annotated[str | None, _recipe_option("denoise", "--denoise")] = None
    max_length: Annotated[int | None, _recipe_option("max_length", "--max-length")] = None
    paper: Annotated[
        bool,
        typer.Option(
            "--paper",
            help="What is left open is the papers': bert-base-uncased, PromptBERT's manual template, their data.",
            rich_help_panel=_PANEL,
        ),
    ] = False

    def changes(self) -> dict[str, Any]:
        """Return the recipe fields that were given as single options."""
        given = {
            name: getattr(self, name) for name in ("backbone", "prompt", "period", "pooling", "denoise", "max_length")
        }
        if self.transform:
            given["transforms"] = tuple(self.transform)
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class OneModel:
    """A registry entry or a recipe."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="Entry or alias of the registry (`promptcli models list`).", rich_help_panel=_PANEL
        ),
    ] = None
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            "-r",
            help="Named recipe (`promptcli recipes`), JSON text, or a .json/.toml file.",
            rich_help_panel=_PANEL,
        ),
    ] = None


@dataclass(frozen=True)
class ModelChoice(RecipeChanges, OneModel):
    """Which encoder: a registry entry or a recipe, and changes of single recipe fields."""


@dataclass(frozen=True)
class Runtime:
    """Where and how the work is done; never changes what a model is."""

    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.", rich_help_panel="Runtime")] = "auto"
    dtype: Annotated[
        str,
        typer.Option(
            help="auto, float32, bfloat16. auto: float32 for figures; for embed and index bfloat16 where the processor"
            " has it.",
            rich_help_panel="Runtime",
        ),
    ] = "auto"
    threads: Annotated[
        int | None, typer.Option(min=1, help="Processor threads. Default: all cores.", rich_help_panel="Runtime")
    ] = None
    offline: Annotated[bool, typer.Option("--offline", help="Never use the network.", rich_help_panel="Runtime")] = (
        False
    )
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.", rich_help_panel="Runtime")
    ] = False


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
