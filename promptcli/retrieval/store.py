"""The rows of an index in SQLite: their texts, columns and vectors, and the settings of the index.

A change is one transaction, which ends with a higher generation. The key of a row is never given
again. What is derived from the rows, see ``derived``, names the generation that it was made at; the
keys of rows that have gone since are kept in the table ``gone``.
"""

import contextlib
import errno
import itertools
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.formats import Floats
from promptcli.errors import CheckFailedError, NotFoundError, PromptcliError, UsageError
from promptcli.storage.files import check_name, is_writable, sync, temporary_folder

DATABASE = "index.sqlite"  #: in the folder of an index
#: The manifest of an index of earlier versions.
OLD_MANIFEST = "index.json"
FORMAT = 1
#: Type of a column as it is read -> as it is declared; SQLite goes by a part of the name.
DECLARED = {"number": "NUMBER", "truth": "TRUTH INT", "date": "DATE TEXT", "text": "TEXT"}
#: SQLite's limit for the columns of a table, less our own.
_MOST_COLUMNS = 1900
_LONGEST_NAME = 200  # characters of a column's name
_BUSY = 60.0  # seconds to wait for another process
_BLOCK = 8192
_SCHEMA = """
CREATE TABLE settings(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE rows(key INTEGER PRIMARY KEY AUTOINCREMENT, id, part INT NOT NULL, text, source TEXT);
CREATE TABLE columns(_key INTEGER PRIMARY KEY);
CREATE TABLE vectors(key INTEGER PRIMARY KEY, vector BLOB NOT NULL);
CREATE TABLE gone(key INTEGER PRIMARY KEY, generation INT NOT NULL);
CREATE TABLE files(name TEXT PRIMARY KEY, size INT, changed INT, sha256 TEXT);
"""
_UNIQUE = "CREATE UNIQUE INDEX ids ON rows(CAST(id AS TEXT), part)"
_SOURCES = "CREATE INDEX sources ON rows(source)"
_ERRORS = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_READONLY: errno.EROFS}

Keys = NDArray[np.int64]


@dataclass
class NewRows:
    """m rows for an index, with their vectors (m, d) of length 1 once they are encoded."""

    ids: Sequence[int | str]
    texts: Sequence[str] | None
    parts: Sequence[int] = ()  #: number of a part of a row, from 1; 0 for a whole one
    sources: Sequence[str] = ()  #: the file of each
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)  #: of columns, see ``DECLARED``
    vectors: Floats | None = None
    are_numbered: bool = False  #: whether the ids are numbers of rows, which go on in an index

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, places: Sequence[int]) -> "NewRows":
        """Return some of the rows."""

        def some(values: Sequence[Any]) -> list[Any]:
            return [values[place] for place in places] if len(values) else []

        return NewRows(
            some(self.ids),
            None if self.texts is None else some(self.texts),
            some(self.parts),
            some(self.sources),
            {name: some(values) for name, values in self.columns.items()},
            self.types,
            None if self.vectors is None else self.vectors[list(places)],
            self.are_numbered,
        )


