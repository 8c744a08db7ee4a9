"""The search for the attention head that pools best, in one pass over the sentences.

The pass computes the cosines of every head's vectors without computing the vectors. Let x_i and y_j
be the states of two sentences' tokens, and a_i, b_j one head's weights, e.g. its diagonal (Ditto,
section 2). The vectors are u = sum_i a_i x_i and v = sum_j b_j y_j, so u . v = sum_ij a_i (x_i .
y_j) b_j: the products of the tokens serve all heads. The heads' vectors would take L*h times the
memory. A sentence is kept until its last pair is done.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.backbones.states import Batch, HiddenStates, Needs
from promptcli.data.senteval import tasks_from
from promptcli.data.tasks import STSTask
from promptcli.data.training_data import fitting_sentences
from promptcli.encoder.batching import plan_batches
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.pooling import build_states, read_states
from promptcli.encoder.pooling.attention import ALPHA, kept_or_all, slot_of, tokens_above
from promptcli.errors import UsageError, look_up, unknown_name_error
from promptcli.grammar import parse_states
from promptcli.models.loading import Model
from promptcli.notes import stage
from promptcli.recipe import RECIPES, SLOT, Recipe
from promptcli.select.search import (
    SearchResult,
    correlations,
    cross_validate,
    open_search,
    score_choices,
)
from promptcli.select.tfidf_correlation import (
    Correlation,
    corpus_idf,
    correlate,
    tfidf_weights,
)
from promptcli.settings import BUILT_IN

SEARCHED_STATES = ("static", "last", "first-last")  #: states to try a head on (Ditto, table 2)
#: Pairs whose tokens are multiplied at a time. It bounds memory and changes no figure.
_PAIRS_AT_ONCE = 64
#: Decimals of a cosine, far finer than float32 states resolve; pairs of equal inputs thus tie.
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
    source: str = "diagonal"  #: the values of the attention matrix that it reads, in words


def _rows_of(hidden: HiddenStates, layers: int) -> Tensor:
    rows = {layer: row for (layer, _), row in hidden.attention_rows.items()}
    return torch.cat([rows[layer] for layer in range(layers)], dim=1)


#: The weights by their names in a pooling.
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
        source="row at the slot",
    ),
}


def search_heads(
    model: Model = BUILT_IN.backbone,
    on: str | Path | STSTask | None = None,
    corpus: str | Path | Sequence[str] = BUILT_IN.corpus,
    *,
    weights: str = "ditto",
    states: Sequence[str] = ("static", "last", "first-last"),
    top: int = 10,
    name: str | None = None,
    force: bool = False,
    data_dir: str | Path | None = None,
) -> SearchResult:
    """Rank all attention heads of a backbone by Ditto pooling, in one pass (Ditto, section 2).

    Every layer-head (both counted from 1) is tried on each kind of states. The scores, Spearman x
    100, are those of the pooling ``STATES/ditto:LAYER-HEAD`` on the development set.

    Args:
        model: Backbone: ``mini-bert``, a folder, a hub id, or a model's; the pooling is not used.
        on: Development set: a task, or a file of graded pairs. Default: STS-B:dev with
            ``data_dir``, else demo:dev.
        corpus: Sentences for counting idf, for the correlation with TF-IDF: texts in a list, a
            file, a task or ``demo``.
        weights: The head's weights of tokens: its diagonal (``ditto``), or its row at the
            template's mask, or last token in causal models (``slot-attention``; a model without a
            template gets a well-known one).
        states: States to try: ``static``, ``last``, ``first-last``.
        top: Number of heads to describe.
        name: Save the best as a model under this name.
        force: Replace a model of that name.
        data_dir: SentEval folder of the tasks.

    Returns:
        The heads, best first, the (L, h) map of each kind of states, and the selection bias.

    Raises:
        UsageError: Unknown states, pairs that cannot rank anything, no corpus, a taken name, or a
            backbone that does not expose its attention.
        NotFoundError: A model, a task or a file is missing.

    Example:
        >>> search = search_heads("mini-bert", states=["first-last"])  # doctest: +SKIP
        >>> search.best.choice, search.best.value  # doctest: +SKIP
    """
    if top < 1:
        raise UsageError(f"must be at least 1, got {top}", parameter="top")
    head_weights = look_up("weights", weights, HEAD_WEIGHTS)
    for kind in states:
        if kind not in SEARCHED_STATES:
            raise unknown_name_error("states", kind, SEARCHED_STATES)
    states = [kind for kind in SEARCHED_STATES if kind in states]
    task, encoder = open_search(model, on, name, force=force, data_dir=data_dir)
    if isinstance(corpus, str | Path):
        with tasks_from(data_dir):
            corpus = fitting_sentences(str(corpus))
    backbone = encoder.backbone
    pairs = task.pairs()
    recipe = Recipe(
        backbone=backbone.name,
        prompt=_prompt_with_slot(encoder) if weights == "slot-attention" else SLOT,
    )
    encoder = TorchEncoder(recipe, backbone, encoder.tensors())
    idf = corpus_idf(encoder, corpus)
    cosines = head_cosines(encoder, pairs.first, pairs.second, states, weights)
    averages = score_choices([f"{kind}/avg" for kind in states], cosines.plain, pairs.gold)
    shape = (len(states), backbone.n_layers, backbone.n_heads)
    poolings = [
        f"{states[of_states]}/{weights}:{layer + 1}-{head + 1}{head_weights.suffix}"
        for of_states, layer, head in np.ndindex(shape)
    ]
    by_pooling = cosines.heads.reshape(len(poolings), len(pairs))
    values = 100 * correlations(by_pooling, pairs.gold, np.ones((len(pairs), 1)))[:, 0]
    best = np.argsort(-values, kind="stable")[:top].tolist()
    n_heads = backbone.n_layers * backbone.n_heads
    tfidf = _correlate_with_tfidf(encoder, cosines, [place % n_heads for place in best], idf)
    ranking = []
    rows = score_choices([poolings[place] for place in best], by_pooling[best], pairs.gold)
    for place, row, correlation in zip(best, rows, tfidf, strict=True):
        gain = row.value - averages[place // n_heads].value
        ranking.append(dataclasses.replace(row, gain=gain, tfidf=correlation))
    compared = f"{n_heads} heads"
    if len(states) > 1:
        compared = f"{len(values)} pairs of a head ({n_heads}) and states ({len(states)})"
    search = SearchResult(
        encoder=TorchEncoder(
            recipe.replace(pooling=ranking[0].choice), backbone, encoder.tensors()
        ),
        task=task,
        ranked=ranking,
        compared_in_words=compared,
        settings={"weights": weights, "states": states, "idf": len(corpus)},
        baselines=dict(zip(states, averages, strict=True)),
        maps=dict(zip(states, values.reshape(shape), strict=True)),
        cross_validation=cross_validate(cosines.heads, cosines.plain, pairs.gold),
    )
    return search if name is None else search.save(name, force=force)


def _prompt_with_slot(encoder: TorchEncoder) -> str:
    """Return the prompt whose slot's attention is read: the recipe's own, or a well-known one."""
    if encoder.backbone.causal:
        return encoder.recipe.prompt if encoder.recipe.prompt != SLOT else "prompteol"
    return encoder.recipe.prompt if encoder.template.masks else RECIPES["prompt"].prompt


def _correlate_with_tfidf(
    encoder: TorchEncoder, cosines: HeadCosines, heads: list[int], idf: NDArray[np.float32]
) -> list[Correlation]:
    """Return the correlation of each head's attention with TF-IDF over the sentences' words."""
    words = slice(len(encoder.template.left), -len(encoder.template.right) or None)
    attention = np.concatenate([rows[words, heads] for rows in cosines.attention])
    weights = np.concatenate([tfidf_weights(row, idf)[words] for row in cosines.rows])
    return [correlate(column, weights) for column in attention.T]


def head_cosines(
    encoder: TorchEncoder,
    first: Sequence[str],
    second: Sequence[str],
    states: Sequence[str],
    weights: str = "ditto",
) -> HeadCosines:
    """Return the cosines of n pairs for all L*h heads on each kind of states; each sentence is
    encoded once.

    The encoder's backbone and prompt make the input, in the same batches as plain encoding. A
    head's cosines therefore equal those of the recipe ``STATES/ditto:l-h``, with the ``weights`` of
    that name, up to the float32 rounding of its vectors (below 1e-6).
    """
    backbone = encoder.backbone
    backbone.require_hook("Ditto")
    one_prompt = encoder.one_prompt()
    head_weights = HEAD_WEIGHTS[weights]
    readings = [build_states(parse_states(name), backbone) for name in states]
    needs = head_weights.needs(backbone)
    for reading in readings:
        needs |= reading
    sentences = list(dict.fromkeys([*first, *second]))
    row_of = {sentence: row for row, sentence in enumerate(sentences)}
    pairs = np.array([[row_of[sentence] for sentence in side] for side in (first, second)])
    rows = encoder.inputs(sentences).ids
    n_heads = backbone.n_layers * backbone.n_heads
    cosines = np.zeros((len(readings), n_heads + 1, len(first)))
    attention = [np.empty((0, n_heads), np.float32)] * len(rows)
    encoded: dict[int, _Encoded] = {}
    is_encoded = np.zeros(len(rows), dtype=bool)
    pending = np.arange(len(first))  # remaining pairs
    with stage("ditto-search", len(rows)) as advance, torch.inference_mode():
        for planned in plan_batches(rows.lengths):
            # the last batch may repeat its rows
            batch_rows = np.fromiter(dict.fromkeys(planned.tolist()), np.int64)
            batch = one_prompt.batch(rows.take(batch_rows))
            hidden = backbone.run(batch, needs)
            batch_states = [read_states(reading, hidden) for reading in readings]
            of_batch = _encode(batch, hidden, batch_states, head_weights, backbone)
            for row, (sentence, values) in zip(batch_rows.tolist(), of_batch, strict=True):
                encoded[row] = sentence
                attention[row] = values
            is_encoded[batch_rows] = True
            is_ready = is_encoded[pairs[:, pending]].all(axis=0)
            ready, pending = pending[is_ready], pending[~is_ready]
            for start in range(0, len(ready), _PAIRS_AT_ONCE):
                block = ready[start : start + _PAIRS_AT_ONCE]
                sides = [[encoded[row] for row in side] for side in pairs[:, block].tolist()]
                cosines[:, :, block] = _cosines(*sides).permute(1, 2, 0).cpu().numpy()
            waiting = set(pairs[:, pending].ravel().tolist())
            encoded = {row: sentence for row, sentence in encoded.items() if row in waiting}
            advance(len(batch_rows))
    cosines = np.round(cosines, _DECIMALS)
    return HeadCosines(cosines[:, :-1], cosines[:, -1], rows, attention)


@dataclass(frozen=True)
class _Encoded:
    """A sentence of t tokens, kept until its last pair is compared."""

    #: (t, r) float32 weights of its tokens, the heads' and 1, and (t, width) states of each kind
    tensors: tuple[Tensor, ...]
    squares: Tensor  #: (s, r) float64, squared lengths of its vectors


def _encode(
    batch: Batch,
    hidden: HiddenStates,
    states: list[Tensor],
    head_weights: HeadWeights,
    backbone: Backbone,
) -> Iterator[tuple[_Encoded, NDArray[np.float32]]]:
    """Yield each sentence of a batch with its attention (t, L*h)."""
    is_real = batch.real().unsqueeze(1)
    attention = head_weights.attention(hidden, backbone.n_layers).masked_fill(~is_real, 0.0)
    weights = head_weights.weights(attention, batch)
    weights = torch.cat([weights, is_real.to(weights.dtype)], dim=1)  # 0 on padding
    tensors = [weights.transpose(1, 2), *states]
    # the products need float64, which some devices lack
    if backbone.device.type != "cuda":
        tensors = [tensor.cpu() for tensor in tensors]
    exact = [tensor.double() for tensor in tensors]
    squares = _products(exact, exact)
    values = attention.transpose(1, 2).cpu().numpy()
    for place, t in enumerate(batch.host_lengths()):
        # a view would keep the complete batch in memory
        of_sentence = tuple(tensor[place, :t].clone() for tensor in tensors)
        yield _Encoded(of_sentence, squares[place]), values[place, :t].copy()


def _cosines(first: list[_Encoded], second: list[_Encoded]) -> Tensor:
    """Return the cosines of n pairs by each of s states and r weights, (n, s, r) float64."""
    sides = []
    for side in (first, second):
        kinds = zip(*(sentence.tensors for sentence in side), strict=True)
        sides.append([pad_sequence(list(kind), batch_first=True).double() for kind in kinds])
    squares = [torch.stack([sentence.squares for sentence in side]) for side in (first, second)]
    lengths = (squares[0] * squares[1]).sqrt()
    return torch.where(lengths > 0, _products(*sides) / lengths, 0.0).nan_to_num()


def _products(first: list[Tensor], second: list[Tensor]) -> Tensor:
    """Return sum_ij a_i (x_i . y_j) b_j, (n, s, r), from the weights (n, t, r) and s kinds of
    states (n, t, width) of both sides.
    """
    a, *first_states = first
    b, *second_states = second
    products = []
    for x, y in zip(first_states, second_states, strict=True):
        token_products = x @ y.transpose(1, 2)
        products.append(((a.transpose(1, 2) @ token_products) * b.transpose(1, 2)).sum(-1))
    return torch.stack(products, dim=1)
