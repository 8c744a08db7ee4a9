"""Plots of analyses."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.extending import COLOURS, MARKERS, drawing, figure_title

if TYPE_CHECKING:
    from promptcli.plugins.analyze.geometry import Uniformity
    from promptcli.plugins.analyze.sentence import Attention, Impact, ImpactStudy
    from promptcli.plugins.analyze.token_bias import TokenBias

#: The default sentence.
SENTENCE = "A baker opens her shop before sunrise and lights the oven."
#: All pairs of STS-B, on which alignment and uniformity are compared.
ALL_STS_B = ["STS-B:train", "STS-B:dev", "STS-B"]
#: Names of the states of token embeddings.
EMBEDDINGS = {"static": "word embeddings", "mlm-head": "output embeddings"}


def draw_bars(path: Path, values: Mapping[str, float], axis: str, title: str) -> None:
    """Draw a horizontal bar with its value for each name, in the order given."""
    names = list(values)
    lengths = list(values.values())
    with drawing(path, 6.4, 1.3 + 0.34 * len(names)) as figure:
        panel = figure.subplots()
        bars = panel.barh(names, lengths, color=COLOURS.blue)
        panel.bar_label(bars, [f"{length:.4f}" for length in lengths], padding=3)
        panel.invert_yaxis()
        panel.set(xlabel=axis)
        figure_title(figure, title)
        panel.margins(x=0.15)
        panel.spines[["top", "right"]].set_visible(False)


def _colour_bar(
    figure: Any, panel: Any, image: Any, label: str, written: str | None = None
) -> None:
    """Draw the colour scale of an image at its right, as high as the image.

    ``written``: format of its numbers.
    """
    axes = panel.inset_axes((1.03, 0.0, 0.045, 1.0))
    figure.colorbar(image, cax=axes, label=label, format=written)


def draw_attention(path: Path, attention: "Attention", backbone: str) -> None:
    """Draw the matrix, and next to it the diagonal as bars."""
    count = len(attention.tokens)
    side = 0.3 * max(count, 10)
    with drawing(path, 1.6 * side + 3.2, side + 1.8) as figure:
        matrix, bars = figure.subplots(1, 2, width_ratios=(1, 0.6))
        drawn = _draw_token_map(matrix, attention.tokens, attention.matrix.tolist())
        matrix.set(xlabel="token attended to", ylabel="token that attends", aspect="auto")
        matrix.set_title("attention", fontsize="medium")
        _colour_bar(figure, matrix, drawn, "attention")
        bars.barh(range(count), attention.diagonal, color=COLOURS.red)
        bars.set(xlabel="attention to itself", ylim=matrix.get_ylim())
        bars.set_yticks(range(count), attention.tokens)
        bars.set_title("diagonal: Ditto's weights", fontsize="medium")
        bars.set_axisbelow(True)
        bars.grid(axis="x", color=COLOURS.grey, alpha=0.5)
        figure_title(figure, f"{backbone}, head {attention.head}")


def draw_impact(path: Path, impact: "Impact", backbone: str) -> None:
    """Draw the impact matrix of a sentence."""
    side = 1.6 + 0.26 * len(impact.tokens)
    with drawing(path, max(side + 1.0, 5.0), max(side, 4.2)) as figure:
        panel = figure.subplots()
        image = _draw_token_map(panel, impact.tokens, impact.matrix.tolist())
        panel.set(xlabel="second masked token", ylabel="masked token whose state moves")
        figure_title(figure, f"Impact, {backbone}")
        _colour_bar(figure, panel, image, "Euclidean distance")


def draw_impact_study(path: Path, study: "ImpactStudy", backbone: str) -> None:
    """Draw every token's mean impact against its TF-IDF weight."""
    with drawing(path, 6.4, 4.6) as figure:
        panel = figure.subplots()
        panel.scatter(
            study.weights,
            study.means,
            s=4,
            linewidths=0,
            alpha=0.4,
            color=COLOURS.blue,
            rasterized=True,
        )
        found = study.correlation
        title = (
            f"{backbone}: Pearson {found.pearson:.2f}, Spearman {found.spearman:.2f} over"
            f" {len(study.means):,} tokens"
        )
        figure_title(figure, title)
        panel.set(xlabel="TF-IDF", ylabel="mean impact of the token")


