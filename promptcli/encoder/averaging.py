"""The mean of the embeddings of each input's tokens: what ``static/avg`` and ``mlm-head/avg``
compute, with torch and without it.
"""

from collections.abc import Callable

import numpy as np

from promptcli.backbones.ragged_ids import RaggedIds

#: Inputs that are added up together: their sums stay in a core's own cache.
_TOGETHER = 256


def average_embeddings(
    inputs: RaggedIds, embeddings_of: Callable[[np.ndarray], np.ndarray], vocabulary: int
) -> np.ndarray:
    """Return the mean of the embeddings of each of n inputs, (n, d) float32.

    The mean of an empty one is zero. ``embeddings_of`` returns the embeddings (k, d) float32 of k
    tokens of the ``vocabulary``; it is called once, with those that occur.
    """
    # few of all, so that these are made float32
    used = np.flatnonzero(np.bincount(inputs.ids, minlength=vocabulary))
    place = np.empty(vocabulary, dtype=np.int32)
    place[used] = np.arange(len(used))
    embeddings = embeddings_of(used)
    places = place[inputs.ids]
    means = np.zeros((len(inputs), embeddings.shape[1]), np.float32)
    order = np.argsort(-inputs.lengths, kind="stable")[: np.count_nonzero(inputs.lengths)]
    for begin in range(0, len(order), _TOGETHER):
        some = order[begin : begin + _TOGETHER]
        lengths = inputs.lengths[some]
        sums = _sums(embeddings, places, inputs.starts[some], lengths)
        means[some] = sums / lengths[:, None].astype(np.float32)
    return means


def _sums(
    embeddings: np.ndarray, places: np.ndarray, starts: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """Return the sums of some inputs, the longest first; each is added from its first token to its
    last.
    """
    sums: np.ndarray = embeddings[places[starts]]
    longer = len(lengths)  # inputs that have further tokens
    for position in range(1, int(lengths[0])):
        while lengths[longer - 1] <= position:
            longer -= 1
        sums[:longer] += embeddings[places[starts[:longer] + position]]
    return sums
