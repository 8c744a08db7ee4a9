"""Maps of sentences: a plane in which similar sentences are close together, drawn as a picture or
as an HTML page whose points show their sentences.
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

from promptcli import errors, notes
from promptcli.data.cells import scale_value
from promptcli.encoder.encoder import TorchEncoder, encode_together
from promptcli.errors import UsageError
from promptcli.evaluation.statistics import Doubles
from promptcli.plugins.analyze import pictures
from promptcli.plugins.analyze.geometry import unit_float64
from promptcli.storage import files

#: Trustworthiness needs the distances among all its sentences, so a larger map is sampled.
_MAX_TRUSTWORTHINESS_SENTENCES = 2000
_TRUSTWORTHINESS_NEIGHBOURS = 5
_TSNE_COMPONENTS = 50  #: t-SNE reads this number of principal components
_TSNE_PERPLEXITY = 30
_UMAP_NEIGHBOURS = 15


@dataclass(frozen=True)
class SentenceMap:
    """The positions of sentences in a plane."""

    method: str  #: ``PCA``, ``t-SNE`` or ``UMAP``
    points: Doubles  #: (n, 2)
    #: 0 to 1: whether a sentence's five neighbours in the plane are also its neighbours in the
    #: model (Venna and Kaski, 2001)
    trustworthiness: float
    sentences: list[str]
    #: each sentence's value in the column, "" if it is missing; None without a column
    values: list[str] | None
    truncated: int  #: number of sentences that were cut to the model's longest input


def map_sentences(
    encoders: Sequence[TorchEncoder],
    sentences: Sequence[str],
    *,
    method: str,
    first: int,
    seed: int,
    values: Sequence[str] | None = None,
) -> list[SentenceMap]:
    """Return each encoder's map of the ``first`` sentences that are not empty.

    ``values`` has the value of a column for each sentence.
    """
    layout = errors.look_up("method", method, METHODS)
    errors.require_libraries(*layout.libraries, extra="map")
    places = [place for place, sentence in enumerate(sentences) if sentence.strip()][:first]
    if len(places) < 3:
        raise UsageError(f"a map needs at least 3 sentences, but there are {len(places)}")
    sentences = [sentences[place] for place in places]
    if values is not None:
        values = [values[place] for place in places]
    maps = []
    with notes.stage("map", len(encoders) * len(sentences)) as advance:
        for encoded in encode_together(encoders, sentences, progress=advance):
            directions = unit_float64(encoded.vectors)  # only the angle of two sentences counts
            if np.ptp(directions, axis=0).max() < 1e-9:
                raise UsageError(
                    "all sentences have the same vector; a map needs sentences that differ"
                )
            points = layout.place(directions, seed).astype(np.float64)
            trust = _trustworthiness(directions, points)
            cut = int(encoded.truncated.sum())
            maps.append(SentenceMap(layout.name, points, trust, sentences, values, cut))
    return maps


def _pca(directions: Doubles, seed: int) -> Doubles:
    from sklearn.decomposition import PCA

    points: Doubles = PCA(2, random_state=seed).fit_transform(directions)
    return points


def _tsne(directions: Doubles, seed: int) -> Doubles:
    """Place by t-SNE (van der Maaten and Hinton, 2008), initialised with principal components."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    count, width = directions.shape
    component_count = min(_TSNE_COMPONENTS, count, width)
    components = PCA(component_count, random_state=seed).fit_transform(directions)
    perplexity = min(_TSNE_PERPLEXITY, (count - 1) / 3)
    tsne = TSNE(perplexity=perplexity, init="pca", random_state=seed)
    points: Doubles = tsne.fit_transform(components)
    return points


def _umap(directions: Doubles, seed: int) -> Doubles:
    """Place by UMAP (McInnes, Healy and Melville, 2018)."""
    from umap import UMAP

    count = len(directions)
    umap = UMAP(
        n_neighbors=min(_UMAP_NEIGHBOURS, count - 1),
        # a spectral layout needs more sentences than dimensions
        init="spectral" if count > _UMAP_NEIGHBOURS else "random",
        random_state=seed,
        n_jobs=1,
        metric="cosine",
    )
    points: Doubles = umap.fit_transform(directions)
    return points