class Store:
    """An open database, in a folder or in memory; one thread at a time uses it."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._connect()

    @classmethod
    def open(cls, folder: Path) -> "Store":
        """Open the index of a folder."""
        path = folder / DATABASE
        if folder.is_file():
            raise NotFoundError(
                f"{folder} is a file, not an index; `promptcli search QUERY {folder}` searches it"
            )
        if not path.is_file():
            if (folder / OLD_MANIFEST).is_file():
                raise UsageError(
                    f"{folder} is an index of an earlier version; build it again: `promptcli index"
                    f" build FILE -o {folder} --force`"
                )
            raise NotFoundError(
                f"no index in {folder}; `promptcli index build FILE -o {folder}` makes one"
            )
        store = cls(path)
        with store.reading():
            if store.settings.get("format") != FORMAT:
                raise CheckFailedError(f"{path} is not an index of this version; build it again")
        return store

    def _connect(self) -> None:
        name = ":memory:"
        if self.path is not None:
            name = f"file:{quote(str(self.path))}?mode=rw"
        with _refusals(self.path):
            self.sql = sqlite3.connect(
                name, _BUSY, isolation_level=None, check_same_thread=False, uri=True
            )
            self._inode = self._on_disk()
        if self.path is None:
            self.sql.executescript(f"{_SCHEMA};{_UNIQUE};{_SOURCES}")
            self.keep(format=FORMAT, generation=0, oldest=0, name=uuid4().hex)
        self.generation = -1
        self.settings: dict[str, Any] = {}
        self.types: dict[str, str] = {}

    def close(self) -> None:
        """Close the database."""
        self.sql.close()

    def _on_disk(self) -> int:
        with contextlib.suppress(OSError):
            return 0 if self.path is None else self.path.stat().st_ino
        return -1

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Read one state of the index, whatever other processes write."""
        with self.lock, _refusals(self.path):
            if self.sql.in_transaction:
                yield
                return
            if self._on_disk() not in (self._inode, -1):  # built again
                self.sql.close()
                self._connect()
            self.sql.execute("BEGIN")
            try:
                self._read_settings()
                yield
            finally:
                self.sql.execute("COMMIT")

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Change the index in one transaction; an error leaves it as it was."""
        with self.lock, _refusals(self.path):
            self.sql.execute("BEGIN IMMEDIATE")
            try:
                if self._on_disk() != self._inode:
                    raise UsageError(f"{self.path} was built again in the meantime; try again")
                self._read_settings()
                self.keep(generation=self.generation + 1)
                yield
                self.sql.execute("COMMIT")
            except BaseException:
                self.generation = -1
                if self.sql.in_transaction:
                    self.sql.execute("ROLLBACK")
                raise

    def _read_settings(self) -> None:
        query = "SELECT value FROM settings WHERE name IN ('generation', 'name') ORDER BY name"
        found = [json.loads(value) for (value,) in self.sql.execute(query)]
        if len(found) != 2:
            raise CheckFailedError(f"{self.path} is damaged; build the index again")
        generation, name = found
        if self.settings and (name, generation) == self.state:
            return
        rows = self.sql.execute("SELECT name, value FROM settings").fetchall()
        self.settings = {name: json.loads(value) for name, value in rows}
        kinds = {declared: kind for kind, declared in DECLARED.items()}
        table = self.sql.execute("PRAGMA table_info(columns)").fetchall()
        self.types = {name: kinds[declared] for _, name, declared, *_ in table[1:]}
        self.generation = self.settings["generation"]

    def keep(self, **settings: Any) -> None:
        """Write settings."""
        for name, value in settings.items():
            self.sql.execute("REPLACE INTO settings VALUES(?, ?)", (name, json.dumps(value)))

    def __len__(self) -> int:
        return int(self.one("SELECT count(*) FROM rows"))

    @property
    def state(self) -> tuple[str, int]:
        """Which index it is, and its generation."""
        return self.settings["name"], self.generation

    def one(self, query: str, *values: Any) -> Any:
        """Return the one value of a query."""
        return self.sql.execute(query, values).fetchone()[0]

    def append(self, rows: NewRows) -> None:
        """Write rows, in order, behind all others."""
        if not len(rows):
            return
        assert rows.vectors is not None
        first = 1 + (self.sql.execute("SELECT seq FROM sqlite_sequence").fetchone() or (0,))[0]
        keys = range(first, first + len(rows))
        records = zip(
            keys,
            rows.ids,
            rows.parts or [0] * len(rows),
            rows.texts or itertools.repeat(None, len(rows)),
            rows.sources or itertools.repeat(None, len(rows)),
            strict=True,
        )
        self.sql.executemany("INSERT INTO rows VALUES(?, ?, ?, ?, ?)", records)
        units = np.ascontiguousarray(rows.vectors, np.float32)
        self.sql.executemany("INSERT INTO vectors VALUES(?, ?)", zip(keys, units, strict=True))
        self.write_columns(keys, rows)

    def write_columns(self, keys: Sequence[int], rows: NewRows) -> None:
        """Write the columns of rows."""
        columns = self._declare(rows)
        names = "".join(f", {quoted(name)}" for name in columns)
        marks = ", ?" * len(columns)
        self.sql.executemany(
            f"REPLACE INTO columns(_key{names}) VALUES(?{marks})",
            zip(keys, *columns.values(), strict=True),
        )

    def _declare(self, rows: NewRows) -> dict[str, Sequence[Any]]:
        """Declare new columns, and return the values of each as its declared type has them.

        A column with values of another type becomes text.
        """
        known = {name.casefold(): name for name in self.types}
        columns: dict[str, Sequence[Any]] = {}
        for given, values in rows.columns.items():
            kind = rows.types.get(given, "text")
            name = known.get(given.casefold())
            if name is None:
                if len(given) > _LONGEST_NAME or len(known) == _MOST_COLUMNS:
                    raise UsageError(
                        f"column {given[:40]!r}: an index takes {_MOST_COLUMNS:,} columns, with"
                        f" names of {_LONGEST_NAME} characters; leave some out"
                    )
                name = known[given.casefold()] = given
                self.sql.execute(f"ALTER TABLE columns ADD COLUMN {quoted(name)} {DECLARED[kind]}")
                self.types[name] = kind
            elif kind != self.types[name] and any(value is not None for value in values):
                self._make_text(name)
            if name in columns:
                raise UsageError(f"two columns are called {name!r} but for their case; rename one")
            if self.types[name] == "text":
                values = [None if value is None else as_text(value) for value in values]
            columns[name] = values
        return columns

    def _make_text(self, name: str) -> None:
        if self.types[name] == "text":
            return
        old = quoted(name)
        new = quoted(f"{name} as text")
        values = self.sql.execute(f"SELECT {old}, _key FROM columns").fetchall()
        if self.types[name] == "truth":
            values = [(value if value is None else bool(value), key) for value, key in values]
        self.sql.execute(f"ALTER TABLE columns ADD COLUMN {new} TEXT")
        self.sql.executemany(
            f"UPDATE columns SET {new}=? WHERE _key=?",
            [(None if value is None else as_text(value), key) for value, key in values],
        )
        self.sql.execute(f"ALTER TABLE columns DROP COLUMN {old}")
        self.sql.execute(f"ALTER TABLE columns RENAME COLUMN {new} TO {old}")
        self.types[name] = "text"

    def remove(self, keys: Iterable[int]) -> None:
        """Delete rows."""
        records = [(int(key),) for key in keys]
        self.sql.executemany("DELETE FROM rows WHERE key=?", records)
        self.sql.executemany("DELETE FROM columns WHERE _key=?", records)
        self.sql.executemany("DELETE FROM vectors WHERE key=?", records)
        gone = [(key, self.generation + 1) for (key,) in records]
        self.sql.executemany("REPLACE INTO gone VALUES(?, ?)", gone)

    def keys_of(self, ids: Iterable[int | str]) -> dict[str, list[int]]:
        """Return the keys of rows by their ids as text, of each the parts in order."""
        found: dict[str, list[int]] = {}
        for name in dict.fromkeys(map(str, ids)):
            query = "SELECT key FROM rows WHERE CAST(id AS TEXT)=? ORDER BY part"
            if keys := [key for (key,) in self.sql.execute(query, (name,))]:
                found[name] = keys
        return found

    def vectors(self, keys: Sequence[int] | Keys) -> Floats:
        """Return the vectors (m, d) of m rows."""
        if len(keys) > _BLOCK:
            return np.concatenate(
                [self.vectors(keys[at : at + _BLOCK]) for at in range(0, len(keys), _BLOCK)]
            )
        found = self._of_keys("SELECT key, vector FROM vectors", keys)
        joined = b"".join([found[int(key)][1] for key in keys])
        return np.frombuffer(joined, np.float32).reshape(len(keys), self.settings["width"])

    def texts(self, keys: Sequence[int] | Keys) -> list[str]:
        """Return the texts of rows."""
        found = self._of_keys("SELECT key, text FROM rows", keys)
        return [found[int(key)][1] or "" for key in keys]

    def records(self, keys: Sequence[int] | Keys) -> list[tuple[Any, ...]]:
        """Return key, id, part, text and source of rows."""
        found = self._of_keys("SELECT key, id, part, text, source FROM rows", keys)
        return [found[int(key)] for key in keys]

    def columns(self, keys: Sequence[int] | Keys) -> list[dict[str, Any]]:
        """Return the columns of rows, without empty ones."""
        found = self._of_keys("SELECT * FROM columns", keys, "_key")
        kinds = list(self.types.items())
        rows = []
        for key in keys:
            row: dict[str, Any] = {}
            for (name, kind), value in zip(kinds, found[int(key)][1:], strict=True):
                if value is not None:
                    row[name] = bool(value) if kind == "truth" else value
            rows.append(row)
        return rows

    def _of_keys(
        self, query: str, keys: Sequence[int] | Keys, name: str = "key"
    ) -> dict[int, tuple[Any, ...]]:
        wanted = ",".join(str(int(key)) for key in keys)
        return {row[0]: row for row in self.sql.execute(f"{query} WHERE {name} IN ({wanted})")}

    def blocks(
        self, query: str, first: int = 0, last: int = 1 << 62
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of a query, whose first column is ``key``, in blocks by key.

        Each block is a transaction of its own, so that none lasts long.
        """
        while True:
            with self.reading():
                block = self.sql.execute(
                    f"{query} WHERE key>? AND key<=? ORDER BY key LIMIT {_BLOCK}", (first, last)
                ).fetchall()
            if not block:
                return
            yield block
            first = block[-1][0]

    def check_ids(self) -> None:
        """Make the index of ids; refuse one that is given twice."""
        try:
            self.sql.execute(_UNIQUE)
            self.sql.execute(_SOURCES)
        except sqlite3.IntegrityError:
            twice = "SELECT CAST(id AS TEXT) FROM rows GROUP BY 1, part HAVING count(*)>1 LIMIT 1"
            raise repeated_id(self.one(twice)) from None


