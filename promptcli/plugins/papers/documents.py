"""The result document of a table: its rows planned, measured and compared with the paper's."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np

import promptcli
from promptcli.backbones.model_folder import words_only
from promptcli.errors import PromptcliError, UsageError
from promptcli.evaluation import statistics
from promptcli.plugins.papers.contexts import EXAMPLES, PROTOCOL, MeasureData, MeasurementContext
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
    Facts,
    PublishedRow,
    PublishedTable,
    find_tables,
)
from promptcli.plugins.papers.systems import (
    SYSTEMS,
    MeasuredSystem,
    RowKind,
    grouped_by_input,
    recipe_id,
)
from promptcli.storage.cache import library_versions


@dataclass(eq=False)
class PlannedRow:
    """One row of a table, its obstacles and its measured values."""

    row: PublishedRow
    not_measured: dict[str, str]  #: unmeasurable column -> reason
    system: MeasuredSystem | None
    cells: Cells = field(default_factory=dict)

    @property
    def kind(self) -> RowKind:
        return SYSTEMS[self.row.kind]


def plan_table(
    table: PublishedTable, context: MeasurementContext, *, search: bool = True
) -> list[PlannedRow]:
    """Return the rows with their systems, or the obstacles of each column.

    A published backbone is measured only on its own rows. Without ``search`` no head is searched
    for: rows that need one have no system.
    """
    reasons = {column: _reason_of_column(column, context) for column in table.columns}
    obstacles = {column: reason for column, reason in reasons.items() if reason}
    planned = []
    for row in table.rows:
        kind = SYSTEMS[row.kind]
        system = None
        not_measured = obstacles
        try:
            _check_row(row, table, context)
            is_built = len(obstacles) < len(table.columns) and (search or not kind.searches)
            if kind.make is not None and is_built:
                system = kind.make(row, context)
        except PromptcliError as error:
            not_measured = dict.fromkeys(table.columns, str(error))
        planned.append(PlannedRow(row, not_measured, system))
    return planned


def wanted_tables(
    wanted: str | Sequence[str], backbone: str | None, default: str, *, paper: bool, train: bool
) -> list[tuple[PublishedTable, str]]:
    """Return tables with their backbones: the given one, the published ones, or the default.

    With ``paper`` they are the published ones, unless a backbone is given.
    """
    tables = find_tables(wanted)
    if backbone is not None or not paper:
        return [(table, backbone or default) for table in tables]
    pairs = []
    for table in tables:
        measured = [row for row in table.rows if SYSTEMS[row.kind].is_measured(train=train)]
        published = dict.fromkeys(row.backbone for row in measured)
        names = [name for name in published if name not in (NO_MODEL, ANY_MODEL)]
        pairs += [(table, name) for name in names or [default]]
    return pairs


def _check_row(row: PublishedRow, table: PublishedTable, context: MeasurementContext) -> None:
    """Refuse a row without any measurable column."""
    kind = SYSTEMS[row.kind]
    if not kind.is_measured(train=bool(context.seeds)):
        raise UsageError(kind.why_not_measured.format(row.argument))
    if kind.backbone == "words":
        takes = words_only(context.backbone_name)
    elif words_only(context.backbone_name):
        takes = row.backbone == ANY_MODEL and row.argument == "static-avg"
    else:
        on_published = any(context.is_on(name) for name in table.backbones)
        takes = context.is_on(row.backbone) or not (on_published or kind.backbone == "own")
    if not takes and row.backbone == ANY_MODEL:
        raise UsageError("needs the layers of a language model")
    if not takes:
        prefix = GIVEN_AS.get(row.backbone)
        raise UsageError(f"needs backbone {f'{prefix}FILE' if prefix else row.backbone}")
    _ = context.backbone  # it can be opened


def _reason_of_column(column: str, context: MeasurementContext) -> str | None:
    """Return the reason if no row's value of a column can be measured."""
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


def overview(table: PublishedTable, context: MeasurementContext) -> Facts:
    """Return a table's requirements and the number of values that can be measured in a context,
    JSON-ready.

    Nothing is measured.
    """
    reasons: list[str] = []
    for planned in plan_table(table, context, search=False):
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
        "lacks": Counter(reasons),
    }


def measure_table(table: PublishedTable, context: MeasurementContext) -> Facts:
    """Return the result document, JSON-ready.

    Every row has its published and measured values, or the reason why it is not measured.
    """
    rows = plan_table(table, context)
    loaded = _measure_rows(rows, table, context)
    data = loaded.facts
    texts = {row.system.fitted_on for row in rows if row.system}
    if any("corpus" in cell["on"] for row in rows for cell in row.cells.values()):
        texts.add("corpus")
    of_texts = {kind: context.text_facts(kind) for kind in EXAMPLES if kind in texts}
    seeds: Facts = {"bootstrap": statistics.BOOTSTRAP_SEED}
    if any(row.kind.trains and row.cells for row in rows):
        seeds["training"] = list(context.seeds)
    is_on_backbone = any(row.kind.is_measured(train=bool(context.seeds)) for row in rows)
    return {
        "promptcli": promptcli.__version__,
        "versions": library_versions(),
        "table": table.name,
        "title": table.title,
        "columns": list(table.columns),
        "backbone": context.backbone_facts if is_on_backbone else None,
        "protocol": PROTOCOL,
        "seeds": seeds,
        "resamples": statistics.RESAMPLES,
        "data": data,
        "missing": list(loaded.missing),
        "corpus": None,
        "triplets": None,
        **of_texts,
        "rows": [_row(row, table.columns, data, context) for row in rows],
    }


