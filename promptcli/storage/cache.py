"""Results cached on disk by everything that determines them; a damaged file counts as absent."""

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

import promptcli
from promptcli.errors import UsageError
from promptcli.notes import note
from promptcli.storage.files import (
    atomic_path,
    is_writable,
    remove_folder,
    temporary_folder,
    write_text,
)
from promptcli.storage.locks import claim
from promptcli.storage.tensors import save_tensors

Value = TypeVar("Value")


class Cache:
    """A folder of JSON values, tensors and tables of cosines, one file per key.

    A key is JSON-ready and names everything that determines the result; the versions of this
    package and of the libraries are added. A ``fresh`` cache returns only what was put into it.
    """

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        self._folder = folder
        self._fresh = fresh
        self._written: set[Path] = set()

    def get(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        return self._read(key, ".json", lambda path: json.loads(path.read_bytes())["kept"])

    def put(self, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        if self._is_kept:
            document = json.dumps({"key": key, "kept": values}, ensure_ascii=False)
            write_text(self._new(key, ".json"), f"{document}\n")

    def get_tensors(self, key: Mapping[str, Any]) -> dict[str, Tensor] | None:
        return self._read(key, ".safetensors", load_file)

    def put_tensors(self, key: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        if self._is_kept:
            with atomic_path(self._new(key, ".safetensors")) as temporary:
                save_tensors(tensors, temporary)

    @contextlib.contextmanager
    def unfinished(self, key: Mapping[str, Any]) -> Iterator[Path]:
        """Yield the folder of long work on a key, as the work that was stopped has left it.

        It is deleted once the block ends well. If nothing is kept, or another process works there,
        it is an empty one.
        """
        folder = self._path(key, ".run")
        with contextlib.ExitStack() as ended:
            if not (self._is_kept and self._is_claimed(folder, ended)):
                yield ended.enter_context(temporary_folder())
                return
            if self._fresh and folder.exists() and folder not in self._written:
                remove_folder(folder)
            folder.mkdir(parents=True, exist_ok=True)
            self._written.add(folder)
            yield folder
            remove_folder(folder)

    def _is_claimed(self, folder: Path, ended: contextlib.ExitStack) -> bool:
        """Claim a folder until ``ended``; return False if another process has it."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            ended.enter_context(claim(folder.with_suffix(".lock"), "this work", "wait for its end"))
        except UsageError:
            return False
        return True

    def table(self, key: Mapping[str, Any]) -> "CosineTable":
        """Return the table of cosines of a key: everything that determines a cosine but the
        template and the pair.
        """
        return CosineTable(
            self._path(key, ".jsonl"), json.dumps(key, sort_keys=True), kept=self._is_kept
        )

    @functools.cached_property
    def _is_kept(self) -> bool:
        writable = is_writable(self._folder)
        if not writable:
            note(
                f"{self._folder} may not be written: what is computed is not kept for the next time"
            )
        return writable

    def _read(
        self, key: Mapping[str, Any], suffix: str, read: Callable[[Path], Value]
    ) -> Value | None:
        path = self._path(key, suffix)
        if self._fresh and path not in self._written:
            return None
        try:
            return read(path)
        except (OSError, ValueError, SafetensorError):
            return None

    def _new(self, key: Mapping[str, Any], suffix: str) -> Path:
        path = self._path(key, suffix)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._written.add(path)
        return path

    def _path(self, key: Mapping[str, Any], suffix: str) -> Path:
        line = json.dumps({**library_versions(), **key}, sort_keys=True, ensure_ascii=False)
        digest = hashlib.sha256(line.encode()).hexdigest()
        return self._folder / f"{digest[:32]}{suffix}"


@functools.cache
def library_versions() -> dict[str, str]:
    """Return the versions of what figures follow from: this package, Python and the libraries."""
    versions = {"promptcli": promptcli.__version__, "python": platform.python_version()}
    for library in ("torch", "transformers", "tokenizers", "accelerate", "numpy", "scipy"):
        versions[library] = importlib.metadata.version(library)
    return versions


class CosineTable:
    """Cosines by template and subset of the pairs, a line each.

    A line that a kill cut short is skipped.
    """

    def __init__(self, path: Path, heading: str, *, kept: bool = True) -> None:
        self._path = path
        self._heading = heading
        self._kept = kept
        self._rows: dict[tuple[str, str], list[float]] = {}
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        for line in lines:
            with contextlib.suppress(ValueError, KeyError):  # also the heading, empty lines
                row = json.loads(line)
                self._rows[row["template"], row["pairs"]] = row["cosines"]

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, template: str, pairs: NDArray[np.intp]) -> NDArray[np.float64] | None:
        """Return the cosines (p,) of a template on the pairs with these numbers (p,), or None."""
        cosines = self._rows.get((template, _subset(pairs)), [])
        if len(cosines) == len(pairs):
            return np.array(cosines)
        return None

    def put(self, template: str, pairs: NDArray[np.intp], cosines: NDArray[np.float64]) -> None:
        """Append the cosines of a template on these pairs."""
        row = {"template": template, "pairs": _subset(pairs), "cosines": cosines.tolist()}
        self._rows[template, row["pairs"]] = row["cosines"]
        if not self._kept:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # the line feed first ends a line that a kill cut short; one write, so that processes do not
        # mix their lines
        start = "" if self._path.exists() else self._heading
        with self._path.open("ab", buffering=0) as file:
            file.write(f"{start}\n{json.dumps(row)}\n".encode())


def _subset(pairs: NDArray[np.intp]) -> str:
    return f"{len(pairs)}-{hashlib.sha256(pairs.astype('<i8').tobytes()).hexdigest()[:16]}"
