"""Tables of rows by name, to which installed packages add rows by entry points
(docs/extending.md).
"""

import contextlib
import contextvars
import functools
import glob
import hashlib
import importlib
import operator
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from promptcli.errors import (
    PromptcliError,
    UsageError,
    did_you_mean,
    distribution_name,
    is_out_of_memory,
    look_up,
    one_line,
)
from promptcli.notes import warn

if TYPE_CHECKING:
    from importlib.metadata import Distribution

#: Name of a table -> its place. An entry point of another group ``promptcli.NAME`` is a mistake.
TABLES = {
    "poolings": "promptcli.encoder.pooling:WEIGHTS",
    "transforms": "promptcli.encoder.transforms:TRANSFORMS",
    "prompts": "promptcli.encoder.prompts:PROMPTS",
    "methods": "promptcli.training.methods:METHODS",
    "objectives": "promptcli.training.objectives:OBJECTIVES",
    "tasks": "promptcli.data.task_table:TASKS",
    "formats": "promptcli.data.vectors.formats:VECTOR_FORMATS",
    "input_formats": "promptcli.data.input_formats:INPUT_FORMATS",
    "families": "promptcli.backbones.families:FAMILIES",
    "commands": "promptcli.cli.command_line:COMMANDS",
    "engines": "promptcli.embedding.engines:ENGINES",
    "datasets": "promptcli.embedding.datasets:DATA_SETS",
    "model_files": "promptcli.backbones.file_formats:MODEL_FILES",
    "word_files": "promptcli.backbones.file_formats:WORD_FILES",
    "trackers": "promptcli.training.tracker_table:TRACKERS",
    "backends": "promptcli.models.backend_table:BACKENDS",
    "exports": "promptcli.models.exporting:TARGETS",
}

_OWN = __name__.partition(".")[0]
_GROUP = f"{_OWN}."
_PLUGINS = f"{_OWN}.plugins."
Row = TypeVar("Row")


@dataclass(frozen=True, order=True)
class Extension:
    """A row that is not promptcli's own: enough to tell two versions of its code apart."""

    table: str
    name: str
    distribution: str | None  #: None if a program put the row in itself
    version: str | None
    source_sha256: str  #: of the Python files of the distribution and of the row's package

    @property
    def author(self) -> str:
        """The package and its version, as a message names it."""
        if self.distribution is None:
            return "this program"
        return f"the package {self.distribution} {self.version}"

    def __str__(self) -> str:
        """Return distribution, version and the beginning of the hash: enough to tell two apart."""
        whose = self.name
        if self.distribution is not None:
            whose = f"{self.distribution} {self.version}"
        return f"{whose}, {self.source_sha256[:16]}"


#: Rows of other packages that are looked up within ``used_extensions``.
_USED: contextvars.ContextVar[set[Extension] | None] = contextvars.ContextVar("used", default=None)


@contextlib.contextmanager
def used_extensions() -> Iterator[set[Extension]]:
    """Yield a set that receives each extension whose row is looked up within the block."""
    outer = _USED.get()
    used: set[Extension] = set()
    token = _USED.set(used)
    try:
        yield used
    finally:
        _USED.reset(token)
        if outer is not None:
            outer |= used


