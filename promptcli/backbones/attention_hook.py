"""The attention hook: one function, registered by name in transformers, serves every method.

An ``AttentionHook`` travels with one forward pass as the keyword argument ``hook`` of the model. It
carries ``Injected`` values in (such as deep prefixes) and ``Recorded`` values out (such as
diagonals). Layers are numbered by counting calls, because ALBERT shares one module among its layers
and DistilBERT's modules carry no number. ``hook_fault`` compares it with transformers' eager path.
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
    attend,
    attend_in_blocks,
    full_mask,
    mask_at,
)
from promptcli.backbones.states import Contrast, Needs, Prepending, Rerouting
from promptcli.backbones.transformers_loading import transformers

NAME = "promptcli"
#: Rows of an attention matrix (n, h, q, t), post-softmax, at positions (n,); all for None.
ScoreFunction = Callable[[Tensor | None], Tensor]


@dataclass(frozen=True)
class Injected:
    """The values that a forward pass puts into the attention of the layers."""

    #: Per layer the prefix keys and values, each (h', p, d/h) or (n, h', p, d/h), as in DCPCSE.
    prefix: Sequence[tuple[Tensor, Tensor]] | None = None
    prepending: Prepending | None = None
    contrast: Contrast | None = None
    rerouting: Rerouting | None = None
    #: (n,) positions of the last tokens, for ``contrast`` and ``rerouting``
    last_positions: Tensor | None = None


@dataclass
class Recorded:
    """The requests of a forward pass to the layers' attention, and the values it has read."""

    needs: Needs = field(default_factory=Needs)  #: outputs wanted from each layer
    #: Slot of ``needs.attention_rows`` -> (n,)
    places: Mapping[int, Tensor] = field(default_factory=dict)
    #: Layer -> (n, h, t) float32, a_ii of the post-softmax attention matrix (Ditto); filled.
    diagonals: dict[int, Tensor] = field(default_factory=dict)
    #: Layer -> (n, h, t, t) float32, post-softmax; filled. With a prefix its columns come first.
    matrices: dict[int, Tensor] = field(default_factory=dict)
    #: Layer and slot -> (n, h, t) float32, post-softmax, without the columns of a prefix; filled.
    attention_rows: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    #: Layer -> (n, t, h d/h), the mixture of the heads, which goes into the output projection, or
    #: (n, 1, h d/h) at ``slots``; filled.
    mixtures: dict[int, Tensor] = field(default_factory=dict)
    #: Layer -> (n, t, h' d/h), the values of its attention, or (n, 1, h' d/h) at ``slots``; filled.
    values: dict[int, Tensor] = field(default_factory=dict)
    #: (n,) the only positions whose mixtures and values are wanted; None for all
    slots: Tensor | None = None
    #: layer (0-based) after whose attention the pass ends with ``Stopped``; before its attention if
    #: only its values are wanted
    stop: int | None = None
    keeps_keys_values: bool = False  #: whether keys and values are kept
    #: Per layer the keys and values of the input, each (n, h', t, d/h), h' of grouped queries;
    #: filled.
    kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @property
    def layers(self) -> set[int]:
        """The layers (0-based) from which something was recorded."""
        read = self.diagonals.keys() | self.matrices.keys() | self.mixtures.keys()
        return read | self.values.keys() | {layer for layer, _ in self.attention_rows}

    def reads_scores(self, layer: int) -> bool:
        """Return whether any part of a layer's attention matrix is wanted."""
        needs = self.needs
        of_row = any(of == layer for of, _ in needs.attention_rows)
        return of_row or layer in needs.diagonals or layer in needs.matrices


