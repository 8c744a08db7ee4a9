"""Measuring a table at a place: a result document, published figures beside the measured ones. Prints nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import promptcli
from promptcli.errors import PromptcliError
from promptcli.evaluation import statistics
from promptcli.reproducing.measures import MEASURE_OF, MEASURES, column_named
from promptcli.reproducing.place import PROTOCOL, Place, Sources, hash_of
from promptcli.reproducing.plan import Step, needs_backbone, plan_table
from promptcli.reproducing.published import Row, Table, Value, same_backbone
from promptcli.reproducing.results import SCHEMA
from promptcli.reproducing.several import Figures, over_runs
from promptcli.reproducing.subject import Subject, recipe_id
from promptcli.reproducing.systems import SYSTEMS

#: Parts of a subject's identity that say what text its numbers come from.
_TEXTS = {"corpus", "triplets", "examples"}


def run_table(table: Table, place: Place) -> dict[str, Any]:
    """Measure every row of a table that can be measured.

    Args:
        table: The published table.
        place: Backbone, data and what is known already.

    Returns:
        The result document, JSON-ready: what was measured on what, every row with its published and measured figures,
        and for each column that was not measured the reason.

    Raises:
        NotFoundError: The backbone is not there.
        UsageError: The backbone cannot be used.
    """
    facts = place.backbone_facts if needs_backbone(table, train=bool(place.seeds)) else None
    steps = plan_table(table, place)
    subjects = [_subject(step, table, place) for step in steps]
    figures: list[Figures] = [{} for _ in steps]
    data: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for name in dict.fromkeys(MEASURE_OF[column] for column in table.columns):
        columns = [column for column in table.columns if MEASURE_OF[column] == name]
        rows = [
            (number, subject)
            for number, (step, subject) in enumerate(zip(steps, subjects, strict=True))
            if subject is not None and any(column not in step.lacks for column in columns)
        ]
        if rows:
            sources = MEASURES[name].load(place)
            data |= sources.data
            missing |= sources.missing
            runs = [run for _, subject in rows for run in subject.runs]
            found = iter(_measure(name, runs, place))
            for number, subject in rows:
                figures[number] |= over_runs([next(found) for _ in subject.runs])
    there = {
        column: [name for name in column_named(column).mean_of if name in data]
        for column in table.columns
        if column_named(column).mean_of
    }
    texts = {text for subject in subjects if subject is not None for text in _TEXTS & subject.identity.keys()}
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
        "seeds": {"bootstrap": statistics.SEED, **({"training": list(place.seeds)} if trained else {})},
        "resamples": statistics.RESAMPLES,
        "data": data,
        "missing": list(missing),
        "corpus": place.corpus_facts if uses_corpus else None,
        "triplets": place.triplet_facts if "sup" in trained or "triplets" in texts else None,
        "rows": [
            _row(step, subject, measured, place, there)
            for step, subject, measured in zip(steps, subjects, figures, strict=True)
        ],
    }


def measured_rows(document: Mapping[str, Any]) -> int:
    """Return how many rows of a result document have a measured figure."""
    return sum(bool(row["figures"]) for row in document["rows"])


def _subject(step: Step, table: Table, place: Place) -> Subject | None:
    """Make what a row is measured on; where that fails, all its columns lack it."""
    make = SYSTEMS[step.row.kind].make
    if make is None or len(step.lacks) == len(table.columns):
        return None
    try:
        return make(step.row, place)
    except PromptcliError as error:
        step.lacks.update(dict.fromkeys(table.columns, str(error)))
        return None


def _measure(name: str, subjects: Sequence[Subject], place: Place) -> list[Figures]:
    """Return each subject's figures: those of equal subjects once, known ones from the cache."""
    measure = MEASURES[name]
    sources = measure.load(place)
    assert measure.run is not None
    known: dict[str, Figures] = {}
    todo: dict[str, Subject] = {}
    for subject in subjects:
        key = _key(name, subject, sources)
        kept = place.cache.get(key) if measure.kept else None
        if kept is None:
            todo.setdefault(hash_of(key), subject)
        else:
            known[hash_of(key)] = kept
    if todo:
        for subject, found in measure.run(list(todo.values()), sources, place):
            key = _key(name, subject, sources)
            known[hash_of(key)] = {column: figure.to_dict() for column, figure in found.items()}
            if measure.kept:
                place.cache.put(key, known[hash_of(key)])
    return [known[hash_of(_key(name, subject, sources))] for subject in subjects]


def _key(measure: str, subject: Subject, sources: Sources) -> dict[str, Any]:
    """Return all that decides a subject's figures."""
    return {"measure": measure, **subject.identity, "data": sources.data}


def _row(
    step: Step, subject: Subject | None, figures: Figures, place: Place, there: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    row = step.row
    needless = SYSTEMS[row.kind].make is not None and SYSTEMS[row.kind].backbone == "none"
    own = needless or same_backbone(row.backbone, place.backbone_name)
    recipe = None if subject is None or subject.recipe is None else {**subject.recipe.to_dict(), "backbone": None}
    published = {"backbone": row.backbone, "own": own, "figures": dict(row.published), "std": dict(row.std)}
    same = {column: _same_tasks(row, column, names) for column, names in there.items()}
    for mean in (mean for mean in same.values() if mean is not None):
        published["average_of_same_tasks"] = mean
    return {
        "method": row.method,
        "setting": row.setting,
        "run": row.run,
        "note": row.note,
        "recipe_id": None if recipe is None or subject is None else recipe_id(subject),
        "recipe": recipe,
        "fitted": subject is not None and bool(_TEXTS & subject.identity.keys()),
        "published": published,
        "figures": figures,
        "difference": _differences(row, figures, same) if own else {},
        "not_measured": step.lacks,
    }


def _same_tasks(row: Row, column: str, there: Sequence[str]) -> float | None:
    """Return the published average of the tasks that are there, where those are not all and it is known."""
    values = [float(value) for task in there if isinstance(value := row.published.get(task), (int, float))]
    if not there or len(there) == len(column_named(column).mean_of) or len(values) < len(there):
        return None
    return round(float(np.mean(values)), 2)


def _differences(row: Row, figures: Figures, same_tasks: Mapping[str, float | None]) -> dict[str, float]:
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
