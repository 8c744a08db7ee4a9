"""The figures of the papers that show a backbone, drawn into the folder of results."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

from promptcli import errors
from promptcli.encoder.encoder import TorchEncoder
from promptcli.errors import NotFoundError
from promptcli.plugins.papers.contexts import MeasurementContext, analyze_each, backbone_stem
from promptcli.plugins.papers.systems import with_head
from promptcli.recipe import RECIPES

#: The sentence in single-sentence figures.
_SENTENCE = "A baker opens her shop before sunrise and lights the oven."
#: All pairs of STS-B, on which alignment and uniformity are compared.
_ALL_STS_B = ["STS-B:train", "STS-B:dev", "STS-B"]
#: Training-free recipes of Ditto's figure 4.
_COMPARED = (
    "last-avg",
    "first-last-avg",
    "static-avg",
    "last-ditto",
    "first-last-ditto",
    "static-ditto",
)


def can_draw() -> bool:
    """Return whether matplotlib and the plug-in ``analyze``, which draws with it, are installed."""
    plugin = importlib.util.find_spec("promptcli.plugins.analyze")
    return plugin is not None and not errors.missing_libraries("matplotlib")


def draw_picture(name: str, context: MeasurementContext) -> str:
    """Draw a figure of ``PICTURES`` into the context's files; return the name of the first."""
    assert context.pictures is not None
    context.pictures.mkdir(parents=True, exist_ok=True)
    path = context.pictures / f"{name}.{backbone_stem(context.backbone_facts)}.png"
    draw = PICTURES[name](context)
    draw(path)
    if context.plot is not None:
        draw(context.plot)
    return path.name


#: Draws an analysis into a file.
_Draw = Callable[[Path], None]


def _impact(context: MeasurementContext) -> _Draw:
    analysis = context.analyze("impact", _SENTENCE)
    return lambda path: analysis.draw(path, context.name)


def _attention(context: MeasurementContext) -> _Draw:
    analysis = context.analyze("attention", _SENTENCE, head=context.head or "")
    return lambda path: analysis.draw(path, context.name)


def _token_bias(context: MeasurementContext) -> _Draw:
    analysis = context.analyze("token-bias", context.sentences, states="static")
    return lambda path: analysis.draw(path, f"{context.name}, word embeddings")


def _token_bias_of_output(context: MeasurementContext) -> _Draw:
    analysis = context.analyze("token-bias", context.sentences, states="mlm-head")
    return lambda path: analysis.draw(path, f"{context.name}, output embeddings")


def _uniformity(context: MeasurementContext) -> _Draw:
    splits = context.tasks(_ALL_STS_B)
    if splits.missing:
        raise NotFoundError(f"no data: {', '.join(splits.missing)}")
    encoders = []
    for name in _COMPARED:
        recipe = with_head(RECIPES[name], context).replace(backbone=context.backbone.name)
        encoders.append(TorchEncoder(recipe, context.backbone, {}))
    analyses = analyze_each("uniformity", encoders, _ALL_STS_B, data_dir=context.data_dir)
    title = f"{context.name}, {' + '.join(_ALL_STS_B)}"
    by_recipe = dict(zip(_COMPARED, analyses, strict=True))
    return lambda path: analyses[0].draw(path, by_recipe, title)


#: By the argument of rows of the kind ``picture``.
PICTURES: dict[str, Callable[[MeasurementContext], _Draw]] = {
    "impact": _impact,
    "attention": _attention,
    "uniformity": _uniformity,
    "token-bias": _token_bias,
    "token-bias-output": _token_bias_of_output,
}
