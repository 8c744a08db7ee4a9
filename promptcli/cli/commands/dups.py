"""The command ``dups``: finds the rows of a file that also occur in another file."""

from typing import Annotated

import typer

from promptcli.cli.hits import HitPrinter
from promptcli.cli.options import (
    Check,
    Csv,
    Model,
    SkipBad,
    Threshold,
    chosen_model,
    stream_or_name,
    takes_options,
)
from promptcli.data.csv_options import csv_options
from promptcli.recipe import is_chosen


@takes_options("printer", HitPrinter, "show", "explain")
def dups(
    printer: HitPrinter,
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
    threshold: Threshold = 0.95,
    model: Model = None,
    csv: Csv = None,
    skip_bad: SkipBad = False,
    check: Check = False,
) -> None:
    """Find rows of a test set that also occur in the training data: with the same text, with the
    same text except for case, spaces and forms of characters, or with a near cosine.
    """
    from promptcli.retrieval.pairs import find_leaks

    choice = chosen_model(model)
    leaks = find_leaks(
        stream_or_name(file),
        stream_or_name(against),
        threshold,
        model=choice if is_chosen(choice) or choice.device != "auto" else None,
        csv=csv_options(csv),
        skip_bad=skip_bad,
    )
    printer.print_leaks(leaks, (against, file), check=check)
