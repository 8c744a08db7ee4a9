"""The states that a pooling reads: which hidden states become x_t, (n, t, d)."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from promptcli.backbones.states import HiddenStates, Needs
from promptcli.encoder.context import BuildContext
from promptcli.errors import UsageError


@dataclass(frozen=True)
class States:
    """One choice of states."""

    needs: Needs  #: required backbone outputs
    read: Callable[[HiddenStates], Tensor]  #: hidden states -> (n, t, d)


def _static(context: BuildContext) -> States:
    """Raw word-embedding rows, no position, no LayerNorm (PromptBERT's static embeddings)."""
    context.no_argument("states 'static' take")
    return States(Needs(static=True), lambda hidden: _computed(hidden.static))


def _mlm_head(context: BuildContext) -> States:
    """Rows of the masked-LM head's output matrix (PromptBERT's appendix A.2, table 12)."""
    context.no_argument("states 'mlm-head' take")
    return States(Needs(decoder=True), lambda hidden: _computed(hidden.decoder))


def _computed(states: Tensor | None) -> Tensor:
    assert states is not None
    return states


def _last(context: BuildContext) -> States:
    context.no_argument("states 'last' take")
    return _of_layer(context.backbone.n_layers)


def _first_last(context: BuildContext) -> States:
    """Mean of the first and the last hidden states.

    The papers' "first" is hidden_states[0], the embedding layer's output (all three papers' code, the 56.70 row);
    ``first-last:1`` takes the first Transformer layer instead (SimCSE since 2022, BERT-whitening).
    """
    argument = context.argument or "0"
    if argument not in ("0", "1"):
        raise UsageError(f"states 'first-last:{argument}' are not known; valid: first-last, first-last:0, first-last:1")
    first, last = int(argument), context.backbone.n_layers
    if context.backbone.last_width != context.backbone.width:
        raise UsageError(
            f"states 'first-last' have no mean in backbone {context.backbone.name!r}: {context.backbone.width} numbers"
            f" in its layers, {context.backbone.last_width} after the last one; take last or layer-K"
        )
    return States(Needs(frozenset({first, last})), lambda hidden: (hidden.layers[first] + hidden.layers[last]) / 2)


def _last_two(context: BuildContext) -> States:
    """Mean of the last two layers (ConSERT's at test)."""
    context.no_argument("states 'last-two' take")
    last = context.backbone.n_layers
    return States(
        Needs(frozenset({last - 1, last})), lambda hidden: (hidden.layers[last - 1] + hidden.layers[last]) / 2
    )


def _layer(context: BuildContext) -> States:
    """Read one layer: ``layer-0`` the embedding layer, ``layer-L`` the last one, from the end ``layer--1``."""
    argument, n_layers = context.argument or "", context.backbone.n_layers
    number = int(argument) if re.fullmatch(r"-?\d+", argument, re.ASCII) else n_layers + 1
    if not -n_layers - 1 <= number <= n_layers:
        raise UsageError(
            f"states 'layer-{argument}' do not exist; valid: layer-0 to layer-{n_layers}, or from the end layer--1 to"
            f" layer--{n_layers + 1}"
        )
    return _of_layer(number if number >= 0 else n_layers + 1 + number)


def _of_layer(layer: int) -> States:
    return States(Needs(frozenset({layer})), lambda hidden: hidden.layers[layer])


STATES: dict[str, Callable[[BuildContext], States]] = {
    "static": _static,
    "mlm-head": _mlm_head,
    "last": _last,
    "first-last": _first_last,
    "last-two": _last_two,
    "layer": _layer,
}
