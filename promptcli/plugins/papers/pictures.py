"""The figures of the papers that show a backbone, drawn into the folder of results."""

import importlib.util
from collections.abc import Callable
from functools import partial

from promptcli import errors
from promptcli.encoder.encoder import TorchEncoder
from promptcli.errors import NotFoundError
from promptcli.plugins.papers.contexts import MeasurementContext, analyze_each, backbone_stem
from promptcli.plugins.papers.systems import recipe_on
from promptcli.recipe import RECIPES

#: The sentence of figures that show one sentence.
_SENTENCE = "A baker opens her shop before sunrise and lights the oven."
#: All pairs of STS-B, on which alignment and uniformity are compared.
_ALL_STS_B = ["STS-B:train", "STS-B:dev", "STS-B"]
#: The recipes of Ditto's figure 4 that need no training.
_COMPARED_RECIPES = (
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
    """Draw a figure of ``PICTURES`` into the folder of results and into the asked file; return the
    name of the first.
    """
    assert context.pictures is not None
    context.pictures.mkdir(parents=True, exist_ok=True)
    path = context.pictures / f"{name}.{backbone_stem(context.backbone_facts)}.png"
    draw, title = PICTURES[name](context)
    draw(path, title=title)
    if context.plot is not None:
        draw(context.plot, title=title)
    return path.name


#: Takes a file and a title, and draws a result of an analysis; and the title.
_Picture = tuple[Callable[..., None], str]


def _impact(context: MeasurementContext) -> _Picture:
    return context.analyze("impact", _SENTENCE).draw, context.name


def _attention(context: MeasurementContext) -> _Picture:
    result = context.analyze("attention", _SENTENCE, head=context.head or "")
    return result.draw, context.name


def _token_bias(context: MeasurementContext) -> _Picture:
    result = context.analyze("token-bias", context.sentences, states="static")
    return result.draw, f"{context.name}, word embeddings"


def _token_bias_of_output(context: MeasurementContext) -> _Picture:
    result = context.analyze("token-bias", context.sentences, states="mlm-head")
    return result.draw, f"{context.name}, output embeddings"


def _uniformity(context: MeasurementContext) -> _Picture:
    splits = context.tasks(_ALL_STS_B)
    if splits.missing:
        raise NotFoundError(f"no data: {', '.join(splits.missing)}")
    recipes = [recipe_on(RECIPES[name], context) for name in _COMPARED_RECIPES]
    encoders = [TorchEncoder(recipe, context.backbone, {}) for recipe in recipes]
    results = analyze_each("uniformity", encoders, _ALL_STS_B, data_dir=context.data_dir)
    by_recipe = dict(zip(_COMPARED_RECIPES, results, strict=True))
    title = f"{context.name}, {' + '.join(_ALL_STS_B)}"
    return partial(results[0].draw, results=by_recipe), title


#: By the argument of rows of the kind ``picture``.
PICTURES: dict[str, Callable[[MeasurementContext], _Picture]] = {
    "impact": _impact,
    "attention": _attention,
    "uniformity": _uniformity,
    "token-bias": _token_bias,
    "token-bias-output": _token_bias_of_output,
}
