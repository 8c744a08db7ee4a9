"""The command ``search``, which searches files without an index."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from promptcli.cli import console
from promptcli.cli.hits import Format, HitPrinter, Show, figures, nothing_found, one_line
from promptcli.cli.options import Csv, Json, Model, SkipBad, chosen_model
from promptcli.data.csv_options import csv_options
from promptcli.retrieval.file_search import Line
from promptcli.retrieval.ranking import WAY_FIELDS

By = Annotated[
    str | None,
    typer.Option(
        help="How rows are ranked: both (by cosine and by words, BM25, together), meaning (by"
        " cosine) or words. Default: both; meaning for an index without words.",
    ),
]
MinScore = Annotated[
    float | None,
    typer.Option(
        help="Leave out answers below this score, as it is printed: the cosine, or by words BM25. 1"
        " finds exact copies of the query."
    ),
]
Where = Annotated[
    str | None,
    typer.Option(
        help="Condition on the other columns, or on the place of a passage (file, line, end_line,"
        " heading) and front matter, e.g. 'year > 2020 and lang = \"en\"'; also on id and text. It"
        ' is SQL: =, !=, <, <=, >, >=, between, in (...), like "%part%", is null; and, or, not,'
        " parentheses."
    ),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Say what each word adds to the score of an answer, and mark such words in it.",
    ),
]
Rows = Annotated[
    str | None,
    typer.Option(
        help="What a row of a text is: passages (paragraphs, joined or split to a length that is"
        " found well), lines, or by the look of each text (auto: lines if it has a sentence a"
        " line). Of a table it is the rows."
    ),
]
Split = Annotated[
    bool,
    typer.Option(
        "--split",
        help="Split lines, and rows of tables, that are longer than the model's window at paragraph"
        " and sentence ends; results show the best part.",
    ),
]
NoIgnore = Annotated[
    bool, typer.Option("--no-ignore", help="Read what .gitignore and .ignore name, too.")
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="Leave out such files of a folder, as .gitignore does."),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Name every file that is left out, with the reason.")
]


def search_files(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to look for.")],
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Texts, tables (FILE:COLUMN names that of the text), globs, and folders; hidden"
            " and ignored files in a folder, and those that are not text, are left out.",
        ),
    ],
    k: Annotated[int, typer.Option("-k", min=1, help="Maximum number of answers.")] = 10,
    model: Model = None,
    context: Annotated[
        int, typer.Option(min=0, help="Neighbouring lines to return on each side.")
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

    No index is needed, and none is made.
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
        _print_line(printer, line)
        if context and printer.format == "table":
            console.result("")
    if lines:
        for name in printer.missing(line.columns or {} for line in lines):
            console.note(f"no hit has a column {name!r}")
    else:
        console.note(nothing_found(query, min_score, where))


def _print_line(printer: HitPrinter, line: Line) -> None:
    """Print a line that was found between those around it, as grep does."""
    columns = printer.columns(line.columns)
    record = {**asdict(line), "score": round(line.score, 6), "columns": columns}
    del record["explanation"]
    if not columns:
        del record["columns"]
    if line.bm25 is None:
        for name in WAY_FIELDS:
            del record[name]
    else:
        record["bm25"] = round(line.bm25, 6)
    place = f"{line.file}:{line.line}"
    if line.end_line != line.line:
        place += f"-{line.end_line}"
    text = f"{line.heading}: {line.text}" if line.heading else line.text
    if printer.format == "table":
        _print_around(line, line.line - len(line.before), line.before)
    found = (f"{figures(line)}  {place}: ", text)
    printer.hit(record, columns, found, explanation=line.explanation)
    if printer.format == "table":
        _print_around(line, line.end_line + 1, line.after)


def _print_around(line: Line, first: int, texts: Sequence[str]) -> None:
    for number, text in enumerate(texts, first):
        console.result_folded(f"        {line.file}-{number}- ", one_line(text))
