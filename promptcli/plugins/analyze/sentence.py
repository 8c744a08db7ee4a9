"""One sentence token by token: the attention of a head (Ditto, figure 2), and the impact of tokens
on each other, also compared with TF-IDF (Ditto, table 3).
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from promptcli import notes
from promptcli.backbones import states
from promptcli.backbones.backbone import Backbone
from promptcli.encoder import batching
from promptcli.encoder.encoder import TorchEncoder
from promptcli.errors import UsageError
from promptcli.evaluation.statistics import Doubles
from promptcli.notes import note
from promptcli.plugins.analyze import pictures
from promptcli.recipe import Recipe
from promptcli.select import tfidf_correlation


def plain_encoder(backbone: Backbone) -> TorchEncoder:
    """Return an encoder without a template, which gives the token ids of sentences."""
    return TorchEncoder(Recipe(backbone=backbone.name), backbone, {})


def tokenize(encoder: TorchEncoder, sentence: str) -> list[int]:
    """Return the t token ids of a sentence, including the special tokens at both ends."""
    inputs = encoder.inputs([sentence])
    ids = inputs.ids[0]
    if inputs.truncated[0]:
        raise UsageError(
            f"the sentence is longer than the limit of backbone {encoder.backbone.name!r},"
            f" {encoder.max_length} tokens; give a shorter one: {sentence[:40]!r}..."
        )
    if len(ids) == encoder.template.length:
        raise UsageError(f"the sentence {sentence[:40]!r} has no tokens; give one with words")
    return ids


def _draw_tokens(
    figure: Any, panel: Any, tokens: Sequence[str], matrix: Doubles, label: str
) -> None:
    """Draw a matrix (t, t), at least 0, as an image with the t tokens on both axes."""
    image = panel.imshow(matrix, cmap="cividis", vmin=0.0)
    panel.set_xticks(range(len(tokens)), tokens, rotation=90)
    panel.set_yticks(range(len(tokens)), tokens)
    figure.colorbar(image, ax=panel, label=label)


@dataclass(frozen=True)
class Attention:
    """The attention of one head on one sentence."""

    head: str  #: LAYER-HEAD, counted from 1
    tokens: list[str]  #: t tokens, including the special ones
    matrix: Doubles  #: (t, t), a_ij: the attention of token i to token j; a row adds up to 1
    diagonal: Doubles  #: (t,), a_ii: the weights of Ditto pooling

    def draw(self, path: Path, title: str) -> None:
        """Draw the matrix and its diagonal into a picture."""
        count = len(self.tokens)
        side = 0.3 * max(count, 10)
        with pictures.drawing(path, 1.6 * side + 3.2, side + 1.8) as figure:
            matrix, bars = figure.subplots(1, 2, width_ratios=(1, 0.6))
            _draw_tokens(figure, matrix, self.tokens, self.matrix, "attention")
            matrix.set(xlabel="token attended to", ylabel="token that attends", aspect="auto")
            matrix.set_title("attention", fontsize="medium")
            bars.barh(range(count), self.diagonal, color=pictures.RED)
            bars.set(xlabel="attention to itself", ylim=matrix.get_ylim())
            bars.set_yticks(range(count), self.tokens)
            bars.set_title("diagonal: Ditto's weights", fontsize="medium")
            bars.set_axisbelow(True)
            bars.grid(axis="x", color=pictures.GREY, alpha=0.5)
            pictures.figure_title(figure, f"{title}, head {self.head}")


def attention(backbone: Backbone, sentence: str, head: str | None = None) -> Attention:
    """Return the attention of one head on one sentence.

    ``head`` is LAYER-HEAD, counted from 1. By default it is the known head of the backbone.
    """
    pooling = f"last/ditto:{head}" if head else "last/ditto"
    encoder = TorchEncoder(Recipe(backbone=backbone.name, pooling=pooling), backbone, {})
    chosen_head = encoder.recipe.parts.pooling.head
    assert chosen_head is not None
    layer, number = (position - 1 for position in chosen_head)
    ids = tokenize(encoder, sentence)
    batch = batching.make_batch([ids], None, backbone.tokenizer.pad, backbone.device, len(ids))
    with torch.inference_mode():
        hidden = backbone.run(batch, states.Needs(matrices=frozenset({layer})))
    matrix = hidden.matrices[layer][0, number].double().cpu().numpy()
    tokens = [backbone.tokenizer.text(token) for token in ids]
    return Attention(str(chosen_head), tokens, matrix, np.diagonal(matrix))


# Perturbed masking (Ditto, section 2.3 and appendix A.1). F_ij, the impact of token j on token i,
# is a Euclidean distance between two last-layer states at i: in the sentence with i masked, and in
# the sentence with i and j masked. A sentence of N tokens takes N + N(N-1)/2 inputs. The special
# tokens are never masked.


@dataclass(frozen=True)
class Impact:
    """The impact matrix of one sentence."""

    tokens: list[str]  #: N tokens, without the special ones
    matrix: Doubles  #: (N, N), F_ij: the impact of token j on token i; 0 on the diagonal
    means: Doubles  #: (N,), (1/N) sum_i F_ij: the mean impact of token j

    def draw(self, path: Path, title: str) -> None:
        """Draw the matrix into a picture."""
        side = 1.6 + 0.26 * len(self.tokens)
        with pictures.drawing(path, max(side + 1.0, 5.0), max(side, 4.2)) as figure:
            panel = figure.subplots()
            _draw_tokens(figure, panel, self.tokens, self.matrix, "Euclidean distance")
            panel.set(xlabel="second masked token", ylabel="masked token whose state moves")
            pictures.figure_title(figure, f"Impact, {title}")


@dataclass(frozen=True)
class ImpactStudy:
    """The correlation of tokens' impacts with their TF-IDF weights over many sentences (Ditto,
    table 3).
    """

    #: over the tokens of all sentences; 0 if undefined
    correlation: tfidf_correlation.Correlation
    #: mean of the correlations within each sentence of two tokens or more
    by_sentence: tfidf_correlation.Correlation
    means: Doubles  #: (tokens,) mean impacts, sentence after sentence
    weights: Doubles  #: (tokens,) TF-IDF weights
    sentences: int  #: number of compared sentences
    left_out: int  #: number of sentences that are empty or longer than the longest input

    def draw(self, path: Path, title: str) -> None:
        """Draw impacts against TF-IDF weights into a picture."""
        with pictures.drawing(path, 6.4, 4.6) as figure:
            panel = figure.subplots()
            panel.scatter(
                self.weights,
                self.means,
                s=4,
                linewidths=0,
                alpha=0.4,
                color=pictures.BLUE,
                rasterized=True,
            )
            correlation = self.correlation
            pictures.figure_title(
                figure,
                f"{title}: Pearson {correlation.pearson:.2f}, Spearman"
                f" {correlation.spearman:.2f} over {len(self.means):,} tokens",
            )
            panel.set(xlabel="TF-IDF", ylabel="mean impact of the token")


def impact(backbone: Backbone, sentence: str) -> Impact:
    """Return the impact matrix of one sentence.

    ELECTRA has one too, although its discriminator never saw a mask (table 3).
    """
    ids = tokenize(plain_encoder(backbone), sentence)
    with notes.stage("impact", None) as advance:
        impacts = _impact(backbone, torch.tensor(ids, device=backbone.device), advance)
    matrix = impacts.cpu().numpy()
    tokens = [backbone.tokenizer.text(token) for token in ids[1:-1]]
    return Impact(tokens, matrix, matrix.mean(0))


def _impact(backbone: Backbone, sentence: Tensor, advance: notes.Advance) -> Tensor:
    """Return the impact matrix (N, N) of a sentence's token ids (N + 2,)."""
    mask = backbone.tokenizer.mask
    if mask is None:
        raise UsageError(
            f"backbone {backbone.name!r} has no mask token, which perturbed masking needs; give a"
            " masked language model"
        )
    count = len(sentence) - 2  # N
    singles = torch.arange(count, device=sentence.device).repeat(2, 1).T
    pairs = torch.triu_indices(count, count, 1, device=sentence.device).T
    matrix = torch.zeros(count, count, dtype=torch.float64, device=sentence.device)
    with torch.inference_mode():
        states_of_singles = _masked_states(backbone, sentence, singles, mask, advance)
        singly_masked = torch.cat([hidden[:, 0] for _, hidden in states_of_singles])
        for chunk, hidden in _masked_states(backbone, sentence, pairs, mask, advance):
            i, j = chunk.T
            matrix[i, j] = (singly_masked[i] - hidden[:, 0]).norm(dim=1)
            matrix[j, i] = (singly_masked[j] - hidden[:, 1]).norm(dim=1)
    return matrix


