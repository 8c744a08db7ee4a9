"""The papers' figures drawn by `promptcli reproduce`, as `promptcli analyze` draws them; imported when they are."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

from promptcli.analysis.impact import impact
from promptcli.analysis.sentence import attention
from promptcli.analysis.token_bias import token_bias
from promptcli.analysis.uniformity import measure
from promptcli.cli.pictures.analyses import (
    EMBEDDINGS,
    SENTENCE,
    draw_attention,
    draw_impact,
    draw_token_bias,
    draw_uniformity,
)
from promptcli.encoder.encoder import Encoder
from promptcli.errors import NotFoundError
from promptcli.recipe import RECIPES
from promptcli.reproducing.measurement_context import MeasurementContext

#: Recipes of Ditto's figure 4, those that need no training.
_COMPARED = ("last-avg", "first-last-avg", "static-avg", "last-ditto", "first-last-ditto", "static-ditto")


def painter(folder: Path) -> Callable[[str, MeasurementContext], str] | None:
    """Return what draws a figure into ``folder`` and returns the file's name; None without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return None

    def draw(what: str, context: MeasurementContext) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        name = context.backbone_facts["name"]
        path = folder / f"{what}.{name}.png"
        _PICTURES[what](path, name, context)
        return path.name

    return draw


def _draw_token_bias(path: Path, name: str, context: MeasurementContext, states: str) -> None:
    found = token_bias(context.backbone, context.sentences, states=states)
    draw_token_bias(path, found, f"{name}, {EMBEDDINGS[states]}")


def _draw_uniformity(path: Path, name: str, context: MeasurementContext) -> None:
    names = ["STS-B:train", "STS-B:dev", "STS-B"]
    splits = context.tasks(names)
    if splits.missing:
        raise NotFoundError(f"no data: {', '.join(splits.missing)}")
    recipes = [RECIPES[compared].replace(backbone=context.backbone.name) for compared in _COMPARED]
    found = measure([Encoder(recipe, context.backbone, {}) for recipe in recipes], splits.content)
    draw_uniformity(path, dict(zip(_COMPARED, found, strict=True)), names)


_PICTURES: dict[str, Callable[[Path, str, MeasurementContext], None]] = {
    "token-bias": lambda path, name, context: _draw_token_bias(path, name, context, "static"),
    "token-bias-output": lambda path, name, context: _draw_token_bias(path, name, context, "mlm-head"),
    "impact": lambda path, name, context: draw_impact(path, impact(context.backbone, SENTENCE), name),
    "attention": lambda path, name, context: draw_attention(path, attention(context.backbone, SENTENCE, None), name),
    "uniformity": _draw_uniformity,
}
