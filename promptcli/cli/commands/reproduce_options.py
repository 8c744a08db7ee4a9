"""What `reproduce` and `rerun` share: options, and the context that tables are measured at. Part of the entrance."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli.console import note, progress
from promptcli.cli.opening import open_backbone
from promptcli.cli.options import FieldOptions, Runtime, options_of
from promptcli.reproducing.texts import Texts

if TYPE_CHECKING:
    from promptcli.reproducing.measurement_context import MeasurementContext

OnBackbone = Annotated[
    str | None, typer.Option("--backbone", help="Measured on: mini (default), a local folder, a hub id, or glove:FILE.")
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
        offline=options.offline,
        working=progress,
        seeds=tuple(seeds),
        vectors=vectors,
        announce=note,
        draw=painter(output),
    )
