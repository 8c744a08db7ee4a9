"""The figures of the papers, drawn by ``reproduce`` into the folder of its results."""

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from promptcli import errors
from promptcli.encoder.encoder import TorchEncoder
from promptcli.errors import NotFoundError
from promptcli.plugins.papers.contexts import Draw, MeasurementContext, analyze_each
from promptcli.plugins.papers.documents import published_value
from promptcli.plugins.papers.measures import COLUMNS
from promptcli.plugins.papers.report import backbone_stem, file_stem, heads
from promptcli.plugins.papers.systems import with_head
from promptcli.recipe import RECIPES

#: The sentence in single-sentence figures.
_SENTENCE = "A baker opens her shop before sunrise and lights the oven."
#: All pairs of STS-B, on which alignment and uniformity are compared.
_ALL_STS_B = ["STS-B:train", "STS-B:dev", "STS-B"]
#: Training-free recipes of Ditto's figure 4.
_COMPARED = (
    "last-avg",
    "first-last-avg",
    "static-avg",
    "last-ditto",
    "first-last-ditto",
    "static-ditto",
)


def can_draw() -> bool:
    """Return whether matplotlib and the plug-in ``analyze``, which draws with it, are installed."""
    plugin = importlib.util.find_spec("promptcli.plugins.analyze")
    return plugin is not None and not errors.missing_libraries("matplotlib")


def painter(folder: Path, plot: Path | None = None) -> Draw | None:
    """Return a function that draws a figure into a folder, and into ``plot``; None if drawing is
    impossible.
    """
    if not can_draw():
        return None

    def draw(what: str, context: MeasurementContext) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{what}.{backbone_stem(context.backbone_facts)}.png"
        draw_into = _FIGURES[what](context)
        for each in [path, plot] if plot else [path]:
            draw_into(each)
        return path.name

    return draw


#: Draws a measured figure into a file.
_DrawInto = Callable[[Path], None]


def _impact(context: MeasurementContext) -> _DrawInto:
    found = context.analyze("impact", _SENTENCE)
    return lambda path: found.draw(path, context.name)


def _attention(context: MeasurementContext) -> _DrawInto:
    found = context.analyze("attention", _SENTENCE, head=context.head or "")
    return lambda path: found.draw(path, context.name)


def _token_bias(states: str, embeddings: str) -> Callable[[MeasurementContext], _DrawInto]:
    def measure(context: MeasurementContext) -> _DrawInto:
        bias = context.analyze("token-bias", context.sentences, states=states)
        return lambda path: bias.draw(path, f"{context.name}, {embeddings}")

    return measure


def _uniformity(context: MeasurementContext) -> _DrawInto:
    splits = context.tasks(_ALL_STS_B)
    if splits.missing:
        raise NotFoundError(f"no data: {', '.join(splits.missing)}")
    encoders = []
    for name in _COMPARED:
        recipe = with_head(RECIPES[name], context).replace(backbone=context.backbone.name)
        encoders.append(TorchEncoder(recipe, context.backbone, {}))
    found = analyze_each("uniformity", encoders, _ALL_STS_B, data_dir=context.data_dir)
    title = f"{context.name}, {' + '.join(_ALL_STS_B)}"
    return lambda path: found[0].draw(path, dict(zip(_COMPARED, found, strict=True)), title)


#: By the names of figures' rows in the published tables.
_FIGURES: dict[str, Callable[[MeasurementContext], _DrawInto]] = {
    "impact": _impact,
    "attention": _attention,
    "uniformity": _uniformity,
    "token-bias": _token_bias("static", "word embeddings"),
    "token-bias-output": _token_bias("mlm-head", "output embeddings"),
}


def draw_numbers(folder: Path, document: Mapping[str, Any], plot: Path | None = None) -> list[Path]:
    """Draw a table that is a figure in the paper into a folder, and any table into ``plot``; return
    the files.

    Nothing is drawn for a table without numbers, or without matplotlib.
    """
    paths = [plot] if plot else []
    if "/figure-" in document["table"] and can_draw():
        paths.append(folder / f"{file_stem(document)}.png")
    return [path for path in paths if draw_table(path, document)]


def draw_table(path: Path, document: Mapping[str, Any]) -> bool:
    """Draw a table's measured and published numbers side by side; return whether it has any.

    A column without numbers has no panel.
    """
    from promptcli.plugins.analyze import pictures

    rows = document["rows"]
    values: dict[str, list[tuple[Any, Any]]] = {}
    for column, head in zip(document["columns"], heads(document), strict=True):
        cells = [
            (row["figures"].get(column), published_value(row["published"], column)) for row in rows
        ]
        if COLUMNS[column].decimals is not None and any(map(any, cells)):
            values[head] = cells
    if not values:
        return False
    measured = f"measured, {document['backbone']['name']}"
    blue = {"color": pictures.COLOURS.blue}
    red = {"color": pictures.COLOURS.red, "linestyle": "", "markerfacecolor": "none"}
    with pictures.drawing(path, 4.0 + 3.0 * len(values), 1.9 + 0.34 * len(rows)) as figure:
        panels = figure.subplots(1, len(values), sharey=True, squeeze=False)[0]
        for panel, (head, cells) in zip(panels, values.items(), strict=True):
            for place, (cell, published) in enumerate(cells):
                if cell and cell["ci95"]:
                    panel.plot(cell["ci95"], [place, place], linewidth=2, **blue)
                if cell:
                    panel.plot(cell["value"], place, "o", linestyle="", label=measured, **blue)
                if published is not None:
                    label = f"published, {rows[place]['published']['backbone']}"
                    panel.plot(published, place, "D", label=label, **red)
            panel.set_yticks(range(len(rows)), [row["method"] for row in rows])
            panel.set(xlabel=head, ylim=(len(rows) - 0.5, -0.5))
            panel.grid(axis="x", alpha=0.3)
        handles, names = panels[0].get_legend_handles_labels()
        kinds = dict(zip(names, handles, strict=True))
        figure.legend(kinds.values(), kinds, loc="outside lower center", ncols=2, frameon=False)
        title = [f"{document['table']}: {document['title']}"]
        if any("other_tasks" in row["published"] for row in rows):
            title.append("The published average is of all tasks.")
        pictures.figure_title(figure, *title)
    return True
