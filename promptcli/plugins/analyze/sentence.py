"""One sentence token by token: TF-IDF weights, one attention head, and the impact of tokens on each
other.

These are Ditto's figure 2 (a head's matrix; its diagonal is Ditto's weights) and tables 3 and 4
(impacts, diagonals and TF-IDF).
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
    """Return an encoder without a template, used for its inputs."""
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
    """Draw non-negative (t, t) values as an image with the tokens on both axes, and its scale."""
    image = panel.imshow(matrix, cmap="cividis", vmin=0.0)
    panel.set_xticks(range(len(tokens)), tokens, rotation=90)
    panel.set_yticks(range(len(tokens)), tokens)
    figure.colorbar(image, ax=panel, label=label)


@dataclass(frozen=True)
class Attention:
    """One head on one sentence."""

    head: str  #: layer-head, 1-based
    tokens: list[str]  #: t vocabulary items, special ones included
    matrix: Doubles  #: (t, t), a_ij: attention of token i to token j; rows add up to 1
    diagonal: Doubles  #: a_ii, (t,): the weights of Ditto pooling

    def draw(self, path: Path, backbone: str) -> None:
        """Draw the matrix and its diagonal into a picture, under the backbone's name."""
        count = len(self.tokens)
        side = 0.3 * max(count, 10)
        with pictures.drawing(path, 1.6 * side + 3.2, side + 1.8) as figure:
            matrix, bars = figure.subplots(1, 2, width_ratios=(1, 0.6))
            _draw_tokens(figure, matrix, self.tokens, self.matrix, "attention")
            matrix.set(xlabel="token attended to", ylabel="token that attends", aspect="auto")
            matrix.set_title("attention", fontsize="medium")
            bars.barh(range(count), self.diagonal, color=pictures.COLOURS.red)
            bars.set(xlabel="attention to itself", ylim=matrix.get_ylim())
            bars.set_yticks(range(count), self.tokens)
            bars.set_title("diagonal: Ditto's weights", fontsize="medium")
            bars.set_axisbelow(True)
            bars.grid(axis="x", color=pictures.COLOURS.grey, alpha=0.5)
            pictures.figure_title(figure, f"{backbone}, head {self.head}")


def attention(backbone: Backbone, sentence: str, head: str | None = None) -> Attention:
    """Return one head's attention on one sentence.

    ``head`` is layer-head, 1-based; by default the best known head.
    """
    pooling = f"last/ditto:{head}" if head else "last/ditto"
    encoder = TorchEncoder(Recipe(backbone=backbone.name, pooling=pooling), backbone, {})
    read = encoder.recipe.parts.pooling.head
    assert read is not None
    layer, number = (place - 1 for place in read)
    ids = tokenize(encoder, sentence)
    batch = batching.make_batch([ids], None, backbone.tokenizer.pad, backbone.device, len(ids))
    with torch.inference_mode():
        hidden = backbone.run(batch, states.Needs(matrices=frozenset({layer})))
    matrix = hidden.matrices[layer][0, number].double().cpu().numpy()
    tokens = [backbone.tokenizer.text(token) for token in ids]
    return Attention(str(read), tokens, matrix, np.diagonal(matrix))


# Perturbed masking (Ditto, section 2.3 and appendix A.1): F_ij, the impact of j on i, is the
# Euclidean distance between the last-layer states at i of the sentence with i masked and with i and
# j masked. N tokens take N + N(N-1)/2 inputs. The special tokens are never masked.


@dataclass(frozen=True)
class Impact:
    """One sentence's impact matrix."""

    tokens: list[str]  #: N vocabulary items, without the special ones
    #: (N, N), F_ij: the impact of token j on token i; 0 on the diagonal
    matrix: Doubles
    means: Doubles  #: (1/N) sum_i F_ij, (N,): the mean impact of token j

    def draw(self, path: Path, backbone: str) -> None:
        """Draw the matrix into a picture, under the backbone's name."""
        side = 1.6 + 0.26 * len(self.tokens)
        with pictures.drawing(path, max(side + 1.0, 5.0), max(side, 4.2)) as figure:
            panel = figure.subplots()
            _draw_tokens(figure, panel, self.tokens, self.matrix, "Euclidean distance")
            panel.set(xlabel="second masked token", ylabel="masked token whose state moves")
            pictures.figure_title(figure, f"Impact, {backbone}")


@dataclass(frozen=True)
class ImpactStudy:
    """The correlation of tokens' impacts with their TF-IDF weights over many sentences (Ditto,
    table 3).
    """

    #: over the tokens of all sentences together; 0 if undefined
    correlation: tfidf_correlation.Correlation
    #: mean of the correlations within sentences of two tokens or more
    by_sentence: tfidf_correlation.Correlation
    means: Doubles  #: (tokens,) impacts, sentence after sentence
    weights: Doubles  #: (tokens,) TF-IDF
    sentences: int  #: number of sentences used
    left_out: int  #: number of sentences left out: empty, or longer than the longest input

    def draw(self, path: Path, backbone: str) -> None:
        """Draw impacts against TF-IDF weights into a picture, under the backbone's name."""
        with pictures.drawing(path, 6.4, 4.6) as figure:
            panel = figure.subplots()
            panel.scatter(
                self.weights,
                self.means,
                s=4,
                linewidths=0,
                alpha=0.4,
                color=pictures.COLOURS.blue,
                rasterized=True,
            )
            correlation = self.correlation
            figures = f"Pearson {correlation.pearson:.2f}, Spearman {correlation.spearman:.2f}"
            title = f"{backbone}: {figures} over {len(self.means):,} tokens"
            pictures.figure_title(figure, title)
            panel.set(xlabel="TF-IDF", ylabel="mean impact of the token")


