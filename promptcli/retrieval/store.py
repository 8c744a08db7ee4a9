"""The rows of an index in SQLite: their texts, columns and vectors, and the settings of the index.

A change is one transaction, which ends with a higher generation. The key of a row is never given
again. What is derived from the rows, see ``derived``, names the generation that it was made at; the
keys of rows that have gone since are kept in the table ``gone``.
"""

import contextlib
import errno
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
FORMAT = 2
#: Type of a column as it is read -> as it is declared.
_DECLARED = {"number": "NUMERIC", "truth": "INT", "date": "TEXT", "text": "TEXT"}
#: SQLite's limit for the columns of a table, less our own.
_MOST_COLUMNS = 1900
_LONGEST_NAME = 200  # characters of a column's name
_BUSY = 60.0  # seconds to wait for another process
_ROWS_AT_ONCE = 8192
_MAPPED = 1 << 40  # bytes of the database that are memory-mapped, or as many as SQLite allows
_PAGE = 16_384  # bytes of a page of SQLite, which holds several vectors
_SCHEMA = """
CREATE TABLE settings(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE rows(key INTEGER PRIMARY KEY AUTOINCREMENT, id, part INT NOT NULL, text, source TEXT);
CREATE TABLE columns(_key INTEGER PRIMARY KEY);
CREATE TABLE vectors(key INTEGER PRIMARY KEY, vector BLOB NOT NULL);
CREATE TABLE gone(key INTEGER PRIMARY KEY, generation INT NOT NULL);
CREATE TABLE files(name TEXT PRIMARY KEY, size INT, changed INT, sha256 TEXT);
"""
_ERRORS = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_READONLY: errno.EROFS}

Keys = NDArray[np.int64]


@dataclass
class NewRows:
    """m rows for an index, with their vectors (m, d) of length 1 once they are encoded."""

    ids: Sequence[int | str]
    texts: Sequence[Any]  #: None for each row of which only the vector is known
    parts: Sequence[int] = ()  #: number of a part of a row, from 1; 0 for a whole one
    source: str | None = None  #: the file
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)  #: number, truth, date or text
    vectors: Floats | None = None
    are_numbered: bool = False  #: whether the ids are numbers of rows, which go on in an index

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, places: Sequence[int]) -> "NewRows":
        """Return some of the rows."""

        def some(values: Sequence[Any]) -> list[Any]:
            return [values[place] for place in places] if len(values) else []

        return replace(
            self,
            ids=some(self.ids),
            texts=some(self.texts),
            parts=some(self.parts),
            columns={name: some(values) for name, values in self.columns.items()},
            vectors=None if self.vectors is None else self.vectors[list(places)],
        )

    def filled(self) -> "NewRows":
        """Return the rows that are not blank."""
        return self.take([place for place, text in enumerate(self.texts) if text.strip()])


