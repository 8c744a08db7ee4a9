"""Plots into files: options, the empty figure, bars, labelled points, maps of heads.

Colours by Okabe and Ito, or of cividis: safe for the colour-blind.
"""

import contextlib
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from promptcli.cli.console import note
from promptcli.cli.options import option_in
from promptcli.cli.pictures.maps import STEPS, step_of
from promptcli.errors import UsageError
from promptcli.storage.files import atomic_path, check_output

BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#BBBBBB"
#: Kinds of picture, by file extension.
PICTURES = (".png", ".svg")
_option = option_in("Picture")


@dataclass(frozen=True)
class PictureOptions:
    """The file of a plot."""

    plot: Annotated[Path | None, _option(help="Draw into a .png or .svg file (needs matplotlib).")] = None
    force: Annotated[bool, _option("--force", help="Overwrite an existing file or model of that name.")] = False

    def check(self) -> None:
        """Refuse a picture that could not be drawn, before any work is done."""
        if self.plot is not None:
            check_picture(self.plot, force=self.force)

    def draw(self, paint: Callable[..., None], *given: Any) -> None:
        """Draw the plot, if one is asked for."""
        if self.plot is not None:
            paint(self.plot, *given)
            note(f"drawn to {self.plot}")


def check_picture(path: Path, *, force: bool) -> None:
    """Refuse, before the work, a picture that could not be drawn."""
    if path.suffix not in PICTURES:
        raise UsageError(f"--plot {path}: not a kind of picture; give a name that ends in {' or '.join(PICTURES)}")
    check_output(path, force=force, option="--plot")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib, which is not installed: pip install 'promptcli[plot]'")


@contextlib.contextmanager
def drawing(path: Path, width: float, height: float, *, dpi: int = 150) -> Iterator[Any]:
    """Yield an empty figure, inches wide and high; the file is written when the block ends.

    A dollar sign in a token or name does not start a formula.
    """
    with importlib.import_module("matplotlib").rc_context({"text.parse_math": False, "svg.hashsalt": path.name}):
        figures: Any = importlib.import_module("matplotlib.figure")
        figure = figures.Figure(figsize=(width, height), layout="constrained")
        yield figure
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format=path.suffix.removeprefix("."), dpi=dpi)


def draw_bars(path: Path, values: Mapping[str, float], axis: str, title: str) -> None:
    """Draw a horizontal bar with its figure for each name, in the order given."""
    names, lengths = list(values), list(values.values())
    with drawing(path, 6.4, 1.3 + 0.34 * len(names)) as figure:
        panel = figure.subplots()
        bars = panel.barh(names, lengths, color=BLUE)
        panel.bar_label(bars, [f"{length:.4f}" for length in lengths], padding=3)
        panel.invert_yaxis()
        panel.set(xlabel=axis, title=title)
        panel.margins(x=0.15)
        panel.spines[["top", "right"]].set_visible(False)


def draw_points(path: Path, points: Mapping[str, tuple[float, float]], axes: tuple[str, str], title: str) -> None:
    """Draw a labelled point for each name; labels cover neither points nor each other."""
    with drawing(path, 6.8, 5.0) as figure:
        panel = figure.subplots()
        across, up = ([point[place] for point in points.values()] for place in (0, 1))
        panel.scatter(across, up, color=BLUE, zorder=2)
        panel.set(xlabel=axes[0], ylabel=axes[1], title=title)
        panel.margins(0.18)
        panel.grid(alpha=0.3)
        figure.draw_without_rendering()
        _label(panel, points)


#: Positions of a label next to its point: offset in points, and its alignment.
_PLACES = [
    (distance * right, distance * up, ("right", "center", "left")[1 + right], ("top", "center", "bottom")[1 + up])
    for distance in (6, 14, 24)
    for right, up in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
]


def _label(panel: Any, points: Mapping[str, tuple[float, float]]) -> None:
    renderer = importlib.import_module("matplotlib.backends.backend_agg").FigureCanvasAgg(panel.figure).get_renderer()
    boxes: Any = importlib.import_module("matplotlib.transforms").Bbox
    taken = [
        boxes.from_bounds(x - 6, y - 6, 12, 12) for x, y in panel.transData.transform(list(points.values())).tolist()
    ]
    frame = panel.get_window_extent(renderer)
    for name, point in points.items():
        for place in _PLACES:
            right, up, across, along = place
            text = panel.annotate(name, point, (right, up), textcoords="offset points", ha=across, va=along, fontsize=9)
            box = text.get_window_extent(renderer)
            free = not any(box.overlaps(other) for other in taken)
            if place == _PLACES[-1] or (free and frame.contains(*box.p0) and frame.contains(*box.p1)):
                taken.append(box)
                break
            text.remove()


def draw_head_maps(path: Path, maps: Mapping[str, Sequence[Sequence[float]]], title: str) -> None:
    """Draw one heat map per kind of states, (L, h) each, side by side on one colour scale."""
    first = next(iter(maps.values()))
    layers, heads = len(first), len(first[0])
    flat = [value for rows in maps.values() for row in rows for value in row]
    low, high = min(flat), max(flat)
    with drawing(path, (0.42 * heads + 0.8) * len(maps) + 0.8, 0.36 * layers + 1.4) as figure:
        panels = figure.subplots(1, len(maps), squeeze=False)[0]
        for panel, (states, rows) in zip(panels, maps.items(), strict=True):
            image = panel.imshow(rows, cmap="cividis", vmin=low, vmax=high, aspect="auto")
            panel.set(title=states, xlabel="head", ylabel="layer")
            panel.set_xticks(range(heads), range(1, heads + 1))
            panel.set_yticks(range(layers), range(1, layers + 1))
            for layer, row in enumerate(rows):
                for head, value in enumerate(row):
                    letters = STEPS[step_of(value, low, high)][2]
                    panel.text(head, layer, str(round(value)), ha="center", va="center", fontsize=7, color=letters)
        figure.colorbar(image, ax=panels, label="Spearman x 100")
        figure.suptitle(title)
