"""The table of backends: what computes an encoder, torch or another library."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from promptcli.encoder.encoder import TorchEncoder, build_encoder
from promptcli.extensions import Table
from promptcli.recipe import Recipe


class Backend(Protocol):
    """One way to compute an encoder."""

    def build(
        self,
        recipe: Recipe,
        *,
        folder: Path,
        rows: int | None,
        calibration: Iterable[str],
        **options: Any,
    ) -> TorchEncoder:
        """Return the encoder of a recipe.

        Args:
            recipe: The recipe.
            folder: Where the backend may keep what it makes once for a model.
            rows: Number of sentences that will be encoded; None: unknown.
            calibration: Sentences like those that will be encoded; maybe none.
            options: Those of ``build_encoder``.

        Raises:
            UsageError: The backend does not support the recipe or an option.
        """


class Torch:
    """``torch``, on any device."""

    def build(
        self,
        recipe: Recipe,
        *,
        folder: Path,
        rows: int | None,
        calibration: Iterable[str],
        **options: Any,
    ) -> TorchEncoder:
        """Return the encoder of a recipe."""
        return build_encoder(recipe, **options)


BACKENDS: Table[Backend] = Table("backends", {"torch": Torch()})
