"""Result documents as Markdown: one table, and the page of all. Knows documents only."""

from collections.abc import Mapping, Sequence
from typing import Any

from promptcli.reproducing.measures import MEASURE_OF, MEASURES
from promptcli.reproducing.planning import grouped
from promptcli.reproducing.published import PublishedTable, published_tables
from promptcli.reproducing.report import TableLine, caption, heads, notes, reasons, table_lines
from promptcli.reproducing.systems import SYSTEMS

#: Kind of line -> what stands in the first two columns; the braces are its label.
_NAMES = {
    "measured": ("{}", "measured"),
    "interval": ("", "{}"),
    "published": ("", "published, {}"),
    "other": ("", "*published, {}*"),
    "difference": ("", "difference"),
}


def table_page(document: Mapping[str, Any], *, level: int = 1, folder: str = "") -> str:
    """Return one result document as Markdown.

    Args:
        document: Of ``measure_table``.
        level: Of its heading.
        folder: Where its pictures are, seen from the page, with a slash at the end.
    """
    columns = heads(document)
    backbone = "" if document["backbone"] is None else f", {document['backbone']['name']}"
    parts = [f"{'#' * level} {document['table']}{backbone}: {document['title']}", ""]
    parts += [f"- {line}" for line in caption(document)] + [""] * bool(caption(document))
    parts += [_row(["method", "", *columns]), "|" + "---|" * 2 + "---:|" * len(columns)]
    parts += [_line(line, len(columns)) for line in table_lines(document)]
    pictures = [row["figures"]["picture"]["value"] for row in document["rows"] if "picture" in row["figures"]]
    parts += [f"\n![{document['title']}]({folder}{picture})" for picture in pictures]
    remarks = [*reasons(document), *notes(document)]
    parts += [""] * bool(remarks) + [f"- {remark}" for remark in remarks]
    return "\n".join(parts) + "\n"


def results_page(documents: Sequence[Mapping[str, Any]], folder: str = "../results/") -> str:
    """Return the page of all results, and of the tables that have none yet, with the reason.

    Args:
        documents: Of ``measure_table``.
        folder: Where their files are, seen from the page, with a slash at the end.
    """
    done = {document["table"] for document in documents}
    backbones = dict.fromkeys(document["backbone"]["name"] for document in documents if document["backbone"])
    parts = [
        "# Results",
        "",
        "Made by `promptcli reproduce page` from the files in `results/`; not written by hand. Figures are",
        "Spearman x 100 unless the column says otherwise; below each stands the published one, *slanted* where it is",
        "another model's.",
        f"Backbones: {', '.join(f'`{name}`' for name in backbones)}.",
        "",
    ]
    for document in documents:
        parts += [table_page(document, level=2, folder=folder)]
    parts += ["## Tables without a measured figure", "", _row(["table", "what", "why"]), "|---|---|---|"]
    for table in published_tables().values():
        if table.name not in done:
            parts.append(_row([table.name, table.title, _why(table)]))
    return "\n".join(parts) + "\n"


def _why(table: PublishedTable) -> str:
    """Return what its rows lack wherever they are measured."""
    systems = [SYSTEMS[row.kind].absent.format(row.argument) for row in table.rows]
    measures = [MEASURES[MEASURE_OF[column]].absent for column in table.columns]
    return "; ".join(grouped(why for why in [*systems, *measures] if why)) or "not run yet"


def _line(line: TableLine, columns: int) -> str:
    if line.kind == "reason":
        return _row([line.label, line.cells[0], *[""] * columns])
    cells = [f"*{cell}*" if line.kind == "other" and cell else cell for cell in line.cells]
    return _row([*(name.format(line.label) for name in _NAMES[line.kind]), *cells])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
