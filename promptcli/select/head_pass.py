"""The cosines of every attention head's vectors in one pass over the sentences, without computing
the vectors.

Let x_i and y_j be the states of two sentences' tokens, and a_i, b_j one head's weights, e.g. its
diagonal (Ditto, section 2). The vectors are u = sum_i a_i x_i and v = sum_j b_j y_j, so u . v =
sum_ij a_i (x_i . y_j) b_j: the products of the tokens serve all heads. The heads' vectors would
take L*h times the memory. A sentence is held until its last pair is done.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.backbones.states import Batch, HiddenStates, Needs
from promptcli.encoder.batching import plan_batches
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.pooling import build_states, read_states
from promptcli.encoder.pooling.attention import ALPHA, kept_or_all, slot_of, tokens_above
from promptcli.grammar import parse_states
from promptcli.notes import stage

#: pairs whose tokens are multiplied at a time; bounds memory, changes no figure
_PAIRS_AT_ONCE = 64
#: decimals of a cosine: far finer than float32 states resolve, so that pairs of equal inputs
#: tie
_DECIMALS = 12


@dataclass(frozen=True)
class HeadCosines:
    """The cosines of n pairs from one pass."""

    #: (s, L*h, n) cosines, for s kinds of states; heads layer after layer
    heads: NDArray[np.float64]
    plain: NDArray[np.float64]  #: (s, n) cosines of the plain averages of the same states
    rows: RaggedIds  #: token ids of every distinct sentence, specials included
    #: per row (t, L*h), the heads' attention to its tokens: diagonals, or the slot's rows
    attention: list[NDArray[np.float32]]


@dataclass(frozen=True)
class HeadWeights:
    """A head's weights of tokens."""

    needs: Callable[[Backbone], Needs]
    #: Hidden states and the number of layers -> the heads' attention to each token, (n, L*h, t).
    attention: Callable[[HiddenStates, int], Tensor]
    #: That attention and the batch -> the weights of the tokens, (n, L*h, t), on any scale.
    weights: Callable[[Tensor, Batch], Tensor]
    suffix: str = ""  #: follows the head in the pooling's name
    part: str = "diagonal"  #: part of the attention matrix, in words


def _rows_of(hidden: HiddenStates, layers: int) -> Tensor:
    rows = {layer: row for (layer, _), row in hidden.attention_rows.items()}
    return torch.cat([rows[layer] for layer in range(layers)], dim=1)


