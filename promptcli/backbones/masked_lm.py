"""A BERT to be pre-trained: random weights, and the masked-LM loss with logits at the masked tokens only."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM
from transformers.utils import logging as transformers_logging

#: What computes attention fastest in training, per kind of device: on processors plain products beat the fused kernel's
#: backward pass.
_ATTENTION = {"cpu": "eager", "cuda": "sdpa", "mps": "sdpa"}
_LOGIT_ROWS = 512  # rows of logits held at a time


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
        grad_rows = torch.zeros_like(rows)
        grad_bias = torch.zeros_like(bias)
        loss = torch.zeros((), device=hidden.device)
        right = torch.zeros((), dtype=torch.int64, device=hidden.device)
        for start in range(0, count, _LOGIT_ROWS):
            part, wanted = inputs[start : start + _LOGIT_ROWS], gold[start : start + _LOGIT_ROWS, None]
            logits = torch.addmm(shift, part, weights.T).float()
            highest = logits.amax(dim=1, keepdim=True)
            at_gold = logits.gather(1, wanted)
            right += (at_gold == highest).sum()
            probabilities = logits.sub_(highest).exp_()
            mass = probabilities.sum(dim=1, keepdim=True)
            loss += (mass.log() + highest - at_gold).sum()
            grad = probabilities.mul_(1 / (mass * count))
            grad.scatter_add_(1, wanted, torch.full_like(at_gold, -1 / count))
            grad_bias += grad.sum(dim=0)
            small = grad.to(dtype)
            grad_inputs[start : start + _LOGIT_ROWS] = small @ weights
            grad_rows += small.T @ part
        ctx.save_for_backward(grad_inputs.to(hidden.dtype), grad_rows, grad_bias)
        ctx.mark_non_differentiable(right)
        return loss / count, right

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradients kept by the forward walk, scaled."""
        grad_inputs, grad_rows, grad_bias = ctx.saved_tensors
        return grad_inputs * grads[0], grad_rows * grads[0], grad_bias * grads[0], None, None


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
        config._attn_implementation = _ATTENTION.get(torch.device(device).type, "sdpa")
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
        for module in self._model.modules():
            if isinstance(module, nn.Dropout):
                module.p = probability

    def matrix_work(self, tokens: int, masked: int) -> int:
        """Return the floating-point operations of the matrix products of a step, forward and backward.

        Attention's own products, a few hundredths at sentence length, are left out.
        """
        config: BertConfig = self._model.config
        layer = 12 * config.hidden_size**2
        head = config.hidden_size * (config.hidden_size + config.vocab_size)
        return 6 * (tokens * layer * config.num_hidden_layers + masked * head)

    def loss(self, ids: Tensor, real: Tensor, places: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy at the masked places and how many first guesses are right.

        Args:
            ids: (n, t).
            real: (n, t) bool, not padding.
            places: (k,) tokens to predict, numbered in the flattened ids.
            gold: (k,) ids that stood there.
        """
        dtype = self._dtype
        with torch.autocast(ids.device.type, dtype=dtype, enabled=dtype != torch.float32):
            attention = None if bool(real.all()) else real.long()
            hidden = self._model.bert(input_ids=ids, attention_mask=attention).last_hidden_state
            hidden = self._model.cls.predictions.transform(hidden.flatten(0, 1)[places])
        decoder = self._model.cls.predictions.decoder
        loss, right = _DecoderLoss.apply(hidden, decoder.weight, decoder.bias, gold, dtype)  # type: ignore[no-untyped-call]
        return loss, right

    def decayed(self) -> Iterator[tuple[nn.Parameter, bool]]:
        """Yield each parameter and whether weight decay is for it: matrices, neither biases nor LayerNorms."""
        for parameter in self.parameters.values():
            yield parameter, parameter.dim() > 1

    def save(self, folder: Path, *, dropout: float, half: bool) -> None:
        """Write ``config.json`` and ``model.safetensors``; ``half`` in float16, else float32."""
        config = self._model.config
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        self._model.eval()
        (self._model.half() if half else self._model).save_pretrained(folder)
