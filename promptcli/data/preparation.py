"""The selection and preparation of lines, as for the papers' corpora."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Preparation:
    """Selection and preparation of lines; the defaults are those of PromptBERT's code."""

    first: int = 100_000  #: number of lines to take from the start
    sample: int = 0  #: number of lines to take at random instead, as the papers' text says; 0: none
    seed: int = 0  #: seed of the sample
    lower: bool = True  #: whether every line is lower-cased, for cased models too
    words: int = 32  #: words of a line that are kept, separated by white space; 0: all

    def apply(self, lines: Iterable[str]) -> list[str]:
        """Return the prepared sentences; empty lines are not counted."""
        filled = (line for line in lines if line.strip())
        if self.sample:
            selection = _draw(filled, self.sample, self.seed)
        else:
            selection = list(itertools.islice(filled, self.first))
        texts = [" ".join(line.split()[: self.words or None]) for line in selection]
        return [text.lower() for text in texts] if self.lower else texts


def _draw(lines: Iterator[str], count: int, seed: int) -> list[str]:
    """Return ``count`` random lines of a stream by reservoir sampling; all if there are fewer."""
    generator = np.random.default_rng(seed)
    reservoir = list(itertools.islice(lines, count))
    for number, line in enumerate(lines, count):
        place = int(generator.integers(0, number + 1))
        if place < count:
            reservoir[place] = line
    return reservoir
