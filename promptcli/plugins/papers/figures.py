"""The measured and published numbers of a table, drawn side by side."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from promptcli.plugins.papers.documents import published_value
from promptcli.plugins.papers.measures import COLUMNS
from promptcli.plugins.papers.pictures import can_draw
from promptcli.plugins.papers.report import column_headers, file_stem


def draw_numbers(folder: Path, document: Mapping[str, Any], plot: Path | None = None) -> list[Path]:
    """Draw a table that is a figure in the paper into a folder, and any table into ``plot``.

    Returns:
        The files that were drawn; none for a table without numbers.
    """
    paths = [plot] if plot else []
    if "/figure-" in document["table"] and can_draw():
        paths.append(folder / f"{file_stem(document)}.png")
    rows = document["rows"]
    values: dict[str, list[tuple[Any, Any]]] = {}
    for column, header in zip(document["columns"], column_headers(document), strict=True):
        cells = [
            (row["figures"].get(column), published_value(row["published"], column)) for row in rows
        ]
        if COLUMNS[column].decimals is not None and any(map(any, cells)):
            values[header] = cells
    if not values:
        return []
    for path in paths:
        _draw(path, document, values)
    return paths


def _draw(
    path: Path, document: Mapping[str, Any], values: Mapping[str, list[tuple[Any, Any]]]
) -> None:
    """Draw a panel for each column; ``values`` are the measured cell and the published value of
    each row, by the column's header.
    """
    from promptcli.plugins.analyze import pictures

    rows = document["rows"]
    measured_label = f"measured, {document['backbone']['name']}"
    blue = {"color": pictures.BLUE}
    red = {"color": pictures.RED, "linestyle": "", "markerfacecolor": "none"}
    with pictures.drawing(path, 4.0 + 3.0 * len(values), 1.9 + 0.34 * len(rows)) as figure:
        panels = figure.subplots(1, len(values), sharey=True, squeeze=False)[0]
        handle_of: dict[str, Any] = {}
        for panel, (header, cells) in zip(panels, values.items(), strict=True):
            for number, (cell, published) in enumerate(cells):
                if cell and cell["ci95"]:
                    panel.plot(cell["ci95"], [number, number], linewidth=2, **blue)
                if cell:
                    panel.plot(
                        cell["value"], number, "o", linestyle="", label=measured_label, **blue
                    )
                if published is not None:
                    published_label = f"published, {rows[number]['published']['backbone']}"
                    panel.plot(published, number, "D", label=published_label, **red)
            panel.set_yticks(range(len(rows)), [row["method"] for row in rows])
            panel.set(xlabel=header, ylim=(len(rows) - 0.5, -0.5))
            panel.grid(axis="x", alpha=0.3)
            handles, labels = panel.get_legend_handles_labels()
            handle_of |= dict(zip(labels, handles, strict=True))
        figure.legend(
            handle_of.values(), handle_of, loc="outside lower center", ncols=2, frameon=False
        )
        title = [f"{document['table']}: {document['title']}"]
        if any("other_tasks" in row["published"] for row in rows):
            title.append("The published average is of all tasks.")
        pictures.figure_title(figure, *title)
