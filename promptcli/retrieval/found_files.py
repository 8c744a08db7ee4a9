"""The files that names, folders and globs mean; each is read once, what is left out has a reason.

In a folder, hidden files are left out, and what ``.gitignore`` and ``.ignore`` name. A link to a
file is read unless the file is, and a link to a folder is not followed. What is named is always
read.
"""

import glob
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pathspec import GitIgnoreSpec

from promptcli.data.file_arguments import split_columns
from promptcli.data.input_files import check_file, skipped_files
from promptcli.data.vectors import escape_name
from promptcli.errors import NotFoundError, UsageError, counted
from promptcli.notes import note
from promptcli.retrieval.store import DATABASE
from promptcli.storage.files import real_path

_IGNORE_FILES = (".gitignore", ".ignore")  # the later ones win
_SAMPLED, _HEAD = 50, 4000  # files whose language is looked at, and bytes of each
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


@dataclass(frozen=True)
class LeftOut:
    """A file that is not read."""

    file: str
    reason: str


@dataclass
class FoundFiles:
    """Files in order, and what is left out."""

    #: whether each was found in a folder or by a glob, so that it may be left out
    files: dict[str, bool] = field(default_factory=dict)
    skipped: list[LeftOut] = field(default_factory=list)
    unreadable: dict[str, UsageError] = field(default_factory=dict)

    @property
    def left_out(self) -> list[LeftOut]:
        """All that is not read, with the reasons."""
        refused = []
        for file, error in self.unreadable.items():
            name = escape_name(file)
            refused.append(LeftOut(name, str(error).removeprefix(f"{name}: ")))
        return [*self.skipped, *refused]

    def heads(self) -> list[str]:
        """Return the first lines of some of the files, those of text, as a sample of the language.

        What cannot be read so has none.
        """
        names = list(self.files)
        heads = []
        for name in names[:: max(1, len(names) // _SAMPLED)]:
            path = Path(split_columns(name)[0])
            if not path.is_file():  # a pipe would be emptied
                continue
            try:
                with path.open("rb") as file:
                    start = file.read(_HEAD)
            except OSError:
                continue
            if b"\0" not in start:
                heads += start.decode("utf-8", errors="ignore").splitlines()
        return heads

    def note(self, *, verbose: bool) -> str:
        """Return what is left out, as the end of a line; with ``verbose`` say each on a line."""
        if verbose:
            for each in self.left_out:
                note(f"left out: {each.file}: {each.reason}")
        parts = []
        if self.unreadable:
            parts.append(skipped_files(list(self.unreadable.values())))
        reasons = Counter(each.reason for each in self.skipped)
        if reasons:
            counts = [counted(count, *_REASONS[reason]) for reason, count in reasons.items()]
            parts.append(f"left out {', '.join(counts)}")
        return "; ".join(parts)


def list_of_names(names: str | Path | Sequence[str | Path]) -> list[str]:
    """Return names of files as a list; one alone as a list of one."""
    if isinstance(names, str | Path):
        names = [names]
    return list(map(str, names))


def find_files(
    names: Sequence[str], *, ignore: bool = True, exclude: Sequence[str] = ()
) -> FoundFiles:
    """Return the files that are meant.

    Args:
        names: Files, ``FILE:COLUMN``, folders and globs.
        ignore: Whether ``.gitignore`` and ``.ignore`` are heeded in folders.
        exclude: Further patterns of the same form.
    """
    found = FoundFiles()
    seen = set[str]()
    # what is named is read by that name; and of the others files before links to them
    for name in filter(_is_named, names):
        check_file(
            Path(split_columns(name)[0]), regular=True, allowed="a file, a folder, or a glob"
        )
        _take(found, seen, name, in_folder=False)
    candidates = []
    for name in names:
        if Path(name).is_dir():
            candidates += sorted(_in_folder(name, found, ignore, exclude))
        elif not _is_named(name):
            candidates += filter(os.path.isfile, sorted(set(_matching_paths(name))))
    for path in sorted(candidates, key=os.path.islink):
        _take(found, seen, path, in_folder=True)
    if not found.files:
        raise NotFoundError(
            f"no file in {', '.join(names)}; give texts, tables, or folders of them"
        )
    order = {name: place for place, name in enumerate([*filter(_is_named, names), *candidates])}
    found.files = dict(sorted(found.files.items(), key=lambda item: order[item[0]]))
    return found


def _is_named(name: str) -> bool:
    """Return whether a name is that of one file, rather than of a folder or a glob."""
    path = Path(name)
    return not path.is_dir() and (path.exists() or not glob.has_magic(name))


def _take(found: FoundFiles, seen: set[str], name: str, *, in_folder: bool) -> None:
    """Add a file, once."""
    path = name if in_folder else split_columns(name)[0]
    real = f"{real_path(Path(path))}{name.removeprefix(path)}"
    if real not in seen:
        seen.add(real)
        found.files[name] = in_folder
    elif in_folder and os.path.islink(path):
        found.skipped.append(LeftOut(escape_name(path), _READ_ALREADY))


def _in_folder(name: str, found: FoundFiles, ignore: bool, exclude: Sequence[str]) -> Iterator[str]:
    """Yield the files in a folder, without hidden and ignored ones, and those of indexes."""
    top = Path(name)
    if (top / DATABASE).is_file():
        raise UsageError(
            f"{name} is an index, not a folder of texts; `promptcli index search {name} QUERY`"
            " searches it"
        )
    specs = {top: [(top, GitIgnoreSpec.from_lines(exclude))]}
    if ignore:
        specs[top] = [*_specs_above(top), *specs[top]]
    for inside, folders, names in os.walk(top):
        folder = Path(inside)
        rules = specs.pop(folder)
        if ignore:
            rules = [*rules, *_specs_in(folder)]
        shown = []
        for each in folders:
            path = folder / each
            if each.startswith(".") or (path / DATABASE).is_file():
                continue
            if path.is_symlink():
                found.skipped.append(LeftOut(escape_name(str(path)), _LINKED_FOLDER))
            elif _is_ignored(path, rules, "/"):
                found.skipped.append(LeftOut(escape_name(str(path)), _IGNORED))
            else:
                shown.append(each)
                specs[path] = rules
        folders[:] = shown
        for each in names:
            path = folder / each
            if each.startswith("."):
                continue
            if _is_ignored(path, rules):
                found.skipped.append(LeftOut(escape_name(str(path)), _IGNORED))
            elif path.is_file():
                yield str(path)
            elif path.is_symlink():
                found.skipped.append(LeftOut(escape_name(str(path)), _LEADS_NOWHERE))


def _specs_in(folder: Path) -> list[tuple[Path, GitIgnoreSpec]]:
    specs = []
    for name in _IGNORE_FILES:
        if (folder / name).is_file():
            lines = (folder / name).read_text("utf-8", "replace").splitlines()
            specs.append((folder, GitIgnoreSpec.from_lines(lines)))
    return specs


def _specs_above(folder: Path) -> list[tuple[Path, GitIgnoreSpec]]:
    """Return the rules of the folders above, up to that of the repository."""
    real = real_path(folder)
    above = []
    for parent in real.parents:
        above.append(parent)
        if (parent / ".git").exists():
            return [spec for each in reversed(above) for spec in _specs_in(each)]
    return []


def _is_ignored(path: Path, rules: Sequence[tuple[Path, GitIgnoreSpec]], end: str = "") -> bool:
    """Return whether the last rule that a path matches leaves it out."""
    ignored = False
    for folder, spec in rules:
        start = path if path.is_relative_to(folder) else real_path(path)
        decided = spec.check_file(f"{start.relative_to(folder).as_posix()}{end}").include
        if decided is not None:
            ignored = decided
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