def repeated_id(name: str) -> UsageError:
    """Return that an id is given twice."""
    return UsageError(
        f"the id {name!r} is given twice; name another column of ids, or - to number the rows",
        parameter="id_field",
    )


def as_text(value: Any) -> str:
    """Return a value as a column of texts has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def quoted(name: str) -> str:
    """Return a name of a column as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


@contextlib.contextmanager
def creating(folder: Path, *, force: bool) -> Iterator[Store]:
    """Yield an empty store, which gets its place in a folder if the block ends well.

    Raises:
        UsageError: The folder holds an index, unless ``force``, or other files.
    """
    check_target(folder, force=force)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / DATABASE
    with _removed_if_empty(folder), temporary_folder(target) as place:
        path = place / DATABASE
        path.touch()
        with _refusals(path):
            store = Store(path)
            store.sql.execute("PRAGMA journal_mode=OFF")
            store.sql.execute("PRAGMA synchronous=OFF")
            store.sql.executescript(f"BEGIN;{_SCHEMA}")
            store.keep(format=FORMAT, generation=0, oldest=0, name=uuid4().hex)
            store._read_settings()
            yield store
            store.check_ids()
            store.sql.execute("COMMIT")
            store.close()
        _put(path, target, force=force)
    (folder / OLD_MANIFEST).unlink(missing_ok=True)


