"""Maps of sentences: near ones lie near, clusters are found again and named by their own words."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

import promptcli.analysis.sentence_map as maps
from promptcli.analysis.sentence_map import sentence_map, telling_words
from promptcli.errors import UsageError


@pytest.fixture
def clustered():
    """Three narrow clusters of 20 directions in 16 dimensions, and what each vector's is."""
    random = np.random.default_rng(0)
    centres, of = random.normal(size=(3, 16)), np.arange(60) % 3
    lengths = random.uniform(0.1, 10, size=(60, 1))  # which do not count
    return lengths * (centres[of] + random.normal(scale=0.05, size=(60, 16))).astype(np.float32), of


@pytest.mark.parametrize(("most", "method"), [(5000, "t-SNE"), (10, "PCA")])
def test_clusters_are_found_again_and_lie_apart(clustered, monkeypatch, most, method):
    vectors, of = clustered
    monkeypatch.setattr(maps, "MOST_TSNE", most)
    found = sentence_map(vectors, [("river water", "bread oven", "horse rider")[one] + f" {one}" for one in of])
    assert found.method == method and found.points.shape == (60, 2)
    assert found.trustworthiness > (0.9 if method == "t-SNE" else 0.6)
    for cluster in set(of):  # k-means has more clusters than there are; none of its is mixed
        distances = np.linalg.norm(found.points - found.points[of == cluster].mean(0), axis=1)
        assert distances[of == cluster].max() < distances[of != cluster].min()
    assert all(len(set(of[found.clusters == one])) == 1 for one in set(found.clusters))
    assert sorted(np.bincount(found.clusters), reverse=True) == list(np.bincount(found.clusters))
    assert {*found.words[found.clusters[0]]} >= {"river", "water"}


def test_a_telling_word_is_of_its_cluster_and_not_of_all():
    texts = ["The cat sees a mouse.", "The cat eats.", "The dog sees a bone.", "The dog sees."]
    assert telling_words(texts, np.array([0, 0, 1, 1]), 1) == [["cat"], ["dog"]]


@pytest.mark.filterwarnings("ignore")  # scikit-learn's, of a variance of 0 and of fewer points than clusters
def test_few_sentences_and_equal_ones():
    for vectors in (*(np.eye(count, 8) for count in (3, 4, 13)), np.zeros((30, 4))):
        found = sentence_map(vectors.astype(np.float32))
        assert np.isfinite(found.points).all() and found.words == [[]]
    with pytest.raises(UsageError):
        sentence_map(np.eye(2, dtype=np.float32))
