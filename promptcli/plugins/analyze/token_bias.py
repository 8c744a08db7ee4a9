"""Token embeddings by frequency, subword and case in the plane of most variance (PromptBERT,
figures 1 and 2).

The paper does not state its projection; here it is the first two principal components.
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

#: The input embeddings (figure 1), or the masked-LM head's output embeddings (figure 2 and table
#: 12).
STATES = ("static", "mlm-head")
#: Last ranks of the bands of frequency; tokens that never occur are a further band.
_BANDS = (100, 1_000, 10_000)


@dataclass(frozen=True)
class TokenGroup:
    """Tokens that share a property."""

    bias: str  #: ``frequency``, ``subword`` or ``case``
    name: str
    tokens: int  #: their number
    mean: tuple[float, ...]  #: mean position in the plane, two coordinates


@dataclass(frozen=True)
class TokenBias:
    """The non-special tokens of a vocabulary in the plane."""

    variance: tuple[float, float]  #: share of all variance on either axis
    groups: list[TokenGroup]  #: groups of each bias with several
    points: NDArray[np.float64]  #: (k, 2) positions
    counts: NDArray[np.int64]  #: (k,) occurrences of each token in the corpus
    subword: NDArray[np.bool_]  #: (k,) whether it continues a word
    capital: NDArray[np.bool_]  #: (k,) whether it has a capital letter

    def draw(self, path: Path, title: str) -> None:
        """Draw the tokens in the plane into a picture."""
        flags = [("continues a word", "starts a word", self.subword)]
        if self.capital.any():
            flags.append(("with a capital", "no capital", self.capital))
        with pictures.drawing(path, 4.2 * (1 + len(flags)) + 0.6, 4.2, dpi=100) as figure:
            panels = figure.subplots(1, 1 + len(flags), sharex=True, sharey=True)
            figure.get_layout_engine().set(wspace=0.08)
            _draw_frequency(figure, panels[0], self)
            for panel, (with_it, without, flag) in zip(panels[1:], flags, strict=True):
                for name, rows, colour in (
                    (without, ~flag, pictures.COLOURS.blue),
                    (with_it, flag, pictures.COLOURS.orange),
                ):
                    panel.scatter(*self.points[rows].T, color=colour, label=name, **_DOTS)
                panel.legend(
                    loc="lower center",  # above the panel
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


#: Style of a token among many.
_DOTS: dict[str, Any] = {"s": 3, "linewidths": 0, "rasterized": True, "antialiased": False}
#: Style of a token without a value.
_RINGS: dict[str, Any] = {
    "s": 12,
    "linewidths": 0.5,
    "facecolor": "white",
    "edgecolor": "black",
    "rasterized": True,
}


def _draw_frequency(figure: Any, panel: Any, bias: "TokenBias") -> None:
    """Draw tokens coloured by their number of occurrences, the most frequent on top.

    Tokens that never occur are white rings, distinct from the scale even in grey.
    """
    seen = bias.counts > 0
    panel.scatter(*bias.points[~seen].T, **_RINGS)
    order = bias.counts[seen].argsort(kind="stable")
    counts = bias.counts[seen][order]
    points = bias.points[seen][order]
    image = panel.scatter(*points.T, c=counts, norm="log", cmap="cividis_r", **_DOTS)
    figure.colorbar(image, ax=panel, label="occurrences (○: none)", format="{x:,.0f}")
    panel.set_title("frequency", fontsize="medium")


def token_bias(backbone: Backbone, corpus: Sequence[str], *, states: str = "static") -> TokenBias:
    """Project all tokens' embeddings on the plane of most variance, and group them.

    Occurrences are counted in ``corpus``.
    """
    if states not in STATES:
        raise errors.unknown("states", states, STATES)
    rows = backbone.word_embeddings if states == "static" else backbone.head.output_embeddings
    specials = set(backbone.tokenizer.specials)
    texts = {}
    for token, text in backbone.tokenizer.items().items():
        if token < len(rows) and token not in specials:
            texts[token] = text
    ids = np.fromiter(texts, np.int64, len(texts))
    counts = _count(backbone, corpus)[ids]
    points, variance = project(rows.detach().float().cpu().numpy()[ids])
    subword = np.array(continues_word(backbone.tokenizer, list(texts.values())))
    capital = np.array([re.search("[A-Z]", text) is not None for text in texts.values()])
    labels = {
        "frequency": _bands(counts),
        "subword": np.where(subword, "continues a word", "starts a word"),
        "case": np.where(capital, "with a capital", "no capital"),
    }
    groups: list[TokenGroup] = []
    by_frequency = np.argsort(-counts, kind="stable")
    for bias, named in labels.items():
        names = dict.fromkeys(named[by_frequency].tolist())
        if len(names) == 1:  # a single group has nothing to compare
            continue
        for name in names:
            inside = points[named == name]
            groups.append(TokenGroup(bias, name, len(inside), tuple(inside.mean(0).tolist())))
    return TokenBias(variance, groups, points, counts, subword, capital)


def project(rows: NDArray[np.floating]) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """Return rows (k, d) on their first two principal components, and their shares of variance.

    Positions are (k, 2). The sign of a component is free; here its largest entry is positive.
    """
    mean = rows.mean(0, dtype=np.float64)
    covariance = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), WINDOW):  # a vocabulary of 250,000 in float64 takes gigabytes
        centred = rows[start : start + WINDOW] - mean
        covariance += centred.T @ centred
    values, vectors = np.linalg.eigh(covariance)
    axes = vectors[:, [-1, -2]]
    largest_entries = axes[np.abs(axes).argmax(0), [0, 1]]
    axes *= np.sign(largest_entries)
    first, second = (values[[-1, -2]] / values.sum()).tolist()
    points = rows @ axes - mean @ axes
    return points, (first, second)


def continues_word(tokens: PieceTokenizer, texts: Sequence[str]) -> list[bool]:
    """Return whether each item continues a word.

    Such an item starts with ``##`` (word pieces), or lacks ``Ġ`` or ``▁`` (other kinds).
    """
    if tokens.byte_level:
        return ["Ġ" not in text for text in texts]
    if any(text.startswith("▁") for text in texts):
        return [not text.startswith("▁") for text in texts]
    return [text.startswith("##") for text in texts]


def _count(backbone: Backbone, corpus: Sequence[str]) -> NDArray[np.int64]:
    sentences = [sentence for sentence in corpus if sentence.strip()]
    if not sentences:
        raise UsageError(
            "the file has no sentence to count tokens in; give one sentence a line, or demo"
        )
    encoder = plain_encoder(backbone)
    counts = np.zeros(len(backbone.word_embeddings), np.int64)
    with notes.stage("token-bias", len(sentences)) as advance:
        for start in range(0, len(sentences), WINDOW):
            window = encoder.inputs(sentences[start : start + WINDOW]).ids
            counts += np.bincount(np.concatenate(window), minlength=len(counts))
            advance(len(window))
    return counts


def _bands(counts: NDArray[np.int64]) -> NDArray[np.str_]:
    """Name each token's band of frequency, by its rank among the tokens that occur."""
    ranks = np.empty(len(counts), np.int64)
    ranks[np.argsort(-counts, kind="stable")] = np.arange(1, len(counts) + 1)
    names = [f"{low + 1:,} to {high:,}" for low, high in itertools.pairwise((0, *_BANDS))]
    names.append(f"beyond {_BANDS[-1]:,}")
    named = np.array(names)[np.searchsorted(_BANDS, ranks)]
    return np.where(counts == 0, "never", named)
