"""The geometry of vectors: anisotropy, alignment, uniformity.

Anisotropy is the mean cosine over pairs of vectors (PromptBERT, eq. 1). With unit vectors u_i,
sum_{i != j} u_i . u_j = |sum u_i|^2 - n, so one running sum replaces the n x n matrix.

For unit vectors f(x), alignment = E |f(x) - f(y)|^2 over pairs with the same meaning, and
uniformity = log E exp(-2 |f(x) - f(y)|^2) over pairs of distinct sentences (Ditto, figure 4; Wang
and Isola, 2020). Lower is better for both.
"""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptcli import notes
from promptcli.backbones.backbone import Backbone
from promptcli.data.preparation import Preparation
from promptcli.data.tasks import STSTask
from promptcli.embedding.writing import WINDOW
from promptcli.encoder.encoder import TorchEncoder, encode_together
from promptcli.errors import UsageError
from promptcli.plugins.analyze import pictures


class MeanCosine:
    """The mean cosine over all pairs of vectors that are added in windows.

    NaN counts as 0, and a zero vector has cosine 0 with every vector.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sum: NDArray[np.float64] | float = 0.0
        self._squared_lengths = 0.0

    def add(self, vectors: NDArray[np.floating]) -> None:
        """Add vectors (n, d)."""
        units = unit_float64(vectors)
        self._sum = self._sum + units.sum(0)
        self._squared_lengths += float(units.any(1).sum())
        self.count += len(units)

    def value(self) -> float:
        """Return |sum_{i != j} cos(i, j)| / (n^2 - n) of the n added vectors."""
        if self.count < 2:
            raise UsageError(
                f"anisotropy is a mean over pairs of sentences, but there are {self.count}; give at"
                " least 2"
            )
        squared_length = float(np.square(self._sum).sum())
        return abs(squared_length - self._squared_lengths) / (self.count * (self.count - 1))


@dataclass(frozen=True)
class Anisotropy:
    """The anisotropy of one encoder's vectors."""

    value: float  #: eq. 1
    vectors: int  #: number of vectors
    truncated: int = 0  #: number of sentences that were cut to the model's longest input

    @staticmethod
    def draw(path: Path, results: "Mapping[str, Anisotropy]", title: str) -> None:
        """Draw a bar for each encoder's result, by the encoder's name, into a picture."""
        values = [result.value for result in results.values()]
        with pictures.drawing(path, 6.4, 1.3 + 0.34 * len(values)) as figure:
            panel = figure.subplots()
            bars = panel.barh(list(results), values, color=pictures.BLUE)
            panel.bar_label(bars, [f"{value:.4f}" for value in values], padding=3)
            panel.invert_yaxis()
            panel.set(xlabel="mean cosine over all pairs")
            pictures.figure_title(figure, title)
            panel.margins(x=0.15)
            panel.spines[["top", "right"]].set_visible(False)


def sentence_anisotropy(
    encoders: Sequence[TorchEncoder], sentences: Sequence[str], **preparation: Any
) -> list[Anisotropy]:
    """Return the anisotropy of each encoder's sentence vectors (PromptBERT, table 1; Ditto, table
    5).

    Only the vectors of one window are in memory. A repeated sentence counts each time. The keywords
    are the fields of a ``Preparation``, which selects and changes the sentences.
    """
    if preparation:
        sentences = Preparation(**preparation).apply(sentences)
    means = [MeanCosine() for _ in encoders]
    truncated = [0] * len(encoders)
    with notes.stage("anisotropy", len(sentences)) as advance:
        for start in range(0, len(sentences), WINDOW):
            window = sentences[start : start + WINDOW]
            for number, encoded in enumerate(encode_together(encoders, window, progress=advance)):
                means[number].add(encoded.vectors)
                truncated[number] += int(encoded.truncated.sum())
    return [
        Anisotropy(mean.value(), mean.count, count)
        for mean, count in zip(means, truncated, strict=True)
    ]


def token_anisotropy(backbone: Backbone) -> Anisotropy:
    """Return the anisotropy of the rows of the word-embedding matrix, (v, d) (PromptBERT, table 2).

    The paper does not say whether special and unused rows count; here all rows count.
    """
    mean = MeanCosine()
    rows = backbone.word_embeddings
    for start in range(0, len(rows), WINDOW):
        mean.add(rows[start : start + WINDOW].detach().float().cpu().numpy())
    return Anisotropy(mean.value(), mean.count)


