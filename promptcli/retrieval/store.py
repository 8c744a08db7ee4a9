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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.precision import Floats
from promptcli.errors import CheckFailedError, NotFoundError, PromptcliError, UsageError
from promptcli.notes import note
from promptcli.retrieval.array_files import VECTOR_FILE_NAME, VectorFile, damage_error
from promptcli.retrieval.new_rows import NewRows, displayed_id
from promptcli.storage.files import check_output_name, is_writable, sync, temporary_folder

DATABASE = "index.sqlite"  #: database in the folder of an index
FORMAT = 3
#: Type of a column's values -> SQL type.
_SQL_TYPES = {"number": "NUMERIC", "truth": "INT", "date": "TEXT", "text": "TEXT"}
_BUSY_TIMEOUT_S = 60.0  # wait for another process
_ROWS_PER_BLOCK = 8192
_SCHEMA = """
CREATE TABLE settings(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE rows(key INTEGER PRIMARY KEY, id, part INT NOT NULL, text, source TEXT);
CREATE TABLE columns(_key INTEGER PRIMARY KEY);
CREATE TABLE gone(key INTEGER PRIMARY KEY);
CREATE TABLE files(name TEXT PRIMARY KEY, size INT, changed INT, sha256 TEXT);
"""
_SELECT_ROWS = "SELECT key, id, part, text, source FROM rows"
_TABLES = {"settings", "rows", "columns", "gone", "files"}
_OS_ERRORS = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_READONLY: errno.EROFS}
#: Basic codes of SQLite's errors for a damaged file.
DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

Keys = NDArray[np.int64]
KeyList = Sequence[int] | Keys
Mask = NDArray[np.bool_]


class Row(NamedTuple):
    """A stored row, without its vector and columns."""

    key: int
    id: int | str
    part: int  #: number of the part of a split row, from 1; 0: the row is not split
    text: str | None
    source: str | None  #: the file

    @property
    def displayed_id(self) -> int | str:
        """The id as a hit shows it."""
        return displayed_id(self.id, self.part)


class FileState(NamedTuple):
    """The state of a file when it was read."""

    size: int
    modified_ns: int  #: 0: the file may change again without a new time
    sha256: str


