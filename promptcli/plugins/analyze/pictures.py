"""Picture files, drawn by matplotlib.

The colours are Okabe and Ito's, which colour-blind readers can distinguish.
"""

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from promptcli.errors import UsageError, require_libraries
from promptcli.storage.files import atomic_path, check_output

BLUE = "#0072B2"
ORANGE = "#E69F00"
RED = "#D55E00"
GREY = "#BBBBBB"  #: for the background
#: The colours of groups, in their order.
COLOURS = (BLUE, ORANGE, "#009E73", RED, "#CC79A7", "#56B4E9", "#000000")
MARKERS = "osD^vPX*"
_EXTENSIONS = (".png", ".svg", ".pdf")


def check_picture(path: Path, *, force: bool, page: bool = False) -> None:
    """Refuse a file into which nothing can be drawn; ``page`` also allows an HTML page."""
    extensions = [*_EXTENSIONS, ".html"] if page else _EXTENSIONS
    if path.suffix not in extensions:
        raise UsageError(
            f"{path}: not a picture; give a name that ends in {' or '.join(extensions)}",
            parameter="plot",
        )
    check_output(path, force=force, parameter="plot")
    if path.suffix == ".html":
        require_libraries("plotly", extra="map")
    else:
        require_libraries("matplotlib", extra="plot")


@contextlib.contextmanager
def drawing(path: Path, width: float, height: float, *, dpi: int = 150) -> Iterator[Any]:
    """Yield an empty figure, ``width`` x ``height`` inches; the file is written when the block
    ends.
    """
    settings = {
        "text.parse_math": False,  # a dollar sign in a token or name does not start a formula
        "text.usetex": False,  # even if a matplotlibrc in the current folder asks for LaTeX
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
