"""What the page asks for: recipes compared, tokens coloured, templates and their mask tokens, an index as a map."""

from typing import Any, Literal

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from promptcli.analysis.impact import impact
from promptcli.analysis.mask_tokens import predict_mask_tokens
from promptcli.analysis.sentence import attention, plain_encoder, tokenize
from promptcli.analysis.sentence_map import sentence_map
from promptcli.data.vectors.precision import unit
from promptcli.encoder.encoded import Progress
from promptcli.encoder.encoder import Encoder, encode_together
from promptcli.encoder.prompts.named import named_templates, template_text
from promptcli.errors import UsageError
from promptcli.recipe import MASK, RECIPES
from promptcli.serving.service import ServedIndex, Service
from promptcli.serving.wire import RequestError, answer

#: Tokens of a sentence whose impact matrix is computed: N tokens take N(N+1)/2 inputs.
_MOST_TOKENS = 64
#: Points of a map, spread evenly over the rows, and characters of each one's text.
_MOST_POINTS, _LONGEST_TEXT = 2000, 200
#: Templates of a request, and tokens of each list.
_MOST_TEMPLATES, _TOP = 32, 6


class CompareRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``/compare``: a sentence, others, and a model whose backbone the recipes run on."""

    a: str
    b: list[str]
    model: str | None = None


class TokensRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``/tokens``."""

    sentence: str
    by: Literal["ditto", "impact"] = "ditto"
    head: str | None = None  #: of Ditto; None: the model's own, else the best known one of its backbone
    model: str | None = None


class MaskTokensRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``/mask-tokens``."""

    sentence: str
    templates: list[str] | None = None  #: names or texts; None: the named ones
    model: str | None = None


async def about(service: Service, request: Request) -> Response:
    """Answer ``GET /about``: what the page offers to choose from."""
    served = service.served
    models = [
        {"name": name, "method": f"{one.recipe.backbone}, {one.recipe.prompt} {one.recipe.pooling}"}
        for name, one in served.models.items()
    ]
    indexes = [{"name": name, "rows": one.index.rows} for name, one in served.indexes.items()]
    templates = {name: row.text for name, row in named_templates().items()}
    return answer({"models": models, "indexes": indexes, "templates": templates})


async def compare(service: Service, request: Request) -> Response:
    """Answer ``POST /compare``: the cosine of a sentence with each of some others, by recipe."""
    asked = await service.read(request, CompareRequest)
    texts = [*service.texts(asked.a, "a"), *service.texts(asked.b, "b")]

    def cosines(progress: Progress) -> list[dict[str, Any]]:
        encoders = service.served.compared(asked.model)
        rows = []
        for name, encoded in zip(encoders, encode_together(list(encoders.values()), texts), strict=True):
            vectors = unit(encoded.vectors)
            recipe = encoders[name].recipe
            method = f"{recipe.prompt} {recipe.pooling}"
            rows.append({"name": name, "method": method, "similarity": (vectors[1:] @ vectors[0]).tolist()})
        return rows

    return answer({"recipes": await service.work(request, cosines)})


async def tokens(service: Service, request: Request) -> Response:
    """Answer ``POST /tokens``: a sentence's tokens and how much each counts."""
    asked = await service.read(request, TokensRequest)
    encoder = service.served.model(asked.model)
    [sentence] = service.texts(asked.sentence, "sentence")
    return answer(await service.work(request, lambda progress: _WEIGHED[asked.by](encoder, sentence, asked, progress)))


def _ditto(encoder: Encoder, sentence: str, asked: TokensRequest, progress: Progress) -> dict[str, Any]:
    own = encoder.pooling.weights.spec
    head = asked.head or (own.removeprefix("ditto:") if own.startswith("ditto:") else None)
    found = attention(encoder.backbone, sentence, head)
    return {"by": "ditto", "head": found.head, "tokens": found.tokens, "weights": found.diagonal.tolist()}


def _impact(encoder: Encoder, sentence: str, asked: TokensRequest, progress: Progress) -> dict[str, Any]:
    count = len(tokenize(plain_encoder(encoder.backbone), sentence).ids) - 2
    if count > _MOST_TOKENS:
        raise UsageError(
            f"the sentence has {count} tokens; here at most {_MOST_TOKENS} are masked in pairs, longer ones by"
            " `promptcli analyze impact`"
        )
    found = impact(encoder.backbone, sentence, progress=progress)
    weights, matrix = found.means.tolist(), found.matrix.tolist()
    return {"by": "impact", "head": None, "tokens": found.tokens, "weights": weights, "matrix": matrix}


_WEIGHED = {"ditto": _ditto, "impact": _impact}


async def mask_tokens(service: Service, request: Request) -> Response:
    """Answer ``POST /mask-tokens``: the most probable tokens at each template's mask, with and without its bias."""
    asked = await service.read(request, MaskTokensRequest)
    encoder = service.served.model(asked.model)
    [sentence] = service.texts(asked.sentence, "sentence")
    templates = asked.templates
    if templates is None:  # those of causal models are read at their last token
        templates = [name for name in named_templates() if MASK in template_text(name)]
    if not 1 <= len(templates) <= _MOST_TEMPLATES:
        raise RequestError(
            400, f"{len(templates)} templates are not allowed; give 1 to {_MOST_TEMPLATES}", param="templates"
        )

    def guesses(progress: Progress) -> list[dict[str, Any]]:
        rows = []
        for name in templates:
            text = template_text(name)
            changes = {"backbone": encoder.recipe.backbone, "prompt": text, "denoise": "logits"}
            recipe = RECIPES["prompt-denoised"].replace(**changes).explicit()
            [found] = predict_mask_tokens(encoder.backbone, recipe, [sentence], count=_TOP)
            lists = {"tokens": found.plain, "tokens_denoised": found.denoised}
            pairs = {
                key: [{"token": guess.token, "probability": guess.probability} for guess in guessed]
                for key, guessed in lists.items()
            }
            rows.append({"name": name, "template": text, **pairs})
            progress(1)
        return rows

    return answer({"templates": await service.work(request, guesses)})


async def index_map(service: Service, request: Request) -> Response:
    """Answer ``GET /map?index=NAME``: rows of an index in a plane where near ones lie near, clustered."""
    name = request.query_params.get("index")
    [served, *_] = service.served.searched(None if name is None else [name])
    return answer(await service.once(request, f"map of {served.name}", lambda: _map(served)))


def _map(served: ServedIndex) -> dict[str, Any]:
    index = served.index
    chosen = np.unique(np.linspace(0, max(index.rows - 1, 0), min(index.rows, _MOST_POINTS)).astype(np.int64))
    rows = index.live()[chosen]
    hits = index.hits(rows, np.zeros(len(rows), np.float32))
    texts = [hit.text or "" for hit in hits]
    found = sentence_map(index.vectors(rows), texts if any(texts) else None)
    places = zip(hits, found.points.round(3).tolist(), found.clusters.tolist(), strict=True)
    return {
        "index": served.name,
        "rows": index.rows,
        "method": found.method,
        "trustworthiness": round(found.trustworthiness, 3),
        "clusters": [
            {"words": words, "x": x, "y": y}
            for words, (x, y) in zip(found.words, found.places.round(3).tolist(), strict=True)
        ],
        "points": [
            {"id": hit.id, "text": hit.text and hit.text[:_LONGEST_TEXT], "x": x, "y": y, "cluster": cluster}
            for hit, (x, y), cluster in places
        ],
    }
