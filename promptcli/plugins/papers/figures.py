"""The figures of the papers, drawn by ``reproduce`` into the folder of its results."""

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from promptcli import errors
from promptcli.encoder.encoder import make_encoder
from promptcli.errors import NotFoundError
from promptcli.plugins.papers.analyses import analyze_backbone, analyze_each
from promptcli.plugins.papers.contexts import Draw, MeasurementContext
from promptcli.plugins.papers.measures import COLUMNS
from promptcli.plugins.papers.report import backbone_stem, file_stem, heads, published_value
from promptcli.plugins.papers.systems import with_head
from promptcli.recipe import RECIPES

#: The sentence of figures of one sentence.
_SENTENCE = "A baker opens her shop before sunrise and lights the oven."
#: All pairs of STS-B, on which alignment and uniformity are compared.
_ALL_STS_B = ["STS-B:train", "STS-B:dev", "STS-B"]
#: Recipes of Ditto's figure 4, those that need no training.
_COMPARED = (
    "last-avg",
    "first-last-avg",
    "static-avg",
    "last-ditto",
    "first-last-ditto",
    "static-ditto",
)


def can_draw() -> bool:
    """Return whether there is matplotlib, and the plug-in ``analyze``, which draws by it."""
    plugin = importlib.util.find_spec("promptcli.plugins.analyze")
    return plugin is not None and not errors.missing_libraries("matplotlib")


def painter(folder: Path, plot: Path | None = None) -> Draw | None:
    """Return what draws a figure into a folder, and into ``plot``; None if nothing can draw."""
    if not can_draw():
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
    found = analyze_backbone("impact", context, _SENTENCE)
    found.draw(path, context.backbone_facts["name"])


def _attention(path: Path, context: MeasurementContext) -> None:
    found = analyze_backbone("attention", context, _SENTENCE, head=context.head or "")
    found.draw(path, context.backbone_facts["name"])


def _token_bias(states: str, embeddings: str) -> Callable[[Path, MeasurementContext], None]:
    def draw(path: Path, context: MeasurementContext) -> None:
        bias = analyze_backbone("token-bias", context, context.sentences, states=states)
        bias.draw(path, f"{context.backbone_facts['name']}, {embeddings}")

    return draw


def _uniformity(path: Path, context: MeasurementContext) -> None:
    splits = context.tasks(_ALL_STS_B)
    if splits.missing:
        raise NotFoundError(f"no data: {', '.join(splits.missing)}")
    encoders = []
    for name in _COMPARED:
        recipe = with_head(RECIPES[name], context).replace(backbone=context.backbone.name)
        encoders.append(make_encoder(recipe, context.backbone, {}))
    found = analyze_each("uniformity", encoders, _ALL_STS_B, data_dir=context.data_dir)
    title = f"{context.backbone_facts['name']}, {' + '.join(_ALL_STS_B)}"
    found[0].draw(path, dict(zip(_COMPARED, found, strict=True)), title)


#: By the names that rows of figures have in the published tables.
_FIGURES: dict[str, Callable[[Path, MeasurementContext], None]] = {
    "impact": _impact,
    "attention": _attention,
    "uniformity": _uniformity,
    "token-bias": _token_bias("static", "word embeddings"),
    "token-bias-output": _token_bias("mlm-head", "output embeddings"),
}


def draw_numbers(folder: Path, document: Mapping[str, Any]) -> Path | None:
    """Draw a figure that has numbers, measured beside published; return its file.

    None if the document is of a table, holds no number, or matplotlib is not installed.
    """
    if "/figure-" not in document["table"] or not can_draw():
        return None
    path = folder / f"{file_stem(document)}.png"
    return path if draw_table(path, document) else None


def draw_table(path: Path, document: Mapping[str, Any]) -> bool:
    """Draw the numbers of a table, measured beside published; return whether it has any.

    A column without a number has no panel.
    """
    from promptcli.plugins.analyze import pictures

    rows = document["rows"]
    columns = []
    for name in document["columns"]:
        if COLUMNS[name].decimals is not None and any(_has_number(row, name) for row in rows):
            columns.append(name)
    if not columns:
        return False
    shown = dict(zip(document["columns"], heads(document), strict=True))
    with pictures.drawing(path, 4.0 + 3.0 * len(columns), 1.9 + 0.34 * len(rows)) as figure:
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
        pictures.figure_title(figure, *title)
    return True


def _has_number(row: Mapping[str, Any], column: str) -> bool:
    return column in row["figures"] or published_value(row["published"], column) is not None


def _draw_row(
    panel: Any,
    place: int,
    row: Mapping[str, Any],
    column: str,
    backbone: Mapping[str, Any] | None,
) -> None:
    """Draw the measured value with its interval, and the published one."""
    from promptcli.plugins.analyze.pictures import COLOURS

    measured = row["figures"].get(column)
    if measured is not None:
        if measured["ci95"]:
            panel.plot(measured["ci95"], [place, place], color=COLOURS.blue, linewidth=2)
        label = f"measured, {backbone['name']}" if backbone else "measured"
        panel.plot(measured["value"], place, "o", color=COLOURS.blue, linestyle="", label=label)
    published = published_value(row["published"], column)
    if published is not None:
        label = f"published, {row['published']['backbone']}"
        style = {"color": COLOURS.red, "linestyle": "", "markerfacecolor": "none"}
        panel.plot(published, place, "D", label=label, **style)
