"""The attention hook: one function, registered by name in transformers, serves every method.

An ``AttentionHook`` is passed to the model as the keyword argument ``hook`` of one forward pass. It
brings ``Injected`` values into the layers (such as deep prefixes) and ``Recorded`` values out of
them (such as diagonals). Layers are numbered by counting calls, because ALBERT's layers share one
module and DistilBERT's modules have no number. ``hook_fault`` compares the hook with transformers'
eager attention.
"""

import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from promptcli.backbones import kernels
from promptcli.backbones.kernels import (
    MIN_BLOCKED_LENGTH,
    AttentionMask,
    SlidingMask,
    at_positions,
    attend,
    attend_in_blocks,
    full_mask,
    mask_at,
)
from promptcli.backbones.states import Contrast, Needs, Prepending, Rerouting
from promptcli.backbones.transformers_loading import transformers

NAME = "promptcli"
#: Returns the rows of an attention matrix, post-softmax: (n, h, 1, t) at positions (n,), or all for
#: None, (n, h, t, t).
RowsOfMatrix = Callable[[Tensor | None], Tensor]


@dataclass(frozen=True)
class Injected:
    """The values that a forward pass brings into the attention of the layers."""

    #: Per layer the prefix keys and values, each (h', p, d/h) or (n, h', p, d/h), as in DCPCSE.
    prefix: Sequence[tuple[Tensor, Tensor]] | None = None
    prepending: Prepending | None = None
    contrast: Contrast | None = None
    rerouting: Rerouting | None = None
    #: (n,) positions of the last tokens, for ``contrast`` and ``rerouting``
    last_positions: Tensor | None = None


@dataclass
class Recorded:
    """The outputs that a forward pass records from the layers' attention, and their requests."""

    needs: Needs = field(default_factory=Needs)
    #: Slot of ``needs.attention_rows`` -> its position in each input, (n,).
    row_positions: Mapping[int, Tensor] = field(default_factory=dict)
    #: (n,) the only positions whose mixtures and values are recorded; None for all
    only_at: Tensor | None = None
    #: Layer (0-based) after whose attention the pass ends with ``EndOfPass``; the attention is not
    #: computed if only the layer's values are needed.
    last_layer: int | None = None
    keeps_keys_values: bool = False  #: record ``keys_values``

    # the recorded values
    #: Layer -> (n, h, t) float32, a_ii of the post-softmax attention matrix (Ditto).
    diagonals: dict[int, Tensor] = field(default_factory=dict)
    #: Layer -> (n, h, t, t) float32, post-softmax. The columns of a prefix come first.
    matrices: dict[int, Tensor] = field(default_factory=dict)
    #: Layer and slot -> (n, h, t) float32, post-softmax, without the columns of a prefix.
    attention_rows: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    #: Layer -> (n, t, h d/h), the mixture of the heads, which goes into the output projection;
    #: (n, 1, h d/h) with ``only_at``.
    mixtures: dict[int, Tensor] = field(default_factory=dict)
    #: Layer -> (n, t, h' d/h), the values of its attention; (n, 1, h' d/h) with ``only_at``.
    values: dict[int, Tensor] = field(default_factory=dict)
    #: Per layer the keys and values of the input, each (n, h', t, d/h), h' of grouped queries.
    keys_values: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @property
    def layers(self) -> set[int]:
        """The layers (0-based) from which something was recorded."""
        layers = self.diagonals.keys() | self.matrices.keys() | self.mixtures.keys()
        return layers | self.values.keys() | {layer for layer, _ in self.attention_rows}

    def reads_scores(self, layer: int) -> bool:
        """Return whether any cell of a layer's attention matrix is needed."""
        needs = self.needs
        has_row = any(row_layer == layer for row_layer, _ in needs.attention_rows)
        return has_row or layer in needs.diagonals or layer in needs.matrices


