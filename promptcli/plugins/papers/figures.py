"""The figures of the papers, drawn by ``reproduce`` into the folder of its results."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from promptcli import RECIPES, NotFoundError
from promptcli.extending import (
    ALL_STS_B,
    BLUE,
    EMBEDDINGS,
    RED,
    SENTENCE,
    attention,
    draw_attention,
    draw_impact,
    draw_token_bias,
    draw_uniformity,
    drawing,
    figure_title,
    impact,
    make_encoder,
    measure_uniformity,
    missing_libraries,
    token_bias,
)
from promptcli.plugins.papers.contexts import Draw, MeasurementContext
from promptcli.plugins.papers.measures import COLUMNS
from promptcli.plugins.papers.report import backbone_stem, file_stem, heads, published_value
from promptcli.plugins.papers.systems import with_head

#: Recipes of Ditto's figure 4, those that need no training.
_COMPARED = (
    "last-avg",
    "first-last-avg",
    "static-avg",
    "last-ditto",
    "first-last-ditto",
    "static-ditto",
)


def painter(folder: Path, plot: Path | None = None) -> Draw | None:
    """Return what draws a figure into a folder, and into ``plot``; None without matplotlib."""
    if missing_libraries("matplotlib"):
        return None

    def draw(what: str, context: MeasurementContext) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{what}.{backbone_stem(context.backbone_facts)}.png"
        _FIGURES[what](path, context)
        if plot is not None:
            _FIGURES[what](plot, context)
        return path.name

    return draw


def _impact(path: Path, context: MeasurementContext) -> None:
    found = impact(context.backbone, SENTENCE)
    draw_impact(path, found, context.backbone_facts["name"])


def _attention(path: Path, context: MeasurementContext) -> None:
    found = attention(context.backbone, SENTENCE, head=context.head or "")
    draw_attention(path, found, context.backbone_facts["name"])


def _token_bias(states: str) -> Callable[[Path, MeasurementContext], None]:
    def draw(path: Path, context: MeasurementContext) -> None:
        bias = token_bias(context.backbone, context.sentences, states=states)
        title = f"{context.backbone_facts['name']}, {EMBEDDINGS[states]}"
        draw_token_bias(path, bias, title)

    return draw


def _uniformity(path: Path, context: MeasurementContext) -> None:
    splits = context.tasks(ALL_STS_B)
    if splits.missing:
        raise NotFoundError(f"no data: {', '.join(splits.missing)}")
    encoders = []
    for name in _COMPARED:
        recipe = with_head(RECIPES[name], context).replace(backbone=context.backbone.name)
        encoders.append(make_encoder(recipe, context.backbone, {}))
    found = measure_uniformity(encoders, splits.content)
    title = f"{context.backbone_facts['name']}, {' + '.join(ALL_STS_B)}"
    draw_uniformity(path, dict(zip(_COMPARED, found, strict=True)), title)


#: By the names that rows of figures have in the published tables.
_FIGURES: dict[str, Callable[[Path, MeasurementContext], None]] = {
    "impact": _impact,
    "attention": _attention,
    "uniformity": _uniformity,
    "token-bias": _token_bias("static"),
    "token-bias-output": _token_bias("mlm-head"),
}


def draw_numbers(folder: Path, document: Mapping[str, Any]) -> Path | None:
    """Draw a figure that has numbers, measured beside published; return its file.

    None if the document is of a table, holds no number, or matplotlib is not installed.
    """
    if "/figure-" not in document["table"] or missing_libraries("matplotlib"):
        return None
    path = folder / f"{file_stem(document)}.png"
    return path if draw_table(path, document) else None


def draw_table(path: Path, document: Mapping[str, Any]) -> bool:
    """Draw the numbers of a table, measured beside published; return whether it has any."""
    columns = []
    for name in document["columns"]:
        if COLUMNS[name].decimals is not None:
            columns.append(name)
    if not columns:
        return False
    shown = dict(zip(document["columns"], heads(document), strict=True))
    rows = document["rows"]
    with drawing(path, 4.0 + 3.0 * len(columns), 1.9 + 0.34 * len(rows)) as figure:
        panels = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
        for panel, column in zip(panels, columns, strict=True):
            for place, row in enumerate(rows):
                _draw_row(panel, place, row, column, document["backbone"])
            panel.set_yticks(range(len(rows)), [row["method"] for row in rows])
            panel.set_ylim(len(rows) - 0.5, -0.5)
            panel.set_xlabel(shown[column])
            panel.grid(axis="x", alpha=0.3)
        handles, names = panels[0].get_legend_handles_labels()
        kinds = dict(zip(names, handles, strict=True))
        figure.legend(
            list(kinds.values()), list(kinds), loc="outside lower center", ncols=2, frameon=False
        )
        title = [f"{document['table']}: {document['title']}"]
        if any("other_tasks" in row["published"] for row in rows):
            title.append("The published average is of all tasks.")
        figure_title(figure, *title)
    return True


def _draw_row(
    panel: Any,
    place: int,
    row: Mapping[str, Any],
    column: str,
    backbone: Mapping[str, Any] | None,
) -> None:
    """Draw the measured value with its interval, and the published one."""
    measured = row["figures"].get(column)
    if measured is not None:
        if measured["ci95"]:
            panel.plot(measured["ci95"], [place, place], color=BLUE, linewidth=2)
        label = f"measured, {backbone['name']}" if backbone else "measured"
        panel.plot(measured["value"], place, "o", color=BLUE, linestyle="", label=label)
    published = published_value(row["published"], column)
    if published is not None:
        label = f"published, {row['published']['backbone']}"
        style = {"color": RED, "linestyle": "", "markerfacecolor": "none"}
        panel.plot(published, place, "D", label=label, **style)
