"""Vectors of other programs in `promptcli eval`: the sentences out, the vectors in. Part of the entrance."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from promptcli.cli.console import result, result_json
from promptcli.cli.options import option_in

if TYPE_CHECKING:
    from promptcli.data.tasks import STSTask
    from promptcli.evaluation.evaluator import Embedded

_option = option_in("Vectors of other programs")


@dataclass(frozen=True)
class ExternalVectors:
    """What goes out to another program and what comes back."""

    list_sentences: Annotated[
        bool,
        _option(
            "--list-sentences",
            help="Print the distinct sentences of the tasks in order, one a line, and score nothing.",
        ),
    ] = False
    vectors: Annotated[
        list[Path] | None,
        _option(
            help="Score the vectors in a .npy, .safetensors, .parquet or .jsonl file, row i of sentence i of"
            " --list-sentences; repeatable, alone or with --recipe and --model.",
            metavar="FILE",
        ),
    ] = None


def list_sentences(tasks: "Sequence[STSTask]", *, json: bool) -> None:
    """Print every sentence of the tasks once."""
    from promptcli.evaluation.evaluator import distinct_sentences

    sentences = distinct_sentences(tasks)
    if json:
        result_json({"tasks": [task.label for task in tasks], "sentences": sentences})
        return
    for sentence in sentences:
        result(sentence)


def read_external(
    paths: Sequence[Path], tasks: "Sequence[STSTask]", data_dir: Path | None, protocol: str
) -> "list[Embedded]":
    """Read the files of ``--vectors``; a file that does not fit is refused with the command that lists the sentences.

    Args:
        paths: The files, each once.
        tasks: Whose sentences they embed.
        data_dir: Where the tasks came from.
        protocol: Which text they have.
    """
    from promptcli.evaluation.external_vectors import read_embedded

    parts = ["promptcli", "eval", "--list-sentences"]
    parts += [] if data_dir is None else ["--data-dir", str(data_dir)]
    parts += [] if protocol == "senteval" else ["--protocol", protocol]
    parts += [part for task in tasks for part in ("--task", task.label)]
    return [read_embedded(path, tasks, shlex.join(parts)) for path in dict.fromkeys(paths)]
