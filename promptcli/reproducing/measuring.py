"""Measuring a table in a context: the result document, with the published figures next to the measured ones."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import promptcli
from promptcli.errors import PromptcliError
from promptcli.evaluation import statistics
from promptcli.reproducing.measurement_context import PROTOCOL, MeasurementContext, hash_of
from promptcli.reproducing.measures import MEASURE_OF, MEASURES, Figures, column_named, data_of, over_runs
from promptcli.reproducing.planning import PlannedRow, needs_backbone, plan_table
from promptcli.reproducing.published import PublishedRow, PublishedTable, same_backbone
from promptcli.reproducing.systems import MeasuredSystem, examples_kind, grouped_by_input, recipe_id

#: Keys of a system's identity that name its training and fitting text.
_TEXTS = {"corpus", "triplets", "examples"}


def measure_table(table: PublishedTable, context: MeasurementContext) -> dict[str, Any]:
    """Return the result document, JSON-ready: every row's published and measured figures, or why it is not measured."""
    facts = context.backbone_facts if needs_backbone(table, train=bool(context.seeds)) else None
    rows = plan_table(table, context)
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
        "backbone": facts,
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
