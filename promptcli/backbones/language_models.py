"""Masked language models with their heads, for pre-training: a BERT with random weights, or a
checkpoint of any masked family.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, BertForMaskedLM
from transformers.utils import logging as transformers_logging

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.backbone_files import is_tokenizer_file
from promptcli.backbones.bert import BertModel, read_bert_config
from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.families import FAMILIES
from promptcli.backbones.head import load_masked_lm
from promptcli.backbones.model_folder import own_tokenizer
from promptcli.backbones.transformers_loading import opening
from promptcli.errors import UsageError
from promptcli.storage.tensors import disk_errors


@dataclass(frozen=True)
class MaskedInputs:
    """Inputs of masked language modelling on a device, with the right predictions."""

    ids: Tensor  #: (n, t)
    real: Tensor | None  #: (n, t) bool, not padding; None without padding
    begins: Tensor  #: (n,) the position of each row's first token
    places: Tensor  #: (k,) places with a prediction, as indices of the flattened ids
    gold: Tensor  #: (g,) the right ids of the first g places
    words: Tensor  #: (e,) ids of words that the masks of templates predict, at the other places
    owners: Tensor  #: (e,) for each word its place, counted after the first g
    weights: Tensor  #: (e,) of the words, with the sum 1 (Ma et al. 2024, eq. 3)


class ContinuedMaskedLM:
    """A checkpoint of a masked family with its own head, computed by transformers.

    Dropout follows its configuration, and every row begins at position 0. Products are computed in
    ``dtype``, all else in float32.
    """

    def __init__(self, stored: Any, head: nn.Module, dtype: torch.dtype) -> None:
        self._stored = stored.train()
        self._head = head
        self._dtype = dtype
        #: Trainable tensors by name; tied tensors are listed once.
        self.parameters: dict[str, nn.Parameter] = dict(stored.named_parameters())

    def _logits(self, inputs: MaskedInputs) -> Tensor:
        """Return the logits (k, v) of the places."""
        mask = None if inputs.real is None else inputs.real.long()
        output = self._stored.base_model(input_ids=inputs.ids, attention_mask=mask)
        logits: Tensor = self._head(output.last_hidden_state.flatten(0, 1)[inputs.places])
        return logits

    def _drop(self, dropout: float) -> None:
        """Set the probability of dropout; the checkpoint's configuration decides here."""

    def loss(self, inputs: MaskedInputs, *, dropout: float) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy of the gold ids plus the words' cross-entropy, and the
        number of correct top predictions.

        ``dropout`` is the probability of dropout, of hidden states and attention.
        """
        self._drop(dropout)
        gold, words = inputs.gold, inputs.words
        device = inputs.ids.device.type
        with torch.autocast(device, self._dtype, enabled=self._dtype != torch.float32):
            logits = self._logits(inputs).float()
        loss = functional.cross_entropy(logits[: len(gold)], gold)
        right_count = (logits.detach()[: len(gold)].argmax(dim=1) == gold).sum()
        if len(words):
            likelihoods = logits[len(gold) :].log_softmax(dim=1)[inputs.owners, words]
            loss = loss - (inputs.weights * likelihoods).sum()
        return loss, right_count

    def save(self, folder: Path, *, dropout: float) -> None:
        """Write ``config.json`` and ``model.safetensors``, head included."""
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        with disk_errors(folder / "model.safetensors"):
            self._stored.eval().save_pretrained(folder)


class MaskedLM(ContinuedMaskedLM):
    """A BERT and its head with random weights.

    transformers draws, names and stores the weights; our own model computes on the same tensors.
    """

    def __init__(
        self,
        *,
        layers: int,
        width: int,
        heads: int,
        positions: int,
        vocab_size: int,
        tied: bool,
        seed: int,
        device: str,
        dtype: torch.dtype,
    ) -> None:
        torch.manual_seed(seed)
        config: Any = BertConfig(
            vocab_size=vocab_size,
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            max_position_embeddings=positions,
            tie_word_embeddings=tied,
        )
        stored = cast(Any, BertForMaskedLM(config))
        decoder = stored.get_output_embeddings()
        if not tied:
            decoder.weight.data.copy_(stored.get_input_embeddings().weight.data)
        stored.to(device)
        super().__init__(stored, stored.cls, dtype)
        self._decoder = decoder
        our_config = read_bert_config("bert", config.to_dict())
        assert our_config is not None
        with torch.device("meta"):
            self._bert = BertModel(our_config, FAMILIES["bert"], pooler=False)
        self._bert.load_state_dict(stored.bert.state_dict(keep_vars=True), assign=True)
        if not tied:
            del self.parameters["cls.predictions.bias"]  # an untied decoder has its own bias

    @property
    def word_embeddings(self) -> nn.Parameter:
        """The word embeddings, (v, d)."""
        rows: nn.Parameter = self._stored.get_input_embeddings().weight
        return rows

    @property
    def position_rows(self) -> nn.Parameter:
        """The position table, (positions, d)."""
        rows: nn.Parameter = self._stored.bert.embeddings.position_embeddings.weight
        return rows

    def start_from(self, vectors: Tensor) -> None:
        """Set the word embeddings, and untied output embeddings too, to vectors (v, d)."""
        with torch.no_grad():
            for rows in (self.word_embeddings, self._decoder.weight):
                rows.copy_(vectors)

    def _logits(self, inputs: MaskedInputs) -> Tensor:
        ids = inputs.ids
        positions = inputs.begins[:, None] + torch.arange(ids.shape[1], device=ids.device)
        # the positions of padding may exceed the table
        positions = positions.clamp(max=len(self.position_rows) - 1)
        output = self._bert(input_ids=ids, attention_mask=inputs.real, position_ids=positions)
        logits: Tensor = self._head(output.last_hidden_state.flatten(0, 1)[inputs.places])
        return logits

    def _drop(self, dropout: float) -> None:
        for module in self._bert.modules():
            if isinstance(module, nn.Dropout):
                module.p = dropout

    def save(self, folder: Path, *, dropout: float) -> None:
        config = self._stored.config
        config.hidden_dropout_prob = dropout
        config.attention_probs_dropout_prob = dropout
        super().save(folder, dropout=dropout)


@dataclass(frozen=True)
class MaskedCheckpoint:
    """A checkpoint of a masked family whose pre-training continues."""

    name: str  #: as given
    backbone: Backbone
    tokenizer: Any  #: of transformers

    @classmethod
    def open(cls, name: str) -> "MaskedCheckpoint":
        """Find a checkpoint, and check that it is sound and has a masked-LM head."""
        backbone = load_backbone(name)
        if backbone.causal or backbone.merged or not backbone.family.transform:
            kind = "a causal model" if backbone.causal else "an adapter, or another kind of model"
            raise UsageError(
                f"{name} is {kind}; masked language modelling goes on from a masked language model"
                " with its head, e.g. bert-base-uncased"
            )
        _ = backbone.head  # refuses a checkpoint without a head before the work
        with opening(f"backbone {name!r}"):
            tokenizer = backbone.tokenizer_of_transformers()
        return cls(name, backbone, tokenizer)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line by the checkpoint's tokenizer, without special tokens."""
        encoder = self.tokenizer.backend_tokenizer
        encoder.no_truncation()
        encoder.no_padding()
        encodings = encoder.encode_batch_fast(list(lines), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def model(self, device: str, dtype: torch.dtype) -> ContinuedMaskedLM:
        """Return the model in float32, to be trained."""
        names = self.backbone.tensor_names
        family = self.backbone.provenance.family
        model, head = load_masked_lm(
            self.backbone.folder, self.name, family, names, dtype=torch.float32
        )
        both = nn.Sequential(head.transform, head.decoder)
        return ContinuedMaskedLM(model.to(device), both, dtype)

    def copy_tokenizer(self, folder: Path) -> None:
        """Copy the files of its tokenizer into a folder."""
        for path in sorted(own_tokenizer(self.backbone.folder).iterdir()):
            if is_tokenizer_file(path):
                shutil.copyfile(path, folder / path.name)
