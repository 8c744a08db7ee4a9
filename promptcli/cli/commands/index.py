"""The commands ``index build``, ``add``, ``search`` and ``info``: search by meaning over a stored index."""

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli import console
from promptcli.cli.commands.embed import IdField, TextField
from promptcli.cli.commands.models import method_line
from promptcli.cli.options import Json, ModelChoice, Runtime, expand
from promptcli.encoder.recipe import Recipe
from promptcli.errors import UsageError

if TYPE_CHECKING:
    from promptcli.data.text import Source
    from promptcli.encoder.embedder import Progress
    from promptcli.encoder.encoder import Encoder
    from promptcli.index.inputs import RowFiles, VectorRows
    from promptcli.index.rows import Hit
    from promptcli.index.stored import IndexManifest, Origin
    from promptcli.index.vector_index import VectorIndex

#: Stands for standard input.
STANDARD = "-"

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the index.", show_default=False)]
File = Annotated[
    Path,
    typer.Argument(
        help="Sentences as for `embed` (- for standard input), or vectors that `embed` wrote, used as they are.",
        show_default=False,
    ),
]
Texts = Annotated[
    Path | None,
    typer.Option("--texts", help="The sentences that a .npy or .safetensors file came from.", show_default=False),
]


def build(
    file: File,
    choice: ModelChoice,
    runtime: Runtime,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder of the index.")],
    factory: Annotated[
        str,
        typer.Option(
            "--factory", help="FAISS factory string, e.g. HNSW32 or IVF256,Flat; Flat is exact. Recall is measured."
        ),
    ] = "Flat",
    texts: Texts = None,
    text_field: TextField = None,
    id_field: IdField = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an index that is there.")] = False,
    as_json: Json = False,
) -> None:
    """Index sentences, or vectors that `embed` wrote, for search by cosine."""
    from promptcli.cli import opening
    from promptcli.index.inputs import rows_to_build
    from promptcli.index.stored import StoredIndex, check, save
    from promptcli.registry.entries import utc_now

    check(output, force=force)
    rows, origin = rows_to_build(
        _files(file, runtime, texts, text_field, id_field),
        lambda: opening.open_encoder(choice, runtime, default_dtype="auto"),
        named=bool(choice.model or choice.recipe or choice.changes()),
        model=choice.model and opening.open_registry().aliases().get(choice.model, choice.model),
    )
    from promptcli.index.vector_index import VectorIndex  # after the input is known to be right: it loads FAISS

    _set_threads(runtime)
    index = VectorIndex.build(rows.vectors, rows.ids, rows.texts, factory)
    manifest = save(output, StoredIndex(index, origin, utc_now()), force=force)
    _tell(rows, index, quiet=runtime.quiet)
    _show(output, manifest, as_json=as_json)


def add(
    folder: Folder,
    file: File,
    runtime: Runtime,
    texts: Texts = None,
    text_field: TextField = None,
    id_field: IdField = None,
    as_json: Json = False,
) -> None:
    """Add sentences, or vectors of the same encoder, to an index. Row numbers as ids go on from its last row."""
    from promptcli.index.inputs import rows_to_add
    from promptcli.index.origins import check_same
    from promptcli.index.stored import change, read_manifest

    origin = read_manifest(folder).origin
    files = _files(file, runtime, texts, text_field, id_field)
    rows = rows_to_add(files, origin, lambda: _encoder_of(origin, runtime))
    _set_threads(runtime)
    with change(folder) as stored:  # read again: another process may have added rows meanwhile
        check_same(stored.origin.fingerprint, origin.fingerprint, str(folder))
        stored.index.add(rows.vectors, rows.ids, rows.texts)
    _tell(rows, stored.index, quiet=runtime.quiet)
    _show(folder, read_manifest(folder), as_json=as_json)


def search(
    folder: Folder,
    query: Annotated[
        str,
        typer.Argument(
            help="A sentence; a file of sentences or of vectors that `embed` wrote, if there is one of that name;"
            " - for standard input.",
            show_default=False,
        ),
    ],
    runtime: Runtime,
    k: Annotated[int, typer.Option("-k", min=1, help="Answers to each query.")] = 10,
    min_score: Annotated[
        float | None, typer.Option("--min-score", help="Leave out answers below this cosine.", show_default=False)
    ] = None,
    text_field: TextField = None,
    json_lines: Annotated[bool, typer.Option("--json", help='JSONL {"query", "rank", "id", "text", "score"}.')] = False,
) -> None:
    """Print the k rows of an index that are nearest to each query, best first, with their cosine."""
    from promptcli.index.inputs import read_queries
    from promptcli.index.stored import load

    stored = load(folder)
    _set_threads(runtime)
    many = query == STANDARD or (os.path.exists(query) and not os.path.isdir(query))
    if many:
        files = _files(Path(query), runtime, None, text_field, None)
        found = read_queries(files, stored.origin, lambda: _encoder_of(stored.origin, runtime))
    else:
        _check_query(query)
        found = iter([([query], _encoder_of(stored.origin, runtime).encode([query]))])
    for names, vectors in found:
        for line, hits in zip(names, stored.index.search(vectors, k), strict=True):
            kept = [hit for hit in hits if min_score is None or hit.score >= min_score]
            if json_lines:
                for hit in kept:
                    console.result_json({"query": line, **hit._asdict(), "score": round(hit.score, 6)})
            else:
                _print_hits(line if many else None, kept)
            if not kept:
                console.note(f"no answer of at least {min_score} to {line!r}", quiet=runtime.quiet)


