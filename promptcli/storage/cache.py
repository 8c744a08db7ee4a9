"""Results that are stored on disk, under a key of everything that determines them."""

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import platform
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import promptcli
from promptcli.notes import note
from promptcli.storage.files import delete_path

_LOCK_TIMEOUT_S = 60.0


class Cache:
    """JSON values in a folder, as rows of one SQLite file.

    A key is JSON-ready and names everything that determines the result; the versions of this
    package and of the libraries are added. A damaged file counts as absent. If the file cannot be
    written, nothing is stored, and one note says so. A ``fresh`` cache returns only values that it
    stored itself.
    """

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        self.folder = folder
        self._file = folder / "values.sqlite"
        self._is_writable = True
        self._fresh = fresh
        self._visible_names: set[str] = set()

    def is_hidden(self, name: str) -> bool:
        """Return whether a fresh cache hides the value under a name, which may be of an earlier
        run.
        """
        return self._fresh and name not in self._visible_names

    def renew(self, name: str) -> None:
        """Stop hiding the value under a name."""
        self._visible_names.add(name)

    def get(self, key: Mapping[str, Any]) -> Any:
        """Return the value of a key, or None."""
        if self._file.exists() and not self.is_hidden(digest(key)):
            with contextlib.suppress(sqlite3.Error, ValueError):
                for (value,) in self._execute("SELECT value FROM kept WHERE key = ?", digest(key)):
                    return json.loads(value)
        return None

    def put(self, key: Mapping[str, Any], value: Any) -> None:
        """Store a JSON-ready value."""
        self.renew(digest(key))
        if not self._is_writable:
            return
        insert = "INSERT OR REPLACE INTO kept VALUES (?, ?)"
        row = (digest(key), json.dumps(value, ensure_ascii=False))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._execute(insert, *row)
        except (OSError, sqlite3.OperationalError) as error:  # read-only, or a full disk
            self._is_writable = False
            note(f"{self.folder} cannot be written ({error}): computed values are not stored")
        except sqlite3.DatabaseError:  # the file is damaged
            delete_path(self._file)
            self._execute(insert, *row)

    def _execute(self, statement: str, *values: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self._file, _LOCK_TIMEOUT_S)) as database, database:
            # no wait for the disk: a file damaged by a power cut is made again
            database.execute("PRAGMA synchronous = OFF")
            database.execute("CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, value TEXT)")
            return database.execute(statement, values).fetchall()


def digest(key: Mapping[str, Any]) -> str:
    """Return the name under which a key's value is stored."""
    line = json.dumps({**library_versions(), **key}, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(line.encode()).hexdigest()[:32]


@functools.cache
def library_versions() -> dict[str, str]:
    """Return the versions that results depend on: this package, Python and the libraries."""
    versions = {"promptcli": promptcli.__version__, "python": platform.python_version()}
    for library in ("torch", "transformers", "tokenizers", "accelerate", "numpy", "scipy"):
        versions[library] = importlib.metadata.version(library)
    return versions
