"""A language model to be pre-trained: what the masked and the causal one have in common."""

import abc
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.utils import logging as transformers_logging

from promptcli.backbones.dropout import Dropout
from promptcli.storage.tensors import disk_errors

_LOGIT_ROWS = 1024  # rows of logits held at a time
#: Matrix products have a multiple of so many rows: the matrix library prepares each shape that is new to it, which
#: takes longer than the product.
_ROWS = 128
_ONES = 16  # rows: a matrix unit takes as many at a time
_LEAST = 1e-30  # a probability whose logarithm is finite
_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout")


class _DecoderLoss(torch.autograd.Function):
    """Mean cross-entropy of decoder(hidden) against gold, without ever holding all (k, v) logits.

    The gradient is computed along with the loss, in the same walk over slices of rows.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, rows: Tensor, bias: Tensor, gold: Tensor, dtype: torch.dtype) -> Any:
        """Return the mean loss and the number of right first guesses; rows of ``hidden`` without gold are padding."""
        count = max(1, len(gold))
        inputs, weights, shift = hidden.to(dtype), rows.to(dtype), bias.to(dtype)
        grad_inputs = torch.empty_like(inputs)
        grad_rows, grad_bias = torch.zeros_like(rows), torch.zeros_like(bias)
        loss = torch.zeros((), device=hidden.device)
        right = torch.zeros((), dtype=torch.int64, device=hidden.device)
        for start in range(0, len(inputs), _LOGIT_ROWS):
            part, wanted = inputs[start : start + _LOGIT_ROWS], gold[start : start + _LOGIT_ROWS]
            there = torch.arange(len(wanted), device=gold.device), wanted
            # softmax reckons in float32 inside, whatever it reads and writes
            grad = torch.addmm(shift, part, weights.T).softmax(dim=1)
            known, padding = grad[: len(wanted)], grad[len(wanted) :]
            at_gold = known[there]
            right += (at_gold == known.amax(dim=1)).sum()
            loss -= at_gold.float().clamp_min(_LEAST).log().sum()
            known[there] = at_gold - 1
            padding.zero_()
            grad_inputs[start : start + _LOGIT_ROWS] = grad @ weights
            grad_rows += grad.T @ part
            grad_bias += row_sum(grad)
        ctx.save_for_backward(grad_inputs.to(hidden.dtype), grad_rows, grad_bias)
        ctx.count = count
        ctx.mark_non_differentiable(right)
        return loss / count, right

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradients kept by the forward walk, scaled."""
        grad_inputs, grad_rows, grad_bias = ctx.saved_tensors
        scale = grads[0] / ctx.count
        return grad_inputs * scale, grad_rows * scale, grad_bias * scale, None, None


def row_sum(rows: Tensor) -> Tensor:
    """Return the sum of rows (n, d), (d,): as a product, which reads them several times as fast as a sum does."""
    return (rows.new_ones(_ONES, len(rows)) @ rows)[0]


def padded(numbers: Tensor) -> Tensor:
    """Return ``numbers``, (n, ...), with zeros at the end, so that products of its rows have a shape seen before."""
    return functional.pad(numbers, (*(0, 0) * (numbers.dim() - 1), 0, -len(numbers) % _ROWS))


class LanguageModel(abc.ABC):
    """A language model with its head, in training, from random weights.

    Attributes:
        parameters: Trainable tensors by name; tied ones once.
    """

    #: Whether several threads may compute losses at a time.
    side_by_side: ClassVar[bool] = True

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
        self._model = self._build(
            vocab_size=vocab_size,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            max_position_embeddings=positions,
            tie_word_embeddings=tied,
        )
        self._decoder = self._model.get_output_embeddings()
        if not tied:
            self._decoder.weight.data.copy_(self.token_rows.data)
        self._model.to(device).train()
        self.parameters: dict[str, nn.Parameter] = dict(self._model.named_parameters())

    @abc.abstractmethod
    def _build(self, **shape: Any) -> Any:
        """Return the model of ``transformers``, with these fields of its configuration."""

    @abc.abstractmethod
    def _states(self, ids: Tensor, real: Tensor, begins: Tensor, places: Tensor, drop: Dropout) -> Tensor:
        """Return what the decoder reads at the places, (k, d)."""

    @abc.abstractmethod
    def matrix_work(self, tokens: int, predicted: int) -> int:
        """Return the floating-point operations of the matrix products of a step, forward and backward.

        Attention's own products, a few hundredths at sentence length, are left out.
        """

    @property
    def token_rows(self) -> nn.Parameter:
        """The word embeddings, (v, d)."""
        rows: nn.Parameter = self._model.get_input_embeddings().weight
        return rows

    @property
    def position_rows(self) -> nn.Parameter | None:
        """The position table, (positions, d), where there is one."""
        return None

    def start_from(self, vectors: Tensor) -> None:
        """Set the word embeddings, and where they are untied the output embeddings too, to (v, d) vectors."""
        with torch.no_grad():
            for rows in (self.token_rows, self._decoder.weight):
                rows.copy_(vectors)

    def loss(
        self, ids: Tensor, real: Tensor, begins: Tensor, places: Tensor, gold: Tensor, *bags: Tensor, drop: Dropout
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean cross-entropy at the places to predict, how many first guesses are right, and that of bags.

        Args:
            ids: (n, t).
            real: (n, t) bool, not padding.
            begins: (n,) where each row begins in the position table.
            places: (k,) places to predict from, numbered in the flattened ids.
            gold: (k,) the right ids.
            bags: Masks of templates that predict several words each: their places, (b,), and of each word the row of
                its mask, its id and its weight, (e,) each; see ``Bags``.
            drop: Dropout of hidden states and attention.
        """
        masks = bags[0] if bags else places[:0]
        states = self._states(ids, real, begins, padded(torch.cat([masks, places])), drop)
        at_masks, states = states[: len(masks)], padded(states[len(masks) :])
        bias = self._decoder.bias
        if bias is None:
            bias = states.new_zeros(len(self._decoder.weight), dtype=torch.float32)
        loss, right = _DecoderLoss.apply(  # type: ignore[no-untyped-call]
            states, self._decoder.weight, bias, gold, self._dtype
        )
        return loss, right, self._bag_loss(at_masks, *bags) if bags else loss.new_zeros(())

    def _bag_loss(self, states: Tensor, places: Tensor, owners: Tensor, words: Tensor, weights: Tensor) -> Tensor:
        """Return the mean over masks of the cross-entropy against their words' weights (Ma et al. 2024, eq. 3)."""
        logits = functional.linear(states.to(self._dtype), self._decoder.weight.to(self._dtype))
        chances = (logits.float() + self._decoder.bias).log_softmax(dim=1)
        loss: Tensor = -(weights * chances[owners, words]).sum() / len(places)
        return loss

    def save(self, folder: Path, *, dropout: float, half: bool) -> None:
        """Write ``config.json`` and ``model.safetensors``; ``half`` in float16, else float32."""
        for name in _DROPOUTS:
            if hasattr(self._model.config, name):
                setattr(self._model.config, name, dropout)
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        self._model.eval()
        with disk_errors(folder / "model.safetensors"):
            (self._model.half() if half else self._model).save_pretrained(folder)
