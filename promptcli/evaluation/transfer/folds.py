"""Stratified folds, drawn as scikit-learn draws them, so that SentEval's folds are met example by example."""

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


def stratified_folds(labels: NDArray[np.int64], folds: int, seed: int) -> list[tuple[Rows, Rows]]:
    """Return the rows of every fold, those to train on and those to test on; each class is spread evenly.

    Equals scikit-learn's ``StratifiedKFold(folds, shuffle=True, random_state=seed)`` since its version 0.22: classes in
    the order of their first appearance; how many of each go to a fold is read off the sorted labels, dealt out like
    cards; a class's places are then shuffled.

    Args:
        labels: (n,) class numbers.
        folds: How many.
        seed: Of the shuffling.
    """
    _, first, encoded = np.unique(labels, return_index=True, return_inverse=True)
    by_appearance = np.argsort(np.argsort(first))
    encoded = by_appearance[encoded]
    dealt = np.sort(encoded)
    counts = np.stack([np.bincount(dealt[fold::folds], minlength=len(first)) for fold in range(folds)])
    generator = np.random.RandomState(seed)
    fold_of = np.empty(len(labels), dtype=np.int64)
    for number in range(len(first)):
        places = np.arange(folds).repeat(counts[:, number])
        generator.shuffle(places)
        fold_of[encoded == number] = places
    return [(np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)) for fold in range(folds)]
