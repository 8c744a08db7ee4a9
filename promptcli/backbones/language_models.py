"""Language models in training: a BERT by masked-language modelling, a Llama by next-token prediction."""

import abc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from transformers import AttentionInterface, BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.utils import logging as transformers_logging

from promptcli.backbones.dropout import Dropout
from promptcli.backbones.vocabulary import CLS, PAD, SEP
from promptcli.storage.tensors import disk_errors

_LOGIT_ROWS = 1024  # rows of logits held at a time
#: Matrix products have a multiple of so many rows: the matrix library prepares each shape that is new to it, which
#: takes longer than the product.
_ROWS = 128
_ONES = 16  # rows: a matrix unit takes as many at a time
_LEAST = 1e-30  # a probability whose logarithm is finite
#: Causal attention without a mask: for one, transformers looks for gaps in the positions, and waits for a GPU.
_ATTENTION = "promptcli-causal"
AttentionInterface.register(_ATTENTION, sdpa_attention_forward)
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
    def _states(self, ids: Tensor, real: Tensor | None, begins: Tensor, places: Tensor, drop: Dropout) -> Tensor:
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
        self,
        ids: Tensor,
        real: Tensor | None,
        begins: Tensor,
        places: Tensor,
        gold: Tensor,
        *bags: Tensor,
        drop: Dropout,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean cross-entropy at the places to predict, how many first guesses are right, and that of bags.

        Args:
            ids: (n, t).
            real: (n, t) bool, not padding; None where there is no padding.
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


#: Attention is computed for a multiple of so many tokens: a processor takes as many numbers at a time.
_KEYS = 16


def hidden_states(
    bert: Any, ids: Tensor, positions: Tensor, real: Tensor | None, places: Tensor, dtype: torch.dtype, drop: Dropout
) -> Tensor:
    """Return the last layer's states at some places, (k, d), in ``dtype``.

    Args:
        bert: A ``transformers`` BertModel; its parameters get the gradients.
        ids: (n, t).
        positions: (n, t) place of each token in the position table.
        real: (n, t) bool, not padding; None where there is no padding.
        places: (k,) numbered in the flattened ids; after the last attention nothing else is computed.
        dtype: Of all products and states.
        drop: Dropout of states and attention.
    """
    table = bert.embeddings
    summed = (
        functional.embedding(padded(ids.flatten()), table.word_embeddings.weight)
        + functional.embedding(padded(positions.flatten()), table.position_embeddings.weight)
        + table.token_type_embeddings.weight[0]
    )
    states = drop(_norm(table.LayerNorm, summed.to(dtype)))
    blocked = None
    beyond = -ids.size(1) % _KEYS
    if beyond or real is not None:
        real = torch.ones_like(ids, dtype=torch.bool) if real is None else real
        blocked = torch.zeros(real.size(0), real.size(1) + beyond, dtype=dtype, device=states.device)
        blocked = blocked.masked_fill_(~functional.pad(real, (0, beyond)), torch.finfo(dtype).min)[:, None, None, :]
    for layer in bert.encoder.layer:
        mixed = _attention(layer.attention.self, states, ids.shape, blocked, drop)
        if layer is bert.encoder.layer[-1]:
            mixed, states = mixed[places], states[places]
        out = layer.attention.output
        states = _norm(out.LayerNorm, states + drop(_linear(out.dense, mixed)))
        inner = functional.gelu(_linear(layer.intermediate.dense, states))
        out = layer.output
        states = _norm(out.LayerNorm, states + drop(_linear(out.dense, inner)))
    return states


def head_states(transform: Any, states: Tensor) -> Tensor:
    """Return what the decoder reads, (k, d), from states of the places to predict, (k, d)."""
    return _norm(transform.LayerNorm, functional.gelu(_linear(transform.dense, states)))


def _linear(module: nn.Linear, states: Tensor) -> Tensor:
    return _product(states, module.weight.to(states.dtype), module.bias.to(states.dtype))


