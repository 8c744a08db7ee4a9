"""The table of backends: what computes an encoder, torch or another library."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from promptcli.encoder.encoder import TorchEncoder, build_encoder
from promptcli.extensions import Table
from promptcli.recipe import Recipe


def build_torch(
    recipe: Recipe, *, folder: Path, rows: int | None, calibration: Iterable[str], **options: Any
) -> TorchEncoder:
    """Return the encoder of a recipe on torch, on any device.

    Every backend takes these arguments, and raises ``UsageError`` if it does not support the recipe
    or an option.

    Args:
        recipe: The recipe.
        folder: Where the backend may keep what it makes once for a model.
        rows: Number of sentences that will be encoded; None: unknown.
        calibration: Sentences like those that will be encoded; maybe none.
        options: Those of ``build_encoder``.
    """
    return build_encoder(recipe, **options)


BACKENDS: Table[Callable[..., TorchEncoder]] = Table("backends", {"torch": build_torch})
