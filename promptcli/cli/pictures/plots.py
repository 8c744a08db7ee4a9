"""What the pictures of several commands share: options, the empty figure, bars, labelled points.

Colours are those of Okabe and Ito, or of cividis, which the colour-blind tell apart.
"""

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from promptcli.cli.console import note
from promptcli.cli.pictures.heat_map import check_picture
from promptcli.storage.files import atomic_path

BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#BBBBBB"
_PANEL = "Picture"


@dataclass(frozen=True)
class Picture:
    """Whether and where to draw."""

    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw into a .png or .svg file (needs matplotlib).", rich_help_panel=_PANEL),
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Replace a picture of that name.", rich_help_panel=_PANEL)] = (
        False
    )

    def check(self) -> None:
        """Refuse a picture that could not be drawn, before any work is done."""
        if self.plot is not None:
            check_picture(self.plot, force=self.force)

    def drawn(self, *, quiet: bool) -> None:
        """Say that it is there."""
        note(f"drawn to {self.plot}", quiet=quiet)


@contextlib.contextmanager
def drawing(path: Path, width: float, height: float, *, dpi: int = 150) -> Iterator[Any]:
    """Yield an empty figure, inches wide and high; the file appears, whole, when the block ends.

    Tokens and names are drawn as they are: a dollar sign in them starts no formula.
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
    """Draw a labelled point for each name; a label goes where it covers neither a point nor another label."""
    with drawing(path, 6.8, 5.0) as figure:
        panel = figure.subplots()
        across, up = ([point[place] for point in points.values()] for place in (0, 1))
        panel.scatter(across, up, color=BLUE, zorder=2)
        panel.set(xlabel=axes[0], ylabel=axes[1], title=title)
        panel.margins(0.18)
        panel.grid(alpha=0.3)
        figure.draw_without_rendering()
        _label(panel, points)


#: Where a label may stand beside its point: offset in points, and which of its sides is nearest.
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


def text_bar(share: float, width: int = 30) -> str:
    """Return a bar of blocks for a share of 1, so long that the whole would be ``width``."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def rounded(values: Sequence[float]) -> list[float]:
    """Return figures as JSON holds them."""
    return [round(value, 6) for value in values]
