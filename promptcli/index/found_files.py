"""The files that names, folders and globs mean; each is read once, what is left out has a reason.

A file is known by its real path, without links. In a folder, a link to a file is read unless the
file is, and a link to a folder is not followed. What is named is always followed.
"""

import glob
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from promptcli.data.file_arguments import split_columns
from promptcli.data.input_files import check_file, skipped_files
from promptcli.data.vectors import escape_name
from promptcli.errors import NotFoundError, UsageError, counted
from promptcli.index.basics import INDEX_MANIFEST
from promptcli.notes import note
from promptcli.storage.files import real_path

_SAMPLED, _HEAD = 50, 4000  #: files whose language is looked at, and bytes of each
_LINKED_FOLDER = "a link to a folder, which is not followed"
_READ_ALREADY = "a link to a file that is read by another name"
_LEADS_NOWHERE = "a link that leads to no file"
#: Reason -> noun of a note.
_LINKS = {
    _LINKED_FOLDER: ("link to a folder", "links to folders"),
    _READ_ALREADY: ("second name of a file", "second names of files"),
    _LEADS_NOWHERE: ("link to no file", "links to no file"),
}


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
    links: list[LeftOut] = field(default_factory=list)
    unreadable: dict[str, UsageError] = field(default_factory=dict)

    @property
    def left_out(self) -> list[LeftOut]:
        """All that is not read, with the reasons."""
        refused = list[LeftOut]()
        for file, error in self.unreadable.items():
            name = escape_name(file)
            refused.append(LeftOut(name, str(error).removeprefix(f"{name}: ")))
        return [*self.links, *refused]

    def heads(self) -> list[str]:
        """Return the first lines of some of the files, those of text, as a sample of the language.

        What cannot be read so has none.
        """
        names = list(self.files)
        heads = list[str]()
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
        parts = list[str]()
        if self.unreadable:
            parts.append(skipped_files(list(self.unreadable.values())))
        reasons = Counter(link.reason for link in self.links)
        if reasons:
            counts = [counted(count, *_LINKS[reason]) for reason, count in reasons.items()]
            parts.append(f"left out {', '.join(counts)}")
        return "; ".join(parts)


def list_of_names(names: str | Path | Sequence[str | Path]) -> list[str]:
    """Return names of files as a list; one alone as a list of one."""
    if isinstance(names, str | Path):
        names = [names]
    return list(map(str, names))


def find_files(names: Sequence[str]) -> FoundFiles:
    """Return the files that are meant."""
    found = FoundFiles()
    seen = set[str]()
    # what is named is read by that name; and of the others files before links to them
    for name in filter(_is_named, names):
        file = Path(split_columns(name)[0])
        check_file(file, regular=True, allowed="a file, a folder, or a glob")
        _take(found, seen, name, in_folder=False)
    candidates = list[str]()
    for name in names:
        if Path(name).is_dir():
            candidates += _in_folder(name, found)
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
    path, columns = name, ""
    if not in_folder:
        path = split_columns(name)[0]
        columns = name.removeprefix(path)
    real = f"{real_path(Path(path))}{columns}"
    if real not in seen:
        seen.add(real)
        found.files[name] = in_folder
    elif in_folder and os.path.islink(path):
        found.links.append(LeftOut(escape_name(path), _READ_ALREADY))


def _in_folder(name: str, found: FoundFiles) -> Iterator[str]:
    """Yield the files in a folder, in order, without hidden ones."""
    folder = Path(name)
    if (folder / INDEX_MANIFEST).is_file():
        raise UsageError(
            f"{name} is an index, not a folder of texts; `promptcli index search {name} QUERY`"
            " searches it"
        )
    files = list[Path]()
    for inside, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if not each.startswith(".")]
        shown = [each for each in (*folders, *names) if not each.startswith(".")]
        for path in (Path(inside, each) for each in shown):
            if path.is_file():
                files.append(path)
            elif path.is_symlink():
                reason = _LINKED_FOLDER if path.is_dir() else _LEADS_NOWHERE
                found.links.append(LeftOut(escape_name(str(path)), reason))
    yield from map(str, sorted(files))


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
