"""The rows of an index in SQLite (texts, columns, settings), and their vectors in a file.

A change is one transaction, which increments the generation. A row's key is the place, from 0, of
its vector in the file. Keys are not reused until the file is rewritten; until then the table
``gone`` holds the keys of removed rows.
"""

import contextlib
import errno
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.precision import Floats
from promptcli.errors import CheckFailedError, NotFoundError, PromptcliError, UsageError
from promptcli.retrieval.vector_file import NAME, VectorFile, damaged
from promptcli.storage.files import check_name, is_writable, sync, temporary_folder

DATABASE = "index.sqlite"  #: database in the folder of an index
FORMAT = 3
#: Type of a column's values -> SQL type.
_DECLARED = {"number": "NUMERIC", "truth": "INT", "date": "TEXT", "text": "TEXT"}
_BUSY = 60.0  # seconds to wait for another process
_ROWS_AT_ONCE = 8192
_SCHEMA = """
CREATE TABLE settings(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE rows(key INTEGER PRIMARY KEY, id, part INT NOT NULL, text, source TEXT);
CREATE TABLE columns(_key INTEGER PRIMARY KEY);
CREATE TABLE gone(key INTEGER PRIMARY KEY);
CREATE TABLE files(name TEXT PRIMARY KEY, size INT, changed INT, sha256 TEXT);
"""
_ERRORS = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_READONLY: errno.EROFS}

Keys = NDArray[np.int64]


