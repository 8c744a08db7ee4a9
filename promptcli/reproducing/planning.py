"""What of a table can be measured in a context, cell by cell, and why the rest cannot. Measures nothing."""

from collections.abc import Iterable
from dataclasses import dataclass

from promptcli.errors import NotFoundError, PromptcliError
from promptcli.reproducing.context import MeasurementContext
from promptcli.reproducing.figures import EXTREMES
from promptcli.reproducing.measures import MEASURE_OF, MEASURES
from promptcli.reproducing.published import NO_MODEL, PublishedRow, PublishedTable, same_backbone
from promptcli.reproducing.systems import SYSTEMS

#: What has no name of a model in the papers, and how it is given.
_GIVEN_AS = {"GloVe": "glove:FILE"}


@dataclass(frozen=True)
class PlannedRow:
    """One row of a table and what stands in its way.

    Attributes:
        row: The published row.
        lacks: Column -> why it cannot be measured; the others can.
    """

    row: PublishedRow
    lacks: dict[str, str]


def plan_table(table: PublishedTable, context: MeasurementContext) -> list[PlannedRow]:
    """Return the rows with what stands in the way of each column.

    On a published backbone only its own rows are measured; on another one every row is, as another model's.

    Args:
        table: The published table.
        context: Backbone and data; data sets may be read, figures are not measured.
    """
    columns = {column: _lacks_measure(column, context) for column in table.columns}
    steps = []
    for row in table.rows:
        reason = _lacks_row(row, table, context)
        if reason is not None:
            steps.append(PlannedRow(row, dict.fromkeys(table.columns, reason)))
        else:
            steps.append(PlannedRow(row, {column: why for column, why in columns.items() if why is not None}))
    return steps


def needs_backbone(table: PublishedTable, *, train: bool) -> bool:
    """Return whether any row of a table is measured on a backbone, trained ones where ``train`` says so."""
    return any(SYSTEMS[row.kind].on_backbone(train=train) for row in table.rows)


def _lacks_row(row: PublishedRow, table: PublishedTable, context: MeasurementContext) -> str | None:
    kind = SYSTEMS[row.kind]
    if kind.make is None or (kind.trains and not context.seeds):
        return kind.absent.format(row.argument)
    if kind.backbone == "none":
        return None
    own = same_backbone(row.backbone, context.backbone_name)
    on_published = any(same_backbone(name, context.backbone_name) for name in table.backbones)
    if not own and (on_published or kind.backbone == "own"):
        return f"needs --backbone: {_GIVEN_AS.get(row.backbone, row.backbone)}"
    try:
        _ = context.backbone
        return kind.lacks(row, context)
    except NotFoundError:
        return f"no weights here: {context.backbone_name}"
    except PromptcliError as error:
        return str(error)


def _lacks_measure(column: str, context: MeasurementContext) -> str | None:
    measure = MEASURES[MEASURE_OF[column]]
    if column in EXTREMES and len(context.seeds) < 2:
        return "several runs: ask for them by --train --seeds N"
    if measure.run is None:
        return measure.absent or "no figure"
    try:
        sources = measure.load(context)
    except PromptcliError as error:
        return str(error)
    if sources.data or not sources.missing:
        return None if column not in sources.missing else f"no data: {column}"
    return f"no data: {', '.join(sources.missing)}"


def own_backbones(table: PublishedTable, *, train: bool) -> list[str]:
    """Return the backbones that rows of a table were published on and can be measured on."""
    kinds = ((row.backbone, SYSTEMS[row.kind]) for row in table.rows if row.backbone != NO_MODEL)
    return list(dict.fromkeys(name for name, kind in kinds if kind.on_backbone(train=train)))


@dataclass(frozen=True)
class TableOverview:
    """What one table needs and how much of it can be measured in a context; JSON-ready by ``vars``.

    Attributes:
        table: Its name.
        title: What it shows.
        rows: How many it has.
        figures: Published ones.
        now: Those that can be measured here.
        backbones: What it was published on.
        data: What its columns are measured on.
        time: How long a row takes, with data and weights there.
        lacks: Why the other figures cannot be measured, each reason once with the number of figures.
    """

    table: str
    title: str
    rows: int
    figures: int
    now: int
    backbones: list[str]
    data: list[str]
    time: list[str]
    lacks: dict[str, int]


def grouped(reasons: Iterable[str]) -> dict[str, int]:
    """Return reasons with how often each was given; ``REASON: one`` and ``REASON: two`` become ``REASON: one, two``."""
    about: dict[str, list[str]] = {}
    for reason in reasons:
        start, _, what = reason.partition(": ")
        about.setdefault(start, []).append(what)
    named = {start: ", ".join(dict.fromkeys(filter(None, names))) for start, names in about.items()}
    return {f"{start}: {names}" if names else start: len(about[start]) for start, names in named.items()}


def overview(table: PublishedTable, context: MeasurementContext) -> TableOverview:
    """Return what a table needs and what of it can be measured in a context; nothing is measured."""
    steps = plan_table(table, context)
    lacks = grouped(reason for step in steps for reason in step.lacks.values())
    figures = len(table.rows) * len(table.columns)
    measures = [MEASURES[MEASURE_OF[column]].data for column in table.columns]
    return TableOverview(
        table=table.name,
        title=table.title,
        rows=len(table.rows),
        figures=figures,
        now=figures - sum(lacks.values()),
        backbones=table.backbones,
        data=[data for data in dict.fromkeys(measures) if data],
        time=list(dict.fromkeys(SYSTEMS[row.kind].time for row in table.rows if SYSTEMS[row.kind].time != "-")),
        lacks=lacks,
    )
