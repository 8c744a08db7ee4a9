"""The result document of a table: its rows are planned, measured and compared with the paper's."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import promptcli
from promptcli.backbones.model_folder import is_word_file
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
    ANY_BACKBONE,
    UNPUBLISHED_BACKBONE,
    WORD_VECTORS,
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
    identity_of,
)
from promptcli.storage.cache import library_versions


@dataclass(eq=False)
class PlannedRow:
    """A row of a table, and its measured values."""

    row: PublishedRow
    kind: RowKind
    not_measured: dict[str, str]  #: column that cannot be measured -> reason
    system: MeasuredSystem | None
    cells: Cells = field(default_factory=dict)


def plan_table(
    table: PublishedTable, context: MeasurementContext, *, search: bool = True
) -> list[PlannedRow]:
    """Return the rows with their systems, and the reasons why columns cannot be measured.

    Without ``search`` no head is searched for: rows whose head must be searched have no system.
    """
    reasons = {column: _reason_of_column(column, context) for column in table.columns}
    not_measured_in_any_row = {column: reason for column, reason in reasons.items() if reason}
    has_columns = len(not_measured_in_any_row) < len(table.columns)
    planned = []
    for row in table.rows:
        kind = SYSTEMS[row.kind]
        system = None
        not_measured = not_measured_in_any_row
        try:
            _check_row(row, kind, table, context)
            if kind.make is not None and has_columns and (search or not kind.searches):
                system = kind.make(row, context)
        except PromptcliError as error:
            not_measured = dict.fromkeys(table.columns, str(error))
        planned.append(PlannedRow(row, kind, not_measured, system))
    return planned


def tables_with_backbones(
    names: str | Sequence[str], backbone: str | None, default: str, *, paper: bool, train: bool
) -> list[tuple[PublishedTable, str]]:
    """Return the named tables, each with every backbone that it is measured on.

    That is the given backbone; without one, the published backbones if ``paper``, else the default.
    """
    tables = find_tables(names)
    if backbone is not None or not paper:
        return [(table, backbone or default) for table in tables]
    pairs = []
    for table in tables:
        measured_rows = [row for row in table.rows if SYSTEMS[row.kind].is_measured(train=train)]
        published = dict.fromkeys(row.backbone for row in measured_rows)
        for name in (UNPUBLISHED_BACKBONE, ANY_BACKBONE):
            published.pop(name, None)
        pairs += [(table, name) for name in published or [default]]
    return pairs


def _check_row(
    row: PublishedRow, kind: RowKind, table: PublishedTable, context: MeasurementContext
) -> None:
    """Refuse a row that is not measured on the context's backbone.

    A backbone that the table was published for is measured only on its own rows.
    """
    if not kind.is_measured(train=bool(context.seeds)):
        raise UsageError(kind.why_not_measured.format(row.argument))
    if kind.backbone == "words":
        fits = is_word_file(context.backbone_name)
    elif is_word_file(context.backbone_name):
        fits = row.backbone == ANY_BACKBONE and row.argument == "static-avg"
    else:
        is_published = any(context.is_on(name) for name in table.backbones)
        fits = context.is_on(row.backbone) or not (is_published or kind.backbone == "own")
    if not fits and row.backbone == ANY_BACKBONE:
        raise UsageError("needs the layers of a language model")
    if not fits:
        name = "glove:FILE" if row.backbone == WORD_VECTORS else row.backbone
        raise UsageError(f"needs backbone {name}")
    _ = context.backbone  # refuses a backbone that cannot be opened


def _reason_of_column(column: str, context: MeasurementContext) -> str | None:
    """Return the reason why a column cannot be measured in any row, or None."""
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
    """Return a table's requirements and the number of values that could be measured in a context,
    JSON-ready.
    """
    reasons: list[str] = []
    for planned in plan_table(table, context, search=False):
        reasons += planned.not_measured.values()
    value_count = len(table.rows) * len(table.columns)
    data = dict.fromkeys(MEASURES[MEASURE_OF[column]].data for column in table.columns)
    times = dict.fromkeys(SYSTEMS[row.kind].time for row in table.rows)
    return {
        "table": table.name,
        "title": table.title,
        "rows": len(table.rows),
        "figures": value_count,
        "now": value_count - len(reasons),
        "backbones": table.backbones,
        "data": [name for name in data if name],
        "time": [time for time in times if time != "-"],
        "lacks": Counter(reasons),
    }


def measure_table(table: PublishedTable, context: MeasurementContext) -> Facts:
    """Measure a table and return its result document, JSON-ready.

    A row has its published and measured values, and the reasons why values are not measured.
    """
    rows = plan_table(table, context)
    data = _measure_rows(rows, table, context)
    kinds = {row.system.fitted_on for row in rows if row.system}
    if any("corpus" in cell["on"] for row in rows for cell in row.cells.values()):
        kinds.add("corpus")
    texts = {kind: context.text_facts(kind) for kind in EXAMPLES if kind in kinds}
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
        "data": data.facts,
        "missing": list(data.missing),
        "corpus": None,
        "triplets": None,
        **texts,
        "rows": [_row_document(row, table.columns, data.facts, context) for row in rows],
    }


def _measure_rows(
    rows: Sequence[PlannedRow], table: PublishedTable, context: MeasurementContext
) -> MeasureData:
    """Measure the rows' systems, measure by measure; return the data of all measures."""
    all_data = MeasureData()
    for measure in dict.fromkeys(MEASURE_OF[column] for column in table.columns):
        columns = {column for column in table.columns if MEASURE_OF[column] == measure}
        runs_of = {
            row: row.system.runs or [row.system]
            for row in rows
            if row.system and columns - row.not_measured.keys()
        }
        if not runs_of:
            continue
        data = data_of(measure, context)
        all_data.facts.update(data.facts)
        all_data.missing.update(data.missing)
        cells = _measure(measure, itertools.chain(*runs_of.values()), data, context)
        for row, runs in runs_of.items():
            row.cells |= over_runs([cells[run.id] for run in runs])
    return all_data


