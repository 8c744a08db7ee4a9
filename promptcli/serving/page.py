"""The page and its routes: recipes compared, tokens coloured, templates' mask tokens, an index as a map."""

import base64
import contextlib
import functools
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from promptcli.analysis.mask_tokens import predict_mask_tokens
from promptcli.analysis.sentence import attention, impact, plain_encoder, tokenize
from promptcli.analysis.sentence_map import sentence_map
from promptcli.data.vectors.precision import unit
from promptcli.encoder.encoder import Encoder, encode_together
from promptcli.encoder.prompts.named import named_templates, template_text
from promptcli.errors import UsageError
from promptcli.index.vector_index import VectorIndex
from promptcli.recipe import MASK, RECIPES
from promptcli.serving.service import RequestError, Service

PAGE = Path(__file__).with_name("page.html")

#: Most tokens of a sentence whose impact matrix is computed: N tokens take N(N+1)/2 inputs.
_MOST_TOKENS = 64
#: Most points of a map, spread evenly over the rows, and most characters of a point's text.
_MOST_POINTS, _LONGEST_TEXT = 2000, 200
#: Most templates of a request, and tokens listed for each.
_MOST_TEMPLATES, _TOP = 32, 6


def answer(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON answer."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


class CompareRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``/compare``: a sentence, others, and a model whose backbone the recipes run on."""

    a: str
    b: list[str]
    model: str | None = None


class TokensRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``/tokens``."""

    sentence: str
    by: Literal["ditto", "impact"] = "ditto"
    head: str | None = None  #: of Ditto; None: the model's, else the best known head of its backbone
    model: str | None = None


class MaskTokensRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``/mask-tokens``."""

    sentence: str
    templates: list[str] | None = None  #: names or texts; None: the named ones
    model: str | None = None


async def page(service: Service, request: Request) -> Response:
    """Answer ``GET /``."""
    text, policy = _page()
    return Response(text, headers={"Content-Security-Policy": policy}, media_type="text/html")


@functools.cache
def _page() -> tuple[str, str]:
    """Return the page, and the policy that allows only its own style and script, by their hashes."""
    text = PAGE.read_text(encoding="utf-8")

    def hashes(tag: str) -> str:
        contents = re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)
        digests = (hashlib.sha256(content.encode()).digest() for content in contents)
        return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)

    return text, (
        f"default-src 'none'; style-src {hashes('style')}; script-src {hashes('script')}; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


async def about(service: Service, request: Request) -> Response:
    """Answer ``GET /about``: the models, indexes and templates that the page offers."""
    models = [
        {"name": name, "method": f"{encoder.recipe.backbone}, {encoder.recipe.prompt} {encoder.recipe.pooling}"}
        for name, encoder in service.models.items()
    ]
    indexes = [{"name": name, "rows": len(index)} for name, index in service.indexes.items()]
    templates = {name: row.text for name, row in named_templates().items()}
    return answer({"models": models, "indexes": indexes, "templates": templates})


async def compare(service: Service, request: Request) -> Response:
    """Answer ``POST /compare``: the cosine of a sentence with each of some others, by recipe."""
    body = await service.read(request, CompareRequest)
    texts = [*service.texts(body.a, "a"), *service.texts(body.b, "b")]

    def cosines() -> list[dict[str, Any]]:
        encoder = service.model(body.model)
        encoders = {body.model or next(iter(service.models)): encoder, **_on_its_backbone(encoder)}
        rows = []
        for (name, compared), encoded in zip(
            encoders.items(), encode_together(list(encoders.values()), texts), strict=True
        ):
            vectors, method = unit(encoded.vectors), f"{compared.recipe.prompt} {compared.recipe.pooling}"
            rows.append({"name": name, "method": method, "similarity": (vectors[1:] @ vectors[0]).tolist()})
        return rows

    return answer({"recipes": await service.work(request, cosines)})


@functools.cache
def _on_its_backbone(encoder: Encoder) -> dict[str, Encoder]:
    """Return an encoder of every named recipe that runs on the backbone without fitting."""
    encoders = {}
    for name, recipe in RECIPES.items():
        with contextlib.suppress(UsageError):  # it needs fitted numbers, or a part that the backbone lacks
            encoders[name] = Encoder(recipe.replace(backbone=encoder.recipe.backbone), encoder.backbone, {})
    return encoders


async def tokens(service: Service, request: Request) -> Response:
    """Answer ``POST /tokens``: a sentence's tokens and the weight of each."""
    body = await service.read(request, TokensRequest)
    encoder = service.model(body.model)
    [sentence] = service.texts(body.sentence, "sentence")
    return answer(await service.work(request, lambda: _WEIGHTS[body.by](encoder, sentence, body.head)))


def _ditto(encoder: Encoder, sentence: str, head: str | None) -> dict[str, Any]:
    spec = encoder.pooling.weights.spec
    if head is None and spec.startswith("ditto:"):
        head = spec.removeprefix("ditto:")
    weighed = attention(encoder.backbone, sentence, head)
    return {"by": "ditto", "head": weighed.head, "tokens": weighed.tokens, "weights": weighed.diagonal.tolist()}


def _impact(encoder: Encoder, sentence: str, head: str | None) -> dict[str, Any]:
    count = len(tokenize(plain_encoder(encoder.backbone), sentence)) - 2
    if count > _MOST_TOKENS:
        raise UsageError(
            f"the sentence has {count} tokens, more than {_MOST_TOKENS}; use `promptcli analyze impact` for it"
        )
    weighed = impact(encoder.backbone, sentence)
    weights, matrix = weighed.means.tolist(), weighed.matrix.tolist()
    return {"by": "impact", "head": None, "tokens": weighed.tokens, "weights": weights, "matrix": matrix}


_WEIGHTS = {"ditto": _ditto, "impact": _impact}


async def mask_tokens(service: Service, request: Request) -> Response:
    """Answer ``POST /mask-tokens``: the most probable tokens at each template's mask, with and without its bias."""
    body = await service.read(request, MaskTokensRequest)
    encoder = service.model(body.model)
    [sentence] = service.texts(body.sentence, "sentence")
    templates = body.templates
    if templates is None:  # those of causal models are read at their last token
        templates = [name for name in named_templates() if MASK in template_text(name)]
    if not 1 <= len(templates) <= _MOST_TEMPLATES:
        message = f"{len(templates)} templates are not allowed; give 1 to {_MOST_TEMPLATES}"
        raise RequestError(400, message, param="templates")

    def guesses() -> list[dict[str, Any]]:
        rows = []
        for name in templates:
            text = template_text(name)
            changes = {"backbone": encoder.recipe.backbone, "prompt": text, "denoise": "logits"}
            recipe = RECIPES["prompt-denoised"].replace(**changes).explicit()
            [predicted] = predict_mask_tokens(encoder.backbone, recipe, [sentence], count=_TOP)
            lists = {"tokens": predicted.plain, "tokens_denoised": predicted.denoised}
            rows.append({"name": name, "template": text, **lists})
        return rows

    return answer({"templates": await service.work(request, guesses)})


async def index_map(service: Service, request: Request) -> Response:
    """Answer ``GET /map?index=NAME``: rows of an index in a plane where similar ones are near, clustered."""
    name = request.query_params.get("index")
    [(name, index), *_] = service.searched(None if name is None else [name]).items()
    return answer({"index": name, **await service.work(request, lambda: _map(index.vectors), beside=True)})


@functools.cache
def _map(index: VectorIndex) -> dict[str, Any]:
    numbers = np.unique(np.linspace(0, max(index.rows - 1, 0), min(index.rows, _MOST_POINTS)).astype(np.int64))
    rows = index.live()[numbers]
    hits = index.hits(rows, np.zeros(len(rows), np.float32))
    texts = [hit.text or "" for hit in hits]
    plane = sentence_map(index.vectors(rows), texts if any(texts) else None)
    places = zip(hits, plane.points.round(3).tolist(), plane.clusters.tolist(), strict=True)
    return {
        "rows": index.rows,
        "method": plane.method,
        "trustworthiness": round(plane.trustworthiness, 3),
        "clusters": [
            {"words": words, "x": x, "y": y}
            for words, (x, y) in zip(plane.words, plane.places.round(3).tolist(), strict=True)
        ],
        "points": [
            {"id": hit.id, "text": hit.text and hit.text[:_LONGEST_TEXT], "x": x, "y": y, "cluster": cluster}
            for hit, (x, y), cluster in places
        ],
    }
