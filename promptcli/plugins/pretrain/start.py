"""The start of a pre-training run: a new BERT, a model of an earlier run, or a model of others.

The token vectors of a new BERT start from a truncated SVD of the corpus' positive pointwise mutual
information (PPMI), so words in similar contexts are close. Its positions start from sinusoids, so
the same distance looks the same at every position.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import svds
from torch import Tensor

from promptcli import notes
from promptcli.backbones import devices
from promptcli.backbones.backbone import Backbone
from promptcli.backbones.language_models import ContinuedMaskedLM, MaskedCheckpoint, MaskedLM
from promptcli.backbones.model_folder import json_field
from promptcli.errors import UsageError
from promptcli.plugins.pretrain.corpus import (
    SPECIALS,
    Corpus,
    Vocabulary,
    make_vocabulary,
    save_own_tokenizer,
)
from promptcli.plugins.pretrain.plan import CONTINUED, LONG, Plan

_ENCODER = "mini"  # the shipped encoder; it is not a language model
_WINDOW = 5  # tokens to each side; a pair d apart counts 1/d
# exponent of context counts, so that rare contexts do not dominate (Levy et al. 2015)
_SMOOTHING = 0.75
_SLICE = 4_000_000  # tokens counted at a time
_SPREAD = 0.04  # standard deviation of the start vectors
_WAVELENGTH = 10_000.0  # of the slowest pair, in units of 2 pi tokens
_PLAIN_SPREAD = 0.02  # BERT's own, for dimensions without data


class NewBert:
    """A BERT from random weights, with vocabulary and initial vectors from the corpus."""

    def plan(self, settings: Mapping[str, Any]) -> Plan:
        return Plan(**settings)

    def vocabulary(self, work: Path, texts: Sequence[Path], size: int) -> Vocabulary:
        return make_vocabulary(work, texts, size)

    def model(self, plan: Plan, corpus: Corpus, device: str, *, resumed: bool) -> ContinuedMaskedLM:
        """Return the model to train; the weights of a ``resumed`` run are loaded later."""
        model = new_model(plan, device)
        if not resumed:
            with notes.stage("start vectors", None):
                vectors = ppmi_svd(corpus, plan.vocab_size, plan.width, plan.seed)
            model.start_from(torch.from_numpy(vectors))
        return model

    def save_tokenizer(self, work: Path, folder: Path, plan: Plan) -> None:
        save_own_tokenizer(work / "vocab.txt", folder, plan.positions)


@dataclass(frozen=True)
class OthersModel(NewBert):
    """A masked language model that others made."""

    checkpoint: MaskedCheckpoint

    def plan(self, settings: Mapping[str, Any]) -> Plan:
        """Return the plan of a run from this model, with the given settings."""
        backbone = self.checkpoint.backbone
        fixed = {
            "positions": min(backbone.max_tokens, LONG[-1] + 2),
            "tied": True,
            "objective": Plan.objective,
            "at_start": 1.0,
            "dropout": 0.0,
            "dropout_from": 0.0,
        }
        return self._plan({**CONTINUED, **settings}, fixed)

    def _plan(self, settings: Mapping[str, Any], fixed: Mapping[str, Any]) -> Plan:
        """Return the plan of a run; the model fixes its shape and some settings."""
        backbone = self.checkpoint.backbone
        fixed = {
            "layers": backbone.n_layers,
            "width": backbone.width,
            "heads": backbone.n_heads,
            "vocab_size": backbone.tokenizer.highest + 1,
            **fixed,
        }
        for field, value in fixed.items():
            default = getattr(Plan, field)
            asked = settings.get(field, default)
            if asked not in (value, default):
                raise UsageError(
                    f"{asked} does not go with {self.checkpoint.name}, which has its own; leave it"
                    " out",
                    parameter=field,
                )
        begun_from = backbone.provenance.weights_sha256
        return Plan(**{**settings, **fixed, "begun_from": begun_from})

    def vocabulary(self, work: Path, texts: Sequence[Path], size: int) -> Vocabulary:
        return Vocabulary.of(self.checkpoint)

    def model(self, plan: Plan, corpus: Corpus, device: str, *, resumed: bool) -> ContinuedMaskedLM:
        return self.checkpoint.model(device, devices.choose_dtype("auto", device))

    def save_tokenizer(self, work: Path, folder: Path, plan: Plan) -> None:
        self.checkpoint.copy_tokenizer(folder)


class OwnBert(OthersModel):
    """A BERT that ``promptcli pretrain`` made, with the settings of a new one."""

    def plan(self, settings: Mapping[str, Any]) -> Plan:
        backbone = self.checkpoint.backbone
        tied = "cls.predictions.decoder.weight" not in backbone.tensor_names
        return self._plan(settings, {"positions": backbone.max_tokens, "tied": tied})

    def vocabulary(self, work: Path, texts: Sequence[Path], size: int) -> Vocabulary:
        return Vocabulary.load(self.checkpoint.backbone.folder / "vocab.txt")

    def model(self, plan: Plan, corpus: Corpus, device: str, *, resumed: bool) -> ContinuedMaskedLM:
        model = new_model(plan, device)
        stored = super().model(plan, corpus, device, resumed=resumed).parameters
        with torch.no_grad():
            for name, parameter in model.parameters.items():
                parameter.copy_(stored[name])
        return model


def new_model(plan: Plan, device: str, dtype: torch.dtype | None = None) -> MaskedLM:
    """Return a BERT of a plan's shape, from random weights and sinusoids."""
    model = MaskedLM(
        layers=plan.layers,
        width=plan.width,
        heads=plan.heads,
        positions=plan.positions,
        vocab_size=plan.vocab_size,
        tied=plan.tied,
        seed=plan.seed,
        device=device,
        dtype=dtype or devices.choose_dtype("auto", device),
    )
    model.position_rows.data.copy_(sinusoids(plan.positions, plan.width))
    return model


