"""Anisotropy: the mean cosine over pairs of vectors (PromptBERT, eq. 1).

With unit vectors u_i, sum_{i != j} u_i . u_j = |sum u_i|^2 - n: one sum is kept, and no n x n matrix is made.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptcli.analysis.uniformity import unit
from promptcli.backbones.backbone import Backbone
from promptcli.encoder.encoder import Encoder, encode_together
from promptcli.errors import UsageError
from promptcli.notes import working

#: Sentences, or rows of a matrix, whose vectors are held at a time.
_WINDOW = 8192


@dataclass(frozen=True)
class Preparation:
    """Choice and treatment of the lines; the defaults are those of PromptBERT's code."""

    first: int = 100_000  #: number of lines to take from the start
    sample: int | None = None  #: number of lines to take at random instead (the papers' text)
    seed: int = 0  #: of the sample
    lower: bool = True  #: lower-case every line, for cased models too
    words: int | None = 32  #: cut a line to this number of words, separated by white space

    def apply(self, lines: Iterable[str]) -> list[str]:
        """Return the prepared sentences; empty lines are not counted."""
        full = (line for line in lines if line.strip())
        taken = itertools.islice(full, self.first) if self.sample is None else _draw(full, self.sample, self.seed)
        cut = (" ".join(line.split()[: self.words]) for line in taken)
        return [line.lower() if self.lower else line for line in cut]


def _draw(lines: Iterator[str], count: int, seed: int) -> list[str]:
    """Return ``count`` random lines of a stream (reservoir sampling); all if there are fewer."""
    generator = np.random.default_rng(seed)
    reservoir = list(itertools.islice(lines, count))
    for number, line in enumerate(lines, count):
        place = int(generator.integers(0, number + 1))
        if place < count:
            reservoir[place] = line
    return reservoir


class MeanCosine:
    """The mean cosine over pairs of vectors that arrive in windows; a NaN counts as 0, a zero vector has cosine 0."""

    def __init__(self) -> None:
        self.count = 0
        self._sum: NDArray[np.float64] | float = 0.0
        self._squares = 0.0

    def add(self, vectors: NDArray[np.floating]) -> None:
        """Take vectors (n, d)."""
        units = unit(vectors)
        self._sum = self._sum + units.sum(0)
        self._squares += float(units.any(1).sum())
        self.count += len(units)

    def value(self) -> float:
        """Return |sum_{i != j} cos(i, j)| / (n^2 - n) of the n vectors so far."""
        check_enough(self.count)
        length = float(np.square(self._sum).sum())
        return abs(length - self._squares) / (self.count * (self.count - 1))


def check_enough(count: int) -> None:
    """Refuse fewer than two sentences."""
    if count < 2:
        raise UsageError(f"anisotropy is a mean over pairs of sentences, and there are {count}; give at least 2")


@dataclass(frozen=True)
class Anisotropy:
    """One figure."""

    value: float  #: eq. 1
    vectors: int  #: n
    truncated: int = 0  #: sentences that lost tokens to the longest input


def sentence_anisotropy(encoders: Sequence[Encoder], sentences: Sequence[str]) -> list[Anisotropy]:
    """Return the anisotropy of each encoder's sentence vectors (PromptBERT, table 1; Ditto, table 5).

    The vectors of a window of sentences are held at a time. A sentence counts as often as it occurs.
    """
    check_enough(len(sentences))
    means, cut = [MeanCosine() for _ in encoders], [0] * len(encoders)
    with working("anisotropy", len(sentences)) as advance:
        for start in range(0, len(sentences), _WINDOW):
            window = sentences[start : start + _WINDOW]
            for number, encoded in enumerate(encode_together(encoders, window, progress=advance)):
                means[number].add(encoded.vectors)
                cut[number] += int(encoded.truncated.sum())
    return [Anisotropy(mean.value(), mean.count, lost) for mean, lost in zip(means, cut, strict=True)]


def token_anisotropy(backbone: Backbone) -> Anisotropy:
    """Return the anisotropy of all rows of the word-embedding matrix, (v, d) (PromptBERT, table 2).

    Whether the paper counts special and unused rows is unknown; here all rows count.
    """
    mean = MeanCosine()
    rows = backbone.token_rows
    for start in range(0, len(rows), _WINDOW):
        mean.add(rows[start : start + _WINDOW].detach().float().cpu().numpy())
    return Anisotropy(mean.value(), mean.count)
