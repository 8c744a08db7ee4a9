"""Named encoders: those that come with promptcli, those saved in a folder, and aliases.

Knows nothing of how an entry's folder looks inside, nor of the environment.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import promptcli
from promptcli.backbones.loading import portable_name
from promptcli.errors import NotFoundError, PromptcliError, UsageError, did_you_mean
from promptcli.models.entries import (
    MANIFEST,
    Card,
    Entry,
    append_scores,
    describe,
    is_whole,
    read_entry,
    with_backbone,
    write_entry,
)
from promptcli.recipe import Recipe
from promptcli.settings import BARE, program_folder
from promptcli.storage.documents import read_document, to_json
from promptcli.storage.files import delete, hold, is_temporary, remove_folder, remove_leftovers, write_text
from promptcli.storage.parts import place_folder, read_parts

if TYPE_CHECKING:
    from promptcli.encoder.encoder import Encoder

__all__ = ["SHIPPED", "Card", "Entry", "Registry", "home", "load_encoder", "portable"]

#: Entries that come with promptcli; read-only. ``mini`` is trained by supervised PromptBERT; ``mini-static`` is the
#: fast tier: word embeddings alone, whitened (docs/transforms.md).
SHIPPED = ("mini", "mini-static")
_SHIPPED_FOLDER = Path(promptcli.__file__).parent / "shipped"

_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,100}")


def home(environ: Mapping[str, str]) -> Path:
    """Return the registry's folder: ``PROMPTCLI_HOME``, else promptcli's folder in the platform's data folder."""
    return program_folder(environ, "user_data_dir")


