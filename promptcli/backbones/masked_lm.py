"""A BERT to be pre-trained: random weights, and the masked-LM loss with logits at the masked tokens only."""

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM
from transformers.utils import logging as transformers_logging

from promptcli.backbones.masked_lm_pass import Chunks, head_states, hidden_states

_LOGIT_ROWS = 1024  # rows of logits held at a time
_LEAST = 1e-30  # a probability whose logarithm is finite


class _DecoderLoss(torch.autograd.Function):
    """Mean cross-entropy of decoder(hidden) against gold, without ever holding all (k, v) logits.

    The gradient is computed along with the loss, in the same walk over slices of rows.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, rows: Tensor, bias: Tensor, gold: Tensor, dtype: torch.dtype) -> Any:
        """Return the mean loss and the number of right first guesses."""
        count = len(gold)
        inputs, weights, shift = hidden.to(dtype), rows.to(dtype), bias.to(dtype)
        grad_inputs = torch.empty_like(inputs)
        grad_columns = torch.zeros_like(rows.T, memory_format=torch.contiguous_format)  # (d, v): the faster product
        grad_bias = torch.zeros_like(bias)
        loss = torch.zeros((), device=hidden.device)
        right = torch.zeros((), dtype=torch.int64, device=hidden.device)
        for start in range(0, count, _LOGIT_ROWS):
            part, wanted = inputs[start : start + _LOGIT_ROWS], gold[start : start + _LOGIT_ROWS, None]
            # softmax reckons in float32 inside, whatever it reads and writes
            grad = torch.addmm(shift, part, weights.T).softmax(dim=1)
            at_gold = grad.gather(1, wanted)
            right += (at_gold == grad.amax(dim=1, keepdim=True)).sum()
            loss -= at_gold.float().clamp_min(_LEAST).log().sum()
            grad.scatter_(1, wanted, at_gold - 1)
            grad_bias += grad.sum(dim=0)
            grad_inputs[start : start + _LOGIT_ROWS] = grad @ weights
            grad_columns += part.T @ grad
        ctx.save_for_backward(grad_inputs.to(hidden.dtype), grad_columns.T, grad_bias)
        ctx.count = count
        ctx.mark_non_differentiable(right)
        return loss / count, right

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradients kept by the forward walk, scaled."""
        grad_inputs, grad_rows, grad_bias = ctx.saved_tensors
        scale = grads[0] / ctx.count
        return grad_inputs * scale, grad_rows * scale, grad_bias * scale, None, None


class MaskedLM:
    """A BERT with its masked-LM head, in training.

    Attributes:
        parameters: Trainable tensors by name; tied ones once.
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
        self._dtype = dtype  # of the products; weights and optimiser are float32
        self._dropout = 0.0
        torch.manual_seed(seed)
        config: Any = BertConfig(
            vocab_size=vocab_size,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            max_position_embeddings=positions,
            tie_word_embeddings=tied,
            pad_token_id=0,
        )
        self._model = cast(Any, BertForMaskedLM(config))
        if not tied:
            self._model.cls.predictions.decoder.weight.data.copy_(self.token_rows.data)
        self._model.to(device).train()
        unused = set() if tied else {"cls.predictions.bias"}  # the untied decoder has a bias of its own
        self.parameters: dict[str, nn.Parameter] = {
            name: parameter for name, parameter in self._model.named_parameters() if name not in unused
        }

    @property
    def token_rows(self) -> nn.Parameter:
        """The word embeddings, (v, d)."""
        rows: nn.Parameter = self._model.get_input_embeddings().weight
        return rows

    def start_from(self, vectors: Tensor) -> None:
        """Set the word embeddings, and where they are untied the output embeddings too, to (v, d) vectors."""
        with torch.no_grad():
            for rows in (self.token_rows, self._model.cls.predictions.decoder.weight):
                rows.copy_(vectors)

    def set_dropout(self, probability: float) -> None:
        """Set the dropout of hidden states and attention."""
        self._dropout = probability

    def matrix_work(self, tokens: int, masked: int) -> int:
        """Return the floating-point operations of the matrix products of a step, forward and backward.

        Attention's own products, a few hundredths at sentence length, are left out.
        """
        config: BertConfig = self._model.config
        layer = 12 * config.hidden_size**2
        head = config.hidden_size * (config.hidden_size + config.vocab_size)
        return 6 * (tokens * layer * config.num_hidden_layers + masked * head)

    def loss(self, ids: Tensor, real: Tensor, begins: Tensor, places: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy at the masked places and how many first guesses are right.

        Args:
            ids: (n, t).
            real: (n, t) bool, not padding.
            begins: (n,) where each row begins in the position table.
            places: (k,) tokens to predict, numbered in the flattened ids.
            gold: (k,) ids that stood there.
        """
        positions = begins[:, None] + torch.arange(ids.shape[1], device=ids.device)
        positions = torch.where(real, positions, 0)
        chunks = Chunks(ids, positions, None if bool(real.all()) else real)
        states = hidden_states(self._model.bert, chunks, places, self._dtype, self._dropout)
        hidden = head_states(self._model.cls.predictions.transform, states)
        decoder = self._model.cls.predictions.decoder
        loss, right = _DecoderLoss.apply(  # type: ignore[no-untyped-call]
            hidden, decoder.weight, decoder.bias, gold, self._dtype
        )
        return loss, right

    def save(self, folder: Path, *, dropout: float, half: bool) -> None:
        """Write ``config.json`` and ``model.safetensors``; ``half`` in float16, else float32."""
        config = self._model.config
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        self._model.eval()
        (self._model.half() if half else self._model).save_pretrained(folder)
