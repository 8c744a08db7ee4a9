"""The command ``search``, which searches files without an index."""

from pathlib import Path
from typing import Annotated, Any

import typer

from promptcli.cli import console
from promptcli.cli.hits import Format, HitPrinter, Show, nothing_found
from promptcli.cli.options import Csv, Json, Model, SkipBad, chosen_model
from promptcli.data.csv_options import csv_options

By = Annotated[
    str | None,
    typer.Option(
        help="Ranking: meaning (cosine), words (BM25), or both together. Default: both; meaning"
        " for an index without words.",
    ),
]
MinScore = Annotated[
    float | None,
    typer.Option(
        help="Leave out hits whose printed score is lower: the cosine, or BM25 with --by words."
        " 1 finds exact copies of the query."
    ),
]
Where = Annotated[
    str | None,
    typer.Option(
        help="Condition on the other columns, the place of a passage (file, line, end_line,"
        " heading), its front matter, the id or the text, e.g. 'year > 2020 and lang ="
        ' "en"\'. It is SQL: =, !=, <, <=, >, >=, between, in (...), like "%part%", is'
        " null; and, or, not, parentheses."
    ),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Show what each word adds to the score of a hit, and mark the words that add most.",
    ),
]
Rows = Annotated[
    str | None,
    typer.Option(
        help="How a text becomes rows: passages (paragraphs, joined or split to a good length),"
        " lines, or auto (the default: passages of Markdown, reST and Org, and of a text with"
        " more than one blank line in twenty; else lines). A table keeps its rows."
    ),
]
Split = Annotated[
    bool,
    typer.Option(
        "--split",
        help="Split lines and table rows that are longer than the model's window, at the ends of"
        " paragraphs and sentences; a hit shows the best part.",
    ),
]
NoIgnore = Annotated[
    bool, typer.Option("--no-ignore", help="Also read files that .gitignore and .ignore list.")
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help="Leave out files of a folder by a pattern, as in .gitignore; repeatable.",
    ),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Name every file that is left out, with the reason.")
]


def search_files(
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
    show: Show = None,
    explain: Explain = False,
    format: Format = None,
    json: Json = False,
) -> None:
    """Print the passages of files that are nearest to a query, best first.

    It needs no index and makes none.
    """
    from promptcli.retrieval.file_search import search

    printer = HitPrinter(format, show, json=json, explain=explain)
    lines: Any = search(
        query,
        [Path(file) for file in files],
        k,
        model=chosen_model(model),
        context=context,
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
        explain=explain,
    )
    for line in lines:
        printer.line(line)
        if context and printer.format == "table":
            console.result("")
    if lines:
        for name in printer.missing(line.columns or {} for line in lines):
            console.note(f"no hit has a column {name!r}")
    else:
        console.note(nothing_found(query, min_score, where))
