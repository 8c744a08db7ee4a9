"""The papers' figures drawn by `promptcli reproduce`, as `promptcli analyze` draws them. Part of the entrance."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from promptcli.cli.commands.analyze_attention import draw_attention
from promptcli.cli.commands.analyze_impact import draw_impact
from promptcli.cli.commands.analyze_token_bias import EMBEDDINGS, draw_bias
from promptcli.cli.commands.analyze_uniformity import draw_uniformity
from promptcli.cli.pictures.token_map import SENTENCE
from promptcli.errors import NotFoundError

if TYPE_CHECKING:
    from promptcli.reproducing.place import Place

#: Recipes of Ditto's figure 4, those that need no training.
_COMPARED = ("last-avg", "first-last-avg", "static-avg", "last-ditto", "first-last-ditto", "static-ditto")


def painter(folder: Path) -> "Callable[[str, Place], str] | None":
    """Return what draws a figure into ``folder`` and returns the file's name; None without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return None

    def draw(what: str, place: "Place") -> str:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{what}.{place.backbone_facts['name']}.png"
        _PICTURES[what](path, place)
        return path.name

    return draw


def _impact(path: Path, place: "Place") -> None:
    from promptcli.analysis.impact import impact

    draw_impact(path, impact(place.backbone, SENTENCE), place.backbone_facts["name"])


def _attention(path: Path, place: "Place") -> None:
    from promptcli.analysis.attention import attention

    draw_attention(path, attention(place.backbone, SENTENCE, None), place.backbone_facts["name"])


def _token_bias(states: str) -> "Callable[[Path, Place], None]":
    def draw(path: Path, place: "Place") -> None:
        from promptcli.analysis.token_bias import token_bias

        found = token_bias(place.backbone, place.sentences, states=states)
        draw_bias(path, found, f"{place.backbone_facts['name']}, {EMBEDDINGS[states]}")

    return draw


def _uniformity(path: Path, place: "Place") -> None:
    from promptcli.analysis.uniformity import measure
    from promptcli.encoder.encoder import Encoder
    from promptcli.encoder.recipe import RECIPES

    splits = place.tasks(["STS-B:train", "STS-B:dev", "STS-B"])
    if splits.missing:
        raise NotFoundError(f"no data: {', '.join(splits.missing)}")
    named = {name: RECIPES[name].replace(backbone=place.backbone.name) for name in _COMPARED}
    encoders = [Encoder(recipe, place.backbone, {}) for recipe in named.values()]
    found = measure(encoders, splits.content)
    draw_uniformity(path, dict(zip(named, found, strict=True)), splits.content)


_PICTURES: "dict[str, Callable[[Path, Place], None]]" = {
    "token-bias": _token_bias("static"),
    "token-bias-output": _token_bias("mlm-head"),
    "impact": _impact,
    "attention": _attention,
    "uniformity": _uniformity,
}
