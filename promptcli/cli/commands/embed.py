"""The commands ``embed`` and ``similarity``: sentences to vectors, in parts too; the likeness of sentences or files."""

import io
import os
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from promptcli.cli.console import note, result, result_json
from promptcli.cli.options import Force, Json, ModelOptions, Runtime, SentenceField, option_in
from promptcli.errors import UsageError
from promptcli.extensions import added_to
from promptcli.notes import note_counts

if TYPE_CHECKING:
    from promptcli.data.vectors.precision import Loss
    from promptcli.embedding.embed import Embedded, EmbeddedParts

_option = option_in("Parts")
#: A word that is more likely the misspelt name of a file than a sentence.
_NAME_OF_FILE = re.compile(r"^\S+(/\S*|\.[a-z][a-z0-9]+)$")
IdField = Annotated[
    str | None, typer.Option("--id-field", help="Column of the id. Default: `id`, else the row number.")
]


@dataclass(frozen=True)
class Sharding:
    """Into how many parts, which of them, and what makes them."""

    shards: Annotated[
        int | None,
        _option(min=1, max=99_999, help="Split the output into this many Parquet files; finished parts are skipped."),
    ] = None
    shard: Annotated[
        int | None, _option(help="Make this part alone, from 0; the last one to finish writes the manifest.")
    ] = None
    workers: Annotated[
        int | None, _option(min=1, help="Worker processes. Default: one a GPU, else this process alone.")
    ] = None
    engine: Annotated[str, _option(help="local, or ray: actors of a Ray cluster (extra `ray`).")] = "local"
    address: Annotated[str | None, _option(help="Address of the Ray cluster. Default: this machine.")] = None


def embed(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Sentences: text (one a line), .jsonl, .csv, .tsv (each also .gz), .parquet, - for standard input, or"
            " the sentences themselves. With --shards: many files, globs, folders of .parquet files, URLs (hf://,"
            " s3://).",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Vector file: .npy, .parquet, .jsonl or .safetensors; - for JSONL on stdout; with --shards a folder."
            " Default: FILE.npy next to the input; stdout for sentences and pipes." + added_to("formats"),
        ),
    ] = None,
    text_field: SentenceField = None,
    id_field: IdField = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale every vector to length 1.")] = False,
    precision: Annotated[
        str,
        typer.Option(
            help="float32, float16, int8 (256 steps between a dimension's extremes), binary or ubinary (packed signs)."
            " The loss is measured and printed."
        ),
    ] = "float32",
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Largest batch. Default: as many sentences as fit a budget of tokens.")
    ] = None,
    no_text: Annotated[bool, typer.Option("--no-text", help="Leave the sentences out of .parquet and .jsonl.")] = False,
    force: Force = False,
    json: Json = False,
    *,
    model: ModelOptions,
    sharding: Sharding,
    runtime: Runtime,
) -> None:
    """Encode the sentences of a file. Row i of the output is line i of the input, from 0; blank lines keep their row.

    OUTPUT.manifest.json says which model and input the vectors come from, and how int8 is read. With --shards the
    output is a folder of Parquet files, made by one process or many; the same command resumes it.
    """
    from promptcli.embedding import embed as embedding

    common: dict[str, Any] = {"text_field": text_field, "id_field": id_field, "normalize": normalize}
    common |= {"precision": precision, "with_text": not no_text, "force": force, "backend": runtime.backend}
    common |= {"device": runtime.device, "dtype": runtime.dtype}
    if sharding.shards is not None:
        if output is None or str(output) == "-":
            raise UsageError("--shards writes a folder; name it with -o FOLDER")
        parts = vars(sharding) | {"threads": runtime.threads}
        _tell_parts(embedding.embed_parts(files, output, model=model.choice(), **parts, **common), as_json=json)
        return
    _check_no_parts(sharding)
    source: str | BinaryIO = files[0] if files[0] != "-" else sys.stdin.buffer
    if _are_sentences(files):
        note(f"no such file; read as {'a sentence' if len(files) == 1 else f'{len(files)} sentences'}")
        source = io.BytesIO("\n".join(files).encode())
    to_stdout = str(output) == "-" or (output is None and (not isinstance(source, str) or Path(source).is_fifo()))
    if to_stdout and json:
        raise UsageError("--json: the vectors are on standard output; give a file with -o")
    target = sys.stdout.buffer if to_stdout else output
    _tell(embedding.embed(source, target, model.choice(), batch_size=batch_size, **common), precision, as_json=json)


