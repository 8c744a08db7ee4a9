"""What a user's choice of model, recipe and single options means: an entry. Knows nothing of the command line."""

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

#: The entry where nothing is chosen.
DEFAULT = "mini"
#: A word that is so like a name we know is taken for it, mistyped, before the hub is asked.
_MISTYPED = 0.75

#: What fitted numbers depend on; the rest may be changed under them. Where nothing else is chosen, a change of these
#: starts from the plain recipe: it makes another method.
_FITTED = ("backbone", "prompt", "pooling", "transforms", "denoise")


def resolve(registry: Registry, choice: Choice) -> Entry:
    """Return the entry that a choice means.

    Changes of no model change the default entry's recipe, or, if one that its learned numbers depend on is among them,
    the plain ``Recipe()``. A recipe stands on the choice's backbone where it names none.

    Returns:
        An entry; where a recipe made it or a change really changes it, it has a name of its own, no scores, and is
        not in the registry.

    Raises:
        UsageError: No such recipe, or a change that an entry's fitted numbers forbid.
        NotFoundError: Nothing is called so; with what there is.
    """
    changes, of_recipe = dict(choice.changes), True
    if choice.model is None:
        # the default entry's head is of its own backbone
        plain = bool(changes.keys() & set(_FITTED)) or choice.backbone != BARE.backbone
        entry = Entry("recipe", Recipe()) if plain else registry.load(DEFAULT)
    else:
        entry = named(registry, choice.model)
        of_recipe = is_recipe(registry, choice.model)
    if of_recipe and entry.recipe.backbone == BARE.backbone:
        changes = {"backbone": choice.backbone, **changes}
    return changed(entry, changes)


def named(registry: Registry, text: str) -> Entry:
    """Return the entry of a single name: a model's, a folder's, a recipe's, or a hub id's.

    Raises:
        UsageError: See ``resolve``; or a folder that cannot be read faithfully.
        NotFoundError: Nothing is called so; with what there is.
    """
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
    like = did_you_mean(text, [*known, *registry.aliases(), *BACKBONES], likeness=_MISTYPED)
    mistyped = like if not {"/", "@"} & set(text) and not is_offline() else ""
    try:
        with offline(bool(mistyped)):
            return read_model(text)
    except NotFoundError as error:
        if is_folder or "/" in text:
            raise
        why = "" if mistyped else f" ({str(error).partition(';')[0]})"
        or_give = f"{mistyped} On the hub: {text}@main" if mistyped else f"; or give a folder, or a hub id{like}"
        raise NotFoundError(f"nothing is called {text!r}{why}; there are: {', '.join(known)}{or_give}") from None


def is_recipe(registry: Registry, text: str) -> bool:
    """Return whether a word is a recipe: its name, JSON or TOML text, or a file of it."""
    if registry.knows(text) or os.path.isdir(text):
        return False
    return text in RECIPES or text.endswith((".json", ".toml")) or "{" in text or "=" in text


def changed(entry: Entry, changes: dict[str, Any]) -> Entry:
    """Return an entry with fields of its recipe changed.

    Raises:
        UsageError: A change that the entry's fitted numbers forbid.
    """
    made = {"period": None, **changes} if "prompt" in changes else changes  # a new prompt brings its own default
    recipe = entry.recipe.replace(**made)
    if recipe.explicit() == entry.recipe.explicit():
        return entry
    adapter = entry.provenance.get("loaded", {}).get("kind") == PREFIX_ADAPTER  # its base may stand anywhere
    fixed = [name for name in _FITTED if not (adapter and name == "backbone")]
    fixed = [name for name in fixed if getattr(recipe, name) != getattr(entry.recipe, name)]
    if entry.tensors and fixed:
        raise UsageError(
            f"model {entry.name!r} holds numbers fitted for its own recipe, so its {' and '.join(fixed)} cannot be"
            f" changed; fit again with `promptcli fit`, or name a recipe"
        )
    given_fields = [name for name in changes if getattr(recipe, name) != getattr(entry.recipe, name)]
    given = " ".join(f"{name}={getattr(recipe, name)}" for name in given_fields)
    transfer = None if entry.transfer is None else entry.transfer.replace(**made)
    return Entry(
        f"{entry.name} {given}", recipe, entry.tensors, entry.provenance, transfer=transfer, prompts=entry.prompts
    )


def _read_recipe(text: str) -> Entry:
    if text in RECIPES:
        return Entry(text, RECIPES[text])
    if text.lstrip().startswith("{"):
        return Entry("recipe", Recipe.from_text(text))
    path = Path(text)
    if path.suffix in (".json", ".toml") and os.path.isfile(path):
        try:
            content = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, PermissionError) as error:
            raise UsageError(f"recipe file {text!r} cannot be read: {error}") from None
        return Entry(path.stem, Recipe.from_text(content))
    if "=" in text:
        return Entry("recipe", Recipe.from_text(text))
    raise unknown("recipe", text, [*RECIPES, "JSON or TOML text", "a .json or .toml file that is there"])
