"""A map of sentences, with clusters named by their most telling words."""

import collections
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptcli.encoder.encoder import Encoder, encode_together
from promptcli.errors import UsageError
from promptcli.notes import working

#: Most sentences for t-SNE; above, the map is the two first principal components.
MOST_TSNE = 5000
#: Most sentences for trustworthiness: it takes all distances among them.
_MOST_TRUSTED = 2000
#: Principal components for t-SNE and k-means, perplexity of t-SNE, and most clusters.
_COMPONENTS, _PERPLEXITY, _MOST_CLUSTERS = 50, 50, 8
#: Least mean number of sentences of a cluster, and words of its name.
_CLUSTER_SIZE, _WORDS = 12, 4


@dataclass(frozen=True)
class SentenceMap:
    """Sentences in a plane."""

    points: NDArray[np.float64]  #: (n, 2) positions
    method: str  #: ``t-SNE`` or ``PCA``
    trustworthiness: float  #: of the 5 nearest neighbours in the plane, 0 to 1 (Venna and Kaski, 2001)
    clusters: NDArray[np.int64]  #: (n,) cluster of each sentence; the largest is 0
    words: list[list[str]]  #: of each cluster, the most telling first; empty without texts
    places: NDArray[np.float64]  #: (clusters, 2) positions of the names, each in its cluster's purest region


def map_sentences(encoders: Sequence[Encoder], texts: Sequence[str], *, first: int) -> list[SentenceMap]:
    """Return each encoder's map of the first sentences that are not empty."""
    texts = [text for text in texts if text.strip()][:first]
    with working("map", len(encoders) * len(texts)) as advance:
        return [sentence_map(each.vectors, texts) for each in encode_together(encoders, texts, progress=advance)]


def sentence_map(vectors: NDArray[np.floating], texts: Sequence[str] | None = None) -> SentenceMap:
    """Lay n sentences out in a plane and cluster them.

    t-SNE (van der Maaten and Hinton, 2008) up to ``MOST_TSNE`` sentences, the first two principal components above.
    The clusters are k-means' on the vectors (n, d), not on the plane; only directions count. Texts give them names.
    """
    try:
        from sklearn.cluster import KMeans
        from sklearn.decomposition import PCA
        from sklearn.manifold import TSNE, trustworthiness
        from sklearn.neighbors import NearestNeighbors
    except ModuleNotFoundError:
        raise UsageError("maps need scikit-learn, which is not installed: pip install 'promptcli[plot]'") from None
    count = len(vectors)
    if count < 3:
        raise UsageError(f"a map needs at least 3 sentences, and there are {count}")
    directions = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    components = PCA(min(_COMPONENTS, count, vectors.shape[1]), random_state=0).fit_transform(directions)
    if count <= MOST_TSNE:
        tsne = TSNE(perplexity=min(_PERPLEXITY, (count - 1) / 3), init=components[:, :2], max_iter=500, random_state=0)
        points = tsne.fit_transform(components)
    else:
        points = components[:, :2]
    sample = np.unique(np.linspace(0, count - 1, min(count, _MOST_TRUSTED)).astype(np.int64))
    neighbours = min(5, (len(sample) - 1) // 2)
    trust = trustworthiness(directions[sample], points[sample], n_neighbors=neighbours)
    groups = max(1, min(_MOST_CLUSTERS, count // _CLUSTER_SIZE))
    _, members, sizes = np.unique(
        KMeans(groups, n_init=4, random_state=0).fit_predict(components), return_inverse=True, return_counts=True
    )
    groups = len(sizes)  # fewer if sentences are copies
    clusters = np.argsort(np.argsort(-sizes, kind="stable"))[members].astype(np.int64)
    words = telling_words(texts, clusters) if texts is not None else [[] for _ in range(groups)]
    near = NearestNeighbors(n_neighbors=min(_PERPLEXITY, count)).fit(points).kneighbors(points, return_distance=False)
    purity = (clusters[near] == clusters[:, None]).mean(1)
    centres = [np.flatnonzero(clusters == cluster)[purity[clusters == cluster].argmax()] for cluster in range(groups)]
    places = points[near[centres]].mean(1)
    method = "t-SNE" if count <= MOST_TSNE else "PCA"
    return SentenceMap(points.astype(np.float64), method, float(trust), clusters, words, places.astype(np.float64))


def telling_words(texts: Sequence[str], clusters: NDArray[np.int64], count: int = _WORDS) -> list[list[str]]:
    """Return the words that distinguish each cluster from all sentences, the most telling first.

    A word's figure is its term p log(p / q) of the Kullback-Leibler divergence of the cluster's words from all words,
    which favours neither words that are frequent everywhere nor rare ones. A sentence counts a word once; English
    function words are left out.
    """
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    everywhere: collections.Counter[str] = collections.Counter()
    within = [collections.Counter[str]() for _ in range(int(clusters.max()) + 1)]
    for text, cluster in zip(texts, clusters.tolist(), strict=True):
        words = set(re.findall(r"\w[\w'\u2019]*\w", text.lower())) - ENGLISH_STOP_WORDS
        everywhere.update(words)
        within[cluster].update(words)
    every = everywhere.total()
    named = []
    for counts in within:
        total = counts.total()
        divergence = {word: seen * np.log(seen / total * every / everywhere[word]) for word, seen in counts.items()}
        named.append(sorted(divergence, key=lambda word: (-divergence[word], word))[:count])
    return named
