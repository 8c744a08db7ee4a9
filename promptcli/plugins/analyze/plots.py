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


def draw_token_map(panel: Any, tokens: Sequence[str], values: Sequence[Sequence[float]]) -> Any:
    """Draw (t, t) values from 0 on as an image with the tokens on both axes; return the image."""
    image = panel.imshow(values, cmap="cividis", vmin=0.0)
    panel.set_xticks(range(len(tokens)), tokens, rotation=90)
    panel.set_yticks(range(len(tokens)), tokens)
    return image
