"""Pooling = states x weights: hidden states to one vector per sentence. A new one is one file and one line here."""

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import Batch, HiddenStates, Needs
from promptcli.encoder.context import BuildContext
from promptcli.encoder.pooling import weights as plain
from promptcli.encoder.pooling.convolution import Convolution
from promptcli.encoder.pooling.ditto import Ditto
from promptcli.encoder.pooling.tfidf import choose_granularity
from promptcli.encoder.pooling.token_states import STATES, States
from promptcli.encoder.pooling.unbiased import Unbiased
from promptcli.encoder.pooling.weights import From, Joined, Weights
from promptcli.errors import UsageError, look_up, unknown
from promptcli.extensions import Table
from promptcli.recipe import split_spec

WEIGHTS: MutableMapping[str, Callable[[BuildContext], Weights]] = {
    "avg": plain.Average,
    "max": plain.Maximum,
    "sqrt": plain.SquareRoot,
    "weighted": plain.Weighted,
    "cnn": Convolution,
    "cls": plain.Cls,
    "mask": plain.Mask,
    "last-token": plain.LastToken,
    "unbiased": Unbiased,
    "tfidf": choose_granularity,
    "ditto": Ditto,
}
WEIGHTS = Table("poolings", WEIGHTS)


@dataclass(frozen=True)
class Pooling:
    """One choice of states and of weights."""

    spec: str  #: ``STATES/WEIGHTS`` with every argument explicit
    states: States  #: the x_t
    weights: Weights  #: the w_t

    @property
    def needs(self) -> Needs:
        """What the backbone has to compute."""
        weights = self.weights.needs
        return replace(self.states.needs, diagonals=weights.diagonals, slot=weights.slot)

    def pool(self, batch: Batch, hidden: HiddenStates) -> Tensor:
        """Return one vector per sentence, (n, d) float32."""
        return self.weights.pool(self.states.read(hidden), batch, hidden)


def build_pooling(spec: str, backbone: Backbone, tensors: Mapping[str, Tensor]) -> Pooling:
    """Make the pooling that a recipe names."""
    states_spec, slash, weights_spec = spec.partition("/")
    if not slash:
        raise UsageError(f"pooling {spec!r} is not STATES/WEIGHTS; e.g. last/avg, first-last/ditto:1-10")
    if states_spec.startswith("layer-"):
        states_spec = states_spec.replace("-", ":", 1)
    states_name, states_argument = split_spec(states_spec)
    if states_name not in STATES:
        raise unknown("states of pooling", states_name, [name if name != "layer" else "layer-K" for name in STATES])
    joined = [_build_weights(spec, backbone, tensors) for spec in weights_spec.split("+")]
    weights = joined[0] if len(joined) == 1 else Joined(joined)
    states = STATES[states_name](BuildContext(states_argument, backbone, tensors))
    return Pooling(f"{spec.partition('/')[0]}/{weights.spec}", states, weights)


def _build_weights(spec: str, backbone: Backbone, tensors: Mapping[str, Tensor]) -> Weights:
    name, argument = split_spec(spec)
    first, apart, rest = (argument or "").partition(";")
    if name == "from" and first.isdecimal() and apart:
        return From(int(first), _build_weights(rest, backbone, tensors))
    return look_up("weights of pooling", name, WEIGHTS)(BuildContext(argument, backbone, tensors))


def start_weights(spec: str, backbone: Backbone, generator: torch.Generator) -> dict[str, Tensor]:
    """Return the numbers that a pooling starts learning from, by name; none for most."""
    name, argument = split_spec(spec.partition("/")[2])
    kind = WEIGHTS.get(name)
    if not isinstance(kind, type) or not issubclass(kind, Weights):
        return {}
    return kind.start(BuildContext(argument, backbone, {}), generator)
