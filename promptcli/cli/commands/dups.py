"""The command ``dups``: rows of a file that also occur in another file."""

import sys
from typing import Annotated, BinaryIO

import typer

from promptcli.cli.hits import Format, HitPrinter
from promptcli.cli.options import Csv, Json, Model, SkipBad, chosen_model
from promptcli.data.csv_options import csv_options
from promptcli.recipe import is_named

Check = Annotated[
    bool, typer.Option("--check", help="For scripts: end with exit code 4 if a row is found.")
]
Threshold = Annotated[
    float | None,
    typer.Option(
        help="Lowest cosine of near rows; 1 compares the texts, without a model. Default: the"
        " lowest value at which chance explains at most 5 of 100 near pairs; a note shows"
        " it.",
    ),
]


def dups(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Sentences, pairs or triplets, e.g. the training data; also FILE:COLUMN, or - for"
            " standard input.",
        ),
    ],
    against: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="File whose rows are looked for in FILE, e.g. the test set."
        ),
    ],
    threshold: Threshold = None,
    model: Model = None,
    csv: Csv = None,
    skip_bad: SkipBad = False,
    format: Format = None,
    check: Check = False,
    json: Json = False,
) -> None:
    """Find rows of a test set that also occur in the training data: with the same text, with the
    same text except for case, spaces and forms of characters, or with a near cosine.
    """
    from promptcli.retrieval.pairs import find_leaks

    printer = HitPrinter(format, None, json=json)
    choice = chosen_model(model)
    leaks = find_leaks(
        stream_or_name(file),
        stream_or_name(against),
        threshold,
        model=choice if is_named(choice) or choice.device != "auto" else None,
        csv=csv_options(csv),
        skip_bad=skip_bad,
    )
    printer.leaks(leaks, (against, file), check=check)


def stream_or_name(word: str) -> str | BinaryIO:
    """Return a file's name, or standard input for ``-``."""
    return sys.stdin.buffer if word == "-" else word
