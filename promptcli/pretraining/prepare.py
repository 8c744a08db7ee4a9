"""Preparation of a pre-training run: vocabulary, token ids, start vectors.

Tokens start from a truncated SVD of the corpus' positive pointwise mutual information (PPMI): words of similar contexts
are close. Positions start from sinusoids: equal distances look the same everywhere.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import svds
from torch import Tensor

from promptcli.backbones.vocabulary import SPECIALS, Vocabulary, train_vocabulary
from promptcli.errors import UsageError
from promptcli.notes import working
from promptcli.pretraining.bag_of_words import read_templates
from promptcli.pretraining.corpus import Corpus, CorpusFile, open_corpus, tokenise
from promptcli.pretraining.plan import Plan
from promptcli.storage.files import atomic_path

_WINDOW = 5  # tokens to each side; a pair d apart counts 1/d
_SMOOTHING = 0.75  # of context counts, so that rare contexts do not rule (Levy, Goldberg and Dagan 2015)
_SLICE = 4_000_000  # tokens counted at a time
_SPREAD = 0.04  # standard deviation of the start vectors
_WAVELENGTH = 10_000.0  # of the slowest pair, in units of 2 pi tokens
_PLAIN_SPREAD = 0.02  # BERT's own, for dimensions without data


def make_vocabulary(folder: Path, files: Sequence[CorpusFile], size: int) -> Vocabulary:
    """Return the run's vocabulary, trained on all lines unless it exists."""
    if not (folder / "vocab.txt").is_file():
        with working("vocabulary", None) as advance:

            def lines() -> Iterator[str]:
                for file in files:
                    for line in file.lines():
                        advance(1)
                        yield line

            vocabulary = train_vocabulary(lines, size)
        with atomic_path(folder / "vocab.txt") as temporary:
            vocabulary.save(temporary)
    return Vocabulary.load(folder / "vocab.txt")


def make_corpus(
    folder: Path, files: Sequence[CorpusFile], vocabulary: Vocabulary, plan: Plan, templates: Path | None
) -> Corpus:
    """Return the tokenised corpus, written unless it exists, with the templates of that file."""
    template_ids = read_templates(templates, vocabulary) if templates else ()
    if not (folder / "lines.npz").is_file():
        with working("tokenise", None) as advance:
            tokenise(files, vocabulary, folder, advance)
    corpus = open_corpus(folder, vocabulary, template_ids)
    if len(corpus.tokens) < plan.batch_tokens:
        raise UsageError(
            f"the corpus has {len(corpus.tokens):,} tokens, fewer than one batch (`batch_tokens` {plan.batch_tokens});"
            " give more text or a smaller batch"
        )
    return corpus


def make_start(folder: Path, corpus: Corpus, plan: Plan) -> Tensor:
    """Return the start vectors, (v, d), computed unless they exist."""
    path = folder / "start.npy"
    if not path.is_file():
        vectors = ppmi_svd(corpus, plan.vocab_size, plan.width, plan.seed)
        with atomic_path(path) as temporary, temporary.open("wb") as out:
            np.save(out, vectors, allow_pickle=False)
    return torch.from_numpy(np.load(path))


def sinusoids(positions: int, width: int) -> Tensor:
    """Return sines and cosines of each position in turns, (positions, d) (Vaswani et al. 2017, section 3.5).

    Scaled to BERT's own random start.
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
    scaled = left * np.sqrt(singular)
    spread = scaled.std()
    if spread > 0:
        vectors[len(SPECIALS) :, :rank] = (scaled / spread * _SPREAD)[len(SPECIALS) :]
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
