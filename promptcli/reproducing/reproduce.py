"""The papers' tables measured again, and kept results compared."""

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.devices import TF32, choose_device, weights_dtype
from promptcli.backbones.loading import load_backbone
from promptcli.errors import NotFoundError, UsageError
from promptcli.models.loading import home_folder
from promptcli.notes import offline
from promptcli.reproducing import planning, results
from promptcli.reproducing.measurement_context import MeasurementContext
from promptcli.reproducing.measuring import Reproduction, repeat_result, reproduce_tables
from promptcli.reproducing.planning import TableOverview, wanted_tables
from promptcli.reproducing.published import find_tables, published_tables
from promptcli.reproducing.results import Repetition
from promptcli.reproducing.texts import Texts
from promptcli.settings import BARE
from promptcli.storage.cache import Cache

#: Draws a figure of the papers in a context; returns the file's name.
Draw = Callable[[str, MeasurementContext], str]
#: Seeds of single training runs, as the papers'.
_SEEDS = (42,)


def reproduce(
    tables: str | Sequence[str],
    backbone: str | None = None,
    *,
    paper: bool = False,
    train: bool = False,
    seeds: int = 1,
    texts: Texts | None = None,
    data_dir: str | Path | None = None,
    vectors: str | Path | None = None,
    output: str | Path = "results",
    default: str = BARE.backbone,
    draw: Draw | None = None,
    force: bool = False,
    device: str = "auto",
    dtype: str = "stored",
) -> Iterator[Reproduction]:
    """Measure tables of the papers and write the results; what was measured before comes from the cache.

    Args:
        tables: ``promptbert/5``, ``ditto`` (all of a paper), ``all``, or several.
        backbone: Measured on: a shipped name, a folder, a hub id, or glove:FILE.
        paper: Every row on the backbone that it was published for, unless one is given.
        train: Train the rows that take it.
        seeds: Runs of each of them; one run has seed 42, several 0, 1, ...
        texts: What rows are fitted, counted and trained on.
        data_dir: SentEval folder of the tasks; without it they come from the hub.
        vectors: Folder of other programs' vectors of ``table_sentences``.
        output: Folder of the result files.
        default: Backbone where none is given.
        draw: Draws the papers' figures; without it they are left out.
        force: Measure again what is cached.
        device: See ``load``.
        dtype: See ``load``.

    Yields:
        Each table on each backbone, as soon as it is measured; one that fails does not end the others.

    Raises:
        UsageError: No such table, or several seeds without training.
        NotFoundError: No such data folder.
    """
    if seeds > 1 and not train:
        raise UsageError(f"`seeds` {seeds} is for rows that are trained; give `train`, too")
    wanted = wanted_tables(_names(tables), backbone, default, paper=paper, train=train)
    runs = () if not train else _SEEDS if seeds == 1 else range(seeds)
    how: dict[str, Any] = {"texts": texts, "seeds": runs, "vectors": vectors, "draw": draw, "fresh": force}
    open_on = functools.partial(open_context, data_dir=data_dir, device=device, dtype=dtype, **how)
    return reproduce_tables(wanted, open_on, Path(output))


def overviews(
    backbone: str = BARE.backbone,
    *,
    texts: Texts | None = None,
    data_dir: str | Path | None = None,
    vectors: str | Path | None = None,
    device: str = "auto",
    dtype: str = "stored",
) -> list[TableOverview]:
    """Return what every table needs and how much of it can be measured here; the network is not used."""
    with offline():
        context = open_context(backbone, texts=texts, data_dir=data_dir, vectors=vectors, device=device, dtype=dtype)
        return [planning.overview(table, context) for table in published_tables().values()]


def table_sentences(
    tables: str | Sequence[str], backbone: str = BARE.backbone, *, data_dir: str | Path | None = None
) -> list[str]:
    """Return the distinct sentences of the tables' tasks, for another program to embed."""
    return planning.table_sentences(find_tables(_names(tables)), open_context(backbone, data_dir=data_dir))


def repeat(
    file: str | Path,
    backbone: str | None = None,
    *,
    texts: dict[str, str] | None = None,
    data_dir: str | Path | None = None,
    vectors: str | Path | None = None,
    default: str = BARE.backbone,
    device: str = "auto",
    dtype: str = "stored",
) -> tuple[dict[str, Any], Repetition]:
    """Measure a result file of ``reproduce`` again, without the cache; return the new document, and how it compares.

    ``backbone`` and ``texts``, fields of ``Texts``, say where these are, if not under their names in the file;
    ``default`` is the backbone of a table that needs none. For the others see ``reproduce``.
    """
    where: dict[str, Any] = {"data_dir": data_dir, "vectors": vectors, "device": device, "dtype": dtype}
    open_on = functools.partial(open_context, fresh=True, **where)
    return repeat_result(results.read_result(Path(file)), open_on, default, backbone=backbone, **(texts or {}))


def open_context(
    name: str,
    *,
    texts: Texts | None = None,
    seeds: Sequence[int] = (),
    data_dir: str | Path | None = None,
    vectors: str | Path | None = None,
    draw: Draw | None = None,
    fresh: bool = False,
    device: str = "auto",
    dtype: str = "stored",
) -> MeasurementContext:
    """Return where tables are measured on a backbone; a ``fresh`` context takes no figure from the cache."""
    if data_dir is not None and not Path(data_dir).is_dir():
        raise NotFoundError(f"{data_dir}: no such folder; give a SentEval `downstream` folder (STS/, SICK/)")

    def open_backbone() -> Backbone:
        where = choose_device(device)
        backbone = load_backbone(name, words=True, device=where, dtype=weights_dtype(dtype, where))
        backbone.tf32 = dtype == TF32
        return backbone

    return MeasurementContext(
        name,
        open_backbone,
        Cache(home_folder() / "cache" / "figures", fresh=fresh),
        data_dir=None if data_dir is None else Path(data_dir),
        texts=texts or Texts(),
        seeds=tuple(seeds),
        vectors=None if vectors is None else Path(vectors),
        draw=draw,
    )


def _names(tables: str | Sequence[str]) -> list[str]:
    return [tables] if isinstance(tables, str) else list(tables)
