"""One registry entry as a folder: recipe, learned tensors, card. Knows nothing of other entries, aliases or locks.

The card is written last and holds the checksums of the other files; a folder without one is no entry.
"""

import datetime
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import promptcli
from promptcli.encoder.recipe import Recipe
from promptcli.errors import CheckFailedError
from promptcli.storage.files import sha256, write_text

if TYPE_CHECKING:
    import torch

RECIPE, TRANSFER, TENSORS, CARD = "recipe.json", "transfer_recipe.json", "tensors.safetensors", "card.json"


@dataclass(frozen=True)
class Entry:
    """A named encoder: its recipe and every learned or fitted number outside the backbone.

    Attributes:
        name: What the registry calls it.
        recipe: The four parts.
        tensors: Learned and fitted numbers, by name.
        provenance: Where it came from, JSON-ready; ``width`` in it, where known, is d of its vectors.
        scores: Figures measured with it, JSON-ready.
        transfer: The recipe of transfer tasks, where it is another one (PromptBERT, supervised).
    """

    name: str
    recipe: Recipe
    tensors: "dict[str, torch.Tensor]" = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    scores: list[dict[str, Any]] = field(default_factory=list)
    transfer: Recipe | None = None


@dataclass(frozen=True)
class Card:
    """What is known of an entry without reading its tensors.

    ``created`` is UTC in ISO form and ``version`` the promptcli that wrote it; both are None where it is shipped.
    """

    name: str
    origin: str
    recipe: Recipe
    provenance: dict[str, Any]
    scores: list[dict[str, Any]]
    tensors: bool
    created: str | None
    version: str | None


def write_entry(folder: Path, entry: Entry) -> None:
    """Write an entry into an empty folder."""
    write_text(folder / RECIPE, entry.recipe.to_json() + "\n")
    if entry.transfer is not None:
        write_text(folder / TRANSFER, entry.transfer.to_json() + "\n")
    if entry.tensors:
        from safetensors.torch import save_file

        save_file({name: tensor.cpu().contiguous() for name, tensor in entry.tensors.items()}, folder / TENSORS)
    card = {
        "schema_version": 1,
        "name": entry.name,
        "created": utc_now(),
        "promptcli": promptcli.__version__,
        "provenance": entry.provenance,
        "scores": entry.scores,
        "sha256": {path.name: sha256(path) for path in sorted(folder.iterdir())},
    }
    write_card(folder, card)


def read_entry(folder: Path) -> Entry:
    """Read an entry, checking every file.

    Raises:
        CheckFailedError: a file is missing, or not the one that was saved.
    """
    card = read_card(folder)
    _check(folder, card)
    tensors: dict[str, torch.Tensor] = {}
    if TENSORS in card["sha256"]:
        from safetensors.torch import load_file

        tensors = load_file(folder / TENSORS)
    transfer = _recipe(folder, TRANSFER) if TRANSFER in card["sha256"] else None
    return Entry(folder.name, _recipe(folder, RECIPE), tensors, card["provenance"], card["scores"], transfer)


def describe(folder: Path) -> Card:
    """Read an entry's card and recipe.

    Raises:
        CheckFailedError: see ``read_entry``; tensors are not looked at.
    """
    card = read_card(folder)
    _check(folder, card, only=RECIPE)
    return Card(
        name=folder.name,
        origin="saved",
        recipe=_recipe(folder, RECIPE),
        provenance=card["provenance"],
        scores=card["scores"],
        tensors=TENSORS in card["sha256"],
        created=card["created"],
        version=card["promptcli"],
    )


def is_whole(folder: Path) -> bool:
    """Return whether an entry was saved to its end."""
    return (folder / CARD).is_file()


def read_card(folder: Path) -> dict[str, Any]:
    """Return the content of an entry's card.

    Raises:
        CheckFailedError: it is damaged.
    """
    try:
        card: dict[str, Any] = json.loads((folder / CARD).read_text(encoding="utf-8"))
        (card["created"], card["promptcli"], card["provenance"] | {}, card["scores"] + [], card["sha256"][RECIPE])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(folder, CARD, repr(error)) from None
    return card


def write_card(folder: Path, card: dict[str, Any]) -> None:
    """Write an entry's card, whole or not at all."""
    write_text(folder / CARD, json.dumps(card, ensure_ascii=False, indent=2) + "\n")


def utc_now() -> str:
    """Return the time in UTC, ISO form, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _check(folder: Path, card: dict[str, Any], only: str | None = None) -> None:
    for name, digest in card["sha256"].items():
        if only not in (None, name):
            continue
        path = folder / Path(name).name
        if not path.is_file():
            raise _damaged(folder, name, "it is missing")
        if sha256(path) != digest:
            raise _damaged(folder, name, "its sha256 differs from the card's")


def _recipe(folder: Path, name: str) -> Recipe:
    return Recipe.from_text((folder / name).read_text(encoding="utf-8"))


def _damaged(folder: Path, name: str, reason: str) -> CheckFailedError:
    return CheckFailedError(
        f"model {folder.name!r} is damaged: {name} in {folder}: {reason};"
        f" save it again, or `promptcli models remove {folder.name}`"
    )
