"""Results kept on disk by all that decides them, so that a killed command resumes where it stood.

Deleting a cache's folder loses nothing but time; a damaged file in it counts as absent.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

import promptcli
from promptcli.storage.documents import convert
from promptcli.storage.files import atomic_path, write_text
from promptcli.storage.tensors import save_tensors

Kept = TypeVar("Kept")


class Cache:
    """A folder of JSON values, tensors and tables of cosines, a file for each key.

    A key is JSON-ready and names all that decides the result but promptcli's version, which is added here. A ``fresh``
    cache gives back only what it was given itself: everything is computed again, once.
    """

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        self._folder, self._fresh = folder, fresh
        self._own: set[Path] = set()

    def get(self, key: Mapping[str, Any], kind: Any) -> dict[str, Any] | None:
        """Return the values kept under a key, or None; ``kind`` is a type that they are checked against."""

        def read(path: Path) -> dict[str, Any]:
            kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["kept"]
            convert(kept, kind)
            return kept

        return self._read(key, ".json", read)

    def put(self, key: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
        """Keep JSON-ready values; they are in the file when this returns."""
        write_text(self._new(key, ".json"), json.dumps({"key": key, "kept": kept}, ensure_ascii=False) + "\n")

    def get_tensors(self, key: Mapping[str, Any]) -> dict[str, Tensor] | None:
        """Return the tensors kept under a key, or None."""
        return self._read(key, ".safetensors", load_file)

    def put_tensors(self, key: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Keep tensors; they are in the file when this returns."""
        with atomic_path(self._new(key, ".safetensors")) as temporary:
            save_tensors(tensors, temporary)

    def table(self, key: Mapping[str, Any]) -> "CosineTable":
        """Return the table of cosines of a key: all that decides a cosine but the template and the pair."""
        return CosineTable(self._path(key, ".jsonl"), json.dumps(key, sort_keys=True))

    def _read(self, key: Mapping[str, Any], suffix: str, read: Callable[[Path], Kept]) -> Kept | None:
        path = self._path(key, suffix)
        if self._fresh and path not in self._own:
            return None
        try:
            return read(path)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError):
            return None

    def _new(self, key: Mapping[str, Any], suffix: str) -> Path:
        path = self._path(key, suffix)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._own.add(path)
        return path

    def _path(self, key: Mapping[str, Any], suffix: str) -> Path:
        line = json.dumps({"promptcli": promptcli.__version__, **key}, sort_keys=True, ensure_ascii=False)
        return self._folder / f"{hashlib.sha256(line.encode()).hexdigest()[:32]}{suffix}"


class CosineTable:
    """Cosines by template and subset of the pairs: one line each, appended; a line that a kill cut short is skipped."""

    def __init__(self, path: Path, heading: str) -> None:
        self._path, self._heading = path, heading
        self._rows: dict[tuple[str, str], list[float]] = {}
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else []
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):  # the heading, a blank line, or one cut short
                row = convert(json.loads(line), _Row)
                self._rows[row.template, row.pairs] = row.cosines

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, template: str, pairs: NDArray[np.intp]) -> NDArray[np.float64] | None:
        """Return the cosines (p,) of a template on the pairs of these numbers (p,), or None."""
        cosines = self._rows.get((template, _subset(pairs)), [])
        return np.array(cosines) if len(cosines) == len(pairs) else None

    def put(self, template: str, pairs: NDArray[np.intp], cosines: NDArray[np.float64]) -> None:
        """Keep the cosines of a template on these pairs; they are in the file when this returns."""
        row = _Row(template, _subset(pairs), cosines.tolist())
        self._rows[row.template, row.pairs] = row.cosines
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # a blank line first closes one that a kill cut short; one write, so that processes do not mix their lines
        start = "" if self._path.exists() else self._heading
        with self._path.open("ab", buffering=0) as file:
            file.write(f"{start}\n{json.dumps(vars(row))}\n".encode())


@dataclass(frozen=True)
class _Row:
    template: str
    pairs: str
    cosines: list[float]


def _subset(pairs: NDArray[np.intp]) -> str:
    return f"{len(pairs)}-{hashlib.sha256(np.asarray(pairs, dtype='<i8').tobytes()).hexdigest()[:16]}"