class Store:
    """An open database, in a folder or in memory; one thread at a time uses it."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.lock = threading.RLock()
        self.settings: dict[str, Any] = {}
        self._stored: list[tuple[str, str]] = []  # the settings as they are written
        self._connect()

    @classmethod
    def open(cls, folder: Path) -> "Store":
        """Open the index of a folder."""
        path = folder / DATABASE
        if folder.is_file():
            raise NotFoundError(
                f"{folder} is a file, not an index; `promptcli search QUERY {folder}` searches it"
            )
        if (folder / "index.json").is_file():
            raise UsageError(f"{folder} is an index of an earlier version; build it again")
        if not path.is_file():
            raise NotFoundError(
                f"no index in {folder}; `promptcli index build FILE -o {folder}` makes one"
            )
        store = cls(path)
        with store.reading():
            if store.settings.get("format") != FORMAT:
                raise CheckFailedError(f"{path} is not an index of this version; build it again")
        return store

    def _connect(self) -> None:
        name = ":memory:" if self.path is None else f"file:{quote(str(self.path))}?mode=rw"
        self._inode = 0 if self.path is None else self.path.stat().st_ino
        with _refusals(self.path):
            self.sql = sqlite3.connect(
                name, _BUSY, isolation_level=None, check_same_thread=False, uri=True
            )
            self.sql.execute(f"PRAGMA mmap_size={_MAPPED}")

    def close(self) -> None:
        """Close the database."""
        self.sql.close()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Read one state of the index, whatever other processes write."""
        with self.lock, _refusals(self.path):
            if self.sql.in_transaction:
                yield
                return
            self._begin("DEFERRED")
            try:
                yield
            finally:
                self.sql.execute("COMMIT")

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Change the index in one transaction; an error leaves it as it was."""
        with self.lock, _refusals(self.path):
            self._begin("IMMEDIATE")
            try:
                self.keep(generation=self.generation + 1)
                yield
                self.sql.execute("COMMIT")
            except BaseException:
                if self.sql.in_transaction:
                    self.sql.execute("ROLLBACK")
                raise

    def _begin(self, kind: str) -> None:
        """Begin a transaction in the file that has the name now, and read the settings."""
        if self.path is not None and self.path.stat().st_ino != self._inode:  # built again
            self.sql.close()
            self._connect()
        self.sql.execute(f"BEGIN {kind}")
        rows = self.sql.execute("SELECT name, value FROM settings").fetchall()
        if rows != self._stored:
            self._stored = rows
            self.settings = {name: json.loads(value) for name, value in rows}

    def keep(self, **settings: Any) -> None:
        """Write settings."""
        values = [(name, json.dumps(value)) for name, value in settings.items()]
        self.sql.executemany("REPLACE INTO settings VALUES(?, ?)", values)
        self.settings |= settings
        self._stored = []  # they are read again, since this may be undone

    def __len__(self) -> int:
        return int(self.one("SELECT count(*) FROM rows"))

    @property
    def generation(self) -> int:
        """How often the index was changed."""
        return int(self.settings["generation"])

    @property
    def state(self) -> tuple[str, int]:
        """Which index it is, and its generation."""
        return self.settings["name"], self.generation

    @property
    def types(self) -> dict[str, str]:
        """The further columns and their types."""
        return dict(self.settings["types"])

    def one(self, query: str, *values: Any) -> Any:
        """Return the first value of a query; None without a row."""
        return (self.sql.execute(query, values).fetchone() or [None])[0]

    def append(self, rows: NewRows) -> None:
        """Write rows, in order, behind all others."""
        first = 1 + (self.one("SELECT seq FROM sqlite_sequence") or 0)
        keys = range(first, first + len(rows))
        parts = rows.parts or [0] * len(rows)
        sources = [rows.source] * len(rows)
        records = zip(keys, rows.ids, parts, rows.texts, sources, strict=True)
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
        types = self.types
        known = {name.casefold(): name for name in types}
        columns: dict[str, Sequence[Any]] = {}
        for given, values in rows.columns.items():
            kind = rows.types.get(given, "text")
            name = known.setdefault(given.casefold(), given)
            if name in columns:
                raise UsageError(f"two columns are called {name!r} but for their case; rename one")
            if name not in types:
                if len(name) > _LONGEST_NAME or len(types) == _MOST_COLUMNS:
                    raise UsageError(
                        f"column {name[:40]!r}: an index takes {_MOST_COLUMNS:,} columns, with"
                        f" names of {_LONGEST_NAME} characters; leave some out"
                    )
                self.sql.execute(f"ALTER TABLE columns ADD {quoted(name)} {_DECLARED[kind]}")
                types[name] = kind
            elif kind != types[name] and any(value is not None for value in values):
                self._make_text(name, types[name])
                types[name] = "text"
            if types[name] == "text":
                values = [None if value is None else as_text(value) for value in values]
            columns[name] = values
        if types != self.settings["types"]:
            self.keep(types=types)
        return columns

    def _make_text(self, name: str, kind: str) -> None:
        old, new = quoted(name), quoted(f"{name} as text")
        text = f"iif({old}, 'true', 'false')" if kind == "truth" else old
        self.sql.execute(f"ALTER TABLE columns ADD {new} TEXT")
        self.sql.execute(f"UPDATE columns SET {new}={text} WHERE {old} IS NOT NULL")
        self.sql.execute(f"ALTER TABLE columns DROP {old}")
        self.sql.execute(f"ALTER TABLE columns RENAME {new} TO {old}")

    def remove(self, keys: Iterable[int]) -> None:
        """Delete rows."""
        records = [(key,) for key in keys]
        for table, column in (("rows", "key"), ("columns", "_key"), ("vectors", "key")):
            self.sql.executemany(f"DELETE FROM {table} WHERE {column}=?", records)
        self.sql.executemany(f"REPLACE INTO gone VALUES(?, {self.generation})", records)

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
        found = self._of_keys("SELECT key, vector FROM vectors", keys)
        return self.matrix(vector for _, vector in found)

    def matrix(self, vectors: Iterable[bytes]) -> Floats:
        """Return stored vectors as (m, d)."""
        return np.frombuffer(b"".join(vectors), np.float32).reshape(-1, self.settings["width"])

    def texts(self, keys: Sequence[int] | Keys) -> list[str]:
        """Return the texts of rows."""
        return [text or "" for _, text in self._of_keys("SELECT key, text FROM rows", keys)]

    def records(self, keys: Sequence[int] | Keys) -> list[tuple[Any, ...]]:
        """Return key, id, part, text and source of rows."""
        return self._of_keys("SELECT key, id, part, text, source FROM rows", keys)

    def columns(self, keys: Sequence[int] | Keys) -> list[dict[str, Any]]:
        """Return the columns of rows, without empty ones."""
        types = self.types
        names = "".join(f", {quoted(name)}" for name in types)
        rows = []
        for _, *values in self._of_keys(f"SELECT _key{names} FROM columns", keys, "_key"):
            rows.append(
                {
                    name: bool(value) if kind == "truth" else value
                    for (name, kind), value in zip(types.items(), values, strict=True)
                    if value is not None
                }
            )
        return rows

    def _of_keys(
        self, query: str, keys: Sequence[int] | Keys, name: str = "key"
    ) -> list[tuple[Any, ...]]:
        wanted = np.asarray(keys, np.int64).tolist()
        query = f"{query} WHERE {name} IN (SELECT value FROM json_each(?))"
        found = {row[0]: row for row in self.sql.execute(query, (json.dumps(wanted),))}
        return [found[key] for key in wanted]

    def blocks(
        self, query: str, first: int = 0, last: int = 1 << 62
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of a query, whose first column is ``key``, in blocks by key.

        Each block is a transaction of its own, so that none lasts long.
        """
        while True:
            with self.reading():
                block = self.sql.execute(
                    f"{query} WHERE key>? AND key<=? ORDER BY key LIMIT {_ROWS_AT_ONCE}",
                    (first, last),
                ).fetchall()
            if not block:
                return
            yield block
            first = block[-1][0]

    def units(self, last: int = 1 << 62) -> Iterator[tuple[Keys, Floats]]:
        """Yield keys (m,) and vectors (m, d) of the rows up to a key, in blocks."""
        for block in self.blocks("SELECT key, vector FROM vectors", 0, last):
            keys = np.array([key for key, _ in block], np.int64)
            yield keys, self.matrix(vector for _, vector in block)

    def make_lookups(self) -> None:
        """Make SQLite's indexes of ids and files; refuse an id that is given twice."""
        try:
            self.sql.execute("CREATE UNIQUE INDEX ids ON rows(CAST(id AS TEXT), part)")
        except sqlite3.IntegrityError:
            twice = "SELECT CAST(id AS TEXT) FROM rows GROUP BY 1, part HAVING count(*)>1 LIMIT 1"
            raise _given_twice(f"the id {self.one(twice)!r}") from None
        self.sql.execute("CREATE INDEX sources ON rows(source)")