def open_start(name: str) -> NewBert:
    """Open a shipped model, a folder or a hub id, made by this command or by others."""
    if name == _ENCODER:
        raise UsageError(f"{name} is an encoder; give mini-bert, its backbone", parameter="start")
    checkpoint = MaskedCheckpoint.open(name)
    return OwnBert(checkpoint) if _is_own(checkpoint.backbone) else OthersModel(checkpoint)


def _is_own(backbone: Backbone) -> bool:
    """Return whether a backbone is a BERT that this command made, by its tokenizer."""
    first = tuple(map(backbone.tokenizer.text, range(len(SPECIALS))))
    folder = backbone.folder
    return (
        backbone.provenance.family == "bert"
        and first == SPECIALS
        and json_field(folder / "tokenizer_config.json", "do_lower_case") is True
        and not (folder / "tokenizer.json").is_file()
    )


def sinusoids(positions: int, width: int) -> Tensor:
    """Return sines and cosines, (positions, d) (Vaswani et al. 2017, 3.5), scaled like BERT's
    random start.
    """
    pairs = torch.arange((width + 1) // 2)
    angles = torch.arange(positions)[:, None] * _WAVELENGTH ** (-2 * pairs / width)
    waves = torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)
    return waves[:, :width] * (_PLAIN_SPREAD * 2**0.5)


def ppmi_svd(corpus: Corpus, vocab_size: int, width: int, seed: int) -> np.ndarray:
    """Return initial token vectors, (v, d) float32: U sqrt(S) of the PPMI matrix, scaled."""
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
    """Return the symmetric counts of pairs of tokens within the window and a line, (v, v)."""
    total: Any = sp.coo_array((vocab_size, vocab_size), dtype=np.float32).tocsr()
    line_of = np.repeat(np.arange(len(corpus.ends)), np.diff(corpus.ends, prepend=0))
    for start in range(0, len(corpus.tokens), _SLICE):
        tokens = np.asarray(corpus.tokens[start : start + _SLICE]).astype(np.int64)
        lines = line_of[start : start + _SLICE]
        are_words = tokens >= len(SPECIALS)
        for distance in range(1, _WINDOW + 1):
            near = lines[:-distance] == lines[distance:]
            near &= are_words[:-distance] & are_words[distance:]
            pairs = (tokens[:-distance][near], tokens[distance:][near])
            weights = np.full(len(pairs[0]), 1 / distance, np.float32)
            total = total + sp.csr_matrix((weights, pairs), shape=total.shape)
    return (total + total.T).tocsr()