@dataclass
class NewRows:
    """m rows for an index, with unit vectors (m, d) once they are encoded."""

    ids: Sequence[int | str]
    texts: Sequence[Any]  #: None for each row with only a vector
    parts: Sequence[int] = ()  #: number of the part of a row, from 1; 0 (default): a whole row
    source: str | None = None  #: the file
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)  #: number, truth, date or text
    vectors: Floats | None = None
    are_numbered: bool = False  #: whether the ids are row numbers, which continue in an index
    read: int = 0  #: input rows consumed for this block, blank ones included

    def __post_init__(self) -> None:
        self.parts = self.parts or [0] * len(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def names(self) -> list[str]:
        """The displayed ids."""
        return [str(row_name(*each)) for each in zip(self.ids, self.parts, strict=True)]

    @property
    def next_number(self) -> int:
        """The number after the highest numeric id."""
        names = map(str, self.ids)
        numbers = (int(name) for name in names if name.isdecimal() and len(name) < 19)
        return max(numbers, default=-1) + 1

    def take(self, places: Sequence[int]) -> "NewRows":
        """Return the rows at some places."""

        def pick(values: Sequence[Any]) -> list[Any]:
            return [values[place] for place in places]

        return replace(
            self,
            ids=pick(self.ids),
            texts=pick(self.texts),
            parts=pick(self.parts),
            columns={name: pick(values) for name, values in self.columns.items()},
            vectors=None if self.vectors is None else self.vectors[list(places)],
        )

    def cells(self, place: int) -> dict[str, Any]:
        """Return the columns of one row, without empty cells."""
        values = {name: column[place] for name, column in self.columns.items()}
        return {name: value for name, value in values.items() if value is not None}

    def drop_blank(self) -> "NewRows":
        """Return the rows with text."""
        return self.take([place for place, text in enumerate(self.texts) if text.strip()])


@dataclass(frozen=True)
class Settings:
    """The settings of an index; each is a row of a table, as JSON."""

    format: int = 0
    generation: int = 0  #: number of changes
    vectors: str = ""  #: name of the vector file
    width: int = 0
    places: int = 0  #: vectors in the file, with those of removed rows
    numbered: int = 0  #: the next row number as an id
    types: Mapping[str, str] = field(default_factory=dict)  #: further columns and their types
    origin: dict[str, Any] = field(default_factory=dict)  #: an ``Origin``
    reading: dict[str, Any] = field(default_factory=dict)  #: a ``Reading``
    created: str = ""
    factory: str | None = None  #: FAISS's factory string; None: by the number of rows
    target_recall: float = 0.95
    lexical: bool = True  #: whether words are counted
    synced: dict[str, Any] | None = None  #: the files that the index mirrors
    migrating: dict[str, Any] | None = None  #: model, vector file and progress of a migration


class Store:
    """An open database, in a folder or in memory; one thread at a time uses it."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.folder = None if path is None else path.parent
        self.lock = threading.RLock()
        self.settings = Settings()
        self.file = VectorFile.new(None, "float32")  #: the vectors
        self._version: int | None = None  # database version at the last read of the settings
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
            if store.settings.format != FORMAT:
                raise CheckFailedError(f"{path} is not an index of this version; build it again")
        return store

    def _connect(self) -> None:
        name = ":memory:" if self.path is None else f"file:{quote(str(self.path))}?mode=rw"
        self._inode = 0 if self.path is None else self.path.stat().st_ino
        with _translate_errors(self.path):
            self.sql = sqlite3.connect(
                name, _BUSY, isolation_level=None, check_same_thread=False, uri=True
            )

    def close(self) -> None:
        """Close the database."""
        self.sql.close()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Read one state of the index, whatever other processes write."""
        with self.lock:
            if self.sql.in_transaction:
                yield
                return
            with _translate_errors(self.path):
                self._begin("DEFERRED")
                try:
                    yield
                finally:
                    self.sql.execute("COMMIT")

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Change the index in one transaction; an error leaves it unchanged."""
        with self.lock, _translate_errors(self.path):
            self._begin("IMMEDIATE")
            before = self.file
            try:
                self.write_settings(generation=self.settings.generation + 1)
                yield
                self.file.sync()
                self.sql.execute("COMMIT")
            except BaseException:
                if self.sql.in_transaction:  # false if interrupted right after its end
                    self.sql.execute("ROLLBACK")
                    if self.file is not before:
                        self.file.delete()
                        self.file = before
                raise
            if self.file is not before:
                before.delete()

    def _begin(self, kind: str) -> None:
        """Begin a transaction in the current file of that name, and read the settings."""
        if self.path is not None and self.path.stat().st_ino != self._inode:  # built again
            self.sql.close()
            self._connect()
            self._version = None
        self.sql.execute(f"BEGIN {kind}")
        version = self.scalar("PRAGMA data_version")  # differs after another connection's change
        if version != self._version:
            rows = self.sql.execute("SELECT name, value FROM settings")
            try:
                self.settings = Settings(**{name: json.loads(value) for name, value in rows})
            except (TypeError, ValueError):
                raise damaged(self.path) from None
            if self.folder is not None:
                self.file = VectorFile(self.settings.vectors, self.folder)
            self._version = version

    def write_settings(self, **settings: Any) -> None:
        """Write settings."""
        values = [(name, json.dumps(value)) for name, value in settings.items()]
        self.sql.executemany("REPLACE INTO settings VALUES(?, ?)", values)
        self.settings = replace(self.settings, **settings)
        self._version = None  # settings are read again, since this may be undone

    def __len__(self) -> int:
        return self.places - int(self.scalar("SELECT count(*) FROM gone"))

    @property
    def state(self) -> tuple[str, int]:
        """The vector file's name, and the generation of the index."""
        return self.settings.vectors, self.settings.generation

    @property
    def types(self) -> dict[str, str]:
        """The other columns and their types."""
        return dict(self.settings.types)

    def scalar(self, query: str, *values: Any) -> Any:
        """Return the first value of a query; None if no row matches."""
        return (self.sql.execute(query, values).fetchone() or [None])[0]

    def append(self, rows: NewRows) -> None:
        """Append rows, in order."""
        keys = range(self.places, self.places + len(rows))
        sources = [rows.source] * len(rows)
        records = zip(keys, rows.ids, rows.parts, rows.texts, sources, strict=True)
        self.sql.executemany("INSERT INTO rows VALUES(?, ?, ?, ?, ?)", records)
        assert rows.vectors is not None
        self.file.write(self.places, rows.vectors)
        self.write_columns(keys, rows)
        numbered = self.settings.numbered + (rows.read or len(rows))
        self.write_settings(places=keys.stop, numbered=max(numbered, rows.next_number))

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
        """Declare new columns, and return each column's values converted to its declared type.

        A column with values of another type becomes text.
        """
        types = self.types
        known = {name.casefold(): name for name in types}
        columns: dict[str, Sequence[Any]] = {}
        for given, values in rows.columns.items():
            kind = rows.types.get(given, "text")
            name = known.setdefault(given.casefold(), given)
            if name in columns:
                raise UsageError(f"two columns are called {name!r} up to case; rename one")
            if name not in types:
                self.sql.execute(f"ALTER TABLE columns ADD {quoted(name)} {_DECLARED[kind]}")
                types[name] = kind
            elif kind != types[name] and any(value is not None for value in values):
                self._make_text(name, types[name])
                types[name] = "text"
            if types[name] == "text":
                values = [None if value is None else as_text(value) for value in values]
            columns[name] = values
        if types != self.settings.types:
            self.write_settings(types=types)
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
        self.sql.executemany("DELETE FROM rows WHERE key=?", records)
        self.sql.executemany("DELETE FROM columns WHERE _key=?", records)
        self.sql.executemany("REPLACE INTO gone VALUES(?)", records)

    def keys_of(self, ids: Iterable[int | str]) -> dict[str, list[int]]:
        """Return the keys of rows by their ids as text, each id's parts in order."""
        names = list(dict.fromkeys(map(str, ids)))
        keys: dict[str, list[int]] = {}
        for start in range(0, len(names), _ROWS_AT_ONCE):
            block = names[start : start + _ROWS_AT_ONCE]
            marks = ", ".join("?" * len(block))
            query = f"WHERE CAST(id AS TEXT) IN ({marks}) ORDER BY part"
            for name, key in self.sql.execute(
                f"SELECT CAST(id AS TEXT), key FROM rows {query}", block
            ):
                keys.setdefault(name, []).append(key)
        return keys

    @property
    def places(self) -> int:
        """The number of vectors in the file, including those of removed rows."""
        return self.settings.places

    @property
    def live_mask(self) -> NDArray[np.bool_] | None:
        """Whether each key up to the last is a live row, (n,); None: all are."""
        gone = [key for (key,) in self.sql.execute("SELECT key FROM gone")]
        if not gone:
            return None
        live_mask = np.ones(self.places, bool)
        live_mask[gone] = False
        return live_mask

    @property
    def units(self) -> Floats:
        """The vectors (n, d) of the file, memory-mapped, indexed by key."""
        return self.file.read(self.places, self.settings.width)

    def vectors(self, keys: Sequence[int] | Keys) -> Floats:
        """Return the vectors (m, d) of m rows."""
        return self.units[np.asarray(keys, np.int64)].astype(np.float32)

    def texts(self, keys: Sequence[int] | Keys) -> list[str]:
        """Return the texts of rows."""
        return [text or "" for _, text in self._select("SELECT key, text FROM rows", keys)]

    def all_rows(self) -> Iterator[tuple[int, int | str, int, str | None]]:
        """Yield key, id, part and text of all rows, in order; call inside ``reading``."""
        return self.sql.execute("SELECT key, id, part, text FROM rows ORDER BY key")

    def records(self, keys: Sequence[int] | Keys) -> list[tuple[Any, ...]]:
        """Return key, id, part, text and source of rows."""
        return self._select("SELECT key, id, part, text, source FROM rows", keys)

    def columns(self, keys: Sequence[int] | Keys) -> list[dict[str, Any]]:
        """Return the columns of rows, without empty cells."""
        types = self.types
        names = "".join(f", {quoted(name)}" for name in types)
        rows = []
        for _, *values in self._select(f"SELECT _key{names} FROM columns", keys, "_key"):
            rows.append(
                {
                    name: bool(value) if kind == "truth" else value
                    for (name, kind), value in zip(types.items(), values, strict=True)
                    if value is not None
                }
            )
        return rows

    def _select(
        self, query: str, keys: Sequence[int] | Keys, name: str = "key"
    ) -> list[tuple[Any, ...]]:
        wanted = np.asarray(keys, np.int64).tolist()
        query = f"{query} WHERE {name} IN (SELECT value FROM json_each(?))"
        found = {row[0]: row for row in self.sql.execute(query, (str(wanted),))}
        if len(found) < len(set(wanted)):
            raise damaged(self.path)
        return [found[key] for key in wanted]

    def text_blocks(self, first: int, stop: int) -> Iterator[list[str]]:
        """Yield the texts of rows in blocks, by key; a removed row's is empty.

        Each block is its own transaction, so that none lasts long.
        """
        query = "SELECT key, text FROM rows WHERE text IS NOT NULL AND key>=? AND key<?"
        for start in range(first, stop, _ROWS_AT_ONCE):
            keys = range(start, min(stop, start + _ROWS_AT_ONCE))
            with self.reading():
                texts = dict(self.sql.execute(query, (keys.start, keys.stop)).fetchall())
            yield [texts.get(key, "") for key in keys]

    def rewrite(self, kind: str) -> None:
        """Renumber the remaining rows from 0 and write a new vector file; call inside ``changing``.

        Args:
            kind: Type of the vectors: ``float32`` or ``float16``.
        """
        keys = [key for (key,) in self.sql.execute("SELECT key FROM rows ORDER BY key")]
        units = self.units
        self.file = VectorFile.new(self.folder, kind)
        for start in range(0, len(keys), _ROWS_AT_ONCE):
            self.file.write(start, units[keys[start : start + _ROWS_AT_ONCE]])
        moved = [(new_key, key) for new_key, key in enumerate(keys) if new_key != key]
        self.sql.executemany("UPDATE rows SET key=? WHERE key=?", moved)
        self.sql.executemany("UPDATE columns SET _key=? WHERE _key=?", moved)
        self.sql.execute("DELETE FROM gone")
        self.delete_leftovers()
        self.write_settings(vectors=self.file.name, places=len(keys), migrating=None)

    def delete_leftovers(self) -> None:
        """Delete vector files that killed processes left; call inside ``changing``."""
        used = (self.file.name, self.settings.vectors)
        if self.folder is not None:
            for path in self.folder.iterdir():
                if NAME.fullmatch(path.name) and path.name not in used:
                    path.unlink()

    def make_lookups(self) -> None:
        """Create SQLite's indexes of ids and files; refuse a repeated id."""
        try:
            self.sql.execute(
                "CREATE UNIQUE INDEX IF NOT EXISTS ids ON rows(CAST(id AS TEXT), part)"
            )
        except sqlite3.IntegrityError:
            twice = "SELECT CAST(id AS TEXT) FROM rows GROUP BY 1, part HAVING count(*)>1 LIMIT 1"
            raise _given_twice(f"the id {self.scalar(twice)!r}") from None
        self.sql.execute("CREATE INDEX IF NOT EXISTS sources ON rows(source)")


def _given_twice(name: str) -> UsageError:
    return UsageError(
        f"{name} is given twice; name another column of ids, or - to number the rows",
        parameter="id_field",
    )


def row_name(name: int | str, part: int) -> int | str:
    """Return the displayed id of a row, or of a part of it."""
    return f"{name}#{part}" if part else name


def as_text(value: Any) -> str:
    """Return a value as a text column holds it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def quoted(name: str) -> str:
    """Return a column name quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


@contextlib.contextmanager
def creating(folder: Path | None = None, *, force: bool = False) -> Iterator[Store]:
    """Yield an empty store, in memory or for a folder; it is moved into the folder if the block
    succeeds.

    Raises:
        UsageError: The folder holds an index, unless ``force``, or other files.
    """
    if folder is None:
        store = Store()
        with _fill(store):
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
        with _fill(store):
            yield store
        store.close()
        _move_into_place(path, target, store.file.name, force=force)
        with contextlib.closing(Store(target)) as placed, placed.changing():
            placed.delete_leftovers()


@contextlib.contextmanager
def _fill(store: Store) -> Iterator[None]:
    with _translate_errors(store.path):
        if store.path is not None:  # no journal is needed: a failed build deletes the whole file
            store.sql.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF")
        store.sql.executescript(f"BEGIN; {_SCHEMA}")
        store.file = VectorFile.new(store.folder, "float32")
        store.write_settings(**asdict(Settings(FORMAT, vectors=store.file.name)))
        yield
        store.make_lookups()
        store.sql.execute("COMMIT")


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _move_into_place(path: Path, target: Path, vectors: str, *, force: bool) -> None:
    """Move a new database and its vector file into place.

    An existing database is changed in one transaction, since other processes may have opened it,
    and would read the journals of a file of the same name.
    """
    new_vectors, placed = path.with_name(vectors), target.with_name(vectors)
    sync(new_vectors)
    os.link(new_vectors, placed)
    sync(target.parent)
    if force and target.exists():
        with contextlib.suppress(CheckFailedError), _translate_errors(target):
            new, old = sqlite3.connect(path), sqlite3.connect(target, _BUSY)
            with contextlib.closing(new), contextlib.closing(old):
                new.backup(old)
            if not placed.exists():  # before the backup, another process removed it as a leftover
                os.link(new_vectors, placed)
            return
        target.unlink()  # the old file was damaged
    sync(path)
    try:
        os.link(path, target)
    except FileExistsError:
        placed.unlink()
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
            raise UsageError(f"{folder} holds an index; force=True replaces it", parameter="output")
    elif any(
        not path.name.startswith(".") and not NAME.fullmatch(path.name) for path in folder.iterdir()
    ):
        raise UsageError(f"{folder} holds other files; give an empty folder", parameter="output")


@contextlib.contextmanager
def _translate_errors(path: Path | None) -> Iterator[None]:
    """Translate SQLite's errors into ours."""
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
            raise damaged(path, f" ({error})") from None
        if code == sqlite3.SQLITE_BUSY:
            raise PromptcliError(f"{path}: another process changes it; try again") from None
        raise PromptcliError(f"{path}: {error}") from None