class AttentionHook:
    """Injects values into one forward pass and records values from it."""

    def __init__(self, injected: Injected = Injected(), recorded: Recorded | None = None) -> None:
        self.injected = injected
        self.recorded = recorded or Recorded()
        self.calls = 0  #: layers counted so far
        #: The last tokens' key and value of the layer before, each (n, h', 1, d/h), for
        #: ``rerouting``.
        self._rerouted: tuple[Tensor, Tensor] | None = None

    def next_layer(self) -> int:
        """Return the number (0-based) of the layer that is calling."""
        self.calls += 1
        return self.calls - 1

    def is_plain(self, layer: int) -> bool:
        """Return whether a layer's scores are neither changed nor read."""
        is_changed = self.injected.prefix is not None or self.injected.rerouting is not None
        return not (self.recorded.reads_scores(layer) or is_changed)

    def widen(
        self, layer: int, key: Tensor, value: Tensor, mask: AttentionMask
    ) -> tuple[Tensor, Tensor, AttentionMask]:
        """Return keys and values (n, h', t, d/h) behind the injected ones, and the mask.

        ``layer`` -1 is the last one.
        """
        if self.recorded.keeps_keys_values:
            self.recorded.kept.append((key, value))
        if self.injected.rerouting is not None:
            key, value, mask = self._reroute(layer, self.injected.rerouting, key, value, mask)
        if self.injected.prefix is not None:
            key, value, mask = with_prefix(self.injected.prefix[layer], key, value, mask)
        return key, value, mask

    def _reroute(
        self, layer: int, rerouting: Rerouting, key: Tensor, value: Tensor, mask: AttentionMask
    ) -> tuple[Tensor, Tensor, AttentionMask]:
        """Put the previous layer's last token in front of keys and values (n, h', t, d/h).

        Keep this layer's last token for the next layer. The mask gets a column for it, with the
        bias.
        """
        assert self.injected.last_positions is not None
        rows = torch.arange(key.size(0), device=key.device)
        before = self._rerouted
        last_key = key[rows, :, self.injected.last_positions].unsqueeze(2)
        last_value = value[rows, :, self.injected.last_positions].unsqueeze(2)
        self._rerouted = last_key, last_value
        if layer not in rerouting.layers:
            return key, value, mask
        assert before is not None
        mask = full_mask(mask)
        if mask is None:
            mask = torch.zeros(1, 1, 1, key.size(2), dtype=key.dtype, device=key.device)
        mask = functional.pad(kernels.additive_mask(mask, key.dtype), (1, 0), value=rerouting.bias)
        return torch.cat([before[0], key], 2), torch.cat([before[1], value], 2), mask

    def read_scores(self, layer: int, score: ScoreFunction, length: int) -> None:
        """Record the wanted parts of a layer's attention matrix over inputs of that length."""
        recorded = self.recorded
        if layer in recorded.needs.matrices:
            recorded.matrices[layer] = score(None)
        for of, slot in recorded.needs.attention_rows:
            if of == layer:
                row = score(recorded.places[slot]).squeeze(2)
                recorded.attention_rows[layer, slot] = row[..., -length:]

    def read_values(self, layer: int, value: Tensor) -> None:
        """Record the wanted values (n, h', t, d/h) of a layer, and end the pass if nothing else is
        wanted.
        """
        recorded = self.recorded
        if layer not in recorded.needs.values:
            return
        values = value.transpose(1, 2)
        if recorded.slots is not None:
            rows = torch.arange(value.size(0), device=value.device)
            values = values[rows, recorded.slots].unsqueeze(1)
        recorded.values[layer] = values.flatten(2)
        attends = recorded.reads_scores(layer) or layer in recorded.needs.attention_outputs
        if layer == recorded.stop and not attends:
            raise Stopped

    def process_head_outputs(self, layer: int, mixed: Tensor) -> Tensor:
        """Return the heads' mixtures (n, t, h, d/h) that a layer continues with.

        Record the wanted mixtures.
        """
        contrast = self.injected.contrast
        recorded = self.recorded
        rows = torch.arange(mixed.size(0), device=mixed.device)
        if contrast is not None and layer == contrast.layer:
            last_positions = self.injected.last_positions
            assert last_positions is not None
            changed = contrast(mixed[rows, last_positions].flatten(1))
            mixed = mixed.index_put((rows, last_positions), changed.view(-1, *mixed.shape[2:]))
        if layer in recorded.needs.attention_outputs:
            wanted = mixed
            if recorded.slots is not None:
                wanted = mixed[rows, recorded.slots].unsqueeze(1)
            recorded.mixtures[layer] = wanted.flatten(2)
        if layer == recorded.stop:
            raise Stopped
        return mixed