def _product(states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return states @ weight.T + bias."""
    if states.device.type != "cpu" or len(bias) <= states.size(1):
        return functional.linear(states, weight, bias)
    made: Tensor = _WideLinear.apply(states, weight, bias)  # type: ignore[no-untyped-call]
    return made


class _WideLinear(torch.autograd.Function):
    """A linear map to more numbers than it reads, on a processor."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(states, weight)
        return functional.linear(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        states, weight = ctx.saved_tensors
        (gradient,) = gradients
        return gradient @ weight, gradient.T @ states, row_sum(gradient)


def _norm(module: nn.LayerNorm, states: Tensor) -> Tensor:
    weight, bias = module.weight.to(states.dtype), module.bias.to(states.dtype)
    return functional.layer_norm(states, module.normalized_shape, weight, bias, module.eps)


def _attention(module: Any, states: Tensor, shape: Sequence[int], blocked: Tensor | None, drop: Dropout) -> Tensor:
    """Return the heads' mixtures side by side, (r, d) with zeros after n t rows, from states (r, d) and n, t."""
    (n, t), d, heads = shape, states.size(1), module.num_attention_heads
    scale = (d // heads) ** -0.5  # of the scores
    three = [(module.query, scale), (module.key, 1.0), (module.value, 1.0)]
    weight = torch.cat([part.weight * factor for part, factor in three]).to(states.dtype)
    bias = torch.cat([part.bias * factor for part, factor in three]).to(states.dtype)
    together = _product(states, weight, bias)
    queries, keys, values = _SplitHeads.apply(together, n, t, heads)  # type: ignore[no-untyped-call]
    if states.device.type != "cpu":
        mixed = functional.scaled_dot_product_attention(queries, keys, values, blocked, drop.probability, scale=1.0)
    else:  # plain products beat the fused kernel's backward pass
        scores = queries @ keys.transpose(-1, -2)
        if blocked is not None:
            scores += blocked
        mixed = drop.product(scores.softmax(dim=-1), values)
    joined: Tensor = _MergeHeads.apply(mixed, t, len(states))  # type: ignore[no-untyped-call]
    return joined


def _to_heads(rows: Tensor, n: int, t: int, heads: int) -> Tensor:
    """Return (n, h, T, d/h), zeros after t tokens, from rows (at least n t, d); T is a multiple of ``_KEYS``."""
    made = rows.new_empty(n, heads, t + -t % _KEYS, rows.size(1) // heads)
    made[:, :, :t] = rows[: n * t].view(n, t, heads, -1).transpose(1, 2)
    made[:, :, t:] = 0
    return made


def _to_rows(by_heads: Tensor, t: int, rows: Tensor) -> None:
    """Write the first t tokens of (n, h, T, d/h) into rows (r, d), zeros after them."""
    n, heads = by_heads.shape[:2]
    rows[: n * t].view(n, t, heads, -1).copy_(by_heads[:, :, :t].transpose(1, 2))
    rows[n * t :] = 0


class _SplitHeads(torch.autograd.Function):
    """(r, 3 d) to queries, keys and values, (n, h, T, d/h) each; both ways every number is copied once."""

    @staticmethod
    def forward(ctx: Any, together: Tensor, n: int, t: int, heads: int) -> tuple[Tensor, ...]:
        ctx.shape, ctx.t = together.shape, t
        return tuple(_to_heads(part, n, t, heads) for part in together.chunk(3, dim=1))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        together = gradients[0].new_empty(ctx.shape)
        for part, gradient in zip(together.chunk(3, dim=1), gradients, strict=True):
            _to_rows(gradient, ctx.t, part)
        return together, None, None, None


class _MergeHeads(torch.autograd.Function):
    """(n, h, T, d/h) to (r, d)."""

    @staticmethod
    def forward(ctx: Any, mixed: Tensor, t: int, count: int) -> Tensor:
        ctx.shape = mixed.size(0), t, mixed.size(1)
        rows = mixed.new_empty(count, mixed.size(1) * mixed.size(3))
        _to_rows(mixed, t, rows)
        return rows

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _to_heads(gradients[0], *ctx.shape), None, None


class MaskedLM(LanguageModel):
    """A BERT with its masked-LM head, in training."""

    def __init__(self, *, tied: bool, **options: Any) -> None:
        super().__init__(tied=tied, **options)
        if not tied:
            del self.parameters["cls.predictions.bias"]  # the untied decoder has a bias of its own

    def _build(self, **shape: Any) -> Any:
        config: Any = BertConfig(intermediate_size=4 * shape["hidden_size"], pad_token_id=PAD, **shape)
        return cast(Any, BertForMaskedLM(config))

    @property
    def position_rows(self) -> nn.Parameter | None:
        """See the base class."""
        rows: nn.Parameter = self._model.bert.embeddings.position_embeddings.weight
        return rows

    def matrix_work(self, tokens: int, predicted: int) -> int:
        """See the base class."""
        config: BertConfig = self._model.config
        layer = 12 * config.hidden_size**2
        head = config.hidden_size * (config.hidden_size + config.vocab_size)
        return 6 * (tokens * layer * config.num_hidden_layers + predicted * head)

    def _states(self, ids: Tensor, real: Tensor | None, begins: Tensor, places: Tensor, drop: Dropout) -> Tensor:
        positions = begins[:, None] + torch.arange(ids.shape[1], device=ids.device)
        positions = positions if real is None else torch.where(real, positions, 0)
        states = hidden_states(self._model.bert, ids, positions, real, places, self._dtype, drop)
        return head_states(self._model.cls.predictions.transform, states)


_MULTIPLE = 32  # the inner width is one of these


class CausalLM(LanguageModel):
    """A Llama in training: rotary positions, so where a chunk begins does not matter; dropout of attention only."""

    side_by_side = False  # a call with other weights sets them in the model

    def _build(self, **shape: Any) -> Any:
        # three matrices of 8/3 d hold what two of 4 d do (Shazeer 2020)
        inner = -(-8 * shape["hidden_size"] // (3 * _MULTIPLE)) * _MULTIPLE
        config = LlamaConfig(
            intermediate_size=inner,
            pad_token_id=PAD,
            bos_token_id=CLS,
            eos_token_id=SEP,
            use_cache=False,
            **{**shape, "attn_implementation": _ATTENTION},
        )
        return cast(Any, LlamaForCausalLM(config))

    def matrix_work(self, tokens: int, predicted: int) -> int:
        """See the base class."""
        config: LlamaConfig = self._model.config
        layer = 4 * config.hidden_size**2 + 3 * config.hidden_size * config.intermediate_size
        return 6 * (tokens * layer * config.num_hidden_layers + predicted * config.hidden_size * config.vocab_size)

    def _states(self, ids: Tensor, real: Tensor | None, begins: Tensor, places: Tensor, drop: Dropout) -> Tensor:
        """See the class; padding comes last, where no real token attends to it, so it needs no mask."""
        for layer in self._model.model.layers:
            layer.self_attn.attention_dropout = drop.probability
        # one cast a weight and step, where autocast casts around every operation
        weights = {name: weight.to(self._dtype) for name, weight in self._model.model.named_parameters()}
        output = functional_call(self._model.model, weights, (), {"input_ids": ids})
        states: Tensor = output.last_hidden_state
        return states.flatten(0, 1)[places]