def _given_twice(name: str) -> UsageError:
    return UsageError(
        f"{name} is given twice; name another column of ids, or - to number the rows",
        parameter="id_field",
    )


def row_name(name: int | str, part: int) -> int | str:
    """Return the id of a row, or of a part of it, as it is shown."""
    return f"{name}#{part}" if part else name


def as_text(value: Any) -> str:
    """Return a value as a column of texts has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def quoted(name: str) -> str:
    """Return a name of a column as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


@contextlib.contextmanager
def creating(folder: Path | None = None, *, force: bool = False) -> Iterator[Store]:
    """Yield an empty store, in memory or for a folder, in which it gets its place if the block ends
    well.

    Raises:
        UsageError: The folder holds an index, unless ``force``, or other files.
    """
    if folder is None:
        store = Store()
        with _filling(store):
            yield store
        return
    _check_target(folder, force=force)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / DATABASE
    with contextlib.ExitStack() as ended:
        ended.callback(_remove_if_empty, folder)
        path = ended.enter_context(temporary_folder(target)) / DATABASE
        path.touch()
        store = Store(path)
        with _filling(store):
            yield store
        store.close()
        _put(path, target, force=force)


@contextlib.contextmanager
def _filling(store: Store) -> Iterator[None]:
    with _refusals(store.path):
        if store.path is not None:  # an unfinished file is deleted
            store.sql.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF")
        store.sql.executescript(f"PRAGMA page_size={_PAGE}; BEGIN; {_SCHEMA}")
        store.keep(format=FORMAT, generation=0, oldest=0, name=uuid4().hex, types={})
        yield
        store.make_lookups()
        store.sql.execute("COMMIT")


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


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


def _check_target(folder: Path, *, force: bool) -> None:
    check_name(folder)
    if not folder.is_dir():
        if folder.exists() or not is_writable(folder):
            raise UsageError(
                f"{folder} is a file or cannot be made; give a folder", parameter="output"
            )
    elif (folder / DATABASE).exists():
        if not force:
            raise UsageError(f"{folder} holds an index; replace it with force", parameter="output")
    elif any(not path.name.startswith(".") for path in folder.iterdir()):
        raise UsageError(f"{folder} holds other files; give an empty folder", parameter="output")


@contextlib.contextmanager
def _refusals(path: Path | None) -> Iterator[None]:
    """Raise SQLite's errors as ours."""
    try:
        yield
    except sqlite3.IntegrityError:
        raise _given_twice("an id") from None
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
