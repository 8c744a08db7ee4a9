"""``promptcli reproduce``: the papers' tables measured again. Options, calls, notes; no arithmetic."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli.commands.reproduce_options import Corpus, DataDir, Json, OnBackbone, Triplets, open_context
from promptcli.cli.console import note, result_json
from promptcli.cli.opening import configure_libraries, data_folder, default_backbone
from promptcli.cli.options import Runtime
from promptcli.errors import NotFoundError, PromptcliError, UsageError

if TYPE_CHECKING:
    from promptcli.reproducing.context import MeasurementContext
    from promptcli.reproducing.published import PublishedTable

#: Of single runs, as the papers'.
_SEEDS = (42,)


def reproduce(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE...",
            help="promptbert/5, ditto (all of a paper), all; `list` shows them, `page` makes the page of all results.",
            show_default=False,
        ),
    ],
    backbone: OnBackbone = None,
    paper: Annotated[bool, typer.Option("--paper", help="Every row on the backbone it was published for.")] = False,
    data_dir: DataDir = None,
    corpus: Corpus = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the result files.")] = Path("results"),
    page: Annotated[Path, typer.Option("--page", help="File that `page` writes.")] = Path("docs/results.md"),
    train: Annotated[
        bool,
        typer.Option("--train", help="Train the rows that take it, on --corpus: hours on large backbones."),
    ] = False,
    triplets: Triplets = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="With --train: so many runs, seeds 0, 1, ...: mean and spread. One: seed 42.")
    ] = 1,
    force: Annotated[bool, typer.Option("--force", help="Measure again what is cached.")] = False,
    json: Json = False,
    *,
    runtime: Runtime,
) -> None:
    """Measure the papers' tables again: measured, published, difference, 95% interval, into results/.

    What cannot be measured is listed with the reason. A killed run goes on where it stood.
    """
    configure_libraries(runtime)
    if what == ["page"]:
        _make_page(output, page, runtime)
        return
    data_dir, corpus = data_folder(data_dir), corpus or "demo"
    if seeds > 1 and not train:
        raise UsageError(f"--seeds {seeds} is for rows that are trained; give --train, too")
    runs = () if not train else _SEEDS if seeds == 1 else tuple(range(seeds))
    if data_dir is not None and not data_dir.is_dir():
        raise NotFoundError(f"--data-dir {data_dir}: no such folder; give a SentEval `downstream` folder (STS/, SICK/)")
    if what == ["list"]:
        name = backbone or default_backbone(paper=paper)
        _list(open_context(name, data_dir, corpus, runtime, look=True, seeds=runs, triplets=triplets), json=json)
        return
    from promptcli.reproducing.published import find_tables

    _run(
        [
            (table, name)
            for table in find_tables(what)
            for name in _backbones(table, backbone, paper=paper, train=train)
        ],
        lambda name: open_context(
            name, data_dir, corpus, runtime, fresh=force, seeds=runs, triplets=triplets, output=output
        ),
        output,
        json=json,
        quiet=runtime.quiet,
    )


def _backbones(table: "PublishedTable", given: str | None, *, paper: bool, train: bool) -> list[str]:
    """Return what a table is measured on: one backbone, or with --paper each of its own."""
    from promptcli.reproducing.planning import own_backbones

    return (paper and given is None and own_backbones(table, train=train)) or [given or default_backbone(paper=False)]


def _run(
    wanted: "list[tuple[PublishedTable, str]]",
    context_on: "Callable[[str], MeasurementContext]",
    output: Path,
    *,
    json: bool,
    quiet: bool,
) -> None:
    """Measure tables, one after the other; one that cannot be measured does not end the others."""
    from promptcli.cli.commands.reproduce_table import table_lines
    from promptcli.cli.console import out
    from promptcli.reproducing.measuring import measure_table, measured_rows
    from promptcli.reproducing.results import write_result

    contexts: dict[str, MeasurementContext] = {}
    documents: list[dict[str, Any]] = []
    failed: dict[str, PromptcliError] = {}
    for table, name in wanted:
        context = contexts[name] if name in contexts else contexts.setdefault(name, context_on(name))
        try:
            document = measure_table(table, context)
        except PromptcliError as error:
            failed[f"{table.name} on {name}"] = error
            note(f"{table.name} on {name} is left out: {error}", quiet=quiet)
            continue
        documents.append(document)
        if measured_rows(document):
            note(f"{table.name}: kept in {write_result(output, document)}", quiet=quiet)
        else:
            note(f"{table.name}: no figure can be measured here, so no file is kept", quiet=quiet)
        if not json:
            for line in table_lines(document):
                out.print(line)
            out.print()
    for label, reason in {name: why for context in contexts.values() for name, why in context.missing.items()}.items():
        note(f"no data of {label}: {reason}", quiet=quiet)
    if not documents:
        raise next(iter(failed.values()))
    if json:
        result_json({"results": documents, "failed": {what: str(error) for what, error in failed.items()}})


def _make_page(output: Path, page: Path, runtime: Runtime) -> None:
    from promptcli.reproducing.page import results_page
    from promptcli.reproducing.results import read_results
    from promptcli.storage.files import write_text

    documents = read_results(output)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_text(page, results_page(documents, f"{os.path.relpath(output, page.parent)}/"))
    note(f"{page} made of {len(documents)} results", quiet=runtime.quiet)


def _list(context: "MeasurementContext", *, json: bool) -> None:
    from promptcli.cli.commands.reproduce_table import list_lines
    from promptcli.cli.console import out
    from promptcli.reproducing.planning import overview
    from promptcli.reproducing.published import published_tables

    overviews = [overview(table, context) for table in published_tables().values()]
    if json:
        result_json({"backbone": context.backbone_name, "tables": [vars(look) for look in overviews]})
        return
    for line in list_lines(overviews, context.backbone_name):
        out.print(line)
