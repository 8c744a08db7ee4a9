"""Cosines of sentences."""

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.precision import unit
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.models.loading import Model, open_encoder, or_search_model
from promptcli.notes import Advance, no_progress, note


@overload  # a text is a sequence of texts, too
def similarity(first: str, second: str, model: Model | None = ...) -> float: ...  # type: ignore[overload-overlap]
@overload
def similarity(
    first: str | Sequence[str], second: str | Sequence[str], model: Model | None = ...
) -> NDArray[np.float32]: ...
def similarity(
    first: str | Sequence[str], second: str | Sequence[str], model: Model | None = None
) -> float | NDArray[np.float32]:
    """Return the cosine of each sentence of ``first`` with each of ``second``, -1 to 1.

    The result is that of ``Encoder.similarity``. ``promptcli similarity`` compares the rows of two
    files.

    Args:
        first: n sentences, or a single one.
        second: m sentences, or a single one.
        model: An encoder, or what ``load`` takes. None: ``mini-multi``.

    Returns:
        (n, m) float32; for two single sentences a number.

    Example:
        >>> import promptcli as pc
        >>> near = pc.similarity("A dog runs.", "A puppy is running.")
        >>> bool(near > pc.similarity("A dog runs.", "Prices fell."))
        True
        >>> pc.similarity(["A dog runs."], ["A puppy is running.", "Prices fell."]).shape
        (1, 2)
    """
    encoder = open_encoder(or_search_model(model))
    return encoder.similarity(first, second)


def cosines_of_pairs(
    encoder: Encoder,
    first: Sequence[str],
    second: Sequence[str],
    progress: Advance = no_progress,
) -> NDArray[np.float32]:
    """Return the cosine of sentence i of both lists, (n,).

    The cosine of a zero vector is 0; a note counts these vectors.
    """
    vectors = unit(encoder.encode([*first, *second], progress=progress))
    if zero := int((~vectors.any(axis=1)).sum()):
        note(f"zero vectors: {zero:,} of {len(vectors):,} sentences; their cosines are 0")
    products = vectors[: len(first)] * vectors[len(first) :]
    cosines: NDArray[np.float32] = products.sum(axis=1).clip(-1, 1)  # rounding
    return cosines