@dataclass(frozen=True)
class Settings:
    """The settings of an index; the table ``settings`` holds the value of each field as JSON."""

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
        self.vector_file = VectorFile.new(None, "float32")  #: the vectors
        self._version: int | None = None  # database version at the last read of the settings
        self.sql, self._inode = self._connect()

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

    def _connect(self) -> tuple[sqlite3.Connection, int]:
        """Return a connection, and the inode of the file; 0 in memory."""
        name, inode = ":memory:", 0
        if self.path is not None:
            name = f"file:{quote(str(self.path))}?mode=rw"
            inode = self.path.stat().st_ino
        with _translate_errors(self.path):
            connection = sqlite3.connect(
                name, _BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, uri=True
            )
        return connection, inode

    def close(self) -> None:
        """Close the database."""
        self.sql.close()

    def reopen(self, path: Path) -> None:
        """Close the database, and open the one at a path."""
        self.sql.close()
        self.path, self.folder, self._version = path, path.parent, None
        self.sql, self._inode = self._connect()

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
            before = self.vector_file
            try:
                self.write_settings(generation=self.settings.generation + 1)
                yield
                self.vector_file.sync()
                self.sql.execute("COMMIT")
            except BaseException:
                if self.sql.in_transaction:  # false if interrupted right after its end
                    self.sql.execute("ROLLBACK")
                    if self.vector_file is not before:
                        self.vector_file.delete()
                        self.vector_file = before
                raise
            if self.vector_file is not before:
                before.delete()

    def _begin(self, transaction: str) -> None:
        """Begin a transaction, ``DEFERRED`` or ``IMMEDIATE``, and read the settings."""
        if self.path is not None and self.path.stat().st_ino != self._inode:  # another file
            self.reopen(self.path)
        self.sql.execute(f"BEGIN {transaction}")
        try:
            self._read_settings()
        except BaseException:
            self.sql.rollback()
            raise

    def _read_settings(self) -> None:
        version = self.scalar("PRAGMA data_version")  # differs after another connection's change
        if version != self._version:
            tables = {name for (name,) in self.sql.execute("SELECT name FROM sqlite_master")}
            if not tables >= _TABLES:  # e.g. an empty file
                raise damage_error(self.path, " (it lacks tables)")
            rows = self.sql.execute("SELECT name, value FROM settings")
            try:
                self.settings = Settings(**{name: json.loads(value) for name, value in rows})
            except (TypeError, ValueError):
                raise damage_error(self.path) from None
            if self.folder is not None:
                self.vector_file = VectorFile(self.settings.vectors, self.folder)
            self._version = version

    def write_settings(self, **settings: Any) -> None:
        """Write settings."""
        values = [(name, json.dumps(value)) for name, value in settings.items()]
        self.sql.executemany("REPLACE INTO settings VALUES(?, ?)", values)
        self.settings = replace(self.settings, **settings)
        self._version = None  # settings are read again, since this may be undone

    def __len__(self) -> int:
        return self.settings.places - int(self.scalar("SELECT count(*) FROM gone"))

    def scalar(self, query: str, *values: Any) -> Any:
        """Return the first value of a query; None if no row matches."""
        record = self.sql.execute(query, values).fetchone()
        return None if record is None else record[0]

    # Writing

    def append(self, rows: NewRows) -> None:
        """Append encoded rows, in order."""
        assert rows.vectors is not None
        first = self.settings.places
        keys = range(first, first + len(rows))
        sources = [rows.source] * len(rows)
        records = zip(keys, rows.ids, rows.parts, rows.texts, sources, strict=True)
        self.sql.executemany("INSERT INTO rows VALUES(?, ?, ?, ?, ?)", records)
        self.vector_file.write(first, rows.vectors)
        self.write_columns(keys, rows)
        numbered = self.settings.numbered + (rows.input_rows or len(rows))
        for row_id in map(str, rows.ids):
            if row_id.isdecimal() and len(row_id) < 19:  # 64 bits
                numbered = max(numbered, int(row_id) + 1)
        self.write_settings(places=keys.stop, numbered=numbered)

    def write_columns(self, keys: Sequence[int], rows: NewRows) -> None:
        """Write the columns of rows."""
        columns = self._declare_columns(rows)
        names = "".join(f", {quote_name(name)}" for name in columns)
        marks = ", ?" * len(columns)
        self.sql.executemany(
            f"REPLACE INTO columns(_key{names}) VALUES(?{marks})",
            zip(keys, *columns.values(), strict=True),
        )

    def _declare_columns(self, rows: NewRows) -> dict[str, Sequence[Any]]:
        """Declare new columns, and return each column's values converted to its declared type.

        A column that gets values of another type becomes text.
        """
        types = dict(self.settings.types)
        stored_names = {name.casefold(): name for name in types}
        columns: dict[str, Sequence[Any]] = {}
        for new_name, values in rows.columns.items():
            new_type = rows.types.get(new_name, "text")
            name = stored_names.setdefault(new_name.casefold(), new_name)
            if name in columns:
                raise UsageError(f"two columns are called {name!r} up to case; rename one of them")
            if name not in types:
                sql_type = _SQL_TYPES[new_type]
                self.sql.execute(f"ALTER TABLE columns ADD {quote_name(name)} {sql_type}")
                types[name] = new_type
            elif new_type != types[name] and any(value is not None for value in values):
                if types[name] != "text":
                    note(f"column {name!r} becomes text: it held the type {types[name]} before")
                self._convert_to_text(name, types[name])
                types[name] = "text"
            if types[name] == "text":
                values = [None if value is None else as_text(value) for value in values]
            columns[name] = values
        if types != self.settings.types:
            self.write_settings(types=types)
        return columns

    def _convert_to_text(self, name: str, value_type: str) -> None:
        old, new = quote_name(name), quote_name(f"{name} as text")
        text = f"iif({old}, 'true', 'false')" if value_type == "truth" else old
        self.sql.execute(f"ALTER TABLE columns ADD {new} TEXT")
        self.sql.execute(f"UPDATE columns SET {new}={text} WHERE {old} IS NOT NULL")
        self.sql.execute(f"ALTER TABLE columns DROP {old}")
        self.sql.execute(f"ALTER TABLE columns RENAME {new} TO {old}")

    def update(self, updates: Sequence[tuple[int, NewRows]]) -> None:
        """Overwrite the ids, files and columns of rows by their keys; texts and vectors stay."""
        keys = [(key,) for key, _ in updates]
        # two rows may exchange their ids
        self.sql.executemany("UPDATE rows SET id=NULL WHERE key=?", keys)
        for key, row in updates:
            values = (row.ids[0], row.parts[0], row.source, key)
            self.sql.execute("UPDATE rows SET id=?, part=?, source=? WHERE key=?", values)
            self.write_columns([key], row)

    def remove(self, keys: Iterable[int]) -> None:
        """Delete rows."""
        records = [(key,) for key in keys]
        self.sql.executemany("DELETE FROM rows WHERE key=?", records)
        self.sql.executemany("DELETE FROM columns WHERE _key=?", records)
        self.sql.executemany("REPLACE INTO gone VALUES(?)", records)

    def rewrite(self, dtype: str) -> None:
        """Renumber the remaining rows from 0 and write a new vector file; call inside ``changing``.

        Args:
            dtype: Type of the vectors: ``float32`` or ``float16``.
        """
        keys = [key for (key,) in self.sql.execute("SELECT key FROM rows ORDER BY key")]
        vectors = self.all_vectors()
        self.vector_file = VectorFile.new(self.folder, dtype)
        for start in range(0, len(keys), _ROWS_PER_BLOCK):
            self.vector_file.write(start, vectors[keys[start : start + _ROWS_PER_BLOCK]])
        new_keys = [(new_key, key) for new_key, key in enumerate(keys) if new_key != key]
        self.sql.executemany("UPDATE rows SET key=? WHERE key=?", new_keys)
        self.sql.executemany("UPDATE columns SET _key=? WHERE _key=?", new_keys)
        self.sql.execute("DELETE FROM gone")
        self.delete_leftovers()
        self.write_settings(vectors=self.vector_file.name, places=len(keys), migrating=None)

    def delete_leftovers(self) -> None:
        """Delete vector files that killed processes left; call inside ``changing``."""
        used = (self.vector_file.name, self.settings.vectors)
        if self.folder is not None:
            for path in self.folder.iterdir():
                if VECTOR_FILE_NAME.fullmatch(path.name) and path.name not in used:
                    path.unlink()

    # Reading

    def keys_of(self, ids: Iterable[int | str]) -> dict[str, list[int]]:
        """Return the keys of rows by their ids as text, each id's parts in order."""
        texts = list(dict.fromkeys(map(str, ids)))
        keys: dict[str, list[int]] = {}
        for start in range(0, len(texts), _ROWS_PER_BLOCK):
            block = texts[start : start + _ROWS_PER_BLOCK]
            marks = ", ".join("?" * len(block))
            query = (
                "SELECT CAST(id AS TEXT), key FROM rows"
                f" WHERE CAST(id AS TEXT) IN ({marks}) ORDER BY part"
            )
            for row_id, key in self.sql.execute(query, block):
                keys.setdefault(row_id, []).append(key)
        return keys

    def live_mask(self) -> Mask | None:
        """Return the mask (n,) of keys that are rows; None if no row was removed."""
        removed_keys = [key for (key,) in self.sql.execute("SELECT key FROM gone")]
        if not removed_keys:
            return None
        live_mask = np.ones(self.settings.places, bool)
        live_mask[removed_keys] = False
        return live_mask

    def all_vectors(self) -> Floats:
        """Return the vectors (n, d) of the file, memory-mapped, indexed by key."""
        return self.vector_file.read(self.settings.places, self.settings.width)

    def vectors(self, keys: KeyList) -> Floats:
        """Return the vectors (m, d) of m rows."""
        return self.all_vectors()[np.asarray(keys, np.int64)].astype(np.float32)

    def all_rows(self) -> Iterator[Row]:
        """Yield all rows, in order; call inside ``reading``."""
        return map(Row._make, self.sql.execute(f"{_SELECT_ROWS} ORDER BY key"))

    def rows_of_file(self, file: str) -> list[Row]:
        """Return the rows of a file, in order."""
        query = f"{_SELECT_ROWS} WHERE source=? ORDER BY key"
        return list(map(Row._make, self.sql.execute(query, (file,))))

    def rows(self, keys: KeyList) -> list[Row]:
        """Return rows, in the order of the keys."""
        return list(map(Row._make, self._select(_SELECT_ROWS, "key", keys)))

    def texts(self, keys: KeyList) -> list[str]:
        """Return the texts of rows."""
        return [row.text or "" for row in self.rows(keys)]

    def columns(self, keys: KeyList) -> list[dict[str, Any]]:
        """Return the columns of rows, without empty cells."""
        types = self.settings.types
        names = "".join(f", {quote_name(name)}" for name in types)
        rows = []
        for _, *values in self._select(f"SELECT _key{names} FROM columns", "_key", keys):
            cells = {}
            for (name, value_type), value in zip(types.items(), values, strict=True):
                if value is not None:
                    cells[name] = bool(value) if value_type == "truth" else value
            rows.append(cells)
        return rows

    def _select(self, query: str, name: str, keys: KeyList) -> list[tuple[Any, ...]]:
        """Return the records of a query whose first column, ``name``, holds the keys."""
        numbers = np.asarray(keys, np.int64).tolist()
        query = f"{query} WHERE {name} IN (SELECT value FROM json_each(?))"
        records = {record[0]: record for record in self.sql.execute(query, (str(numbers),))}
        if len(records) < len(set(numbers)):
            raise damage_error(self.path)
        return [records[key] for key in numbers]

    def text_blocks(self, first: int, stop: int) -> Iterator[list[str]]:
        """Yield the texts of rows in blocks, by key; a removed row's is empty.

        Each block is its own transaction, so that none lasts long.
        """
        query = "SELECT key, text FROM rows WHERE text IS NOT NULL AND key>=? AND key<?"
        for start in range(first, stop, _ROWS_PER_BLOCK):
            keys = range(start, min(stop, start + _ROWS_PER_BLOCK))
            with self.reading():
                texts = dict(self.sql.execute(query, (keys.start, keys.stop)).fetchall())
            yield [texts.get(key, "") for key in keys]

    # The files that an index mirrors

    def file_states(self, names: Collection[str] | None = None) -> dict[str, FileState]:
        """Return the states of files, or of those with certain names."""
        query, values = "SELECT * FROM files", []
        if names is not None:
            query += " WHERE name IN (SELECT value FROM json_each(?))"
            values = [json.dumps(list(names))]
        records = self.sql.execute(query, values)
        return {name: FileState(*state) for name, *state in records}

    def write_file_states(self, states: Mapping[str, FileState]) -> None:
        """Replace the states of all files."""
        self.sql.execute("DELETE FROM files")
        records = [(name, *state) for name, state in states.items()]
        self.sql.executemany("INSERT INTO files VALUES(?, ?, ?, ?)", records)


