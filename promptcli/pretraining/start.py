"""Where embeddings start, which saves the first part of a short run.

Tokens start from a truncated SVD of the corpus' positive pointwise mutual information (PPMI): words of like contexts
are near one another. Positions start from sinusoids: equal distances look alike wherever they are.
"""

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import svds
from torch import Tensor

from promptcli.backbones.vocabulary import SPECIALS
from promptcli.pretraining.corpus import Corpus

_WINDOW = 5  # tokens to each side; a pair d apart counts 1/d
_SMOOTHING = 0.75  # of context counts, so that rare contexts do not rule (Levy, Goldberg and Dagan 2015)
_SLICE = 4_000_000  # tokens counted at a time
_SPREAD = 0.04  # standard deviation of the numbers handed out
_WAVELENGTH = 10_000.0  # of the slowest pair, in units of 2 pi tokens
_PLAIN_SPREAD = 0.02  # BERT's own, for what the corpus says nothing of


def sinusoids(positions: int, width: int) -> Tensor:
    """Return sines and cosines of each position in turns, (positions, d) (Vaswani et al. 2017, section 3.5).

    In the size of BERT's own random start.
    """
    pairs = torch.arange((width + 1) // 2)
    angles = torch.arange(positions)[:, None] * _WAVELENGTH ** (-2 * pairs / width)
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :width] * (_PLAIN_SPREAD * 2**0.5)


def ppmi_svd(corpus: Corpus, vocab_size: int, width: int, seed: int) -> np.ndarray:
    """Return start vectors of the tokens, (v, d) float32: U sqrt(S) of the PPMI matrix, scaled."""
    counts = _cooccurrences(corpus, vocab_size)
    row_sums = np.asarray(counts.sum(axis=1)).ravel()
    contexts = row_sums**_SMOOTHING
    contexts /= contexts.sum()
    pairs = counts.tocoo()
    information = np.log(pairs.data / (row_sums[pairs.row] * contexts[pairs.col]))
    positive = information > 0
    matrix = sp.csr_matrix(
        (information[positive].astype(np.float32), (pairs.row[positive], pairs.col[positive])),
        shape=(vocab_size, vocab_size),
    )
    rng = np.random.default_rng(seed)
    vectors = rng.normal(0, _PLAIN_SPREAD, (vocab_size, width)).astype(np.float32)
    rank = min(width, vocab_size - 1)
    left, singular, _ = svds(matrix, k=rank, random_state=seed)
    found = left * np.sqrt(singular)
    spread = found.std()
    if spread > 0:
        vectors[len(SPECIALS) :, :rank] = (found / spread * _SPREAD)[len(SPECIALS) :]
    return vectors


def _cooccurrences(corpus: Corpus, vocab_size: int) -> Any:
    """Return the symmetric counts of pairs within the window and the line's file run, (v, v)."""
    total: Any = sp.coo_array((vocab_size, vocab_size), dtype=np.float32).tocsr()
    line_of = np.repeat(np.arange(len(corpus.ends)), np.diff(corpus.ends, prepend=0))
    for start in range(0, len(corpus.tokens), _SLICE):
        tokens = np.asarray(corpus.tokens[start : start + _SLICE]).astype(np.int64)
        lines = line_of[start : start + _SLICE]
        for distance in range(1, _WINDOW + 1):
            first, second = tokens[:-distance], tokens[distance:]
            counted = (lines[:-distance] == lines[distance:]) & (first >= len(SPECIALS)) & (second >= len(SPECIALS))
            weights = np.full(int(counted.sum()), 1 / distance, np.float32)
            total = total + sp.csr_matrix((weights, (first[counted], second[counted])), shape=total.shape)
    return (total + total.T).tocsr()
