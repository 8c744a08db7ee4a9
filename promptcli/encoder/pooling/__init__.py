"""Pooling = states x weights: hidden states to one vector per sentence.

To add weights, add a file with a subclass of ``Weights``, and a line to ``WEIGHTS``.
"""

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import Batch, HiddenStates, Needs
from promptcli.encoder.components import BuildContext, Weights
from promptcli.encoder.pooling.attention import Ditto, SlotAttention
from promptcli.encoder.pooling.content import ContentAverage, ContentMaximum
from promptcli.encoder.pooling.convolution import Convolution
from promptcli.encoder.pooling.tfidf import choose_granularity
from promptcli.encoder.pooling.unbiased import Unbiased
from promptcli.encoder.pooling.weights import (
    Average,
    Cls,
    FromToken,
    LastAndMean,
    LastToken,
    Mask,
    Maximum,
    SideBySide,
    SquareRoot,
    Weighted,
)
from promptcli.encoder.template import Template
from promptcli.errors import UsageError, look_up
from promptcli.extensions import Table
from promptcli.grammar import Pair, PoolingSpec, Spec


def _first_last(spec: Spec, backbone: Backbone) -> Needs:
    """Mean of the first and the last hidden states.

    "First" is hidden_states[0], the embedding layer's output, as in the code of all three papers
    (the row with 56.70). ``first-last:1`` takes the first Transformer layer instead (SimCSE since
    2022, BERT-whitening).
    """
    if backbone.last_width != backbone.width:
        raise UsageError(
            f"states 'first-last' have no mean: the model has {backbone.width} dimensions in its"
            f" layers, {backbone.last_width} after the last one; use last or layer-K"
        )
    return Needs(frozenset({spec["first"] or 0, backbone.n_layers}))


def _layer(spec: Spec, backbone: Backbone) -> Needs:
    """Read one layer: ``layer-0`` is the embedding layer, ``layer-L`` or ``layer--1`` the last."""
    count = backbone.n_layers + 1  # the embedding layer included
    if not -count <= spec["layer"] < count:
        valid = f"layer-0 to layer-{count - 1}, or from the end layer--1 to layer--{count}"
        raise UsageError(f"states '{spec}' do not exist; valid: {valid}")
    return Needs(frozenset({spec["layer"] % count}))


def _attention(spec: Spec, backbone: Backbone) -> Needs:
    """Sum over layers of the attention block's output, after its projection, before the residual
    (AlignedWVA).

    ``attention:A-B`` takes the layers A to B, 1-based as in ``layer-K``. Without A-B it takes all.
    """
    layers = _layers(spec, backbone, Pair(1, backbone.n_layers))
    backbone.require_hook("the states 'attention'")
    backbone.projection(0)
    return Needs(attention_outputs=layers)


def _values(spec: Spec, backbone: Backbone) -> Needs:
    """Sum over layers of the values of the attention, v = W_V x + b_V, heads side by side (Value
    Aggregation, arXiv 2602.01572).

    ``values:A-B`` takes the layers A to B, 1-based as in ``layer-K``; of layer B only the maps to
    queries, keys and values run. Without A-B it takes the last layer, and in causal models the
    upper half. In models with grouped queries a state is narrower than d.
    """
    last = backbone.n_layers
    layers = _layers(spec, backbone, Pair(last // 2 + 1 if backbone.causal else last, last))
    backbone.require_hook("the states 'values'")
    return Needs(values=layers)


def _layers(spec: Spec, backbone: Backbone, default: Pair) -> frozenset[int]:
    """Return the layers (0-based) of ``NAME:A-B``."""
    layers = spec["layers"] or default
    count = backbone.n_layers
    if not 1 <= layers.first <= layers.last <= count:
        raise UsageError(
            f"states '{spec.name}:{layers}' do not exist in {backbone.name!r}, which has {count}"
            f" layers; give {spec.name}:A-B with 1 <= A <= B <= {count}"
        )
    return frozenset(range(layers.first - 1, layers.last))


#: Name of states -> the backbone outputs that they need.
STATES: dict[str, Callable[[Spec, Backbone], Needs]] = {
    # raw word embeddings, no position, no LayerNorm (PromptBERT's static embeddings)
    "static": lambda spec, backbone: Needs(static=True),
    # output embeddings of the masked-LM head (PromptBERT's appendix A.2, table 12)
    "mlm-head": lambda spec, backbone: Needs(output_embeddings=True),
    "last": lambda spec, backbone: Needs(frozenset({backbone.n_layers})),
    "first-last": _first_last,
    # mean of the last two (ConSERT's at test)
    "last-two": lambda spec, backbone: Needs(frozenset({backbone.n_layers - 1, backbone.n_layers})),
    "layer": _layer,
    "attention": _attention,
    "values": _values,
}


def build_states(spec: Spec, backbone: Backbone) -> Needs:
    """Return the backbone outputs that the states of a pooling need."""
    make = look_up("states of pooling", spec.name, STATES)
    if "text" in spec.values and spec.argument is not None:  # the grammar knows no argument
        raise UsageError(f"states {spec.name!r} take no argument, but {spec.argument!r} was given")
    return make(spec, backbone)


def read_states(needs: Needs, hidden: HiddenStates) -> Tensor:
    """Return the states (n, t, d) of a pooling: embeddings, the mean of layers, or their sum."""
    embeddings = hidden.static if needs.static else hidden.output_embeddings
    if needs.static or needs.output_embeddings:
        assert embeddings is not None
        return embeddings
    if needs.layers:
        total = _sum_of(hidden.layers, needs.layers)
        return total if len(needs.layers) == 1 else total / len(needs.layers)
    return _sum_of(hidden.attention_outputs | hidden.values, needs.attention_outputs | needs.values)


def _sum_of(states: Mapping[int, Tensor], layers: frozenset[int]) -> Tensor:
    return functools.reduce(operator.add, (states[layer] for layer in sorted(layers)))


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
    """States and weights."""

    spec: str  #: ``STATES/WEIGHTS`` with every argument explicit
    states: Needs  #: the x_t
    weights: Weights  #: the w_t

    @property
    def needs(self) -> Needs:
        weights = self.weights.needs
        return replace(
            self.states,
            diagonals=weights.diagonals,
            attention_rows=weights.attention_rows,
            slot=weights.slot,
        )

    def read(self, hidden: HiddenStates) -> Tensor:
        """Return the states (n, t, d)."""
        return read_states(self.states, hidden)

    def pool(self, batch: Batch, hidden: HiddenStates) -> Tensor:
        """Return one vector per sentence, (n, d) float32."""
        return self.weights.pool(self.read(hidden), batch, hidden)


def build_pooling(
    spec: PoolingSpec,
    backbone: Backbone,
    tensors: Mapping[str, Tensor],
    template: Template | None = None,
) -> Pooling:
    """Return the pooling that a recipe names; ``template`` is the one around the sentences."""
    members = []
    for each in spec.weights:
        members.append(_build_weights(BuildContext(each, backbone, tensors, template=template)))
    weights = SideBySide(members) if len(members) > 1 else members[0]
    states = build_states(spec.states, backbone)
    return Pooling(f"{spec.states}/{weights.spec}", states, weights)


def _build_weights(context: BuildContext) -> Weights:
    spec = context.spec
    if spec.name == "from":
        weights = _build_weights(replace(context, spec=spec["weights"]))
        if weights.reads_content_only:  # they never read a token of the prompt
            return weights
        return FromToken(spec["first"], weights)
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
    return kind.initial_tensors(BuildContext(weights, backbone, {}), generator)
