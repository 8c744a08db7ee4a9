"""What the classifier sees of vectors: a sentence's own, or both of a pair put together."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def pair_features(first: Floats, second: Floats) -> Floats:
    """Return (n, 2d): |u - v| beside u * v, for vectors u and v (n, d).

    Source: SentEval, mrpc.py.
    """
    return np.concatenate([np.abs(first - second), first * second], axis=1)