class Table(MutableMapping[str, Row], Generic[Row]):
    """Rows by name: built-in ones, and those of the entry points ``promptcli.NAME``, loaded on
    first use.

    Plug-ins that fail to load or reuse a name are skipped with a warning. A plug-in of promptcli's
    own whose folder was deleted is skipped in silence.
    """

    def __init__(
        self,
        name: str,
        rows: Mapping[str, Row],
        check: Callable[[str, Row], None] = lambda name, row: None,
    ) -> None:
        self.name = name
        self._check = check  #: raises an error that says what is wrong with a plug-in's row
        self.own = dict(rows)
        self._all: dict[str, Row] | None = None
        self._extensions: dict[str, Extension] = {}
        self._absent: set[str] = set()
        self._faults: dict[
            tuple[str, str], str
        ] = {}  #: name and target of a row -> why it is left out
        self._lock = threading.RLock()

    def _rows(self) -> dict[str, Row]:
        with self._lock:
            if self._all is None:
                self._all = dict(self.own)  # for plug-ins that look here while they are loaded
                for point in _entry_points().get(_GROUP + self.name, ()):
                    self._add(point, self._all)
            return self._all

    def _add(self, point: "_EntryPoint", rows: dict[str, Row]) -> None:
        where = f"the row {point.name!r} that {point.value} adds to {self.name}"
        if point.name in rows:
            taken = "that name is taken; rename the entry point"
            self._faults[point.name, point.value] = taken
            warn(f"{where} is left out: {taken}")
            return
        try:
            row = point.load()
            self._check(point.name, row)
            if not point.is_own:
                # now, so that it is the source of the code that was loaded
                self._extensions[point.name] = _installed_extension(self.name, point, row)
        except Exception as error:  # a package may raise anything
            if is_absent_plugin(error):
                self._absent.add(point.name)
                self._faults[point.name, point.value] = "its folder was deleted"
                return
            fault = f"{type(error).__name__}: {one_line(error, 160)}"
            self._faults[point.name, point.value] = fault
            warn(f"{where} is left out: {fault}")
            return
        rows[point.name] = row

    def scan(self) -> Iterator[tuple[str, Row]]:
        """Yield names and rows, which are looked through and not counted as used."""
        yield from self._rows().items()

    def fault(self, name: str, target: str) -> str | None:
        """Return why the row of an entry point was left out; None if it was not."""
        self._rows()
        return self._faults.get((name, target))

    def absent(self) -> set[str]:
        """Return the names of the rows whose plug-in, one of promptcli's own, was deleted."""
        self._rows()
        return self._absent

    def knows(self, name: str) -> bool:
        """Return whether there is a row of that name, or was before its plug-in was deleted."""
        return name in self or name in self.absent()

    def find(self, kind: str, name: str) -> Row:
        """Return a row that a user names; ``kind`` is what the rows are called.

        Raises:
            UsageError: No such row, or one of a plug-in that was deleted.
        """
        if name not in self and name in self.absent():
            raise absent_plugin(f"{kind} {name}")
        return look_up(kind, name, self)

    def extension(self, name: str) -> Extension | None:
        """Return where the code of a row came from; None if the row is promptcli's own."""
        self._rows()
        return self._extensions.get(name)

    @contextlib.contextmanager
    def naming_author(self, kind: str, name: str) -> Iterator[None]:
        """Name the package of a row in what its code raises within the block; ``kind`` is what the
        rows are called.

        Raises:
            PromptcliError: One line for any error that is not promptcli's own.
        """
        try:
            yield
        except PromptcliError:
            raise
        except Exception as error:  # a package may raise anything
            extension = self.extension(name)
            if extension is None or is_out_of_memory(error):
                raise
            fault = fault_of(error)
            raise PromptcliError(f"{kind} {name!r} of {extension.author}: {fault}") from error

    def __getitem__(self, name: str) -> Row:
        row = self._rows()[name]
        used = _USED.get()
        if used is not None and name in self._extensions:
            used.add(self._extensions[name])
        return row

    def __contains__(self, name: object) -> bool:
        return name in self._rows()

    def __setitem__(self, name: str, row: Row) -> None:
        self._rows()[name] = row
        if row is self.own.get(name):
            self._extensions.pop(name, None)
        else:
            files = _module_files(_module_of(row))
            self._extensions[name] = Extension(self.name, name, None, None, _hash(files))

    def __delitem__(self, name: str) -> None:
        del self._rows()[name]
        self._extensions.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows())

    def __len__(self) -> int:
        return len(self._rows())


