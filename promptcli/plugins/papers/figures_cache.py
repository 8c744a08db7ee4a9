"""Figures, and the tensors of trained rows, kept on disk by everything that determines them."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from promptcli.storage.cache import Cache, digest
from promptcli.storage.files import atomic_path
from promptcli.storage.runs import RunFolder
from promptcli.storage.tensors import save_tensors


class FiguresCache(Cache):
    """Figures, and a file of tensors for each training. A ``fresh`` one returns only what was put
    into it.
    """

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        super().__init__(folder)
        self._fresh = fresh
        self._written: set[str] = set()

    def get(self, key: Mapping[str, Any]) -> Any:
        return None if self._is_hidden(digest(key)) else super().get(key)

    def put(self, key: Mapping[str, Any], value: Any) -> None:
        super().put(key, value)
        self._written.add(digest(key))

    def get_tensors(self, key: Mapping[str, Any]) -> dict[str, Tensor] | None:
        path = self._path(key, ".safetensors")
        if not self._is_hidden(path.name):
            with contextlib.suppress(OSError, SafetensorError):
                return load_file(path)
        return None

    def put_tensors(self, key: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        path = self._path(key, ".safetensors")
        with atomic_path(path) as temporary:
            save_tensors(tensors, temporary)
        self._written.add(path.name)

    @contextlib.contextmanager
    def unfinished(self, key: Mapping[str, Any]) -> Iterator[Path]:
        """Yield the folder of a training, as the one that was stopped has left it.

        It is deleted once the block ends well. Refuse if another process works there.
        """
        run = RunFolder(self._path(key, ".run"))
        with run.claim("the same work", "leave it out"):
            if self._is_hidden(run.folder.name):
                run.discard()
            run.folder.mkdir(exist_ok=True)
            self._written.add(run.folder.name)
            yield run.folder
            run.discard()

    def _is_hidden(self, name: str) -> bool:
        """Return whether what has a name is of an earlier time, which a fresh cache hides."""
        return self._fresh and name not in self._written

    def _path(self, key: Mapping[str, Any], suffix: str) -> Path:
        return self.folder / f"{digest(key)}{suffix}"
