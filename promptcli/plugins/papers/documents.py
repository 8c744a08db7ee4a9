"""The result document of a table: its rows planned, measured and compared with the paper's."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np

import promptcli
from promptcli.backbones.names import words_only
from promptcli.errors import NotFoundError, PromptcliError
from promptcli.evaluation import statistics
from promptcli.plugins.papers.contexts import PROTOCOL, MeasurementContext
from promptcli.plugins.papers.measures import (
    COLUMNS,
    EXTREMES,
    MEASURE_OF,
    MEASURES,
    Cells,
    data_of,
    over_runs,
)
from promptcli.plugins.papers.published import (
    ANY_MODEL,
    GIVEN_AS,
    NO_MODEL,
    PublishedRow,
    PublishedTable,
    find_tables,
)
from promptcli.plugins.papers.systems import (
    SYSTEMS,
    MeasuredSystem,
    RowKind,
    Systems,
    examples_kind,
    grouped_by_input,
    hash_of,
    recipe_id,
    training_facts,
)
from promptcli.storage.cache import library_versions


@dataclass
class PlannedRow:
    """One row of a table, its obstacles and its measured values."""

    row: PublishedRow
    not_measured: dict[str, str]  #: column that cannot be measured -> why
    system: MeasuredSystem | None = None  #: once it is built
    cells: Cells = field(default_factory=dict)

    @property
    def kind(self) -> RowKind:
        return SYSTEMS[self.row.kind]


def plan_table(table: PublishedTable, context: MeasurementContext) -> list[PlannedRow]:
    """Return the rows with the obstacles of each column.

    A published backbone is measured on its own rows only.
    """
    columns: dict[str, str] = {}
    for column in table.columns:
        reason = _reason_of_column(column, context)
        if reason is not None:
            columns[column] = reason
    planned = []
    for row in table.rows:
        reason = _reason_of_row(row, table, context)
        if reason is None:
            planned.append(PlannedRow(row, dict(columns)))
        else:
            planned.append(PlannedRow(row, dict.fromkeys(table.columns, reason)))
    return planned


def wanted_tables(
    names: str | Sequence[str], backbone: str | None, default: str, *, paper: bool, train: bool
) -> list[tuple[PublishedTable, str]]:
    """Return tables with their backbones: the one given, the published ones, or the default.

    The published ones are taken with ``paper``, unless a backbone is given.
    """
    tables = find_tables(names)
    if backbone is not None or not paper:
        return [(table, backbone or default) for table in tables]
    pairs = []
    for table in tables:
        published: list[str] = []
        for row in table.rows:
            measured = SYSTEMS[row.kind].on_backbone(train=train)
            if measured and row.backbone not in (NO_MODEL, ANY_MODEL, *published):
                published.append(row.backbone)
        pairs += [(table, name) for name in published or [default]]
    return pairs


def _reason_of_row(
    row: PublishedRow, table: PublishedTable, context: MeasurementContext
) -> str | None:
    """Return why no column of a row can be measured, if so."""
    kind = SYSTEMS[row.kind]
    if kind.make is None or (kind.trains and not context.seeds):
        return kind.absent.format(row.argument)
    if kind.backbone == "none":
        return kind.missing_reason(row, context)
    own = context.is_on(row.backbone)
    on_published = any(context.is_on(name) for name in table.backbones)
    if kind.backbone == "words":
        takes = words_only(context.backbone_name)
    elif words_only(context.backbone_name):
        takes = row.backbone == ANY_MODEL and row.argument == "static-avg"
    else:
        takes = own or not (on_published or kind.backbone == "own")
    if not takes:
        needed = row.backbone
        if needed == ANY_MODEL:
            return "needs the layers of a language model"
        if needed in GIVEN_AS:
            needed = f"{GIVEN_AS[needed]}FILE"
        return f"needs backbone {needed}"
    try:
        _ = context.backbone
        return kind.missing_reason(row, context)
    except NotFoundError:
        return f"no weights here: {context.backbone_name}"
    except PromptcliError as error:
        return str(error)


def _reason_of_column(column: str, context: MeasurementContext) -> str | None:
    """Return why a column cannot be measured for any row, if so."""
    if column in EXTREMES and len(context.seeds) < 2:
        return "several runs: ask for them by train and seeds"
    measure = MEASURE_OF[column]
    if MEASURES[measure].run is None:
        return "no figure"
    try:
        data = data_of(measure, context)
    except PromptcliError as error:
        return str(error)
    if data.missing and not data.facts:
        return f"no data: {', '.join(data.missing)}"
    if column in data.missing:
        return f"no data: {column}"
    return None


def overview(table: PublishedTable, context: MeasurementContext) -> dict[str, Any]:
    """Return a table's needs and how many values can be measured in a context, JSON-ready.

    Nothing is measured.
    """
    reasons: list[str] = []
    for planned in plan_table(table, context):
        reasons += planned.not_measured.values()
    values = len(table.rows) * len(table.columns)
    data = dict.fromkeys(MEASURES[MEASURE_OF[column]].takes for column in table.columns)
    times = dict.fromkeys(SYSTEMS[row.kind].time for row in table.rows)
    return {
        "table": table.name,
        "title": table.title,
        "rows": len(table.rows),
        "figures": values,
        "now": values - len(reasons),
        "backbones": table.backbones,
        "data": [name for name in data if name],
        "time": [time for time in times if time != "-"],
        "lacks": grouped(reasons),
    }


def grouped(reasons: Iterable[str]) -> dict[str, int]:
    """Return reasons with their counts.

    ``REASON: one`` and ``REASON: two`` become ``REASON: one, two``.
    """
    details: dict[str, list[str]] = {}
    for reason in reasons:
        start, _, detail = reason.partition(": ")
        details.setdefault(start, []).append(detail)
    counts = {}
    for start, all_details in details.items():
        different = ", ".join(dict.fromkeys(filter(None, all_details)))
        text = f"{start}: {different}" if different else start
        counts[text] = len(all_details)
    return counts


#: Keys of a system's identity that name its training and fitting text.
_TEXTS = {"corpus", "triplets", "examples"}


def measure_table(table: PublishedTable, context: MeasurementContext) -> dict[str, Any]:
    """Return the result document, JSON-ready.

    Every row has its published and measured values, or why it is not measured.
    """
    rows = plan_table(table, context)
    _build_systems(rows, table, context)
    data, missing = _measure_rows(rows, table, context)
    trains = bool(context.seeds)
    on_backbone = any(row.kind.on_backbone(train=trains) for row in rows)
    trained = [row for row in rows if row.kind.trains and row.cells]
    seeds: dict[str, Any] = {"bootstrap": statistics.BOOTSTRAP_SEED}
    if trained:
        seeds["training"] = list(context.seeds)
    tasks_of_means = _tasks_of_means(table, data)
    return {
        "promptcli": promptcli.__version__,
        "versions": library_versions(),
        "table": table.name,
        "title": table.title,
        "columns": list(table.columns),
        "backbone": context.backbone_facts if on_backbone else None,
        "protocol": PROTOCOL,
        "seeds": seeds,
        "resamples": statistics.RESAMPLES,
        "data": data,
        "missing": list(missing),
        **_texts(rows, trained, context),
        "rows": [_row(row, context, tasks_of_means) for row in rows],
    }


def _build_systems(
    rows: Sequence[PlannedRow], table: PublishedTable, context: MeasurementContext
) -> None:
    """Give a system to each row that has a column to measure, or the reason why that fails."""
    for row in rows:
        if row.kind.make is None or len(row.not_measured) == len(table.columns):
            continue
        try:
            row.system = row.kind.make(row.row, context)
        except PromptcliError as error:
            row.not_measured.update(dict.fromkeys(table.columns, str(error)))


def _measure_rows(
    rows: Sequence[PlannedRow], table: PublishedTable, context: MeasurementContext
) -> tuple[dict[str, Any], dict[str, str]]:
    """Fill the rows' cells, measure by measure; return facts of the data and the missing data."""
    data: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for measure in dict.fromkeys(MEASURE_OF[column] for column in table.columns):
        columns = {column for column in table.columns if MEASURE_OF[column] == measure}
        measured = [row for row in rows if row.system and columns - row.not_measured.keys()]
        if not measured:
            continue
        loaded = data_of(measure, context)
        data |= loaded.facts
        missing |= loaded.missing
        runs: list[MeasuredSystem] = []
        for row in measured:
            assert row.system is not None
            runs += row.system.runs
        cells_of_runs = iter(_measure(measure, runs, context))
        for row in measured:
            assert row.system is not None
            row.cells |= over_runs([next(cells_of_runs) for _ in row.system.runs])
    return data, missing


