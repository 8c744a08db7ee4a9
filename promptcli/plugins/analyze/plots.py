"""Plots of analyses."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from promptcli.plugins.analyze import pictures

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
    with pictures.drawing(path, 6.4, 1.3 + 0.34 * len(names)) as figure:
        panel = figure.subplots()
        bars = panel.barh(names, lengths, color=pictures.COLOURS.blue)
        panel.bar_label(bars, [f"{length:.4f}" for length in lengths], padding=3)
        panel.invert_yaxis()
        panel.set(xlabel=axis)
        pictures.figure_title(figure, title)
        panel.margins(x=0.15)
        panel.spines[["top", "right"]].set_visible(False)


def colour_bar(figure: Any, panel: Any, image: Any, label: str, written: str | None = None) -> None:
    """Draw the colour scale of an image at its right, as high as the image.

    ``written``: format of its numbers.
    """
    axes = panel.inset_axes((1.03, 0.0, 0.045, 1.0))
    figure.colorbar(image, cax=axes, label=label, format=written)


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
    """Write a name at each point, if possible without covering other names or points."""
    marks = [panel.transData.transform(point) for point in points.values()]
    taken: list[Any] = []

    def is_free(text: Any) -> bool:
        box = text.get_window_extent()
        covers_name = any(box.overlaps(other) for other in taken)
        covers_point = any(box.contains(*mark) for mark in marks)
        outside = box.x0 < panel.bbox.x0 or box.x1 > panel.bbox.x1
        return not (covers_name or covers_point or outside)

    style = {"textcoords": "offset points", "va": "center", "fontsize": "small"}
    for name, point in points.items():
        texts = [
            panel.annotate(name, point, (right, up), ha=side, **style)
            for right, up, side in _PLACES
        ]
        kept = next(filter(is_free, texts), texts[0])
        for text in texts:
            if text is not kept:
                text.remove()
        taken.append(kept.get_window_extent())


def draw_token_map(panel: Any, tokens: Sequence[str], values: Sequence[Sequence[float]]) -> Any:
    """Draw (t, t) values from 0 on as an image with the tokens on both axes; return the image."""
    image = panel.imshow(values, cmap="cividis", vmin=0.0)
    panel.set_xticks(range(len(tokens)), tokens, rotation=90)
    panel.set_yticks(range(len(tokens)), tokens)
    return image
