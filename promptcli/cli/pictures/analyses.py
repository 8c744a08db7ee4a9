"""The plots of `promptcli analyze`, which `promptcli reproduce` draws, too."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.cli.pictures.plots import BLUE, GREY, ORANGE, RED, draw_points, drawing

if TYPE_CHECKING:
    from promptcli.analysis.geometry import Uniformity
    from promptcli.analysis.impact import Impact, ImpactStudy
    from promptcli.analysis.sentence import Attention
    from promptcli.analysis.sentence_map import SentenceMap
    from promptcli.analysis.token_bias import TokenBias

#: The default sentence.
SENTENCE = "A baker opens her shop before sunrise and lights the oven."
#: All pairs of STS-B, on which alignment and uniformity are compared.
ALL_STS_B = ["STS-B:train", "STS-B:dev", "STS-B"]
#: Colours of clusters, the largest first; dark enough for letters on white.
CLUSTERS = ("#0072B2", "#B34700", "#007A5A", "#A8327E", "#7A6A00", "#4B4FC4", "#8A2B2B", "#4D5A66")
#: Names of the states of token embeddings.
EMBEDDINGS = {"static": "word embeddings", "mlm-head": "output embeddings"}


def draw_attention(path: Path, attention: "Attention", backbone: str) -> None:
    """Draw the matrix, and next to it the diagonal as bars."""
    count = len(attention.tokens)
    high = max(1.6 + 0.24 * count, 4.0)
    with drawing(path, high + 3.4, high) as figure:
        matrix, bars = figure.subplots(1, 2, sharey=True, width_ratios=(2.2, 1))
        drawn = _draw_token_map(matrix, attention.tokens, attention.matrix.tolist())
        matrix.set(xlabel="token attended to", ylabel="token that attends", title="attention")
        figure.colorbar(drawn, ax=matrix, location="left", shrink=0.8)
        bars.barh(range(count), attention.diagonal, color=RED)
        bars.set(xlabel="attention to itself", title="diagonal: Ditto's weights")
        bars.tick_params(labelleft=False)
        bars.grid(axis="x", color=GREY, alpha=0.5)
        figure.suptitle(f"{backbone}, head {attention.head}")


def draw_impact(path: Path, impact: "Impact", backbone: str) -> None:
    """Draw the impact matrix of a sentence."""
    side = 1.6 + 0.26 * len(impact.tokens)
    with drawing(path, max(side + 1.0, 5.0), max(side, 4.2)) as figure:
        panel = figure.subplots()
        image = _draw_token_map(panel, impact.tokens, impact.matrix.tolist())
        panel.set(xlabel="second masked token", ylabel="masked token whose state moves", title=f"Impact, {backbone}")
        figure.colorbar(image, ax=panel, label="Euclidean distance", shrink=0.8)


def draw_impact_study(path: Path, study: "ImpactStudy", backbone: str) -> None:
    """Draw every token's mean impact against its TF-IDF weight."""
    with drawing(path, 6.4, 4.6) as figure:
        panel = figure.subplots()
        panel.scatter(study.weights, study.means, s=4, linewidths=0, alpha=0.4, color=BLUE, rasterized=True)
        pearson, spearman = study.correlation.pearson, study.correlation.spearman
        title = f"{backbone}: Pearson {pearson:.2f}, Spearman {spearman:.2f} over {len(study.means):,} tokens"
        panel.set(xlabel="TF-IDF", ylabel="mean impact of the token", title=title)


def draw_token_bias(path: Path, bias: "TokenBias", title: str) -> None:
    """Draw a panel for each bias that has two groups; pieces inside words, and capitals, lie on top."""
    import numpy as np

    flags = [("continues a word", "starts a word", bias.subword)]
    if bias.capital.any():
        flags.append(("with a capital", "no capital", bias.capital))
    with drawing(path, 4.0 * (1 + len(flags)), 4.2, dpi=100) as figure:
        panels = figure.subplots(1, 1 + len(flags), sharex=True, sharey=True)
        dots = {"s": 3, "linewidths": 0, "rasterized": True, "antialiased": False}
        seen = bias.counts > 0
        panels[0].scatter(*bias.points[~seen].T, color=GREY, label="never", **dots)
        order = np.argsort(bias.counts[seen], kind="stable")
        logs = np.log10(bias.counts[seen])[order]
        image = panels[0].scatter(*bias.points[seen][order].T, c=logs, cmap="cividis_r", **dots)
        figure.colorbar(image, ax=panels[0], label="log10 of the count; grey: never")
        panels[0].set_title("frequency", fontsize="medium")
        for panel, (with_it, without, flag) in zip(panels[1:], flags, strict=True):
            for tokens, name, colour in ((~flag, without, BLUE), (flag, with_it, ORANGE)):
                panel.scatter(*bias.points[tokens].T, color=colour, label=name, **dots)
            above: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "ncols": 2}
            panel.legend(**above, markerscale=3, frameon=False, borderaxespad=0, handletextpad=0, columnspacing=1)
        for panel in panels:
            panel.set_xlabel(f"first component ({100 * bias.variance[0]:.1f}%)")
        panels[0].set_ylabel(f"second component ({100 * bias.variance[1]:.1f}%)")
        figure.suptitle(title)


def draw_map(path: Path, plane: "SentenceMap", model: str) -> None:
    """Draw every sentence as a dot in its cluster's colour, and the clusters' words at their densest places."""
    effects = importlib.import_module("matplotlib.patheffects")
    around = [effects.withStroke(linewidth=3, foreground="white")]
    with drawing(path, 8.0, 5.6, dpi=110) as figure:
        panel = figure.subplots()
        for cluster, (words, colour) in enumerate(zip(plane.words, CLUSTERS, strict=False)):
            dots = plane.points[plane.clusters == cluster]
            panel.scatter(*dots.T, s=10, linewidths=0, alpha=0.7, color=colour)
            place = {"ha": "center", "va": "center", "weight": "bold", "color": colour, "path_effects": around}
            panel.text(*plane.places[cluster], " ".join(words[:2]), **place)
        panel.set_axis_off()
        quality = f"{plane.method}, trustworthiness {plane.trustworthiness:.2f}"
        panel.set_title(f"{len(plane.points):,} sentences by {model}; {quality}", fontsize="medium")


def draw_uniformity(path: Path, results: Mapping[str, "Uniformity"], tasks: Sequence[str]) -> None:
    """Draw each encoder as a point."""
    points = {name: (result.uniformity, result.alignment) for name, result in results.items()}
    title = "Alignment and uniformity on " + " + ".join(tasks)
    draw_points(path, points, ("uniformity (lower is better)", "alignment (lower is better)"), title)


def _draw_token_map(panel: Any, tokens: Sequence[str], values: Sequence[Sequence[float]]) -> Any:
    """Draw (t, t) figures from 0 on as an image with the tokens on both axes; return the image."""
    image = panel.imshow(values, cmap="cividis", vmin=0.0)
    panel.set_xticks(range(len(tokens)), tokens, rotation=90)
    panel.set_yticks(range(len(tokens)), tokens)
    return image
