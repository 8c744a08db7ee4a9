"""The commands of ``promptcli index``."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli import console
from promptcli.cli.commands.dups import Check, display_given
from promptcli.cli.commands.models import method_line
from promptcli.cli.commands.search_files import nothing_found
from promptcli.cli.hits import (
    HitOptions,
    HitTable,
    choose_columns,
    figures,
    one_line,
    print_hit,
    rounded_way,
    score_text,
)
from promptcli.cli.job_options import JobOptions
from promptcli.cli.leak_lists import show_leaks
from promptcli.cli.options import RUNTIME, Json
from promptcli.errors import CheckFailedError, UsageError, counted, unknown
from promptcli.index import (
    AddToIndexJob,
    BuildIndexJob,
    CompactIndexJob,
    DeleteFromIndexJob,
    FindDupsJob,
    FindIndexLeaksJob,
    IndexInfoJob,
    SearchIndexJob,
    is_query_file,
)
from promptcli.index.sync import MostRowsError, SyncIndexJob, changes_of
from promptcli.notes import keyword
from promptcli.recipe import Recipe

if TYPE_CHECKING:
    from promptcli.index.array_rows import Hit
    from promptcli.index.stored import IndexManifest


def build(job: BuildIndexJob, json: Json = False) -> None:
    _show_unless_quiet(job.folder, job.run(), as_json=json)


def add(job: AddToIndexJob, json: Json = False) -> None:
    _show_unless_quiet(job.folder, job.run(), as_json=json)


def delete(job: DeleteFromIndexJob, json: Json = False) -> None:
    _show_unless_quiet(job.folder, job.run(), as_json=json)


def compact(job: CompactIndexJob, json: Json = False) -> None:
    _show_unless_quiet(job.folder, job.run(), as_json=json)


def info(job: IndexInfoJob, json: Json = False) -> None:
    _show(job.folder, job.run(), as_json=json)


_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the rows that would change, and change nothing.")
]


def sync(job: SyncIndexJob, dry_run: _DryRun = False, json: Json = False) -> None:
    if dry_run:
        _show_changes(job, as_json=json)
        return
    try:
        manifest = job.run()
    except MostRowsError as error:
        if not console.agrees(f"{error.question} Remove them"):
            raise UsageError(f"{error}, or look with --dry-run at what would change") from None
        manifest = dataclasses.replace(job, yes=True).run()
    folder = job.folder
    if json:
        console.result_json({"index": str(folder), **manifest.report()})
    elif not RUNTIME.get().quiet:
        _show(folder, manifest, as_json=False)


def _show_changes(job: SyncIndexJob, *, as_json: bool) -> None:
    """Print the rows that a sync would add and remove."""
    changes = changes_of(job)
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


def search(job: SearchIndexJob, hits: HitOptions, json: Json = False) -> None:
    """Print the k rows of an index that are nearest to each query, best first, with their
    cosine.
    """
    format = hits.name(json=json)
    columns = _columns_of(job.folder, hits)
    many = not isinstance(job.query, str) or is_query_file(job.query)
    table = HitTable()
    for query, answers in job.run():
        if format == "table" and many:
            console.result(f"query: {one_line(query)}")
        _print_found(answers, {"query": query}, columns, format, table)
        if not answers:
            console.note(nothing_found(query, job))


#: Fields of ``FindIndexLeaksJob`` that have options; it shares the threshold with ``FindDupsJob``.
_OF_LEAKS = ("against", "model", "min_rarity", "bad_lines")


def dups(
    job: FindDupsJob,
    leaks: Annotated[dict[str, Any], JobOptions(FindIndexLeaksJob, only=_OF_LEAKS)],
    hits: HitOptions,
    check: Check = False,
    json: Json = False,
) -> None:
    format = hits.name(json=json)
    columns = _columns_of(job.folder, hits)
    if "against" in leaks:
        _leaks(job, leaks, columns, format, check=check)
        return
    for field in leaks:
        raise UsageError(f"{keyword(field)} is for {keyword('against')} FILE; give that, too")
    groups, row_count = job.run()
    table = HitTable()
    for number, group in enumerate(groups, 1):
        if format == "table":
            rows = counted(len(group), "row")
            console.result(f"{rows}, lowest cosine {score_text(group.lowest)}")
        about = {"cluster": number, "size": len(group), "lowest": round(group.lowest, 6)}
        _print_found(group, about, columns, format, table)
    spare = sum(len(group) - 1 for group in groups)
    found = counted(len(groups), "group")
    rows = f"{counted(row_count, 'row')} of {job.folder}"
    summary = f"{found}; {spare:,} of {rows} repeat another row"
    has_failed = check and spare > 0
    if not has_failed:
        console.note(summary)
    if groups:
        console.note(_LINKS[job.links])
    if has_failed:
        raise CheckFailedError(summary)


def _leaks(
    job: FindDupsJob, options: dict[str, Any], columns: Sequence[str], format: str, *, check: bool
) -> None:
    """Print the rows of another set that also occur in the index."""
    if job.links != "complete":
        raise UsageError(f"{keyword('links')} is for groups; leave out {keyword('against')}")
    leaks = FindIndexLeaksJob(job.folder, threshold=job.threshold, **options).run()
    names = (display_given(options["against"]), str(job.folder))
    show_leaks(leaks, names, format, columns, check=check)


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
        "rarity": hit.rarity,
        **rounded_way(hit),
    }
    if hit.columns is not None:
        document["columns"] = hit.columns
    return document


def _columns_of(folder: str | Path, hits: HitOptions) -> tuple[str, ...]:
    """Return the columns to show; refuse names that the index does not have."""
    if not hits.columns:
        return ()
    from promptcli.index.stored import read_manifest

    stored_columns = read_manifest(Path(folder)).columns
    for name in hits.columns:
        if name not in stored_columns:
            raise unknown("column", name, stored_columns)
    return hits.columns


def _print_found(
    hits: "Sequence[Hit]",
    about: Mapping[str, object],
    columns: Sequence[str],
    format: str,
    table: HitTable,
) -> None:
    """Print hits after what they have in common."""
    width = max([2, *(len(one_line(str(hit.id))) for hit in hits)])
    for hit in hits:
        shown = choose_columns(columns, hit.columns)
        if format == "json":
            console.result_json({**about, **_json(hit)})
        elif format == "csv":
            record = {name: value for name, value in _json(hit).items() if name != "columns"}
            table.row({**about, **record}, shown)
        else:
            row_id = one_line(str(hit.id))
            label = f"{hit.rank:>4}  {figures(hit, 7)}  {row_id:<{width}}  "
            print_hit(label, one_line(_with_heading(hit)), shown)


def _with_heading(hit: "Hit") -> str:
    """Return the text of a hit, that of a passage with a colon between its headings and the rest.

    The headings of a passage are its first line.
    """
    text = hit.text or ""
    columns = hit.columns or {}
    is_passage = "heading" in columns and "end_line" in columns
    return text.replace("\n", ": ", 1) if is_passage else text


def _show_unless_quiet(folder: str | Path, manifest: "IndexManifest", *, as_json: bool) -> None:
    """Print what an index holds after a change, which ``--quiet`` does not ask for."""
    if as_json or not RUNTIME.get().quiet:
        _show(folder, manifest, as_json=as_json)


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
