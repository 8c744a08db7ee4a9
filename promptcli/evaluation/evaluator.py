"""Scoring vectors on tasks: Spearman on graded pairs, a linear classifier's accuracy on labelled sentences.

Each distinct sentence of all tasks is encoded once. Knows encoders and tasks, not where either came from.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from promptcli.data.tasks import LabelledExamples, STSTask, TransferTask
from promptcli.encoder.encoder import Encoder, Progress, encode_together, silent
from promptcli.errors import PromptcliError, UsageError
from promptcli.evaluation import protocols, statistics
from promptcli.evaluation.classifier import FULL, ClassifierTraining
from promptcli.evaluation.protocols import SEED
from promptcli.evaluation.scores import AccuracyScore, Comparison, Label, Score, SpearmanScore, SubsetScore, recipe_name

#: The splits of a transfer task -> how it is scored.
_PROTOCOLS: dict[frozenset[str], Callable[..., protocols.Outcome]] = {
    frozenset({"all"}): protocols.nested,
    frozenset({"train", "test"}): protocols.cross_validated,
    frozenset({"train", "dev", "test"}): protocols.official,
}
#: Sentence -> row of an array of vectors.
Rows = Mapping[str, int]


@dataclass(frozen=True)
class Embedded:
    """Vectors of the distinct sentences of some tasks, and whose they are."""

    label: Label
    recipe: dict[str, Any]  # how they were made, JSON-ready
    fingerprint: str  # of their maker
    vectors: NDArray[Any]  # (n, d), row i is sentence i of ``distinct_sentences``
    device: str = "cpu"  # on which classifiers are trained on them


def distinct_sentences(tasks: Iterable[STSTask | TransferTask]) -> list[str]:
    """Return every sentence of the tasks once, in the order of first appearance."""
    return list(dict.fromkeys(sentence for task in tasks for sentence in task.sentences()))


def rows_of(tasks: Iterable[STSTask | TransferTask]) -> Rows:
    """Return the row of each sentence in vectors of ``distinct_sentences``."""
    return {sentence: row for row, sentence in enumerate(distinct_sentences(tasks))}


def embed_tasks(
    encoders: Sequence[Encoder],
    tasks: Sequence[STSTask] | Sequence[TransferTask],
    *,
    labels: Sequence[Label] | None = None,
    progress: Progress = silent,
) -> list[Embedded]:
    """Encode each distinct sentence of all tasks once.

    Args:
        encoders: With what.
        tasks: Whose sentences.
        labels: One per encoder; without them an encoder is called after its backbone and its recipe.
        progress: Called with the number of distinct sentences newly done.

    Raises:
        PromptcliError: A vector with a NaN or an infinity, where a classifier is to be trained on it.
    """
    sentences = distinct_sentences(tasks)
    if labels is None:
        labels = [Label(encoder.recipe.backbone, recipe_name(encoder.recipe)) for encoder in encoders]
    encoded = encode_together(encoders, sentences, progress=progress)
    embedded = [
        Embedded(label, encoder.recipe.to_dict(), encoder.fingerprint, made.vectors)
        for label, encoder, made in zip(labels, encoders, encoded, strict=True)
    ]
    if not any(isinstance(task, TransferTask) for task in tasks):
        return embedded
    for each in embedded:
        wrong = np.flatnonzero(~np.isfinite(each.vectors).all(axis=1))
        if len(wrong):
            raise PromptcliError(
                f"the vector of {sentences[wrong[0]]!r} is not finite; try --dtype float32, or check the model"
            )
    devices = [str(encoder.backbone.device) for encoder in encoders]
    return [replace(each, device=device) for each, device in zip(embedded, devices, strict=True)]


def evaluate(
    encoders: Sequence[Encoder],
    tasks: Sequence[STSTask],
    *,
    labels: Sequence[Label] | None = None,
    progress: Progress = silent,
) -> list[SpearmanScore]:
    """Score encoders on STS tasks: ``embed_tasks``, then ``score_vectors``."""
    return score_vectors(embed_tasks(encoders, tasks, labels=labels, progress=progress), tasks)


@overload
def score_vectors(embedded: Sequence[Embedded], tasks: Sequence[STSTask]) -> list[SpearmanScore]: ...
@overload
def score_vectors(
    embedded: Sequence[Embedded],
    tasks: Sequence[TransferTask],
    *,
    training: ClassifierTraining = FULL,
    seed: int = SEED,
    progress: Callable[[float], None] = lambda done: None,
) -> list[AccuracyScore]: ...
def score_vectors(
    embedded: Sequence[Embedded],
    tasks: Sequence[STSTask] | Sequence[TransferTask],
    *,
    training: ClassifierTraining = FULL,
    seed: int = SEED,
    progress: Callable[[float], None] = lambda done: None,
) -> list[Any]:
    """Score vectors on tasks, whoever made them.

    Args:
        embedded: Each with one row per sentence of ``distinct_sentences(tasks)``.
        tasks: On what.
        training: How classifiers are trained.
        seed: Of their folds, first weights and order of examples.
        progress: Called with the number of transfer tasks newly done, a fraction; adds up to embedded x tasks.

    Returns:
        One set of vectors after the other, each with its tasks in the order given.
    """
    rows = rows_of(tasks)
    by_task: list[Sequence[Score]] = []
    for task in tasks:
        if isinstance(task, STSTask):
            by_task.append(_correlate(embedded, task, rows))
        else:
            by_task.append([_classify(each, task, rows, training, seed, progress) for each in embedded])
    return [scores[number] for number in range(len(embedded)) for scores in by_task]


def spearman_on(encoder: Encoder, task: STSTask) -> float:
    """Return Spearman x 100 on a task and no more: for the many measurements of a training run."""
    pairs, rows = task.pairs(), rows_of([task])
    vectors = encoder.encode(list(rows))
    first, second = (vectors[[rows[sentence] for sentence in side]] for side in (pairs.first, pairs.second))
    return 100 * statistics.spearman(statistics.cosine(first, second), pairs.gold)


def _correlate(embedded: Sequence[Embedded], task: STSTask, rows: Rows) -> list[SpearmanScore]:
    pairs = task.pairs()
    first, second = (np.array([rows[sentence] for sentence in side]) for side in (pairs.first, pairs.second))
    cosines = np.stack([statistics.cosine(each.vectors[first], each.vectors[second]) for each in embedded])
    both = np.unique(np.concatenate([first, second]))
    intervals = statistics.bootstrap_intervals(cosines, pairs.gold)
    return [
        spearman_score(
            task,
            row,
            interval,
            label=each.label,
            recipe=each.recipe,
            fingerprint=each.fingerprint,
            zero_vectors=int((~each.vectors[both].any(axis=1)).sum()),
        )
        for each, row, interval in zip(embedded, cosines, intervals, strict=True)
    ]


def spearman_score(
    task: STSTask,
    cosines: NDArray[np.float64],
    interval: tuple[float, float],
    *,
    label: Label,
    recipe: dict[str, Any],
    fingerprint: str,
    zero_vectors: int = 0,
) -> SpearmanScore:
    """Return the figure of an encoder's cosines (pairs,), all subsets one after the other, and of each subset.

    ``interval`` is the correlation's, -1 to 1; see ``Score`` for the rest.
    """
    pairs, stops = task.pairs(), np.cumsum([len(part) for part in task.subsets.values()])
    parts = zip(task.subsets.items(), np.split(cosines, stops[:-1]), strict=True)
    return SpearmanScore(
        label=label,
        recipe=recipe,
        fingerprint=fingerprint,
        task=task.name,
        value=100 * statistics.spearman(cosines, pairs.gold),
        split=task.split,
        protocol=task.protocol,
        text=task.text,
        data_sha256=task.sha256(),
        expected_pairs=task.expected_pairs,
        ci95=(100 * interval[0], 100 * interval[1]),
        pairs=len(pairs),
        subsets={
            name: SubsetScore(100 * statistics.spearman(row, part.gold), len(part)) for (name, part), row in parts
        },
        cosines=cosines,
        gold=pairs.gold,
        zero_vectors=zero_vectors,
    )


def check_rankable(task: STSTask) -> None:
    """Refuse a development set by which nothing can be ranked.

    Raises:
        UsageError: Fewer than four pairs, or all gold scores equal.
    """
    gold = task.pairs().gold if task.subsets else np.empty(0)
    if len(gold) < 4:
        raise UsageError(f"development set {task.label} has {len(gold)} pairs; ranking takes at least 4: see --on")
    if len(np.unique(gold)) < 2:
        raise UsageError(f"all gold scores of development set {task.label} are {gold[0]:g}; nothing ranks by them")


def check_tasks(tasks: Sequence[TransferTask], training: ClassifierTraining) -> None:
    """Refuse tasks that no classifier can be trained on, before anything is encoded.

    Raises:
        UsageError: See ``check_labels``.
    """
    for task in tasks:
        protocols.check_labels(task.name, {split: part.labels for split, part in task.splits.items()}, training)


def features(vectors: NDArray[Any], part: LabelledExamples, rows: Rows) -> NDArray[Any]:
    """Return what a classifier sees: the vectors of sentences (n, d), the features of pairs (n, 2d)."""
    sides = [part.first] if part.second is None else [part.first, part.second]
    found = [vectors[np.fromiter((rows[sentence] for sentence in side), np.int64, len(side))] for side in sides]
    return found[0] if len(found) == 1 else protocols.pair_features(*found)


def _classify(
    each: Embedded,
    task: TransferTask,
    rows: Rows,
    training: ClassifierTraining,
    seed: int,
    progress: Callable[[float], None],
) -> AccuracyScore:
    start = time.perf_counter()
    splits = {split: (features(each.vectors, part, rows), part.labels) for split, part in task.splits.items()}
    classes = 1 + max(int(labels.max()) for _, labels in splits.values())
    setting = protocols.ClassifierSetting(training, classes, seed, each.device)
    outcome = _PROTOCOLS[frozenset(splits)](splits, setting, progress)
    return AccuracyScore(
        label=each.label,
        recipe=each.recipe,
        fingerprint=each.fingerprint,
        task=task.name,
        value=outcome.test,
        dev=outcome.dev,
        decays=outcome.decays,
        examples={split: len(part) for split, part in task.splits.items()},
        seconds=time.perf_counter() - start,
    )


def average(scores: Iterable[Score]) -> float:
    """Return the mean of the figures after each was rounded to 2 decimals, as the papers' tables do."""
    return float(np.mean([round(score.value, 2) for score in scores]))


def compare(first: SpearmanScore, second: SpearmanScore) -> Comparison:
    """Compare two encoders' figures on the same task by a paired bootstrap over its pairs.

    Raises:
        UsageError: the figures are not of the same pairs.
    """
    if (first.column, first.data_sha256) != (second.column, second.data_sha256):
        raise UsageError(f"{first.column} and {second.column} do not have the same pairs; compare figures of one task")
    test = statistics.paired_bootstrap(first.cosines, second.cosines, first.gold)
    low, high = test.interval
    return Comparison(
        first=first.label,
        second=second.label,
        task=first.task,
        split=first.split,
        protocol=first.protocol,
        difference=100 * test.difference,
        ci95=(100 * low, 100 * high),
        p_value=test.p_value,
        pairs=first.pairs,
    )