def _check_no_parts(sharding: Sharding) -> None:
    given = {"--shard": sharding.shard, "--workers": sharding.workers, "--address": sharding.address}
    for option, value in {**given, "--engine": sharding.engine != "local" or None}.items():
        if value is not None:
            raise UsageError(f"{option} needs --shards: how many parts there are in all")


def _are_sentences(words: list[str]) -> bool:
    """Return whether the words of the command line are sentences: no file has any of their names."""
    from promptcli.data.files import check_file
    from promptcli.data.given import check_encodable

    exist = [word == "-" or os.path.exists(word) for word in words]
    if any("://" in word and " " not in word for word in words) or (len(words) > 1 and all(exist)):
        raise UsageError("several files, and URLs, are embedded into a folder of parts; give --shards N -o FOLDER")
    if any(exist) and not all(exist):
        check_file(Path(words[exist.index(False)]))
    if all(exist):
        return False
    for word in words:
        if _NAME_OF_FILE.search(word):
            check_file(Path(word))
        if "\n" in word:
            raise UsageError(f"sentence {word!r:.60} has a line break; give a file of sentences")
        check_encodable(word)
    return True


def _tell(made: "Embedded", precision: str, *, as_json: bool) -> None:
    report, width = made.report, made.encoder.width
    limit = f"{made.encoder.max_length:,} tokens"
    note_counts(report.rows, blank=report.blank, zero=report.zero, truncated=report.truncated, limit=limit)
    took = f"{report.seconds:,.1f} s ({report.rows / max(report.seconds, 1e-9):,.0f} sentences/s)"
    took = took if made.made else "already there, unchanged"
    vectors = "1 vector" if report.rows == 1 else f"{report.rows:,} vectors"
    note(f"{vectors} of {width:,} numbers in {made.output or 'standard output'}, {took}")
    if report.loss is not None:
        note(_lost(precision, report.loss))
    if as_json:
        known = {key: value for key, value in asdict(report).items() if key != "ranges"}
        result_json({"output": str(made.output), "dim": width, "precision": precision, **known})


def _lost(precision: str, loss: "Loss") -> str:
    order = "" if loss.spearman is None else f"Spearman of their cosines {loss.spearman:.4f}, "
    outside = f", {loss.clipped:.2%} of the numbers beyond the first window's" if loss.clipped else ""
    return f"{precision} against float32 on {loss.rows:,} rows: {order}recall@10 {loss.recall_at_10:.3f}{outside}"


def _tell_parts(made: "EmbeddedParts", *, as_json: bool) -> None:
    plan = made.plan
    if made.made:
        rows = sum(stop - first for first, stop in map(plan.bounds, made.made))
        speed = f"{rows / max(made.seconds, 1e-9):,.0f} sentences/s"
        rate = f"{len(made.made):,} made in {made.seconds:,.1f} s ({speed})"
    else:
        rate = "none made"
    if made.finished:
        from promptcli.data.vectors.part_folder import read_folder

        manifest = read_folder(made.folder)
        note_counts(plan.rows, blank=manifest.blank, zero=manifest.zero, truncated=manifest.truncated)
        note(f"{plan.rows:,} vectors of {plan.dim:,} numbers in {plan.shards:,} parts in {made.folder}, {rate}")
    else:
        note(f"{made.there:,} of {plan.shards:,} parts are in {made.folder}, {rate}; the last one finishes it")
    if as_json:
        about = {"output": str(made.folder), "rows": plan.rows, "dim": plan.dim, "precision": plan.precision}
        result_json({**about, "shards": plan.shards, "made": made.made, "finished": made.finished})


def similarity(
    a: Annotated[str, typer.Argument(metavar="A", help="A sentence, or a file if there is one of that name.")],
    b: Annotated[str, typer.Argument(metavar="B", help="A sentence where A is one, else a file of as many rows.")],
    text_field: SentenceField = None,
    json: Annotated[bool, typer.Option("--json", help='JSONL {"a", "b", "similarity"}, unrounded.')] = False,
    *,
    model: ModelOptions,
    runtime: Runtime,
) -> None:
    """Print the cosine of two sentences, or of each pair of rows of two files.

    A and B are files (or pipes, <(COMMAND)) where files of those names exist; a sentence that is also the name of a
    file is compared from another folder.
    """
    from promptcli.data.given import note_no_file
    from promptcli.embedding.embed import similarities

    for word in (a, b):
        note_no_file(word)
    for left, right, cosine in similarities(a, b, model.choice(), text_field=text_field, **runtime.where):
        if json:
            result_json({"a": left, "b": right, "similarity": cosine})
        else:
            result(f"{cosine:.4f}")
