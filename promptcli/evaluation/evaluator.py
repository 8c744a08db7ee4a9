"""Scoring encoders on STS tasks. Knows encoders and tasks, not where either came from, and prints nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import Encoder, Progress, encode_together, silent
from promptcli.errors import UsageError
from promptcli.evaluation import statistics
from promptcli.evaluation.scores import Comparison, Label, SpearmanScore, SubsetScore, recipe_name


@dataclass(frozen=True)
class Embedded:
    """Vectors of the distinct sentences of some tasks, and whose they are.

    Attributes:
        label: What they are called.
        recipe: How they were made, JSON-ready.
        fingerprint: Of their maker.
        vectors: (n, d), row i is sentence i.
    """

    label: Label
    recipe: dict[str, Any]
    fingerprint: str
    vectors: NDArray[Any]


def distinct_sentences(tasks: Iterable[STSTask]) -> list[str]:
    """Return every sentence of the tasks once, in the order of first appearance."""
    parts = (part for task in tasks for part in task.subsets.values())
    return list(dict.fromkeys(sentence for part in parts for side in (part.first, part.second) for sentence in side))


def evaluate(
    encoders: Sequence[Encoder],
    tasks: Sequence[STSTask],
    *,
    labels: Sequence[Label] | None = None,
    progress: Progress = silent,
) -> list[SpearmanScore]:
    """Score encoders on tasks; each distinct sentence of all tasks is encoded once.

    Args:
        encoders: What to score.
        tasks: On what.
        labels: One per encoder; without them an encoder is called after its backbone and its recipe.
        progress: Called with the number of distinct sentences newly done.

    Returns:
        Encoder after encoder, each with its tasks in the order given.
    """
    if labels is None:
        labels = [Label(encoder.recipe.backbone, recipe_name(encoder.recipe)) for encoder in encoders]
    encoded = encode_together(encoders, distinct_sentences(tasks), progress=progress)
    embedded = [
        Embedded(label, encoder.recipe.to_dict(), encoder.fingerprint, made.vectors)
        for label, encoder, made in zip(labels, encoders, encoded, strict=True)
    ]
    return score_vectors(embedded, tasks)


def score_vectors(embedded: Sequence[Embedded], tasks: Sequence[STSTask]) -> list[SpearmanScore]:
    """Score vectors on tasks, whoever made them.

    Args:
        embedded: Each with one row per sentence of ``distinct_sentences(tasks)``.
        tasks: On what.

    Returns:
        One set of vectors after the other, each with its tasks in the order given.
    """
    row_of = {sentence: row for row, sentence in enumerate(distinct_sentences(tasks))}
    by_task = [_score_task(task, [each.vectors for each in embedded], row_of) for task in tasks]
    return [
        SpearmanScore(label=each.label, recipe=each.recipe, fingerprint=each.fingerprint, **scores[number])
        for number, each in enumerate(embedded)
        for scores in by_task
    ]


def spearman_on(encoder: Encoder, task: STSTask) -> float:
    """Return Spearman x 100 on a task and no more: for the many looks of a training run."""
    pairs, sentences = task.pairs(), distinct_sentences([task])
    row_of = {sentence: row for row, sentence in enumerate(sentences)}
    vectors = encoder.encode(sentences)
    first, second = (vectors[[row_of[sentence] for sentence in side]] for side in (pairs.first, pairs.second))
    return 100 * statistics.spearman(statistics.cosine(first, second), pairs.gold)


def _score_task(task: STSTask, vectors: Sequence[NDArray[Any]], row_of: dict[str, int]) -> list[dict[str, Any]]:
    """Return the fields of a score that depend on the task, for each array of vectors (distinct sentences, d)."""
    pairs = task.pairs()
    first, second = (np.array([row_of[sentence] for sentence in side]) for side in (pairs.first, pairs.second))
    cosines = np.stack([statistics.cosine(rows[first], rows[second]) for rows in vectors])
    both = np.unique(np.concatenate([first, second]))
    zeros = [int((~rows[both].any(axis=1)).sum()) for rows in vectors]
    intervals = statistics.bootstrap_intervals(cosines, pairs.gold)
    shared = {
        "task": task.name,
        "split": task.split,
        "protocol": task.protocol,
        "text": task.text,
        "data_sha256": task.sha256(),
        "expected_pairs": task.expected_pairs,
        "pairs": len(pairs),
        "gold": pairs.gold,
    }
    return [
        {
            **shared,
            "value": 100 * statistics.spearman(row, pairs.gold),
            "ci95": (100 * low, 100 * high),
            "subsets": _score_subsets(task, row),
            "cosines": row,
            "zero_vectors": zero,
        }
        for row, (low, high), zero in zip(cosines, intervals, zeros, strict=True)
    ]


def _score_subsets(task: STSTask, cosines: NDArray[np.float64]) -> dict[str, SubsetScore]:
    """Score each subset alone, given the cosines of all pairs in the order of the subsets."""
    scores, start = {}, 0
    for name, part in task.subsets.items():
        stop = start + len(part)
        scores[name] = SubsetScore(100 * statistics.spearman(cosines[start:stop], part.gold), len(part))
        start = stop
    return scores


def average(scores: Iterable[SpearmanScore]) -> float:
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
