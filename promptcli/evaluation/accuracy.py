"""Scoring encoders on transfer tasks: each distinct sentence encoded once, then one classifier after another."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from promptcli.data.tasks import LabelledExamples, TransferTask
from promptcli.encoder.encoder import Encoder, Progress, encode_together, silent
from promptcli.errors import PromptcliError
from promptcli.evaluation.classifier import ClassifierTraining
from promptcli.evaluation.protocols import (
    ClassifierSetting,
    Floats,
    Outcome,
    check_labels,
    cross_validated,
    nested,
    official,
    pair_features,
)
from promptcli.evaluation.scores import Label

#: The splits of a task -> how it is scored.
_PROTOCOLS: dict[frozenset[str], Callable[..., Outcome]] = {
    frozenset({"all"}): nested,
    frozenset({"train", "test"}): cross_validated,
    frozenset({"train", "dev", "test"}): official,
}


@dataclass(frozen=True)
class AccuracyScore:
    """One figure: accuracy x 100 of a linear classifier on an encoder's frozen vectors.

    Attributes:
        label: What the encoder is called.
        recipe: All fields of its recipe.
        fingerprint: Which encoder it is.
        task: E.g. ``MR``.
        outcome: Accuracies and weight decays.
        examples: Examples of each split.
        seconds: What the classifiers took.
    """

    label: Label
    recipe: dict[str, Any]
    fingerprint: str
    task: str
    outcome: Outcome
    examples: dict[str, int]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the figure as JSON-ready values."""
        return {
            "model": self.label.model,
            "recipe": self.label.recipe,
            "task": self.task,
            "metric": "accuracy",
            "value": self.outcome.test,
            "dev": self.outcome.dev,
            "weight_decays": self.outcome.decays,
            "examples": self.examples,
            "seconds": round(self.seconds, 2),
            "fingerprint": self.fingerprint,
            "recipe_fields": self.recipe,
        }


@dataclass(frozen=True)
class TransferVectors:
    """Every distinct sentence of some tasks with its vector, for several encoders.

    Attributes:
        row_of: Sentence -> row.
        matrices: One (n, d) float32 per encoder.
        seconds: What encoding took.
    """

    row_of: Mapping[str, int]
    matrices: list[Floats]
    seconds: float

    def of(self, examples: LabelledExamples, encoder: int) -> Floats:
        """Return the features of examples under one encoder, (n, d), of pairs (n, 2d)."""
        sides = [examples.first, *([] if examples.second is None else [examples.second])]
        vectors = [
            self.matrices[encoder][np.fromiter((self.row_of[sentence] for sentence in side), np.int64, len(side))]
            for side in sides
        ]
        return vectors[0] if len(vectors) == 1 else pair_features(*vectors)


def distinct_transfer_sentences(tasks: Sequence[TransferTask]) -> list[str]:
    """Return every sentence of the tasks once, in the order of first appearance."""
    return list(dict.fromkeys(sentence for task in tasks for sentence in task.sentences()))


def check_tasks(tasks: Sequence[TransferTask], training: ClassifierTraining) -> None:
    """Refuse tasks that no classifier can be trained on, before anything is encoded.

    Raises:
        UsageError: See ``check_labels``.
    """
    for task in tasks:
        check_labels(task.name, {split: examples.labels for split, examples in task.splits.items()}, training)


def encode_tasks(
    encoders: Sequence[Encoder], tasks: Sequence[TransferTask], *, progress: Progress = silent
) -> TransferVectors:
    """Encode each distinct sentence of all tasks once.

    Args:
        encoders: With what.
        tasks: Whose sentences.
        progress: Called with the number of distinct sentences newly done.

    Raises:
        PromptcliError: A vector with a NaN or an infinity.
    """
    start = time.perf_counter()
    sentences = distinct_transfer_sentences(tasks)
    matrices = [encoded.vectors for encoded in encode_together(encoders, sentences, progress=progress)]
    for matrix in matrices:
        wrong = np.flatnonzero(~np.isfinite(matrix).all(axis=1))
        if len(wrong):
            raise PromptcliError(
                f"the vector of {sentences[wrong[0]]!r} is not finite; try --dtype float32, or check the model"
            )
    rows = {sentence: row for row, sentence in enumerate(sentences)}
    return TransferVectors(rows, matrices, time.perf_counter() - start)


def score_tasks(
    encoders: Sequence[Encoder],
    labels: Sequence[Label],
    tasks: Sequence[TransferTask],
    vectors: TransferVectors,
    training: ClassifierTraining,
    *,
    seed: int = 1111,
    progress: Callable[[float], None] = lambda done: None,
) -> list[AccuracyScore]:
    """Train and test the classifiers of every encoder on every task; on the device that the encoder is on.

    Args:
        encoders: Whose vectors are classified.
        labels: What each is called.
        tasks: On what.
        vectors: As ``encode_tasks`` returns them for these encoders and tasks.
        training: How the classifiers are trained.
        seed: Of folds, first weights and order of examples.
        progress: Called with the number of tasks newly done, which is a fraction; adds up to encoders x tasks.

    Returns:
        Encoder after encoder, each with its tasks in the order given.
    """
    scores = []
    for number, (encoder, label) in enumerate(zip(encoders, labels, strict=True)):
        for task in tasks:
            start = time.perf_counter()
            splits = {split: (vectors.of(part, number), part.labels) for split, part in task.splits.items()}
            classes = 1 + max(int(numbers.max()) for _, numbers in splits.values())
            setting = ClassifierSetting(training, classes, seed, str(encoder.backbone.device))
            outcome = _PROTOCOLS[frozenset(splits)](splits, setting, progress)
            scores.append(
                AccuracyScore(
                    label=label,
                    recipe=encoder.recipe.to_dict(),
                    fingerprint=encoder.fingerprint,
                    task=task.name,
                    outcome=outcome,
                    examples={split: len(part) for split, part in task.splits.items()},
                    seconds=time.perf_counter() - start,
                )
            )
    return scores


def average(scores: Sequence[AccuracyScore]) -> float:
    """Return the mean of the figures, each rounded to 2 decimals as it is printed."""
    return float(np.mean([score.outcome.test for score in scores]))
