"""The geometry of vectors: anisotropy, alignment, uniformity.

Anisotropy is the mean cosine over pairs of vectors (PromptBERT, eq. 1). With unit vectors u_i,
sum_{i != j} u_i . u_j = |sum u_i|^2 - n: one running sum replaces the n x n matrix. Alignment and
uniformity (Ditto, figure 4; Wang and Isola, 2020) of unit vectors f(x) are alignment = E |f(x) -
f(y)|^2 over pairs with the same meaning, and uniformity = log E exp(-2 |f(x) - f(y)|^2) over pairs
of distinct sentences; lower is better for both.
"""

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
    """The mean cosine over pairs of vectors that arrive in windows.

    NaN counts as 0, and a zero vector has cosine 0.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sum: NDArray[np.float64] | float = 0.0
        self._squares = 0.0

    def add(self, vectors: NDArray[np.floating]) -> None:
        """Add vectors (n, d)."""
        units = unit_float64(vectors)
        self._sum = self._sum + units.sum(0)
        self._squares += float(units.any(1).sum())
        self.count += len(units)

    def value(self) -> float:
        """Return |sum_{i != j} cos(i, j)| / (n^2 - n) of the n vectors so far."""
        if self.count < 2:
            raise UsageError(
                f"anisotropy is a mean over pairs of sentences, but there are {self.count}; give at"
                " least 2"
            )
        length = float(np.square(self._sum).sum())
        return abs(length - self._squares) / (self.count * (self.count - 1))


@dataclass(frozen=True)
class Anisotropy:
    """The anisotropy of one encoder's vectors."""

    value: float  #: eq. 1
    vectors: int  #: n
    truncated: int = 0  #: sentences that lost tokens to the longest input

    @staticmethod
    def draw(path: Path, results: "Mapping[str, Anisotropy]", title: str) -> None:
        """Draw a labelled horizontal bar for each encoder, by name, into a picture."""
        values = [result.value for result in results.values()]
        with pictures.drawing(path, 6.4, 1.3 + 0.34 * len(values)) as figure:
            panel = figure.subplots()
            bars = panel.barh(list(results), values, color=pictures.COLOURS.blue)
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

    Only one window's vectors are held at a time. Repeated sentences count repeatedly. The fields of
    a ``Preparation`` select and change the sentences; by default they are unchanged.
    """
    if preparation:
        sentences = Preparation(**preparation).apply(sentences)
    means = [MeanCosine() for _ in encoders]
    cut = [0] * len(encoders)
    with notes.stage("anisotropy", len(sentences)) as advance:
        for start in range(0, len(sentences), WINDOW):
            window = sentences[start : start + WINDOW]
            for number, encoded in enumerate(encode_together(encoders, window, progress=advance)):
                means[number].add(encoded.vectors)
                cut[number] += int(encoded.truncated.sum())
    return [
        Anisotropy(mean.value(), mean.count, lost) for mean, lost in zip(means, cut, strict=True)
    ]


def token_anisotropy(backbone: Backbone) -> Anisotropy:
    """Return the anisotropy of all rows of the word-embedding matrix, (v, d) (PromptBERT, table 2).

    Whether the paper counts special and unused rows is unknown; here all rows count.
    """
    mean = MeanCosine()
    rows = backbone.word_embeddings
    for start in range(0, len(rows), WINDOW):
        mean.add(rows[start : start + WINDOW].detach().float().cpu().numpy())
    return Anisotropy(mean.value(), mean.count)


#: Pairs with a higher gold score have the same meaning (SimCSE, footnote 3).
POSITIVE = 4.0
#: t of uniformity.
_T = 2.0
#: Vectors whose distances to all others are held at a time.
_VECTORS_AT_ONCE = 512


@dataclass(frozen=True)
class Uniformity:
    """Alignment and uniformity of one encoder."""

    alignment: float  #: mean squared distance of the positive pairs
    uniformity: float  #: logarithm of the mean Gaussian potential of all sentences
    positives: int  #: number of pairs for ``alignment``
    sentences: int  #: for ``uniformity``: both sides of every pair, with repetitions

    @staticmethod
    def draw(path: Path, results: "Mapping[str, Uniformity]", title: str) -> None:
        """Draw the values of several encoders, by name, into a picture."""
        colours: dict[str, str] = {}
        markers: dict[str, str] = {}
        with pictures.drawing(path, 8.0, 5.0) as figure:
            panel = figure.subplots()
            for name, result in results.items():
                states, _, method = name.rpartition("-")
                colour = pictures.COLOURS[len(colours) % len(pictures.COLOURS)]
                marker = pictures.MARKERS[len(markers) % len(pictures.MARKERS)]
                panel.plot(
                    result.uniformity,
                    result.alignment,
                    markers.setdefault(states, marker),
                    color=colours.setdefault(method, colour),
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
    first. They do not mention repeated sentences, which are kept here. The pairs of all ``tasks``
    are joined.
    """
    splits = [task.pairs() for task in tasks]
    first = [sentence for pairs in splits for sentence in pairs.first]
    second = [sentence for pairs in splits for sentence in pairs.second]
    positive = np.concatenate([pairs.gold for pairs in splits]) > POSITIVE
    if not positive.any():
        raise UsageError(
            f"no pair of {', '.join(task.label for task in tasks)} is graded above {POSITIVE:g}, so"
            " alignment is undefined; give pairs graded from 0 to 5"
        )
    with notes.stage("uniformity", 2 * len(first)) as advance:
        encoded = encode_together(encoders, [*first, *second], progress=advance)
    results = []
    for of_encoder in encoded:
        vectors = unit_float64(of_encoder.vectors)
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
    """Return log mean_{i < j} exp(-2 |x_i - x_j|^2) over unit vectors (n, d), with distances
    computed in blocks.
    """
    squares = np.einsum("nd,nd->n", vectors, vectors)
    total = -float(len(vectors))  # a vector and itself are no pair
    for start in range(0, len(vectors), _VECTORS_AT_ONCE):
        rows = slice(start, start + _VECTORS_AT_ONCE)
        distances = squares[rows, None] + squares - 2 * (vectors[rows] @ vectors.T)
        total += float(np.exp(-_T * np.maximum(distances, 0.0)).sum())
    return float(np.log(total / (len(vectors) * (len(vectors) - 1))))
