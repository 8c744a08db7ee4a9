"""Cosines of sentences, by an encoder of one's choice or by the one for their language."""

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from promptcli.data.given import check_arguments, check_texts
from promptcli.data.vectors.precision import unit
from promptcli.encoder.encoded import Progress, no_progress
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.errors import UsageError
from promptcli.models.language_choice import model_for
from promptcli.models.loading import Model, open_encoder
from promptcli.notes import note


@overload  # a text is a sequence of texts, too
@check_arguments
def similarity(first: str, second: str, model: Model | None = ...) -> float: ...  # type: ignore[overload-overlap]
@overload
def similarity(
    first: Sequence[str], second: Sequence[str], model: Model | None = ...
) -> NDArray[np.float32]: ...
@check_arguments
def similarity(
    first: str | Sequence[str], second: str | Sequence[str], model: Model | None = None
) -> float | NDArray[np.float32]:
    """Return the cosine of two sentences, -1 to 1; of two lists of n, the n cosines of their pairs.

    The rows of two files: ``similarities``.

    Args:
        first: A sentence, or a list.
        second: A sentence, or a list of the same length.
        model: An encoder, or what ``load`` takes. Default: by the texts' language.

    Example:
        >>> import promptcli as pc
        >>> near = pc.similarity("A dog runs.", "A puppy is running.")
        >>> bool(near > pc.similarity("A dog runs.", "Prices fell."))
        True
    """
    left = check_texts(first)
    right = check_texts(second)
    if len(left) != len(right):
        raise UsageError(
            f"{len(left)} and {len(right)} sentences do not make pairs; give two lists of one"
            " length"
        )
    encoder = open_encoder(model_for(model, [*left, *right]))
    cosines = cosines_of_pairs(encoder, left, right)
    if isinstance(first, str):
        return float(cosines[0])
    return cosines


def cosines_of_pairs(
    encoder: Encoder,
    first: Sequence[str],
    second: Sequence[str],
    progress: Progress = no_progress,
) -> NDArray[np.float32]:
    """Return the cosines (n,) of n sentences with n others.

    The cosine of a zero vector is 0, with a note.
    """
    vectors = unit(encoder.encode([*first, *second], progress=progress))
    if zero := int((~vectors.any(axis=1)).sum()):
        note(f"{zero:,} of {len(vectors):,} sentences have a zero vector, so their cosines are 0")
    # rounding
    cosines: NDArray[np.float32] = (
        (vectors[: len(first)] * vectors[len(first) :]).sum(axis=1).clip(-1, 1)
    )
    return cosines
