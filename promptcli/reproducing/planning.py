"""What of a table can be measured in a context, cell by cell, and why the rest cannot. Measures nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from promptcli.errors import NotFoundError, PromptcliError
from promptcli.evaluation.evaluator import distinct_sentences
from promptcli.reproducing.measurement_context import MeasurementContext
from promptcli.reproducing.measures import EXTREMES, MEASURE_OF, MEASURES, Figures, data_of
from promptcli.reproducing.published import GIVEN_AS, NO_MODEL, PublishedRow, PublishedTable, find_tables, same_backbone
from promptcli.reproducing.systems import SYSTEMS, MeasuredSystem, RowKind

#: Measures whose data are tasks.
_OF_TASKS = ("sts", "development", "transfer")


@dataclass
class PlannedRow:
    """One row of a table, what stands in its way, and what was measured of it."""

    row: PublishedRow
    lacks: dict[str, str]  #: column -> why it cannot be measured; the others can
    system: MeasuredSystem | None = None  #: what it is measured on, once that is made
    figures: Figures = field(default_factory=dict)

    @property
    def kind(self) -> RowKind:
        """How its system is made."""
        return SYSTEMS[self.row.kind]


def plan_table(table: PublishedTable, context: MeasurementContext) -> list[PlannedRow]:
    """Return the rows with what stands in the way of each column.

    On a published backbone only its own rows are measured; on another one every row is, as another model's. Data sets
    may be read, figures are not measured.
    """
    columns = {column: why for column in table.columns if (why := _lacks_measure(column, context)) is not None}
    planned = []
    for row in table.rows:
        reason = _lacks_row(row, table, context)
        planned.append(PlannedRow(row, dict(columns) if reason is None else dict.fromkeys(table.columns, reason)))
    return planned


def needs_backbone(table: PublishedTable, *, train: bool) -> bool:
    """Return whether any row of a table is measured on a backbone, trained ones where ``train`` says so."""
    return any(SYSTEMS[row.kind].on_backbone(train=train) for row in table.rows)


def own_backbones(table: PublishedTable, *, train: bool) -> list[str]:
    """Return the backbones that rows of a table were published on and can be measured on."""
    kinds = ((row.backbone, SYSTEMS[row.kind]) for row in table.rows if row.backbone != NO_MODEL)
    return list(dict.fromkeys(name for name, kind in kinds if kind.on_backbone(train=train)))


def wanted_tables(
    names: Sequence[str], backbone: str | None, default: str, *, paper: bool, train: bool
) -> list[tuple[PublishedTable, str]]:
    """Return the tables that are named, each with what it is measured on.

    Args:
        names: See ``find_tables``.
        backbone: The one that was given, or None.
        default: Where none was.
        paper: Each table on every backbone that its rows were published for, unless one was given.
        train: Rows that are trained count as well.
    """
    tables = find_tables(names)
    if backbone is not None or not paper:
        return [(table, backbone or default) for table in tables]
    return [(table, name) for table in tables for name in own_backbones(table, train=train) or [default]]


def table_sentences(tables: Sequence[PublishedTable], context: MeasurementContext) -> list[str]:
    """Return the distinct sentences of the tasks that are columns of tables, as far as the tasks are there."""
    measures = dict.fromkeys(MEASURE_OF[column] for table in tables for column in table.columns)
    tasks = [task for measure in measures if measure in _OF_TASKS for task in data_of(measure, context).content or ()]
    if not tasks:
        raise NotFoundError(f"no task of {', '.join(table.name for table in tables)} is there; give `data_dir` FOLDER")
    return distinct_sentences(tasks)


def _lacks_row(row: PublishedRow, table: PublishedTable, context: MeasurementContext) -> str | None:
    kind = SYSTEMS[row.kind]
    if kind.make is None or (kind.trains and not context.seeds):
        return kind.absent.format(row.argument)
    if kind.backbone == "none":
        return kind.lacks(row, context)
    own = same_backbone(row.backbone, context.backbone_name)
    on_published = any(same_backbone(name, context.backbone_name) for name in table.backbones)
    if not own and (on_published or kind.backbone == "own"):
        given_as = f"{GIVEN_AS[row.backbone]}FILE" if row.backbone in GIVEN_AS else row.backbone
        return f"needs backbone {given_as}"
    try:
        _ = context.backbone
        return kind.lacks(row, context)
    except NotFoundError:
        return f"no weights here: {context.backbone_name}"
    except PromptcliError as error:
        return str(error)


def _lacks_measure(column: str, context: MeasurementContext) -> str | None:
    if column in EXTREMES and len(context.seeds) < 2:
        return "several runs: ask for them by `train` and `seeds`"
    measure = MEASURE_OF[column]
    if MEASURES[measure].run is None:
        return "no figure"
    try:
        data = data_of(measure, context)
    except PromptcliError as error:
        return str(error)
    if data.facts or not data.missing:
        return None if column not in data.missing else f"no data: {column}"
    return f"no data: {', '.join(data.missing)}"


@dataclass(frozen=True)
class TableOverview:
    """What one table needs and how much of it can be measured in a context; JSON-ready by ``vars``."""

    table: str
    title: str
    rows: int
    figures: int  #: published ones
    now: int  #: those that can be measured here
    backbones: list[str]  #: what it was published on
    data: list[str]  #: what its columns are measured on
    time: list[str]  #: how long a row takes, with data and weights there
    lacks: dict[str, int]  #: why the other figures cannot be measured, each reason once with the number of figures


def overview(table: PublishedTable, context: MeasurementContext) -> TableOverview:
    """Return what a table needs and what of it can be measured in a context; nothing is measured."""
    lacks = grouped(reason for planned in plan_table(table, context) for reason in planned.lacks.values())
    figures = len(table.rows) * len(table.columns)
    return TableOverview(
        table=table.name,
        title=table.title,
        rows=len(table.rows),
        figures=figures,
        now=figures - sum(lacks.values()),
        backbones=table.backbones,
        data=list(filter(None, dict.fromkeys(MEASURES[MEASURE_OF[column]].takes for column in table.columns))),
        time=[time for time in dict.fromkeys(SYSTEMS[row.kind].time for row in table.rows) if time != "-"],
        lacks=lacks,
    )


def grouped(reasons: Iterable[str]) -> dict[str, int]:
    """Return reasons with how often each was given; ``REASON: one`` and ``REASON: two`` become ``REASON: one, two``."""
    about: dict[str, list[str]] = {}
    for reason in reasons:
        start, _, what = reason.partition(": ")
        about.setdefault(start, []).append(what)
    named = {start: ", ".join(dict.fromkeys(filter(None, names))) for start, names in about.items()}
    return {f"{start}: {names}" if names else start: len(about[start]) for start, names in named.items()}
