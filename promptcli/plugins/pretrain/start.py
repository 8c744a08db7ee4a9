"""The start of a pre-training run: a new BERT, a model of an earlier run, or a model of others.

The token vectors of a new BERT start from a truncated SVD of the positive pointwise mutual
information (PPMI) of the corpus, so that words in similar contexts are close. The position table
starts from sinusoids, so that the same distance looks the same at every position.
"""

import itertools
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
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
from promptcli.backbones.language_models import ContinuedMaskedLM, MaskedCheckpoint, MaskedLM
from promptcli.backbones.model_folder import json_field
from promptcli.data.training_data import stream_sentences
from promptcli.errors import UsageError
from promptcli.plugins.pretrain.corpus import (
    SPECIALS,
    Corpus,
    Vocabulary,
    train_vocabulary,
)
from promptcli.plugins.pretrain.plan import CONTINUED, LONG, Plan
from promptcli.storage import files

_WINDOW_TOKENS = 5  # to each side; a pair of tokens at distance d counts 1/d
# exponent of context counts, which keeps rare contexts from dominating (Levy et al. 2015)
_SMOOTHING_EXPONENT = 0.75
_TOKENS_PER_COUNT = 4_000_000  # counted together
_START_STD = 0.04  # of the start vectors
_RANDOM_STD = 0.02  # BERT's own, for dimensions without data
_MAX_WAVELENGTH = 10_000.0  # of the sinusoids, in units of 2 pi tokens


class NewBert:
    """A BERT from random weights; its vocabulary and its start vectors come from the corpus."""

    def plan(self, settings: Mapping[str, Any]) -> Plan:
        return Plan(**settings)

    def vocabulary(self, work: Path, texts: Sequence[Path], size: int) -> Vocabulary:
        """Return the vocabulary in the run's folder ``work``; if it is missing, it is trained on
        all lines.
        """
        file = work / "vocab.txt"
        if not file.is_file():
            with notes.stage("vocabulary", None) as advance:

                def lines() -> Iterator[str]:
                    for line in itertools.chain.from_iterable(map(stream_sentences, texts)):
                        advance(1)
                        yield line

                pieces = train_vocabulary(lines, size).pieces
            # BERT's form: a piece on each line, in the order of the ids
            files.write_text(file, "".join(f"{piece}\n" for piece in pieces))
        return Vocabulary.load(file)

    def model(self, plan: Plan, corpus: Corpus, device: str, *, resumed: bool) -> ContinuedMaskedLM:
        """Return the model to train; the weights of a ``resumed`` run are loaded later."""
        model = new_model(plan, device)
        if not resumed:
            with notes.stage("start vectors", None):
                vectors = ppmi_svd(corpus, plan.vocab_size, plan.width, plan.seed)
            model.start_from(torch.from_numpy(vectors))
        return model

    def save_tokenizer(self, work: Path, folder: Path, plan: Plan) -> None:
        """Write ``vocab.txt`` and ``tokenizer_config.json`` in the form of a BERT checkpoint."""
        shutil.copyfile(work / "vocab.txt", folder / "vocab.txt")
        settings = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": True,
            "model_max_length": plan.positions,
        }
        (folder / "tokenizer_config.json").write_text(
            json.dumps(settings, indent=1) + "\n", encoding="utf-8"
        )


@dataclass(frozen=True)
class OthersModel(NewBert):
    """A masked language model that others made."""

    checkpoint: MaskedCheckpoint

    def plan(self, settings: Mapping[str, Any]) -> Plan:
        fixed = {
            "positions": min(self.checkpoint.backbone.max_tokens, LONG[-1] + 2),
            "tied": True,
            "objective": Plan.objective,
            "at_start": 1.0,
            "dropout": 0.0,
            "dropout_from": 0.0,
        }
        return self._plan({**CONTINUED, **settings}, fixed)

    def _plan(self, settings: Mapping[str, Any], fixed: Mapping[str, Any]) -> Plan:
        """Return the plan of a run from this model, which fixes its shape and the settings
        ``fixed``.
        """
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
            requested = settings.get(field, default)
            if requested not in (value, default):
                raise UsageError(
                    f"{requested} does not go with {self.checkpoint.name}, which has its own; leave"
                    " it out",
                    parameter=field,
                )
        return Plan(**{**settings, **fixed, "begun_from": backbone.provenance.weights_sha256})

    def vocabulary(self, work: Path, texts: Sequence[Path], size: int) -> Vocabulary:
        return Vocabulary.of(self.checkpoint)

    def model(self, plan: Plan, corpus: Corpus, device: str, *, resumed: bool) -> ContinuedMaskedLM:
        return self.checkpoint.model(device, devices.choose_dtype("auto", device))

    def save_tokenizer(self, work: Path, folder: Path, plan: Plan) -> None:
        self.checkpoint.copy_tokenizer(folder)


