"""What a search for the best pooling found, and how much of its figure is luck: cross-validation over the pairs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import Encoder
from promptcli.evaluation import statistics
from promptcli.recipe import Recipe
from promptcli.registry.entries import Entry

#: Random halvings of the pairs, each used both ways, and their seed.
HALVINGS, SEED = 20, 42


@dataclass(frozen=True)
class CrossValidation:
    """How much of the best head's figure is luck: chosen on one half of the pairs, scored on the other, repeated.

    Figures are means of Spearman x 100.
    """

    choices: int  #: how many times a head was chosen: both ways of every halving
    chosen: float  #: of the chosen head on the half that chose it
    held_out: float  #: on the other half
    gain: float  #: ``held_out`` minus the plain average of the same states there
    agreement: float  #: share of the choices that took the head that is best on all pairs

    @property
    def gap(self) -> float:
        """Points that the choice promises too much."""
        return self.chosen - self.held_out

    def to_dict(self) -> dict[str, float]:
        """Return the figures as JSON-ready values."""
        figures = {"choices": self.choices, "chosen": self.chosen, "held_out": self.held_out, "gap": self.gap}
        return {
            name: round(value, 4)
            for name, value in (figures | {"gain": self.gain, "agreement": self.agreement}).items()
        }


@dataclass(frozen=True)
class PoolingSearch:
    """The encoder of the best pooling, what chose it, and what the choice is worth."""

    cross_validation: CrossValidation  #: on pairs that did not choose
    encoder: Encoder  #: of the best pooling
    task: STSTask  #: the development set

    @property
    def recipe(self) -> Recipe:
        """The best recipe."""
        return self.encoder.recipe

    def entry_of(self, name: str, value: float, **compared: Any) -> Entry:
        """Return the best as a registry entry, with how it was found: its figure, and what it was compared with."""
        task = self.task
        searched = {
            **{"task": task.label, "data_sha256": task.sha256(), "pairs": len(task.pairs()), **compared},
            "value": round(value, 4),
            "held_out": round(self.cross_validation.held_out, 4),
        }
        provenance = {**self.encoder.provenance, "width": self.encoder.width, "searched_on": searched}
        return Entry(name, self.recipe, self.encoder.tensors(), provenance)


def cross_validate(
    heads: NDArray[np.float64],
    plain: NDArray[np.float64],
    gold: NDArray[np.float64],
    *,
    halvings: int = HALVINGS,
    seed: int = SEED,
) -> CrossValidation:
    """Choose the best head on a random half of the pairs and score it on the other half, both ways, repeatedly.

    Args:
        heads: (s, H, n) cosines of H heads on s kinds of states.
        plain: (s, n) cosines of the states' plain averages.
        gold: (n,) gold scores.
        halvings: How many random halvings.
        seed: Seed of the halvings.
    """
    flat = heads.reshape(-1, len(gold))
    generator = np.random.default_rng(seed)
    half = np.zeros((len(gold), halvings))
    for column in half.T:
        column[generator.permutation(len(gold))[: len(gold) // 2]] = 1
    values = correlations(flat, gold, np.hstack([half, 1 - half]))
    average = correlations(plain, gold, np.hstack([1 - half, half]))
    chosen = values.argmax(axis=0)
    choice = np.arange(2 * halvings)
    held_out = values[chosen, (choice + halvings) % (2 * halvings)]
    overall = correlations(flat, gold, np.ones((len(gold), 1)))[:, 0].argmax()
    return CrossValidation(
        choices=2 * halvings,
        chosen=100 * float(values[chosen, choice].mean()),
        held_out=100 * float(held_out.mean()),
        gain=100 * float((held_out - average[chosen // heads.shape[1], choice]).mean()),
        agreement=float((chosen == overall).mean()),
    )


def correlations(
    cosines: NDArray[np.float64], gold: NDArray[np.float64], counts: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return Spearman's correlation of k rows of cosines with gold inside each of r selections of the pairs, (k, r).

    Args:
        cosines: (k, n).
        gold: (n,).
        counts: (n, r), how often each pair stands in each selection.
    """
    ranks = [statistics.ResampledRanks(row) for row in cosines]
    return statistics.resampled_spearman(ranks, statistics.ResampledRanks(gold), counts)
