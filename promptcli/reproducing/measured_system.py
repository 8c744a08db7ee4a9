"""What a row's columns are measured on, and all that decides its figures."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from promptcli.encoder.encoder import Encoder
from promptcli.encoder.recipe import Recipe
from promptcli.reproducing.context import MeasurementContext, hash_of
from promptcli.reproducing.published import PublishedRow

_OF_BACKBONE = ("weights_sha256", "tokenizer_sha256", "dtype")


class MeasuredSystem:
    """What a row's columns are measured on.

    Attributes:
        row: The published row.
        identity: All that decides its figures but the data they are measured on; JSON-ready.
        recipe: Its four parts, every name resolved; None where nothing is encoded.
        slow: BuildContext the encoder takes long, so it is made when its turn comes.
        transfer: The recipe of transfer tasks, where it is another one.
        runs: The same with one seed each, where figures are taken over several; else itself alone.
    """

    def __init__(
        self,
        row: PublishedRow,
        identity: dict[str, Any],
        recipe: Recipe | None = None,
        make: Callable[[], Encoder] | None = None,
        *,
        slow: bool = False,
        transfer: Recipe | None = None,
        runs: "Sequence[MeasuredSystem]" = (),
    ) -> None:
        self.row, self.identity, self.recipe, self.slow, self.transfer = row, identity, recipe, slow, transfer
        self.runs = runs or (self,)
        self._make = make

    @functools.cached_property
    def encoder(self) -> Encoder:
        """The encoder; fitted or trained now where something has to be."""
        assert self._make is not None, f"{self.row.run} encodes nothing"
        return self._make()

    @property
    def transfer_encoder(self) -> Encoder:
        """The encoder of transfer tasks."""
        encoder = self.encoder
        return encoder if self.transfer is None else Encoder(self.transfer, encoder.backbone, encoder.tensors())


def weights_of(context: MeasurementContext) -> dict[str, str]:
    """Return which backbone it is, under no name."""
    return {name: context.backbone_facts[name] for name in _OF_BACKBONE}


def identity_of(recipe: Recipe, context: MeasurementContext) -> dict[str, Any]:
    """Return what decides the figures of a recipe on a context's backbone."""
    return {"recipe": {**recipe.to_dict(), "backbone": None}, **weights_of(context)}


def recipe_id(system: MeasuredSystem) -> str:
    """Return a short name of the recipe and what it was fitted on, the same for every backbone."""
    return hash_of({key: value for key, value in system.identity.items() if key not in _OF_BACKBONE})[:12]