class Registry:
    """The entries in ``home``, and the shipped ones.

    Every write holds a lock and takes effect by one rename, so several processes may write at once; readers need no
    lock. Names are ``[A-Za-z0-9._-]``, up to 100 characters, not starting with a dot.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._models = home / "models"

    def names(self) -> list[str]:
        """Return the names of all entries, the shipped ones first."""
        saved = (path.name for path in self._models.glob("*") if _NAME.fullmatch(path.name) and is_whole(path))
        return [*SHIPPED, *sorted(set(saved).difference(SHIPPED))]

    def knows(self, name: str) -> bool:
        """Return whether an entry or an alias has that name."""
        return name in self.names() or name in self.aliases()

    def load(self, name: str) -> Entry:
        """Return an entry, its files checked; ``name`` may be an alias.

        Raises:
            NotFoundError: no such entry.
            CheckFailedError: a file of it is not the one that was saved.
        """
        folder = self._folder(self._known(name))
        return read_parts(folder / MANIFEST, lambda: read_entry(folder))

    def card(self, name: str) -> Card:
        """Return what is known of an entry without its tensors; ``name`` may be an alias.

        Raises:
            NotFoundError: no such entry.
            CheckFailedError: its card or recipe is damaged.
        """
        name = self._known(name)
        folder = self._folder(name)
        card = read_parts(folder / MANIFEST, lambda: describe(folder))
        return dataclasses.replace(card, origin="shipped") if name in SHIPPED else card

    def check_free(self, name: str, *, force: bool = False) -> None:
        """Refuse a name that ``save`` would refuse; for asking before the work.

        Raises:
            UsageError: the name is taken (unless ``force``), shipped, an alias, or no name.
        """
        _check_name(name)
        if name in SHIPPED:
            raise UsageError(f"model {name!r} is shipped with promptcli and is not replaced; choose another name")
        if name in self.aliases():
            raise UsageError(f"{name!r} is an alias; choose another name, or `promptcli models remove {name}` first")
        if is_whole(self._models / name) and not force:
            raise UsageError(f"model {name!r} is there already; give another `name`, or `force`")

    def run_folder(self, name: str) -> Path:
        """Return the folder of an unfinished training run for an entry of that name."""
        return self._home / "runs" / name

    @property
    def graphs_folder(self) -> Path:
        """The folder of the graphs that other backends run."""
        return self._home / "cache" / "graphs"

    def imported_folder(self, name: str) -> Path:
        """Return the folder of a backbone that comes with an entry of that name, less the hash of its content."""
        return self._home / "imported" / name

    def save(self, entry: Entry, *, force: bool = False, backbone: Path | None = None) -> Entry:
        """Save an entry, whole or not at all; return it as it is saved.

        Args:
            entry: Its name must be free, unless ``force``.
            force: Replace an entry of that name.
            backbone: The folder of a backbone that comes with it, which is moved; it is deleted when no entry is left
                that names it.

        Raises:
            UsageError: see ``check_free``.
        """
        with self._locked():
            self.check_free(entry.name, force=force)
            if backbone is not None:
                placed = str(place_folder(backbone, self.imported_folder(entry.name)))
                about = {**entry.provenance, "backbone": placed}
                entry = dataclasses.replace(with_backbone(entry, placed), provenance=about)
            transfer = None if entry.transfer is None else portable(entry.transfer)
            entry = dataclasses.replace(entry, recipe=portable(entry.recipe), transfer=transfer)
            write_entry(self._models / entry.name, entry)
        return entry

    def remove(self, name: str) -> None:
        """Delete an entry and its aliases, or only an alias.

        Raises:
            NotFoundError: no such entry or alias.
            UsageError: the entry is shipped.
        """
        with self._locked():
            aliases = self.aliases()
            if name not in aliases:
                self._saved(name, "removed")
            self._write_aliases({alias: of for alias, of in aliases.items() if name not in (alias, of)})
            if name not in aliases:
                remove_folder(self._models / name)

    def alias(self, alias: str, name: str) -> None:
        """Let ``alias`` stand for an entry; an alias that is there already is set again.

        Raises:
            NotFoundError: no such entry.
            UsageError: ``alias`` is an entry's name, or no name.
        """
        _check_name(alias)
        with self._locked():
            if alias in self.names():
                raise UsageError(f"{alias!r} is a model's name, so it cannot be an alias; choose another")
            self._write_aliases({**self.aliases(), alias: self._known(name)})

    def aliases(self) -> dict[str, str]:
        """Return the entry that each alias stands for.

        Raises:
            CheckFailedError: the file of aliases is damaged.
        """
        path = self._home / "aliases.json"
        if not path.exists():
            return {}
        return read_document(path, dict[str, str], hint="delete it and set the aliases again")

    def add_scores(self, name: str, scores: Iterable[dict[str, Any]]) -> None:
        """Append figures to an entry's card; ``name`` may be an alias.

        Raises:
            NotFoundError: no such entry.
            UsageError: the entry is shipped.
        """
        with self._locked():
            name = self.aliases().get(name, name)
            self._saved(name, "changed")
            append_scores(self._models / name, list(scores))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock; first what killed processes left goes, at the end backbones without an entry go."""
        self._models.mkdir(parents=True, exist_ok=True)
        with hold(self._home / ".lock"):
            for path in self._models.iterdir():
                if is_temporary(path.name):
                    delete(path)
            try:
                yield
            finally:
                self._sweep_backbones()

    def _sweep_backbones(self) -> None:
        """Delete backbones that no entry names; none where an entry cannot be read."""
        folder = self._home / "imported"
        with suppress(OSError, PromptcliError):
            if folder.is_dir():
                remove_leftovers(folder)
                entries = [describe(path) for path in self._models.iterdir() if is_whole(path)]
                named = {os.path.realpath(entry.recipe.backbone) for entry in entries}
                for path in folder.iterdir():
                    if not is_temporary(path.name) and os.path.realpath(path) not in named:
                        remove_folder(path)

    def _folder(self, name: str) -> Path:
        return (_SHIPPED_FOLDER if name in SHIPPED else self._models) / name

    def _known(self, name: str) -> str:
        """Return the name of an entry, an alias followed."""
        found = self.aliases().get(name, name)
        names = self.names()
        if found not in names:
            near = did_you_mean(name, names)
            raise NotFoundError(f"no model {name!r}; there are: {', '.join(names)}; see `promptcli models list`{near}")
        return found

    def _saved(self, name: str, done: str) -> None:
        """Refuse what is no saved entry."""
        if self._known(name) in SHIPPED:
            raise UsageError(f"model {name!r} is shipped with promptcli and cannot be {done}")

    def _write_aliases(self, aliases: dict[str, str]) -> None:
        if aliases != self.aliases():
            write_text(self._home / "aliases.json", to_json(aliases))


def load_encoder(entry: Entry, **options: Any) -> "Encoder":
    """Return the encoder of an entry; options: see ``promptcli.encoder.encoder.build_encoder``."""
    from promptcli.encoder.encoder import build_encoder

    return build_encoder(entry.recipe, tensors=entry.tensors, prompts=entry.prompts, **options)


def portable(recipe: Recipe) -> Recipe:
    """Return a recipe that means the same from every folder: a backbone's local folder or file becomes absolute."""
    if recipe.backbone == BARE.backbone:
        return recipe
    return recipe.replace(backbone=portable_name(recipe.backbone))


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name for a model; use up to 100 of A-Z a-z 0-9 . _ - and no dot at the start")
