"""Measuring a table in a context: a result document, published figures beside the measured ones. Prints nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import promptcli
from promptcli.errors import PromptcliError
from promptcli.evaluation import statistics
from promptcli.reproducing.context import PROTOCOL, MeasureData, MeasurementContext, hash_of
from promptcli.reproducing.figures import Figures, over_runs
from promptcli.reproducing.measured_system import MeasuredSystem, recipe_id
from promptcli.reproducing.measures import MEASURE_OF, MEASURES, column_named
from promptcli.reproducing.planning import PlannedRow, needs_backbone, plan_table
from promptcli.reproducing.published import PublishedRow, PublishedTable, Value, same_backbone
from promptcli.reproducing.results import SCHEMA
from promptcli.reproducing.systems import SYSTEMS

#: Parts of a system's identity that say what text its numbers come from.
_TEXTS = {"corpus", "triplets", "examples"}


def measure_table(table: PublishedTable, context: MeasurementContext) -> dict[str, Any]:
    """Measure every row of a table that can be measured.

    Args:
        table: The published table.
        context: Backbone, data and what is known already.

    Returns:
        The result document, JSON-ready: what was measured on what, every row with its published and measured figures,
        and for each column that was not measured the reason.

    Raises:
        NotFoundError: The backbone is not there.
        UsageError: The backbone cannot be used.
    """
    facts = context.backbone_facts if needs_backbone(table, train=bool(context.seeds)) else None
    steps = plan_table(table, context)
    systems = [_subject(step, table, context) for step in steps]
    figures: list[Figures] = [{} for _ in steps]
    data: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for name in dict.fromkeys(MEASURE_OF[column] for column in table.columns):
        columns = [column for column in table.columns if MEASURE_OF[column] == name]
        rows = [
            (number, system)
            for number, (step, system) in enumerate(zip(steps, systems, strict=True))
            if system is not None and any(column not in step.lacks for column in columns)
        ]
        if rows:
            sources = MEASURES[name].load(context)
            data |= sources.data
            missing |= sources.missing
            runs = [run for _, system in rows for run in system.runs]
            found = iter(_measure(name, runs, context))
            for number, system in rows:
                figures[number] |= over_runs([next(found) for _ in system.runs])
    there = {
        column: [name for name in column_named(column).mean_of if name in data]
        for column in table.columns
        if column_named(column).mean_of
    }
    texts = {text for system in systems if system is not None for text in _TEXTS & system.identity.keys()}
    trained = {
        step.row.setting for step, row in zip(steps, figures, strict=True) if SYSTEMS[step.row.kind].trains and row
    }
    uses_corpus = (
        "corpus" in texts
        or bool(trained - {"sup"})
        or any("corpus" in figure["on"] for row in figures for figure in row.values())
    )
    return {
        "schema_version": SCHEMA,
        "promptcli": promptcli.__version__,
        "table": table.name,
        "title": table.title,
        "columns": list(table.columns),
        "backbone": facts,
        "protocol": PROTOCOL,
        "seeds": {"bootstrap": statistics.SEED, **({"training": list(context.seeds)} if trained else {})},
        "resamples": statistics.RESAMPLES,
        "data": data,
        "missing": list(missing),
        "corpus": context.corpus_facts if uses_corpus else None,
        "triplets": context.triplet_facts if "sup" in trained or "triplets" in texts else None,
        "rows": [
            _row(step, system, measured, context, there)
            for step, system, measured in zip(steps, systems, figures, strict=True)
        ],
    }


def measured_rows(document: Mapping[str, Any]) -> int:
    """Return how many rows of a result document have a measured figure."""
    return sum(bool(row["figures"]) for row in document["rows"])


def _subject(step: PlannedRow, table: PublishedTable, context: MeasurementContext) -> MeasuredSystem | None:
    """Make what a row is measured on; where that fails, all its columns lack it."""
    make = SYSTEMS[step.row.kind].make
    if make is None or len(step.lacks) == len(table.columns):
        return None
    try:
        return make(step.row, context)
    except PromptcliError as error:
        step.lacks.update(dict.fromkeys(table.columns, str(error)))
        return None


def _measure(name: str, systems: Sequence[MeasuredSystem], context: MeasurementContext) -> list[Figures]:
    """Return each system's figures: those of equal systems once, known ones from the cache."""
    measure = MEASURES[name]
    sources = measure.load(context)
    assert measure.run is not None
    known: dict[str, Figures] = {}
    todo: dict[str, MeasuredSystem] = {}
    for system in systems:
        key = _key(name, system, sources)
        kept = context.cache.get(key) if measure.kept else None
        if kept is None:
            todo.setdefault(hash_of(key), system)
        else:
            known[hash_of(key)] = kept
    if todo:
        for system, found in measure.run(list(todo.values()), sources, context):
            key = _key(name, system, sources)
            known[hash_of(key)] = {column: figure.to_dict() for column, figure in found.items()}
            if measure.kept:
                context.cache.put(key, known[hash_of(key)])
    return [known[hash_of(_key(name, system, sources))] for system in systems]


def _key(measure: str, system: MeasuredSystem, sources: MeasureData) -> dict[str, Any]:
    """Return all that decides a system's figures."""
    return {"measure": measure, **system.identity, "data": sources.data}


def _row(
    step: PlannedRow,
    system: MeasuredSystem | None,
    figures: Figures,
    context: MeasurementContext,
    there: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    row = step.row
    needless = SYSTEMS[row.kind].make is not None and SYSTEMS[row.kind].backbone == "none"
    own = needless or same_backbone(row.backbone, context.backbone_name)
    recipe = None if system is None or system.recipe is None else {**system.recipe.to_dict(), "backbone": None}
    published = {"backbone": row.backbone, "own": own, "figures": dict(row.published), "std": dict(row.std)}
    same = {column: _same_tasks(row, column, names) for column, names in there.items()}
    for mean in (mean for mean in same.values() if mean is not None):
        published["average_of_same_tasks"] = mean
    return {
        "method": row.method,
        "setting": row.setting,
        "run": row.run,
        "note": row.note,
        "recipe_id": None if recipe is None or system is None else recipe_id(system),
        "recipe": recipe,
        "fitted": system is not None and bool(_TEXTS & system.identity.keys()),
        "published": published,
        "figures": figures,
        "difference": _differences(row, figures, same) if own else {},
        "not_measured": step.lacks,
    }


def _same_tasks(row: PublishedRow, column: str, there: Sequence[str]) -> float | None:
    """Return the published average of the tasks that are there, where those are not all and it is known."""
    values = [float(value) for task in there if isinstance(value := row.published.get(task), (int, float))]
    if not there or len(there) == len(column_named(column).mean_of) or len(values) < len(there):
        return None
    return round(float(np.mean(values)), 2)


def _differences(row: PublishedRow, figures: Figures, same_tasks: Mapping[str, float | None]) -> dict[str, float]:
    """Return measured minus published; an average over fewer tasks is compared with the same tasks' or not at all."""
    result: dict[str, float] = {}
    for column, published in row.published.items():
        if column not in figures:
            continue
        against: Value | None = published
        if len(figures[column]["on"]) < len(column_named(column).mean_of):
            against = same_tasks[column]
        value = figures[column]["value"]
        if _is_number(against) and _is_number(value):
            result[column] = round(float(value) - float(against), 6)  # type: ignore[arg-type]
    return result


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
