"""The cosines of every attention head's vectors from one pass over the sentences.

The vectors are never made.

With x_i and y_j the states of two sentences' tokens and a_i, b_j one head's weights of them, e.g.
its diagonal (Ditto, section 2), the vectors are u = sum_i a_i x_i and v = sum_j b_j y_j, and
u . v = sum_ij a_i (x_i . y_j) b_j: the products of the tokens serve all heads, whose vectors would
take L*h times the memory. A sentence is held until its last pair is done.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import Batch, HiddenStates, Needs
from promptcli.backbones.token_rows import TokenRows
from promptcli.encoder.batching import plan_batches
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.pooling import States, build_states
from promptcli.encoder.pooling.slot_attention import ALPHA, kept_or_all, kept_tokens, slot_of
from promptcli.notes import stage

#: pairs whose tokens are multiplied at a time; bounds memory, changes no figure
_PAIRS_AT_ONCE = 64
#: decimals kept of a cosine: far below what float32 states decide, so that pairs of equal inputs
#: tie
_DECIMALS = 12


@dataclass(frozen=True)
class HeadCosines:
    """The cosines of n pairs from one pass."""

    #: (s, L*h, n) cosines, for s kinds of states; heads layer after layer
    heads: NDArray[np.float64]
    plain: NDArray[np.float64]  #: (s, n) cosines of the plain averages of the same states
    rows: TokenRows  #: token ids of every distinct sentence, specials included
    #: per row (t, L*h), the heads' attention to its tokens: diagonals, or the slot's rows
    attention: list[NDArray[np.float32]]


@dataclass(frozen=True)
class HeadWeights:
    """How a head weighs tokens."""

    needs: Callable[[Backbone], Needs]
    #: Hidden states and the number of layers -> the heads' attention to each token, (n, L*h, t).
    attention: Callable[[HiddenStates, int], Tensor]
    #: That attention and the batch -> the weights of the tokens, (n, L*h, t), on any scale.
    weights: Callable[[Tensor, Batch], Tensor]
    suffix: str = ""  #: of the pooling, after the head
    part: str = "diagonal"  #: of the attention matrix, in words


def _rows_of(hidden: HiddenStates, layers: int) -> Tensor:
    rows = {layer: row for (layer, _), row in hidden.rows.items()}
    return torch.cat([rows[layer] for layer in range(layers)], dim=1)


#: By the name that poolings have for them.
HEAD_WEIGHTS = {
    "ditto": HeadWeights(
        lambda backbone: Needs(diagonals=frozenset(range(backbone.n_layers))),
        lambda hidden, layers: torch.cat([hidden.diagonals[layer] for layer in range(layers)], 1),
        lambda attention, batch: attention,
    ),
    "slot-attention": HeadWeights(
        lambda backbone: Needs(
            rows=frozenset((layer, slot_of(backbone)) for layer in range(backbone.n_layers))
        ),
        _rows_of,
        lambda attention, batch: kept_or_all(kept_tokens(attention, batch, ALPHA), batch).float(),
        suffix=f";{ALPHA:g}",
        part="row at the slot",
    ),
}


def head_cosines(
    encoder: TorchEncoder,
    first: Sequence[str],
    second: Sequence[str],
    states: Sequence[str],
    weights: str = "ditto",
) -> HeadCosines:
    """Return the cosines of n pairs for all L*h heads on each kind of ``STATES``.

    Each sentence is encoded once.

    The encoder's backbone and prompt make the model input, in plain encoding's batches, so a head's
    cosines are those of the recipe ``STATES/ditto:l-h``, with the ``weights`` of that name, up to
    the float32 rounding of its vectors (below 1e-6).
    """
    encoder.backbone.require_hook("Ditto")
    sentences = list(dict.fromkeys([*first, *second]))
    row_of = {sentence: row for row, sentence in enumerate(sentences)}
    pairs = [(row_of[one], row_of[other]) for one, other in zip(first, second, strict=True)]
    rows = encoder.inputs(sentences).rows
    work = _Pass(encoder, HEAD_WEIGHTS[weights], states, pairs, len(rows))
    with stage("ditto-search", len(rows)) as advance, torch.inference_mode():
        for planned in plan_batches(rows.lengths):
            # the last batch may repeat its rows
            _, first_places = np.unique(planned, return_index=True)
            chosen = planned[np.sort(first_places)]
            work.take(chosen.tolist(), rows.take(chosen))
            advance(len(chosen))
    cosines = np.round(work.cosines, _DECIMALS)
    return HeadCosines(cosines[:, :-1], cosines[:, -1], rows, work.attention)


@dataclass(frozen=True)
class _Held:
    """One sentence that still waits for a partner."""

    #: (t, r + widths of all states) float32: r weights per token (the heads', and 1), states
    packed: Tensor
    squares: Tensor  #: (s, r) float64, squared lengths of its vectors


class _Pass:
    """The sentences that wait, and the cosines so far."""

    def __init__(
        self,
        encoder: TorchEncoder,
        weights: HeadWeights,
        states: Sequence[str],
        pairs: list[tuple[int, int]],
        rows: int,
    ) -> None:
        backbone = encoder.backbone
        self._encoder = encoder.one_prompt()
        self._weights = weights
        self._states: list[States] = [build_states(name, backbone) for name in states]
        self._needs = weights.needs(backbone)
        for chosen in self._states:
            self._needs |= chosen.needs
        self._pairs = pairs
        self._pairs_of: list[list[int]] = [[] for _ in range(rows)]
        for pair, sides in enumerate(pairs):
            for row in set(sides):  # a sentence may be its own partner
                self._pairs_of[row].append(pair)
        self._open = [len(pairs_of_row) for pairs_of_row in self._pairs_of]
        self._held: dict[int, _Held] = {}
        self._widths: list[int] = []
        heads = backbone.n_layers * backbone.n_heads
        self.cosines = np.zeros((len(self._states), heads + 1, len(pairs)))
        self.attention: list[NDArray[np.float32]] = [np.empty((0, heads), np.float32)] * rows

    def take(self, numbers: list[int], ids: TokenRows) -> None:
        """Encode one batch and score every pair whose two sentences are now encoded."""
        waiting = set(self._held)
        self._encode(numbers, ids)
        self._score(self._complete_pairs(numbers))
        for row in waiting | set(numbers):
            if not self._open[row]:
                del self._held[row]

    def _encode(self, numbers: list[int], ids: TokenRows) -> None:
        """Hold the weights and states of one batch of sentences, and keep their attention."""
        encoder = self._encoder
        backbone = encoder.backbone
        batch = encoder.batch(ids)
        hidden = encoder.run(batch, self._needs)
        is_real = batch.real().unsqueeze(1)
        attention = self._weights.attention(hidden, backbone.n_layers)
        attention = attention.masked_fill(~is_real, 0.0)
        weights = self._weights.weights(attention, batch)
        ones = is_real.to(weights.dtype)
        #: weights (n, t, r), 0 on padding, and each kind of states (n, t, width)
        parts = [torch.cat([weights, ones], dim=1).transpose(1, 2)]
        parts += [states.read(hidden) for states in self._states]
        # the products are taken in float64, which not every device has
        if backbone.device.type != "cuda":
            parts = [part.cpu() for part in parts]
        exact = [part.double() for part in parts]
        squares = _products(exact, exact)
        packed = torch.cat(parts, dim=-1)
        self._widths = [part.size(-1) for part in parts]
        values = attention.transpose(1, 2).cpu().numpy()
        for place, (row, tokens) in enumerate(zip(numbers, ids, strict=True)):
            own = packed[place, : len(tokens)].clone()  # a view would keep the whole batch
            self._held[row] = _Held(own, squares[place])
            self.attention[row] = values[place, : len(tokens)].copy()

    def _complete_pairs(self, numbers: list[int]) -> list[int]:
        """Return the pairs of these sentences whose two sides are encoded, pairs of similar lengths
        side by side.
        """
        pairs: dict[int, None] = {}
        for row in numbers:
            for pair in self._pairs_of[row]:
                first, second = self._pairs[pair]
                if first in self._held and second in self._held:
                    pairs[pair] = None
        return list(pairs)

    def _score(self, pairs: list[int]) -> None:
        """Compute the cosines of some pairs."""
        if not pairs:
            return
        parts = []
        for start in range(0, len(pairs), _PAIRS_AT_ONCE):
            parts.append(self._cosines_of(pairs[start : start + _PAIRS_AT_ONCE]))
        cosines = torch.cat(parts).permute(1, 2, 0)
        self.cosines[:, :, pairs] = cosines.cpu().numpy()  # read once a batch
        for pair in pairs:
            for row in set(self._pairs[pair]):
                self._open[row] -= 1

    def _cosines_of(self, pairs: list[int]) -> Tensor:
        """Return the cosines of n pairs by each of s states and r weights, (n, s, r)."""
        one, one_squares = self._side([self._pairs[pair][0] for pair in pairs])
        other, other_squares = self._side([self._pairs[pair][1] for pair in pairs])
        lengths = (one_squares * other_squares).sqrt()
        cosines = torch.where(lengths > 0, _products(one, other) / lengths, 0.0)
        return cosines.nan_to_num()

    def _side(self, rows: list[int]) -> tuple[list[Tensor], Tensor]:
        """Return the weights and states of one side of some pairs, padded, and the squares (n, s,
        r), in float64.
        """
        held = [self._held[row] for row in rows]
        packed = pad_sequence([sentence.packed for sentence in held], batch_first=True).double()
        squares = torch.stack([sentence.squares for sentence in held])
        return list(torch.split(packed, self._widths, dim=-1)), squares


def _products(one: list[Tensor], other: list[Tensor]) -> Tensor:
    """Return sum_ij a_i (x_i . y_j) b_j, (n, s, r), from weights (n, t, r) and s kinds of states
    (n, t, width) each.
    """
    a, *states = one
    b, *other_states = other
    products = []
    for x, y in zip(states, other_states, strict=True):
        token_products = x @ y.transpose(1, 2)
        products.append(((a.transpose(1, 2) @ token_products) * b.transpose(1, 2)).sum(-1))
    return torch.stack(products, dim=1)
