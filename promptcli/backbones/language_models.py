"""A BERT with its masked-LM head, in pre-training. Equal to transformers' own, in less time on a processor."""

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, BertForMaskedLM
from transformers.utils import logging as transformers_logging

from promptcli.backbones.dropout import Dropout
from promptcli.backbones.vocabulary import PAD
from promptcli.storage.tensors import disk_errors

_ROWS = 128  #: matrix products have a multiple of so many rows: the matrix library prepares every new shape in bfloat16


class MaskedLM:
    """A BERT with its masked-LM head, from random weights; several threads may compute losses at the same time."""

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
        self._dtype = dtype  # of the products; weights and optimiser are float32
        torch.manual_seed(seed)
        config: Any = BertConfig(
            vocab_size=vocab_size,
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            max_position_embeddings=positions,
            pad_token_id=PAD,
            tie_word_embeddings=tied,
        )
        self._model: Any = cast(Any, BertForMaskedLM(config))
        self._decoder = self._model.get_output_embeddings()
        if not tied:
            self._decoder.weight.data.copy_(self.token_rows.data)
        self._model.to(device).train()
        #: Trainable tensors by name; tied ones once.
        self.parameters: dict[str, nn.Parameter] = dict(self._model.named_parameters())
        if not tied:
            del self.parameters["cls.predictions.bias"]  # the untied decoder has its own bias

    @property
    def token_rows(self) -> nn.Parameter:
        """The word embeddings, (v, d)."""
        rows: nn.Parameter = self._model.get_input_embeddings().weight
        return rows

    @property
    def position_rows(self) -> nn.Parameter:
        """The position table, (positions, d)."""
        rows: nn.Parameter = self._model.bert.embeddings.position_embeddings.weight
        return rows

    def start_from(self, vectors: Tensor) -> None:
        """Set the word embeddings, and untied output embeddings too, to (v, d) vectors."""
        with torch.no_grad():
            for rows in (self.token_rows, self._decoder.weight):
                rows.copy_(vectors)

    def loss(
        self,
        ids: Tensor,
        real: Tensor | None,
        begins: Tensor,
        places: Tensor,
        gold: Tensor,
        *bags: Tensor,
        drop: Dropout,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean cross-entropy at the places, the number of right first guesses, and the loss of the bags.

        Args:
            ids: (n, t).
            real: (n, t) bool, not padding; None if there is no padding.
            begins: (n,) the position of each row's first token.
            places: (k,) places to predict from, numbered in the flattened ids.
            gold: (k,) the right ids.
            bags: Masks of templates that predict several words each: their places, (b,), and for each word the row of
                its mask, its id and its weight, (e,) each; see ``Bags``.
            drop: Dropout of hidden states and attention.
        """
        masks = bags[0] if bags else places[:0]
        states = self._states(ids, real, begins, _padded(torch.cat([masks, places])), drop)
        logits = self._logits(_padded(states[len(masks) : len(masks) + len(gold)]))[: len(gold)]
        loss = functional.cross_entropy(logits, gold)
        right = (logits.detach().argmax(dim=1) == gold).sum()
        if not bags:
            return loss, right, loss.new_zeros(())
        # the mean over masks of the cross-entropy against their words' weights (Ma et al. 2024, eq. 3)
        _, owners, words, weights = bags
        log_p = self._logits(states[: len(masks)]).log_softmax(dim=1)
        return loss, right, -(weights * log_p[owners, words]).sum() / len(masks)

    def _logits(self, states: Tensor) -> Tensor:
        logits: Tensor = functional.linear(states, self._decoder.weight.to(self._dtype)).float() + self._decoder.bias
        return logits

    def _states(self, ids: Tensor, real: Tensor | None, begins: Tensor, places: Tensor, drop: Dropout) -> Tensor:
        """Return the decoder's inputs at the places, (k, d); after the last attention nothing else is computed."""
        table, (n, t) = self._model.bert.embeddings, ids.shape
        positions = begins[:, None] + torch.arange(t, device=ids.device)
        blocked = None
        if real is not None:
            positions = torch.where(real, positions, 0)
            blocked = torch.zeros_like(real, dtype=self._dtype).masked_fill_(~real, torch.finfo(self._dtype).min)
            blocked = blocked[:, None, None, :]
        summed = (
            functional.embedding(_padded(ids.flatten()), table.word_embeddings.weight)
            + functional.embedding(_padded(positions.flatten()), table.position_embeddings.weight)
            + table.token_type_embeddings.weight[0]
        )
        states = drop(_norm(table.LayerNorm, summed.to(self._dtype)))
        layers = self._model.bert.encoder.layer
        for layer in layers:
            mixed = _attention(layer.attention.self, states, (n, t), blocked, drop)
            if layer is layers[-1]:
                mixed, states = mixed[places], states[places]
            out = layer.attention.output
            states = _norm(out.LayerNorm, states + drop(_linear(out.dense, mixed)))
            inner = functional.gelu(_linear(layer.intermediate.dense, states))
            states = _norm(layer.output.LayerNorm, states + drop(_linear(layer.output.dense, inner)))
        transform = self._model.cls.predictions.transform
        return _norm(transform.LayerNorm, functional.gelu(_linear(transform.dense, states)))

    def save(self, folder: Path, *, dropout: float, half: bool) -> None:
        """Write ``config.json`` and ``model.safetensors``; ``half`` in float16, else float32."""
        self._model.config.hidden_dropout_prob = self._model.config.attention_probs_dropout_prob = dropout
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        self._model.eval()
        with disk_errors(folder / "model.safetensors"):
            (self._model.half() if half else self._model).save_pretrained(folder)


def _padded(rows: Tensor) -> Tensor:
    """Return rows, (n, ...), with zeros after them up to a multiple of ``_ROWS``."""
    return functional.pad(rows, (*(0, 0) * (rows.dim() - 1), 0, -len(rows) % _ROWS))


def _linear(module: nn.Linear, states: Tensor) -> Tensor:
    return functional.linear(states, module.weight.to(states.dtype), module.bias.to(states.dtype))


def _norm(module: nn.LayerNorm, states: Tensor) -> Tensor:
    weight, bias = module.weight.to(states.dtype), module.bias.to(states.dtype)
    return functional.layer_norm(states, module.normalized_shape, weight, bias, module.eps)


def _attention(module: Any, states: Tensor, shape: tuple[int, int], blocked: Tensor | None, drop: Dropout) -> Tensor:
    """Return the heads' mixtures side by side, (r, d), from the states (r, d) of n t tokens and padding."""
    (n, t), d = shape, states.size(1)
    parts = (module.query, module.key, module.value)
    weight = torch.cat([linear.weight for linear in parts]).to(states.dtype)
    bias = torch.cat([linear.bias for linear in parts]).to(states.dtype)
    together = functional.linear(states, weight, bias)[: n * t].view(n, t, 3, module.num_attention_heads, -1)
    queries, keys, values = together.permute(2, 0, 3, 1, 4)
    if states.device.type != "cpu":
        mixed = functional.scaled_dot_product_attention(queries, keys, values, blocked, drop.probability)
    else:  # plain products beat the fused kernel's backward pass, and dropout has a generator for each thread
        scores = queries * queries.size(-1) ** -0.5 @ keys.transpose(-1, -2)
        if blocked is not None:
            scores = scores + blocked
        mixed = drop.product(scores.softmax(dim=-1), values)
    return _padded(mixed.transpose(1, 2).reshape(n * t, d))
