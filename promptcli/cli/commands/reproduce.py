"""``promptcli reproduce``: the papers' tables measured again."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from promptcli.cli.console import note, result_json, show
from promptcli.cli.grids import Grid
from promptcli.cli.options import Json, default_backbone
from promptcli.cli.signatures import Flag, command_of
from promptcli.data.senteval import tasks_from
from promptcli.errors import counted, if_interrupted
from promptcli.reproducing import reproduce as library

if TYPE_CHECKING:
    from promptcli.reproducing.reproduce import Reproduction


@command_of(
    library.reproduce,
    flags={
        "tables": Flag(
            "TABLE...",
            type=list[str],
            help=(
                "promptbert/5, ditto (all of a paper), all; list shows them, page makes the page of"
                " all results."
            ),
        ),
        "backbone": "--model -m --backbone",
        "seeds": Flag(min=1),
    },
)
def reproduce(
    reproduce: "partial[Iterator[Reproduction]]",
    page: Annotated[Path, typer.Option(help="The page of all results.")] = Path("docs/results.md"),
    json: Json = False,
) -> None:
    """Measure the papers' tables again: measured, published, difference, 95% interval, into
    results/.

    What cannot be measured is listed with the reason. The same command resumes a killed run.
    """
    options = reproduce.keywords
    tables, choice, output = options["tables"], options["backbone"], Path(options["output"])
    with tasks_from(options["data_dir"]):
        if tables == ["page"]:
            from promptcli.reproducing.report import write_page

            note(f"{page} was made from {counted(write_page(output, page), 'result')}")
        elif tables == ["list"]:
            name = choice.model or default_backbone(paper=options["paper"])
            overviews = library.overviews(
                dataclasses.replace(choice, model=name), texts=options["texts"]
            )
            if json:
                result_json({"backbone": name, "tables": overviews})
            else:
                show(*_overview(overviews, name))
        else:
            with if_interrupted("finished rows are kept; run the same command to continue"):
                _measure(reproduce(), as_json=json)


def _measure(reproductions: "Iterator[Reproduction]", *, as_json: bool) -> None:
    """Print each table when it is measured, or one document of all; raise if none was measured."""
    done = []
    for each in reproductions:
        note(each.message)
        if each.document is not None and not as_json:
            show(*_result(each.document), "")
        done.append(each)
    for label, reason in {
        label: reason for each in done for label, reason in each.missing.items()
    }.items():
        note(f"no data of {label}: {reason}")
    failed = {each.label: each.error for each in done if each.error is not None}
    if len(failed) == len(done):
        raise next(iter(failed.values()))
    if as_json:
        documents = [each.document for each in done if each.document is not None]
        result_json(
            {"results": documents, "failed": {label: str(error) for label, error in failed.items()}}
        )


def _result(document: Mapping[str, Any]) -> list[RenderableType]:
    """Lay out a result document: caption, a table with every row's lines, remarks."""
    from promptcli.reproducing.report import caption, heads, notes, reasons, table_lines

    cells, unmeasured = [], []
    for line in table_lines(document):
        if line.kind == "reason":
            unmeasured.append(f"{line.label} not measured: {line.cells[0]}")
            cells.append([line.label, *("-" for _ in document["columns"])])
        else:
            cells.append(
                [line.label if line.kind == "measured" else f"  {line.label}", *line.cells]
            )
    title, remarks = (
        f"{document['table']}: {document['title']}",
        [*unmeasured, *reasons(document), *notes(document)],
    )
    return [title, *caption(document), Grid(["", *heads(document)], cells), *remarks]


def _overview(overviews: Sequence[Mapping[str, Any]], backbone: str) -> list[RenderableType]:
    """Lay out what every table needs and how many of its figures can be measured now."""
    parts: list[RenderableType] = [f"published figures that can be measured now on {backbone}"]
    for row in overviews:
        needs = [f"on {', '.join(row['backbones'])}", *row["data"], " / ".join(row["time"])]
        lacks = (
            f"{counted(n, 'figure')} cannot be measured now: {why}"
            for why, n in row["lacks"].items()
        )
        parts.append(f"{row['table']:<24} {row['now']:>4} of {row['figures']:<4} {row['title']}")
        parts += [f"    {line}" for line in ("; ".join(filter(None, needs)), *lacks)]
    return parts
