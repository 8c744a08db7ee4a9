"""The files that names, folders and globs refer to, each once; each file left out has a reason.

In a folder, hidden files, those matched by ``.gitignore`` and ``.ignore``, and what ``embed`` and
``index`` have written are left out. A link to a file is read unless the file itself is; a link to a
folder is not followed. Files named explicitly are always read.
"""

import contextlib
import glob
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pathspec import GitIgnoreSpec

from promptcli.data.input_files import check_file, split_columns
from promptcli.data.vectors.formats import MANIFEST_ENDING, escape_name, manifest_path
from promptcli.data.vectors.part_folder import is_part_folder
from promptcli.errors import NotFoundError, UsageError, one_line, with_count
from promptcli.notes import note
from promptcli.retrieval.store import DATABASE
from promptcli.storage.files import real_path

_IGNORE_FILES = (".gitignore", ".ignore")  # later rules win
#: Reason -> noun of a note.
_REASONS = {
    "a link to a folder, which is not followed": ("link to a folder", "links to folders"),
    "a link to a file that is read by another name": (
        "second name of a file",
        "second names of files",
    ),
    "a link that leads to no file": ("link to no file", "links to no file"),
    "named by .gitignore, .ignore or an option": ("ignored file", "ignored files and folders"),
}
_LINKED_FOLDER, _READ_ALREADY, _LEADS_NOWHERE, _IGNORED = _REASONS

#: A folder and its patterns for the files in it.
Rules = list[tuple[Path, GitIgnoreSpec]]


@dataclass(frozen=True)
class LeftOut:
    """A file that is not read."""

    file: str
    reason: str


@dataclass
class FoundFiles:
    """The found files in order, and those left out."""

    #: whether each was found in a folder or by a glob, and so may be left out
    files: dict[str, bool] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)

    def leave_out(self, path: str | Path, reason: str) -> None:
        """Add a file or folder to those that are left out."""
        self.left_out.append(LeftOut(escape_name(str(path)), reason))

    @contextlib.contextmanager
    def reading(self, file: str) -> Iterator[None]:
        """Read one of the files; a found file is left out if it cannot be read."""
        try:
            yield
        except (UsageError, OSError) as error:
            if not self.files[file]:
                raise
            reason = error.message if isinstance(error, UsageError) else one_line(error, 100)
            self.leave_out(file, reason.removeprefix(escape_name(file)).lstrip(": "))

    def note(self, *, verbose: bool) -> str:
        """Return a summary of the files left out, as the end of a line; with ``verbose`` note each
        one.
        """
        if verbose:
            for each in self.left_out:
                note(f"left out: {each.file}: {each.reason}")
        parts = []
        unreadable = [each for each in self.left_out if each.reason not in _REASONS]
        if unreadable:
            names = ", ".join(each.file for each in unreadable[:3])
            more = f" and {len(unreadable) - 3:,} more" if len(unreadable) > 3 else ""
            parts.append(
                f"skipped {with_count(len(unreadable), 'file')} that cannot be read as text or"
                f" tables: {names}{more} ({unreadable[0].file}: {unreadable[0].reason})"
            )
        reasons = Counter(each.reason for each in self.left_out if each.reason in _REASONS)
        if reasons:
            counts = [with_count(count, *_REASONS[reason]) for reason, count in reasons.items()]
            parts.append(f"left out {', '.join(counts)}")
        return "; ".join(parts)


def find_files(
    names: Sequence[str], *, ignore: bool = True, exclude: Sequence[str] = ()
) -> FoundFiles:
    """Return the files that names refer to.

    Args:
        names: Files, ``FILE:COLUMN``, folders and globs.
        ignore: Whether folders obey ``.gitignore`` and ``.ignore``.
        exclude: Further patterns of the same form.
    """
    found = FoundFiles()
    named, paths = list[str](), list[str]()
    for name in names:
        file = split_columns(name)[0]  # a column may have brackets: messages[].content
        if os.path.isdir(name):
            paths += _in_folder(Path(name), found, ignore, exclude)
        elif os.path.exists(file) or not glob.has_magic(file):
            check_file(Path(file), regular=True, allowed="a file, a folder, or a glob")
            named.append(name)
        else:
            paths += sorted(filter(os.path.isfile, _matching_paths(name)))
    # explicit names come first; among the others a file comes before links to it
    seen = {_real_name(name, split_columns(name)[0]): name for name in reversed(named)}
    for path in sorted(paths, key=os.path.islink):
        if seen.setdefault(_real_name(path, path), path) != path and os.path.islink(path):
            found.leave_out(path, _READ_ALREADY)
    read = set(seen.values())
    found.files = {name: name not in named for name in (*named, *paths) if name in read}
    if not found.files:
        raise NotFoundError(
            f"no file in {', '.join(names)}; give texts, tables, or folders of them"
        )
    return found


