"""The papers' figures drawn by `promptcli reproduce`, as `promptcli analyze` draws them; imported when they are."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

from promptcli.analysis.geometry import measure_uniformity
from promptcli.analysis.impact import impact
from promptcli.analysis.sentence import attention
from promptcli.analysis.token_bias import token_bias
from promptcli.cli.pictures import analyses as pictures
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
        path = folder / f"{what}.{context.backbone_facts['name']}.png"
        _draw(what, path, context)
        return path.name

    return draw


def _draw(what: str, path: Path, context: MeasurementContext) -> None:
    name, backbone = context.backbone_facts["name"], context.backbone
    if what == "impact":
        pictures.draw_impact(path, impact(backbone, pictures.SENTENCE), name)
    elif what == "attention":
        pictures.draw_attention(path, attention(backbone, pictures.SENTENCE), name)
    elif what == "uniformity":
        splits = context.tasks(pictures.ALL_STS_B)
        if splits.missing:
            raise NotFoundError(f"no data: {', '.join(splits.missing)}")
        recipes = [RECIPES[compared].replace(backbone=backbone.name) for compared in _COMPARED]
        figures = measure_uniformity([Encoder(recipe, backbone, {}) for recipe in recipes], splits.content)
        pictures.draw_uniformity(path, dict(zip(_COMPARED, figures, strict=True)), pictures.ALL_STS_B)
    else:
        states = {"token-bias": "static", "token-bias-output": "mlm-head"}[what]
        bias = token_bias(backbone, context.sentences, states=states)
        pictures.draw_token_bias(path, bias, f"{name}, {pictures.EMBEDDINGS[states]}")
