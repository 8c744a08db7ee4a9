"""``promptcli reproduce``: the papers' tables measured again, or a kept result compared. No arithmetic."""

import dataclasses
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli.console import note, result, result_json
from promptcli.cli.opening import configure_libraries, data_folder, default_backbone, open_backbone
from promptcli.cli.options import FieldOptions, Json, Runtime, options_of
from promptcli.errors import CheckFailedError, NotFoundError, UsageError
from promptcli.reproducing.texts import Texts

if TYPE_CHECKING:
    from promptcli.reproducing.measurement_context import MeasurementContext
    from promptcli.reproducing.measuring import Reproduction

OnBackbone = Annotated[
    str | None,
    typer.Option("--backbone", help="Measured on: mini-bert (default), a local folder, a hub id, or glove:FILE."),
]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="SentEval folder of the tasks; without it they come from the hub.")
]
Vectors = Annotated[
    Path | None, typer.Option("--vectors", help="Folder of other programs' vectors of what --list-sentences prints.")
]


@options_of(Texts)
class TextOptions(FieldOptions):
    """What rows are fitted, counted and trained on."""


def open_context(
    name: str,
    *,
    runtime: Runtime,
    data_dir: Path | None,
    texts: Texts,
    seeds: Sequence[int] = (),
    vectors: Path | None = None,
    look: bool = False,
    fresh: bool = False,
    output: Path = Path("results"),
) -> "MeasurementContext":
    """Return a context; one to ``look`` at never uses the network, a ``fresh`` one takes no figure from the cache."""
    from promptcli.cli.commands.reproduce_pictures import painter
    from promptcli.registry.registry import home
    from promptcli.reproducing.measurement_context import MeasurementContext
    from promptcli.storage.cache import Cache

    options = dataclasses.replace(runtime, offline=runtime.offline or look)
    return MeasurementContext(
        name,
        lambda: open_backbone(name, options, words=True),
        Cache(home(os.environ) / "cache" / "figures", fresh=fresh),
        data_dir=data_dir,
        texts=texts,
        seeds=tuple(seeds),
        vectors=vectors,
        draw=painter(output),
    )


#: Of single runs, as the papers'.
_SEEDS = (42,)


def reproduce(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE...",
            help="promptbert/5, ditto (all of a paper), all; `list` shows them, `page` makes the page of all results;"
            " RESULT.json of results/: measured again and compared.",
        ),
    ],
    backbone: OnBackbone = None,
    paper: Annotated[bool, typer.Option("--paper", help="Every row on the backbone it was published for.")] = False,
    data_dir: DataDir = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the result files.")] = Path("results"),
    page: Annotated[Path, typer.Option(help="File that `page` writes.")] = Path("docs/results.md"),
    train: Annotated[
        bool, typer.Option("--train", help="Train the rows that take it, on --corpus: hours on large backbones.")
    ] = False,
    vectors: Vectors = None,
    list_sentences: Annotated[
        bool, typer.Option("--list-sentences", help="Print the distinct sentences of the tables' tasks, and stop.")
    ] = False,
    seeds: Annotated[
        int, typer.Option(min=1, help="With --train: so many runs, seeds 0, 1, ...: mean and spread. One: seed 42.")
    ] = 1,
    force: Annotated[bool, typer.Option("--force", help="Measure again what is cached.")] = False,
    json: Json = False,
    *,
    texts: TextOptions,
    runtime: Runtime,
) -> None:
    """Measure the papers' tables again: measured, published, difference, 95% interval, into results/.

    What cannot be measured is listed with the reason. A killed run goes on where it stood.
    """
    configure_libraries(runtime)
    from promptcli.cli.commands.reproduce_table import table_lines
    from promptcli.cli.commands.score_table import TableLine, print_lines
    from promptcli.reproducing.measuring import reproduce_tables
    from promptcli.reproducing.planning import table_sentences, wanted_tables
    from promptcli.reproducing.published import find_tables
    from promptcli.reproducing.results import write_page

    if what == ["page"]:
        note(f"{page} made of {write_page(output, page)} results")
        return
    if what[0].endswith(".json"):
        _repeat(what, backbone, data_dir, vectors, texts, runtime, json=json)
        return
    data_dir = _checked(data_folder(data_dir), seeds, train=train)
    open_on = functools.partial(
        open_context,
        runtime=runtime,
        data_dir=data_dir,
        texts=Texts(**texts.changes()),
        seeds=() if not train else _SEEDS if seeds == 1 else range(seeds),
        vectors=vectors,
    )
    if what == ["list"]:
        _list(open_on(backbone or default_backbone(paper=paper), look=True), json=json)
        return
    if list_sentences:
        for sentence in table_sentences(find_tables(what), open_on(default_backbone(paper=False))):
            result(sentence)
        return
    wanted = wanted_tables(what, backbone, default_backbone(paper=False), paper=paper, train=train)
    done: list[Reproduction] = []
    for found in reproduce_tables(wanted, functools.partial(open_on, fresh=force, output=output), output):
        done.append(found)
        note(found.message)
        if found.document is not None and not json:
            print_lines([*table_lines(found.document), TableLine("")])
    for label, reason in {label: reason for found in done for label, reason in found.missing.items()}.items():
        note(f"no data of {label}: {reason}")
    _end(done, json=json)


