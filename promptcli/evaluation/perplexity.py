"""Token prediction on held-out text: accuracy of the first guess, and perplexity."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import Needs
from promptcli.encoder.batching import make_batch, plan_batches
from promptcli.errors import UsageError
from promptcli.notes import working

_WRITTEN = {" @-@ ": "-", " @,@ ": ",", " @.@ ": "."}  #: as in WikiText
_RARE = "<unk>"


@dataclass(frozen=True)
class PredictionAccuracy:
    """Figures over all masked tokens, or for a causal model over all tokens with a token before them."""

    accuracy: float  #: percent of the tokens whose most probable prediction is right
    perplexity: float  #: exp of the mean negative log-likelihood of the right tokens
    predicted: int  #: number of tokens
    sentences: int  #: lines with at least one of them


class _Line(NamedTuple):
    """The ids of a line, the positions whose states predict something, and the right ids."""

    ids: list[int]
    positions: NDArray[np.int64]
    gold: NDArray[np.int64]


def prediction_accuracy(
    backbone: Backbone, sentences: Sequence[str], *, share: float = 0.15, seed: int = 0
) -> PredictionAccuracy:
    """Measure how well a backbone predicts tokens of held-out lines, each line by itself.

    A masked model: every chosen token becomes [MASK], all of a line's at once; the choice depends on the seed and on
    the tokenizer only. A causal one: every token from those before it. Lines are cut at the longest input; WikiText's
    ``<unk>`` and `` @-@ `` are undone. ``share`` is that of masked tokens among those neither special nor unknown.
    """
    if backbone.causal:
        lines = list(_causal_lines(backbone, sentences))
    else:
        lines = list(_masked_lines(backbone, sentences, share, np.random.default_rng(seed)))
    if not lines:
        raise UsageError("the text has no token to predict: it is empty, or all its words are unknown")
    losses: list[Tensor] = []
    right: list[Tensor] = []
    predicted = 0
    needs = Needs(layers=frozenset({backbone.n_layers}))
    with working("predict", len(lines)) as advance, torch.inference_mode():
        for numbers in plan_batches(np.array([len(line.ids) for line in lines])):
            ids, positions, gold = zip(*(lines[number] for number in np.unique(numbers)), strict=True)
            batch = make_batch(ids, None, backbone.tokenizer.pad, backbone.device, backbone.max_tokens)
            hidden = backbone.run(batch, needs).layers[backbone.n_layers]
            # one copy a batch, and nothing is read before the end: no wait that grows with the number of lines
            line_numbers = np.repeat(np.arange(len(ids)), [len(tokens) for tokens in gold])
            index = np.stack([line_numbers, np.concatenate(positions), np.concatenate(gold)])
            row, place, wanted = torch.from_numpy(index).to(backbone.device)
            logits = backbone.head.to_logits(backbone.head.to_hidden(hidden[row, place]))
            losses.append(torch.nn.functional.cross_entropy(logits, wanted, reduction="sum"))
            right.append((logits.argmax(dim=1) == wanted).sum())
            predicted += len(line_numbers)
            advance(len(ids))
    loss = float(torch.stack(losses).double().sum())
    accuracy = 100 * int(torch.stack(right).sum()) / predicted
    return PredictionAccuracy(accuracy, math.exp(loss / predicted), predicted, len(lines))


def _causal_lines(backbone: Backbone, sentences: Sequence[str]) -> Iterator[_Line]:
    tokens = backbone.tokenizer
    unknown = "" if tokens.unk is None else tokens.text(tokens.unk)
    first = max(1, len(tokens.start))
    for ids in tokens.encode([_plain(sentence, unknown) for sentence in sentences]):
        row = [*tokens.start, *ids][: backbone.max_tokens]
        if len(row) > first:
            yield _Line(row, np.arange(first - 1, len(row) - 1), np.array(row[first:]))


def _masked_lines(
    backbone: Backbone, sentences: Sequence[str], share: float, rng: np.random.Generator
) -> Iterator[_Line]:
    """Yield the lines with randomly masked tokens, except those without any."""
    tokens = backbone.tokenizer
    if tokens.mask is None:
        raise UsageError(f"backbone {backbone.name!r} has no mask token, so nothing can be masked")
    unknown = tokens.pad if tokens.unk is None else tokens.unk
    for ids in tokens.encode([_plain(sentence, tokens.text(unknown)) for sentence in sentences]):
        row = np.array([*tokens.start, *ids[: backbone.max_tokens - 2], *tokens.end])
        words = 1 + np.flatnonzero(row[1:-1] != unknown)
        chosen = words[rng.random(len(words)) < share]
        if len(chosen):
            gold = row[chosen]
            row[chosen] = tokens.mask
            yield _Line(row.tolist(), chosen, gold)


def _plain(sentence: str, unknown: str) -> str:
    for written, plain in _WRITTEN.items():
        sentence = sentence.replace(written, plain)
    return sentence.replace(_RARE, unknown)