class AttentionHook:
    """Injects values into one forward pass and records values from it."""

    def __init__(self, injected: Injected = Injected(), recorded: Recorded | None = None) -> None:
        self.injected = injected
        self.recorded = recorded or Recorded()
        self.calls = 0  #: layers counted so far
        #: The last tokens' key and value in the previous layer, each (n, h', 1, d/h), for
        #: ``rerouting``.
        self._last_tokens: tuple[Tensor, Tensor] | None = None

    def is_plain(self, layer: int) -> bool:
        """Return whether a layer's scores are neither changed nor read."""
        is_changed = self.injected.prefix is not None or self.injected.rerouting is not None
        return not (self.recorded.reads_scores(layer) or is_changed)

    def widen(
        self, layer: int, key: Tensor, value: Tensor, mask: AttentionMask
    ) -> tuple[Tensor, Tensor, AttentionMask]:
        """Put the injected keys and values in front of those (n, h', t, d/h) of a layer, and widen
        the mask by their columns. ``layer`` -1 is the last one.
        """
        if self.recorded.keeps_keys_values:
            self.recorded.keys_values.append((key, value))
        if self.injected.rerouting is not None:
            key, value, mask = self._reroute(layer, self.injected.rerouting, key, value, mask)
        if self.injected.prefix is not None:
            n = key.size(0)
            prefix_key, prefix_value = (
                numbers.expand(n, *numbers.shape[-3:]).to(key.dtype)
                for numbers in self.injected.prefix[layer]
            )
            mask = full_mask(mask)
            if mask is not None:
                attended = True if mask.dtype == torch.bool else 0.0
                mask = functional.pad(mask, (prefix_key.size(-2), 0), value=attended)
            key = torch.cat([prefix_key, key], -2)
            value = torch.cat([prefix_value, value], -2)
        return key, value, mask

    def _reroute(
        self, layer: int, rerouting: Rerouting, key: Tensor, value: Tensor, mask: AttentionMask
    ) -> tuple[Tensor, Tensor, AttentionMask]:
        """Put the last token's key and value of the previous layer in front of this layer's (n, h',
        t, d/h), with a column of the bias in the mask.
        """
        assert self.injected.last_positions is not None
        rows = torch.arange(key.size(0), device=key.device)
        previous = self._last_tokens
        last_key = key[rows, :, self.injected.last_positions].unsqueeze(2)
        last_value = value[rows, :, self.injected.last_positions].unsqueeze(2)
        self._last_tokens = last_key, last_value
        if layer not in rerouting.layers:
            return key, value, mask
        assert previous is not None
        mask = full_mask(mask)
        if mask is None:
            mask = torch.zeros(1, 1, 1, key.size(2), dtype=key.dtype, device=key.device)
        mask = functional.pad(kernels.additive_mask(mask, key.dtype), (1, 0), value=rerouting.bias)
        return torch.cat([previous[0], key], 2), torch.cat([previous[1], value], 2), mask

    def record_scores(self, layer: int, matrix_rows: RowsOfMatrix, length: int) -> None:
        """Record the needed rows of a layer's attention matrix, or the matrix; the inputs have
        ``length`` tokens.
        """
        recorded = self.recorded
        if layer in recorded.needs.matrices:
            recorded.matrices[layer] = matrix_rows(None)
        for row_layer, slot in recorded.needs.attention_rows:
            if row_layer == layer:
                row = matrix_rows(recorded.row_positions[slot]).squeeze(2)
                recorded.attention_rows[layer, slot] = row[..., -length:]

    def record_values(self, layer: int, value: Tensor) -> None:
        """Record the values (n, h', t, d/h) of a layer if needed; end the pass if nothing else is
        needed.
        """
        recorded = self.recorded
        if layer not in recorded.needs.values:
            return
        recorded.values[layer] = at_positions(value.transpose(1, 2), recorded.only_at).flatten(2)
        attends = recorded.reads_scores(layer) or layer in recorded.needs.attention_outputs
        if layer == recorded.last_layer and not attends:
            raise EndOfPass

    def process_head_outputs(self, layer: int, mixed: Tensor) -> Tensor:
        """Return the heads' mixtures (n, t, h, d/h) that a layer continues with, and record them if
        needed.
        """
        contrast = self.injected.contrast
        recorded = self.recorded
        if contrast is not None and layer == contrast.layer:
            last_positions = self.injected.last_positions
            assert last_positions is not None
            rows = torch.arange(mixed.size(0), device=mixed.device)
            changed = contrast(mixed[rows, last_positions].flatten(1))
            mixed = mixed.index_put((rows, last_positions), changed.view(-1, *mixed.shape[2:]))
        if layer in recorded.needs.attention_outputs:
            recorded.mixtures[layer] = at_positions(mixed, recorded.only_at).flatten(2)
        if layer == recorded.last_layer:
            raise EndOfPass
        return mixed


#: The hook of a pass that injects and records nothing.
NO_HOOK = AttentionHook()


class EndOfPass(Exception):
    """Ends a forward pass early: everything needed is recorded."""


def register_attention() -> str:
    """Register the attention in transformers; return its name."""
    library = transformers()
    library.AttentionInterface.register(NAME, attention)
    library.AttentionMaskInterface.register(NAME, _mask)
    return NAME


