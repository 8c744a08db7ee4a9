"""``promptcli reproduce``: the papers' tables measured again."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli import PromptcliError, UsageError
from promptcli.extending import (
    Choice,
    Grid,
    Json,
    errors,
    note,
    options,
    pictures,
    result,
    result_files,
    result_json,
    senteval,
)
from promptcli.plugins.papers import job as library
from promptcli.plugins.papers.job import ReproduceJob
from promptcli.plugins.papers.published import find_tables

if TYPE_CHECKING:
    from promptcli.plugins.papers.job import Reproduction


def reproduce(
    job: ReproduceJob,
    formats: result_files.FormatOptions,
    page: Annotated[Path, typer.Option(help="The page of all results.")] = Path("docs/results.md"),
    plot: Annotated[Path | None, options.field_option(pictures.PictureOptions, "plot")] = None,
    json: Json = False,
) -> None:
    """Measure the papers' tables again: measured, published, difference, 95% interval, into
    results/.

    What cannot be measured is listed with the reason. The same command resumes a killed run.
    """
    tables = options.words_of(job.tables)
    format = formats.name(json=json)
    folder = Path(job.output)
    _check_plot(plot, tables, force=job.force)
    with senteval.tasks_from(job.data_dir):
        if tables == ["page"]:
            from promptcli.plugins.papers.report import write_page

            count = write_page(folder, page)
            note(f"{page} was made from {errors.counted(count, 'result')}")
        elif tables == ["list"]:
            from promptcli.plugins.papers.figures import painter

            as_json = formats.lines_or_json("the list of tables", json=json)
            assert isinstance(job.backbone, Choice)
            name = job.backbone.model or options.default_backbone(paper=job.paper)
            overviews = library.overviews(
                dataclasses.replace(job.backbone, model=name),
                texts=job.texts,
                draw=painter(folder),
            )
            if as_json:
                result_json({"backbone": name, "tables": overviews})
            else:
                overview = result_files.Report({}, _overview(overviews, name), [])
                result_files.print_report(overview, "table")
        else:
            from promptcli.plugins.papers.figures import painter

            with errors.if_stopped("finished rows are kept; run the same command to continue"):
                measured = dataclasses.replace(job, tables=tables, draw=painter(folder, plot)).run()
                _measure(measured, format, plot, intervals=formats.intervals)


#: Formats that hold all tables in one; of the others each table is printed when it is measured.
_WHOLE = ("csv", "json")


def _check_plot(plot: Path | None, tables: Sequence[str], *, force: bool) -> None:
    """Refuse a picture that could not be drawn: it is of one table."""
    if plot is None:
        return
    pictures.PictureOptions(plot, force).check()
    if tables in (["page"], ["list"]) or len(find_tables(tables)) > 1:
        raise UsageError(f"--plot {plot} is of one table; give one, e.g. ditto/figure-2")


def _measure(
    reproductions: "Iterator[Reproduction]", format: str, plot: Path | None, *, intervals: bool
) -> None:
    """Print each table when it is measured, or all in one; raise if none was measured."""
    from promptcli.plugins.papers.figures import draw_numbers, draw_table
    from promptcli.plugins.papers.report import records

    documents: list[dict[str, Any]] = []
    failed: dict[str, PromptcliError] = {}
    missing: dict[str, str] = {}
    for each in reproductions:
        note(each.message)
        missing |= each.missing
        if each.document is not None and each.file is not None:
            drawn = draw_numbers(each.file.parent, each.document)
            if drawn is not None:
                note(f"drawn to {drawn}")
            if plot is not None and draw_table(plot, each.document):
                note(f"drawn to {plot}")
        if each.error is not None:
            failed[each.label] = each.error
        if each.document is not None:
            documents.append(each.document)
            if format not in _WHOLE:
                parts = _parts(each.document, intervals=intervals)
                result_files.print_report(result_files.Report(each.document, parts, []), format)
                result("")
    for label, reason in missing.items():
        note(f"no data of {label}: {reason}")
    if failed and not documents:
        raise next(iter(failed.values()))
    if format in _WHOLE:
        messages = {label: str(error) for label, error in failed.items()}
        rows: list[dict[str, Any]] = []
        for document in documents:
            rows += records(document)
        report = result_files.Report({"results": documents, "failed": messages}, [], rows)
        result_files.print_report(report, format)


def _parts(document: Mapping[str, Any], *, intervals: bool) -> list[result_files.Part]:
    """Lay out a result document: caption, a table with every row's lines, remarks."""
    from promptcli.plugins.papers.report import (
        caption,
        heads,
        notes,
        reasons,
        score_columns,
        table_lines,
    )

    cells: list[list[str]] = []
    measured = []
    not_measured = []
    for line in table_lines(document):
        if line.kind == "reason":
            not_measured.append(f"{line.label} not measured: {line.cells[0]}")
            cells.append([line.label] + ["-"] * len(document["columns"]))
        elif line.kind == "measured":
            measured.append(len(cells))
            cells.append([line.label, *line.cells])
        elif intervals or line.kind != "interval":
            cells.append([f"  {line.label}", *line.cells])
    return [
        f"{document['table']}: {document['title']}",
        *caption(document),
        Grid.with_best(["", *heads(document)], cells, score_columns(document), measured),
        *not_measured,
        *reasons(document),
        *notes(document),
    ]


def _overview(overviews: Sequence[Mapping[str, Any]], backbone: str) -> list[result_files.Part]:
    """Lay out what every table needs and how many of its figures can be measured now."""
    parts: list[result_files.Part] = [f"published figures that can be measured now on {backbone}"]
    for row in overviews:
        needs = [f"on {', '.join(row['backbones'])}", *row["data"]]
        if row["time"]:
            needs.append(" / ".join(row["time"]))
        parts.append(f"{row['table']:<24} {row['now']:>4} of {row['figures']:<4} {row['title']}")
        parts.append(f"    {'; '.join(needs)}")
        for why, count in row["lacks"].items():
            parts.append(f"    {errors.counted(count, 'figure')} cannot be measured now: {why}")
    return parts
