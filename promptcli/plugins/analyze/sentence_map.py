"""Maps of sentences: a plane in which near vectors are near, drawn as a picture or as a page whose
points show their sentences.
"""

import html
import textwrap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptcli import errors, notes
from promptcli.data.cells import scale_value
from promptcli.encoder.encoder import TorchEncoder, encode_together
from promptcli.errors import UsageError
from promptcli.evaluation.statistics import Doubles
from promptcli.plugins.analyze import pictures
from promptcli.plugins.analyze.geometry import unit_float64
from promptcli.storage import files

#: Most sentences for measuring trustworthiness, which needs all distances among them.
_MOST_TRUSTED = 2000
#: Neighbours that count for trustworthiness.
_NEIGHBOURS = 5
#: Principal components that t-SNE reads.
_COMPONENTS = 50
#: Neighbours that t-SNE (as perplexity) and UMAP keep near.
_PERPLEXITY = 30
_NEAR = 15


@dataclass(frozen=True)
class SentenceMap:
    """Sentences in a plane."""

    method: str  #: ``PCA``, ``t-SNE`` or ``UMAP``
    points: Doubles  #: (n, 2)
    #: 0 to 1: are the five nearest in the plane near in the model (Venna and Kaski, 2001)
    trustworthiness: float
    sentences: list[str]
    #: each sentence's value in the column, "" if missing; None without a column
    values: list[str] | None
    truncated: int  #: sentences whose end was cut: longer than the model's input


def map_sentences(
    encoders: Sequence[TorchEncoder],
    sentences: Sequence[str],
    *,
    method: str,
    first: int,
    seed: int,
    values: Sequence[str] | None = None,
) -> list[SentenceMap]:
    """Return each encoder's map of the first sentences; empty ones are left out.

    ``values`` are one value of a column for each sentence.
    """
    layout = errors.look_up("method", method, METHODS)
    errors.require(*layout.needs, extra="map")
    rows = [row for row, sentence in enumerate(sentences) if sentence.strip()][:first]
    kept = [sentences[row] for row in rows]
    if len(kept) < 3:
        raise UsageError(f"a map needs at least 3 sentences, but there are {len(kept)}")
    kept_values = None
    if values is not None:
        kept_values = [values[row] for row in rows]
    maps = []
    with notes.stage("map", len(encoders) * len(kept)) as advance:
        for encoded in encode_together(encoders, kept, progress=advance):
            directions = _directions(encoded.vectors)
            points = layout.place(directions, seed).astype(np.float64)
            cut = int(encoded.truncated.sum())
            trust = _trustworthiness(directions, points)
            maps.append(SentenceMap(layout.name, points, trust, kept, kept_values, cut))
    return maps


def _directions(vectors: NDArray[np.floating]) -> Doubles:
    """Return unit vectors: only the angle between two sentences counts."""
    directions = unit_float64(vectors)
    if np.ptp(directions, axis=0).max() < 1e-9:
        raise UsageError("all sentences have the same vector; a map needs sentences that differ")
    return directions


def _pca(directions: Doubles, seed: int) -> Doubles:
    from sklearn.decomposition import PCA

    points: Doubles = PCA(2, random_state=seed).fit_transform(directions)
    return points


