"""Finds the files that names, folders and globs refer to, and says why other files are left out.

A folder's hidden files are left out, and so are files matched by ``.gitignore`` and ``.ignore`` and
the outputs of ``embed`` and ``index``. A link to a file is read unless the file itself is read; a
link to a folder is not followed. Files named explicitly are always read.
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
from promptcli.errors import NotFoundError, UsageError, join_lines, with_count
from promptcli.notes import note
from promptcli.retrieval.store import DATABASE
from promptcli.storage.files import real_path

_IGNORE_FILES = (".gitignore", ".ignore")  # later rules win
#: Reason for leaving a file out -> noun of a summary, singular and plural.
_REASONS = {
    "a link to a folder, which is not followed": ("link to a folder", "links to folders"),
    "a link to a file that is read by another name": (
        "second name of a file",
        "second names of files",
    ),
    "a link that leads to no file": ("link to no file", "links to no file"),
    "named by .gitignore, .ignore or an option": ("ignored file", "ignored files and folders"),
}
_LINK_TO_FOLDER, _SECOND_NAME, _BROKEN_LINK, _IGNORED = _REASONS

#: Folders with the patterns for the files in them; later patterns win.
Rules = list[tuple[Path, GitIgnoreSpec]]


@dataclass(frozen=True)
class LeftOut:
    """A file that is not read."""

    file: str
    reason: str


@dataclass
class FoundFiles:
    """The files to read, in order, and the files left out."""

    #: file -> whether it was found in a folder or by a glob, and so may be left out
    files: dict[str, bool] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)

    def leave_out(self, path: str | Path, reason: str) -> None:
        """Record that a file or folder is left out."""
        self.left_out.append(LeftOut(escape_name(str(path)), reason))

    @contextlib.contextmanager
    def reading(self, file: str) -> Iterator[None]:
        """Read one of the files; if it is unreadable, leave it out, unless the user named it."""
        try:
            yield
        except (UsageError, OSError) as error:
            if not self.files[file]:
                raise
            reason = error.message if isinstance(error, UsageError) else join_lines(error, 100)
            self.leave_out(file, reason.removeprefix(escape_name(file)).lstrip(": "))

    def summarize_left_out(self, *, verbose: bool) -> str:
        """Return a summary of the files left out, as the end of a line.

        With ``verbose``, also note each of these files.
        """
        unreadable: list[LeftOut] = []
        reasons: Counter[str] = Counter()
        for left_out in self.left_out:
            if verbose:
                note(f"left out: {left_out.file}: {left_out.reason}")
            if left_out.reason in _REASONS:
                reasons[left_out.reason] += 1
            else:
                unreadable.append(left_out)
        sentences = []
        if unreadable:
            names = ", ".join(left_out.file for left_out in unreadable[:3])
            more = f" and {len(unreadable) - 3:,} more" if len(unreadable) > 3 else ""
            sentences.append(
                f"skipped {with_count(len(unreadable), 'file')} that cannot be read as text or"
                f" tables: {names}{more} ({unreadable[0].file}: {unreadable[0].reason})"
            )
        if reasons:
            counts = [with_count(count, *_REASONS[reason]) for reason, count in reasons.items()]
            sentences.append(f"left out {', '.join(counts)}")
        return "; ".join(sentences)


def find_files(
    names: Sequence[str], *, ignore: bool = True, exclude: Sequence[str] = ()
) -> FoundFiles:
    """Return the files that names refer to.

    Args:
        names: Files, ``FILE:COLUMN``, folders and globs.
        ignore: Whether folders obey ``.gitignore`` and ``.ignore``.
        exclude: Further patterns of the form of ``.gitignore``.
    """
    found = FoundFiles()
    explicit_names: list[str] = []
    paths: list[str] = []
    for name in names:
        file = split_columns(name)[0]  # a column may have brackets: messages[].content
        if os.path.isdir(name):
            folder = Path(name)
            if (folder / DATABASE).is_file():
                raise UsageError(
                    f"{folder} is an index, not a folder of texts; `promptcli index search {folder}"
                    " QUERY` searches it"
                )
            rules = _rules_above(folder) if ignore else []
            rules.append((folder, GitIgnoreSpec.from_lines(exclude)))
            paths += sorted(_files_below(folder, found, ignore, rules))
        elif os.path.exists(file) or not glob.has_magic(file):
            check_file(Path(file), regular=True, alternative="a file, a folder, or a glob")
            explicit_names.append(name)
        else:
            paths += sorted(filter(os.path.isfile, _matching_paths(name)))
    # an explicit name comes before found paths, and a file before links to it
    first_names = {
        _real_name(name, split_columns(name)[0]): name for name in reversed(explicit_names)
    }
    for path in sorted(paths, key=os.path.islink):
        first_name = first_names.setdefault(_real_name(path, path), path)
        if first_name != path and os.path.islink(path):
            found.leave_out(path, _SECOND_NAME)
    files = set(first_names.values())
    for name in (*explicit_names, *paths):
        if name in files:
            found.files[name] = name not in explicit_names
    if not found.files:
        raise NotFoundError(
            f"no file in {', '.join(names)}; name texts, tables, or folders that hold some"
        )
    return found


def _real_name(name: str, path: str) -> str:
    """Return a name whose path has no links; the name may end in columns."""
    return f"{real_path(Path(path))}{name.removeprefix(path)}"


def _files_below(folder: Path, found: FoundFiles, ignore: bool, rules: Rules) -> Iterator[str]:
    if ignore:
        rules = [*rules, *_rules_in(folder)]
    names: list[str] = []
    with contextlib.suppress(OSError):  # we may lack the permission
        names = sorted(os.listdir(folder))
    for name in names:
        path = folder / name
        is_folder = path.is_dir()
        if name.startswith(".") or _is_output(path):
            continue
        if is_folder and path.is_symlink():
            found.leave_out(path, _LINK_TO_FOLDER)
        elif _is_ignored(path, rules, "/" if is_folder else ""):
            found.leave_out(path, _IGNORED)
        elif is_folder:
            yield from _files_below(path, found, ignore, rules)
        elif path.is_file():
            yield str(path)
        elif path.is_symlink():
            found.leave_out(path, _BROKEN_LINK)


def _is_output(path: Path) -> bool:
    """Return whether a folder or a file is an output of ``index`` or ``embed``."""
    if path.is_dir():
        return (path / DATABASE).is_file() or is_part_folder(path)
    vectors = path.with_name(path.name.removesuffix(MANIFEST_ENDING))
    return vectors.is_file() and manifest_path(vectors).is_file()


def _rules_in(folder: Path) -> Rules:
    rules: Rules = []
    for path in [folder / name for name in _IGNORE_FILES]:
        if path.is_file():
            lines = path.read_text("utf-8", "replace").splitlines()
            rules.append((folder, GitIgnoreSpec.from_lines(lines)))
    return rules


def _rules_above(folder: Path) -> Rules:
    """Return the rules of the parent folders in the same repository; none without a repository."""
    rules: Rules = []
    for parent in real_path(folder).parents:
        rules = [*_rules_in(parent), *rules]
        if (parent / ".git").exists():
            return rules
    return []


def _is_ignored(path: Path, rules: Rules, end: str) -> bool:
    """Return whether the last matching rule leaves a path out; the ``end`` of a folder is /."""
    is_ignored = False
    for folder, spec in rules:
        inner_path = path if path.is_relative_to(folder) else real_path(path)
        matched = spec.check_file(f"{inner_path.relative_to(folder).as_posix()}{end}").include
        if matched is not None:
            is_ignored = matched
    return is_ignored


def _matching_paths(pattern: str) -> Iterator[str]:
    """Yield the paths that a glob matches; ``**`` does not follow links to folders."""
    prefix, stars, rest = pattern.partition("**/")
    if not stars or (prefix and not prefix.endswith("/")):
        yield from glob.iglob(pattern, recursive=True)
        return
    tops = glob.iglob(prefix) if glob.has_magic(prefix) else iter([prefix])
    for top in tops:
        for folder, subfolders, _ in os.walk(top or "."):
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            if not top:
                folder = folder.removeprefix(".").removeprefix("/")
            yield from _matching_paths(os.path.join(glob.escape(folder), rest))