def _end(done: "Sequence[Reproduction]", *, json: bool) -> None:
    """Print the document of all tables; an error where none was measured."""
    failed = {found.label: found.error for found in done if found.error is not None}
    if len(failed) == len(done):
        raise next(iter(failed.values()))
    if json:
        documents = [found.document for found in done if found.document is not None]
        result_json({"results": documents, "failed": {label: str(error) for label, error in failed.items()}})


def _checked(data_dir: Path | None, seeds: int, *, train: bool) -> Path | None:
    """Return the data folder, if it is one."""
    if seeds > 1 and not train:
        raise UsageError(f"--seeds {seeds} is for rows that are trained; give --train, too")
    if data_dir is not None and not data_dir.is_dir():
        raise NotFoundError(f"--data-dir {data_dir}: no such folder; give a SentEval `downstream` folder (STS/, SICK/)")
    return data_dir


def _list(context: "MeasurementContext", *, json: bool) -> None:
    from promptcli.cli.commands.reproduce_table import list_lines
    from promptcli.cli.commands.score_table import print_lines
    from promptcli.reproducing.planning import overview
    from promptcli.reproducing.published import published_tables

    overviews = [overview(table, context) for table in published_tables().values()]
    if json:
        result_json({"backbone": context.backbone_name, "tables": [vars(table) for table in overviews]})
    else:
        print_lines(list_lines(overviews, context.backbone_name))


def _repeat(
    files: Sequence[str],
    backbone: str | None,
    data_dir: Path | None,
    vectors: Path | None,
    texts: TextOptions,
    runtime: Runtime,
    *,
    json: bool,
) -> None:
    """Measure a result file again and compare every figure."""
    from promptcli.reproducing.measuring import repeat_result
    from promptcli.reproducing.results import read_result

    if len(files) > 1:
        raise UsageError(f"one result file at a time; got {len(files)}")
    file = Path(files[0])
    before = read_result(file)
    open_on = functools.partial(
        open_context, runtime=runtime, data_dir=data_folder(data_dir), vectors=vectors, fresh=True
    )
    given = {"backbone": backbone, **texts.changes()}
    after, found = repeat_result(before, open_on, default_backbone(paper=False), **given)
    if json:
        result_json({"file": file.name, **dataclasses.asdict(found), "result": after})
    else:
        result(
            f"{before['table']}: {found.figures} figures, {len(found.changed)} changed;"
            f" largest difference {found.largest}"
        )
        for change in found.changed:
            result(f"  {change.row}, {change.column}: {change.before} -> {change.after}")
    if found.inputs or found.changed:
        other = f"other inputs: {', '.join(found.inputs)}" if found.inputs else "the inputs are the same"
        raise CheckFailedError(f"{file.name} is not repeated: {len(found.changed)} figures changed; {other}")