def _put(path: Path, target: Path, *, force: bool) -> None:
    """Give a new database its place; what is there is changed in one transaction, since other
    processes may have opened it, and would read the journals of a file of the same name.
    """
    if force and target.exists():
        with contextlib.suppress(CheckFailedError), _refusals(target):
            new, old = sqlite3.connect(path), sqlite3.connect(target, _BUSY)
            with contextlib.closing(new), contextlib.closing(old):
                new.backup(old)
            return
        target.unlink()  # it was damaged
    sync(path)
    try:
        os.link(path, target)
    except FileExistsError:
        raise UsageError(f"{target.parent} was made in the meantime", parameter="output") from None
    sync(target.parent)


@contextlib.contextmanager
def _removed_if_empty(folder: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise


def check_target(folder: Path, *, force: bool) -> None:
    """Refuse a folder that holds an index, unless ``force``, or other files."""
    check_name(folder)
    if not folder.exists():
        if not is_writable(folder):
            raise UsageError(f"{folder} cannot be made; give another folder", parameter="output")
        return
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file; give a folder", parameter="output")
    shown = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    is_index = {DATABASE, OLD_MANIFEST}.intersection(shown)
    if is_index and not force:
        raise UsageError(f"{folder} holds an index; replace it with force", parameter="output")
    if shown and not is_index:
        raise UsageError(f"{folder} holds other files; give an empty folder", parameter="output")


@contextlib.contextmanager
def _refusals(path: Path | None) -> Iterator[None]:
    """Raise SQLite's errors as ours."""
    try:
        yield
    except sqlite3.IntegrityError:
        raise UsageError("an id is given twice", parameter="id_field") from None
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _ERRORS:
            number = _ERRORS[code]
            raise OSError(number, os.strerror(number), str(path)) from None
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise CheckFailedError(f"{path} is damaged ({error}); build the index again") from None
        if code == sqlite3.SQLITE_BUSY:
            raise PromptcliError(f"{path}: another process changes it; try again") from None
        raise PromptcliError(f"{path}: {error}") from None
