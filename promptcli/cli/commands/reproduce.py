"""``promptcli reproduce``: the papers' tables measured again, or a kept result compared."""

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli.console import note, result, result_json
from promptcli.cli.options import Json, default_backbone
from promptcli.cli.signatures import Flag, command_of
from promptcli.data.senteval import tasks_from
from promptcli.errors import CheckFailedError, UsageError
from promptcli.reproducing import reproduce as library

if TYPE_CHECKING:
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
    given = reproduce.keywords
    what, choice, output = given["tables"], given["backbone"], Path(given["output"])
    context = {name: given[name] for name in ("texts", "vectors")}
    if what == ["page"]:
        from promptcli.reproducing.results import write_page

        note(f"{page} made of {write_page(output, page)} results")
    elif what == ["list"]:
        name = choice.model or default_backbone(paper=given["paper"])
        with tasks_from(given["data_dir"]):
            _list(library.overviews(dataclasses.replace(choice, model=name), **context), name, as_json=json)
    elif what[0].endswith(".json"):
        if len(what) > 1:
            raise UsageError(f"one result file at a time; got {len(what)}")
        with tasks_from(given["data_dir"]):
            _compare(Path(what[0]).name, *library.repeat(what[0], choice, **context), as_json=json)
    elif list_sentences:
        with tasks_from(given["data_dir"]):
            for sentence in library.table_sentences(what):
                result(sentence)
    else:
        from promptcli.cli.commands.reproduce_pictures import painter

        _print(list(_shown(reproduce(draw=painter(output)), as_json=json)), as_json=json)


def _shown(done: "Iterator[Reproduction]", *, as_json: bool) -> "Iterator[Reproduction]":
    """Print each table as it is measured and pass it through."""
    from promptcli.cli.console import show
    from promptcli.cli.tables import result_parts

    for each in done:
        note(each.message)
        if each.document is not None and not as_json:
            show(*result_parts(each.document), "")
        yield each


def _print(done: "Sequence[Reproduction]", *, as_json: bool) -> None:
    """Print the document of all tables; raise if none was measured."""
    for label, reason in {label: reason for each in done for label, reason in each.missing.items()}.items():
        note(f"no data of {label}: {reason}")
    failed = {each.label: each.error for each in done if each.error is not None}
    if len(failed) == len(done):
        raise next(iter(failed.values()))
    if as_json:
        documents = [each.document for each in done if each.document is not None]
        result_json({"results": documents, "failed": {label: str(error) for label, error in failed.items()}})


def _list(overviews: Sequence[Any], backbone: str, *, as_json: bool) -> None:
    from promptcli.cli.console import show
    from promptcli.cli.tables import list_parts

    if as_json:
        result_json({"backbone": backbone, "tables": [vars(table) for table in overviews]})
    else:
        show(*list_parts(overviews, backbone))


def _compare(file: str, after: dict[str, Any], repetition: Any, *, as_json: bool) -> None:
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
