"""The public function that measures the papers' tables again.

Heavy modules are imported when it runs.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli import notes
from promptcli.errors import PromptcliError
from promptcli.plugins.papers.published import Texts, published_tables
from promptcli.recipe import ModelChoice

if TYPE_CHECKING:
    from promptcli.plugins.papers.contexts import MeasurementContext
    from promptcli.plugins.papers.published import PublishedTable


@dataclass(frozen=True)
class Reproduction:
    """A table that was measured on a backbone."""

    label: str  #: the table, and after an error also the backbone
    document: dict[str, Any] | None = None  #: None after an error
    file: Path | None = None  #: of the document; None if no value can be measured
    error: PromptcliError | None = None
    pictures: Sequence[Path] = ()  #: of its numbers

    @property
    def message(self) -> str:
        if self.error is not None:
            return f"{self.label} is left out: {self.error}"
        if self.file is None:
            return f"{self.label}: no figure can be measured here, so no file is written"
        return f"{self.label}: written to {self.file}"


def reproduce(
    tables: str | Sequence[str],
    backbone: str | ModelChoice | None = None,
    *,
    paper: bool = False,
    train: bool = False,
    seeds: int = 1,
    head: str | None = None,
    texts: Texts = Texts(),  # noqa: B008 - frozen
    data_dir: str | Path | None = None,
    output: str | Path = "results",
    force: bool = False,
    plot: Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[Reproduction]:
    """Measure tables of the papers and write the results; known values come from the cache.

    Args:
        tables: ``promptbert/5``, ``ditto`` (all of a paper), ``all``, or several.
        backbone: A shipped name, a folder, a hub id, or glove:FILE. Default: mini-bert.
        paper: Measure every row on its published backbone, unless one is given, and train with
            the published settings.
        train: Train the rows that need training.
        seeds: Number of runs of each trained row. One run has seed 42, several have 0, 1, ...
        head: Attention head of Ditto's rows, e.g. 1-9, or a saved model with a head. Default: the
            published head, which only published backbones and mini-bert have.
        texts: The data for fitting, counting and training.
        data_dir: SentEval folder of the tasks. Default: tasks come from the hub.
        output: Folder of the result files.
        force: Measure cached values again.
        plot: File into which one table is drawn. The papers' figures are also drawn into
            ``output`` if matplotlib is installed.
        settings: Changed settings of the trained rows whose methods have them.

    Returns:
        An iterator that measures the next table on the next backbone. An error ends only its
        table.

    Raises:
        UsageError: An unknown table or head.
    """
    from promptcli.plugins.papers.contexts import (
        FiguresCache,
        MeasurementContext,
        existing_folder,
        head_of,
        open_backbone,
    )
    from promptcli.plugins.papers.documents import tables_with_backbones
    from promptcli.plugins.papers.pictures import can_draw

    choice = backbone if isinstance(backbone, ModelChoice) else ModelChoice(backbone)
    if head is not None:
        head = head_of(head, choice.model or choice.backbone)
    pairs = tables_with_backbones(tables, choice.model, choice.backbone, paper=paper, train=train)
    runs: Sequence[int] = ()
    if train:
        runs = (42,) if seeds == 1 else range(seeds)
    folder = existing_folder(data_dir)
    contexts = {
        name: MeasurementContext(
            name,
            partial(open_backbone, dataclasses.replace(choice, model=name)),
            FiguresCache(fresh=force),
            folder,
            texts=texts,
            seeds=runs,
            head=head,
            pictures=Path(output) if can_draw() else None,
            plot=plot,
            paper=paper,
            changes=settings or {},
        )
        for _, name in pairs
    }
    return _measure([(table, contexts[name]) for table, name in pairs], Path(output))


def _measure(
    pairs: "Sequence[tuple[PublishedTable, MeasurementContext]]", folder: Path
) -> Iterator[Reproduction]:
    """Measure each table in its context, and write its result."""
    from promptcli.plugins.papers.documents import measure_table
    from promptcli.plugins.papers.figures import draw_numbers
    from promptcli.plugins.papers.report import write_result

    for table, context in pairs:
        try:
            document = measure_table(table, context)
        except PromptcliError as error:
            yield Reproduction(f"{table.name} on {context.backbone_name}", error=error)
            continue
        if any(row["figures"] for row in document["rows"]):
            file = write_result(folder, document)
            pictures = draw_numbers(folder, document, context.plot)
            yield Reproduction(table.name, document, file, pictures=pictures)
        else:
            yield Reproduction(table.name, document)


def overviews(
    choice: ModelChoice,
    *,
    texts: Texts = Texts(),  # noqa: B008 - frozen
    data_dir: str | Path | None = None,
) -> list[dict[str, Any]]:
    """Return every table's requirements and the number of its values that can be measured on a
    backbone without the network.

    The result is JSON-ready.
    """
    from promptcli.plugins.papers.contexts import (
        MeasurementContext,
        existing_folder,
        open_backbone,
    )
    from promptcli.plugins.papers.documents import overview
    from promptcli.plugins.papers.pictures import can_draw

    with notes.without_network():
        context = MeasurementContext(
            choice.model or choice.backbone,
            partial(open_backbone, choice),
            data_dir=existing_folder(data_dir),
            texts=texts,
            pictures=Path() if can_draw() else None,
        )
        return [overview(table, context) for table in published_tables().values()]
