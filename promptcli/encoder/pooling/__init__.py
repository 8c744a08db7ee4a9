"""Pooling = states x weights: hidden states to one vector per sentence.

New weights are a file, its import and a row here.
"""

import functools
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import Batch, HiddenStates, Needs
from promptcli.encoder.context import BuildContext
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
from promptcli.errors import UsageError, look_up, unknown
from promptcli.extensions import Table
from promptcli.recipe import split_spec


@dataclass(frozen=True)
class States:
    """One choice of states."""

    needs: Needs  #: required backbone outputs
    read: Callable[[HiddenStates], Tensor]  #: hidden states -> (n, t, d)


def _computed(states: Tensor | None) -> Tensor:
    assert states is not None
    return states


def _first_last(context: BuildContext) -> States:
    """Mean of the first and the last hidden states.

    The papers' "first" is hidden_states[0], the embedding layer's output (all three papers' code,
    the 56.70 row); ``first-last:1`` takes the first Transformer layer instead (SimCSE since 2022,
    BERT-whitening).
    """
    argument = context.argument or "0"
    if argument not in ("0", "1"):
        raise UsageError(
            f"states 'first-last:{argument}' are not known; valid: first-last, first-last:0,"
            " first-last:1"
        )
    if context.backbone.last_width != context.backbone.width:
        widths = (
            f"{context.backbone.width} dimensions in its layers, {context.backbone.last_width}"
            " after the last one"
        )
        raise UsageError(f"states 'first-last' have no mean: {widths}; take last or layer-K")
    return _mean_of(int(argument), context.backbone.n_layers)


def _mean_of(first: int, second: int) -> States:
    return States(
        Needs(frozenset({first, second})),
        lambda hidden: (hidden.layers[first] + hidden.layers[second]) / 2,
    )


def _layer(context: BuildContext) -> States:
    """Read one layer: ``layer-0`` the embedding layer, ``layer-L`` the last one, from the end
    ``layer--1``.
    """
    argument = context.argument or ""
    count = context.backbone.n_layers + 1  # the embedding layer included
    is_number = re.fullmatch(r"-?\d+", argument, re.ASCII)
    if not is_number or not -count <= int(argument) < count:
        valid = f"layer-0 to layer-{count - 1}, or from the end layer--1 to layer--{count}"
        raise UsageError(f"states 'layer-{argument}' do not exist; valid: {valid}")
    return _of_layer(int(argument) % count)


def _of_layer(layer: int) -> States:
    return States(Needs(frozenset({layer})), lambda hidden: hidden.layers[layer])


def _attention(context: BuildContext) -> States:
    """Sum over layers of the attention block's output, after its projection, before the residual
    (AlignedWVA).

    ``attention:A-B`` takes the layers A to B, 1-based as in ``layer-K``; without them all.
    """
    backbone = context.backbone
    argument = context.argument or f"1-{backbone.n_layers}"
    first = last = 0  # which do not exist
    match = re.fullmatch(r"(\d+)-(\d+)", argument, re.ASCII)
    if match:
        first, last = map(int, match.groups())
    if not 1 <= first <= last <= backbone.n_layers:
        valid = (
            f"its {backbone.n_layers} layers; give attention:A-B with 1 <= A <= B <="
            f" {backbone.n_layers}"
        )
        raise UsageError(
            f"states 'attention:{argument}' do not exist in {backbone.name!r}, of {valid}"
        )
    backbone.require_seam("the states 'attention'")
    backbone.projection(0)
    layers = range(first - 1, last)
    return States(
        Needs(attended=frozenset(layers)),
        lambda hidden: functools.reduce(operator.add, (hidden.attended[layer] for layer in layers)),
    )


STATES: dict[str, Callable[[BuildContext], States]] = {
    # raw word-embedding rows, no position, no LayerNorm (PromptBERT's static embeddings)
    "static": lambda context: States(Needs(static=True), lambda hidden: _computed(hidden.static)),
    # rows of the masked-LM head's output matrix (PromptBERT's appendix A.2, table 12)
    "mlm-head": lambda context: States(
        Needs(decoder=True), lambda hidden: _computed(hidden.decoder)
    ),
    "last": lambda context: _of_layer(context.backbone.n_layers),
    "first-last": _first_last,
    # ConSERT's at test
    "last-two": lambda context: _mean_of(context.backbone.n_layers - 1, context.backbone.n_layers),
    "layer": _layer,
    "attention": _attention,
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


def build_pooling(spec: str, backbone: Backbone, tensors: Mapping[str, Tensor]) -> Pooling:
    """Make the pooling that a recipe names."""
    states_spec, slash, weights_spec = spec.partition("/")
    if not slash:
        raise UsageError(
            f"pooling {spec!r} is not STATES/WEIGHTS; e.g. last/avg, first-last/ditto:1-10"
        )
    if states_spec.startswith("layer-"):
        states_spec = states_spec.replace("-", ":", 1)
    states_name, states_argument = split_spec(states_spec)
    if states_name not in STATES:
        valid = [name.replace("layer", "layer-K") for name in STATES]
        raise unknown("states of pooling", states_name, valid)
    joined = [_build_weights(spec, backbone, tensors) for spec in weights_spec.split("+")]
    weights = joined[0]
    if len(joined) > 1:
        weights = Joined(joined)
    context = BuildContext(states_argument, backbone, tensors)
    if states_name not in ("first-last", "layer", "attention"):
        context.no_argument(f"states {states_name!r} take")
    states = STATES[states_name](context)
    return Pooling(f"{spec.partition('/')[0]}/{weights.spec}", states, weights)


def _build_weights(spec: str, backbone: Backbone, tensors: Mapping[str, Tensor]) -> Weights:
    name, argument = split_spec(spec)
    if argument is None and ";" in name:  # slot-attention;ALPHA
        name, _, rest = name.partition(";")
        argument = f";{rest}"
    first, apart, rest = (argument or "").partition(";")
    if name == "from" and first.isdecimal() and apart:
        return From(int(first), _build_weights(rest, backbone, tensors))
    return look_up("weights of pooling", name, WEIGHTS)(BuildContext(argument, backbone, tensors))


def initial_weights(spec: str, backbone: Backbone, generator: torch.Generator) -> dict[str, Tensor]:
    """Return the tensors that a pooling starts learning from, by name; empty for most."""
    name, argument = split_spec(spec.partition("/")[2])
    kind = WEIGHTS.get(name)
    if not isinstance(kind, type) or not issubclass(kind, Weights):
        return {}
    return kind.start(BuildContext(argument, backbone, {}), generator)
