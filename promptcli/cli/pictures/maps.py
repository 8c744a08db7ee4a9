"""Maps of figures as shaded lines for the terminal: layer by head, token by token; bars of blocks.

A cell is a shade and a figure, readable without colour; the colours are those of cividis, safe for the colour-blind.
"""

from collections.abc import Sequence

from rich.text import Text

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
    """Return which fifth of a range a figure is in."""
    return 0 if high == low else min(int((value - low) / (high - low) * len(STEPS)), len(STEPS) - 1)


def head_map(values: Sequence[Sequence[float]]) -> list[Text]:
    """Lay out (L, h) figures, a layer a line and a head a column, both counted from 1; the best is starred."""
    flat = [value for row in values for value in row]
    low, high = min(flat), max(flat)
    best = flat.index(high)
    lines = [Text("layer " + "".join(f"{head:>4} " for head in range(1, len(values[0]) + 1)).rstrip())]
    for layer, row in enumerate(values):
        line = Text(f"{layer + 1:>5} ")
        for head, value in enumerate(row):
            _append(line, f"{round(value):>3}", step_of(value, low, high))
            line.append("*" if layer * len(row) + head == best else " ")
        line.rstrip()
        lines.append(line)
    legend = Text("head across; ")
    for step in range(len(STEPS)):
        _append(legend, f"{round(low + (high - low) * step / len(STEPS)):>3}", step)
        legend.append(" ")
    legend.append("and more; * the best")
    return [*lines, legend]


def token_map(tokens: Sequence[str], values: Sequence[Sequence[float]]) -> list[Text]:
    """Lay out (t, t) figures from 0 on, a row a line and its token before it; a cell is its percentage of the greatest.

    Columns are numbered as the rows are, from 1.
    """
    greatest = max(max(row) for row in values) or 1.0
    margin = min(max(map(len, tokens)), _MARGIN) + 4
    lines = [Text(" " * margin + "".join(f"{column:>3} " for column in range(1, len(tokens) + 1)).rstrip())]
    for number, (token, row) in enumerate(zip(tokens, values, strict=True), 1):
        line = Text(f"{number:>3} {token[:_MARGIN]}".ljust(margin))
        for value in row:
            _append(line, f"{min(round(100 * value / greatest), 99):>2}", step_of(value, 0.0, greatest))
            line.append(" ")
        line.rstrip()
        lines.append(line)
    return lines


def _append(line: Text, figure: str, step: int) -> None:
    mark, background, letters = STEPS[step]
    line.append(f"{mark}{figure}", style=f"{letters} on {background}")


def text_bar(share: float, width: int = 30) -> str:
    """Return a bar of blocks for a share of 1, which has the length ``width``."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
