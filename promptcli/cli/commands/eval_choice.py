"""Which encoders `eval` scores and what each is called: options to entries. Part of the entrance."""

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from promptcli.cli.console import note
from promptcli.cli.opening import default_backbone, open_entries
from promptcli.cli.options import RecipeChanges, Runtime, recipe_option
from promptcli.errors import NotFoundError, UsageError, WrongKindError
from promptcli.recipe import RECIPES

if TYPE_CHECKING:
    from promptcli.data.tasks import Loaded
    from promptcli.encoder.encoder import Encoder
    from promptcli.evaluation.scores import Label
    from promptcli.registry.registry import Entry, Registry

#: Changes that leave a named recipe what it is, so that all of them can be scored with it.
_NEUTRAL_CHANGES = {"backbone", "max_length"}


def recipes_option(default: str) -> Any:
    """Return the option of several recipes; ``default``: what is meant where no model is named either."""
    return recipe_option(
        "--recipe",
        "-r",
        help=f"Named recipe, JSON text, or a .json/.toml file; repeatable. Default, without --model: {default}.",
    )


@dataclass(frozen=True)
class Models:
    """Registry entries and recipes, as many as wanted."""

    model: Annotated[
        list[str] | None,
        recipe_option("--model", "-m", help="Model of the registry, folder or hub id; repeatable."),
    ] = None
    recipe: Annotated[
        list[str] | None,
        recipes_option("every named recipe that needs no fitting; for other than graded pairs mini"),
    ] = None


@dataclass(frozen=True)
class EvalChoice(RecipeChanges, Models):
    """Which encoders; changes of single recipe fields apply to every one."""

    def with_words(self, words: "Sequence[str]") -> "EvalChoice":
        """Return the choice with names that may be of recipes or of models."""
        found: dict[bool, list[str]] = {True: [*(self.recipe or [])], False: [*(self.model or [])]}
        for word in words:
            found[word in RECIPES or word.endswith((".json", ".toml")) or "{" in word].append(word)
        return dataclasses.replace(self, recipe=found[True] or None, model=found[False] or None)


@dataclass(frozen=True)
class Candidate:
    """An encoder to score and what to call it."""

    entry: "Entry"
    label: "Label"
    saved_as: str | None = None  #: the registry entry it was given as, if it was


def report_missing(loaded: "Loaded[Any]") -> None:
    """Name the tasks that are not there.

    Raises:
        NotFoundError: None is.
    """
    if not loaded.tasks:
        raise NotFoundError(f"no task is there; {next(iter(loaded.missing.values()))}")
    for label, reason in loaded.missing.items():
        note(f"{label} is missing: {reason}")


def is_bare(choice: EvalChoice) -> bool:
    """Return whether no encoder is named, so that every named recipe is scored."""
    return not choice.model and not choice.recipe and choice.changes().keys() <= _NEUTRAL_CHANGES


def find_candidates(registry: "Registry", choice: EvalChoice, *, bare: Collection[str] = RECIPES) -> "list[Candidate]":
    """Return what the options name, each once; nothing named means the recipes ``bare``, or the default entry."""
    given: list[tuple[str | None, str | None]] = [(name, None) for name in choice.model or []]
    given += [(None, name) for name in (bare if is_bare(choice) else choice.recipe or [])]
    backbone = default_backbone(paper=choice.paper)
    found = [_resolve(registry, model, recipe, choice.changes(), backbone) for model, recipe in given or [(None, None)]]
    return list({candidate.label: candidate for candidate in found}.values())


def _resolve(
    registry: "Registry", model: str | None, recipe: str | None, changes: dict[str, Any], backbone: str
) -> Candidate:
    from promptcli.evaluation.scores import Label, recipe_name
    from promptcli.registry.resolving import resolve

    entry = resolve(registry, model=model, recipe=recipe, changes=changes, backbone=backbone)
    if model is None:
        return Candidate(entry, Label(entry.recipe.backbone, recipe_name(entry.recipe)))
    return Candidate(entry, Label(model, recipe_name(entry.recipe)), saved_as=entry.name)


def open_candidates(
    candidates: "Sequence[Candidate]", runtime: Runtime, *, bare: bool
) -> "tuple[list[Encoder], list[Candidate]]":
    """Return the encoders and whose they are; where none was named those are left out, by name, that cannot be made."""
    left_out: dict[int, UsageError] = {}

    def refused(entry: "Entry", error: UsageError) -> None:
        left_out[id(entry)] = error

    encoders = open_entries([one.entry for one in candidates], runtime, refused=refused if bare else None)
    if candidates and not encoders:
        raise next(iter(left_out.values()))
    for candidate in candidates:
        if not isinstance(left_out.get(id(candidate.entry)), WrongKindError | None):
            note(f"{candidate.label.recipe} is left out: {left_out[id(candidate.entry)]}")
    return encoders, [candidate for candidate in candidates if id(candidate.entry) not in left_out]


def find_baseline(registry: "Registry", name: str, choice: EvalChoice) -> Candidate:
    """Return the encoder to compare with; of the changes only the neutral ones apply to it."""
    backbone = default_backbone(paper=choice.paper)
    neutral = {key: value for key, value in choice.changes().items() if key in _NEUTRAL_CHANGES}
    if name in registry.names() or name in registry.aliases():
        return _resolve(registry, name, None, neutral, backbone)
    return _resolve(registry, None, name, neutral, backbone)


def check_savable(registry: "Registry", candidates: "Sequence[Candidate]") -> None:
    """Refuse before anything is scored what could not be stored afterwards."""
    for candidate in candidates:
        name = candidate.saved_as
        if name is not None and name not in registry.names():
            raise UsageError(f"--save: {candidate.label.model} with changed fields is no registry entry; leave out one")
        if name is not None:
            registry.add_scores(name, [])
