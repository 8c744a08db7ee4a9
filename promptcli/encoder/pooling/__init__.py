"""Pooling = states x weights: hidden states to one vector per sentence.

New weights are a file, its import and a row here.
"""

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import Batch, HiddenStates, Needs
from promptcli.encoder.context import BuildContext
from promptcli.encoder.pooling.content import ContentAverage, ContentMaximum
from promptcli.encoder.pooling.convolution import Convolution
from promptcli.encoder.pooling.ditto import Ditto
from promptcli.encoder.pooling.slot_attention import SlotAttention
from promptcli.encoder.pooling.tfidf import choose_granularity
from promptcli.encoder.pooling.unbiased import Unbiased
from promptcli.encoder.pooling.weights import (
    Average,
    Cls,
    From,
    Joined,
    LastAndMean,
    LastToken,
    Mask,
    Maximum,
    SquareRoot,
    Weighted,
    Weights,
)
from promptcli.encoder.template import Template
from promptcli.errors import UsageError, look_up, unknown
from promptcli.extensions import Table
from promptcli.grammar import Pair, PoolingSpec, parse_states


@dataclass(frozen=True)
class States:
    """One choice of states."""

    needs: Needs  #: required backbone outputs
    read: Callable[[HiddenStates], Tensor]  #: hidden states -> (n, t, d)


def _computed(states: Tensor | None) -> Tensor:
    assert states is not None
    return states


def _static(context: BuildContext) -> States:
    """Raw word-embedding rows, no position, no LayerNorm (PromptBERT's static embeddings)."""
    context.refuse_argument("states 'static' take")
    return States(Needs(static=True), lambda hidden: _computed(hidden.static))


def _mlm_head(context: BuildContext) -> States:
    """Rows of the masked-LM head's output matrix (PromptBERT's appendix A.2, table 12)."""
    context.refuse_argument("states 'mlm-head' take")
    return States(Needs(decoder=True), lambda hidden: _computed(hidden.decoder))


def _last(context: BuildContext) -> States:
    """Read the last layer."""
    context.refuse_argument("states 'last' take")
    return _of_layer(context.backbone.n_layers)


def _last_two(context: BuildContext) -> States:
    """Mean of the last two (ConSERT's at test)."""
    context.refuse_argument("states 'last-two' take")
    return _mean_of(context.backbone.n_layers - 1, context.backbone.n_layers)


def _first_last(context: BuildContext) -> States:
    """Mean of the first and the last hidden states.

    The papers' "first" is hidden_states[0], the embedding layer's output (all three papers' code,
    the 56.70 row); ``first-last:1`` takes the first Transformer layer instead (SimCSE since 2022,
    BERT-whitening).
    """
    if context.backbone.last_width != context.backbone.width:
        widths = (
            f"{context.backbone.width} dimensions in its layers, {context.backbone.last_width}"
            " after the last one"
        )
        raise UsageError(f"states 'first-last' have no mean: {widths}; take last or layer-K")
    return _mean_of(context.spec["first"] or 0, context.backbone.n_layers)


def _mean_of(first: int, second: int) -> States:
    return States(
        Needs(frozenset({first, second})),
        lambda hidden: (hidden.layers[first] + hidden.layers[second]) / 2,
    )


def _layer(context: BuildContext) -> States:
    """Read one layer: ``layer-0`` the embedding layer, ``layer-L`` the last one, from the end
    ``layer--1``.
    """
    layer = context.spec["layer"]
    count = context.backbone.n_layers + 1  # the embedding layer included
    if not -count <= layer < count:
        valid = f"layer-0 to layer-{count - 1}, or from the end layer--1 to layer--{count}"
        raise UsageError(f"states '{context.spec}' do not exist; valid: {valid}")
    return _of_layer(layer % count)


def _of_layer(layer: int) -> States:
    return States(Needs(frozenset({layer})), lambda hidden: hidden.layers[layer])


def _attention(context: BuildContext) -> States:
    """Sum over layers of the attention block's output, after its projection, before the residual
    (AlignedWVA).

    ``attention:A-B`` takes the layers A to B, 1-based as in ``layer-K``; without them all.
    """
    backbone = context.backbone
    layers = _layers(context, Pair(1, backbone.n_layers))
    backbone.require_hook("the states 'attention'")
    backbone.projection(0)
    return States(Needs(attended=layers), lambda hidden: _sum_of(hidden.attended, layers))


