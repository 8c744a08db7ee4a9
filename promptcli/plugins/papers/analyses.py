"""What the plug-in ``analyze`` finds, by promptcli's public function; its folder may be absent."""

from collections.abc import Sequence
from typing import Any

import promptcli
from promptcli import Recipe
from promptcli.extending import TorchEncoder, make_encoder
from promptcli.plugins.papers.contexts import MeasureData, MeasurementContext


def check_analyze(context: MeasurementContext) -> MeasureData:
    """Return no data; refuse if analyses cannot be run here."""
    _ = promptcli.analyze
    return MeasureData()


def analyze_each(
    name: str, encoders: Sequence[TorchEncoder], on: Sequence[str], **settings: Any
) -> list[Any]:
    """Return an analysis's result for each encoder, in order."""
    found = promptcli.analyze(name, encoders, on, **settings)
    assert isinstance(found, dict)
    return list(found.values())


def analyze_backbone(
    name: str, context: MeasurementContext, on: str | Sequence[str] | None = None, **settings: Any
) -> Any:
    """Return the result of an analysis of a context's backbone, whatever the recipe."""
    recipe = Recipe(backbone=context.backbone.name)
    encoder = make_encoder(recipe, context.backbone, {})
    return promptcli.analyze(name, encoder, on, **settings)