#: By the name of the weights in a pooling.
HEAD_WEIGHTS = {
    "ditto": HeadWeights(
        lambda backbone: Needs(diagonals=frozenset(range(backbone.n_layers))),
        lambda hidden, layers: torch.cat([hidden.diagonals[layer] for layer in range(layers)], 1),
        lambda attention, batch: attention,
    ),
    "slot-attention": HeadWeights(
        lambda backbone: Needs(
            attention_rows=frozenset(
                (layer, slot_of(backbone)) for layer in range(backbone.n_layers)
            )
        ),
        _rows_of,
        lambda attention, batch: kept_or_all(tokens_above(attention, batch, ALPHA), batch).float(),
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
    """Return the cosines of n pairs for all L*h heads on each kind of ``STATES``; each sentence is
    encoded once.

    The encoder's backbone and prompt make the input, in the same batches as plain encoding. A
    head's cosines therefore equal those of the recipe ``STATES/ditto:l-h``, with the ``weights`` of
    that name, up to the float32 rounding of its vectors (below 1e-6).
    """
    backbone = encoder.backbone
    backbone.require_hook("Ditto")
    one_prompt = encoder.one_prompt()
    kind = HEAD_WEIGHTS[weights]
    tried = [build_states(parse_states(name), backbone) for name in states]
    needs = kind.needs(backbone)
    for each in tried:
        needs |= each
    sentences = list(dict.fromkeys([*first, *second]))
    row_of = {sentence: row for row, sentence in enumerate(sentences)}
    pairs = np.array([[row_of[sentence] for sentence in side] for side in (first, second)])
    rows = encoder.inputs(sentences).ids
    heads = backbone.n_layers * backbone.n_heads
    cosines = np.zeros((len(tried), heads + 1, len(first)))
    attention = [np.empty((0, heads), np.float32)] * len(rows)
    held: dict[int, _Held] = {}
    is_encoded = np.zeros(len(rows), dtype=bool)
    pending = np.arange(len(first))  # remaining pairs
    with stage("ditto-search", len(rows)) as advance, torch.inference_mode():
        for planned in plan_batches(rows.lengths):
            # the last batch may repeat its rows
            chosen = np.fromiter(dict.fromkeys(planned.tolist()), np.int64)
            batch = one_prompt.batch(rows.take(chosen))
            hidden = one_prompt.run(batch, needs)
            read = [read_states(each, hidden) for each in tried]
            for row, sentence, values in _encoded(chosen, batch, hidden, read, kind, backbone):
                held[row] = sentence
                attention[row] = values
            is_encoded[chosen] = True
            is_ready = is_encoded[pairs[:, pending]].all(axis=0)
            ready, pending = pending[is_ready], pending[~is_ready]
            for start in range(0, len(ready), _PAIRS_AT_ONCE):
                some = ready[start : start + _PAIRS_AT_ONCE]
                one, other = ([held[row] for row in side] for side in pairs[:, some].tolist())
                cosines[:, :, some] = _cosines(one, other).permute(1, 2, 0).cpu().numpy()
            waiting = set(pairs[:, pending].ravel().tolist())
            held = {row: sentence for row, sentence in held.items() if row in waiting}
            advance(len(chosen))
    cosines = np.round(cosines, _DECIMALS)
    return HeadCosines(cosines[:, :-1], cosines[:, -1], rows, attention)


@dataclass(frozen=True)
class _Held:
    """A sentence of t tokens that still has a pair to be compared."""

    #: (t, r) float32 weights of its tokens, the heads' and 1, and (t, width) states of each kind
    parts: tuple[Tensor, ...]
    squares: Tensor  #: (s, r) float64, squared lengths of its vectors


def _encoded(
    numbers: NDArray[np.int64],
    batch: Batch,
    hidden: HiddenStates,
    states: list[Tensor],
    kind: HeadWeights,
    backbone: Backbone,
) -> Iterator[tuple[int, _Held, NDArray[np.float32]]]:
    """Yield the number, the weights and states, and the attention of each sentence of a batch."""
    is_real = batch.real().unsqueeze(1)
    attention = kind.attention(hidden, backbone.n_layers).masked_fill(~is_real, 0.0)
    weights = kind.weights(attention, batch)
    weights = torch.cat([weights, is_real.to(weights.dtype)], dim=1)  # 0 on padding
    parts = [weights.transpose(1, 2), *states]
    # the products need float64, which some devices lack
    if backbone.device.type != "cuda":
        parts = [part.cpu() for part in parts]
    exact = [part.double() for part in parts]
    squares = _products(exact, exact)
    values = attention.transpose(1, 2).cpu().numpy()
    for place, (number, t) in enumerate(zip(numbers.tolist(), batch.host_lengths(), strict=True)):
        own = tuple(part[place, :t].clone() for part in parts)  # a view would keep the whole batch
        yield number, _Held(own, squares[place]), values[place, :t].copy()


def _cosines(first: list[_Held], second: list[_Held]) -> Tensor:
    """Return the cosines of n pairs by each of s states and r weights, (n, s, r) float64."""
    sides = []
    for side in (first, second):
        of_kinds = zip(*(sentence.parts for sentence in side), strict=True)
        sides.append([pad_sequence(list(part), batch_first=True).double() for part in of_kinds])
    squares = [torch.stack([sentence.squares for sentence in side]) for side in (first, second)]
    lengths = (squares[0] * squares[1]).sqrt()
    return torch.where(lengths > 0, _products(*sides) / lengths, 0.0).nan_to_num()


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
