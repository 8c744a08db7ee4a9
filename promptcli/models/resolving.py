"""The entry that a choice of model, recipe and single options means. It does not depend on the command line."""

import os
from pathlib import Path
from typing import Any

from promptcli.backbones.loading import words_only
from promptcli.backbones.pretrained import SHIPPED as BACKBONES
from promptcli.errors import NotFoundError, UsageError, did_you_mean, unknown
from promptcli.models.entries import Entry
from promptcli.models.reading import PREFIX_ADAPTER, read_model
from promptcli.models.registry import Registry
from promptcli.notes import is_offline, note, offline
from promptcli.recipe import RECIPES, Choice, Recipe
from promptcli.settings import BARE

#: The entry if nothing is chosen.
DEFAULT = "mini"
#: A word as similar as this (difflib) to a known name is taken for it, mistyped, and the hub is not asked.
_MISTYPED = 0.75
#: Fields that fitted numbers depend on. If no model is chosen, a change of these starts from the plain recipe.
_FITTED = ("backbone", "prompt", "pooling", "transforms", "denoise")


def resolve(registry: Registry, choice: Choice) -> Entry:
    """Return the entry of a choice.

    Without a model, changes apply to the default entry, or, if its learned numbers depend on one of them, to the plain
    ``Recipe()``. A recipe that does not name a backbone has the choice's. A changed entry has a name of its own, no
    scores, and is not in the registry.
    """
    changes, of_recipe = dict(choice.changes), True
    if choice.model is None:
        # the default entry's head belongs to its own backbone
        plain = bool(changes.keys() & set(_FITTED)) or choice.backbone != BARE.backbone
        entry = Entry("recipe", Recipe()) if plain else registry.load(DEFAULT)
    else:
        entry = named(registry, choice.model)
        of_recipe = is_recipe(registry, choice.model)
    if of_recipe and entry.recipe.backbone == BARE.backbone:
        changes = {"backbone": choice.backbone, **changes}
    return changed(entry, changes)


def named(registry: Registry, text: str) -> Entry:
    """Return the entry of a name: of a model, a folder, a recipe, or on the hub."""
    is_folder = os.path.isdir(text)
    if registry.knows(text):
        if is_folder:
            note(f"{text!r} is a model of the registry and a folder here; taken: the model (the folder: ./{text})")
        return registry.load(text)
    if is_recipe(registry, text):
        return _read_recipe(text)
    if words_only(text):
        return Entry(text, RECIPES["static-avg"].replace(backbone=text))
    known = [*registry.names(), *RECIPES]
    near = did_you_mean(text, [*known, *registry.aliases(), *BACKBONES], likeness=_MISTYPED)
    mistyped = near if not {"/", "@"} & set(text) and not is_offline() else ""
    try:
        with offline(bool(mistyped)):
            return read_model(text)
    except NotFoundError as error:
        if is_folder or "/" in text:
            raise
        why = "" if mistyped else f" ({str(error).partition(';')[0]})"
        remedy = f"{mistyped} On the hub: {text}@main" if mistyped else f"; or give a folder, or a hub id{near}"
        raise NotFoundError(f"nothing is called {text!r}{why}; there are: {', '.join(known)}{remedy}") from None


def is_recipe(registry: Registry, text: str) -> bool:
    """Return whether a text is a recipe: its name, JSON or TOML, or a file of it."""
    if registry.knows(text) or os.path.isdir(text):
        return False
    return text in RECIPES or text.endswith((".json", ".toml")) or "{" in text or "=" in text


def changed(entry: Entry, changes: dict[str, Any]) -> Entry:
    """Return an entry with fields of its recipe changed; refuse a change that its fitted numbers forbid."""
    fields = {"period": None, **changes} if "prompt" in changes else changes  # a new prompt has its own default
    recipe = entry.recipe.replace(**fields)
    if recipe.explicit() == entry.recipe.explicit():
        return entry
    differing = [field for field in vars(recipe) if getattr(recipe, field) != getattr(entry.recipe, field)]
    adapter = entry.provenance.get("loaded", {}).get("kind") == PREFIX_ADAPTER  # its base may be anywhere
    forbidden = [name for name in _FITTED if name in differing and not (adapter and name == "backbone")]
    if entry.tensors and forbidden:
        raise UsageError(
            f"model {entry.name!r} holds numbers fitted for its own recipe, so its {' and '.join(forbidden)} cannot be"
            f" changed; fit again with `promptcli fit`, or name a recipe"
        )
    name = " ".join([entry.name, *(f"{field}={getattr(recipe, field)}" for field in changes if field in differing)])
    transfer = None if entry.transfer is None else entry.transfer.replace(**fields)
    return Entry(name, recipe, entry.tensors, entry.provenance, transfer=transfer, prompts=entry.prompts)


def _read_recipe(text: str) -> Entry:
    if text in RECIPES:
        return Entry(text, RECIPES[text])
    path = Path(text)
    if not text.lstrip().startswith("{") and path.suffix in (".json", ".toml") and os.path.isfile(path):
        try:
            return Entry(path.stem, Recipe.from_text(path.read_text(encoding="utf-8")))
        except (UnicodeDecodeError, PermissionError) as error:
            raise UsageError(f"recipe file {text!r} cannot be read: {error}") from None
    if "{" in text or "=" in text:
        return Entry("recipe", Recipe.from_text(text))
    raise unknown("recipe", text, [*RECIPES, "JSON or TOML text", "an existing .json or .toml file"])
