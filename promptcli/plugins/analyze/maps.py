"""Maps of sentences: a picture, or a page whose points show their sentences."""

import html
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.data.cells import scale_value
from promptcli.plugins.analyze import pictures
from promptcli.storage import files

if TYPE_CHECKING:
    from promptcli.plugins.analyze.sentence_map import SentenceMap

#: Classes with their own colour and mark; more could not be distinguished.
MOST_CLASSES = len(pictures.COLOURS)
#: Name of the sentences without a value.
_NONE = "no value"
#: Longer names of classes are cut.
_CLASS = 30
#: Marks of the page, in the order of ``MARKERS``.
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star")
#: Above this number of points the page draws by WebGL.
_MOST_SVG = 5000
#: The buttons of the page: none of them sends anything.
_BUTTONS = ["toImage", "pan2d", "zoom2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]
_CONFIG = {"displaylogo": False, "modeBarButtons": [_BUTTONS], "responsive": True}
#: A sentence on the page: characters of a line, and lines.
_LINE = 80
_LINES = 12


@dataclass(frozen=True)
class Group:
    """Points that are drawn in the same style."""

    name: str  #: "" if there is only one group
    rows: list[int]
    colour: str
    mark: int  #: number of a mark
    numbers: list[float] | None = None  #: value of each point, of a scale of colours

    @property
    def is_grey(self) -> bool:
        """Whether it is drawn below the others."""
        return self.colour == pictures.COLOURS.grey


def groups_of(values: Sequence[str] | None, count: int) -> list[Group]:
    """Return how points are coloured: all the same, by their numbers on a scale, or by their class.

    The most frequent classes have colours, and come first; all others are grey. So is, among many
    classes, one of a single point.
    """
    if values is None:
        return [Group("", list(range(count)), pictures.COLOURS.blue, 0)]
    rows_of: dict[str, list[int]] = {}
    for row, value in enumerate(values):
        rows_of.setdefault(value.strip(), []).append(row)
    missing = rows_of.pop("", [])
    classes = sorted(rows_of, key=lambda value: -len(rows_of[value]))  # of equals the first
    groups = []
    if len(classes) > MOST_CLASSES:
        numbers = [(scale_value(value), rows) for value, rows in rows_of.items()]
        points = [(number, row) for number, rows in numbers for row in rows if number is not None]
        if len(points) == len(values) - len(missing):
            scale, rows = map(list, zip(*points, strict=True))
            groups.append(Group("", rows, "", 0, scale))
            rows_of = {}
        classes = [value for value in classes[:MOST_CLASSES] if len(rows_of.get(value, ())) > 1]
    for number, value in enumerate(classes):
        rows = rows_of.pop(value)
        name = textwrap.shorten(value, _CLASS, placeholder="…") or value[:_CLASS]
        groups.append(Group(f"{name} ({len(rows):,})", rows, pictures.COLOURS[number], number))
    grey = pictures.COLOURS.grey
    if rows_of:
        rows = [row for rows in rows_of.values() for row in rows]
        name = f"{len(rows_of):,} {'others' if classes else 'values'} ({len(rows):,})"
        groups.append(Group(name, rows, grey, 0))
    if missing:
        last = len(pictures.MARKERS) - 1
        groups.append(Group(f"{_NONE} ({len(missing):,})", missing, grey, last))
    return groups


def draw_map(path: Path, maps: "Mapping[str, SentenceMap]", column: str | None) -> None:
    """Draw a panel for each model, into a picture or, by the name ``.html``, a page."""
    if path.suffix == ".html":
        files.write_text(path, map_page(maps, column))
    else:
        _draw_picture(path, maps, column)


def describe(name: str, plane: "SentenceMap") -> str:
    """Return the title of a map."""
    return (
        f"{name}: {len(plane.points):,} sentences by {plane.method}, trustworthiness"
        f" {plane.trustworthiness:.2f}"
    )


def _draw_picture(path: Path, maps: "Mapping[str, SentenceMap]", column: str | None) -> None:
    with pictures.drawing(path, 5.4 * len(maps) + 1.8, 5.2) as figure:
        panels = figure.subplots(1, len(maps), squeeze=False)[0]
        scale = None
        for panel, (name, plane) in zip(panels, maps.items(), strict=True):
            style: dict[str, Any] = {
                "s": min(max(30_000 / len(plane.points), 12), 45),
                "linewidths": 0,
                "alpha": 0.75,
                "rasterized": True,
            }
            for group in groups_of(plane.values, len(plane.points)):
                if group.numbers is None:
                    colours: dict[str, Any] = {"color": group.colour, "label": group.name}
                else:
                    colours = {"c": group.numbers, "cmap": "cividis"}
                drawn = panel.scatter(
                    *plane.points[group.rows].T,
                    marker=pictures.MARKERS[group.mark],
                    zorder=1 if group.is_grey else 2,
                    **style,
                    **colours,
                )
                scale = scale if group.numbers is None else drawn
            panel.set(xticks=[], yticks=[])
            panel.set_title(describe(name, plane), fontsize="medium")
        if scale is not None:
            figure.colorbar(scale, ax=panel, label=column)
        handles, names = panels[0].get_legend_handles_labels()
        if names:
            figure.legend(handles, names, title=column, loc="outside right upper", frameon=False)


def map_page(maps: "Mapping[str, SentenceMap]", column: str | None) -> str:
    """Return a page that needs no network: a point shows its sentence, and its value."""
    from plotly import graph_objects
    from plotly.subplots import make_subplots

    titles = [describe(name, plane) for name, plane in maps.items()]
    figure = make_subplots(1, len(maps), subplot_titles=[_escape(title) for title in titles])
    for number, plane in enumerate(maps.values(), 1):
        kind = graph_objects.Scatter
        if len(plane.points) > _MOST_SVG:
            kind = graph_objects.Scattergl
        groups = groups_of(plane.values, len(plane.points))
        for group in sorted(groups, key=lambda group: not group.is_grey):
            trace = kind(**_trace(plane, group, column))
            trace.showlegend = bool(group.name) and number == 1
            trace.legendgroup = group.name
            trace.legendrank = groups.index(group) + 1
            figure.add_trace(trace, row=1, col=number)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    figure.update_layout(
        legend={"title": _escape(column or "")},
        template="plotly_white",
        hoverlabel={"align": "left", "bgcolor": "white"},
        hovermode="closest",
        autosize=True,
        height=760,
    )
    body = figure.to_html(config=_CONFIG, full_html=False, include_plotlyjs=True, div_id="map")
    title = html.escape("; ".join(titles))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"</head>\n<body>{body}</body></html>\n"
    )


def _trace(plane: "SentenceMap", group: Group, column: str | None) -> dict[str, Any]:
    """Return the points of a group as plotly takes them."""
    texts = []
    for row in group.rows:
        lines = textwrap.wrap(plane.sentences[row], _LINE, max_lines=_LINES, placeholder=" …")
        if plane.values is not None:
            lines.append(f"{column}: {plane.values[row] or _NONE}")
        texts.append("<br>".join(map(_escape, lines)))
    marker: dict[str, Any] = {"symbol": _SYMBOLS[group.mark], "size": 8, "opacity": 0.75}
    if group.numbers is None:
        marker["color"] = group.colour
    else:
        bar = {"title": _escape(column or "")}
        marker |= {"color": group.numbers, "colorscale": "Cividis", "colorbar": bar}
    points = plane.points[group.rows].round(4)
    return {
        "x": points[:, 0].tolist(),
        "y": points[:, 1].tolist(),
        "mode": "markers",
        "name": _escape(group.name),
        "marker": marker,
        "hovertext": texts,
        "hoverinfo": "text",
    }


def _escape(text: str) -> str:
    """Return a text as plotly shows it; it reads tags, links among them."""
    return html.escape(text, quote=False)
