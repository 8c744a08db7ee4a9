"""The command ``search``: searches files without an index."""

from pathlib import Path
from typing import Annotated

import typer

from promptcli.cli import console
from promptcli.cli.hits import HitPrinter, nothing_found
from promptcli.cli.options import (
    By,
    Csv,
    Exclude,
    MinScore,
    Model,
    NoIgnore,
    Rows,
    SkipBad,
    Split,
    Verbose,
    Where,
    chosen_model,
    takes_options,
)
from promptcli.data.csv_options import csv_options


@takes_options("printer", HitPrinter)
def search_files(
    printer: HitPrinter,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to look for.")],
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Texts, tables (FILE:COLUMN names the column of the text), globs and folders."
            " In a folder, hidden and ignored files, and files that are not text, are left"
            " out.",
        ),
    ],
    k: Annotated[int, typer.Option("-k", min=1, help="Maximum number of hits.")] = 10,
    model: Model = None,
    context: Annotated[
        int, typer.Option(min=0, help="Neighbouring lines to print on each side of a hit.")
    ] = 0,
    by: By = None,
    min_score: MinScore = None,
    rows: Rows = None,
    split: Split = False,
    where: Where = None,
    no_ignore: NoIgnore = False,
    exclude: Exclude = None,
    csv: Csv = None,
    skip_bad: SkipBad = False,
    verbose: Verbose = False,
) -> None:
    """Print the passages of files that are nearest to a query, best first.

    It needs no index and makes none.
    """
    from promptcli.retrieval.file_search import place_of, search, texts_of

    hits = search(
        query,
        [Path(file) for file in files],
        k,
        model=chosen_model(model),
        by=by,  # type: ignore[arg-type]
        min_score=min_score,
        where=where,
        rows=rows or "auto",
        split=split,
        ignore=not no_ignore,
        exclude=exclude or (),
        csv=csv_options(csv),
        skip_bad=skip_bad,
        verbose=verbose,
        explain=printer.explains,
    )
    files_of_context = {str(hit.file) for hit in hits} if context else ()
    lines = {file: texts_of(file, csv_options(csv)) for file in files_of_context}
    for hit in hits:
        printer.print_file_hit(hit, place_of(hit), lines.get(str(hit.file), []), context)
        if context and printer.format == "table":
            console.print_line("")
    if hits:
        columns = (name for hit in hits for name in hit.columns or ())
        for name in printer.missing_columns(columns):
            console.note(f"no hit has a column {name!r}")
    else:
        console.note(nothing_found(query, min_score, where))