def draw_token_bias(path: Path, bias: "TokenBias", title: str) -> None:
    """Draw a panel for each bias that has two groups.

    Pieces inside words, and capitals, lie on top.
    """
    flags = [("continues a word", "starts a word", bias.subword)]
    if bias.capital.any():
        flags.append(("with a capital", "no capital", bias.capital))
    with drawing(path, 4.2 * (1 + len(flags)) + 0.6, 4.2, dpi=100) as figure:
        panels = figure.subplots(1, 1 + len(flags), sharex=True, sharey=True)
        figure.get_layout_engine().set(wspace=0.08)
        _draw_frequency(figure, panels[0], bias)
        for panel, (with_it, without, flag) in zip(panels[1:], flags, strict=True):
            panel.scatter(*bias.points[~flag].T, color=COLOURS.blue, label=without, **_DOTS)
            panel.scatter(*bias.points[flag].T, color=COLOURS.orange, label=with_it, **_DOTS)
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
            panel.set_xlabel(f"first component ({100 * bias.variance[0]:.1f}% of the variance)")
            panel.set_ylabel(f"second component ({100 * bias.variance[1]:.1f}%)")
            panel.tick_params(labelleft=True)
        figure_title(figure, title)


#: How a token is drawn among many.
_DOTS: dict[str, Any] = {"s": 3, "linewidths": 0, "rasterized": True, "antialiased": False}
#: How a token without a value is drawn among them.
_RINGS: dict[str, Any] = {
    "s": 12,
    "linewidths": 0.5,
    "facecolor": "white",
    "edgecolor": "black",
    "rasterized": True,
}


def _draw_frequency(figure: Any, panel: Any, bias: "TokenBias") -> None:
    """Draw tokens coloured by their number of occurrences, the most frequent on top.

    Those that never occur are white rings, which no number of the scale is, in grey either.
    """
    seen = bias.counts > 0
    panel.scatter(*bias.points[~seen].T, **_RINGS)
    order = bias.counts[seen].argsort(kind="stable")
    counts = bias.counts[seen][order]
    points = bias.points[seen][order]
    image = panel.scatter(*points.T, c=counts, norm="log", cmap="cividis_r", **_DOTS)
    _colour_bar(figure, panel, image, "occurrences (○: none)", "{x:,.0f}")
    panel.set_title("frequency", fontsize="medium")


def draw_uniformity(path: Path, results: Mapping[str, "Uniformity"], title: str) -> None:
    """Draw each encoder as a named point.

    In a name STATES-METHOD, the method has a colour and the states have a mark.
    """
    colours: dict[str, str] = {}
    markers: dict[str, str] = {}
    points: dict[str, tuple[float, float]] = {}
    with drawing(path, 7.0, 5.0) as figure:
        panel = figure.subplots()
        for name, result in results.items():
            states, _, method = name.rpartition("-")
            colour = colours.setdefault(method, COLOURS[len(colours) % len(COLOURS)])
            marker = markers.setdefault(states, MARKERS[len(markers) % len(MARKERS)])
            point = (result.uniformity, result.alignment)
            points[name] = point
            panel.plot(*point, marker, color=colour, linestyle="", markersize=9)
        panel.set(xlabel="uniformity (lower is better)", ylabel="alignment (lower is better)")
        panel.margins(0.2, 0.12)
        panel.grid(alpha=0.3)
        figure_title(figure, title)
        figure.draw_without_rendering()  # the place of every point is known from here
        name_points(panel, points)


#: Places of a name at its point: the offset, and the side of the text that is next to the point.
_PLACES = (
    (9, 0, "left"),
    (-9, 0, "right"),
    (0, 11, "center"),
    (0, -11, "center"),
    (9, 11, "left"),
    (9, -11, "left"),
)


def name_points(panel: Any, points: Mapping[str, tuple[float, float]]) -> None:
    """Write a name at each point, if possible where it covers no other name and no point."""
    marks = [panel.transData.transform(point) for point in points.values()]
    taken: list[Any] = []
    for name, point in points.items():
        for right, up, side in _PLACES:
            text = _write_name(panel, name, point, (right, up), ha=side)
            box = text.get_window_extent()
            covers_name = any(box.overlaps(other) for other in taken)
            covers_point = any(box.contains(*mark) for mark in marks)
            outside = box.x0 < panel.bbox.x0 or box.x1 > panel.bbox.x1
            if not (covers_name or covers_point or outside):
                break
            text.remove()
        else:
            text = _write_name(panel, name, point, (9, 0))
        taken.append(text.get_window_extent())


def _write_name(
    panel: Any, name: str, point: tuple[float, float], offset: tuple[int, int], **more: str
) -> Any:
    settings = {"textcoords": "offset points", "va": "center", "fontsize": "small", **more}
    return panel.annotate(name, point, offset, **settings)


def _draw_token_map(panel: Any, tokens: Sequence[str], values: Sequence[Sequence[float]]) -> Any:
    """Draw (t, t) values from 0 on as an image with the tokens on both axes; return the image."""
    image = panel.imshow(values, cmap="cividis", vmin=0.0)
    panel.set_xticks(range(len(tokens)), tokens, rotation=90)
    panel.set_yticks(range(len(tokens)), tokens)
    return image