class OwnBert(OthersModel):
    """A BERT that ``promptcli pretrain`` made; a run from it has the settings of a new BERT."""

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
    """Open a shipped model, a folder or a hub id; the files of its tokenizer tell whether this
    command made the model.
    """
    if name == "mini":
        raise UsageError("mini is an encoder; give mini-bert, its backbone", parameter="start")
    checkpoint = MaskedCheckpoint.open(name)
    backbone = checkpoint.backbone
    first_tokens = tuple(map(backbone.tokenizer.text, range(len(SPECIALS))))
    is_own = (
        backbone.provenance.family == "bert"
        and first_tokens == SPECIALS
        and json_field(backbone.folder / "tokenizer_config.json", "do_lower_case") is True
        and not (backbone.folder / "tokenizer.json").is_file()
    )
    return OwnBert(checkpoint) if is_own else OthersModel(checkpoint)


def sinusoids(positions: int, width: int) -> Tensor:
    """Return sines and cosines, (positions, d) (Vaswani et al. 2017, 3.5), scaled like the random
    numbers from which BERT starts.
    """
    pairs = torch.arange((width + 1) // 2)
    angles = torch.arange(positions)[:, None] * _MAX_WAVELENGTH ** (-2 * pairs / width)
    waves = torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)
    return waves[:, :width] * (_RANDOM_STD * 2**0.5)


def ppmi_svd(corpus: Corpus, vocab_size: int, width: int, seed: int) -> np.ndarray:
    """Return start vectors of the tokens, (v, d) float32: U sqrt(S) of the PPMI matrix, scaled."""
    counts = _cooccurrences(corpus, vocab_size)
    row_sums = np.asarray(counts.sum(axis=1)).ravel()
    contexts = row_sums**_SMOOTHING_EXPONENT
    contexts /= contexts.sum()
    pairs = counts.tocoo()
    information = np.log(pairs.data / (row_sums[pairs.row] * contexts[pairs.col]))
    positive = information > 0
    matrix = sp.csr_matrix(
        (information[positive].astype(np.float32), (pairs.row[positive], pairs.col[positive])),
        shape=(vocab_size, vocab_size),
    )
    rng = np.random.default_rng(seed)
    vectors = rng.normal(0, _RANDOM_STD, (vocab_size, width)).astype(np.float32)
    rank = min(width, vocab_size - 1)
    left, singular, _ = svds(matrix, k=rank, random_state=seed)
    scaled = left * np.sqrt(singular)
    std = scaled.std()
    if std > 0:
        vectors[len(SPECIALS) :, :rank] = (scaled / std * _START_STD)[len(SPECIALS) :]
    return vectors


def _cooccurrences(corpus: Corpus, vocab_size: int) -> Any:
    """Return the counts of pairs of tokens in a line and within the window, (v, v), symmetric."""
    total: Any = sp.coo_array((vocab_size, vocab_size), dtype=np.float32).tocsr()
    line_of = np.repeat(np.arange(len(corpus.ends)), np.diff(corpus.ends, prepend=0))
    for start in range(0, len(corpus.tokens), _TOKENS_PER_COUNT):
        tokens = np.asarray(corpus.tokens[start : start + _TOKENS_PER_COUNT]).astype(np.int64)
        lines = line_of[start : start + _TOKENS_PER_COUNT]
        are_words = tokens >= len(SPECIALS)
        for distance in range(1, _WINDOW_TOKENS + 1):
            near = lines[:-distance] == lines[distance:]
            near &= are_words[:-distance] & are_words[distance:]
            pairs = (tokens[:-distance][near], tokens[distance:][near])
            weights = np.full(len(pairs[0]), 1 / distance, np.float32)
            total = total + sp.csr_matrix((weights, pairs), shape=total.shape)
    return (total + total.T).tocsr()
