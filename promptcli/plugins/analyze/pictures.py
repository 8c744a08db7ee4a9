"""Picture files (matplotlib), with Okabe and Ito's colours, which are safe for the colour-blind."""

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from promptcli.errors import UsageError, require
from promptcli.storage.files import atomic_path, check_output


class Colours(NamedTuple):
    """Colours of a plot, in order of use; ``grey`` is for lines in the background."""

    blue: str = "#0072B2"
    orange: str = "#E69F00"
    green: str = "#009E73"
    red: str = "#D55E00"
    pink: str = "#CC79A7"
    sky: str = "#56B4E9"
    black: str = "#000000"

    @property
    def grey(self) -> str:
        return "#BBBBBB"


COLOURS = Colours()
MARKERS = "osD^vPX*"
#: Kinds of picture, by file extension.
PICTURES = (".png", ".svg", ".pdf")


def check_picture(path: Path | None, *, force: bool, page: bool = False) -> None:
    """Refuse a picture that cannot be drawn; ``page`` also allows an HTML page."""
    if path is None:
        return
    kinds = [*PICTURES, ".html"] if page else PICTURES
    if path.suffix not in kinds:
        raise UsageError(
            f"{path}: not a picture; give a name that ends in {' or '.join(kinds)}",
            parameter="plot",
        )
    check_output(path, force=force, parameter="plot")
    if path.suffix == ".html":
        require("plotly", extra="map")
    else:
        require("matplotlib", extra="plot")


@contextlib.contextmanager
def drawing(path: Path, width: float, height: float, *, dpi: int = 150) -> Iterator[Any]:
    """Yield an empty figure, inches wide and high; the file is written when the block ends.

    A dollar sign in a token or name does not start a formula, and LaTeX is not run: matplotlib
    reads a ``matplotlibrc`` of the current folder.
    """
    settings = {
        "text.parse_math": False,
        "text.usetex": False,
        "pdf.fonttype": 42,
    }
    with importlib.import_module("matplotlib").rc_context(settings):
        figures: Any = importlib.import_module("matplotlib.figure")
        figure = figures.Figure(figsize=(width, height), layout="constrained")
        yield figure
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format=path.suffix.removeprefix("."), dpi=dpi)


def figure_title(figure: Any, *lines: str) -> None:
    """Write a title over all panels; a long line is broken between words."""
    figure.suptitle("\n".join(lines), fontsize="medium", wrap=True)
