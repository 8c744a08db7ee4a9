"""Pictures: shaded maps and bars in the terminal, plots in files (needs matplotlib).

Colours by Okabe and Ito, or of cividis: safe for the colour-blind; in the terminal also readable
without colour.
"""

import contextlib
import importlib
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.text import Text

from promptcli.cli.console import note, result_styled, terminal_width
from promptcli.errors import UsageError, require
from promptcli.grammar import parse_pooling
from promptcli.recipe import last_part
from promptcli.settings import setting
from promptcli.storage.files import atomic_path, check_output

if TYPE_CHECKING:
    from promptcli.select.search import Ranked, Search

#: Shade, background and letters of each fifth of the range, from low to high.
STEPS = (
    (" ", "#00204c", "#ffffff"),
    ("░", "#414d6b", "#ffffff"),
    ("▒", "#7c7b78", "#000000"),
    ("▓", "#bcaf6f", "#000000"),
    ("█", "#ffe945", "#000000"),
)
#: Longer tokens are cut in the margin.
_MARGIN = 14


def step_of(value: float, low: float, high: float) -> int:
    """Return which fifth of a range a value is in."""
    if high == low:
        return 0
    step = int((value - low) / (high - low) * len(STEPS))
    return min(step, len(STEPS) - 1)


def head_map(values: Sequence[Sequence[float]], width: int | None = None) -> list[Text]:
    """Lay out (L, h) scores, a layer a line and a head a column, both counted from 1.

    The best is starred. Heads for which a line of that ``width`` has no room follow below.
    """
    flat = list(itertools.chain(*values))
    low = min(flat)
    high = max(flat)
    best = flat.index(high)
    lines: list[Text] = []
    for heads in _column_blocks(len(values[0]), margin=6, cell=5, width=width):
        numbers = "".join(f"{head + 1:>4} " for head in heads)
        lines.append(Text(f"layer {numbers}".rstrip()))
        for layer, row in enumerate(values):
            line = Text(f"{layer + 1:>5} ")
            for head in heads:
                _append(line, f"{round(row[head]):>3}", step_of(row[head], low, high))
                line.append("*" if layer * len(row) + head == best else " ")
            line.rstrip()
            lines.append(line)
    lines.append(_legend(low, high))
    return lines


def _legend(low: float, high: float) -> Text:
    """Return the line below a map of heads: where each shade begins."""
    legend = Text("head across; ")
    for step in range(len(STEPS)):
        begins = low + (high - low) * step / len(STEPS)
        _append(legend, f"{round(begins):>3}", step)
        legend.append(" ")
    legend.append("and more; * the best")
    return legend


def token_map(
    tokens: Sequence[str], values: Sequence[Sequence[float]], width: int | None = None
) -> list[Text]:
    """Lay out (t, t) values from 0 on, a row a line and its token before it.

    A cell is its percentage of the greatest. Columns are numbered as the rows are, from 1; those
    for which a line of that ``width`` has no room follow below.
    """
    greatest = max(max(row) for row in values) or 1.0
    margin = min(max(map(len, tokens)), _MARGIN) + 5
    lines: list[Text] = []
    for columns in _column_blocks(len(tokens), margin=margin, cell=4, width=width):
        numbers = "".join(f"{column + 1:>3} " for column in columns)
        lines.append(Text(" " * margin + numbers.rstrip()))
        for number, (token, row) in enumerate(zip(tokens, values, strict=True), 1):
            line = Text(f"{number:>3} {token[:_MARGIN]}".ljust(margin))
            for column in columns:
                percentage = min(round(100 * row[column] / greatest), 99)
                _append(line, f"{percentage:>2}", step_of(row[column], 0.0, greatest))
                line.append(" ")
            line.rstrip()
            lines.append(line)
    return lines


def print_token_map(tokens: Sequence[str], values: Sequence[Sequence[float]]) -> None:
    """Print a map of tokens, see ``token_map``, as the result: as wide as the terminal."""
    for line in token_map(tokens, values, terminal_width()):
        result_styled(line)