def _mask(attention_mask: Tensor | None = None, **options: Any) -> Tensor | SlidingMask | None:
    """Return transformers' own mask for the fused kernels, from the padding (n, t).

    A sliding window over a long input, and a mask of padding alone, have smaller forms, which do
    not grow with the square of the length. On a GPU the padding is not inspected, since that would
    wait for the device.
    """
    from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

    length = options["kv_length"]
    one_pass = options["q_length"] == length and not options.get("use_vmap")
    window = options.get("local_size")
    padding = None
    if attention_mask is not None:
        padding = attention_mask.bool()
    if one_pass and window is not None and length >= max(MIN_BLOCKED_LENGTH, 2 * window):
        rule = options["mask_function"]
        inputs = options["batch_size"]
        return SlidingMask(rule, window, inputs, length, padding, options["device"])
    if one_pass and padding is not None and options["mask_function"] is bidirectional_mask_function:
        return padding[:, None, None, :]
    if attention_mask is not None and attention_mask.device.type == "cuda":
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(attention_mask=attention_mask, **options)


def allow_prepending(layers: Iterable[torch.nn.Module]) -> None:
    """Let the layers of a causal model, in order, apply the ``prepending`` of a pass."""
    for number, layer in enumerate(layers):
        layer.register_forward_pre_hook(functools.partial(_prepend, number), with_kwargs=True)


def _prepend(
    number: int, layer: torch.nn.Module, inputs: tuple[Tensor, ...], options: dict[str, Any]
) -> tuple[tuple[Tensor, ...], dict[str, Any]] | None:
    hook = options.get("hook")
    if not isinstance(hook, AttentionHook):
        return None
    prepending = hook.injected.prepending
    if prepending is None or number not in prepending.layers:
        return None
    hidden, *rest = inputs
    rows = torch.arange(hidden.size(0), device=hidden.device).unsqueeze(1)
    replaced = hidden.index_put((rows, prepending.positions), hidden[rows, prepending.sources])
    return (replaced, *rest), options


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: AttentionMask,
    scaling: float | None = None,
    dropout: float = 0.0,
    hook: AttentionHook = NO_HOOK,
    is_causal: bool | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute the attention of a layer by the fused kernels, with the hook's injected values in
    front of keys and values; record what the hook needs.

    Args:
        module: The calling attention module; its ``is_causal`` counts if the argument is missing.
        query: (n, h, t, d/h).
        key: (n, h', t, d/h). With grouped queries h' divides h, and h / h' heads share keys.
        value: (n, h', t, d/h).
        attention_mask: (n, 1, t, t), or (n, 1, 1, t) for padding alone; boolean (True = attend) or
            additive; contains causality and sliding windows. A ``SlidingMask`` for a long input.
            None if nothing is masked, or, in a causal module, only the tokens that follow.
        scaling: Factor of the dot products; None means (d/h)^-1/2.
        dropout: Probability of attention dropout.
        hook: Values injected and recorded by the pass; by default none.
        is_causal: Whether a token sees only earlier tokens.
        softcap: Scores s become c tanh(s / c) (Gemma 2).

    Returns:
        (n, t, h, d/h), and None in place of the attention matrix, which transformers expects.
    """
    scale = scaling
    if scale is None:
        scale = query.size(-1) ** -0.5
    layer = hook.calls
    hook.calls += 1
    hook.record_values(layer, value)
    length = query.size(2)
    query = query.to(value.dtype)  # rotary positions leave them in float32 under autocast
    key = key.to(value.dtype)
    causal = is_causal
    if causal is None:
        causal = getattr(module, "is_causal", False)
    needs_mask = dropout or softcap or not hook.is_plain(layer)
    if attention_mask is None and causal and length > 1 and needs_mask:
        lower = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
        attention_mask = lower[None, None]
    key, value, attention_mask = hook.widen(layer, key, value, attention_mask)
    if key.size(1) < query.size(1):
        repeats = query.size(1) // key.size(1)
        key = key.repeat_interleave(repeats, dim=1)
        value = value.repeat_interleave(repeats, dim=1)
    matrix_rows = functools.partial(_matrix_rows, query, key, attention_mask, scale, softcap)
    hook.record_scores(layer, matrix_rows, length)
    if layer in hook.recorded.needs.diagonals:
        own = _own_scores(query, key, attention_mask, scale, softcap)
        with_logsumexp = functools.partial(
            kernels.attention_with_logsumexp, scale=scale, softcap=softcap
        )
        output, logsumexp = attend_in_blocks(with_logsumexp, query, key, value, attention_mask)
        # a_ii = exp(q_i . k_i * scale + m_ii) / sum_j exp(q_i . k_j * scale + m_ij)
        hook.recorded.diagonals[layer] = (own - logsumexp).exp()
    else:
        only_causal = attention_mask is None and causal and length > 1
        with_dropout = functools.partial(
            attend, probability=dropout, scale=scale, softcap=softcap, causal=only_causal
        )
        output = attend_in_blocks(with_dropout, query, key, value, attention_mask)
    mixed = output.transpose(1, 2).contiguous()
    return hook.process_head_outputs(layer, mixed), None


def _own_scores(
    query: Tensor, key: Tensor, mask: AttentionMask, scale: float, softcap: float | None
) -> Tensor:
    """Return the score of every token with itself, (n, h, t) float32, plus the mask's bias."""
    length = query.size(2)
    products = (query.float() * key[:, :, -length:].float()).sum(-1)
    own = kernels.cap_scores(products * scale, softcap)
    if mask is None or isinstance(mask, SlidingMask) or mask.dtype == torch.bool:
        return own
    if mask.size(2) == 1 < length:
        return own
    return own + mask[..., -length:].diagonal(dim1=-2, dim2=-1)


def _matrix_rows(
    query: Tensor,
    key: Tensor,
    mask: AttentionMask,
    scale: float,
    softcap: float | None,
    positions: Tensor | None,
) -> Tensor:
    """Return rows of the attention matrix, post-softmax: (n, h, 1, t) at positions (n,), or all for
    None, (n, h, t, t).
    """
    row_mask = full_mask(mask)
    if positions is not None:
        rows = torch.arange(query.size(0), device=query.device)
        query = query[rows, :, positions].unsqueeze(2)
        row_mask = mask_at(row_mask, positions)
    return kernels.scores(query, key, row_mask, scale, softcap).softmax(-1)


#: Largest difference between the hook and the eager attention, relative to the largest number, in
#: float32 and in fewer bits: rounding errors are far smaller, another formula's differences larger.
_TOLERANCE, _COARSE_TOLERANCE = 1e-3, 5e-2
_PROBE_LENGTHS = (24, 17)  # in tokens, of two inputs; the second one is padded


def without_dropout(model: Any) -> Any:
    """Return a copy in eval mode that shares the weights.

    Other threads may be computing with the model itself.
    """
    weights = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in weights}).eval()