def _measure(
    name: str, systems: Iterable[MeasuredSystem], data: MeasureData, context: MeasurementContext
) -> dict[str, Cells]:
    """Return the cells of systems by the systems' ids, from the cache if it has them."""
    measure = MEASURES[name]
    assert measure.run is not None
    cells: dict[str, Cells] = {}
    keys: dict[str, Facts] = {}
    uncached = []
    for system in systems:
        if system.id in keys:  # equal systems are measured once
            continue
        identity = context.backbone_identity | system.identity
        keys[system.id] = {"measure": name, **identity, "data": data.facts}
        cached = context.cache.get(keys[system.id]) if measure.is_cached else None
        if cached is None:
            uncached.append(system)
        else:
            cells[system.id] = cached
    for group in grouped_by_input(uncached):
        for system, all_cells in zip(group, measure.run(group, data, context), strict=True):
            cells[system.id] = {
                column: all_cells[column] for column in measure.columns if column in all_cells
            }
            if measure.is_cached:
                context.cache.put(keys[system.id], cells[system.id])
    return cells


def _row_document(
    planned: PlannedRow,
    columns: Sequence[str],
    data: Mapping[str, Any],
    context: MeasurementContext,
) -> Facts:
    """Return a row of the document; ``data`` are the facts of all measures' data."""
    row, system = planned.row, planned.system
    published = _published(row, columns, data, is_own=context.is_on(row.backbone))
    figures = {}
    differences = {}
    for column, cell in planned.cells.items():
        figures[column] = cell
        if COLUMNS[column].mean_of:
            figures[column] = {**cell, "tasks": len(cell["on"])}
        value = published_value(published, column)
        is_number = COLUMNS[column].decimals is not None and value is not None
        if is_number and published["own"] and column not in published.get("other_tasks", ()):
            differences[column] = round(float(cell["value"]) - float(value), 6)
    recipe = system and system.recipe
    kind = system and system.fitted_on
    head = recipe and recipe.parts.pooling.head
    return {
        "method": row.method,
        "setting": row.setting,
        "run": row.run,
        "note": row.note,
        "recipe_id": system.id[:12] if system and recipe else None,
        "recipe": recipe and identity_of(recipe),
        "fitted": kind is not None,
        "fitted_on": kind and context.text_facts(kind)["name"],
        "head": head and str(head),
        "training": system and system.training,
        "published": published,
        "figures": figures,
        "difference": differences,
        "not_measured": planned.not_measured,
    }


def _published(
    row: PublishedRow, columns: Sequence[str], data: Mapping[str, Any], *, is_own: bool
) -> Facts:
    """Return the published values of a row.

    If an average is measured on some of its tasks only, the published average of the same tasks is
    added; if the paper does not have all of them, the number of tasks of its average is added.
    """
    facts: Facts = {
        "backbone": row.backbone,
        "own": is_own,
        "figures": dict(row.published),
        "std": dict(row.std),
    }
    for column in columns:
        tasks = COLUMNS[column].mean_of
        measured_tasks = [task for task in tasks if task in data]
        if not 0 < len(measured_tasks) < len(tasks):
            continue
        values = [row.published.get(task) for task in measured_tasks]
        numbers = [value for value in values if isinstance(value, int | float)]
        if len(numbers) == len(values):
            facts["average_of_same_tasks"] = round(float(np.mean(numbers)), 2)
        elif column in row.published:
            facts.setdefault("other_tasks", {})[column] = len(tasks)
    return facts


def published_value(published: Mapping[str, Any], column: str) -> Any:
    """Return the published value of a column, or None.

    A published average is that of the measured tasks, if the paper has all of these.
    """
    is_mean = COLUMNS[column].mean_of and column not in EXTREMES
    if is_mean and "average_of_same_tasks" in published:
        return published["average_of_same_tasks"]
    return published["figures"].get(column)
