"""One attention head on one sentence: the matrix, and its diagonal, which is Ditto's weights (Ditto, figure 2)."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from promptcli.analysis.sentence import tokenize
from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import Needs
from promptcli.encoder.batching import make_batch
from promptcli.encoder.encoder import Encoder
from promptcli.recipe import Recipe


@dataclass(frozen=True)
class Attention:
    """One head on one sentence."""

    head: str  #: layer-head, 1-based
    tokens: list[str]  #: t vocabulary items, the special ones included
    matrix: NDArray[np.float64]  #: (t, t), a_ij: how much token i attends to token j; rows add up to 1

    @property
    def diagonal(self) -> NDArray[np.float64]:
        """a_ii, (t,): the weights of Ditto pooling."""
        return np.diagonal(self.matrix)


def attention(backbone: Backbone, sentence: str, head: str | None = None) -> Attention:
    """Return what one head does on one sentence.

    Args:
        backbone: Of a family that opens its attention.
        sentence: A text.
        head: Layer-head, 1-based; None for the backbone's best known one.

    Raises:
        UsageError: No such head or none known, a family that does not open its attention, no tokens in the sentence, or
            more than there are positions.
    """
    pooling = "last/ditto" if head is None else f"last/ditto:{head}"
    encoder = Encoder(Recipe(backbone=backbone.name, pooling=pooling), backbone, {})
    name = encoder.pooling.weights.spec.removeprefix("ditto:")
    layer, number = (int(part) - 1 for part in name.split("-"))
    given = tokenize(encoder, sentence)
    batch = make_batch([given.ids], None, backbone.tokenizer.pad, backbone.device, len(given.ids))
    with torch.inference_mode():
        found = backbone.run(batch, Needs(matrices=frozenset({layer}))).matrices[layer]
    return Attention(name, given.tokens, found[0, number].double().cpu().numpy())