def _tsne(directions: Doubles, seed: int) -> Doubles:
    """Lay out by t-SNE (van der Maaten and Hinton, 2008), initialised with principal components."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    count, width = directions.shape
    kept = min(_COMPONENTS, count, width)
    components = PCA(kept, random_state=seed).fit_transform(directions)
    perplexity = min(_PERPLEXITY, (count - 1) / 3)
    tsne = TSNE(perplexity=perplexity, init="pca", random_state=seed)
    points: Doubles = tsne.fit_transform(components)
    return points


def _umap(directions: Doubles, seed: int) -> Doubles:
    """Lay out by UMAP (McInnes, Healy and Melville, 2018)."""
    from umap import UMAP

    count = len(directions)
    # a spectral start needs more sentences than dimensions
    start = "spectral" if count > _NEAR else "random"
    umap = UMAP(
        n_neighbors=min(_NEAR, count - 1), init=start, random_state=seed, n_jobs=1, metric="cosine"
    )
    points: Doubles = umap.fit_transform(directions)
    return points


@dataclass(frozen=True)
class Layout:
    """A layout method."""

    name: str  #: name in print
    needs: tuple[str, ...]  #: libraries
    #: places unit vectors (n, d) in a plane (n, 2), by a seed
    place: Callable[[Doubles, int], Doubles]


#: By the names that the setting ``method`` takes.
METHODS: dict[str, Layout] = {
    "pca": Layout("PCA", ("sklearn",), _pca),
    "tsne": Layout("t-SNE", ("sklearn",), _tsne),
    "umap": Layout("UMAP", ("sklearn", "umap"), _umap),
}


def _trustworthiness(directions: Doubles, points: Doubles) -> float:
    from sklearn.manifold import trustworthiness

    count = len(points)
    sample = np.unique(np.linspace(0, count - 1, min(count, _MOST_TRUSTED)).astype(np.int64))
    neighbours = min(_NEIGHBOURS, (len(sample) - 1) // 2)
    return float(trustworthiness(directions[sample], points[sample], n_neighbors=neighbours))


#: Number of classes with their own colour and mark; more would be indistinguishable.
MOST_CLASSES = len(pictures.COLOURS)
#: Name of the sentences without a value.
_NONE = "no value"
#: Longest class name; longer ones are cut.
_CLASS = 30
#: Marks of the page, in the order of ``MARKERS``.
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star")
#: Above this number of points the page draws with WebGL.
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
        """Whether the group is drawn below the others."""
        return self.colour == pictures.COLOURS.grey


def groups_of(values: Sequence[str] | None, count: int) -> list[Group]:
    """Return the groups of points: one group, a scale of their numbers, or one group per class.

    The most frequent classes come first and have colours; all others are grey. If there are many
    classes, a class with a single point is also grey.
    """
    if values is None:
        return [Group("", list(range(count)), pictures.COLOURS.blue, 0)]
    rows_of = defaultdict[str, list[int]](list)
    for row, value in enumerate(values):
        rows_of[value.strip()].append(row)
    missing = rows_of.pop("", [])
    groups = []
    numbers = list[float]()
    for value, rows in rows_of.items():
        number = scale_value(value)
        if number is not None:
            numbers += [number] * len(rows)
    if len(rows_of) > MOST_CLASSES and len(numbers) == len(values) - len(missing):
        groups.append(Group("", list(chain(*rows_of.values())), "", 0, numbers))
        rows_of.clear()
    classes = sorted(rows_of, key=lambda value: -len(rows_of[value]))  # on ties the first
    if len(classes) > MOST_CLASSES:
        classes = [value for value in classes[:MOST_CLASSES] if len(rows_of[value]) > 1]
    for number, value in enumerate(classes):
        rows = rows_of.pop(value)
        name = textwrap.shorten(value, _CLASS, placeholder="…") or value[:_CLASS]
        groups.append(Group(f"{name} ({len(rows):,})", rows, pictures.COLOURS[number], number))
    grey = pictures.COLOURS.grey
    if rows_of:
        rows = list(chain(*rows_of.values()))
        name = f"{len(rows_of):,} {'others' if classes else 'values'} ({len(rows):,})"
        groups.append(Group(name, rows, grey, 0))
    if missing:
        last = len(pictures.MARKERS) - 1
        groups.append(Group(f"{_NONE} ({len(missing):,})", missing, grey, last))
    return groups


def draw_map(path: Path, maps: Mapping[str, SentenceMap], column: str | None) -> None:
    """Draw one panel per model into a picture, or into a page if the name ends in ``.html``."""
    if path.suffix == ".html":
        files.write_text(path, map_page(maps, column))
    else:
        _draw_picture(path, maps, column)


def describe(name: str, plane: SentenceMap) -> str:
    """Return the title of a map."""
    return (
        f"{name}: {len(plane.points):,} sentences by {plane.method}, trustworthiness"
        f" {plane.trustworthiness:.2f}"
    )


def _draw_picture(path: Path, maps: Mapping[str, SentenceMap], column: str | None) -> None:
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


def map_page(maps: Mapping[str, SentenceMap], column: str | None) -> str:
    """Return a self-contained page whose points show their sentences and values."""
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


def _trace(plane: SentenceMap, group: Group, column: str | None) -> dict[str, Any]:
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
    """Return a text escaped for plotly, which interprets tags, including links."""
    return html.escape(text, quote=False)