@dataclass(frozen=True)
class Layout:
    """A method that places vectors in a plane."""

    name: str  #: in titles
    libraries: tuple[str, ...]  #: the Python packages that it needs
    #: takes unit vectors (n, d) and a seed, and returns points (n, 2)
    place: Callable[[Doubles, int], Doubles]


#: By the values of the setting ``method``.
METHODS: dict[str, Layout] = {
    "pca": Layout("PCA", ("sklearn",), _pca),
    "tsne": Layout("t-SNE", ("sklearn",), _tsne),
    "umap": Layout("UMAP", ("sklearn", "umap"), _umap),
}


def _trustworthiness(directions: Doubles, points: Doubles) -> float:
    from sklearn.manifold import trustworthiness

    count = min(len(points), _MAX_TRUSTWORTHINESS_SENTENCES)
    sample = np.unique(np.linspace(0, len(points) - 1, count).astype(np.int64))
    neighbours = min(_TRUSTWORTHINESS_NEIGHBOURS, (len(sample) - 1) // 2)
    return float(trustworthiness(directions[sample], points[sample], n_neighbors=neighbours))


#: Number of classes that get their own colour and mark; readers could not distinguish more.
MAX_CLASSES = len(pictures.COLOURS)
_NO_VALUE = "no value"  #: name of the sentences without a value
_MAX_NAME_CHARACTERS = 30  #: a longer name of a class is cut
#: plotly's names of ``MARKERS``, in the same order
_PLOTLY_MARKERS = (
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "triangle-down",
    "cross",
    "x",
    "star",
)
_MAX_SVG_POINTS = 5000  #: above it the page draws with WebGL
#: The buttons of the page; none of them sends data.
_BUTTONS = ["toImage", "pan2d", "zoom2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]
_PLOTLY_SETTINGS = {"displaylogo": False, "modeBarButtons": [_BUTTONS], "responsive": True}
_LINE_CHARACTERS = 80  #: of a sentence on the page
_MAX_LINES = 12  #: of a sentence on the page


@dataclass(frozen=True)
class Group:
    """Points that are drawn in the same style."""

    name: str  #: "" if there is only one group
    rows: list[int]  #: of the group's sentences
    colour: str  #: "" if each point has a colour of the scale
    mark: int  #: row of ``MARKERS``
    numbers: list[float] | None = None  #: value of each point on the scale of colours

    @property
    def is_grey(self) -> bool:
        """Whether the group has no colour; it is then drawn below the others."""
        return self.colour == pictures.GREY


def groups_of(values: Sequence[str] | None, count: int) -> list[Group]:
    """Return the groups of ``count`` points.

    Without values there is one group. Many different numbers are one group with a scale of colours.
    Otherwise each class is a group: the most frequent classes come first and have colours, and the
    others share a grey group, as do classes of a single point if there are many classes.
    """
    if values is None:
        return [Group("", list(range(count)), pictures.BLUE, 0)]
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
    if len(rows_of) > MAX_CLASSES and len(numbers) == len(values) - len(missing):
        groups.append(Group("", list(chain(*rows_of.values())), "", 0, numbers))
        rows_of.clear()
    # a stable sort: of two equally frequent classes, the one that appears first
    classes = sorted(rows_of, key=lambda value: -len(rows_of[value]))
    if len(classes) > MAX_CLASSES:
        classes = [value for value in classes[:MAX_CLASSES] if len(rows_of[value]) > 1]
    for number, value in enumerate(classes):
        rows = rows_of.pop(value)
        name = (
            textwrap.shorten(value, _MAX_NAME_CHARACTERS, placeholder="…")
            or value[:_MAX_NAME_CHARACTERS]
        )
        groups.append(Group(f"{name} ({len(rows):,})", rows, pictures.COLOURS[number], number))
    if rows_of:
        rows = list(chain(*rows_of.values()))
        name = f"{len(rows_of):,} {'others' if classes else 'values'} ({len(rows):,})"
        groups.append(Group(name, rows, pictures.GREY, 0))
    if missing:
        last = len(pictures.MARKERS) - 1
        groups.append(Group(f"{_NO_VALUE} ({len(missing):,})", missing, pictures.GREY, last))
    return groups


def map_title(name: str, plane: SentenceMap) -> str:
    """Return the title of a model's map."""
    return (
        f"{name}: {len(plane.points):,} sentences by {plane.method}, trustworthiness"
        f" {plane.trustworthiness:.2f}"
    )


def draw_map(path: Path, maps: Mapping[str, SentenceMap], column: str | None) -> None:
    """Draw one panel per model into a picture, or into a page if the name ends in ``.html``.

    ``column`` is the name of the values.
    """
    if path.suffix == ".html":
        files.write_text(path, map_page(maps, column))
        return
    with pictures.drawing(path, 5.4 * len(maps) + 1.8, 5.2) as figure:
        panels = figure.subplots(1, len(maps), squeeze=False)[0]
        scale = None
        for panel, (name, plane) in zip(panels, maps.items(), strict=True):
            for group in groups_of(plane.values, len(plane.points)):
                colours: dict[str, Any] = {"color": group.colour}
                if group.numbers is not None:
                    colours = {"c": group.numbers, "cmap": "cividis"}
                points = panel.scatter(
                    *plane.points[group.rows].T,
                    s=min(max(30_000 / len(plane.points), 12), 45),
                    **colours,
                    label=group.name,
                    marker=pictures.MARKERS[group.mark],
                    zorder=1 if group.is_grey else 2,
                    linewidths=0,
                    alpha=0.75,
                    rasterized=True,
                )
                if group.numbers is not None:
                    scale = points
            panel.set(xticks=[], yticks=[])
            panel.set_title(map_title(name, plane), fontsize="medium")
        if scale is not None:
            figure.colorbar(scale, ax=panel, label=column)
        handles, names = panels[0].get_legend_handles_labels()
        if names:
            figure.legend(handles, names, title=column, loc="outside right upper", frameon=False)


def map_page(maps: Mapping[str, SentenceMap], column: str | None) -> str:
    """Return a self-contained HTML page whose points show their sentences and values."""
    from plotly import graph_objects
    from plotly.subplots import make_subplots

    titles = [map_title(name, plane) for name, plane in maps.items()]
    figure = make_subplots(1, len(maps), subplot_titles=[_escape(title) for title in titles])
    for number, plane in enumerate(maps.values(), 1):
        trace_class = graph_objects.Scatter
        if len(plane.points) > _MAX_SVG_POINTS:
            trace_class = graph_objects.Scattergl
        groups = groups_of(plane.values, len(plane.points))
        for group in sorted(groups, key=lambda group: not group.is_grey):
            trace = trace_class(
                **_trace(plane, group, column),
                showlegend=bool(group.name) and number == 1,
                legendgroup=group.name,
                legendrank=groups.index(group) + 1,
            )
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
    body = figure.to_html(
        config=_PLOTLY_SETTINGS, full_html=False, include_plotlyjs=True, div_id="map"
    )
    title = html.escape("; ".join(titles))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"</head>\n<body>{body}</body></html>\n"
    )


def _trace(plane: SentenceMap, group: Group, column: str | None) -> dict[str, Any]:
    """Return plotly's arguments for the points of a group."""
    texts = []
    for row in group.rows:
        lines = textwrap.wrap(
            plane.sentences[row], _LINE_CHARACTERS, max_lines=_MAX_LINES, placeholder=" …"
        )
        if plane.values is not None:
            lines.append(f"{column}: {plane.values[row] or _NO_VALUE}")
        texts.append("<br>".join(map(_escape, lines)))
    marker: dict[str, Any] = {"symbol": _PLOTLY_MARKERS[group.mark], "size": 8, "opacity": 0.75}
    if group.numbers is None:
        marker["color"] = group.colour
    else:
        scale = {"title": _escape(column or "")}
        marker |= {"color": group.numbers, "colorscale": "Cividis", "colorbar": scale}
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