def _column_blocks(columns: int, *, margin: int, cell: int, width: int | None) -> list[range]:
    """Divide the columns of a map into blocks that fit a line.

    Without a width there is one block.
    """
    size = columns
    if width is not None:
        size = max((width - margin) // cell, 1)
    return [range(start, min(start + size, columns)) for start in range(0, columns, size)]


def _append(line: Text, value: str, step: int) -> None:
    mark, background, letters = STEPS[step]
    line.append(f"{mark}{value}", style=f"{letters} on {background}")


def text_bar(share: float, width: int = 30) -> str:
    """Return a bar of blocks for a share of 1, which has the length ``width``."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + " ▏▎▍▌▋▊▉"[rest].strip()


# --- plots ---


class Colours(NamedTuple):
    """Colours of a plot, in the order in which they are taken; ``grey`` is of lines behind."""

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
#: Kinds of picture, by file extension, each with the metadata that would make two runs differ.
PICTURES: dict[str, dict[str, None]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}


@dataclass(frozen=True)
class PictureOptions:
    """The file of a plot."""

    plot: Path | None = setting(
        None, "Draw into a .png, .svg or .pdf file (needs matplotlib).", panel="Picture"
    )
    force: bool = setting(
        False, "Overwrite an existing file or model of that name.", panel="Picture"
    )

    def check(self, *, page: bool = False) -> None:
        """Refuse a picture that could not be drawn, before any work is done.

        With ``page`` it may be an HTML page.
        """
        if self.plot is None:
            return
        kinds = list(PICTURES)
        if page:
            kinds.append(".html")
        if self.plot.suffix not in kinds:
            raise UsageError(
                f"--plot {self.plot}: not a picture; give a name that ends in {' or '.join(kinds)}"
            )
        check_output(self.plot, force=self.force, parameter="plot")
        if self.plot.suffix == ".html":
            require("plotly", extra="map")
        else:
            require("matplotlib", extra="plot")

    def draw(self, paint: Callable[..., None], *arguments: Any) -> None:
        """Draw the plot, if one is asked for."""
        if self.plot is not None:
            # it may have appeared in the meantime
            check_output(self.plot, force=self.force, parameter="plot")
            paint(self.plot, *arguments)
            note(f"drawn to {self.plot}")


@contextlib.contextmanager
def drawing(path: Path, width: float, height: float, *, dpi: int = 150) -> Iterator[Any]:
    """Yield an empty figure, inches wide and high; the file is written when the block ends.

    A dollar sign in a token or name does not start a formula, and LaTeX is not run: matplotlib
    reads a ``matplotlibrc`` of the current folder.
    """
    settings = {
        "text.parse_math": False,
        "text.usetex": False,
        "svg.hashsalt": path.name,
        "pdf.fonttype": 42,
    }
    with importlib.import_module("matplotlib").rc_context(settings):
        figures: Any = importlib.import_module("matplotlib.figure")
        figure = figures.Figure(figsize=(width, height), layout="constrained")
        yield figure
        with atomic_path(path) as temporary:
            figure.savefig(
                temporary,
                format=path.suffix.removeprefix("."),
                dpi=dpi,
                metadata=PICTURES[path.suffix],
            )


#: Rows of a picture of a ranking.
_MOST_RANKED = 40
#: Longer names are cut at the side of a picture.
_NAME = 48


@dataclass(frozen=True)
class Dot:
    """A score on a line of its own, with the ends of its interval, if it has one."""

    name: str
    value: float | None  #: None: the line stays empty
    interval: tuple[float, float] | None = None


def draw_dots(panel: Any, dots: Sequence[Dot]) -> None:
    """Draw scores one below the other, the first at the top; the best of several is marked."""
    values = [dot.value for dot in dots if dot.value is not None]
    best = max(values) if len(values) > 1 else None
    for place, dot in enumerate(dots):
        if dot.value is None:
            continue
        colour, mark, size = (
            (COLOURS.orange, "D", 7) if dot.value == best else (COLOURS.blue, "o", 5)
        )
        if dot.interval is not None:
            panel.plot(dot.interval, [place, place], color=colour, linewidth=2, zorder=2)
        panel.plot(
            dot.value, place, mark, color=colour, markersize=size, markeredgecolor="black", zorder=3
        )
    panel.set_yticks(range(len(dots)), [_cut(dot.name) for dot in dots])
    panel.set_ylim(len(dots) - 0.5, -0.5)
    panel.grid(axis="x", alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)


def _cut(name: str) -> str:
    if len(name) > _NAME:
        return f"{name[: _NAME - 1]}…"
    return name


def draw_templates(path: Path, search: "Search") -> None:
    """Draw the best templates with their intervals, and the plain averages as lines."""
    _draw_ranking(path, search, search.ranked, "template")


def draw_layers(path: Path, search: "Search") -> None:
    """Draw the layers in their order, and the recipe's own pooling as a line."""
    _draw_ranking(path, search, sorted(search.ranked, key=_depth), "pooling")


def _depth(item: "Ranked") -> tuple[str, str, int, list[tuple[int, str]]]:
    """Return the order of a pooling: by prompt and weights, then layers, last and means."""
    prompt, _, text = item.choice.rpartition(" ")
    pooling = parse_pooling(text)
    states = pooling.states
    group = {"layer": 0, "last": 1}.get(states.name, 2)
    parts = [(int(part or 0), part) for part in re.findall(r"\d+", str(states))]
    return prompt, "+".join(map(str, pooling.weights)), group, parts


def _draw_ranking(path: Path, search: "Search", shown: "Sequence[Ranked]", what: str) -> None:
    kept = {id(item) for item in search.ranked[:_MOST_RANKED]}
    dots = []
    for item in shown:
        if id(item) in kept:
            dots.append(Dot(item.choice, item.value, item.ci95))
    width = 0.075 * max(len(dot.name[:_NAME]) for dot in dots) + 4.6
    with drawing(path, width, 1.7 + 0.27 * len(dots)) as figure:
        panel = figure.subplots()
        draw_dots(panel, dots)
        styles = itertools.cycle(("--", ":", "-."))
        for item, style in zip(search.baseline.values(), styles, strict=False):
            label = f"{item.choice}: {item.value:.1f}"
            panel.axvline(item.value, color=COLOURS.red, linestyle=style, label=label)
        panel.set_xlabel("Spearman x 100")
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize="small")
        says = f"Bars: 95% intervals. Orange diamond: the best {what}."
        if len(search.ranked) > len(dots):
            says = f"The best {len(dots)} of {len(search.ranked)}. {says}"
        figure_title(figure, f"{last_part(search.recipe.backbone)} on {search.task.label}", says)


