"""The commands of ``promptcli index``."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli import index as library
from promptcli.cli import console
from promptcli.cli.commands.file_search import nothing_found, one_line, score_text
from promptcli.cli.commands.models import method_line
from promptcli.cli.options import MODEL, RUNTIME, Json
from promptcli.cli.signatures import Flag, FlagRow, command_of
from promptcli.errors import UsageError, counted
from promptcli.index import sync as mirroring
from promptcli.recipe import Recipe

if TYPE_CHECKING:
    from promptcli.index.changes import Synced
    from promptcli.index.neighbours import Group
    from promptcli.index.rows import Hit
    from promptcli.index.stored import IndexManifest


def _source(file: str) -> Any:
    return sys.stdin.buffer if file == "-" else file


_INDEX: dict[str, FlagRow] = {
    "folder": "DIR",
    "file": Flag("FILE", read=_source),
    "memory": Flag(metavar="SIZE"),
    "bad_lines": Flag(metavar="FILE"),
    "model": "--model -m",
}


def _showing_the_index(function: Callable[..., Any], **flags: FlagRow) -> Callable[..., None]:
    """Make the command of a function that returns the index's manifest."""

    @command_of(function, flags=_INDEX | flags)
    def command(change: "partial[IndexManifest]", json: Json = False) -> None:
        manifest = change()
        is_asked_for = function is library.index_info or not RUNTIME.get().quiet
        if json or is_asked_for:
            _show(change.keywords["folder"], manifest, as_json=json)

    return command


build = _showing_the_index(
    library.build_index, folder=Flag("--output -o", metavar="DIR"), model=MODEL
)
add = _showing_the_index(library.add_to_index)
delete = _showing_the_index(
    library.delete_from_index, ids="[ID]...", file=Flag("--ids", metavar="FILE")
)
compact = _showing_the_index(library.compact_index)
info = _showing_the_index(library.index_info)


_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the rows that would change, and change nothing.")
]


@command_of(mirroring.sync_index, flags=_INDEX | {"files": "FILE...", "model": MODEL})
def sync(change: "partial[Synced]", dry_run: _DryRun = False, json: Json = False) -> None:
    if dry_run:
        _show_changes(change, as_json=json)
        return
    try:
        manifest = change()
    except mirroring.MostRowsError as error:
        if not console.agrees(f"{error.question} Remove them"):
            raise UsageError(f"{error}, or look with --dry-run at what would change") from None
        manifest = change(yes=True)
    folder = change.keywords["folder"]
    if json:
        console.result_json({"index": str(folder), **manifest.report()})
    elif not RUNTIME.get().quiet:
        _show(folder, manifest, as_json=False)


def _show_changes(change: "partial[Synced]", *, as_json: bool) -> None:
    """Print the rows that a sync would add and remove."""
    options = {name: value for name, value in change.keywords.items() if name in _DECIDING}
    changes = mirroring.sync_changes(**options)
    for sign, kind, rows in (("+", "added", changes.added), ("-", "removed", changes.removed)):
        for row_id, text in rows:
            if as_json:
                console.result_json({"change": kind, "id": row_id, "text": text})
            else:
                console.result(f"{sign} {one_line(row_id)}  {one_line(text)}")
    console.note(
        f"{len(changes.added):,} to add, {len(changes.removed):,} to remove, {changes.kept:,} kept;"
        " nothing was changed"
    )


#: Options of ``sync`` on which the rows depend.
_DECIDING = tuple(inspect.signature(mirroring.sync_changes).parameters)


@command_of(
    library.search_index,
    flags={
        **_INDEX,
        "query": Flag(read=_source, type=str),
        "k": Flag("-k", min=1),
    },
)
def search(query_index: "partial[Any]", json: Json = False) -> None:
    """Print the k rows of an index that are nearest to each query, best first, with their
    cosine.
    """
    given = query_index.keywords["query"]
    many = not isinstance(given, str) or library.is_query_file(given)
    for query, hits in query_index():
        if json:
            for hit in hits:
                console.result_json({"query": query, **_json(hit)})
        else:
            if many:
                console.result(f"query: {one_line(query)}")
            print_hits(hits)
        if not hits:
            console.note(nothing_found(query, query_index.keywords))


