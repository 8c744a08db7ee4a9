"""What a user's choice of model, recipe and single options means: an entry. Knows nothing of the command line."""

from pathlib import Path
from typing import Any

from promptcli.errors import UsageError, unknown
from promptcli.recipe import RECIPES, Recipe
from promptcli.registry.entries import Entry
from promptcli.registry.registry import Registry
from promptcli.settings import BARE

#: The entry where nothing is chosen.
DEFAULT = "mini"


#: Changes that start from the plain recipe where nothing else is chosen: they make another method.
_METHOD = frozenset({"backbone", "prompt", "pooling"})
#: What fitted numbers depend on; the rest may be changed under them.
_FITTED = ("backbone", "prompt", "pooling", "transforms", "denoise")


def resolve(
    registry: Registry, *, model: str | None, recipe: str | None, changes: dict[str, Any], backbone: str = BARE.backbone
) -> Entry:
    """Return the entry that a user's choice names.

    Args:
        registry: Where models are looked up.
        model: An entry or alias.
        recipe: A name of ``RECIPES``, JSON or TOML text, or a ``.json``/``.toml`` file.
        changes: Recipe fields to change. With neither model nor recipe they change the default entry's recipe, or,
            if backbone, prompt or pooling is among them, the plain ``Recipe()``.
        backbone: Stands in for the default backbone where the choice names none (a setting of the user's).

    Returns:
        An entry; where a recipe made it or a change really changes it, it has a name of its own, no scores, and is
        not in the registry.

    Raises:
        UsageError: both are given, no such recipe, or a change that an entry's fitted numbers forbid.
        NotFoundError: no such entry.
    """
    if model is not None and recipe is not None:
        raise UsageError("--model and --recipe exclude each other; give one, and single options such as --pooling")
    if model is not None:
        entry = registry.load(model)
    elif recipe is not None:
        entry = _read_recipe(recipe)
    elif _METHOD & changes.keys() or backbone != BARE.backbone:  # the default entry's head is of its own backbone
        entry = Entry("recipe", Recipe())
    else:
        entry = registry.load(DEFAULT)
    if model is None and entry.recipe.backbone == BARE.backbone:
        changes = {"backbone": backbone, **changes}
    return _changed(entry, changes)


def named(registry: Registry, text: str) -> Entry:
    """Return the entry of a single name: of the registry, a recipe's, or else a backbone's, whose entry has no name.

    Raises:
        UsageError, NotFoundError: see ``resolve``; an unknown backbone is found out when it is loaded.
    """
    if text in registry.names() or text in registry.aliases():
        return registry.load(text)
    if text in RECIPES or text.endswith((".json", ".toml")) or "{" in text or "=" in text:
        return resolve(registry, model=None, recipe=text, changes={})
    return Entry("", Recipe(backbone=text))


def _changed(entry: Entry, changes: dict[str, Any]) -> Entry:
    made = {"period": None, **changes} if "prompt" in changes else changes  # a new prompt brings its own default
    recipe = entry.recipe.replace(**made)
    if recipe.explicit() == entry.recipe.explicit():
        return entry
    fixed = [name for name in _FITTED if getattr(recipe, name) != getattr(entry.recipe, name)]
    if entry.tensors and fixed:
        raise UsageError(
            f"model {entry.name!r} holds numbers fitted for its own recipe, so its {' and '.join(fixed)} cannot be"
            f" changed; fit anew with `promptcli fit`, or give a --recipe"
        )
    changed = [name for name in changes if getattr(recipe, name) != getattr(entry.recipe, name)]
    given = " ".join(f"{name}={getattr(recipe, name)}" for name in changed)
    transfer = None if entry.transfer is None else entry.transfer.replace(**made)
    return Entry(f"{entry.name} {given}", recipe, entry.tensors, entry.provenance, transfer=transfer)


def _read_recipe(text: str) -> Entry:
    if text in RECIPES:
        return Entry(text, RECIPES[text])
    if text.lstrip().startswith("{"):
        return Entry("recipe", Recipe.from_text(text))
    path = Path(text)
    if path.suffix in (".json", ".toml") and path.is_file():
        try:
            content = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, PermissionError) as error:
            raise UsageError(f"recipe file {text!r} cannot be read: {error}") from None
        return Entry(path.stem, Recipe.from_text(content))
    if "=" in text:
        return Entry("recipe", Recipe.from_text(text))
    raise unknown("recipe", text, [*RECIPES, "JSON or TOML text", "a .json or .toml file that is there"])