def draw_head_maps(path: Path, search: "Search") -> None:
    """Draw one heat map per kind of states, (L, h) each.

    Its own colour scale also shows the plain average.
    """
    maps = {states: rows.tolist() for states, rows in search.maps.items()}
    layers, heads = next(iter(search.maps.values())).shape
    with drawing(path, max(5.0, (0.42 * heads + 1.6) * len(maps)), 0.36 * layers + 1.9) as figure:
        panels = figure.subplots(1, len(maps), squeeze=False)[0]
        for panel, (states, rows) in zip(panels, maps.items(), strict=True):
            _draw_head_map(figure, panel, states, rows, search.baseline[states].value)
        name = last_part(search.recipe.backbone)
        weights = search.about["weights"]
        title = f"Every attention head of {name} as weights ({weights}), on {search.task.label}"
        figure_title(
            figure, title, "Orange frame: best head. Line on the colour bar: plain average."
        )


def _draw_head_map(
    figure: Any, panel: Any, states: str, rows: Sequence[Sequence[float]], plain: float
) -> None:
    """Draw the scores of all heads on one kind of states, and the plain average on their scale."""
    heads = len(rows[0])
    scores = list(itertools.chain(*rows))
    best = max(scores)
    low = min(plain, *scores)
    high = max(plain, *scores)
    room = 0.05 * (high - low) or 1.0  # a line at the very end of the scale would not be seen
    low -= room
    high += room
    image = panel.imshow(rows, cmap="cividis", vmin=low, vmax=high, aspect="auto")
    title = f"{states}\nbest head {best:.1f}, plain average {plain:.1f}"
    panel.set_title(title, fontsize="medium")
    panel.set(xlabel="head", ylabel="layer")
    panel.set_xticks(range(heads), range(1, heads + 1))
    panel.set_yticks(range(len(rows)), range(1, len(rows) + 1))
    for layer, row in enumerate(rows):
        for head, value in enumerate(row):
            _, _, letters = STEPS[step_of(value, low, high)]
            text = panel.text(head, layer, str(round(value)), fontsize=7, color=letters)
            text.set(ha="center", va="center")
    layer, head = divmod(scores.index(best), heads)
    patches = importlib.import_module("matplotlib.patches")
    frame = {"fill": False, "edgecolor": COLOURS.red, "linewidth": 2.5}
    panel.add_patch(patches.Rectangle((head - 0.5, layer - 0.5), 1, 1, **frame))
    bar = figure.colorbar(image, ax=panel, label="Spearman x 100").ax
    bar.axhline(plain, color="white", linewidth=6)
    bar.axhline(plain, color=COLOURS.red, linewidth=3)


def figure_title(figure: Any, *lines: str) -> None:
    """Write a title over all panels; a line that is too long is broken after a comma or colon."""
    width = int(12.5 * figure.get_figwidth())
    broken = []
    for line in lines:
        joined = re.sub(r"(?<![,:]) ", "\N{NO-BREAK SPACE}", line)
        broken.append(textwrap.fill(joined, width))
    figure.suptitle("\n".join(broken), fontsize="medium")
