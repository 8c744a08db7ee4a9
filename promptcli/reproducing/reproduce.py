"""The papers' tables measured again. Imports nothing heavy: the command line reads it."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.data.senteval import senteval_folder, tasks_from
from promptcli.errors import NotFoundError, PromptcliError, UsageError
from promptcli.recipe import Choice
from promptcli.reproducing.published import Texts, published_tables, same_backbone

if TYPE_CHECKING:
    from promptcli.backbones.backbone import Backbone
    from promptcli.reproducing.systems import MeasurementContext


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """One table on one backbone."""

    label: str
    document: dict[str, Any] | None = None
    file: Path | None = None  #: None if no figure can be measured
    error: PromptcliError | None = None
    #: data set -> why it is missing
    missing: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def message(self) -> str:
        if self.error is not None:
            return f"{self.label} is left out: {self.error}"
        if self.file is None:
            return f"{self.label}: no figure can be measured here, so no file is written"
        return f"{self.label}: written to {self.file}"


def reproduce(
    tables: str | Sequence[str],
    backbone: str | Choice | None = None,
    *,
    paper: bool = False,
    train: bool = False,
    seeds: int = 1,
    head: str | None = None,
    texts: Texts = Texts(),  # noqa: B008 - frozen
    data_dir: str | Path | None = None,
    output: str | Path = "results",
    force: bool = False,
) -> Iterator[Reproduction]:
    """Measure tables of the papers and write the results; earlier figures come from the cache.

    Args:
        tables: ``promptbert/5``, ``ditto`` (all of a paper), ``all``, or several.
        backbone: A shipped name, a folder, a hub id, or glove:FILE. Default: mini-bert.
        paper: Measure every row on the backbone that it was published for, unless one is given.
        train: Train the rows that need it.
        seeds: Runs of each of them; one run has seed 42, several 0, 1, ...
        head: Of Ditto's rows, e.g. 1-9, or a model that `ditto-search --name` saved. Default: the
            published one, which only published backbones and mini-bert have.
        texts: The data that rows are fitted, counted and trained on.
        data_dir: SentEval folder of the tasks; without it they come from the hub.
        output: Folder of the result files.
        force: Measure again what is cached.

    Yields:
        The tables on their backbones, as they are measured; a failure does not end the others.
    """
    from promptcli.encoder.pooling import build_pooling
    from promptcli.reproducing.documents import measure_table, wanted_tables
    from promptcli.reproducing.report import write_result

    if seeds > 1 and not train:
        raise UsageError(f"`seeds` {seeds} is for rows that are trained; give `train`, too")
    if head is not None and paper:
        raise UsageError(
            "`head` is of one backbone, and `paper` measures several; give `backbone` instead of"
            " `paper`"
        )
    choice = _choice(backbone)
    chosen = None if head is None else _head_of(head, choice.model or choice.backbone)
    wanted = wanted_tables(tables, choice.model, choice.backbone, paper=paper, train=train)
    runs = () if not train else (42,) if seeds == 1 else range(seeds)

    def measured() -> Iterator[Reproduction]:
        contexts: dict[str, MeasurementContext] = {}
        for table, name in wanted:
            if name not in contexts:
                on = dataclasses.replace(choice, model=name)
                with tasks_from(data_dir):
                    contexts[name] = open_context(on, texts, seeds=runs, head=chosen, fresh=force)
            context = contexts[name]
            if chosen is not None:
                # refuses a head that does not exist
                build_pooling(f"last/ditto:{chosen}", context.backbone, {})
            try:
                document = measure_table(table, context)
            except PromptcliError as error:
                yield Reproduction(f"{table.name} on {name}", error=error, missing=context.missing)
            else:
                figures = any(row["figures"] for row in document["rows"])
                file = write_result(Path(output), document) if figures else None
                yield Reproduction(table.name, document, file, missing=context.missing)

    return measured()


def overviews(
    backbone: str | Choice | None = None,
    *,
    texts: Texts = Texts(),  # noqa: B008 - frozen
) -> list[dict[str, Any]]:
    """Return the needs of every table and the number of its figures that can be measured here,
    offline; JSON-ready.
    """
    from promptcli.notes import without_network
    from promptcli.reproducing.documents import overview

    with without_network():
        context = open_context(_choice(backbone), texts)
        return [overview(table, context) for table in published_tables().values()]


def open_context(
    choice: Choice,
    texts: Texts = Texts(),  # noqa: B008 - frozen
    *,
    seeds: Sequence[int] = (),
    head: str | None = None,
    fresh: bool = False,
) -> "MeasurementContext":
    """Return the context of measurements on a backbone.

    A ``fresh`` one takes no figure from the cache.
    """
    from promptcli.backbones.devices import TF32, choose_device, weights_dtype
    from promptcli.backbones.loading import load_backbone
    from promptcli.models.loading import home_folder
    from promptcli.reproducing.systems import MeasurementContext
    from promptcli.storage.cache import Cache

    folder = senteval_folder()
    if folder is not None and not folder.is_dir():
        raise NotFoundError(
            f"{folder}: no such folder; give a SentEval `downstream` folder (STS/, SICK/)"
        )
    name = choice.model or choice.backbone

    def open_backbone() -> "Backbone":
        device, dtype = choose_device(choice.device), choice.dtype or "stored"
        backbone = load_backbone(
            name, words=True, device=device, dtype=weights_dtype(dtype, device)
        )
        backbone.tf32 = dtype == TF32
        return backbone

    return MeasurementContext(
        name,
        open_backbone,
        Cache(home_folder() / "cache" / "figures", fresh=fresh),
        data_dir=folder,
        texts=texts,
        seeds=tuple(seeds),
        head=head,
    )


_HEAD = re.compile(r"(?:(?:[\w-]+/)?ditto:)?(\d+-\d+)")


def _head_of(text: str, backbone: str) -> str:
    """Return a head of a backbone that is given by its numbers, or by a model that reads it."""
    from promptcli.models.loading import open_registry

    written = _HEAD.fullmatch(text)
    if written is not None:
        return written[1]
    registry = open_registry()
    if text not in registry.names():
        models = ", ".join(registry.names())
        raise NotFoundError(
            f"`head` {text!r} is neither LAYER-HEAD, e.g. 1-9, nor a model; there are: {models}"
        )
    recipe = registry.card(text).recipe
    read = _HEAD.fullmatch(recipe.pooling)
    if read is None:
        search = "`promptcli ditto-search --name NAME` saves one"
        raise UsageError(f"`head`: model {text!r} reads {recipe.pooling}, no head; {search}")
    if not same_backbone(recipe.backbone, backbone):
        raise UsageError(
            f"`head`: model {text!r} is on {recipe.backbone}; give `backbone` {recipe.backbone}"
        )
    return read[1]


def _choice(backbone: str | Choice | None) -> Choice:
    return backbone if isinstance(backbone, Choice) else Choice(backbone)
