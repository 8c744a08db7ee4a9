"""The commands ``embed`` and ``similarity``: sentences to vectors, and the likeness of two sentences or files."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from promptcli.cli import console
from promptcli.cli.options import ModelChoice, Runtime
from promptcli.errors import UsageError

if TYPE_CHECKING:
    from promptcli.data.tables import Fields
    from promptcli.data.text import Source
    from promptcli.encoder.embedding import EmbedReport
    from promptcli.encoder.encoder import Encoder

_STANDARD = Path("-")

TextField = Annotated[
    str | None,
    typer.Option("--text-field", help="Column of the sentence. Default: `text`, else `sentence`, else the only one."),
]
IdField = Annotated[
    str | None, typer.Option("--id-field", help="Column of the id. Default: `id`, else the row number.")
]


def embed(
    file: Annotated[
        Path,
        typer.Argument(
            help="Sentences: text (one a line), .jsonl, .csv, .tsv (each also .gz), .parquet, or - for standard input"
            " (text; JSONL where a field is named).",
            show_default=False,
            readable=False,  # checked below, in one line
        ),
    ],
    choice: ModelChoice,
    runtime: Runtime,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Vector file: .npy, .parquet, .jsonl or .safetensors; - writes JSONL to stdout."
            " Default: FILE.npy beside the input; stdout for standard input.",
            show_default=False,
        ),
    ] = None,
    text_field: TextField = None,
    id_field: IdField = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale every vector to length 1.")] = False,
    no_text: Annotated[bool, typer.Option("--no-text", help="Leave the sentences out of .parquet and JSONL.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the output file.")] = False,
) -> None:
    """Encode the sentences of a file. Row i of the output is line i of the input, counted from 0; blank lines too.

    Vectors are float32. OUTPUT.manifest.json, written last, says which model and input they come from.
    """
    from promptcli.data.tables import Fields
    from promptcli.data.text import open_source

    target = _target(file, output, id_field=id_field, force=force)
    with open_source(file, Fields(text_field, id_field), stdin=_stdin(file)) as source:
        from promptcli.cli.opening import open_encoder  # after the input is known to be right: it loads torch
        from promptcli.data.vectors import open_sink
        from promptcli.encoder.embedding import embed_file, embed_stream

        encoder = open_encoder(choice, runtime, default_dtype="auto")
        with console.progress("embed", _total(source, runtime), quiet=runtime.quiet) as progress:
            if target is None:
                with open_sink(sys.stdout.buffer, ".jsonl", encoder.width, with_text=not no_text) as sink:
                    report = embed_stream(encoder, source, sink, normalize=normalize, progress=progress)
            else:
                report = embed_file(
                    encoder, source, target, with_text=not no_text, normalize=normalize, progress=progress
                )
    _tell(report, encoder, "standard output" if target is None else str(target), quiet=runtime.quiet)


def similarity(
    a: Annotated[str, typer.Argument(metavar="A", help="A sentence, or a file if there is one of that name.")],
    b: Annotated[str, typer.Argument(metavar="B", help="A sentence where A is one, else a file of as many rows.")],
    choice: ModelChoice,
    runtime: Runtime,
    text_field: TextField = None,
    json_lines: Annotated[bool, typer.Option("--json", help='JSONL {"a", "b", "similarity"}, unrounded.')] = False,
) -> None:
    """Print the cosine of two sentences, or of each pair of rows of two files.

    A and B are files where files of those names exist; a sentence that is also the name of a file is compared from
    another folder.
    """
    from promptcli.data.tables import Fields

    with ExitStack() as stack:
        pairs, total = _pairs(stack, a, b, Fields(text=text_field))
        from promptcli.cli.opening import open_encoder
        from promptcli.encoder.embedding import similarity_stream

        encoder = open_encoder(choice, runtime)
        progress = stack.enter_context(console.progress("similarity", 2 * total, quiet=runtime.quiet))
        for left, right, cosine in similarity_stream(encoder, pairs, progress=progress):
            if json_lines:
                console.result_json({"a": left, "b": right, "similarity": cosine})
            else:
                console.result(f"{cosine:.4f}")


def _stdin(file: Path) -> BinaryIO | None:
    return sys.stdin.buffer if file == _STANDARD else None


def _target(file: Path, output: Path | None, *, id_field: str | None, force: bool) -> Path | None:
    """Return the vector file to write, or None for stdout; refuse now what could not be written later."""
    from promptcli.data.vectors import WITH_IDS, kind_of

    if output == _STANDARD or (output is None and file == _STANDARD):
        return None
    target = output or file.with_name(file.name + ".npy")
    kind = kind_of(target)
    if id_field is not None and kind not in WITH_IDS:
        raise UsageError(f"--id-field: {kind} has no room for ids; give -o with one of: {', '.join(WITH_IDS)}")
    _check_writable(target, file, force=force)
    return target


def _check_writable(target: Path, file: Path, *, force: bool) -> None:
    folder = target.parent
    if not folder.is_dir():
        raise UsageError(f"{target}: there is no folder {str(folder)!r}; make it first: mkdir -p {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{target}: the folder {str(folder)!r} may not be written to; give another file with -o")
    if target.is_dir():
        raise UsageError(f"{target} is a folder; give a file with -o")
    if target.exists() and file.exists() and target.samefile(file):
        raise UsageError(f"{target} is the input itself; give another file with -o")
    if target.exists() and not force:
        raise UsageError(f"{target} exists; replace it with --force, or give another file with -o")


def _total(source: "Source", runtime: Runtime) -> int | None:
    return source.total() if console.err.is_terminal and not runtime.quiet else None


def _tell(report: "EmbedReport", encoder: "Encoder", where: str, *, quiet: bool) -> None:
    if report.blank:
        console.note(f"{report.blank:,} of {report.rows:,} lines are blank; each keeps its row", quiet=quiet)
    if report.zero:
        zeros = f"{report.zero:,} of {report.rows:,} sentences have a zero vector: nothing in them is known"
        console.note(zeros, quiet=quiet)
    if report.truncated:
        limit = f"{encoder.max_length:,} tokens"
        cut = f"{report.truncated:,} of {report.rows:,} sentences were longer than {limit} and were cut"
        console.note(cut, quiet=quiet)
    rate = report.rows / max(report.seconds, 1e-9)
    took = f"{report.seconds:,.1f} s ({rate:,.0f} sentences/s)"
    console.note(f"{report.rows:,} vectors of {encoder.width:,} numbers in {where}, {took}", quiet=quiet)


def _pairs(stack: ExitStack, a: str, b: str, fields: "Fields") -> tuple[Iterator[tuple[str, str]], int]:
    """Return the pairs of sentences and their number; files are walked once before, to find faults first."""
    from promptcli.data.text import open_source

    are_files = [os.path.isfile(name) for name in (a, b)]  # a sentence may be too long for a path: no error here
    if not any(are_files):
        _check_encodable(a, b)
        return iter([(a, b)]), 1
    for name, is_file in zip((a, b), are_files, strict=True):
        if not is_file:
            raise UsageError(f"{name!r} is no file, but the other argument is; give two files or two sentences")
    counts = []
    for name in (a, b):
        with open_source(Path(name), fields) as source:
            counts.append(sum(1 for _ in source))
    if counts[0] != counts[1]:
        raise UsageError(
            f"{a} has {counts[0]:,} rows and {b} has {counts[1]:,}; row i of one is compared with row i of the other"
        )
    left, right = (stack.enter_context(open_source(Path(name), fields)) for name in (a, b))
    return ((x.text, y.text) for x, y in zip(left, right, strict=True)), counts[0]


def _check_encodable(*sentences: str) -> None:
    for sentence in sentences:
        try:
            sentence.encode("utf-8")
        except UnicodeEncodeError:
            raise UsageError(f"{sentence!r} is not UTF-8; set a UTF-8 locale, e.g. LC_ALL=C.UTF-8") from None
