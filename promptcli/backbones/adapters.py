"""What is particular to a model that a backbone calls: sizes, positions, masks, embeddings.

The row of its family says how transformers' model differs from the others.
"""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from promptcli.backbones.attention_hook import allow_prepending, register_attention
from promptcli.backbones.bert import BertModel
from promptcli.backbones.families import Family
from promptcli.backbones.states import Batch
from promptcli.backbones.value_states import allow_values


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model, by its configuration."""

    width: int  #: d
    last_width: int  #: of the last hidden states; differs in OPT-350M, which projects them
    n_layers: int  #: L
    n_heads: int  #: h
    n_key_heads: int  #: h', heads of keys and values: fewer than h where queries share them
    head_width: int  #: d/h (set separately in Qwen3 and Gemma)

    @classmethod
    def of(cls, config: Any) -> "Sizes":
        width: int = config.hidden_size
        n_heads: int = config.num_attention_heads
        return cls(
            width,
            getattr(config, "word_embed_proj_dim", width),
            config.num_hidden_layers,
            n_heads,
            getattr(config, "num_key_value_heads", None) or n_heads,
            getattr(config, "head_dim", None) or width // n_heads,
        )


class ModelAdapter:
    """A model of transformers, or our own BERT, whose attention is the hook's own."""

    def __init__(self, model: Any, family: Family) -> None:
        self.model = model
        self.family = family
        #: Our own BERT, whose last layer can be computed at one position of each input alone.
        self.ours = isinstance(model, BertModel)
        self.takes_hook = family.hook or self.ours  #: calls the attention hook
        self._padding: int = model.config.pad_token_id or 0  #: id, by the configuration
        self._first_position = 0
        if family.pads_before_positions:
            self._first_position = self._padding + 1
        #: Longest input in tokens, specials included.
        self.max_tokens: int = model.config.max_position_embeddings - self._first_position
        if family.causal:
            allow_prepending(model.get_submodule(family.layers))
        if family.values:
            allow_values(model, family.values, Sizes.of(model.config).n_layers)

    def on(self, model: Any) -> "ModelAdapter":
        """Return the adapter of a copy of the model."""
        adapter = copy.copy(self)
        adapter.model = model
        return adapter

    def register_hook(self) -> None:
        """Make the attention hook known to transformers, in a process that has not loaded it."""
        if self.takes_hook and not self.ours:
            register_attention()

    @property
    def token_rows(self) -> Tensor:
        """The word-embedding matrix, (v, d)."""
        rows: Tensor = self.model.get_input_embeddings().weight
        return rows

    @property
    def embedding_layer(self) -> nn.Module | None:
        """Words, positions and types together, LayerNorm included; None if it has no such layer."""
        layer: nn.Module | None = getattr(self.model, "embeddings", None)
        return layer

    def arguments(self, batch: Batch) -> dict[str, Tensor | None]:
        """Return a batch as the model takes it."""
        return {
            **self._tokens(batch),
            "attention_mask": self._mask(batch),
            "position_ids": self._positions(batch),
        }

    def embeddings(self, batch: Batch) -> Tensor:
        """Return the word embeddings (n, t, e), learned vectors in the places of their words."""
        rows = self.token_rows[batch.ids]
        if batch.soft is None:
            return rows
        lines = torch.arange(batch.ids.size(0), device=batch.ids.device).unsqueeze(1)
        vectors = batch.soft.vectors.to(rows.dtype).expand(len(lines), -1, -1)
        return rows.index_put((lines, batch.soft.slots), vectors)

    def _tokens(self, batch: Batch) -> dict[str, Tensor]:
        if batch.soft is None:
            return {"input_ids": batch.ids}
        embedded = self.embeddings(batch)
        # Gemma's own look-up multiplies by it
        scale = getattr(self.model.get_input_embeddings(), "embed_scale", None)
        if scale is not None:
            embedded = embedded * scale.to(embedded.dtype)
        return {"inputs_embeds": embedded}

    def _mask(self, batch: Batch) -> Tensor | None:
        """Return the mask of tokens that are not padding; None if it is not needed.

        Causal models take positions with gaps for several texts in a row, unless there is a mask;
        on a GPU they would wait for it to look for gaps.
        """
        on_gpu = batch.ids.device.type == "cuda"
        has_gaps = self.family.causal and (batch.positions is not None or on_gpu)
        if batch.padded or has_gaps:
            return batch.real().long()
        return None

    def _positions(self, batch: Batch) -> Tensor:
        before = 0  # keys of a deep prefix: the code of DCPCSE, and peft, count from them
        if batch.prefix is not None:
            before = batch.prefix[0][0].size(-2)
        positions = batch.positions
        if positions is None and self._has_typed_padding(batch):
            # RoBERTa does not count it
            others = (batch.ids != self._padding).long()
            return (others.cumsum(dim=1) + before) * others + self._padding
        if positions is None:
            positions = torch.arange(batch.ids.size(1), device=batch.ids.device).unsqueeze(0)
        positions = positions + before
        if batch.raw_positions:
            return positions
        return positions + self._first_position

    def _has_typed_padding(self, batch: Batch) -> bool:
        """Return whether an input may have a token of padding, typed by a user, beside those that
        fill it up, in a family whose positions depend on it.
        """
        if not self._first_position or batch.soft is not None:
            return False
        if batch.rows is None:
            return True
        filling = batch.rows.size - int(batch.host_lengths().sum())
        return int(np.count_nonzero(batch.rows == self._padding)) > filling
