"""Measuring tables in a context: result documents, published figures next to the measured ones. Prints nothing."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import promptcli
from promptcli.errors import PromptcliError
from promptcli.evaluation import statistics
from promptcli.reproducing.measurement_context import PROTOCOL, MeasurementContext, hash_of
from promptcli.reproducing.measures import MEASURE_OF, MEASURES, Figures, column_named, data_of, over_runs
from promptcli.reproducing.planning import PlannedRow, needs_backbone, plan_table
from promptcli.reproducing.published import PublishedRow, PublishedTable, find_tables, same_backbone
from promptcli.reproducing.results import SCHEMA, Repetition, ResultFigure, are_figures, compare_results, write_result
from promptcli.reproducing.systems import MeasuredSystem, examples_kind, grouped_by_input, recipe_id
from promptcli.reproducing.texts import Texts

#: Parts of a system's identity that say what text its numbers come from.
_TEXTS = {"corpus", "triplets", "examples"}


@dataclass(frozen=True)
class Reproduction:
    """One table on one backbone, or why there is none."""

    label: str
    document: dict[str, Any] | None = None
    file: Path | None = None  #: None where no figure can be measured
    error: PromptcliError | None = None
    missing: Mapping[str, str] = field(default_factory=dict)  #: why data are not there, by name

    @property
    def message(self) -> str:
        """What became of it, in one line."""
        if self.error is not None:
            return f"{self.label} is left out: {self.error}"
        if self.file is None:
            return f"{self.label}: no figure can be measured here, so no file is kept"
        return f"{self.label}: kept in {self.file}"


def reproduce_tables(
    wanted: Iterable[tuple[PublishedTable, str]], open_on: Callable[[str], MeasurementContext], output: Path
) -> Iterator[Reproduction]:
    """Measure tables, each on a backbone, and write the results; one that fails does not end the others.

    Args:
        wanted: Tables and names of backbones.
        open_on: Opens a backbone's context; called once for each.
        output: Folder of the result files.
    """
    contexts: dict[str, MeasurementContext] = {}
    for table, backbone in wanted:
        context = contexts[backbone] = contexts.get(backbone) or open_on(backbone)
        try:
            document = measure_table(table, context)
        except PromptcliError as error:
            yield Reproduction(f"{table.name} on {backbone}", error=error, missing=context.missing)
        else:
            measured = any(row["figures"] for row in document["rows"])
            file = write_result(output, document) if measured else None
            yield Reproduction(table.name, document, file, missing=context.missing)


def repeat_result(
    before: Mapping[str, Any], open_on: Callable[..., MeasurementContext], default: str, **given: str | None
) -> tuple[dict[str, Any], Repetition]:
    """Measure the table of a result document again, with the document's seeds.

    Args:
        before: Of ``read_result``.
        open_on: Opens the context of a backbone, given ``texts`` and ``seeds``, too.
        default: Backbone of a table that needs none.
        given: ``backbone`` and fields of ``Texts``: where they are, if not under their names in the document.

    Returns:
        The new document, and what comparing it showed.
    """
    names = ("backbone", *(item.name for item in dataclasses.fields(Texts)))
    sources = {name: given.get(name) or (before.get(name) or {}).get("name") for name in names}
    backbone = sources.pop("backbone") or default
    texts = Texts(**{name: source for name, source in sources.items() if source})
    context = open_on(backbone, texts=texts, seeds=before["seeds"].get("training", ()))
    after = measure_table(find_tables([before["table"]])[0], context)
    return after, compare_results(before, after)


def measure_table(table: PublishedTable, context: MeasurementContext) -> dict[str, Any]:
    """Measure every row of a table that can be measured.

    Returns:
        The result document, JSON-ready: what was measured on what, every row with its published and measured figures,
        and for each column that was not measured the reason.
    """
    facts = context.backbone_facts if needs_backbone(table, train=bool(context.seeds)) else None
    rows = plan_table(table, context)
    for row in rows:
        _make_system(row, table, context)
    data: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for measure in dict.fromkeys(MEASURE_OF[column] for column in table.columns):
        columns = [column for column in table.columns if MEASURE_OF[column] == measure]
        able = [(row, row.system) for row in rows if row.system and any(name not in row.lacks for name in columns)]
        if able:
            data |= data_of(measure, context).facts
            missing |= data_of(measure, context).missing
            found = iter(_measure(measure, [run for _, system in able for run in system.runs], context))
            for row, system in able:
                row.figures |= over_runs([next(found) for _ in system.runs])
    means = {column: column_named(column).mean_of for column in table.columns if column_named(column).mean_of}
    there = {column: [name for name in of if name in data] for column, of in means.items()}
    trained = [row for row in rows if row.kind.trains and row.figures]
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
        **_texts(rows, trained, context),
        "rows": [_row(row, context, there) for row in rows],
    }


def _make_system(planned: PlannedRow, table: PublishedTable, context: MeasurementContext) -> None:
    """Make what a row is measured on; where that fails, all its columns lack it."""
    if planned.kind.make is not None and len(planned.lacks) < len(table.columns):
        try:
            planned.system = planned.kind.make(planned.row, context)
        except PromptcliError as error:
            planned.lacks.update(dict.fromkeys(table.columns, str(error)))


def _measure(name: str, systems: Sequence[MeasuredSystem], context: MeasurementContext) -> list[Figures]:
    """Return each system's figures: those of equal systems once, known ones from the cache."""
    measure, data = MEASURES[name], data_of(name, context)
    assert measure.run is not None
    keys = [{"measure": name, **system.identity, "data": data.facts} for system in systems]
    hashes = [hash_of(key) for key in keys]
    known: dict[str, Figures] = {}
    todo: dict[str, int] = {}
    for number, (key, digest) in enumerate(zip(keys, hashes, strict=True)):
        kept = context.cache.get(key, dict[str, ResultFigure]) if measure.cached else None
        if kept is None or not are_figures(kept, measure.columns):
            todo.setdefault(digest, number)
        else:
            known[digest] = kept
    for members in grouped_by_input([systems[number] for number in todo.values()]):
        for system, found in zip(members, measure.run(members, data, context), strict=True):
            number = systems.index(system)
            known[hashes[number]] = found
            if measure.cached:
                context.cache.put(keys[number], found)
    return [known[digest] for digest in hashes]


