"""Sentences laid out in a plane, near each other if their vectors are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptcli import errors, notes
from promptcli.encoder.encoder import TorchEncoder, encode_together
from promptcli.errors import UsageError
from promptcli.evaluation.statistics import Doubles

#: Most sentences whose trustworthiness is measured: it takes all distances among them.
_MOST_TRUSTED = 2000
#: Neighbours that count for it.
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
    #: 0 to 1: whether the five nearest in the plane are near in the model (Venna and Kaski, 2001)
    trustworthiness: float
    sentences: list[str]
    #: value of the column of each sentence, "" without one; None without a column
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

    ``values`` are those of a column, one a sentence.
    """
    way = errors.look_up("method", method, METHODS)
    errors.require(*way.needs, extra="map")
    rows = [row for row, sentence in enumerate(sentences) if sentence.strip()][:first]
    kept = [sentences[row] for row in rows]
    if len(kept) < 3:
        raise UsageError(f"a map needs at least 3 sentences, and there are {len(kept)}")
    kept_values = None
    if values is not None:
        kept_values = [values[row] for row in rows]
    maps = []
    with notes.stage("map", len(encoders) * len(kept)) as advance:
        for encoded in encode_together(encoders, kept, progress=advance):
            directions = _directions(encoded.vectors)
            points = way.place(directions, seed).astype(np.float64)
            cut = int(encoded.truncated.sum())
            trust = _trustworthiness(directions, points)
            maps.append(SentenceMap(way.name, points, trust, kept, kept_values, cut))
    return maps


def _directions(vectors: NDArray[np.floating]) -> Doubles:
    """Return unit vectors: only the angle between two sentences counts."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    directions: Doubles = vectors / np.maximum(lengths, 1e-12).astype(np.float64)
    if np.ptp(directions, axis=0).max() < 1e-9:
        raise UsageError("all sentences have the same vector; a map needs sentences that differ")
    return directions


def _pca(directions: Doubles, seed: int) -> Doubles:
    from sklearn.decomposition import PCA

    points: Doubles = PCA(2, random_state=seed).fit_transform(directions)
    return points


def _tsne(directions: Doubles, seed: int) -> Doubles:
    """Lay out by t-SNE (van der Maaten and Hinton, 2008), begun with the principal components."""
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
    # a spectral start needs more sentences than it has dimensions
    start = "spectral" if count > _NEAR else "random"
    layout = UMAP(
        n_neighbors=min(_NEAR, count - 1), init=start, random_state=seed, n_jobs=1, metric="cosine"
    )
    points: Doubles = layout.fit_transform(directions)
    return points


@dataclass(frozen=True)
class Layout:
    """A way to lay sentences out."""

    name: str  #: in print
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
    found = trustworthiness(directions[sample], points[sample], n_neighbors=neighbours)
    return float(found)
