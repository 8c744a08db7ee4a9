"""Tables of `promptcli reproduce` as lines for the terminal. Part of the entrance."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from promptcli.reproducing.planning import TableOverview
from promptcli.reproducing.report import TableLine, caption, heads, notes, reasons
from promptcli.reproducing.report import table_lines as rows_of

#: A longer label gets a line of its own.
_LABEL = 26
#: Lines of text are folded here; tables are not.
_WIDTH = 98
#: How each kind of line looks: what was published for another model is grey.
_STYLES = {
    "measured": "bold",
    "interval": "dim",
    "published": "",
    "other": "bright_black",
    "difference": "cyan",
    "reason": "dim",
}


def table_lines(document: Mapping[str, Any]) -> Iterator[Text]:
    """Lay out a result document: what was measured on what, every row's lines under the heads, remarks."""
    yield Text(f"{document['table']}: {document['title']}", style="bold")
    for about in caption(document):
        yield from _folded(about)
    columns = heads(document)
    lines = list(rows_of(document))
    filled = [line for line in lines if line.kind != "reason"]
    widths = [max(7, *map(len, column)) for column in zip(columns, *(line.cells for line in filled), strict=True)]
    labels = [_indented(line) for line in filled]
    width = max([6, *(len(label) for label in labels if len(label) <= _LABEL)])
    yield Text(_aligned("", columns, width, widths))
    yield Text("-" * (width + sum(widths) + len(widths)))
    for line in lines:
        yield from _laid_out(line, width, widths)
    for remark in [*reasons(document), *notes(document)]:
        yield from _folded(remark, style="dim")


def list_lines(overviews: Sequence[TableOverview], backbone: str) -> Iterator[Text]:
    """Lay out what every table needs and how many of its figures can be measured now."""
    yield Text(f"figures that can be measured now on {backbone}, of those published")
    for look in overviews:
        style = "bold" if look.now else ""
        yield Text(f"{look.table:<24} {look.now:>4} of {look.figures:<4} {look.title}", style=style)
        needs = [f"on {', '.join(look.backbones)}", *look.data, " / ".join(look.time)]
        yield from _folded("; ".join(part for part in needs if part), indent=4, style="dim")
        for why, count in look.lacks.items():
            yield from _folded(f"{count} not now: {why}", indent=4, style="dim")
    yield from _folded(
        "data: --data-dir FOLDER (SentEval's `downstream`), or none, then a run asks the Hugging Face hub; weights:"
        " --backbone NAME fetches them from there once; --paper takes every row's own"
    )


def _laid_out(line: TableLine, width: int, widths: Sequence[int]) -> Iterator[Text]:
    style = _STYLES[line.kind]
    label = _indented(line)
    if line.kind == "reason":
        yield Text(label)
        yield from _folded(f"not measured: {line.cells[0]}", indent=4, style=style)
        return
    if len(label) > width:
        yield Text(label, style=style)
        label = ""
    yield Text(_aligned(label, line.cells, width, widths), style=style)


def _indented(line: TableLine) -> str:
    return line.label if line.kind in ("measured", "reason") else f"  {line.label}"


def _aligned(label: str, cells: Sequence[str], width: int, widths: Sequence[int]) -> str:
    padded = (cell.rjust(size) for cell, size in zip(cells, widths, strict=True))
    return f"{label:<{width}} {' '.join(padded)}".rstrip()


def _folded(text: str, *, indent: int = 0, style: str = "") -> Iterator[Text]:
    lead = " " * indent
    for line in textwrap.wrap(text, _WIDTH, initial_indent=lead, subsequent_indent=lead + "  "):
        yield Text(line, style=style)
