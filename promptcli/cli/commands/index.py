"""The commands of ``promptcli index``: build, change, look at and search a stored index.

``search`` without one.
"""

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
from promptcli.cli.commands.models import method_line
from promptcli.cli.options import MODEL, Json
from promptcli.cli.signatures import Flag, FlagRow, command_of
from promptcli.errors import UsageError, counted
from promptcli.index import file_search
from promptcli.index import sync as mirroring
from promptcli.recipe import Recipe

if TYPE_CHECKING:
    from promptcli.index.file_search import Line
    from promptcli.index.rows import Hit
    from promptcli.index.stored import IndexManifest


_LONGEST = 1000  # characters of a text that are printed; `--json` prints all


def _source(file: str) -> Any:
    return sys.stdin.buffer if file == "-" else file


_INDEX: dict[str, FlagRow] = {
    "folder": "DIR",
    "file": Flag("FILE", read=_source),
    "memory": Flag(metavar="SIZE"),
    "model": "--model -m",
}


def _showing_the_index(function: Callable[..., Any], **flags: FlagRow) -> Callable[..., None]:
    """Make the command of a function that returns the index's manifest."""

    @command_of(function, flags=_INDEX | flags)
    def command(change: "partial[IndexManifest]", json: Json = False) -> None:
        _show(change.keywords["folder"], change(), as_json=json)

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
def sync(change: "partial[IndexManifest]", dry_run: _DryRun = False, json: Json = False) -> None:
    if dry_run:
        _show_changes(change, as_json=json)
        return
    try:
        manifest = change()
    except mirroring.MostRowsError as error:
        if not console.agrees(f"{error.question} Remove them"):
            raise UsageError(f"{error}, or look with --dry-run at what would change") from None
        manifest = change(yes=True)
    _show(change.keywords["folder"], manifest, as_json=json)


def _show_changes(change: "partial[IndexManifest]", *, as_json: bool) -> None:
    """Print the rows that a sync would add and remove."""
    options = {name: value for name, value in change.keywords.items() if name in _DECIDING}
    changes = mirroring.sync_changes(**options)
    for sign, kind, rows in (("+", "added", changes.added), ("-", "removed", changes.removed)):
        for name, text in rows:
            if as_json:
                console.result_json({"change": kind, "id": name, "text": text})
            else:
                console.result(f"{sign} {one_line(name)}  {one_line(text)}")
    counts = (
        f"{len(changes.added):,} to add, {len(changes.removed):,} to remove, {changes.kept:,} kept"
    )
    console.note(f"{counts}; nothing was changed")


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
def search(search: "partial[Any]", json: Json = False) -> None:
    """Print the k rows of an index that are nearest to each query, best first, with their
    cosine.
    """
    query, least = search.keywords["query"], search.keywords["min_score"]
    many = not isinstance(query, str) or library.is_query_file(query)
    for line, hits in search():
        if json:
            for hit in hits:
                console.result_json({"query": line, **_json(hit)})
        else:
            if many:
                console.result(f"query: {one_line(line)}")
            print_hits(hits)
        if not hits:
            console.note(_nothing_found(line, least, search.keywords["where"]))


@command_of(library.find_dups, flags=_INDEX)
def dups(dups: "partial[tuple[list[list[Hit]], int]]", json: Json = False) -> None:
    clusters, rows = dups()
    for number, cluster in enumerate(clusters, 1):
        if json:
            for hit in cluster:
                console.result_json({"cluster": number, "size": len(cluster), **_json(hit)})
        else:
            console.result(counted(len(cluster), "row"))
            print_hits(cluster)
    spare = sum(len(cluster) - 1 for cluster in clusters)
    console.note(
        f"{counted(len(clusters), 'group')}; {spare:,} of {counted(rows, 'row')} repeat another row"
    )


def _nothing_found(query: str, least: float | None, where: str | None) -> str:
    """Return why a search has no hit: only its conditions can leave out every row."""
    if least is None:
        return "no row meets the condition" if where is not None else f"no row matches {query!r}"
    met = "" if where is None else " among those that meet the condition"
    return f"no row scores at least {least} for {query!r}{met}"


