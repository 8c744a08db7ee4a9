"""``promptcli reproduce``: the papers' tables measured again, or a result of before compared."""

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli.console import note, result, result_json, show
from promptcli.cli.options import Json, default_backbone
from promptcli.cli.signatures import Flag, command_of
from promptcli.data.senteval import tasks_from
from promptcli.errors import CheckFailedError, UsageError
from promptcli.reproducing import reproduce as library

if TYPE_CHECKING:
    from promptcli.reproducing.report import Repetition
    from promptcli.reproducing.reproduce import Reproduction


@command_of(
    library.reproduce,
    flags={
        "tables": Flag(
            "TABLE...",
            type=list[str],
            help="promptbert/5, ditto (all of a paper), all; list shows them, page makes the page of all results;"
            " RESULT.json of results/: measured again and compared.",
        ),
        "backbone": "--model -m --backbone",
        "seeds": Flag(min=1),
        "draw": None,
    },
)
def reproduce(
    reproduce: "partial[Iterator[Reproduction]]",
    page: Annotated[Path, typer.Option(help="The page of all results.")] = Path("docs/results.md"),
    list_sentences: Annotated[
        bool, typer.Option("--list-sentences", help="Print the distinct sentences of the tables' tasks, and stop.")
    ] = False,
    json: Json = False,
) -> None:
    """Measure the papers' tables again: measured, published, difference, 95% interval, into results/.

    What cannot be measured is listed with the reason. The same command resumes a killed run.
    """
    options = reproduce.keywords
    tables, choice, output = options["tables"], options["backbone"], Path(options["output"])
    context = {name: options[name] for name in ("texts", "vectors")}
    with tasks_from(options["data_dir"]):
        if tables == ["page"]:
            from promptcli.reproducing.report import write_page

            note(f"{page} made of {write_page(output, page)} results")
        elif tables == ["list"]:
            from promptcli.cli.tables import list_parts

            name = choice.model or default_backbone(paper=options["paper"])
            overviews = library.overviews(dataclasses.replace(choice, model=name), **context)
            if json:
                result_json({"backbone": name, "tables": [vars(table) for table in overviews]})
            else:
                show(*list_parts(overviews, name))
        elif tables[0].endswith(".json"):
            if len(tables) > 1:
                raise UsageError(f"one result file at a time; got {len(tables)}")
            _compare(Path(tables[0]).name, *library.repeat(tables[0], choice, **context), as_json=json)
        elif list_sentences:
            for sentence in library.table_sentences(tables):
                result(sentence)
        else:
            from promptcli.cli.commands.reproduce_pictures import painter

            _measure(reproduce(draw=painter(output)), as_json=json)


def _measure(tables: "Iterator[Reproduction]", *, as_json: bool) -> None:
    """Print each table as it is measured, or the document of all; raise if none was measured."""
    from promptcli.cli.tables import result_parts

    done = []
    for table in tables:
        note(table.message)
        if table.document is not None and not as_json:
            show(*result_parts(table.document), "")
        done.append(table)
    for label, reason in {label: reason for table in done for label, reason in table.missing.items()}.items():
        note(f"no data of {label}: {reason}")
    failed = {table.label: table.error for table in done if table.error is not None}
    if len(failed) == len(done):
        raise next(iter(failed.values()))
    if as_json:
        documents = [table.document for table in done if table.document is not None]
        result_json({"results": documents, "failed": {label: str(error) for label, error in failed.items()}})


def _compare(file: str, after: dict[str, Any], repetition: "Repetition", *, as_json: bool) -> None:
    """Print the changes of a repeated result; raise if there are any."""
    changed, inputs = repetition.changed, repetition.inputs
    if as_json:
        result_json({"file": file, **dataclasses.asdict(repetition), "result": after})
    else:
        figures = f"{repetition.figures} figures, {len(changed)} changed; largest difference {repetition.largest}"
        result(f"{after['table']}: {figures}")
        for change in changed:
            result(f"  {change.row}, {change.column}: {change.before} -> {change.after}")
    if inputs or changed:
        other = f"other inputs: {', '.join(inputs)}" if inputs else "the inputs are the same"
        raise CheckFailedError(f"{file} is not repeated: {len(changed)} figures changed; {other}")