def info(folder: Folder, as_json: Json = False) -> None:
    """Check the files of an index and print what it holds."""
    from promptcli.index.stored import read_manifest

    _show(folder, read_manifest(folder), as_json=as_json)


app = typer.Typer(help="Build and search an index of sentences.", no_args_is_help=True)
for _command in (build, add, search, info):
    app.command(_command.__name__)(expand(_command))


def _files(
    file: Path, runtime: Runtime, texts: Path | None, text_field: str | None, id_field: str | None
) -> "RowFiles":
    from promptcli.data.tables import Fields
    from promptcli.index.inputs import RowFiles

    @contextlib.contextmanager
    def bar(source: "Source") -> "Iterator[Progress]":
        total = source.total() if console.err.is_terminal and not runtime.quiet else None
        with console.progress("index", total, quiet=runtime.quiet) as progress:
            yield progress

    stdin = sys.stdin.buffer if str(file) == STANDARD else None
    return RowFiles(file, texts, Fields(text_field, id_field), stdin, bar)


def _encoder_of(origin: "Origin", runtime: Runtime) -> "Encoder":
    """Return the encoder that made an index."""
    from promptcli.cli import opening
    from promptcli.index.origins import rebuild_encoder

    opening.configure_libraries(runtime)
    return rebuild_encoder(
        origin,
        opening.open_registry(),
        lambda entry, dtype: opening.open_entries([entry], runtime, default_dtype=dtype)[0],
    )


def _check_query(sentence: str) -> None:
    from promptcli.data.text import check_encodable

    if not sentence.strip():
        raise UsageError("the query is empty; give a sentence, a file, or - for standard input")
    check_encodable(sentence)


def _set_threads(runtime: Runtime) -> None:
    from promptcli.index.vector_index import set_threads

    if runtime.threads is not None:
        set_threads(runtime.threads)


def _tell(rows: "VectorRows", index: "VectorIndex", *, quiet: bool) -> None:
    from promptcli.index.rows import named_rows

    report = rows.report
    if report is not None and report.blank:
        console.note(f"{report.blank:,} of {report.rows:,} lines are blank; each keeps its row", quiet=quiet)
    if report is not None and report.truncated:
        cut = f"{report.truncated:,} of {report.rows:,} sentences were longer than the model's input and were cut"
        console.note(cut, quiet=quiet)
    if index.zero_rows:
        console.note(f"{named_rows(index.zero_rows)}: the vector is zero, so its score is always 0", quiet=quiet)


def _show(folder: Path, manifest: "IndexManifest", *, as_json: bool) -> None:
    if as_json:
        console.result_json({"index": str(folder), **asdict(manifest)})
        return
    recall, recipe = manifest.recall, manifest.recipe
    quality = "exact" if recall is None else f"recall@10 {recall.at_10:.3f}, measured on {recall.queries:,} rows"
    lines = {
        "index": str(folder),
        "rows": f"{manifest.rows:,} of {manifest.dim:,} numbers{'' if manifest.texts else ', without texts'}",
        "factory": f"{manifest.factory} ({quality})",
        "encoder": f"{manifest.fingerprint[:12]} {manifest.model or ''}".rstrip(),
        "recipe": method_line(Recipe.from_dict(recipe)),
        "backbone": recipe["backbone"],
        "created": manifest.created,
    }
    for name, value in lines.items():
        console.result(f"{name:<10}{value}")


def _print_hits(query: str | None, hits: "list[Hit]") -> None:
    """Print a table; texts are shown on one line each, whatever characters they hold."""
    if query is not None:
        console.result(f"query: {_one_line(query)}")
    width = max([2, *(len(_one_line(str(hit.id))) for hit in hits)])
    for hit in hits:
        shown = "" if hit.text is None else _one_line(hit.text)
        console.result(f"{hit.rank:>4}  {hit.score:7.4f}  {_one_line(str(hit.id)):<{width}}  {shown}".rstrip())


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
