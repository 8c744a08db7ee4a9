"""What commands on indexes share; ``index search``, ``dups``, ``pairs``: what is near to a query, or to each other."""

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli import console
from promptcli.cli.commands.embed import IdField, TextField
from promptcli.cli.options import Runtime
from promptcli.errors import UsageError

if TYPE_CHECKING:
    from promptcli.data.text import Source
    from promptcli.encoder.embedder import Progress
    from promptcli.encoder.encoder import Encoder
    from promptcli.index.inputs import RowFiles
    from promptcli.index.rows import Hit
    from promptcli.index.stored import Origin

#: Stands for standard input.
STANDARD = "-"

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the index.")]
Memory = Annotated[
    str, typer.Option("--memory", metavar="SIZE", help="Memory that the process may take, e.g. 4GB or 800MB.")
]


@dataclass(frozen=True)
class Work:
    """How work without an encoder is done."""

    threads: Annotated[int | None, typer.Option(min=1, help="Processor threads. Default: all cores.")] = None
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.")] = False


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size_of(text: str) -> int:
    """Return the bytes of a size such as 4GB."""
    found = re.fullmatch(r"(\d{1,18}(?:\.\d+)?) ?([kmgt]?)i?b?", text.strip(), re.IGNORECASE)
    if found is None:
        raise UsageError(f"--memory {text}: no size; give a number and a unit, e.g. 4GB or 800MB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


@dataclass(frozen=True)
class RowOptions:
    """What is read of a file of rows."""

    texts: Annotated[Path | None, typer.Option(help="The sentences that a .npy or .safetensors file came from.")] = None
    text_field: TextField = None
    id_field: IdField = None

    def of(self, file: Path, *, near: Path | None = None) -> "RowFiles":
        """Return where rows come from, with a bar for their encoding; they wait on the disk of ``near``, an index."""
        from promptcli.data.tables import Fields
        from promptcli.index.inputs import RowFiles
        from promptcli.storage.files import real_path

        @contextlib.contextmanager
        def bar(source: "Source") -> "Iterator[Progress]":
            with console.progress("index", source.total() if console.draws_bars() else None) as progress:
                yield progress

        stdin = sys.stdin.buffer if str(file) == STANDARD else None
        above = real_path(near).parents if near else ()
        disk = next((folder for folder in above if folder.is_dir()), None)
        return RowFiles(file, self.texts, Fields(self.text_field, self.id_field), stdin, bar, disk)


def encoder_of(origin: "Origin", runtime: Runtime) -> "Encoder":
    """Return the encoder that made an index."""
    from promptcli.cli import opening
    from promptcli.index.origins import rebuild_encoder

    opening.configure_libraries(runtime)
    return rebuild_encoder(
        origin,
        opening.open_registry(),
        lambda entry, dtype: opening.open_entries([entry], runtime, default_dtype=dtype)[0],
    )


def set_threads(runtime: Runtime | Work) -> None:
    """Let FAISS use as many threads as the user says."""
    from promptcli.index.vector_index import set_threads

    if runtime.threads is not None:
        set_threads(runtime.threads)


def read_ids(path: Path | None) -> list[str] | None:
    """Return the ids of a file, one a line; None without a file."""
    if path is None:
        return None
    from promptcli.data.streams import open_hashed, read_lines

    with open_hashed(path) as raw:
        ids = [name for line in read_lines(raw, str(path)) if (name := line.rstrip("\r\n"))]
    if not ids:
        raise UsageError(f"{path} holds no ids; give one a line")
    return ids


def print_hits(hits: "list[Hit]") -> None:
    """Print a table; texts are shown on one line each, whatever characters they hold."""
    width = max([2, *(len(one_line(str(hit.id))) for hit in hits)])
    for hit in hits:
        shown = "" if hit.text is None else one_line(hit.text)
        console.result(f"{hit.rank:>4}  {hit.score:7.4f}  {one_line(str(hit.id)):<{width}}  {shown}".rstrip())


def one_line(text: str) -> str:
    """Return a text without control characters."""
    return "".join(character if character.isprintable() else " " for character in text)


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
