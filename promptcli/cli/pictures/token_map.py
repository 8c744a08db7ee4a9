"""Maps of (t, t) figures between the tokens of a sentence: shaded lines for the terminal, a panel for a picture."""

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from promptcli.cli.pictures.heat_map import shade

#: One of our own, where a command shows what it does and none is given.
SENTENCE = "A baker opens her shop before sunrise and lights the oven."
#: Longer tokens are cut in the margin of the terminal's map.
_MARGIN = 14


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
            mark, style = shade(value, 0.0, greatest)
            line.append(f"{mark}{min(round(100 * value / greatest), 99):>2}", style=style)
            line.append(" ")
        line.rstrip()
        lines.append(line)
    return lines


def draw_token_map(panel: Any, tokens: Sequence[str], values: Sequence[Sequence[float]]) -> Any:
    """Draw (t, t) figures from 0 on as an image with the tokens on both axes; return the image."""
    image = panel.imshow(values, cmap="cividis", vmin=0.0)
    panel.set_xticks(range(len(tokens)), tokens, rotation=90)
    panel.set_yticks(range(len(tokens)), tokens)
    return image