def must_be(*kinds: type) -> Callable[[str, object], None]:
    """Return the check that a row of a plug-in is an object of one of the kinds."""

    def check(name: str, row: object) -> None:
        if not isinstance(row, kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise TypeError(f"it is {_described(row)}, not an object of {wanted}")

    return check


def must_extend(base: type) -> Callable[[str, object], None]:
    """Return the check that a row of a plug-in is a class made from ``base``."""

    def check(name: str, row: object) -> None:
        if not (isinstance(row, type) and issubclass(row, base)):
            raise TypeError(f"it is {_described(row)}, not a class made from {base.__name__}")

    return check


def must_have(*methods: str) -> Callable[[str, object], None]:
    """Return the check that a row of a plug-in is an object with these methods."""

    def check(name: str, row: object) -> None:
        missing = [method for method in methods if not callable(getattr(row, method, None))]
        if isinstance(row, type) or missing:
            wanted = " and ".join(methods)
            raise TypeError(f"it is {_described(row)}, not an object with {wanted}")

    return check


def must_be_called(name: str, row: object) -> None:
    """Check that a row of a plug-in is a function or a class."""
    if not callable(row):
        raise TypeError(f"it is {_described(row)}, not a function or a class")


def _described(row: object) -> str:
    if isinstance(row, type):
        return f"the class {row.__name__}"
    return f"an object of {type(row).__name__}"


def is_absent_plugin(error: Exception) -> bool:
    """Return whether an import failed because a plug-in of promptcli's own was deleted."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return f"{missing or ''}.".startswith(_PLUGINS)


def absent_plugin(what: str) -> UsageError:
    """Return the error for something that a deleted plug-in of promptcli's own would do."""
    return UsageError(
        f"{what} is a plug-in that is not installed here;"
        f" install {distribution_name()} again, which brings it"
    )


@dataclass(frozen=True)
class AddedRow:
    """A row that an installed package adds."""

    table: str
    name: str
    package: str  #: with its version
    target: str  #: ``module:attribute``
    value: Any  #: the row; None if it was left out
    fault: str | None  #: why it was left out

    def to_dict(self) -> dict[str, str]:
        """Return what tells the row from others, JSON-ready."""
        return {name: getattr(self, name) for name in ("table", "name", "package", "target")}


def added_rows() -> list[AddedRow]:
    """Return the rows that installed packages add, promptcli's own last; all are loaded."""
    points = [point for of_group in _entry_points().values() for point in of_group]
    rows = []
    for point in sorted(points, key=lambda each: (each.is_own, each.distribution, each.group)):
        table = point.group.removeprefix(_GROUP)
        fault: str | None = f"there is no table {table!r}"
        value = None
        if table in TABLES:
            fault = table_named(table).fault(point.name, point.value)
            value = None if fault else table_named(table).get(point.name)
        rows.append(AddedRow(table, point.name, point.distribution, point.value, value, fault))
    return rows


def table_named(name: str) -> Table[Any]:
    """Return one of ``TABLES``; its module is imported."""
    module, _, attribute = TABLES[name].partition(":")
    table: Table[Any] = getattr(importlib.import_module(module), attribute)
    return table


def recorded_extensions(provenance: Mapping[str, Any]) -> list[Extension]:
    """Return the rows of other packages that a model's record names; other names are left out."""
    extensions = []
    for facts in (provenance, provenance.get("trained")):
        rows = facts.get("extensions") if isinstance(facts, Mapping) else None
        for row in rows if isinstance(rows, list) else ():
            with contextlib.suppress(TypeError):
                extensions.append(Extension(**row))
    return extensions


def fault_of(error: BaseException) -> str:
    """Return an error of another package's code in one line, with the place in that code."""
    line = f"{type(error).__name__}: {one_line(error, 200)}"
    for frame, number in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_globals.get("__name__", "").partition(".")[0] in _roots_of_others():
            return f"{line} ({os.path.basename(frame.f_code.co_filename)}, line {number})"
    return line


def author_of(error: BaseException) -> str | None:
    """Return the installed package whose code raised an error; None without one."""
    authors = _roots_of_others()
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        root = frame.f_globals.get("__name__", "").partition(".")[0]
        if root in authors:
            return f"the package {authors[root].distribution}"
    return None


@functools.cache
def _roots_of_others() -> "dict[str, _EntryPoint]":
    """Return the packages of others that add rows, by the outermost name of their modules."""
    points = [point for of_group in _entry_points().values() for point in of_group]
    return {point.module.partition(".")[0]: point for point in points if not point.is_own}


def _installed_extension(table: str, point: "_EntryPoint", row: object) -> Extension:
    """Return the extension of a row that an installed package adds."""
    from importlib.metadata import Distribution

    distribution = Distribution.at(point.metadata)
    files = _distribution_files(distribution)
    for module in (point.module, _module_of(row)):
        files |= _package_files(module)
    name = distribution.metadata["Name"]
    return Extension(table, point.name, name, distribution.version, _hash(files))


#: Dotted name of a Python file's module -> its path.
_Files = dict[str, Path]


def _distribution_files(distribution: "Distribution") -> _Files:
    """Return the Python files that a distribution lists.

    An editable one lists none; ``_package_files`` finds those.
    """
    files = {}
    for file in distribution.files or ():
        if file.suffix == ".py" and ".." not in file.parts:
            files[file.as_posix()] = Path(str(file.locate()))
    for name in (distribution.read_text("top_level.txt") or "").split():
        files |= _package_files(name)
    return files


def _package_files(module: str) -> _Files:
    """Return the Python files of the outermost package of a module that is a folder with code.

    A namespace, which several distributions share, is not one.
    """
    parts = module.split(".")
    if parts[0] == _OWN or parts[0] in sys.stdlib_module_names:
        return {}
    for count in range(1, len(parts) + 1):
        outer = sys.modules.get(".".join(parts[:count]))
        if outer is None or getattr(outer, "__file__", None) is None:
            continue
        if not hasattr(outer, "__path__"):
            return _module_files(outer.__name__)
        files = {}
        for folder in map(Path, outer.__path__):
            for path in folder.rglob("*.py"):
                inside = path.relative_to(folder).as_posix()
                files[f"{outer.__name__.replace('.', '/')}/{inside}"] = path
        return files
    return {}


def _module_files(module: str) -> _Files:
    """Return the file of one module; none if it has no Python file, as one typed in has none."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or not file.endswith(".py"):
        return {}
    return {f"{module.replace('.', '/')}.py": Path(file)}


def _module_of(row: object) -> str:
    """Return the name of the module that a row is written in: its own, or its class's."""
    if isinstance(row, functools.partial):
        row = row.func
    return str(getattr(row, "__module__", None) or "")


def _hash(files: _Files) -> str:
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        with contextlib.suppress(OSError):  # listed, and not installed
            content = path.read_bytes()
            digest.update(f"{name}\n{len(content)}\n".encode() + content)
    return digest.hexdigest()


@dataclass(frozen=True)
class _EntryPoint:
    """A row that the metadata of an installed distribution names."""

    group: str
    name: str
    value: str  #: ``module:attribute``
    metadata: str  #: folder of the distribution's metadata

    @property
    def module(self) -> str:
        return self.value.partition(":")[0].strip()

    @property
    def distribution(self) -> str:
        """Name and version, as the folder of the metadata has them."""
        name = os.path.basename(self.metadata).rpartition(".")[0]
        return name.replace("-", " ").replace("_", "-")

    @property
    def is_own(self) -> bool:
        """Whether the row is in promptcli itself, as the plug-ins that come with it are."""
        return self.module.partition(".")[0] == _OWN

    def load(self) -> Any:
        attribute = self.value.partition(":")[2].partition("[")[0].strip()
        return operator.attrgetter(attribute)(importlib.import_module(self.module))


@functools.cache
def _entry_points() -> dict[str, list[_EntryPoint]]:
    """Return the entry points of our groups.

    The metadata of other packages is not parsed, nor importlib.metadata imported: both take long.
    """
    points: dict[tuple[str, str, str], _EntryPoint] = {}
    for folder in dict.fromkeys(sys.path):
        for path in glob.iglob(
            os.path.join(glob.escape(folder or "."), "*-info", "entry_points.txt")
        ):
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read()
            if f"[{_GROUP}" in text:
                for point in _parsed(text, os.path.dirname(path)):
                    # the first one: a distribution may be installed twice
                    points.setdefault((point.group, point.name, point.value), point)
    by_group: dict[str, list[_EntryPoint]] = {}
    for point in points.values():
        by_group.setdefault(point.group, []).append(point)
    for group, rows in by_group.items():
        name = group.removeprefix(_GROUP)
        if name not in TABLES:
            warn(
                f"the rows of {group!r}, of the package {rows[0].distribution}, are left out: there"
                f" is no such table{did_you_mean(name, TABLES)}"
            )
    return by_group


def _parsed(text: str, metadata: str) -> Iterator[_EntryPoint]:
    """Yield the entry points of our groups in the text of an ``entry_points.txt``."""
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            group = line.strip("[]")
        elif group.startswith(_GROUP) and "=" in line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            yield _EntryPoint(group, name.strip(), value.strip(), metadata)
