"""``promptcli reproduce``: measures the papers' tables again."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli import errors
from promptcli.cli import options, result_files
from promptcli.cli.console import print_json, print_line, show
from promptcli.cli.options import Json
from promptcli.errors import PromptcliError, UsageError
from promptcli.notes import note
from promptcli.plugins import papers as library
from promptcli.plugins.papers.published import Texts, find_tables

if TYPE_CHECKING:
    from promptcli.plugins.papers import Reproduction


def reproduce(
    tables: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE",
            help="`promptbert/5`, `ditto` (all of a paper), `all`, or several. `list` lists the"
            " tables, `page` writes the page of all results.",
        ),
    ],
    backbone: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            "--backbone",
            help="A shipped name, a folder, a hub id, or glove:FILE. Default: mini-bert.",
        ),
    ] = None,
    paper: Annotated[
        bool,
        typer.Option(
            "--paper",
            help="Measure every row on its published backbone, unless one is given, and train with"
            " the published settings.",
        ),
    ] = False,
    train: Annotated[
        bool, typer.Option("--train", help="Train the rows that need training.")
    ] = False,
    seeds: Annotated[
        int,
        typer.Option(
            min=1, help="Runs of each trained row. One run has seed 42, several have 0, 1, ..."
        ),
    ] = 1,
    head: Annotated[
        str | None,
        typer.Option(
            help="Head of Ditto's rows, e.g. 1-9, or a model that `promptcli ditto-search"
            " --name` saved. Default: the published head, which only published backbones and"
            " mini-bert have."
        ),
    ] = None,
    corpus: Annotated[str, options.field_option(Texts, "corpus")] = Texts.corpus,
    triplets: Annotated[str | None, options.field_option(Texts, "triplets")] = None,
    labelled: Annotated[str | None, options.field_option(Texts, "labelled")] = None,
    definitions: Annotated[str | None, options.field_option(Texts, "definitions")] = None,
    data_dir: options.DataDir = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of the result files.")
    ] = Path("results"),
    force: Annotated[bool, typer.Option("--force", help="Measure cached values again.")] = False,
    set: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Change a setting of the trained rows whose methods have it; repeatable.",
        ),
    ] = None,
    format: result_files.Format = None,
    no_intervals: result_files.NoIntervals = False,
    page: Annotated[Path, typer.Option(help="File into which `page` is written.")] = Path(
        "docs/results.md"
    ),
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw one table into a .png, .svg or .pdf file (needs matplotlib)."),
    ] = None,
    json: Json = False,
) -> None:
    """Measure the papers' tables again; write measured and published values, their differences and
    95% intervals into results/.

    Rows that cannot be measured are listed with the reason. The same command resumes a stopped run.
    """
    chosen_format = options.format_name(format, json=json)
    if plot is not None:
        from promptcli.plugins.analyze.pictures import check_picture

        check_picture(plot, force=force)
        if tables in (["page"], ["list"]) or len(find_tables(tables)) > 1:
            raise UsageError(f"--plot {plot} shows one table; name one, e.g. ditto/figure-2")
    texts = Texts(corpus, triplets, labelled, definitions)
    folder = options.data_folder(data_dir)
    if tables == ["page"]:
        from promptcli.plugins.papers.report import write_page

        count = write_page(output, page)
        note(f"{page} was made from {errors.with_count(count, 'result')}")
        return
    choice = options.choice_of(backbone)
    if tables == ["list"]:
        if chosen_format not in ("table", "json"):
            raise errors.unknown_name_error("format", chosen_format, ("table", "json"))
        name = backbone or options.default_backbone(paper=paper)
        overviews = library.overviews(
            dataclasses.replace(choice, model=name), texts=texts, data_dir=folder
        )
        if chosen_format == "json":
            print_json({"backbone": name, "tables": overviews})
        else:
            _print_overviews(overviews, name)
        return
    with errors.if_stopped("finished rows are kept; run the same command to continue"):
        reproductions = library.reproduce(
            tables,
            choice,
            paper=paper,
            train=train,
            seeds=seeds,
            head=head,
            texts=texts,
            data_dir=folder,
            output=output,
            force=force,
            plot=plot,
            settings=_settings(set),
        )
        _print_results(reproductions, chosen_format, intervals=not no_intervals)


def _settings(pairs: Sequence[str] | None) -> dict[str, Any]:
    from promptcli.training.methods import setting_types

    types = setting_types()
    for name in ("seed", "template"):  # decided by ``seeds`` and by the row
        del types[name]
    return options.parse_pairs(types, pairs or ())


#: The formats with all tables in one document; in others a table is printed when it is measured.
_SINGLE_DOCUMENT_FORMATS = ("csv", "json")


def _print_results(
    reproductions: "Iterator[Reproduction]", format: str, *, intervals: bool
) -> None:
    """Print each table when it is measured, or all in one document.

    If no table could be measured, the first error is raised.
    """
    from promptcli.plugins.papers.report import lay_out, records

    documents: list[dict[str, Any]] = []
    failed: dict[str, PromptcliError] = {}
    for reproduction in reproductions:
        note(reproduction.message)
        if reproduction.error is not None:
            failed[reproduction.label] = reproduction.error
        if reproduction.document is None:
            continue
        documents.append(reproduction.document)
        for picture in reproduction.pictures:
            note(f"drawn to {picture}")
        if format not in _SINGLE_DOCUMENT_FORMATS:
            tables_and_lines = lay_out(reproduction.document, intervals=intervals)
            report = result_files.Report(reproduction.document, tables_and_lines, [])
            result_files.print_report(report, format)
            print_line("")
    if failed and not documents:
        raise next(iter(failed.values()))
    if format in _SINGLE_DOCUMENT_FORMATS:
        messages = {label: str(error) for label, error in failed.items()}
        rows = [row for document in documents for row in records(document)]
        report = result_files.Report({"results": documents, "failed": messages}, [], rows)
        result_files.print_report(report, format)


def _print_overviews(overviews: Sequence[Mapping[str, Any]], backbone: str) -> None:
    """Print every table's requirements and the number of values that can be measured now."""
    lines = [f"published figures that can be measured now on {backbone}"]
    for table in overviews:
        needs = [f"on {', '.join(table['backbones'])}", *table["data"]]
        if table["time"]:
            needs.append(" / ".join(table["time"]))
        count = f"{table['now']:>4} of {table['figures']:<4}"
        lines.append(f"{table['table']:<24} {count} {table['title']}")
        lines.append(f"    {'; '.join(needs)}")
        for reason, number in table["lacks"].items():
            figures = errors.with_count(number, "figure")
            lines.append(f"    {figures} cannot be measured now: {reason}")
    show(*lines)