def _values(context: BuildContext) -> States:
    """Sum over layers of the values of the attention, v = W_V x + b_V, heads side by side (Value
    Aggregation, arXiv 2602.01572).

    ``values:A-B`` takes the layers A to B, 1-based as in ``layer-K``; of layer B only the map to
    the values runs. Without them the last layer, of causal models the upper half. Grouped queries
    have fewer values than heads, so that a state is narrower than d.
    """
    backbone = context.backbone
    last = backbone.n_layers
    default = Pair(last // 2 + 1, last) if backbone.causal else Pair(last, last)
    layers = _layers(context, default)
    backbone.require_values()
    return States(Needs(values=layers), lambda hidden: _sum_of(hidden.values, layers))


def _sum_of(states: Mapping[int, Tensor], layers: frozenset[int]) -> Tensor:
    return functools.reduce(operator.add, (states[layer] for layer in sorted(layers)))


def _layers(context: BuildContext, default: Pair) -> frozenset[int]:
    """Return the layers (0-based) of ``NAME:A-B``."""
    backbone = context.backbone
    name = context.spec.name
    wanted = context.spec["layers"] or default
    if not 1 <= wanted.first <= wanted.last <= backbone.n_layers:
        valid = (
            f"its {backbone.n_layers} layers; give {name}:A-B with 1 <= A <= B <="
            f" {backbone.n_layers}"
        )
        raise UsageError(f"states '{name}:{wanted}' do not exist in {backbone.name!r}, of {valid}")
    return frozenset(range(wanted.first - 1, wanted.last))


STATES: dict[str, Callable[[BuildContext], States]] = {
    "static": _static,
    "mlm-head": _mlm_head,
    "last": _last,
    "first-last": _first_last,
    "last-two": _last_two,
    "layer": _layer,
    "attention": _attention,
    "values": _values,
}

WEIGHTS: Table[Callable[[BuildContext], Weights]] = Table(
    "poolings",
    {
        "avg": Average,
        "max": Maximum,
        "sqrt": SquareRoot,
        "weighted": Weighted,
        "cnn": Convolution,
        "cls": Cls,
        "mask": Mask,
        "last-token": LastToken,
        "last-and-mean": LastAndMean,
        "unbiased": Unbiased,
        "tfidf": choose_granularity,
        "ditto": Ditto,
        "slot-attention": SlotAttention,
        "content-avg": ContentAverage,
        "content-max": ContentMaximum,
    },
)


@dataclass(frozen=True)
class Pooling:
    """One choice of states and of weights."""

    spec: str  #: ``STATES/WEIGHTS`` with every argument explicit
    states: States  #: the x_t
    weights: Weights  #: the w_t

    @property
    def needs(self) -> Needs:
        weights = self.weights.needs
        return replace(
            self.states.needs, diagonals=weights.diagonals, rows=weights.rows, slot=weights.slot
        )

    def pool(self, batch: Batch, hidden: HiddenStates) -> Tensor:
        """Return one vector per sentence, (n, d) float32."""
        return self.weights.pool(self.states.read(hidden), batch, hidden)


def build_pooling(
    spec: PoolingSpec,
    backbone: Backbone,
    tensors: Mapping[str, Tensor],
    template: Template | None = None,
) -> Pooling:
    """Make the pooling that a recipe names, for sentences in a template or alone."""
    if spec.states.name not in STATES:
        valid = [name.replace("layer", "layer-K") for name in STATES]
        raise unknown("states of pooling", spec.states.name, valid)
    parts = []
    for part in spec.weights:
        parts.append(_build_weights(BuildContext(part, backbone, tensors, template=template)))
    weights = parts[0]
    if len(parts) > 1:
        weights = Joined(parts)
    states = STATES[spec.states.name](BuildContext(spec.states, backbone, tensors))
    return Pooling(f"{spec.states}/{weights.spec}", states, weights)


def build_states(name: str, backbone: Backbone) -> States:
    """Return the states of a name, without an argument."""
    return STATES[name](BuildContext(parse_states(name), backbone, {}))


def _build_weights(context: BuildContext) -> Weights:
    spec = context.spec
    if spec.name == "from":
        weights = _build_weights(replace(context, spec=spec["weights"]))
        if weights.of_content:  # which count no token of the prompt, wherever the others begin
            return weights
        return From(spec["first"], weights)
    make = look_up("weights of pooling", spec.name, WEIGHTS)
    return make(context)


def initial_weights(
    spec: PoolingSpec, backbone: Backbone, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return the tensors that a pooling starts learning from, by name; empty for most."""
    weights = spec.weights[0]
    kind = WEIGHTS.get(weights.name)
    if not isinstance(kind, type) or not issubclass(kind, Weights):
        return {}
    return kind.start(BuildContext(weights, backbone, {}), generator)
