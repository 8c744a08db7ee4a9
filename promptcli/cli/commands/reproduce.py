"""``promptcli reproduce``: the papers' tables measured again, or a kept result compared. No arithmetic."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli.console import note, result, result_json
from promptcli.cli.options import FieldOptions, Force, Json, Runtime, data_folder, default_backbone, options_of
from promptcli.errors import CheckFailedError, UsageError
from promptcli.reproducing.texts import Texts

if TYPE_CHECKING:
    from promptcli.reproducing.measuring import Reproduction
    from promptcli.reproducing.planning import TableOverview


@options_of(Texts, panel="What rows are fitted and trained on")
class TextOptions(FieldOptions):
    """What rows are fitted, counted and trained on."""


def reproduce(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE...",
            help="promptbert/5, ditto (all of a paper), all; list shows them, page makes the page of all results;"
            " RESULT.json of results/: measured again and compared.",
        ),
    ],
    backbone: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", "--backbone", help="Measured on: mini-bert (default), a folder, a hub id, or glove:FILE."
        ),
    ] = None,
    paper: Annotated[bool, typer.Option("--paper", help="Every row on the backbone it was published for.")] = False,
    data_dir: Annotated[
        Path | None, typer.Option(help="SentEval folder of the tasks; without it they come from the hub.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the result files.")] = Path("results"),
    page: Annotated[Path, typer.Option(help="The page of all results.")] = Path("docs/results.md"),
    train: Annotated[
        bool, typer.Option("--train", help="Train the rows that take it: hours on large backbones.")
    ] = False,
    vectors: Annotated[
        Path | None, typer.Option(help="Folder of other programs' vectors of what --list-sentences prints.")
    ] = None,
    list_sentences: Annotated[
        bool, typer.Option("--list-sentences", help="Print the distinct sentences of the tables' tasks, and stop.")
    ] = False,
    seeds: Annotated[
        int, typer.Option(min=1, help="With --train: this many runs, seeds 0, 1, ...: mean and spread. One: seed 42.")
    ] = 1,
    force: Force = False,
    json: Json = False,
    *,
    texts: TextOptions,
    runtime: Runtime,
) -> None:
    """Measure the papers' tables again: measured, published, difference, 95% interval, into results/.

    What cannot be measured is listed with the reason. The same command resumes a killed run.
    """
    from promptcli.reproducing import reproduce as reproducing

    default = default_backbone()
    where: dict[str, Any] = {"data_dir": data_folder(data_dir), "vectors": vectors, **runtime.where}
    if what == ["page"]:
        from promptcli.reproducing.results import write_page

        note(f"{page} made of {write_page(output, page)} results")
    elif what == ["list"]:
        name = backbone or default_backbone(paper=paper)
        _list(reproducing.overviews(name, texts=Texts(**texts.changes()), **where), name, as_json=json)
    elif what[0].endswith(".json"):
        _repeat(what, backbone, texts.changes(), {**where, "default": default}, as_json=json)
    elif list_sentences:
        for sentence in reproducing.table_sentences(what, default, data_dir=where["data_dir"]):
            result(sentence)
    else:
        from promptcli.cli.commands.reproduce_pictures import painter

        how: dict[str, Any] = {"paper": paper, "train": train, "seeds": seeds, "output": output, "force": force}
        how |= {"texts": Texts(**texts.changes()), "default": default, "draw": painter(output)}
        _print(list(map(_told(json), reproducing.reproduce(what, backbone, **how, **where))), as_json=json)


def _told(json: bool) -> Any:
    """Return what tells of a table as soon as it is measured, and gives it on."""
    from promptcli.cli.console import show
    from promptcli.cli.tables import result_parts

    def tell(found: "Reproduction") -> "Reproduction":
        note(found.message)
        if found.document is not None and not json:
            show(*result_parts(found.document), "")
        return found

    return tell


def _print(done: "Sequence[Reproduction]", *, as_json: bool) -> None:
    """Print the document of all tables; an error where none was measured."""
    for label, reason in {label: reason for found in done for label, reason in found.missing.items()}.items():
        note(f"no data of {label}: {reason}")
    failed = {found.label: found.error for found in done if found.error is not None}
    if len(failed) == len(done):
        raise next(iter(failed.values()))
    if as_json:
        documents = [found.document for found in done if found.document is not None]
        result_json({"results": documents, "failed": {label: str(error) for label, error in failed.items()}})


def _list(overviews: "list[TableOverview]", backbone: str, *, as_json: bool) -> None:
    from promptcli.cli.console import show
    from promptcli.cli.tables import list_parts

    if as_json:
        result_json({"backbone": backbone, "tables": [vars(table) for table in overviews]})
    else:
        show(*list_parts(overviews, backbone))


def _repeat(
    files: Sequence[str], backbone: str | None, texts: dict[str, str], where: dict[str, Any], *, as_json: bool
) -> None:
    """Measure a result file again and print what has changed."""
    from promptcli.reproducing.reproduce import repeat

    if len(files) > 1:
        raise UsageError(f"one result file at a time; got {len(files)}")
    file = Path(files[0])
    after, found = repeat(file, backbone, texts=texts, **where)
    if as_json:
        result_json({"file": file.name, **dataclasses.asdict(found), "result": after})
    else:
        shown = f"{found.figures} figures, {len(found.changed)} changed; largest difference {found.largest}"
        result(f"{after['table']}: {shown}")
        for change in found.changed:
            result(f"  {change.row}, {change.column}: {change.before} -> {change.after}")
    if found.inputs or found.changed:
        other = f"other inputs: {', '.join(found.inputs)}" if found.inputs else "the inputs are the same"
        raise CheckFailedError(f"{file.name} is not repeated: {len(found.changed)} figures changed; {other}")