def _masked_states(
    backbone: Backbone, sentence: Tensor, pairs: Tensor, mask: int, advance: notes.Advance
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield chunks (c, 2) of pairs of tokens, and the last-layer states (c, 2, d) of both tokens
    while both are masked.
    """
    needs = states.Needs(layers=frozenset({backbone.n_layers}))
    step = max(1, batching.TOKEN_BUDGET // len(sentence))
    for start in range(0, len(pairs), step):
        chunk = pairs[start : start + step]
        inputs = torch.arange(len(chunk), device=sentence.device)[:, None]
        ids = sentence.repeat(len(chunk), 1)
        ids[inputs, 1 + chunk] = mask
        lengths = torch.full((len(chunk),), len(sentence), device=sentence.device)
        hidden = backbone.run(states.Batch(ids, lengths), needs).layers[backbone.n_layers].double()
        yield chunk, hidden[inputs, 1 + chunk]
        advance(len(chunk))


def compare_with_tfidf(
    backbone: Backbone, sentences: Sequence[str], corpus: Sequence[str], first: int | None = None
) -> ImpactStudy:
    """Correlate the mean impacts of tokens with their TF-IDF weights.

    Only the ``first`` sentences are read; empty and too long ones are left out. idf is counted on
    ``corpus``, in the backbone's tokens. The paper does not say how it pools, so both the
    correlation over all tokens and the mean over sentences are returned.
    """
    sentences = sentences[:first]
    encoder = plain_encoder(backbone)
    idf = tfidf_correlation.corpus_idf(encoder, corpus)
    ids_of_sentences: list[list[int]] = []
    for sentence in sentences:
        with contextlib.suppress(UsageError):  # empty or too long
            ids_of_sentences.append(tokenize(encoder, sentence))
    if not ids_of_sentences:
        raise UsageError("the text has no usable sentence; give a file with one sentence a line")
    left_out = len(sentences) - len(ids_of_sentences)
    if left_out:
        note(f"{left_out:,} sentences are left out: empty, or longer than the longest input")
    means = []
    weights = []
    correlations = []
    with notes.stage("impact", len(ids_of_sentences)) as advance:
        for ids in ids_of_sentences:
            matrix = _impact(backbone, torch.tensor(ids, device=backbone.device), notes.no_progress)
            means.append(matrix.mean(0).cpu().numpy())
            weights.append(tfidf_correlation.tfidf_weights(ids, idf)[1:-1])
            if len(matrix) > 1:
                correlation = tfidf_correlation.correlate(means[-1], weights[-1])
                correlations.append((correlation.pearson, correlation.spearman))
            advance(1)
    by_sentence = np.mean(correlations, axis=0).tolist() if correlations else (0.0, 0.0)
    all_means = np.concatenate(means)
    all_weights = np.concatenate(weights)
    return ImpactStudy(
        tfidf_correlation.correlate(all_means, all_weights),
        tfidf_correlation.Correlation(*by_sentence),
        all_means,
        all_weights,
        len(ids_of_sentences),
        left_out,
    )