def impact(backbone: Backbone, sentence: str) -> Impact:
    """Return the impact matrix of one sentence.

    ELECTRA's matrix works although its discriminator never saw a mask (table 3).
    """
    ids = tokenize(plain_encoder(backbone), sentence)
    with notes.stage("impact", None) as advance:
        impacts = _impact(backbone, torch.tensor(ids, device=backbone.device), advance)
    matrix = impacts.cpu().numpy()
    tokens = [backbone.tokenizer.text(token) for token in ids[1:-1]]
    return Impact(tokens, matrix, matrix.mean(0))


def _impact(backbone: Backbone, row: Tensor, advance: notes.Advance) -> Tensor:
    """Return the impact matrix (N, N) of token ids (N + 2,)."""
    mask = backbone.tokenizer.mask
    if mask is None:
        raise UsageError(
            f"backbone {backbone.name!r} has no mask token, which perturbed masking needs; give a"
            " masked language model"
        )
    count = len(row) - 2  # N
    singles = torch.arange(count, device=row.device).repeat(2, 1).T
    pairs = torch.triu_indices(count, count, 1, device=row.device).T
    matrix = torch.zeros(count, count, dtype=torch.float64, device=row.device)
    with torch.inference_mode():
        masked = _masked_states(backbone, row, singles, mask, advance)
        alone = torch.cat([hidden[:, 0] for _, hidden in masked])
        for places, hidden in _masked_states(backbone, row, pairs, mask, advance):
            i, j = places.T
            matrix[i, j] = (alone[i] - hidden[:, 0]).norm(dim=1)
            matrix[j, i] = (alone[j] - hidden[:, 1]).norm(dim=1)
    return matrix


def _masked_states(
    backbone: Backbone, row: Tensor, pairs: Tensor, mask: int, advance: notes.Advance
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs (c, 2) of tokens, and their last-layer states (c, 2, d) while both are masked."""
    needs = states.Needs(layers=frozenset({backbone.n_layers}))
    step = max(1, batching.TOKEN_BUDGET // len(row))
    for start in range(0, len(pairs), step):
        chunk = pairs[start : start + step]
        lines = torch.arange(len(chunk), device=row.device)[:, None]
        ids = row.repeat(len(chunk), 1)
        ids[lines, 1 + chunk] = mask
        batch = states.Batch(ids, torch.full((len(chunk),), len(row), device=row.device))
        hidden = backbone.run(batch, needs).layers[backbone.n_layers].double()
        yield chunk, hidden[lines, 1 + chunk]
        advance(len(chunk))


def compare_with_tfidf(
    backbone: Backbone, sentences: Sequence[str], corpus: Sequence[str], first: int | None = None
) -> ImpactStudy:
    """Correlate the impacts of tokens (column means of F) with their TF-IDF weights.

    ``first`` limits the number of sentences. The paper does not say how it pools, so both the
    correlation over all tokens and the mean over sentences are returned. Empty and too long
    sentences are left out; idf is counted on ``corpus``, in the backbone's tokens.
    """
    sentences = sentences[:first]
    encoder = plain_encoder(backbone)
    idf = tfidf_correlation.corpus_idf(encoder, corpus)
    rows: list[list[int]] = []
    for sentence in sentences:
        with contextlib.suppress(UsageError):  # empty or too long
            rows.append(tokenize(encoder, sentence))
    if not rows:
        raise UsageError("the text has no usable sentence; give a file with one sentence a line")
    left_out = len(sentences) - len(rows)
    if left_out:
        note(f"{left_out:,} sentences are left out: empty, or longer than the longest input")
    means = []
    weights = []
    with notes.stage("impact", len(rows)) as advance:
        for row in rows:
            ids = torch.tensor(row, device=backbone.device)
            means.append(_impact(backbone, ids, notes.no_progress).mean(0).cpu().numpy())
            weights.append(tfidf_correlation.tfidf_weights(row, idf)[1:-1])
            advance(1)
    of_sentences = []
    for mean, weight in zip(means, weights, strict=True):
        if len(mean) > 1:
            correlation = tfidf_correlation.correlate(mean, weight)
            of_sentences.append((correlation.pearson, correlation.spearman))
    by_sentence = np.mean(of_sentences, axis=0).tolist() if of_sentences else (0.0, 0.0)
    all_means = np.concatenate(means)
    all_weights = np.concatenate(weights)
    return ImpactStudy(
        tfidf_correlation.correlate(all_means, all_weights),
        tfidf_correlation.Correlation(*by_sentence),
        all_means,
        all_weights,
        len(rows),
        left_out,
    )
