"""Which cells of a table can be measured in a context, and why the others cannot."""

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
    """One row of a table, its obstacles and its figures."""

    row: PublishedRow
    lacks: dict[str, str]  #: column that cannot be measured -> why
    system: MeasuredSystem | None = None  #: once it is built
    figures: Figures = field(default_factory=dict)

    @property
    def kind(self) -> RowKind:
        """How its system is built."""
        return SYSTEMS[self.row.kind]


def plan_table(table: PublishedTable, context: MeasurementContext) -> list[PlannedRow]:
    """Return the rows with the obstacles of each column; data sets may be read.

    On a published backbone only its own rows are measured; on any other every row is.
    """
    columns = {column: why for column in table.columns if (why := _lacks_measure(column, context)) is not None}
    planned = []
    for row in table.rows:
        reason = _lacks_row(row, table, context)
        planned.append(PlannedRow(row, dict(columns) if reason is None else dict.fromkeys(table.columns, reason)))
    return planned


def needs_backbone(table: PublishedTable, *, train: bool) -> bool:
    """Return whether any row of a table, with ``train`` also a trained one, is measured on a backbone."""
    return any(SYSTEMS[row.kind].on_backbone(train=train) for row in table.rows)


def wanted_tables(
    names: Sequence[str], backbone: str | None, default: str, *, paper: bool, train: bool
) -> list[tuple[PublishedTable, str]]:
    """Return tables with their backbones: the given one, with ``paper`` the published ones, else the default."""
    tables = find_tables(names)
    if backbone is not None or not paper:
        return [(table, backbone or default) for table in tables]
    pairs = []
    for table in tables:
        rows = (row for row in table.rows if row.backbone != NO_MODEL and SYSTEMS[row.kind].on_backbone(train=train))
        pairs += [(table, name) for name in dict.fromkeys(row.backbone for row in rows) or [default]]
    return pairs


def table_sentences(tables: Sequence[PublishedTable], context: MeasurementContext) -> list[str]:
    """Return the distinct sentences of the tables' tasks that have data."""
    measures = dict.fromkeys(MEASURE_OF[column] for table in tables for column in table.columns)
    tasks = [task for measure in measures if measure in _OF_TASKS for task in data_of(measure, context).content or ()]
    if not tasks:
        raise NotFoundError(f"no task of {', '.join(table.name for table in tables)} has data; give `data_dir` FOLDER")
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
    """The needs of a table and the number of figures that can be measured in a context; JSON-ready by ``vars``."""

    table: str
    title: str
    rows: int
    figures: int  #: published
    now: int  #: of them, measurable here
    backbones: list[str]  #: of the published figures
    data: list[str]  #: data sets of its columns
    time: list[str]  #: of a row, once data and weights are local
    lacks: dict[str, int]  #: reason -> number of figures that it prevents


def overview(table: PublishedTable, context: MeasurementContext) -> TableOverview:
    """Return the overview of a table; nothing is measured."""
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
    """Return reasons with their counts; ``REASON: one`` and ``REASON: two`` become ``REASON: one, two``."""
    details: dict[str, list[str]] = {}
    for reason in reasons:
        start, _, what = reason.partition(": ")
        details.setdefault(start, []).append(what)
    named = {start: ", ".join(dict.fromkeys(filter(None, names))) for start, names in details.items()}
    return {f"{start}: {names}" if names else start: len(details[start]) for start, names in named.items()}
