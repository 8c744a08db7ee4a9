"""What the commands on indexes share: arguments, files of ids, the encoder of an index, how rows are printed."""

import contextlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli import console
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

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the index.", show_default=False)]
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
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmgt]?)i?b?", text.strip(), re.IGNORECASE)
    if found is None:
        raise UsageError(f"--memory {text}: no size; give a number and a unit, e.g. 4GB or 800MB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def files_of(
    file: Path,
    runtime: Runtime,
    texts: Path | None,
    text_field: str | None,
    id_field: str | None,
    *,
    near: Path | None = None,
) -> "RowFiles":
    """Return where rows come from, with a bar for their encoding; they wait on the disk of ``near``, an index."""
    from promptcli.data.tables import Fields
    from promptcli.index.inputs import RowFiles

    @contextlib.contextmanager
    def bar(source: "Source") -> "Iterator[Progress]":
        total = source.total() if console.err.is_terminal and not runtime.quiet else None
        with console.progress("index", total, quiet=runtime.quiet) as progress:
            yield progress

    stdin = sys.stdin.buffer if str(file) == STANDARD else None
    above = near.resolve().parents if near else ()
    disk = next((folder for folder in above if folder.is_dir()), None)
    return RowFiles(file, texts, Fields(text_field, id_field), stdin, bar, disk)


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
    from promptcli.data.streams import check_file, open_hashed, read_lines

    check_file(path)
    with open_hashed(path) as raw:
        ids = [name for _, line in read_lines(raw, str(path)) if (name := line.rstrip("\r\n"))]
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
