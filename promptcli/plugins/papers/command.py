"""``promptcli reproduce``: measures the papers' tables again."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli import errors
from promptcli.cli import options, result_files
from promptcli.cli.console import result, result_json, show
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
            help="`promptbert/5`, `ditto` (all of a paper), `all`, or several. `list` shows them,"
            " `page` makes the page of all results.",
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
            help="Measure every row on the backbone that it was published for, unless one is given,"
            " and train with the settings that were published for it.",
        ),
    ] = False,
    train: Annotated[bool, typer.Option("--train", help="Train the rows that need it.")] = False,
    seeds: Annotated[
        int,
        typer.Option(
            min=1, help="Runs of each trained row; one run has seed 42, several 0, 1, ..."
        ),
    ] = 1,
    head: Annotated[
        str | None,
        typer.Option(
            help="Head of Ditto's rows, e.g. 1-9, or a model that `promptcli ditto-search"
            " --name` saved. Default: the published one, which only published backbones and"
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
    force: Annotated[bool, typer.Option("--force", help="Measure again what is cached.")] = False,
    set: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Change a setting of the trained rows whose method has it; repeatable.",
        ),
    ] = None,
    format: result_files.Format = None,
    no_intervals: result_files.NoIntervals = False,
    page: Annotated[Path, typer.Option(help="File of the page of all results.")] = Path(
        "docs/results.md"
    ),
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw one table into a .png, .svg or .pdf file (needs matplotlib)."),
    ] = None,
    json: Json = False,
) -> None:
    """Measure the papers' tables again, and write measured and published values, differences and
    95% intervals into results/.

    Rows that cannot be measured are listed with the reason. The same command resumes a killed run.
    """
    printed = options.format_name(format, json=json)
    _check_plot(plot, tables, force=force)
    texts = Texts(corpus, triplets, labelled, definitions)
    folder = options.data_folder(data_dir)
    if tables == ["page"]:
        from promptcli.plugins.papers.report import write_page

        count = write_page(output, page)
        note(f"{page} was made from {errors.with_count(count, 'result')}")
        return
    choice = options.choice_of(backbone)
    if tables == ["list"]:
        if printed not in ("table", "json"):
            raise errors.unknown("format", printed, ("table", "json"))
        name = backbone or options.default_backbone(paper=paper)
        overviews = library.overviews(
            dataclasses.replace(choice, model=name), texts=texts, data_dir=folder
        )
        if printed == "json":
            result_json({"backbone": name, "tables": overviews})
        else:
            show(*_list_parts(overviews, name))
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
        _print_results(reproductions, printed, intervals=not no_intervals)


def _settings(pairs: Sequence[str] | None) -> dict[str, Any]:
    from promptcli.training.methods import setting_types

    kinds = setting_types()
    for name in ("seed", "template"):  # ``seeds`` decides, and the row
        del kinds[name]
    return options.parse_pairs(kinds, pairs or ())


#: Formats with all tables in one document; in others each table is printed when it is measured.
_IN_ONE_DOCUMENT = ("csv", "json")


def _check_plot(plot: Path | None, tables: Sequence[str], *, force: bool) -> None:
    """Refuse a picture that cannot be drawn: it shows one table."""
    if plot is None:
        return
    from promptcli.plugins.analyze.pictures import check_picture

    check_picture(plot, force=force)
    if tables in (["page"], ["list"]) or len(find_tables(tables)) > 1:
        raise UsageError(f"--plot {plot} shows one table; name one, e.g. ditto/figure-2")


def _print_results(
    reproductions: "Iterator[Reproduction]", format: str, *, intervals: bool
) -> None:
    """Print each table when it is measured, or all in one document; raise if none was measured."""
    from promptcli.plugins.papers.report import printed_parts, records

    documents: list[dict[str, Any]] = []
    failed: dict[str, PromptcliError] = {}
    for measured in reproductions:
        note(measured.message)
        if measured.error is not None:
            failed[measured.label] = measured.error
        if measured.document is None:
            continue
        documents.append(measured.document)
        for picture in measured.drawn:
            note(f"drawn to {picture}")
        if format not in _IN_ONE_DOCUMENT:
            parts = printed_parts(measured.document, intervals=intervals)
            result_files.print_report(result_files.Report(measured.document, parts, []), format)
            result("")
    if failed and not documents:
        raise next(iter(failed.values()))
    if format in _IN_ONE_DOCUMENT:
        messages = {label: str(error) for label, error in failed.items()}
        rows = [row for document in documents for row in records(document)]
        report = result_files.Report({"results": documents, "failed": messages}, [], rows)
        result_files.print_report(report, format)


def _list_parts(
    overviews: Sequence[Mapping[str, Any]], backbone: str
) -> result_files.TablesAndLines:
    """Lay out every table's requirements and the number of values that can be measured now."""
    parts: result_files.TablesAndLines = [
        f"published figures that can be measured now on {backbone}"
    ]
    for row in overviews:
        needs = [f"on {', '.join(row['backbones'])}", *row["data"]]
        if row["time"]:
            needs.append(" / ".join(row["time"]))
        parts.append(f"{row['table']:<24} {row['now']:>4} of {row['figures']:<4} {row['title']}")
        parts.append(f"    {'; '.join(needs)}")
        for why, count in row["lacks"].items():
            parts.append(f"    {errors.with_count(count, 'figure')} cannot be measured now: {why}")
    return parts
