"""Results kept on disk by everything that determines them; a damaged file counts as absent."""

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import platform
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

import promptcli
from promptcli.notes import note
from promptcli.storage.files import (
    atomic_path,
    delete,
    is_writable,
    temporary_folder,
)
from promptcli.storage.runs import RunFolder
from promptcli.storage.tensors import save_tensors

_BUSY = 60.0  # seconds to wait for another process


class Cache:
    """A folder of JSON values, which are rows of one SQLite file, and of tensors, a file each.

    A key is JSON-ready and names everything that determines the result; the versions of this
    package and of the libraries are added. A ``fresh`` cache returns only what was put into it.
    """

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        self._folder = folder
        self._values = folder / "values.sqlite"
        self._fresh = fresh
        self._written: set[Path] = set()

    def get(self, key: Mapping[str, Any]) -> Any:
        """Return the value of a key, or None."""
        path = self._path(key, ".json")
        if self._values.exists() and not self._is_hidden(path):
            with contextlib.suppress(sqlite3.Error, ValueError):
                for (value,) in self._execute("SELECT value FROM kept WHERE key = ?", path.stem):
                    return json.loads(value)
        return None

    def put(self, key: Mapping[str, Any], value: Any) -> None:
        """Keep a JSON-ready value."""
        if not self._is_kept:
            return
        insert = "INSERT OR REPLACE INTO kept VALUES (?, ?)"
        row = (self._new(key, ".json").stem, json.dumps(value, ensure_ascii=False))
        try:
            self._execute(insert, *row)
        except sqlite3.OperationalError as error:  # a full disk
            self._is_kept = self._note_not_kept(f"cannot be written ({error})")
        except sqlite3.DatabaseError:  # it is damaged
            delete(self._values)
            self._execute(insert, *row)

    def get_tensors(self, key: Mapping[str, Any]) -> dict[str, Tensor] | None:
        path = self._path(key, ".safetensors")
        if not self._is_hidden(path):
            with contextlib.suppress(OSError, SafetensorError):
                return load_file(path)
        return None

    def put_tensors(self, key: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        if self._is_kept:
            with atomic_path(self._new(key, ".safetensors")) as temporary:
                save_tensors(tensors, temporary)

    @contextlib.contextmanager
    def unfinished(self, key: Mapping[str, Any]) -> Iterator[Path]:
        """Yield the folder of long work on a key, as the work that was stopped has left it.

        It is deleted once the block ends well; if nothing is kept, it is an empty one. Refuse if
        another process works there.
        """
        if not self._is_kept:
            with temporary_folder() as folder:
                yield folder
            return
        run = RunFolder(self._path(key, ".run"))
        with run.claim("the same work", "leave it out"):
            if self._is_hidden(run.folder):
                run.discard()
            self._new(key, ".run").mkdir(exist_ok=True)
            yield run.folder
            run.discard()

    @functools.cached_property
    def _is_kept(self) -> bool:
        return is_writable(self._folder) or self._note_not_kept("may not be written")

    def _note_not_kept(self, why: str) -> bool:
        note(f"{self._folder} {why}: what is computed is not kept for the next time")
        return False

    def _execute(self, statement: str, *values: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self._values, _BUSY)) as database, database:
            database.execute("PRAGMA synchronous = OFF")  # what a power cut damages is made again
            database.execute("CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, value TEXT)")
            return database.execute(statement, values).fetchall()

    def _is_hidden(self, path: Path) -> bool:
        """Return whether what is at a path is of an earlier time, which a fresh cache hides."""
        return self._fresh and path not in self._written

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
