"""Tiny models and corpora of pre-training, and a step of it."""

import numpy as np
import torch

from promptcli.backbones.language_models import MaskedLM
from promptcli.plugins.pretrain.corpus import SPECIALS, Corpus, Vocabulary

VOCABULARY = Vocabulary(lambda lines: [], size=500)


def random_corpus(seed=0, lines=300, unrelated=60):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 30, lines)
    tokens = rng.integers(len(SPECIALS), 500, lengths.sum()).astype(np.uint16)
    return Corpus(tokens, np.cumsum(lengths), lines - unrelated, VOCABULARY)


def tiny_model(tied=True, **changes):
    shape = {
        "layers": 2,
        "width": 32,
        "heads": 2,
        "positions": 32,
        "vocab_size": 700,
        "tied": tied,
        "seed": 0,
    }
    return MaskedLM(**{**shape, **changes}, device="cpu", dtype=torch.float32)