@command_of(library.find_dups, flags=_INDEX)
def dups(find: "partial[tuple[list[Group], int]]", json: Json = False) -> None:
    groups, row_count = find()
    for number, group in enumerate(groups, 1):
        if json:
            for hit in group:
                about = {"cluster": number, "size": len(group), "lowest": round(group.lowest, 6)}
                console.result_json({**about, **_json(hit)})
        else:
            rows = counted(len(group), "row")
            console.result(f"{rows}, lowest cosine {score_text(group.lowest)}")
            print_hits(group)
    spare = sum(len(group) - 1 for group in groups)
    found = counted(len(groups), "group")
    console.note(f"{found}; {spare:,} of {counted(row_count, 'row')} repeat another row")
    if groups:
        console.note(_LINKS[find.keywords["links"]])


#: What the lowest cosine of a group says.
_LINKS = {
    "complete": (
        "the lowest cosine is that of the two rows of a group that are farthest apart; every two"
        " rows reach the threshold"
    ),
    "chain": (
        "the lowest cosine is that of the two rows of a group that are farthest apart; in a chain"
        " it may be below the threshold"
    ),
}


def _json(hit: "Hit") -> dict[str, object]:
    document: dict[str, object] = {
        "rank": hit.rank,
        "id": hit.id,
        "text": hit.text,
        "score": round(hit.score, 6),
    }
    if hit.columns is not None:
        document["columns"] = hit.columns
    return document


def print_hits(hits: "list[Hit]") -> None:
    """Print a table; texts are shown on one line each, whatever characters they hold."""
    ids = [one_line(str(hit.id)) for hit in hits]
    width = max([2, *map(len, ids)])
    for hit, row_id in zip(hits, ids, strict=True):
        text = one_line(_with_heading(hit))
        console.result(
            f"{hit.rank:>4}  {score_text(hit.score):>7}  {row_id:<{width}}  {text}".rstrip()
        )


def _with_heading(hit: "Hit") -> str:
    """Return the text of a hit, that of a passage with a colon between its headings and the rest.

    The headings of a passage are its first line.
    """
    text = hit.text or ""
    columns = hit.columns or {}
    is_passage = "heading" in columns and "end_line" in columns
    return text.replace("\n", ": ", 1) if is_passage else text


def _show(folder: str | Path, manifest: "IndexManifest", *, as_json: bool) -> None:
    if as_json:
        console.result_json({"index": str(folder), **asdict(manifest)})
        return
    recipe = manifest.recipe
    lines = {
        "index": str(folder),
        "rows": _stored_rows(manifest),
        "factory": f"{manifest.factory} ({_search_quality(manifest)})",
        "model": f"{manifest.name} ({manifest.fingerprint[:12]})".lstrip(),
        "recipe": method_line(Recipe.from_dict(recipe)),
        "backbone": recipe["backbone"],
    }
    if manifest.columns:
        lines["columns"] = ", ".join(manifest.columns)
    if manifest.prompt:
        lines["prompt"] = f"documents begin with {manifest.text}"
    lines["created"] = manifest.created
    console.result_table((), list(lines.items()))


def _stored_rows(manifest: "IndexManifest") -> str:
    rows = f"{manifest.rows:,} of {manifest.dim:,} dimensions"
    if not manifest.texts:
        rows += ", without texts"
    if manifest.deleted:
        rows += f", {manifest.deleted:,} deleted and not yet freed"
    return rows


def _search_quality(manifest: "IndexManifest") -> str:
    """Return the recall of an index, and how hard a search tries."""
    recall = manifest.recall
    quality = "exact"
    if recall is not None:
        quality = f"recall@10 {recall.at_10:.3f}, measured on {counted(recall.queries, 'row')}"
    if manifest.nprobe:
        quality += f", nprobe {manifest.nprobe:g}"
    if manifest.ef:
        quality += f", ef {manifest.ef:g}"
    if manifest.factor:
        quality += f", candidates {10 * manifest.factor:g}"
    return quality
