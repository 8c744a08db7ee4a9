"""Lines selected and prepared like the papers' corpora."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Preparation:
    """Selection and preparation of lines; the defaults are those of PromptBERT's code."""

    first: int = 100_000  #: number of lines to take from the start
    sample: int = 0  #: number of lines to take at random instead (the papers' text), if not 0
    seed: int = 0  #: of the sample
    lower: bool = True  #: lower-case every line, for cased models too
    words: int = 32  #: cut a line to this number of words, separated by white space, if not 0

    def apply(self, lines: Iterable[str]) -> list[str]:
        """Return the prepared sentences; empty lines are not counted."""
        full = (line for line in lines if line.strip())
        if self.sample:
            taken = _draw(full, self.sample, self.seed)
        else:
            taken = list(itertools.islice(full, self.first))
        prepared = []
        for line in taken:
            text = " ".join(line.split()[: self.words or None])
            prepared.append(text.lower() if self.lower else text)
        return prepared


def _draw(lines: Iterator[str], count: int, seed: int) -> list[str]:
    """Return ``count`` random lines of a stream (reservoir sampling); all if there are fewer."""
    generator = np.random.default_rng(seed)
    reservoir = list(itertools.islice(lines, count))
    for number, line in enumerate(lines, count):
        place = int(generator.integers(0, number + 1))
        if place < count:
            reservoir[place] = line
    return reservoir
