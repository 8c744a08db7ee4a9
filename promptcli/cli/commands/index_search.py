"""The commands ``index search``, ``dups`` and ``pairs``: what is near to a query, and what is near to each other."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli import console
from promptcli.cli.commands.embed import TextField
from promptcli.cli.commands.index_common import (
    STANDARD,
    Folder,
    RowOptions,
    Work,
    encoder_of,
    one_line,
    print_hits,
    read_ids,
    set_threads,
)
from promptcli.cli.options import Runtime
from promptcli.errors import UsageError

if TYPE_CHECKING:
    from promptcli.index.rows import Hit


def search(
    folder: Folder,
    query: Annotated[
        str,
        typer.Argument(
            help="A sentence; a file of sentences or of vectors that `embed` wrote, if there is one of that name;"
            " - for standard input."
        ),
    ],
    runtime: Runtime,
    k: Annotated[int, typer.Option("-k", min=1, help="Answers to each query.")] = 10,
    min_score: Annotated[float | None, typer.Option(help="Leave out answers below this cosine.")] = None,
    nprobe: Annotated[
        int | None, typer.Option(min=1, help="Lists of an IVF index to read.", show_default="as measured at the build")
    ] = None,
    ef: Annotated[
        int | None, typer.Option(min=1, help="Candidates of an HNSW index.", show_default="as measured at the build")
    ] = None,
    allow: Annotated[Path | None, typer.Option(help="File of ids, one a line: only these may be answers.")] = None,
    deny: Annotated[Path | None, typer.Option(help="File of ids, one a line: these may not.")] = None,
    text_field: TextField = None,
    json_lines: Annotated[bool, typer.Option("--json", help='JSONL {"query", "rank", "id", "text", "score"}.')] = False,
) -> None:
    """Print the k rows of an index that are nearest to each query, best first, with their cosine."""
    from promptcli.index.inputs import read_queries
    from promptcli.index.stored import load

    stored = load(folder)
    set_threads(runtime)
    only, without = read_ids(allow), read_ids(deny)
    many = query == STANDARD or (os.path.exists(query) and not os.path.isdir(query))
    if many:
        files = RowOptions(text_field=text_field).of(Path(query))
        found = read_queries(files, stored.origin, lambda: encoder_of(stored.origin, runtime))
    else:
        _check_query(query)
        found = iter([([query], encoder_of(stored.origin, runtime).encode([query]))])
    for names, vectors in found:
        answers = stored.index.search(vectors, k, nprobe=nprobe, ef=ef, allow=only, deny=without)
        for line, hits in zip(names, answers, strict=True):
            kept = [hit for hit in hits if min_score is None or hit.score >= min_score]
            if json_lines:
                for hit in kept:
                    console.result_json({"query": line, **_json(hit)})
            else:
                if many:
                    console.result(f"query: {one_line(line)}")
                print_hits(kept)
            if not kept:
                least = "" if min_score is None else f" of at least {min_score}"
                console.note(f"no answer{least} to {line!r}")


def dups(
    folder: Folder,
    work: Work,
    threshold: Annotated[float, typer.Option(help="Cosine from which two rows are linked.")] = 0.95,
    json_lines: Annotated[
        bool, typer.Option("--json", help='JSONL {"cluster", "size", "rank", "id", "text", "score"}.')
    ] = False,
) -> None:
    """Print groups of near-duplicates, the largest first: rows that a cosine of at least --threshold links."""
    from promptcli.index.neighbours import dups as find
    from promptcli.index.stored import load

    stored = load(folder)
    set_threads(work)
    with console.progress("dups", stored.index.rows) as progress:
        clusters = find(stored.index, threshold, progress)
    for number, cluster in enumerate(clusters, 1):
        if json_lines:
            for hit in cluster.rows:
                console.result_json({"cluster": number, "size": len(cluster.rows), **_json(hit)})
        else:
            console.result(f"{len(cluster.rows):,} rows")
            print_hits(cluster.rows)
    spare = sum(len(cluster.rows) - 1 for cluster in clusters)
    console.note(f"{len(clusters):,} groups; {spare:,} of {stored.index.rows:,} rows repeat another")


def pairs(
    folder: Folder,
    work: Work,
    k: Annotated[int, typer.Option("-k", min=1, help="Pairs.")] = 10,
    threshold: Annotated[float | None, typer.Option(help="Only pairs with at least this cosine.")] = None,
    json_lines: Annotated[
        bool, typer.Option("--json", help='JSONL {"rank", "score", "first": {"id", "text"}, "second"}.')
    ] = False,
) -> None:
    """Print the k nearest pairs of different rows of an index, best first, with their cosine."""
    from promptcli.index.neighbours import pairs as find
    from promptcli.index.stored import load

    stored = load(folder)
    set_threads(work)
    with console.progress("pairs", stored.index.rows) as progress:
        found = find(stored.index, k, threshold, progress)
    for pair in found:
        if json_lines:
            both = {name: {"id": hit.id, "text": hit.text} for name, hit in pair._asdict().items() if name in _SIDES}
            console.result_json({"rank": pair.rank, "score": round(pair.score, 6), **both})
        else:
            console.result(f"pair {pair.rank}: {pair.score:.4f}")
            print_hits([pair.first, pair.second])
    if not found:
        console.note("no such pair")


_SIDES = ("first", "second")


def _json(hit: "Hit") -> dict[str, object]:
    return {**hit._asdict(), "score": round(hit.score, 6)}


def _check_query(sentence: str) -> None:
    from promptcli.data.text import check_encodable

    if not sentence.strip():
        raise UsageError("the query is empty; give a sentence, a file, or - for standard input")
    check_encodable(sentence)
