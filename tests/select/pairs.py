"""The development set of the searches' tests."""

import itertools

import numpy as np

from promptcli.data.tasks import Pairs, STSTask
from tests.source_files import write_table
from tests.tiny import SENTENCES


def make_task(pairs, gold=None):
    first, second = (list(side) for side in zip(*pairs, strict=True))
    gold = (
        np.random.default_rng(0).permutation(len(pairs)) / 10
        if gold is None
        else np.array(gold, dtype=float)
    )
    return STSTask("demo", "dev", "senteval", "as made up", {"all": Pairs(first, second, gold)})


#: Every pair of sentences.
EVERY_PAIR = make_task(list(itertools.combinations(SENTENCES, 2)))


def write_pairs(folder):
    """Write the pairs as a user's own file."""
    pairs = EVERY_PAIR.pairs()
    rows = zip(pairs.first, pairs.second, pairs.gold, strict=True)
    return write_table(folder / "graded.tsv", ("sentence1", "sentence2", "score"), rows)
