"""The encoder of an index: remembered at the build, made again for a search, and compared with others."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.errors import CheckFailedError, NotFoundError, PromptcliError, UsageError
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
    registry = registry or Registry(Path(os.devnull))  # what is shipped
    if origin.model is not None:
        entries = [replace(registry.load(origin.model), recipe=Recipe.from_dict(origin.recipe))]
    else:
        entries = [*_alike(registry, origin.recipe), Entry("recipe", Recipe.from_dict(origin.recipe))]
    for entry in entries:
        try:
            encoder = make(entry, str(origin.provenance.get("dtype", "auto")))
        except UsageError as error:
            if origin.model is not None:
                raise
            raise UsageError(
                f"{error}; if a registry entry made the vectors, build the index with --model NAME"
            ) from None
        if encoder.fingerprint == origin.fingerprint:
            return encoder
    raise CheckFailedError(
        f"the encoder of the index is {origin.fingerprint[:12]}, but its recipe on {origin.recipe['backbone']!r}"
        f" now makes {encoder.fingerprint[:12]}: the weights, tokenizer or fitted numbers have changed; build the"
        " index again"
    )


def _alike(registry: Registry, recipe: dict[str, Any]) -> Iterator[Entry]:
    """Yield the entries of a recipe that hold learned numbers: nothing else says which one made stored vectors."""
    for name in registry.names():
        with suppress(PromptcliError):  # one that is damaged made none
            card = registry.card(name)
            if card.tensors and portable(card.recipe).to_dict() == recipe:
                yield registry.load(name)


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
