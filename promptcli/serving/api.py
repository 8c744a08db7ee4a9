"""The interface for programs: OpenAI's embeddings and models, search, similarity, health and metrics."""

from typing import Any, Literal

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from promptcli.data.vectors.precision import unit
from promptcli.encoder.encoded import Encoded
from promptcli.encoder.encoder import Encoder
from promptcli.serving.service import Service
from promptcli.serving.wire import RequestError, answer, embedding_list

#: Answers to a query at most.
_MOST_HITS = 1000


class EmbeddingsRequest(msgspec.Struct):
    """Body of ``/v1/embeddings``, as OpenAI's; fields that are not named here are passed over."""

    input: Any
    model: str
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None


class SearchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``/search``."""

    query: Any  #: a text or a list of texts
    index: str | list[str] | None = None  #: None: all
    k: int = 10
    min_score: float | None = None


class SimilarityRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``/similarity``: two texts, or two lists of as many."""

    a: Any
    b: Any
    model: str | None = None


async def embeddings(service: Service, request: Request) -> Response:
    """Answer ``POST /v1/embeddings``."""
    asked = await service.read(request, EmbeddingsRequest)
    encoder = service.served.model(asked.model)
    texts = service.texts(asked.input, "input")
    width = _width(encoder, asked.dimensions)
    encoded = await service.encode(request, encoder, texts)
    vectors = encoded.vectors[:, :width]
    data = await embedding_list(
        unit(vectors) if service.served.normalize else vectors, as_base64=asked.encoding_format == "base64"
    )
    tokens = int(encoded.tokens.sum())
    about = {"model": asked.model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
    body = b'{"object":"list","data":' + data + b"," + msgspec.json.encode(about)[1:]
    return Response(body, headers=_about(encoder, encoded), media_type="application/json")


def _width(encoder: Encoder, dimensions: int | None) -> int:
    """Return how many columns are wanted; fewer than all only where they stand by falling variance."""
    if dimensions is None or dimensions == encoder.width:
        return encoder.width
    if not (encoder.transforms and encoder.transforms[-1].ordered):
        raise RequestError(
            400,
            f"dimensions {dimensions} is not allowed: the first columns of this model's {encoder.width} mean little"
            " alone; serve a whitened model (`promptcli fit --model whitening`), or leave dimensions out",
            param="dimensions",
        )
    if not 1 <= dimensions <= encoder.width:
        raise RequestError(
            400, f"dimensions {dimensions} is not allowed; give 1 to {encoder.width}", param="dimensions"
        )
    return dimensions


def _about(encoder: Encoder, encoded: Encoded) -> dict[str, str]:
    """Return the headers of an answer made of vectors: whose they are, and how many texts were cut."""
    cut = int(np.count_nonzero(encoded.truncated))
    return {"X-Encoder-Fingerprint": encoder.fingerprint, **({"X-Truncated-Texts": str(cut)} if cut else {})}


async def models(service: Service, request: Request) -> Response:
    """Answer ``GET /v1/models``."""
    rows = [
        {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "promptcli",
            "fingerprint": encoder.fingerprint,
            "dimensions": encoder.width,
            "max_tokens": encoder.max_length,
            "recipe": encoder.recipe.to_dict(),
        }
        for name, encoder in service.served.models.items()
    ]
    return answer({"object": "list", "data": rows})


async def search(service: Service, request: Request) -> Response:
    """Answer ``POST /search``: for each query the nearest rows of one or several indexes."""
    asked = await service.read(request, SearchRequest)
    queries = service.texts(asked.query, "query")
    if not 1 <= asked.k <= _MOST_HITS:
        raise RequestError(400, f"k {asked.k} is not allowed; give 1 to {_MOST_HITS:,}", param="k")
    indexes = service.served.searched([asked.index] if isinstance(asked.index, str) else asked.index)
    encoder = indexes[0].encoder
    encoded = await service.encode(request, encoder, queries)
    found = await service.work(
        request, lambda progress: [served.index.search(encoded.vectors, asked.k) for served in indexes]
    )
    results = []
    for query, *lists in zip(queries, *found, strict=True):
        hits = [
            {"index": served.name, "id": hit.id, "text": hit.text, "score": hit.score}
            for served, own in zip(indexes, lists, strict=True)
            for hit in own
            if asked.min_score is None or hit.score >= asked.min_score
        ]
        hits.sort(key=lambda hit: -hit["score"])
        results.append({"query": query, "hits": [{"rank": rank, **hit} for rank, hit in enumerate(hits[: asked.k], 1)]})
    return answer({"results": results}, headers=_about(encoder, encoded))


async def similarity(service: Service, request: Request) -> Response:
    """Answer ``POST /similarity``: the cosine of two texts, or of each pair of two lists."""
    asked = await service.read(request, SimilarityRequest)
    left, right = service.texts(asked.a, "a"), service.texts(asked.b, "b")
    if len(left) != len(right):
        raise RequestError(400, f"a has {len(left)} texts and b {len(right)}, which make no pairs; give equally many")
    encoder = service.served.model(asked.model)
    encoded = await service.encode(request, encoder, [*left, *right])
    vectors = unit(encoded.vectors)
    cosines = np.sum(vectors[: len(left)] * vectors[len(left) :], axis=1).clip(-1, 1).tolist()
    found = cosines if isinstance(asked.a, list) or isinstance(asked.b, list) else cosines[0]
    return answer({"similarity": found}, headers=_about(encoder, encoded))


async def health(service: Service, request: Request) -> Response:
    """Answer ``GET /health``: 200 while requests are taken."""
    well = service.batcher.alive and not service.stopping
    about = {"models": list(service.served.models), "indexes": list(service.served.indexes)}
    return answer({"status": "ok" if well else "stopping", **about}, status=200 if well else 503)


async def metrics(service: Service, request: Request) -> Response:
    """Answer ``GET /metrics`` in Prometheus' text format."""
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")
