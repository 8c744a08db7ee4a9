"""What a row's columns are measured on, and all that decides its figures."""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcli.encoder.encoder import Encoder
from promptcli.recipe import Recipe
from promptcli.reproducing.measurement_context import MeasurementContext, hash_of
from promptcli.reproducing.published import PublishedRow

_OF_BACKBONE = ("weights_sha256", "tokenizer_sha256", "dtype")


@dataclass(eq=False)
class MeasuredSystem:
    """What a row's columns are measured on."""

    row: PublishedRow
    identity: dict[str, Any]  #: all that decides its figures but the data they are measured on; JSON-ready
    recipe: Recipe | None = None  #: every name resolved; None where nothing is encoded
    make: Callable[[], Encoder] | None = None  #: makes the encoder
    slow: bool = False  #: that takes long, so it is done when its turn comes
    vectors: Path | None = None  #: file of another program's vectors, where that is all there is
    transfer: Recipe | None = None  #: the recipe of transfer tasks, where it is another one
    runs: "Sequence[MeasuredSystem]" = ()  #: one for each seed, where figures are taken over several; else itself

    def __post_init__(self) -> None:
        self.runs = self.runs or (self,)

    @functools.cached_property
    def encoder(self) -> Encoder:
        """The encoder; fitted or trained now where something has to be."""
        assert self.make is not None, f"{self.row.run} encodes nothing"
        return self.make()

    @property
    def transfer_encoder(self) -> Encoder:
        """The encoder of transfer tasks."""
        encoder = self.encoder
        return encoder if self.transfer is None else Encoder(self.transfer, encoder.backbone, encoder.tensors())


Systems = Sequence[MeasuredSystem]


def grouped_by_input(systems: Iterable[MeasuredSystem]) -> list[list[MeasuredSystem]]:
    """Return systems in groups that one forward pass serves.

    What is slow to make comes last, each alone and when its turn comes, so that a killed run loses one at most.
    """
    groups: dict[object, list[MeasuredSystem]] = {}
    for system in systems:
        key = system if system.slow else system.make and system.encoder.input_key
        groups.setdefault(key, []).append(system)
    return sorted(groups.values(), key=lambda members: members[0].slow)


def weights_of(context: MeasurementContext) -> dict[str, str]:
    """Return which backbone it is, under no name."""
    return {name: context.backbone_facts[name] for name in _OF_BACKBONE}


def identity_of(recipe: Recipe, context: MeasurementContext) -> dict[str, Any]:
    """Return what decides the figures of a recipe on a context's backbone."""
    return {"recipe": {**recipe.to_dict(), "backbone": None}, **weights_of(context)}


def recipe_id(system: MeasuredSystem) -> str:
    """Return a short name of the recipe and what it was fitted on, the same for every backbone."""
    return hash_of({key: value for key, value in system.identity.items() if key not in _OF_BACKBONE})[:12]
