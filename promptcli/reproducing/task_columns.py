"""Columns of tasks: the figures of `promptcli eval` and, in SentEval's full setting, of `promptcli transfer`."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from promptcli.data.task_table import TRANSFER_TASKS
from promptcli.data.tasks import STSTask, TransferTask, load_transfer
from promptcli.errors import UsageError
from promptcli.evaluation import evaluator, statistics
from promptcli.evaluation.classifier import FULL
from promptcli.evaluation.evaluator import evaluate, read_embedded
from promptcli.evaluation.protocols import DECAYS, HELD_OUT, SEED
from promptcli.evaluation.scores import Label, SpearmanScore
from promptcli.reproducing.figures import Figures, rounded
from promptcli.reproducing.measured_system import Systems
from promptcli.reproducing.measurement_context import MeasureData, MeasurementContext, hash_of
from promptcli.reproducing.published import PublishedRow, published_tables

_SETTING = f"SentEval's linear classifier, {FULL.folds} folds, {FULL.optimizer}, seed {SEED}; accuracy x 100"


def measure_sts(systems: Systems, data: MeasureData, context: MeasurementContext) -> Iterator[Figures]:
    """Yield each system's figure on every task that is there."""
    for scores in _score(systems, data, context):
        yield _figures(scores)


def measure_sts_average(systems: Systems, data: MeasureData, context: MeasurementContext) -> Iterator[Figures]:
    """Yield each system's figure on every task that is there, and their average."""
    rows = _score(systems, data, context)
    by_task = list(zip(*rows, strict=True))
    intervals = statistics.average_intervals(
        [np.stack([score.cosines for score in scores]) for scores in by_task], [scores[0].gold for scores in by_task]
    )
    for scores, (low, high) in zip(rows, intervals, strict=True):
        found = _figures(scores)
        yield {**found, "Avg": rounded(evaluator.average(scores), (100 * low, 100 * high), list(found))}


def _score(systems: Systems, data: MeasureData, context: MeasurementContext) -> list[list[SpearmanScore]]:
    """Return each system's scores, tasks in the same order in all."""
    tasks: list[STSTask] = data.content
    if systems[0].vectors is not None:  # alone, being slow
        return [evaluator.score_vectors([_read(systems[0].vectors, tasks, systems[0].row)], tasks)]
    with context.working("eval", len(evaluator.distinct_sentences(tasks))) as advance:
        scores = evaluate([system.encoder for system in systems], tasks, progress=advance)
    return [scores[start : start + len(tasks)] for start in range(0, len(scores), len(tasks))]


def _read(path: Path, tasks: Sequence[STSTask] | Sequence[TransferTask], row: PublishedRow) -> evaluator.Embedded:
    table = next(table.name for table in published_tables().values() if row in table.rows)
    return read_embedded(path, tasks, f"promptcli reproduce {table} --list-sentences")


def _figures(scores: Sequence[SpearmanScore]) -> Figures:
    return {score.column: rounded(score.value, score.ci95, [score.column]) for score in scores}


def transfer_data(context: MeasurementContext) -> MeasureData:
    """Return the tasks of the data folder; ``content`` is the list of those that can be scored."""
    if context.data_dir is None:
        why = "it is read from a folder; give --data-dir FOLDER, SentEval's `downstream`"
        return MeasureData(missing=dict.fromkeys(TRANSFER_TASKS, why))
    loaded = load_transfer(context.data_dir, TRANSFER_TASKS)
    missing, tasks = dict(loaded.missing), []
    for task in loaded.tasks:
        try:
            evaluator.check_tasks([task], FULL)
            tasks.append(task)
        except UsageError as error:
            missing[task.name] = str(error)
    return MeasureData({task.name: _transfer_facts(task) for task in tasks}, missing, tasks)


def _transfer_facts(task: TransferTask) -> dict[str, Any]:
    text = {split: [part.first, part.second or [], part.labels.tolist()] for split, part in sorted(task.splits.items())}
    return {
        "examples": {split: len(part) for split, part in task.splits.items()},
        "unexpected": {split: list(counts) for split, counts in task.unexpected_counts().items()},
        "sha256": hash_of(text),
        "setting": _SETTING,
        "training": {**dataclasses.asdict(FULL), "weight_decays": list(DECAYS), "held_out": HELD_OUT, "seed": SEED},
    }


def measure_transfer(systems: Systems, data: MeasureData, context: MeasurementContext) -> Iterator[Figures]:
    """Yield each system's accuracy on every task that is there, and the average; they have no interval.

    One system after the other: their classifiers take longer than their vectors.
    """
    tasks: list[TransferTask] = data.content
    for system in systems:
        with context.working("transfer", len(evaluator.distinct_sentences(tasks))) as advance:
            if system.vectors is not None:
                embedded = [_read(system.vectors, tasks, system.row)]
            else:
                labels = [Label(context.backbone_name, system.row.label)]
                embedded = evaluator.embed_tasks([system.transfer_encoder], tasks, labels=labels, progress=advance)
            scores = evaluator.score_vectors(embedded, tasks)
        found = {score.task: rounded(score.value, None, [score.task]) for score in scores}
        yield {**found, "transfer": rounded(evaluator.average(scores), None, list(found))}
