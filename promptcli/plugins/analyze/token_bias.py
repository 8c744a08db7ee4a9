"""Token embeddings by frequency, subword and case, in the plane of their first two principal
components (PromptBERT, figures 1 and 2).

The paper does not state its projection.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptcli import errors, notes
from promptcli.backbones.backbone import Backbone
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.embedding.writing import WINDOW
from promptcli.errors import UsageError
from promptcli.plugins.analyze import pictures
from promptcli.plugins.analyze.sentence import plain_encoder

#: The input embeddings (figure 1), or the output embeddings of the masked-LM head (figure 2 and
#: table 12).
STATES = ("static", "mlm-head")
#: The last rank of each band of frequency; tokens that never occur are a further band.
_LAST_RANKS = (100, 1_000, 10_000)


@dataclass(frozen=True)
class TokenGroup:
    """The tokens that share a property."""

    bias: str  #: ``frequency``, ``subword`` or ``case``
    name: str  #: of the property, e.g. ``continues a word``
    tokens: int  #: number of tokens
    mean: tuple[float, ...]  #: mean position in the plane, two coordinates


@dataclass(frozen=True)
class TokenBias:
    """The k tokens of a vocabulary that are not special, in the plane."""

    variance: tuple[float, float]  #: each axis's share of all variance
    groups: list[TokenGroup]  #: of each bias that has two groups or more
    points: NDArray[np.float64]  #: (k, 2) positions
    counts: NDArray[np.int64]  #: (k,) occurrences of each token in the corpus
    subword: NDArray[np.bool_]  #: (k,) whether the token continues a word
    capital: NDArray[np.bool_]  #: (k,) whether the token has a capital letter

    def draw(self, path: Path, title: str) -> None:
        """Draw the tokens in the plane into a picture, one panel for each bias."""
        flags = [("continues a word", "starts a word", self.subword)]
        if self.capital.any():
            flags.append(("with a capital", "no capital", self.capital))
        with pictures.drawing(path, 4.2 * (1 + len(flags)) + 0.6, 4.2, dpi=100) as figure:
            panels = figure.subplots(1, 1 + len(flags), sharex=True, sharey=True)
            figure.get_layout_engine().set(wspace=0.08)
            _draw_frequency(figure, panels[0], self)
            for panel, (positive, negative, flag) in zip(panels[1:], flags, strict=True):
                for name, tokens, colour in (
                    (negative, ~flag, pictures.BLUE),
                    (positive, flag, pictures.ORANGE),
                ):
                    panel.scatter(*self.points[tokens].T, color=colour, label=name, **_DOTS)
                panel.legend(
                    loc="lower center",  # of the legend; it lies above the panel
                    bbox_to_anchor=(0.5, 1),
                    ncols=2,
                    markerscale=3,
                    frameon=False,
                    borderaxespad=0,
                    handletextpad=0,
                    columnspacing=1,
                )
            for panel in panels:
                panel.set_xlabel(f"first component ({100 * self.variance[0]:.1f}% of the variance)")
                panel.set_ylabel(f"second component ({100 * self.variance[1]:.1f}%)")
                panel.tick_params(labelleft=True)
            pictures.figure_title(figure, title)


#: The style of one token.
_DOTS: dict[str, Any] = {"s": 3, "linewidths": 0, "rasterized": True, "antialiased": False}


def _draw_frequency(figure: Any, panel: Any, bias: TokenBias) -> None:
    """Draw the tokens coloured by their number of occurrences, the most frequent on top.

    Tokens that never occur are white rings, which differ from the scale even if printed in grey.
    """
    occurs = bias.counts > 0
    panel.scatter(
        *bias.points[~occurs].T,
        s=12,
        linewidths=0.5,
        facecolor="white",
        edgecolor="black",
        rasterized=True,
    )
    order = bias.counts[occurs].argsort(kind="stable")
    counts = bias.counts[occurs][order]
    points = bias.points[occurs][order]
    image = panel.scatter(*points.T, c=counts, norm="log", cmap="cividis_r", **_DOTS)
    figure.colorbar(image, ax=panel, label="occurrences (○: none)", format="{x:,.0f}")
    panel.set_title("frequency", fontsize="medium")


def token_bias(backbone: Backbone, corpus: Sequence[str], *, states: str = "static") -> TokenBias:
    """Project the embeddings of all tokens on their first two principal components, and group
    them.

    ``corpus`` are the sentences in which the occurrences of the tokens are counted.
    """
    if states not in STATES:
        raise errors.unknown_name_error("states", states, STATES)
    matrix = backbone.word_embeddings if states == "static" else backbone.head.output_embeddings
    specials = set(backbone.tokenizer.specials)
    texts = {}
    for token, text in backbone.tokenizer.items().items():
        if token < len(matrix) and token not in specials:
            texts[token] = text
    ids = np.fromiter(texts, np.int64, len(texts))
    counts = _count(backbone, corpus)[ids]
    points, variance = project(matrix.detach().float().cpu().numpy()[ids])
    subword = np.array(continues_word(backbone.tokenizer, list(texts.values())))
    capital = np.array([re.search("[A-Z]", text) is not None for text in texts.values()])
    by_frequency = np.argsort(-counts, kind="stable")
    names_of_tokens = {
        "frequency": _bands(counts, by_frequency),
        "subword": np.where(subword, "continues a word", "starts a word"),
        "case": np.where(capital, "with a capital", "no capital"),
    }
    groups: list[TokenGroup] = []
    for bias, names in names_of_tokens.items():
        distinct_names = dict.fromkeys(names[by_frequency].tolist())
        if len(distinct_names) == 1:  # there is nothing to compare a single group with
            continue
        for name in distinct_names:
            members = points[names == name]
            groups.append(TokenGroup(bias, name, len(members), tuple(members.mean(0).tolist())))
    return TokenBias(variance, groups, points, counts, subword, capital)


def project(rows: NDArray[np.floating]) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """Return the positions (k, 2) of rows (k, d) on their first two principal components, and the
    components' shares of the variance.

    The sign of a component is arbitrary; here its largest entry is positive.
    """
    mean = rows.mean(0, dtype=np.float64)
    covariance = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(
        0, len(rows), WINDOW
    ):  # float64 rows of a whole vocabulary may take gigabytes
        centred = rows[start : start + WINDOW] - mean
        covariance += centred.T @ centred
    values, vectors = np.linalg.eigh(covariance)
    axes = vectors[:, [-1, -2]]
    largest_entries = axes[np.abs(axes).argmax(0), [0, 1]]
    axes *= np.sign(largest_entries)
    first, second = (values[[-1, -2]] / values.sum()).tolist()
    points = rows @ axes - mean @ axes
    return points, (first, second)


def continues_word(tokenizer: PieceTokenizer, texts: Sequence[str]) -> list[bool]:
    """Return whether each token continues a word.

    Such a token starts with ``##`` in a vocabulary of word pieces, and lacks ``Ġ`` or ``▁`` in
    others.
    """
    if tokenizer.byte_level:
        return ["Ġ" not in text for text in texts]
    if any(text.startswith("▁") for text in texts):
        return [not text.startswith("▁") for text in texts]
    return [text.startswith("##") for text in texts]


def _count(backbone: Backbone, corpus: Sequence[str]) -> NDArray[np.int64]:
    """Return the number of occurrences of each token, (v,)."""
    sentences = [sentence for sentence in corpus if sentence.strip()]
    if not sentences:
        raise UsageError(
            "the file has no sentence to count tokens in; give one sentence a line, or demo"
        )
    encoder = plain_encoder(backbone)
    counts = np.zeros(len(backbone.word_embeddings), np.int64)
    with notes.stage("token-bias", len(sentences)) as advance:
        for start in range(0, len(sentences), WINDOW):
            ids = encoder.inputs(sentences[start : start + WINDOW]).ids
            counts += np.bincount(np.concatenate(ids), minlength=len(counts))
            advance(len(ids))
    return counts


def _bands(counts: NDArray[np.int64], by_frequency: NDArray[np.int64]) -> NDArray[np.str_]:
    """Return the name of each token's band of frequency, (k,), by the token's rank.

    ``by_frequency`` are the tokens' rows, the most frequent first.
    """
    ranks = np.empty(len(counts), np.int64)
    ranks[by_frequency] = np.arange(1, len(counts) + 1)
    names = [f"{low + 1:,} to {high:,}" for low, high in itertools.pairwise((0, *_LAST_RANKS))]
    names.append(f"beyond {_LAST_RANKS[-1]:,}")
    bands = np.array(names)[np.searchsorted(_LAST_RANKS, ranks)]
    return np.where(counts == 0, "never", bands)