def _json(hit: "Hit") -> dict[str, object]:
    columns = {} if hit.columns is None else {"columns": hit.columns}
    return {
        "rank": hit.rank,
        "id": hit.id,
        "text": hit.text,
        "score": round(hit.score, 6),
        **columns,
    }


def print_hits(hits: "list[Hit]") -> None:
    """Print a table; texts are shown on one line each, whatever characters they hold."""
    width = max([2, *(len(one_line(str(hit.id))) for hit in hits)])
    for hit in hits:
        shown = "" if hit.text is None else one_line(_with_heading(hit))
        console.result(
            f"{hit.rank:>4}  {hit.score:7.4f}  {one_line(str(hit.id)):<{width}}  {shown}".rstrip()
        )


def _with_heading(hit: "Hit") -> str:
    """Return the text of a hit.

    Of a passage its headings, which are its first line, a colon and the passage.
    """
    columns, text = hit.columns or {}, hit.text or ""
    return text.replace("\n", ": ", 1) if {"heading", "end_line"} <= columns.keys() else text


def one_line(text: str) -> str:
    """Return a text without control characters, cut to what a screen holds."""
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return "".join(character if character.isprintable() else " " for character in shown)


def _show(folder: str | Path, manifest: "IndexManifest", *, as_json: bool) -> None:
    if as_json:
        console.result_json({"index": str(folder), **asdict(manifest)})
        return
    recall, recipe = manifest.recall, manifest.recipe
    quality = "exact"
    if recall is not None:
        quality = f"recall@10 {recall.at_10:.3f}, measured on {counted(recall.queries, 'row')}"
    settings = {
        "nprobe": manifest.nprobe,
        "ef": manifest.ef,
        "candidates": manifest.factor and 10 * manifest.factor,
    }
    effort = "".join(f", {name} {value:g}" for name, value in settings.items() if value)
    masked = f", {manifest.deleted:,} deleted and not yet freed" if manifest.deleted else ""
    texts = "" if manifest.texts else ", without texts"
    lines = {
        "index": str(folder),
        "rows": f"{manifest.rows:,} of {manifest.dim:,} dimensions{texts}{masked}",
        "factory": f"{manifest.factory} ({quality}{effort})",
        "model": f"{manifest.name} ({manifest.fingerprint[:12]})".lstrip(),
        "recipe": method_line(Recipe.from_dict(recipe)),
        "backbone": recipe["backbone"],
        **({"columns": ", ".join(manifest.columns)} if manifest.columns else {}),
        **({"prompt": f"documents begin with {manifest.text}"} if manifest.prompt else {}),
        "created": manifest.created,
    }
    console.result_table((), list(lines.items()))


@command_of(
    file_search.search,
    flags={
        "files": "FILE...",
        "k": Flag("-k", min=1),
        "model": "--model -m",
        "context": Flag(min=0),
    },
)
def search_files(search: "partial[list[Line]]", json: Json = False) -> None:
    lines, context = search(), search.keywords["context"]
    for line in lines:
        if json:
            console.result_json({**asdict(line), "score": round(line.score, 6)})
            continue
        for number, text in enumerate(line.before, line.line - len(line.before)):
            console.result(f"{' ' * 6}  {line.file}-{number}- {one_line(text)}")
        last = "" if line.end_line == line.line else f"-{line.end_line}"
        heading = f"{line.heading}: " if line.heading else ""
        console.result(
            f"{line.score:.4f}  {line.file}:{line.line}{last}: {one_line(f'{heading}{line.text}')}"
        )
        for number, text in enumerate(line.after, line.end_line + 1):
            console.result(f"{' ' * 6}  {line.file}-{number}- {one_line(text)}")
        if context:
            console.result("")
    if not lines:
        console.note(
            _nothing_found(
                search.keywords["query"], search.keywords["min_score"], search.keywords["where"]
            )
        )