def hook_fault(model: Any, n_layers: int) -> str | None:
    """Return why a model may not be used through the hook, or None.

    The hook knows causal attention, grouped queries, windows, capped scores and scalings; a model
    with another kind of attention has another output in its eager path. A family that never calls
    the hook has the same output, so the hook must also be called once by each of the ``n_layers``.
    """
    positions = getattr(model.config, "max_position_embeddings", None) or max(_PROBE_LENGTHS)
    lengths = [min(length, positions - 2) for length in _PROBE_LENGTHS]
    device = model.get_input_embeddings().weight.device
    ids = torch.randint(
        model.config.vocab_size, (2, lengths[0]), generator=torch.Generator().manual_seed(0)
    ).to(device)
    real = torch.arange(lengths[0], device=device) < torch.tensor(lengths, device=device).unsqueeze(
        1
    )

    probed = without_dropout(model)

    def run(**hook: AttentionHook) -> Tensor:
        """Return the states of padded and of unpadded inputs."""
        padded = probed(input_ids=ids, attention_mask=real.long(), **hook).last_hidden_state[real]
        # the pass without a mask also compares the model's own causality
        unmasked = probed(input_ids=ids, **hook).last_hidden_state
        return torch.cat([padded, unmasked.flatten(0, 1)])

    hook = AttentionHook()
    try:
        with torch.inference_mode():
            hooked = run(hook=hook)
            probed.set_attn_implementation("eager")
            eager = run()
    except (RuntimeError, TypeError, ValueError) as error:
        # e.g. grouped queries whose shapes do not fit
        return f"transformers' own attention fails ({str(error).splitlines()[0][:80]})"
    if hook.calls != 2 * n_layers:  # of both passes
        return "its layers do not call it"
    difference = float((hooked - eager).abs().max() / eager.abs().max())
    if difference > (_TOLERANCE if hooked.dtype == torch.float32 else _COARSE_TOLERANCE):
        return (
            f"its own attention differs by {difference:.2g} (it is of a kind that the hook does not"
            " know)"
        )
    return None
