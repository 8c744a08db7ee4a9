"""Transfer columns: the figures of `promptcli transfer` in SentEval's full setting, and their average."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from promptcli.data.task_table import TRANSFER_TASKS
from promptcli.data.tasks import TransferTask, load_transfer
from promptcli.errors import UsageError
from promptcli.evaluation.accuracy import (
    average,
    check_tasks,
    distinct_transfer_sentences,
    encode_tasks,
    score_tasks,
)
from promptcli.evaluation.classifier import FULL
from promptcli.evaluation.protocols import DECAYS, HELD_OUT
from promptcli.evaluation.scores import Label
from promptcli.reproducing.context import MeasureData, MeasurementContext, hash_of
from promptcli.reproducing.figures import Figure, rounded
from promptcli.reproducing.measured_system import MeasuredSystem

#: SentEval's, of folds, first weights and order of examples.
_SEED = 1111
_SETTING = f"SentEval's linear classifier, {FULL.folds} folds, {FULL.optimizer}, seed {_SEED}; accuracy x 100"


def transfer_sources(context: MeasurementContext) -> MeasureData:
    """Return the tasks of the data folder; ``content`` is the list of those that can be scored."""
    return context.once("transfer", lambda: _load(context))


def _load(context: MeasurementContext) -> MeasureData:
    if context.data_dir is None:
        why = "it is read from a folder; give --data-dir FOLDER, SentEval's `downstream`"
        return MeasureData(missing=dict.fromkeys(TRANSFER_TASKS, why))
    loaded = load_transfer(context.data_dir, TRANSFER_TASKS)
    missing, tasks = dict(loaded.missing), []
    for task in loaded.tasks:
        try:
            check_tasks([task], FULL)
            tasks.append(task)
        except UsageError as error:
            missing[task.name] = str(error)
    return MeasureData({task.name: _facts(task) for task in tasks}, missing, tasks)


def _facts(task: TransferTask) -> dict[str, Any]:
    text = {split: [part.first, part.second or [], part.labels.tolist()] for split, part in sorted(task.splits.items())}
    return {
        "examples": {split: len(part) for split, part in task.splits.items()},
        "unexpected": {split: list(counts) for split, counts in task.unexpected_counts().items()},
        "sha256": hash_of(text),
        "setting": _SETTING,
        "training": {**dataclasses.asdict(FULL), "weight_decays": list(DECAYS), "held_out": HELD_OUT, "seed": _SEED},
    }


def measure_transfer(
    systems: Sequence[MeasuredSystem], sources: MeasureData, context: MeasurementContext
) -> Iterator[tuple[MeasuredSystem, Mapping[str, Figure]]]:
    """Yield each system's accuracy on every task that is there, and the average; they have no interval."""
    tasks: list[TransferTask] = sources.content
    count = len(distinct_transfer_sentences(tasks))
    for system in systems:
        encoders, labels = [system.transfer_encoder], [Label(context.backbone_name, system.row.label)]
        with context.working("transfer", count) as advance:
            vectors = encode_tasks(encoders, tasks, progress=advance)
            scores = score_tasks(encoders, labels, tasks, vectors, FULL, seed=_SEED)
        found = {score.task: rounded(score.outcome.test, None, (score.task,)) for score in scores}
        yield system, {**found, "transfer": rounded(average(scores), None, tuple(found))}
