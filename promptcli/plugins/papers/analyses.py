"""What the plug-in ``analyze`` finds, by promptcli's public function; its folder may be absent."""

from collections.abc import Sequence
from typing import Any

from promptcli.encoder.encoder import TorchEncoder
from promptcli.extensions import absent_plugin
from promptcli.plugins.papers.contexts import MeasureData, MeasurementContext
from promptcli.recipe import Recipe


def check_analyze(context: MeasurementContext) -> MeasureData:
    """Return no data; refuse if analyses cannot be run here."""
    try:
        from promptcli import analyze  # noqa: F401
    except ImportError:
        raise absent_plugin("analyze") from None
    return MeasureData()


def analyze_each(
    name: str, encoders: Sequence[TorchEncoder], on: Sequence[str], **settings: Any
) -> list[Any]:
    """Return an analysis's result for each encoder, in order."""
    from promptcli import analyze

    found = analyze(name, encoders, on, **settings)
    assert isinstance(found, dict)
    return list(found.values())


def analyze_backbone(
    name: str, context: MeasurementContext, on: str | Sequence[str] | None = None, **settings: Any
) -> Any:
    """Return the result of an analysis of a context's backbone, whatever the recipe."""
    from promptcli import analyze

    recipe = Recipe(backbone=context.backbone.name)
    encoder = TorchEncoder(recipe, context.backbone, {})
    return analyze(name, encoder, on, **settings)