#: Pairs with a higher gold score have the same meaning (SimCSE, footnote 3).
_POSITIVE_SCORE = 4.0
_UNIFORMITY_T = 2.0  #: t of Wang and Isola's Gaussian potential
_BLOCK_ROWS = 512  #: distances to all vectors are computed for this number of vectors at a time


@dataclass(frozen=True)
class Uniformity:
    """Alignment and uniformity of one encoder."""

    alignment: float  #: mean squared distance of the positive pairs
    uniformity: float  #: logarithm of the mean Gaussian potential of all pairs of sentences
    positives: int  #: number of positive pairs
    sentences: int  #: number of sentences: both of every pair, with repetitions

    @staticmethod
    def draw(path: Path, results: "Mapping[str, Uniformity]", title: str) -> None:
        """Draw a point for each encoder's result, by the encoder's name, into a picture.

        In a name such as ``first-last-avg``, the states decide the marker and the weights the
        colour.
        """
        colours = defaultdict[str, str](itertools.cycle(pictures.COLOURS).__next__)
        markers = defaultdict[str, str](itertools.cycle(pictures.MARKERS).__next__)
        with pictures.drawing(path, 8.0, 5.0) as figure:
            panel = figure.subplots()
            for name, result in results.items():
                states, _, weights = name.rpartition("-")
                panel.plot(
                    result.uniformity,
                    result.alignment,
                    markers[states],
                    color=colours[weights],
                    linestyle="",
                    markersize=9,
                    label=name,
                )
            panel.set(xlabel="uniformity (lower is better)", ylabel="alignment (lower is better)")
            panel.margins(0.1)
            panel.grid(alpha=0.3)
            figure.legend(loc="outside right center", frameon=False)
            pictures.figure_title(figure, title)


def measure_uniformity(
    encoders: Sequence[TorchEncoder], tasks: Sequence[STSTask]
) -> list[Uniformity]:
    """Return each encoder's alignment and uniformity on graded pairs.

    No official code is published. SimCSE's authors use all of STS-B and normalise the vectors
    first. They do not mention repeated sentences, which are kept here. The pairs of all tasks are
    put together.
    """
    pairs_of_tasks = [task.pairs() for task in tasks]
    first = [sentence for pairs in pairs_of_tasks for sentence in pairs.first]
    second = [sentence for pairs in pairs_of_tasks for sentence in pairs.second]
    positive = np.concatenate([pairs.gold for pairs in pairs_of_tasks]) > _POSITIVE_SCORE
    if not positive.any():
        labels = ", ".join(task.label for task in tasks)
        raise UsageError(
            f"no pair of {labels} is graded above {_POSITIVE_SCORE:g}, so alignment is undefined;"
            " give pairs graded from 0 to 5"
        )
    with notes.stage("uniformity", 2 * len(first)) as advance:
        embeddings = encode_together(encoders, [*first, *second], progress=advance)
    results = []
    for encoded in embeddings:
        vectors = unit_float64(encoded.vectors)
        first_vectors, second_vectors = np.split(vectors, 2)
        aligned = alignment(first_vectors[positive], second_vectors[positive])
        results.append(Uniformity(aligned, uniformity(vectors), int(positive.sum()), len(vectors)))
    return results


def unit_float64(vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return vectors (n, d) scaled to length 1 in float64.

    A zero vector stays zero, and NaN counts as 0.
    """
    wide = np.nan_to_num(vectors.astype(np.float64))
    norms = np.sqrt(np.einsum("nd,nd->n", wide, wide))
    return wide / np.where(norms > 0, norms, 1.0)[:, None]


def alignment(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return the mean of |x_i - y_i|^2 over n pairs of unit vectors (n, d)."""
    return float(np.square(first - second).sum(1).mean())


def uniformity(vectors: NDArray[np.float64]) -> float:
    """Return log mean_{i < j} exp(-2 |x_i - x_j|^2) over unit vectors (n, d)."""
    squares = np.einsum("nd,nd->n", vectors, vectors)
    total = -float(len(vectors))  # the terms with i = j
    for start in range(0, len(vectors), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        distances = squares[rows, None] + squares - 2 * (vectors[rows] @ vectors.T)
        total += float(np.exp(-_UNIFORMITY_T * np.maximum(distances, 0.0)).sum())
    return float(np.log(total / (len(vectors) * (len(vectors) - 1))))