def _real_name(name: str, path: str) -> str:
    return f"{real_path(Path(path))}{name.removeprefix(path)}"


def _in_folder(top: Path, found: FoundFiles, ignore: bool, exclude: Sequence[str]) -> list[str]:
    """Return the files to read in a folder, sorted."""
    if (top / DATABASE).is_file():
        raise UsageError(
            f"{top} is an index, not a folder of texts; `promptcli index search {top} QUERY`"
            " searches it"
        )
    rules = [*(_rules_above(top) if ignore else ()), (top, GitIgnoreSpec.from_lines(exclude))]
    return sorted(_files_below(top, found, ignore, rules))


def _files_below(folder: Path, found: FoundFiles, ignore: bool, rules: Rules) -> Iterator[str]:
    if ignore:
        rules = [*rules, *_rules_in(folder)]
    names = list[str]()
    with contextlib.suppress(OSError):  # it may not be listed
        names = sorted(os.listdir(folder))
    for name in names:
        path = folder / name
        is_folder = path.is_dir()
        if name.startswith(".") or _is_output(path):
            continue
        if is_folder and path.is_symlink():
            found.leave_out(path, _LINKED_FOLDER)
        elif _is_ignored(path, rules, "/" if is_folder else ""):
            found.leave_out(path, _IGNORED)
        elif is_folder:
            yield from _files_below(path, found, ignore, rules)
        elif path.is_file():
            yield str(path)
        elif path.is_symlink():
            found.leave_out(path, _LEADS_NOWHERE)


def _is_output(path: Path) -> bool:
    """Return whether ``index`` or ``embed`` has written a folder or a file."""
    if path.is_dir():
        return (path / DATABASE).is_file() or is_part_folder(path)
    vectors = path.with_name(path.name.removesuffix(MANIFEST_ENDING))
    return vectors.is_file() and manifest_path(vectors).is_file()


def _rules_in(folder: Path) -> Rules:
    paths = [folder / name for name in _IGNORE_FILES if (folder / name).is_file()]
    lines = [path.read_text("utf-8", "replace").splitlines() for path in paths]
    return [(folder, GitIgnoreSpec.from_lines(each)) for each in lines]


def _rules_above(folder: Path) -> Rules:
    """Return the rules of the parent folders, up to the repository's root."""
    above: Rules = []
    for parent in real_path(folder).parents:
        above = [*_rules_in(parent), *above]
        if (parent / ".git").exists():
            return above
    return []


def _is_ignored(path: Path, rules: Rules, end: str) -> bool:
    """Return whether the last matching rule leaves a path out; the ``end`` of a folder is /."""
    ignored = False
    for folder, spec in rules:
        start = path if path.is_relative_to(folder) else real_path(path)
        decided = spec.check_file(f"{start.relative_to(folder).as_posix()}{end}").include
        ignored = ignored if decided is None else decided
    return ignored


def _matching_paths(pattern: str) -> Iterator[str]:
    """Yield the paths that a glob matches; ``**`` does not follow links to folders."""
    before, stars, after = pattern.partition("**/")
    if not stars or (before and not before.endswith("/")):
        yield from glob.iglob(pattern, recursive=True)
        return
    for start in [before] if not glob.has_magic(before) else glob.iglob(before):
        for inside, folders, _ in os.walk(start or "."):
            folders[:] = [each for each in folders if not each.startswith(".")]
            if not start:
                inside = inside.removeprefix(".").removeprefix("/")
            yield from _matching_paths(os.path.join(glob.escape(inside), after))
