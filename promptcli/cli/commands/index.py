"""The commands that make and change a stored index: ``index build``, ``add``, ``delete``, ``compact``."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli import console
from promptcli.cli.commands.index_search import (
    Folder,
    Memory,
    RowOptions,
    Work,
    encoder_of,
    read_ids,
    set_threads,
    size_of,
)
from promptcli.cli.commands.models import method_line
from promptcli.cli.options import Json, ModelChoice, Runtime
from promptcli.errors import UsageError
from promptcli.recipe import Recipe

if TYPE_CHECKING:
    from promptcli.encoder.embedding import EmbedReport
    from promptcli.index.inputs import Incoming, RowFiles
    from promptcli.index.rows import Rows
    from promptcli.index.stored import IndexManifest
    from promptcli.index.vector_index import VectorIndex

File = Annotated[
    Path,
    typer.Argument(
        help="Sentences as for `embed` (- for standard input), or vectors that `embed` wrote, used as they are: a file,"
        " or a folder of Parquet parts, read block by block."
    ),
]


def build(
    file: File,
    choice: ModelChoice,
    runtime: Runtime,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder of the index.")],
    factory: Annotated[
        str | None,
        typer.Option(
            help="FAISS factory string, e.g. Flat (exact), HNSW32 or IVF256,SQ8. Recall is measured.",
            show_default="by the number of rows",
        ),
    ] = None,
    target_recall: Annotated[
        float, typer.Option(help="recall@10 that an approximate index is searched for; 1: exact.")
    ] = 0.95,
    memory: Memory = "4GB",
    *,
    rows: RowOptions,
    force: Annotated[bool, typer.Option("--force", help="Replace an index that is there.")] = False,
    as_json: Json = False,
) -> None:
    """Index sentences, or vectors that `embed` wrote, for search by cosine."""
    from promptcli.cli import opening
    from promptcli.index.inputs import rows_to_build
    from promptcli.index.stored import StoredIndex, create
    from promptcli.index.stored import check as check_free
    from promptcli.registry.entries import utc_now

    check_free(output, force=force)
    room = size_of(memory)
    incoming, origin = rows_to_build(
        rows.of(file, near=output),
        lambda: opening.open_encoder(choice, runtime, default_dtype="auto"),
        named=bool(choice.model or choice.recipe or choice.changes()),
        model=choice.model and opening.open_registry().aliases().get(choice.model, choice.model),
    )
    from promptcli.index.vector_index import VectorIndex  # after the input is known to be right: it loads FAISS

    set_threads(runtime)
    with create(output, force=force) as store:
        index = VectorIndex.build_from(incoming.rows, factory, target=target_recall, memory=room, store=store.segment)
        manifest = store.commit(StoredIndex(index, origin, utc_now()))
    if not index.exact and index.why:
        console.note(index.why)
    _tell(incoming.report, index)
    if index.recall is not None and index.recall.at_10 < target_recall:
        console.note(f"recall@10 is below {target_recall:g}; a finer --factory reaches more")
    _show(output, manifest, as_json=as_json)


def add(
    folder: Folder,
    file: File,
    runtime: Runtime,
    *,
    rows: RowOptions,
    replace: Annotated[
        bool, typer.Option("--replace", help="Rows take the place of those with the same ids; others are added.")
    ] = False,
    memory: Memory = "4GB",
    as_json: Json = False,
) -> None:
    """Add sentences, or vectors of the same encoder, to an index. Row numbers as ids go on from its last row."""
    incoming = _incoming(folder, rows.of(file, near=folder), runtime)
    if replace and not any(isinstance(name, str) for block in incoming.rows.blocks() for name in block.ids):
        raise UsageError(f"{file} has row numbers for ids; name the field of its ids with --id-field, or no --replace")

    def put(index: "VectorIndex", rows: "Rows") -> None:
        if not replace:
            index.add_from(rows)
            return
        replaced = index.upsert_from(rows)
        console.note(f"{replaced:,} of {rows.shape[0]:,} rows replace others")

    _changed(folder, incoming, put, runtime, memory, as_json=as_json)


def delete(
    folder: Folder,
    work: Work,
    given: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of the rows.")] = None,
    file: Annotated[Path | None, typer.Option("--ids", metavar="FILE", help="File of ids, one a line.")] = None,
    as_json: Json = False,
) -> None:
    """Delete rows by their ids: they are no answers any more, and `index compact` frees their room."""
    from promptcli.index.stored import change, read_manifest

    ids = [*(given or ()), *(read_ids(file) or ())]
    if not ids:
        raise UsageError("no ids are given; give some, or a file of them with --ids FILE")
    with change(folder) as stored:
        deleted = stored.index.delete(ids)
    console.note(f"{deleted:,} rows deleted")
    _show(folder, read_manifest(folder), as_json=as_json)


def compact(folder: Folder, work: Work, memory: Memory = "4GB", as_json: Json = False) -> None:
    """Write an index anew without its deleted rows, in as few segments as the memory allows."""
    from promptcli.index.stored import change, read_manifest

    set_threads(work)
    with change(folder, memory=size_of(memory)) as stored:
        stored.index.compact()
    _show(folder, read_manifest(folder), as_json=as_json)


def info(folder: Folder, as_json: Json = False) -> None:
    """Print what an index holds; its files are looked at as for a search."""
    from promptcli.index.stored import read_manifest

    _show(folder, read_manifest(folder), as_json=as_json)


def check(folder: Folder, work: Work, as_json: Json = False) -> None:
    """Read every file of an index whole, compare its checksum, and open it."""
    from promptcli.index.stored import check_whole

    manifest = check_whole(folder)
    total = sum((folder / name).stat().st_size for name in manifest.sha256)
    console.note(f"{len(manifest.sha256):,} files, {total:,} bytes: all as they were written")
    _show(folder, manifest, as_json=as_json)


def _incoming(folder: Path, files: "RowFiles", runtime: Runtime) -> "Incoming":
    """Return rows for an index that is there."""
    from promptcli.index.inputs import rows_to_add
    from promptcli.index.stored import read_manifest

    origin = read_manifest(folder).origin
    return rows_to_add(files, origin, lambda: encoder_of(origin, runtime))


def _changed(
    folder: Path,
    incoming: "Incoming",
    change_it: "Callable[[VectorIndex, Rows], None]",
    runtime: Runtime,
    memory: str,
    *,
    as_json: bool,
) -> None:
    """Bring rows into an index and print what it holds then."""
    from promptcli.index.origins import check_same
    from promptcli.index.stored import change, read_manifest

    set_threads(runtime)
    before = read_manifest(folder).origin
    with change(folder, memory=size_of(memory)) as stored:  # another process may have changed it meanwhile
        check_same(stored.origin.fingerprint, before.fingerprint, str(folder))
        change_it(stored.index, incoming.rows)
    _tell(incoming.report, stored.index)
    _show(folder, read_manifest(folder), as_json=as_json)


def _tell(report: "EmbedReport | None", index: "VectorIndex") -> None:
    from promptcli.index.rows import named_rows

    if report is not None:
        console.note_counts(report.rows, blank=report.blank, truncated=report.truncated)
    if index.zero_rows:
        console.note(f"{named_rows(index.zero_rows)}: the vector is zero, so its score is always 0")


def _show(folder: Path, manifest: "IndexManifest", *, as_json: bool) -> None:
    if as_json:
        console.result_json({"index": str(folder), **asdict(manifest)})
        return
    recall, recipe = manifest.recall, manifest.recipe
    quality = "exact" if recall is None else f"recall@10 {recall.at_10:.3f}, measured on {recall.queries:,} rows"
    settings = {"nprobe": manifest.nprobe, "ef": manifest.ef, "candidates": manifest.factor and 10 * manifest.factor}
    effort = "".join(f", {name} {value:g}" for name, value in settings.items() if value)
    masked = f", {manifest.deleted:,} deleted ones not freed yet" if manifest.deleted else ""
    lines = {
        "index": str(folder),
        "rows": f"{manifest.rows:,} of {manifest.dim:,} numbers{'' if manifest.texts else ', without texts'}{masked}",
        "factory": f"{manifest.factory} ({quality}{effort})",
        "encoder": f"{manifest.fingerprint[:12]} {manifest.model or ''}".rstrip(),
        "recipe": method_line(Recipe.from_dict(recipe)),
        "backbone": recipe["backbone"],
        "created": manifest.created,
    }
    for name, value in lines.items():
        console.result(f"{name:<10}{value}")
