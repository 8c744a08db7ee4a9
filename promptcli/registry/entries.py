"""One registry entry as a folder: recipe, learned tensors, card. Knows nothing of other entries, aliases or locks.

The card is the manifest: it is written last and names the other files with their checksums; a folder without one is no
entry. See ``promptcli.storage.parts``.
"""

import datetime
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import promptcli
from promptcli.errors import CheckFailedError, UsageError
from promptcli.recipe import Recipe
from promptcli.storage.documents import read_document, to_json
from promptcli.storage.files import write_text
from promptcli.storage.parts import check_part, part_named, replace_parts

if TYPE_CHECKING:
    import torch

RECIPE, TRANSFER, TENSORS, CARD = "recipe.json", "transfer_recipe.json", "tensors.safetensors", "card.json"


@dataclass(frozen=True)
class Entry:
    """A named encoder: its recipe and every learned or fitted number outside the backbone."""

    name: str
    recipe: Recipe
    tensors: "dict[str, torch.Tensor]" = field(default_factory=dict)
    #: Where it came from, JSON-ready; ``width`` in it, where known, is d of its vectors.
    provenance: dict[str, Any] = field(default_factory=dict)
    scores: list[dict[str, Any]] = field(default_factory=list)  #: Figures measured with it, JSON-ready.
    transfer: Recipe | None = None  #: Of transfer tasks, where it is another one (PromptBERT, supervised).


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


@dataclass(frozen=True)
class CardDocument:
    """The content of ``card.json``."""

    created: str
    promptcli: str
    provenance: dict[str, Any]
    scores: list[dict[str, Any]]
    sha256: dict[str, str]  #: Of each part, by file name.
    name: str = ""
    schema_version: int = 2  #: 1: the parts have fixed names.


def write_entry(folder: Path, entry: Entry) -> None:
    """Write an entry in the place of the one in ``folder``, or anew. To be used with the registry's lock held."""
    with replace_parts(folder, CARD, owns=lambda name: True) as writer:
        for name, recipe in ((RECIPE, entry.recipe), (TRANSFER, entry.transfer)):
            if recipe is not None:
                with writer.part(name) as path:
                    path.write_text(recipe.to_json() + "\n", encoding="utf-8")
        if entry.tensors:
            from promptcli.storage.tensors import save_tensors

            with writer.part(TENSORS) as path:
                save_tensors(entry.tensors, path)
        card = CardDocument(
            utc_now(), promptcli.__version__, entry.provenance, entry.scores, dict(writer.sums), entry.name
        )
        writer.commit(to_json(card))


def read_entry(folder: Path) -> Entry:
    """Read an entry, checking every file.

    Raises:
        CheckFailedError: a file is missing, or not the one that was saved.
    """
    card = _read_card(folder)
    path = _part(folder, card, TENSORS)
    tensors: dict[str, torch.Tensor] = {}
    if path is not None:
        from promptcli.storage.tensors import load_tensors

        tensors = load_tensors(path, mend=_mend(folder))
        for key, tensor in tensors.items():
            if tensor.is_floating_point() and not tensor.float().isfinite().all():
                raise _damaged(folder, path.name, f"its {key} holds numbers that are not finite")
    recipe = _recipe(folder, card, RECIPE)
    transfer = _recipe(folder, card, TRANSFER) if part_named(card.sha256, TRANSFER) else None
    return Entry(folder.name, recipe, tensors, card.provenance, card.scores, transfer)


def describe(folder: Path) -> Card:
    """Read an entry's card and recipe.

    Raises:
        CheckFailedError: see ``read_entry``; tensors are not looked at.
    """
    card = _read_card(folder)
    return Card(
        name=folder.name,
        origin="saved",
        recipe=_recipe(folder, card, RECIPE),
        provenance=card.provenance,
        scores=card.scores,
        tensors=part_named(card.sha256, TENSORS) is not None,
        created=card.created,
        version=card.promptcli,
    )


def is_whole(folder: Path) -> bool:
    """Return whether an entry was saved to its end."""
    return (folder / CARD).is_file()


def append_scores(folder: Path, scores: list[dict[str, Any]]) -> None:
    """Add figures to an entry's card. To be used with the registry's lock held.

    Raises:
        CheckFailedError: the card is damaged.
    """
    card = _read_card(folder)
    write_text(folder / CARD, to_json(replace(card, scores=[*card.scores, *scores])))


def utc_now() -> str:
    """Return the time in UTC, ISO form, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _read_card(folder: Path) -> CardDocument:
    return read_document(folder / CARD, CardDocument, mend=_mend(folder))


def _part(folder: Path, card: CardDocument, name: str) -> Path | None:
    file = part_named(card.sha256, name)
    if file is None:
        return None
    return check_part(folder, file, card.sha256[file], lambda *found: _damaged(folder, *found))


def _recipe(folder: Path, card: CardDocument, name: str) -> Recipe:
    path = _part(folder, card, name)
    if path is None:
        raise _damaged(folder, CARD, f"it names no {name}")
    try:
        return Recipe.from_text(path.read_text(encoding="utf-8"))
    except (UsageError, UnicodeDecodeError) as error:
        raise _damaged(folder, path.name, str(error)) from None


def _damaged(folder: Path, name: str, reason: str) -> CheckFailedError:
    return CheckFailedError(f"model {folder.name!r} is damaged: {name} in {folder}: {reason}; {_mend(folder)}")


def _mend(folder: Path) -> str:
    return f"save it again, or `promptcli models remove {folder.name}`"