def _texts(rows: Sequence[PlannedRow], trained: Sequence[PlannedRow], context: MeasurementContext) -> dict[str, Any]:
    """Return the facts of the corpus and of all examples, where something was fitted, trained or counted on them."""
    kinds = {examples_kind(planned.row, context) for planned in trained}
    fitted = {text for row in rows if row.system is not None for text in _TEXTS & row.system.identity.keys()}
    counted = any("corpus" in figure["on"] for row in rows for figure in row.figures.values())
    return {
        "corpus": context.corpus_facts if "corpus" in fitted | kinds or counted else None,
        "triplets": context.example_facts("triplets") if "triplets" in fitted | kinds else None,
        **{kind: context.example_facts(kind) for kind in ("labelled", "definitions") if kind in kinds},
    }


def _row(planned: PlannedRow, context: MeasurementContext, there: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return one row of the document; ``there``: averages, and the tasks of each that have data."""
    row, system = planned.row, planned.system
    on_none = planned.kind.make is not None and planned.kind.backbone == "none"
    own = on_none or same_backbone(row.backbone, context.backbone_name)
    published = {"backbone": row.backbone, "own": own, "figures": dict(row.published), "std": dict(row.std)}
    same = {column: _same_tasks(row, column, names) for column, names in there.items()}
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
        if column in figures:
            fewer = len(figures[column]["on"]) < len(column_named(column).mean_of)
            value, against = figures[column]["value"], same_tasks[column] if fewer else published
            if _is_number(value) and _is_number(against):
                result[column] = round(float(value) - float(against), 6)  # type: ignore[arg-type]
    return result


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