def _measure_rows(
    rows: Sequence[PlannedRow], table: PublishedTable, context: MeasurementContext
) -> MeasureData:
    """Fill the rows' cells, measure by measure; return the data of all measures."""
    data = MeasureData()
    for measure in dict.fromkeys(MEASURE_OF[column] for column in table.columns):
        columns = {column for column in table.columns if MEASURE_OF[column] == measure}
        runs_of = {
            row: row.system.runs for row in rows if row.system and columns - row.not_measured.keys()
        }
        if not runs_of:
            continue
        loaded = data_of(measure, context)
        data.facts.update(loaded.facts)
        data.missing.update(loaded.missing)
        cells = _measure(measure, itertools.chain(*runs_of.values()), context)
        for row, runs in runs_of.items():
            row.cells |= over_runs([cells[run.id] for run in runs])
    return data


def _measure(
    name: str, systems: Iterable[MeasuredSystem], context: MeasurementContext
) -> dict[str, Cells]:
    """Return the cells of systems by their ids.

    Equal systems are measured once; known cells come from the cache.
    """
    measure = MEASURES[name]
    data = data_of(name, context)
    assert measure.run is not None
    cells: dict[str, Cells] = {}
    keys: dict[str, Facts] = {}
    unknown = []
    for system in systems:
        if system.id in keys:
            continue
        keys[system.id] = {"measure": name, **system.identity, "data": data.facts}
        cached = context.cache.get(keys[system.id]) if measure.cached else None
        if cached is None:
            unknown.append(system)
        else:
            cells[system.id] = cached
    for group in grouped_by_input(unknown):
        for system, measured in zip(group, measure.run(group, data, context), strict=True):
            kept = {
                column: value for column, value in measured.items() if column in measure.columns
            }
            cells[system.id] = kept
            if measure.cached:
                context.cache.put(keys[system.id], kept)
    return cells


def _row(
    planned: PlannedRow,
    columns: Sequence[str],
    data: Mapping[str, Any],
    context: MeasurementContext,
) -> Facts:
    """Return one row of the document; ``data`` are those of the measures."""
    row = planned.row
    published = _published(row, columns, data, is_own=context.is_on(row.backbone))
    figures = {}
    differences = {}
    for column, cell in planned.cells.items():
        figures[column] = cell
        if COLUMNS[column].mean_of:
            figures[column] = {**cell, "tasks": len(cell["on"])}
        against = published_value(published, column)
        is_comparable = published["own"] and column not in published.get("other_tasks", ())
        if is_comparable and _is_number(cell["value"]) and _is_number(against):
            differences[column] = round(float(cell["value"]) - float(against), 6)
    return {
        "method": row.method,
        "setting": row.setting,
        "run": row.run,
        "note": row.note,
        **_system_facts(planned.system, context),
        "published": published,
        "figures": figures,
        "difference": differences,
        "not_measured": planned.not_measured,
    }


def _published(
    row: PublishedRow, columns: Sequence[str], data: Mapping[str, Any], *, is_own: bool
) -> Facts:
    """Return the published values of a row.

    If some tasks of an average have no data here, the average is of the others' published values,
    or the number of its tasks is added.
    """
    facts: Facts = {
        "backbone": row.backbone,
        "own": is_own,
        "figures": dict(row.published),
        "std": dict(row.std),
    }
    for column in columns:
        averaged = COLUMNS[column].mean_of
        measured = [task for task in averaged if task in data]
        if not 0 < len(measured) < len(averaged):
            continue
        values = [row.published.get(task) for task in measured]
        numbers = [value for value in values if _is_number(value)]
        if len(numbers) == len(values):
            facts["average_of_same_tasks"] = round(float(np.mean(numbers)), 2)
        elif column in row.published:
            facts.setdefault("other_tasks", {})[column] = len(averaged)
    return facts


def published_value(published: Mapping[str, Any], column: str) -> Any:
    """Return the published value of a column, or None.

    A published average covers only the measured tasks, if the paper has all of them.
    """
    is_mean = COLUMNS[column].mean_of and column not in EXTREMES
    if is_mean and "average_of_same_tasks" in published:
        return published["average_of_same_tasks"]
    return published["figures"].get(column)


def _system_facts(system: MeasuredSystem | None, context: MeasurementContext) -> Facts:
    """Return a system's recipe, its fitting or training text, and its attention head."""
    recipe = system and system.recipe
    text = system and system.fitted_on
    head = recipe and recipe.parts.pooling.head
    return {
        "recipe_id": recipe_id(system) if system and recipe else None,
        "recipe": recipe and {**recipe.to_dict(), "backbone": None},
        "fitted": text is not None,
        "fitted_on": text and context.text_facts(text)["name"],
        "head": head and str(head),
        "training": system and system.training,
    }


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
