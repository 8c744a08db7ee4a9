"""Measuring a table in a context: which cells can be measured and why others cannot, and the result document."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import promptcli
from promptcli.errors import NotFoundError, PromptcliError
from promptcli.evaluation import statistics
from promptcli.evaluation.evaluator import distinct_sentences
from promptcli.reproducing.measurement_context import PROTOCOL, MeasurementContext, hash_of
from promptcli.reproducing.measures import EXTREMES, MEASURE_OF, MEASURES, Figures, column_named, data_of, over_runs
from promptcli.reproducing.published import GIVEN_AS, NO_MODEL, PublishedRow, PublishedTable, find_tables, same_backbone
from promptcli.reproducing.systems import SYSTEMS, MeasuredSystem, RowKind, examples_kind, grouped_by_input, recipe_id

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


#: Keys of a system's identity that name its training and fitting text.
_TEXTS = {"corpus", "triplets", "examples"}


def measure_table(table: PublishedTable, context: MeasurementContext) -> dict[str, Any]:
    """Return the result document, JSON-ready: every row's published and measured figures, or why it is not measured."""
    rows = plan_table(table, context)
    on_backbone = any(planned.kind.on_backbone(train=bool(context.seeds)) for planned in rows)
    for row in rows:
        if row.kind.make is not None and len(row.lacks) < len(table.columns):
            try:
                row.system = row.kind.make(row.row, context)
            except PromptcliError as error:
                row.lacks.update(dict.fromkeys(table.columns, str(error)))
    data: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for measure in dict.fromkeys(MEASURE_OF[column] for column in table.columns):
        columns = [column for column in table.columns if MEASURE_OF[column] == measure]
        able = [(row, row.system) for row in rows if row.system and any(name not in row.lacks for name in columns)]
        if able:
            data |= data_of(measure, context).facts
            missing |= data_of(measure, context).missing
            figures = iter(_measure(measure, [run for _, system in able for run in system.runs], context))
            for row, system in able:
                row.figures |= over_runs([next(figures) for _ in system.runs])
    means = {column: column_named(column).mean_of for column in table.columns if column_named(column).mean_of}
    present = {column: [name for name in names if name in data] for column, names in means.items()}
    trained = [row for row in rows if row.kind.trains and row.figures]
    return {
        "promptcli": promptcli.__version__,
        "table": table.name,
        "title": table.title,
        "columns": list(table.columns),
        "backbone": context.backbone_facts if on_backbone else None,
        "protocol": PROTOCOL,
        "seeds": {"bootstrap": statistics.SEED, **({"training": list(context.seeds)} if trained else {})},
        "resamples": statistics.RESAMPLES,
        "data": data,
        "missing": list(missing),
        **_texts(rows, trained, context),
        "rows": [_row(row, context, present) for row in rows],
    }


def _measure(name: str, systems: Sequence[MeasuredSystem], context: MeasurementContext) -> list[Figures]:
    """Return each system's figures; equal systems are measured once, known figures come from the cache."""
    measure, data = MEASURES[name], data_of(name, context)
    assert measure.run is not None
    keys = [{"measure": name, **system.identity, "data": data.facts} for system in systems]
    hashes = [hash_of(key) for key in keys]
    known: dict[str, Figures] = {}
    todo: dict[str, int] = {}
    for number, (key, digest) in enumerate(zip(keys, hashes, strict=True)):
        cached = context.cache.get(key) if measure.cached else None
        if cached is None:
            todo.setdefault(digest, number)
        else:
            known[digest] = cached
    for members in grouped_by_input([systems[number] for number in todo.values()]):
        for system, figures in zip(members, measure.run(members, data, context), strict=True):
            number = systems.index(system)
            known[hashes[number]] = {column: figures[column] for column in figures if column in measure.columns}
            if measure.cached:
                context.cache.put(keys[number], known[hashes[number]])
    return [known[digest] for digest in hashes]


def _texts(rows: Sequence[PlannedRow], trained: Sequence[PlannedRow], context: MeasurementContext) -> dict[str, Any]:
    """Return the facts of the corpus and of all examples that something was fitted, trained or counted on."""
    kinds = {examples_kind(planned.row, context) for planned in trained}
    fitted = {text for row in rows if row.system is not None for text in _TEXTS & row.system.identity.keys()}
    counted = any("corpus" in figure["on"] for row in rows for figure in row.figures.values())
    return {
        "corpus": context.corpus_facts if "corpus" in fitted | kinds or counted else None,
        "triplets": context.example_facts("triplets") if "triplets" in fitted | kinds else None,
        **{kind: context.example_facts(kind) for kind in ("labelled", "definitions") if kind in kinds},
    }


def _row(planned: PlannedRow, context: MeasurementContext, present: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return one row of the document; ``present``: column of an average -> its tasks with data."""
    row, system = planned.row, planned.system
    on_none = planned.kind.make is not None and planned.kind.backbone == "none"
    own = on_none or same_backbone(row.backbone, context.backbone_name)
    published = {"backbone": row.backbone, "own": own, "figures": dict(row.published), "std": dict(row.std)}
    same = {column: _same_tasks(row, column, names) for column, names in present.items()}
    for mean in (mean for mean in same.values() if mean is not None):
        published["average_of_same_tasks"] = mean
    recipe = None if system is None or system.recipe is None else system
    return {
        "method": row.method,
        "setting": row.setting,
        "run": row.run,
        "note": row.note,
        "recipe_id": None if recipe is None else recipe_id(recipe),
        "recipe": None if recipe is None or recipe.recipe is None else {**recipe.recipe.to_dict(), "backbone": None},
        "fitted": system is not None and bool(_TEXTS & system.identity.keys()),
        "published": published,
        "figures": planned.figures,
        "difference": _differences(row, planned.figures, same) if own else {},
        "not_measured": planned.lacks,
    }


def _same_tasks(row: PublishedRow, column: str, present: Sequence[str]) -> float | None:
    """Return the published average of the tasks with data, unless these are all or a figure is unknown."""
    values = [float(value) for task in present if isinstance(value := row.published.get(task), (int, float))]
    if not present or len(present) == len(column_named(column).mean_of) or len(values) < len(present):
        return None
    return round(float(np.mean(values)), 2)


def _differences(row: PublishedRow, figures: Figures, same_tasks: Mapping[str, float | None]) -> dict[str, float]:
    """Return measured minus published; an average over fewer tasks is compared with the same tasks' or not at all."""
    result: dict[str, float] = {}
    for column, published in row.published.items():
        if column in figures:
            fewer = len(figures[column]["on"]) < len(column_named(column).mean_of)
            value, against = figures[column]["value"], same_tasks[column] if fewer else published
            if _is_number(value) and _is_number(against):
                result[column] = round(float(value) - float(against), 6)  # type: ignore[arg-type]
    return result


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
