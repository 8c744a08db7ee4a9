"""What a sync changed, in rows and in files."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from promptcli.data.cells import Cells
from promptcli.embedding.splitting import PART
from promptcli.index.found_files import LeftOut
from promptcli.index.stored import IndexManifest

#: The id of a row, ``file:line``, its text, and its other columns.
RowContent = tuple[str, str, Cells]
#: The end of an id: the line or lines of the file before it.
PLACE = re.compile(r":\d+(-\d+)?(#\d+)?$")


@dataclass(frozen=True)
class Counts:
    """How many rows or files are in the index now that were not before, and so on."""

    added: int = 0
    changed: int = 0  #: rows: another text or other columns under the same id
    renamed: int = 0  #: rows: the same text under another id, or with other columns
    removed: int = 0
    unchanged: int = 0


@dataclass(frozen=True, kw_only=True)
class Synced(IndexManifest):
    """An index after a sync, with what the sync changed."""

    row_changes: Counts
    file_changes: Counts  #: a renamed file has the rows of one that is gone
    left_out: list[LeftOut]  #: files that were not read

    def report(self) -> dict[str, object]:
        """Return the counts as a document."""
        return {
            "rows": self.rows,
            **vars(self.row_changes),
            "files": dict(vars(self.file_changes)),
            "left_out": [dict(vars(each)) for each in self.left_out],
        }


def row_changes(before: Iterable[RowContent], after: Iterable[RowContent]) -> Counts:
    """Count the rows that a sync changed; of a row in parts all are replaced.

    A row whose text the index had is renamed, even if another text has its id now.
    """
    before = dict.fromkeys(before)
    after = dict.fromkeys(after)
    replaced = {_line(name) for name, *_ in before.keys() ^ after.keys()}
    come = [row for row in after if _line(row[0]) in replaced]
    gone = [row for row in before if _line(row[0]) in replaced]
    left = Counter(text for _, text, _ in gone)
    new = list[str]()
    for name, text, _ in come:
        if left[text]:
            left[text] -= 1
        else:
            new.append(name)
    old = Counter[str]()
    for name, text, _ in gone:
        if left[text]:
            left[text] -= 1
            old[name] += 1
    changed = (Counter(new) & old).total()
    return Counts(
        added=len(new) - changed,
        changed=changed,
        renamed=len(come) - len(new),
        removed=old.total() - changed,
        unchanged=len(after) - len(come),
    )


def file_changes(
    before: Iterable[RowContent],
    after: Iterable[RowContent],
    files: Collection[str],
    file_of: Mapping[str, str],
) -> Counts:
    """Count the files that a sync changed.

    Args:
        before: Rows of the index.
        after: Rows of the files.
        files: Names of all files that were read, those without a row too.
        file_of: Id of a row of ``after`` -> its file.
    """
    old = defaultdict[str, list[RowContent]](list)
    new = defaultdict[str, list[RowContent]](list)
    for row in after:
        new[file_of[row[0]]].append(row)
    for row in before:
        name = file_of.get(row[0]) or PLACE.sub("", row[0])
        if name != row[0] or name in files:  # the file of a row with an id of its own is not known
            old[name].append(row)
    gone = Counter(tuple(sorted(_texts(old[name]))) for name in old if name not in files)
    come = [tuple(sorted(_texts(rows))) for name, rows in new.items() if name not in old]
    renamed = (gone & Counter(come)).total()
    kept = [name for name in files if name in old or name not in new]
    unchanged = sum(sorted(old.get(name, [])) == sorted(new.get(name, [])) for name in kept)
    return Counts(
        added=len(come) - renamed,
        changed=len(kept) - unchanged,
        renamed=renamed,
        removed=gone.total() - renamed,
        unchanged=unchanged,
    )


def changes_line(rows: Counts) -> str:
    """Return the counts of rows as a note."""
    parts = list[str]()
    if rows.renamed:
        parts.append(f"{rows.renamed:,} renamed (same text, new path or columns)")
    parts.append(f"{rows.added:,} added")
    if rows.changed:
        parts.append(f"{rows.changed:,} changed")
    parts.append(f"{rows.removed:,} removed")
    parts.append(f"{rows.unchanged:,} unchanged")
    return f"rows: {', '.join(parts)}"


def _texts(rows: Iterable[RowContent]) -> list[str]:
    return [text for _, text, _ in rows]


def _line(name: str) -> str:
    return re.sub(PART, "", name)
