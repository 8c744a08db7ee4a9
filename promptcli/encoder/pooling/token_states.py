"""The states that a pooling reads: which hidden states become x_t, (n, t, d)."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from promptcli.backbones.states import HiddenStates, Needs
from promptcli.errors import UsageError


@dataclass(frozen=True)
class States:
    """One choice of states."""

    needs: Needs  #: what the backbone has to compute for it
    read: Callable[[HiddenStates], Tensor]  #: hidden states -> (n, t, d)


def _static(argument: str | None, n_layers: int) -> States:
    """Raw word-embedding rows, no position, no LayerNorm (PromptBERT's static embeddings)."""
    _no_argument("static", argument)

    def read(hidden: HiddenStates) -> Tensor:
        assert hidden.static is not None
        return hidden.static

    return States(Needs(static=True), read)


def _mlm_head(argument: str | None, n_layers: int) -> States:
    """Rows of the masked-LM head's output matrix (PromptBERT's appendix A.2, table 12)."""
    _no_argument("mlm-head", argument)

    def read(hidden: HiddenStates) -> Tensor:
        assert hidden.decoder is not None
        return hidden.decoder

    return States(Needs(decoder=True), read)


def _last(argument: str | None, n_layers: int) -> States:
    _no_argument("last", argument)
    return States(Needs(frozenset({n_layers})), lambda hidden: hidden.layers[n_layers])


def _first_last(argument: str | None, n_layers: int) -> States:
    """Mean of the first and the last hidden states.

    The papers' "first" is hidden_states[0], the embedding layer's output (all three papers' code, the 56.70 row);
    ``first-last:1`` takes the first Transformer layer instead (SimCSE since 2022, BERT-whitening).
    """
    if argument not in (None, "0", "1"):
        raise UsageError(f"states 'first-last:{argument}' are not known; valid: first-last, first-last:0, first-last:1")
    first = int(argument or 0)
    return States(
        Needs(frozenset({first, n_layers})), lambda hidden: (hidden.layers[first] + hidden.layers[n_layers]) / 2
    )


def _layer(argument: str | None, n_layers: int) -> States:
    if argument is None or not argument.isdecimal() or int(argument) > n_layers:
        raise UsageError(f"states 'layer-{argument or ''}' are not there; valid: layer-0 to layer-{n_layers}")
    layer = int(argument)
    return States(Needs(frozenset({layer})), lambda hidden: hidden.layers[layer])


def _no_argument(name: str, argument: str | None) -> None:
    if argument is not None:
        raise UsageError(f"states {name!r} take no argument, but {argument!r} was given")


STATES: dict[str, Callable[[str | None, int], States]] = {
    "static": _static,
    "mlm-head": _mlm_head,
    "last": _last,
    "first-last": _first_last,
    "layer": _layer,
}
