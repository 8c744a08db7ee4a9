"""Named encoders: those shipped with promptcli, and those saved in a folder of entries."""

import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from promptcli.backbones.names import SHIPPED_FOLDER, portable_name
from promptcli.errors import NotFoundError, UsageError, did_you_mean
from promptcli.models import entries
from promptcli.models.entries import BACKBONE, MODEL_MANIFEST, TENSORS, Entry
from promptcli.recipe import RECIPES, Recipe
from promptcli.settings import ANOTHER_HOME, BARE
from promptcli.storage.files import (
    is_writable,
    remove_folder,
    remove_leftovers,
    temporary_folder,
)
from promptcli.storage.folders import (
    folders_with,
    link_file,
    list_files,
    read_folder,
    write_folder,
)
from promptcli.storage.locks import hold

#: Read-only. ``mini`` is distilled from two teachers; ``mini-static`` has word vectors, and so has
#: ``mini-multi``, of eleven languages.
SHIPPED_MODELS = ("mini", "mini-static", "mini-multi")

#: Recipes that are also methods: a model that is trained has its method's name by default.
_ALSO_METHODS = ("prompteol",)
_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,100}")


class Registry:
    """The entries in ``home``, and the shipped ones.

    Several processes may write at once: they take turns by a lock.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._models = home / "models"

    def names(self) -> list[str]:
        saved = folders_with(MODEL_MANIFEST, self._models) if self._models.is_dir() else ()
        own = {name for name in saved if _NAME.fullmatch(name)}.difference(SHIPPED_MODELS)
        return [*SHIPPED_MODELS, *sorted(own)]

    def load(self, name: str, read: Callable[[Path], Entry] = entries.read_entry) -> Entry:
        return read_folder(self.folder(self._check_known(name)), read)

    def card(self, name: str) -> Entry:
        return self.load(name, entries.read_manifest)

    def check_free(self, name: str, *, force: bool = False) -> None:
        """Refuse a name that ``save`` would refuse, before any work is done."""
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is not a name for a model; use up to 100 of A-Z a-z 0-9 . _ -, no dot"
                " first"
            )
        if name in SHIPPED_MODELS:
            raise UsageError(
                f"model {name!r} is shipped with promptcli and is not replaced; choose another name"
            )
        if name in RECIPES and name not in _ALSO_METHODS:
            raise UsageError(
                f"{name!r} is a recipe, which a model of that name would hide; choose another name"
            )
        if not is_writable(self._models):
            raise UsageError(
                f"models are kept in {self._home}, which may not be written; {ANOTHER_HOME}"
            )
        if (self._models / name / MODEL_MANIFEST).is_file() and not force:
            raise UsageError(
                f"model {name!r} exists; give another name, or force", parameter="name"
            )

    def run_folder(self, name: str) -> Path:
        return self._home / "runs" / name

    def new_folder(self) -> AbstractContextManager[Path]:
        """Return an empty folder on the registry's disk, deleted at the end, for a backbone that is
        to be saved.
        """
        self._models.mkdir(parents=True, exist_ok=True)
        return temporary_folder(self._home / "new")

    def save(self, entry: Entry, *, force: bool = False) -> Entry:
        """Save an entry, completely or not at all, and return it as saved."""
        with self._lock():
            self.check_free(entry.name, force=force)
            entry = entries.with_backbone(entry, portable(entry.recipe).backbone)
            target = self._models / entry.name
            with write_folder(target) as folder:
                self._take_backbone(Path(entry.recipe.backbone), folder / BACKBONE)
                if (folder / BACKBONE).is_dir():
                    about = {**entry.provenance, "backbone": str(target.absolute() / BACKBONE)}
                    entry = dataclasses.replace(
                        entries.with_backbone(entry, BACKBONE), provenance=about
                    )
                entry = dataclasses.replace(
                    entry, created=entries.utc_now(), fingerprint=None, target=None, backbone={}
                )
                entries.write_entry(folder, entry)
        return self.load(entry.name)

    def _take_backbone(self, source: Path, target: Path) -> None:
        """Give an entry whose backbone is in another entry's folder, or in a new one, its own, so
        that either may be removed.
        """
        if source.is_dir() and Path(os.path.realpath(source)).is_relative_to(
            os.path.realpath(self._home)
        ):
            for name in list_files(source):
                if name != TENSORS:
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    link_file(source / name, target / name)

    def remove(self, name: str) -> None:
        if self._check_known(name) in SHIPPED_MODELS:  # an unknown name makes no home
            raise UsageError(f"model {name!r} is shipped with promptcli and cannot be removed")
        with self._lock():
            remove_folder(self._models / self._check_known(name))

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the lock; first the leftovers of killed processes are removed."""
        self._models.mkdir(parents=True, exist_ok=True)
        with hold(self._home):
            remove_leftovers(self._models)
            yield

    def folder(self, name: str) -> Path:
        return (SHIPPED_FOLDER if name in SHIPPED_MODELS else self._models) / name

    def _check_known(self, name: str) -> str:
        is_saved = _NAME.fullmatch(name) and read_folder(
            self._models / name, lambda folder: (folder / MODEL_MANIFEST).is_file()
        )
        if name not in SHIPPED_MODELS and not is_saved:
            names = self.names()
            raise NotFoundError(
                f"no model {name!r}; there are: {', '.join(names)}; see `promptcli models"
                f" list`{did_you_mean(name, names)}"
            )
        return name


def portable(recipe: Recipe) -> Recipe:
    """Return a recipe that does not depend on the current folder: a backbone's path becomes
    absolute.
    """
    if recipe.backbone == BARE.backbone:
        return recipe
    return recipe.replace(backbone=portable_name(recipe.backbone))