#: The hook of a pass that injects and records nothing.
NO_HOOK = AttentionHook()


class Stopped(Exception):
    """Ends a forward pass early: everything wanted is recorded."""


def register_attention() -> str:
    """Make the attention known to transformers; return its name."""
    library = transformers()
    library.AttentionInterface.register(NAME, attention)
    library.AttentionMaskInterface.register(NAME, _mask)
    return NAME


def _mask(attention_mask: Tensor | None = None, **options: Any) -> Tensor | SlidingMask | None:
    """Return transformers' own mask for the fused kernels, from the padding (n, t).

    A sliding window over a long input, and the mask of padding alone, have forms that do not grow
    with the square of the length. On a GPU the padding is not inspected, since that would wait for
    the device.
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
    """Let the layers of a causal model, in order, apply the ``prepending`` of the current pass."""
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
    """Attend with the fused kernels.

    Put the layer's prefix in front of keys and values, and record the wanted values.

    Args:
        module: The calling attention module; says whether it is causal (layers are counted).
        query: (n, h, t, d/h).
        key: (n, h', t, d/h); h' divides h where queries are grouped: h / h' of them share a head's
            keys.
        value: (n, h', t, d/h).
        attention_mask: (n, 1, t, t), or (n, 1, 1, t) for padding alone, boolean (True = attend) or
            additive, causality and sliding windows in it; a ``SlidingMask`` of a long input; None
            if nothing is masked, or only the tokens that follow (causal modules).
        scaling: Factor of the dot products; None means (d/h)^-1/2.
        dropout: Probability of attention dropout.
        hook: Values injected and recorded by the pass; by default none.
        is_causal: Replaces the module's own ``is_causal``.
        softcap: Scores s become c tanh(s / c) (Gemma 2); no fused kernel knows it.

    Returns:
        (n, t, h, d/h), and None instead of the attention matrix, which the hook keeps if it is
        wanted.
    """
    scale = scaling
    if scale is None:
        scale = query.size(-1) ** -0.5
    layer = hook.next_layer()
    hook.read_values(layer, value)
    length = query.size(2)
    query = query.to(value.dtype)  # under autocast rotary positions leave them in float32
    key = key.to(value.dtype)
    causal = is_causal
    if causal is None:
        causal = getattr(module, "is_causal", False)
    needs_mask = dropout or softcap or not hook.is_plain(layer)
    if attention_mask is None and causal and length > 1 and needs_mask:
        seen = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
        attention_mask = seen[None, None]
    key, value, attention_mask = hook.widen(layer, key, value, attention_mask)
    if key.size(1) < query.size(1):
        repeats = query.size(1) // key.size(1)
        key = key.repeat_interleave(repeats, dim=1)
        value = value.repeat_interleave(repeats, dim=1)
    score = functools.partial(_scores_at, query, key, attention_mask, scale, softcap)
    hook.read_scores(layer, score, length)
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
        dropped = functools.partial(
            attend, probability=dropout, scale=scale, softcap=softcap, causal=only_causal
        )
        output = attend_in_blocks(dropped, query, key, value, attention_mask)
    mixed = output.transpose(1, 2).contiguous()
    return hook.process_head_outputs(layer, mixed), None


def _own_scores(
    query: Tensor, key: Tensor, mask: AttentionMask, scale: float, softcap: float | None
) -> Tensor:
    """Return the score of every token with itself, (n, h, t) float32, a bias of the mask added."""
    length = query.size(2)
    products = (query.float() * key[:, :, -length:].float()).sum(-1)
    own = kernels.cap_scores(products * scale, softcap)
    if mask is None or isinstance(mask, SlidingMask) or mask.dtype == torch.bool:
        return own
    if mask.size(2) == 1 < length:
        return own
    return own + mask[..., -length:].diagonal(dim1=-2, dim2=-1)


def _scores_at(
    query: Tensor,
    key: Tensor,
    mask: AttentionMask,
    scale: float,
    softcap: float | None,
    places: Tensor | None,
) -> Tensor:
    """Return the rows (n, h, q, t) of the attention matrix at one position (n,) of each input, all
    for None.
    """
    seen = full_mask(mask)
    if places is not None:
        inputs = torch.arange(query.size(0), device=query.device)
        query = query[inputs, :, places].unsqueeze(2)
        seen = mask_at(seen, places)
    return kernels.scores(query, key, seen, scale, softcap).softmax(-1)


def with_prefix(
    prefix: tuple[Tensor, Tensor], key: Tensor, value: Tensor, mask: AttentionMask
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Put a prefix in front of keys and values (n, h', t, d/h), and widen the mask by it."""
    n = key.size(0)
    keys, values = (part.expand(n, *part.shape[-3:]).to(key.dtype) for part in prefix)
    mask = full_mask(mask)
    if mask is not None:
        attended = True if mask.dtype == torch.bool else 0.0
        mask = functional.pad(mask, (keys.size(-2), 0), value=attended)
    return torch.cat([keys, key], -2), torch.cat([values, value], -2), mask


#: Largest difference of the two paths, relative to the largest number: rounding errors are far
#: smaller, those of a different attention larger.
_TOLERANCE, _COARSE_TOLERANCE = 1e-3, 5e-2  # of float32, and of fewer bits
_LENGTHS = (24, 17)  # tokens of the probe's two rows, so that one is padded


def hook_fault(model: Any, n_layers: int) -> str | None:
    """Return why a model may not be used through the hook, or None.

    An attention that the hook does not support gives another output than the model's own path (it
    supports causal attention, grouped queries, windows, capped scores and scalings). A family that
    never calls the hook gives the same output, so the calls of a pass must number ``n_layers``.
    """
    positions = getattr(model.config, "max_position_embeddings", None) or max(_LENGTHS)
    lengths = [min(length, positions - 2) for length in _LENGTHS]
    device = model.get_input_embeddings().weight.device
    ids = torch.randint(
        model.config.vocab_size, (2, lengths[0]), generator=torch.Generator().manual_seed(0)
    ).to(device)
    real = torch.arange(lengths[0], device=device) < torch.tensor(lengths, device=device).unsqueeze(
        1
    )

    # a copy with the same weights: other threads may be computing with the model
    weights = [*model.parameters(), *model.buffers()]
    probed = copy.deepcopy(model, {id(tensor): tensor for tensor in weights}).eval()

    def run(**hook: AttentionHook) -> Tensor:
        """Return the states of padded and of unpadded inputs."""
        padded = probed(input_ids=ids, attention_mask=real.long(), **hook).last_hidden_state[real]
        # without a mask, the model's own causality is compared too
        unmasked = probed(input_ids=ids, **hook).last_hidden_state
        return torch.cat([padded, unmasked.flatten(0, 1)])

    hook = AttentionHook()
    try:
        with torch.inference_mode():
            ours = run(hook=hook)
            probed.set_attn_implementation("eager")
            own = run()
    except (RuntimeError, TypeError, ValueError) as error:
        # shapes that do not fit: grouped queries
        return f"transformers' own attention fails ({str(error).splitlines()[0][:80]})"
    if hook.calls != 2 * n_layers:  # of both passes
        return "its layers do not call it"
    difference = float((ours - own).abs().max() / own.abs().max())
    if difference > (_TOLERANCE if ours.dtype == torch.float32 else _COARSE_TOLERANCE):
        return (
            f"its own attention differs by {difference:.2g} (it is of a kind that the hook does not"
            " know)"
        )
    return None
