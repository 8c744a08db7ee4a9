"""Layer x head heat maps: lines of text for the terminal, a picture where matplotlib is there. Part of the entrance."""

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from promptcli.errors import NotFoundError, UsageError
from promptcli.storage.files import atomic_path

#: Shade, background and letters of each fifth of the range, from low to high. The shade tells without colour, and the
#: colours are those of cividis, which the colour-blind see in the same order.
_STEPS = (
    (" ", "#00204c", "#ffffff"),
    ("░", "#414d6b", "#ffffff"),
    ("▒", "#7c7b78", "#000000"),
    ("▓", "#bcaf6f", "#000000"),
    ("█", "#ffe945", "#000000"),
)
_LABEL = "layer"
#: Kinds of picture, by file extension.
PICTURES = (".png", ".svg")


def heat_map(values: Sequence[Sequence[float]]) -> list[Text]:
    """Lay out (L, h) figures, a layer a line and a head a column, both counted from 1; the best is starred.

    A cell is the figure as a whole number behind a shade, so that it reads without colour, too.
    """
    flat = [value for row in values for value in row]
    low, high = min(flat), max(flat)
    best = flat.index(high)
    margin = max(len(_LABEL), len(str(len(values)))) + 1
    lines = [Text(_LABEL.ljust(margin) + "".join(f"{head:>4} " for head in range(1, len(values[0]) + 1)).rstrip())]
    for layer, row in enumerate(values):
        line = Text(f"{layer + 1:>{len(_LABEL)}}".ljust(margin))
        for head, value in enumerate(row):
            mark, style = shade(value, low, high)
            line.append(f"{mark}{round(value):>3}", style=style)
            line.append("*" if layer * len(row) + head == best else " ")
        line.rstrip()
        lines.append(line)
    legend = Text("head across; ")
    for step in range(len(_STEPS)):
        start = low + (high - low) * step / len(_STEPS)
        legend.append(f"{_STEPS[step][0]}{round(start):>3}", style=_style(step))
        legend.append(" ")
    legend.append("and more; * the best")
    return [*lines, legend]


def shade(value: float, low: float, high: float) -> tuple[str, str]:
    """Return the mark and the style of a figure's fifth of a range."""
    step = _step(value, low, high)
    return _STEPS[step][0], _style(step)


def _style(step: int) -> str:
    _, background, letters = _STEPS[step]
    return f"{letters} on {background}"


def _step(value: float, low: float, high: float) -> int:
    if high == low:
        return 0
    return min(int((value - low) / (high - low) * len(_STEPS)), len(_STEPS) - 1)


def check_picture(path: Path, *, force: bool) -> None:
    """Refuse what ``save_picture`` would refuse; for asking before the work.

    Raises:
        UsageError: Not a kind of picture, the file is there (unless ``force``), or matplotlib is not installed.
        NotFoundError: The folder is not there.
    """
    if path.suffix not in PICTURES:
        raise UsageError(f"--plot {path}: not a kind of picture; give a name that ends in {' or '.join(PICTURES)}")
    if not path.parent.is_dir():
        raise NotFoundError(f"--plot {path}: no folder {str(path.parent)!r}; make it first")
    if path.exists() and not force:
        raise UsageError(f"--plot {path}: the file is there; choose another name, or give --force")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib, which is not installed: pip install 'promptcli[plot]'")


def save_picture(path: Path, maps: Mapping[str, Sequence[Sequence[float]]], title: str) -> None:
    """Draw one heat map per kind of states, (L, h) each, side by side on one colour scale.

    Args:
        path: ``.png`` or ``.svg``; appears whole or not at all.
        maps: Figures by states.
        title: Above the picture.
    """
    figures: Any = importlib.import_module("matplotlib.figure")
    first = next(iter(maps.values()))
    layers, heads = len(first), len(first[0])
    flat = [value for rows in maps.values() for row in rows for value in row]
    low, high = min(flat), max(flat)
    figure = figures.Figure(figsize=((0.42 * heads + 0.8) * len(maps) + 0.8, 0.36 * layers + 1.4), layout="constrained")
    panels = figure.subplots(1, len(maps), squeeze=False)[0]
    for panel, (states, rows) in zip(panels, maps.items(), strict=True):
        image = panel.imshow(rows, cmap="cividis", vmin=low, vmax=high, aspect="auto")
        panel.set(title=states, xlabel="head", ylabel="layer")
        panel.set_xticks(range(heads), range(1, heads + 1))
        panel.set_yticks(range(layers), range(1, layers + 1))
        for layer, row in enumerate(rows):
            for head, value in enumerate(row):
                letters = _STEPS[_step(value, low, high)][2]
                panel.text(head, layer, str(round(value)), ha="center", va="center", fontsize=7, color=letters)
    figure.colorbar(image, ax=panels, label="Spearman x 100")
    figure.suptitle(title)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=path.suffix.removeprefix("."), dpi=150)