def _measure(name: str, systems: Systems, context: MeasurementContext) -> list[Cells]:
    """Return each system's cells.

    Equal systems are measured once, and known cells come from the cache.
    """
    measure = MEASURES[name]
    data = data_of(name, context)
    assert measure.run is not None
    keys = [{"measure": name, **system.identity, "data": data.facts} for system in systems]
    hashes = [hash_of(key) for key in keys]
    known: dict[str, Cells] = {}
    unknown: dict[str, MeasuredSystem] = {}
    for digest, key, system in zip(hashes, keys, systems, strict=True):
        if digest in known or digest in unknown:
            continue
        cached = None
        if measure.cached:
            cached = context.cache.get(key)
        if cached is None:
            unknown[digest] = system
        else:
            known[digest] = cached
    for members in grouped_by_input(unknown.values()):
        for system, cells in zip(members, measure.run(members, data, context), strict=True):
            number = systems.index(system)
            kept = {column: value for column, value in cells.items() if column in measure.columns}
            known[hashes[number]] = kept
            if measure.cached:
                context.cache.put(keys[number], kept)
    return [known[digest] for digest in hashes]


def _tasks_of_means(table: PublishedTable, data: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return each column that is an average with its tasks that have data."""
    tasks = {}
    for column in table.columns:
        averaged = COLUMNS[column].mean_of
        if averaged:
            tasks[column] = [name for name in averaged if name in data]
    return tasks


def _texts(
    rows: Sequence[PlannedRow], trained: Sequence[PlannedRow], context: MeasurementContext
) -> dict[str, Any]:
    """Return the facts of all text that something was fitted, trained or counted on."""
    used = {examples_kind(planned.row, context) for planned in trained}
    for planned in rows:
        if planned.system is not None:
            used |= _TEXTS & planned.system.identity.keys()
        if any("corpus" in cell["on"] for cell in planned.cells.values()):
            used.add("corpus")
    facts: dict[str, Any] = {
        "corpus": context.corpus_facts if "corpus" in used else None,
        "triplets": None,
    }
    for kind in ("triplets", "labelled", "definitions"):
        if kind in used:
            facts[kind] = context.example_facts(kind)
    return facts


def _row(
    planned: PlannedRow, context: MeasurementContext, tasks_of_means: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Return one row of the document."""
    row = planned.row
    on_none = planned.kind.make is not None and planned.kind.backbone == "none"
    own = on_none or context.is_on(row.backbone)
    published = {
        "backbone": row.backbone,
        "own": own,
        "figures": dict(row.published),
        "std": dict(row.std),
    }
    published_means: dict[str, float | None] = {}
    other_tasks: dict[str, int] = {}
    for column, tasks in tasks_of_means.items():
        mean = _published_mean(row, column, tasks)
        published_means[column] = mean
        count = len(COLUMNS[column].mean_of)
        if mean is not None:
            published["average_of_same_tasks"] = mean
        elif column in row.published and 0 < len(tasks) < count:
            other_tasks[column] = count
    if other_tasks:
        published["other_tasks"] = other_tasks
    differences: dict[str, float] = {}
    if own:
        differences = _differences(row, planned.cells, published_means)
    return {
        "method": row.method,
        "setting": row.setting,
        "run": row.run,
        "note": row.note,
        **_system_facts(planned.system, context),
        "published": published,
        "figures": _with_tasks(planned.cells),
        "difference": differences,
        "not_measured": planned.not_measured,
    }


def _with_tasks(cells: Cells) -> Cells:
    """Return cells in which each average has the number of its tasks."""
    counted = {}
    for column, found in cells.items():
        if COLUMNS[column].mean_of:
            counted[column] = {**found, "tasks": len(found["on"])}
        else:
            counted[column] = found
    return counted


def _system_facts(system: MeasuredSystem | None, context: MeasurementContext) -> dict[str, Any]:
    """Return a system's recipe, the text it was fitted on, and its attention head."""
    facts: dict[str, Any] = {
        "recipe_id": None,
        "recipe": None,
        "fitted": False,
        "fitted_on": None,
        "head": None,
        "training": None,
    }
    if system is None:
        return facts
    facts["fitted"] = bool(_TEXTS & system.identity.keys())
    facts["training"] = training_facts(system)
    facts["fitted_on"] = _fitted_on(system, context)
    if system.recipe is not None:
        facts["recipe_id"] = recipe_id(system)
        facts["recipe"] = {**system.recipe.to_dict(), "backbone": None}
        head = system.recipe.parts.pooling.head
        facts["head"] = None if head is None else str(head)
    return facts


def _fitted_on(system: MeasuredSystem, context: MeasurementContext) -> str | None:
    """Return the name of the text that a system was fitted or trained on."""
    if "corpus" in system.identity:
        return str(context.corpus_facts["name"])
    if "triplets" in system.identity:
        return str(context.example_facts("triplets")["name"])
    if "examples" in system.identity:
        return str(context.example_facts(examples_kind(system.row, context))["name"])
    return None


def _published_mean(row: PublishedRow, column: str, tasks: Sequence[str]) -> float | None:
    """Return the published average of the tasks with data.

    It is None if these are all tasks of the column, or if one of their values is unknown.
    """
    if not 0 < len(tasks) < len(COLUMNS[column].mean_of):
        return None
    values = []
    for task in tasks:
        value = row.published.get(task)
        if not _is_number(value):
            return None
        values.append(value)
    return round(float(np.mean(values)), 2)


def _differences(
    row: PublishedRow, cells: Cells, published_means: Mapping[str, float | None]
) -> dict[str, float]:
    """Return measured minus published.

    An average over fewer tasks is compared with the same tasks' or not at all.
    """
    differences: dict[str, float] = {}
    for column, published in row.published.items():
        if column not in cells:
            continue
        measured = cells[column]["value"]
        against: object = published
        if len(cells[column]["on"]) < len(COLUMNS[column].mean_of):
            against = published_means[column]
        if _is_number(measured) and _is_number(against):
            differences[column] = round(float(measured) - float(against), 6)
    return differences


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
