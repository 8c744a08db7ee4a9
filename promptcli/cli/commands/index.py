"""The commands of ``promptcli index``: build, change, look at and search a stored index."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli import console
from promptcli.cli.commands.embed import IdField
from promptcli.cli.commands.models import method_line
from promptcli.cli.options import Force, Json, ModelOptions, Runtime, SentenceField
from promptcli.recipe import Recipe

if TYPE_CHECKING:
    from promptcli.index.rows import Hit
    from promptcli.index.stored import IndexManifest

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the index.")]
Memory = Annotated[
    str, typer.Option("--memory", metavar="SIZE", help="Memory that the process may take, e.g. 4GB or 800MB.")
]
File = Annotated[
    str,
    typer.Argument(
        help="Sentences as for `embed` (- for standard input), or vectors that `embed` wrote, used as they are: a file,"
        " or a folder of Parquet parts, read block by block."
    ),
]


@dataclass(frozen=True)
class RowOptions:
    """What is read of a file of rows."""

    texts: Annotated[Path | None, typer.Option(help="The sentences that a .npy or .safetensors file came from.")] = None
    text_field: SentenceField = None
    id_field: IdField = None


def build(
    file: File,
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
    force: Force = False,
    json: Json = False,
    *,
    rows: RowOptions,
    model: ModelOptions,
    runtime: Runtime,
) -> None:
    """Index sentences, or vectors that `embed` wrote, for search by cosine."""
    from promptcli.index.indexing import build_index

    how: dict[str, Any] = {"factory": factory, "target_recall": target_recall, "memory": memory, "force": force}
    how |= vars(rows) | {"device": runtime.device, "dtype": runtime.dtype}
    _show(output, build_index(_source(file), output, model.choice(), **how), as_json=json)


def add(
    folder: Folder,
    file: File,
    replace: Annotated[
        bool, typer.Option("--replace", help="Rows take the place of those with the same ids; others are added.")
    ] = False,
    memory: Memory = "4GB",
    json: Json = False,
    *,
    rows: RowOptions,
    runtime: Runtime,
) -> None:
    """Add sentences, or vectors of the same encoder, to an index. Row numbers as ids go on from its last row."""
    from promptcli.index.indexing import add_to_index

    how = {**vars(rows), "device": runtime.device}
    _show(folder, add_to_index(folder, _source(file), replace=replace, memory=memory, **how), as_json=json)


def delete(
    folder: Folder,
    given: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of the rows.")] = None,
    ids: Annotated[Path | None, typer.Option("--ids", metavar="FILE", help="File of ids, one a line.")] = None,
    json: Json = False,
) -> None:
    """Delete rows by their ids: they no longer appear in results; `index compact` reclaims their space."""
    from promptcli.index.indexing import delete_from_index

    _show(folder, delete_from_index(folder, given or (), file=ids), as_json=json)


def compact(folder: Folder, memory: Memory = "4GB", json: Json = False) -> None:
    """Write an index again without its deleted rows, in as few segments as the memory allows."""
    from promptcli.index.indexing import compact_index

    _show(folder, compact_index(folder, memory=memory), as_json=json)


def info(folder: Folder, json: Json = False) -> None:
    """Print what an index holds, after the file checks of a search."""
    from promptcli.index.stored import read_manifest

    _show(folder, read_manifest(folder), as_json=json)


def check(folder: Folder, json: Json = False) -> None:
    """Read every file of an index whole, compare its checksum, and open it."""
    from promptcli.index.indexing import check_index

    _show(folder, check_index(folder), as_json=json)


def search(
    folder: Folder,
    query: Annotated[
        str,
        typer.Argument(
            help="A sentence; a file of sentences or of vectors that `embed` wrote, if there is one of that name;"
            " - for standard input."
        ),
    ],
    k: Annotated[int, typer.Option("-k", min=1, help="Results per query.")] = 10,
    min_score: Annotated[float | None, typer.Option(help="Leave out answers below this cosine.")] = None,
    nprobe: Annotated[
        int | None, typer.Option(min=1, help="Lists of an IVF index to read.", show_default="as measured at the build")
    ] = None,
    ef: Annotated[
        int | None, typer.Option(min=1, help="Candidates of an HNSW index.", show_default="as measured at the build")
    ] = None,
    allow: Annotated[Path | None, typer.Option(help="File of ids, one a line: only these may be answers.")] = None,
    deny: Annotated[Path | None, typer.Option(help="File of ids, one a line: these may not.")] = None,
    text_field: SentenceField = None,
    json: Annotated[bool, typer.Option("--json", help='JSONL {"query", "rank", "id", "text", "score"}.')] = False,
    *,
    runtime: Runtime,
) -> None:
    """Print the k rows of an index that are nearest to each query, best first, with their cosine."""
    from promptcli.data.given import note_no_file
    from promptcli.index.indexing import is_query_file, search_index

    note_no_file(query)
    many = query == "-" or is_query_file(query)
    how: dict[str, Any] = {"min_score": min_score, "nprobe": nprobe, "ef": ef, "allow": allow, "deny": deny}
    how |= {"text_field": text_field, "device": runtime.device}
    for line, hits in search_index(folder, _source(query) if many else [query], k, **how):
        if json:
            for hit in hits:
                console.result_json({"query": line, **_json(hit)})
        else:
            if many:
                console.result(f"query: {one_line(line)}")
            print_hits(hits)
        if not hits:
            least = "" if min_score is None else f" of at least {min_score}"
            console.note(f"no answer{least} to {line!r}")


def dups(
    folder: Folder,
    threshold: Annotated[
        float | None, typer.Option(help="Cosine from which two rows are linked. Default: 0.95; with --pairs none.")
    ] = None,
    pairs: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Print the K nearest pairs instead, best first.")
    ] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help='JSONL {"cluster", "size", "rank", "id", "text", "score"}; of pairs {"rank", "score", "first": {"id",'
            ' "text"}, "second"}.',
        ),
    ] = False,
) -> None:
    """Print groups of near-duplicates, the largest first: rows linked by a cosine of at least --threshold."""
    from promptcli.index.indexing import find_dups, find_pairs

    if pairs is not None:
        _print_pairs(find_pairs(folder, pairs, threshold), as_json=json)
        return
    clusters, rows = find_dups(folder, 0.95 if threshold is None else threshold)
    for number, cluster in enumerate(clusters, 1):
        if json:
            for hit in cluster.rows:
                console.result_json({"cluster": number, "size": len(cluster.rows), **_json(hit)})
        else:
            console.result(f"{len(cluster.rows):,} rows")
            print_hits(cluster.rows)
    spare = sum(len(cluster.rows) - 1 for cluster in clusters)
    console.note(f"{len(clusters):,} groups; {spare:,} of {rows:,} rows repeat another")


def _print_pairs(found: list[Any], *, as_json: bool) -> None:
    for pair in found:
        if as_json:
            sides = {"first": pair.first, "second": pair.second}
            both = {name: {"id": hit.id, "text": hit.text} for name, hit in sides.items()}
            console.result_json({"rank": pair.rank, "score": round(pair.score, 6), **both})
        else:
            console.result(f"pair {pair.rank}: {pair.score:.4f}")
            print_hits([pair.first, pair.second])
    if not found:
        console.note("no such pair")


def _source(file: str) -> Any:
    return sys.stdin.buffer if file == "-" else Path(file)


def _json(hit: "Hit") -> dict[str, object]:
    return {**hit._asdict(), "score": round(hit.score, 6)}


def print_hits(hits: "list[Hit]") -> None:
    """Print a table; texts are shown on one line each, whatever characters they hold."""
    width = max([2, *(len(one_line(str(hit.id))) for hit in hits)])
    for hit in hits:
        shown = "" if hit.text is None else one_line(hit.text)
        console.result(f"{hit.rank:>4}  {hit.score:7.4f}  {one_line(str(hit.id)):<{width}}  {shown}".rstrip())


def one_line(text: str) -> str:
    """Return a text without control characters."""
    return "".join(character if character.isprintable() else " " for character in text)


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
