"""The encoder of an index: remembered at the build, made again for a search, and compared with others."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from promptcli.errors import CheckFailedError, NotFoundError, UsageError
from promptcli.index.stored import Origin
from promptcli.recipe import Recipe
from promptcli.registry.registry import Entry, Registry, portable

if TYPE_CHECKING:
    from promptcli.encoder.encoder import Encoder


def origin_of(encoder: "Encoder", model: str | None = None) -> Origin:
    """Return what an index remembers of its encoder.

    Args:
        encoder: It made the vectors.
        model: The registry entry that it was loaded from; remembered where the recipe alone does not make it again.
    """
    model = model if encoder.tensors() else None
    return Origin(encoder.fingerprint, portable(encoder.recipe).to_dict(), model, encoder.provenance)


def rebuild_encoder(origin: Origin, registry: Registry | None, make: "Callable[[Entry, str], Encoder]") -> "Encoder":
    """Return the encoder of an index.

    Args:
        origin: What the index remembers.
        registry: Holds its fitted numbers, where it has any.
        make: Makes an encoder from an entry and a precision (``auto``, ``float32``, ``bfloat16``).

    Raises:
        CheckFailedError: what its recipe makes now is another encoder.
        NotFoundError: its registry entry or backbone is not there.
    """
    if origin.model is not None and registry is None:
        raise NotFoundError(f"the encoder of the index is model {origin.model!r}, give the registry that holds it")
    tensors = registry.load(origin.model).tensors if registry and origin.model is not None else {}
    entry = Entry(origin.model or "recipe", Recipe.from_dict(origin.recipe), tensors)
    try:
        encoder = make(entry, str(origin.provenance.get("dtype", "auto")))
    except UsageError as error:
        if origin.model is not None:
            raise
        raise UsageError(f"{error}; if a registry entry made the vectors, build the index with --model NAME") from None
    check_rebuilt(encoder, origin)
    return encoder


def check_rebuilt(encoder: "Encoder", origin: Origin) -> None:
    """Refuse an encoder that is not the one of an index.

    Raises:
        CheckFailedError: the fingerprints differ.
    """
    if encoder.fingerprint != origin.fingerprint:
        raise CheckFailedError(
            f"the encoder of the index is {origin.fingerprint[:12]}, but its recipe on {origin.recipe['backbone']!r}"
            f" now makes {encoder.fingerprint[:12]}: the weights, tokenizer or fitted numbers have changed; build the"
            " index again"
        )


def check_same(given: str, wanted: str, name: str, other: str = "the index") -> None:
    """Refuse vectors of another encoder.

    Raises:
        UsageError: the fingerprints differ.
    """
    if given != wanted:
        raise UsageError(
            f"{name} comes from encoder {given[:12]}, {other} from {wanted[:12]}: their vectors cannot be compared;"
            " embed the sentences again"
        )
