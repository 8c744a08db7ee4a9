"""Tables of `promptcli reproduce` as lines for the terminal. Part of the entrance."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from promptcli.cli.commands.score_table import Row, TableLine, grid
from promptcli.reproducing.planning import TableOverview
from promptcli.reproducing.report import caption, heads, notes, reasons
from promptcli.reproducing.report import table_lines as rows_of

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


def table_lines(document: Mapping[str, Any]) -> Iterator[TableLine]:
    """Lay out a result document: what was measured on what, every row's lines under the heads, remarks."""
    yield TableLine(f"{document['table']}: {document['title']}", "bold")
    for about in caption(document):
        yield from _folded(about)
    body: list[Row | TableLine] = []
    for line in rows_of(document):
        style = _STYLES[line.kind]
        if line.kind == "reason":
            body += [TableLine(line.label), *_folded(f"not measured: {line.cells[0]}", indent=4, style=style)]
        else:
            body.append((line.label if line.kind == "measured" else f"  {line.label}", line.cells, style))
    yield from grid(heads(document), body, label=26)
    for remark in [*reasons(document), *notes(document)]:
        yield from _folded(remark, style="dim")


def list_lines(overviews: Sequence[TableOverview], backbone: str) -> Iterator[TableLine]:
    """Lay out what every table needs and how many of its figures can be measured now."""
    yield TableLine(f"figures that can be measured now on {backbone}, of those published")
    for look in overviews:
        style = "bold" if look.now else ""
        yield TableLine(f"{look.table:<24} {look.now:>4} of {look.figures:<4} {look.title}", style)
        needs = [f"on {', '.join(look.backbones)}", *look.data, " / ".join(look.time)]
        yield from _folded("; ".join(part for part in needs if part), indent=4, style="dim")
        for why, count in look.lacks.items():
            yield from _folded(f"{count} not now: {why}", indent=4, style="dim")
    yield from _folded(
        "data: --data-dir FOLDER (SentEval's `downstream`), or none, then a run asks the Hugging Face hub; weights:"
        " --backbone NAME fetches them from there once; --paper takes every row's own"
    )


def _folded(text: str, *, indent: int = 0, style: str = "") -> Iterator[TableLine]:
    lead = " " * indent
    for line in textwrap.wrap(text, _WIDTH, initial_indent=lead, subsequent_indent=lead + "  "):
        yield TableLine(line, style)
