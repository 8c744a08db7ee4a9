"""The papers' figures drawn by `promptcli reproduce`, as `promptcli analyze` draws them. Part of the entrance."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from promptcli.cli.pictures.analyses import (
    EMBEDDINGS,
    SENTENCE,
    draw_attention,
    draw_impact,
    draw_token_bias,
    draw_uniformity,
)
from promptcli.errors import NotFoundError

if TYPE_CHECKING:
    from promptcli.reproducing.measurement_context import MeasurementContext

#: Recipes of Ditto's figure 4, those that need no training.
_COMPARED = ("last-avg", "first-last-avg", "static-avg", "last-ditto", "first-last-ditto", "static-ditto")


def painter(folder: Path) -> "Callable[[str, MeasurementContext], str] | None":
    """Return what draws a figure into ``folder`` and returns the file's name; None without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return None

    def draw(what: str, context: "MeasurementContext") -> str:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{what}.{context.backbone_facts['name']}.png"
        _PICTURES[what](path, context)
        return path.name

    return draw


def _impact(path: Path, context: "MeasurementContext") -> None:
    from promptcli.analysis.impact import impact

    draw_impact(path, impact(context.backbone, SENTENCE), context.backbone_facts["name"])


def _attention(path: Path, context: "MeasurementContext") -> None:
    from promptcli.analysis.attention import attention

    draw_attention(path, attention(context.backbone, SENTENCE, None), context.backbone_facts["name"])


def _token_bias(states: str) -> "Callable[[Path, MeasurementContext], None]":
    def draw(path: Path, context: "MeasurementContext") -> None:
        from promptcli.analysis.token_bias import token_bias

        found = token_bias(context.backbone, context.sentences, states=states)
        draw_token_bias(path, found, f"{context.backbone_facts['name']}, {EMBEDDINGS[states]}")

    return draw


def _uniformity(path: Path, context: "MeasurementContext") -> None:
    from promptcli.analysis.uniformity import measure
    from promptcli.encoder.encoder import Encoder
    from promptcli.encoder.recipe import RECIPES

    splits = context.tasks(["STS-B:train", "STS-B:dev", "STS-B"])
    if splits.missing:
        raise NotFoundError(f"no data: {', '.join(splits.missing)}")
    named = {name: RECIPES[name].replace(backbone=context.backbone.name) for name in _COMPARED}
    encoders = [Encoder(recipe, context.backbone, {}) for recipe in named.values()]
    found = measure(encoders, splits.content)
    draw_uniformity(path, dict(zip(named, found, strict=True)), splits.content)


_PICTURES: "dict[str, Callable[[Path, MeasurementContext], None]]" = {
    "token-bias": _token_bias("static"),
    "token-bias-output": _token_bias("mlm-head"),
    "impact": _impact,
    "attention": _attention,
    "uniformity": _uniformity,
}