def as_text(value: Any) -> str:
    """Return a value as a text column holds it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _repeated_id_error(name: str) -> UsageError:
    return UsageError(
        f"{name} is given twice; name another column of ids, or - to number the rows",
        parameter="id_field",
    )


def quote_name(name: str) -> str:
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
        with _creating_tables(store):
            yield store
        return
    _check_target(folder, force=force)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / DATABASE
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(_remove_if_empty, folder)
        path = cleanup.enter_context(temporary_folder(target)) / DATABASE
        path.touch()
        store = Store(path)
        with _creating_tables(store):
            yield store
        store.close()
        _move_into_place(path, target, store.vector_file.name, force=force)
        store.reopen(target)
        with store.changing():
            store.delete_leftovers()


@contextlib.contextmanager
def _creating_tables(store: Store) -> Iterator[None]:
    """Create the tables of a store, let the block fill them, and then add the lookup indexes."""
    sql = store.sql
    with _translate_errors(store.path):
        if store.path is not None:  # no journal is needed: a failed build deletes the whole file
            sql.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF")
        sql.executescript(f"BEGIN; {_SCHEMA}")
        store.vector_file = VectorFile.new(store.folder, "float32")
        store.write_settings(**asdict(Settings(FORMAT, vectors=store.vector_file.name)))
        yield
        try:
            sql.execute("CREATE UNIQUE INDEX ids ON rows(CAST(id AS TEXT), part)")
        except sqlite3.IntegrityError:
            repeated = "SELECT CAST(id AS TEXT) FROM rows GROUP BY 1, part HAVING count(*)>1"
            raise _repeated_id_error(f"the id {store.scalar(repeated)!r}") from None
        sql.execute("CREATE INDEX sources ON rows(source)")
        sql.execute("COMMIT")


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _move_into_place(path: Path, target: Path, vectors: str, *, force: bool) -> None:
    """Move a new database and its vector file into place.

    An existing database is overwritten in one transaction. Other processes may have it open, and
    would take the journal of a new file for the journal of their file.
    """
    new_vectors, target_vectors = path.with_name(vectors), target.with_name(vectors)
    sync(new_vectors)
    os.link(new_vectors, target_vectors)
    sync(target.parent)
    if force and target.exists():
        with contextlib.suppress(CheckFailedError), _translate_errors(target):
            new, old = sqlite3.connect(path), sqlite3.connect(target, _BUSY_TIMEOUT_S)
            with contextlib.closing(new), contextlib.closing(old):
                new.backup(old)
            if not target_vectors.exists():  # another process took the file for a leftover
                os.link(new_vectors, target_vectors)
            return
        target.unlink()  # the old file was damaged
    sync(path)
    try:
        os.link(path, target)
    except FileExistsError:
        target_vectors.unlink()
        raise UsageError(f"{target.parent} was made in the meantime", parameter="output") from None
    sync(target.parent)


def _check_target(folder: Path, *, force: bool) -> None:
    check_output_name(folder)
    if not folder.is_dir():
        if folder.exists() or not is_writable(folder):
            raise UsageError(
                f"{folder} is a file or cannot be created; name another folder",
                parameter="output",
            )
    elif (folder / DATABASE).exists():
        if not force:
            raise UsageError(f"{folder} holds an index; force=True replaces it", parameter="output")
    elif any(
        not path.name.startswith(".") and not VECTOR_FILE_NAME.fullmatch(path.name)
        for path in folder.iterdir()
    ):
        raise UsageError(f"{folder} holds other files; name an empty folder", parameter="output")


def basic_code(error: sqlite3.Error) -> int:
    """Return SQLite's basic code of an error; 0 for an error of Python's module."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


@contextlib.contextmanager
def _translate_errors(path: Path | None) -> Iterator[None]:
    """Translate SQLite's errors into ours."""
    try:
        yield
    except sqlite3.IntegrityError:
        raise _repeated_id_error("an id") from None
    except sqlite3.DatabaseError as error:
        code = basic_code(error)
        if code in _OS_ERRORS:
            number = _OS_ERRORS[code]
            raise OSError(number, os.strerror(number), str(path)) from None
        if code in DAMAGE_CODES:
            raise damage_error(path, f" ({error})") from None
        if code == sqlite3.SQLITE_BUSY:
            raise PromptcliError(f"{path}: another process changes it; try again") from None
        raise PromptcliError(f"{path}: {error}") from None
