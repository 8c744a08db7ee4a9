"""The server in-process: what it answers, what it refuses, how requests share batches, and what
becomes of them.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import re
import threading
from unittest import mock

import httpx2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="serve needs starlette: pip install '.[serve]'")
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import ClientDisconnect, Request
from starlette.testclient import TestClient

from promptcli.encoder.encoder import TorchEncoder
from promptcli.errors import PromptcliError
from promptcli.models import loading
from promptcli.plugins.serve import service as serving
from promptcli.plugins.serve.app import PAGE, ROUTES, make_app
from promptcli.plugins.serve.service import Service
from promptcli.plugins.serve.serving import _open_indexes
from promptcli.plugins.serve.settings import ServeSettings
from promptcli.recipe import Recipe
from promptcli.retrieval.sentence_index import SentenceIndex
from promptcli.training.fitting import fit_recipe
from tests.comparing import gap
from tests.tiny import SENTENCES

HERE = "http://127.0.0.1"
JSON = {"Content-Type": "application/json"}
HALVES = {"first": SENTENCES[:6], "second": SENTENCES[6:]}


@pytest.fixture(scope="module")
def encoder(tiny_backbone):
    backbone = tiny_backbone("bert")
    return TorchEncoder(
        Recipe(backbone=backbone.name, pooling="first-last/ditto:1-2"), backbone, {}
    )


@pytest.fixture(scope="module")
def other(tiny_backbone):
    backbone = tiny_backbone("bert")
    return TorchEncoder(Recipe(backbone=backbone.name, pooling="last/avg"), backbone, {})


@pytest.fixture(scope="module")
def served(encoder, other):
    return {"tiny": encoder, "other": other}, {
        name: SentenceIndex.build(HALVES[name], encoder, lexical=False) for name in HALVES
    }


def opened(service):
    return TestClient(make_app(service), base_url=HERE)


@pytest.fixture
def client(served):
    with opened(Service(*served)) as client:
        yield client


def asking(service):
    return httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=make_app(service)), base_url=HERE, timeout=300
    )


@contextlib.asynccontextmanager
async def held(service):
    """The encoding thread stands still until the block calls the function it gets.

    Requests wait for it.
    """
    go = threading.Event()
    service.batcher._thread.submit(go.wait)
    first = asyncio.create_task(service.batcher.encode(service.model(None), ["held"]))
    while service.batcher.rounds == 0:
        await asyncio.sleep(0)
    try:
        yield go.set
    finally:
        go.set()
        await first


async def until_waiting(service, texts):
    while service.batcher.waiting_texts != texts:
        await asyncio.sleep(0)


def embed(client, texts, model="tiny", **more):
    """Ask for the vectors of texts."""
    return client.post("/v1/embeddings", json={"model": model, "input": texts, **more})


def scope_of_embeddings():
    """Return what a server tells an application of a request for vectors."""
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    about = {"type": "http", "method": "POST", "path": "/v1/embeddings", "query_string": b""}
    return {**about, "headers": headers}


def error(response, status):
    assert response.status_code == status, response.text
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert "\n" not in response.json()["error"]["message"]
    return response.json()["error"]


# Answers


@pytest.mark.parametrize("given", [SENTENCES, SENTENCES[0]], ids=["a list", "a text"])
@pytest.mark.parametrize("encoding_format", ["float", "base64", None])
def test_embeddings_are_those_of_encode(client, encoder, given, encoding_format):
    response = embed(client, given, encoding_format=encoding_format, user="somebody")
    found = response.json()
    vectors = [row["embedding"] for row in found["data"]]
    if encoding_format == "base64":
        vectors = [np.frombuffer(base64.b64decode(vector), "<f4") for vector in vectors]
    texts = [given] if isinstance(given, str) else given
    assert gap(np.array(vectors), encoder.encode(texts, normalize_embeddings=True)) < 1e-6
    assert [row["index"] for row in found["data"]] == list(range(len(texts)))
    tokens = sum(map(len, encoder.inputs(texts).ids))
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert (found["object"], found["model"]) == ("list", "tiny")
    assert response.headers["x-encoder-fingerprint"] == encoder.fingerprint
    assert "x-truncated-texts" not in response.headers


def test_cut_texts_are_counted_in_a_header_and_vectors_keep_their_length_if_the_server_says_so(
    encoder,
):
    texts = ["cat " * 500, "cat"]
    with opened(Service({"tiny": encoder}, normalize=False)) as client:
        response = embed(client, texts)
    assert response.headers["x-truncated-texts"] == "1"
    assert np.allclose(
        [row["embedding"] for row in response.json()["data"]], encoder.encode(texts), atol=1e-6
    )


def test_dimensions_are_the_first_columns_of_vectors_that_are_whitened_or_trained_for_it(
    bert_folder, encoder
):
    texts = [
        " ".join(SENTENCES[row % 12].split()[: 1 + row % 7] + SENTENCES[row // 12].split())
        for row in range(60)
    ]
    recipe = Recipe(backbone=str(bert_folder), transforms=("whitening",))
    white = fit_recipe(recipe, texts, dtype="float32").encoder
    with opened(Service({"white": white})) as client:
        found = embed(client, SENTENCES, "white", dimensions=3).json()["data"]
        wanted = white.encode(SENTENCES, truncate_dim=3, normalize_embeddings=True)
        assert gap(np.array([row["embedding"] for row in found]), wanted) < 1e-5
        for wrong in (0, white.width + 1):
            refused = error(embed(client, SENTENCES, "white", dimensions=wrong), 400)
            assert refused["param"] == "dimensions"
    nested = TorchEncoder(encoder.recipe.replace(dims=(8, 4)), encoder.backbone, encoder.tensors())
    with opened(Service({"nested": nested})) as client:
        first, *_ = embed(client, SENTENCES, "nested", dimensions=4).json()["data"]
        assert len(first["embedding"]) == 4
        refused = error(embed(client, SENTENCES, "nested", dimensions=3), 400)
        assert "give 8, 4, 16" in refused["message"]


def test_models_are_listed(client):
    models = client.get("/v1/models").json()["data"]
    assert [model["id"] for model in models] == ["tiny", "other"]


@pytest.mark.parametrize(("index", "texts"), [(None, SENTENCES[:6]), ("second", SENTENCES[6:])])
def test_search_is_that_of_the_index(client, encoder, index, texts):
    wanted = SentenceIndex.build(texts, encoder).search(SENTENCES[7:9], 4, by="meaning")
    body = {"query": SENTENCES[7:9], "index": index, "by": "meaning"}
    found = client.post("/search", json={**body, "k": 4}).json()["results"]
    assert [result["query"] for result in found] == SENTENCES[7:9]
    for result, hits in zip(found, wanted, strict=True):
        assert [(hit["rank"], hit["text"]) for hit in result["hits"]] == [
            (hit.rank, hit.text) for hit in hits
        ]
        assert [hit["score"] for hit in result["hits"]] == pytest.approx(
            [hit.score for hit in hits]
        )
        assert all(texts[hit["id"]] == hit["text"] for hit in result["hits"])
    least = found[0]["hits"][2]["score"]
    best = client.post("/search", json={**body, "min_score": least}).json()["results"][0]["hits"]
    assert best == found[0]["hits"][:3]


def test_search_by_words_and_conditions_is_that_of_the_index(encoder):
    index = SentenceIndex.build(SENTENCES, encoder, columns={"number": range(len(SENTENCES))})
    query, condition = SENTENCES[3], "number > 2 and number != 5"
    with opened(Service({"tiny": encoder}, {"first": index})) as client:
        for by in (None, "both", "words", "meaning"):
            body = {"query": query, "where": condition, "k": 4, "by": by}
            [served] = client.post("/search", json=body).json()["results"]
            wanted = index.search(query, 4, where=condition, by=by)
            assert [hit["id"] for hit in served["hits"]] == [hit.id for hit in wanted]
            for hit, same in zip(served["hits"], wanted, strict=True):
                assert hit["columns"] == {"number": same.id}
                assert hit["score"] == pytest.approx(same.score, abs=1e-6)
                assert hit.get("found_by") == same.found_by
                assert hit.get("bm25_rank") == same.bm25_rank


def test_similarity_is_the_cosine(client, other):
    left, right = SENTENCES[:3], SENTENCES[3:6]
    wanted = np.diagonal(other.similarity(other.encode(left), other.encode(right)).numpy())
    found = client.post("/similarity", json={"a": left, "b": right, "model": "other"})
    assert np.allclose(found.json()["similarity"], wanted, atol=1e-6)
    assert found.headers["x-encoder-fingerprint"] == other.fingerprint
    one = client.post("/similarity", json={"a": left[0], "b": right[0], "model": "other"}).json()
    assert one["similarity"] == pytest.approx(wanted[0], abs=1e-6)


def test_the_encoder_of_an_index_is_opened_on_the_device_of_the_models(
    encoder, tmp_path, monkeypatch
):
    SentenceIndex.build(SENTENCES, encoder, output=tmp_path / "lines", lexical=False)
    opened = []
    monkeypatch.setattr(
        loading,
        "open_encoder",
        lambda model, **where: opened.append(where.get("device")) or encoder,
    )
    _open_indexes({"lines": tmp_path / "lines"}, {}, "cpu")
    _open_indexes({"lines": tmp_path / "lines"}, {"tiny": encoder}, "cpu")
    assert opened == ["cpu", None], "a model that is served is shared"


def test_health_names_models_and_indexes(client):
    names = {"models": ["tiny", "other"], "indexes": ["first", "second"]}
    assert client.get("/health").json() == {"status": "ok", **names}


def values_of(text):
    """The samples of Prometheus' own reader: name and labels -> value."""
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples[(sample.name, *sample.labels.values())] = sample.value
    return samples


def test_metrics_count_what_was_asked_and_encoded(client, encoder):
    long = "word " * (encoder.max_length + 1)
    embed(client, [*SENTENCES[:3], long])
    embed(client, "x", "none")
    client.get("/wp-login.php")
    client.get("/.env")
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    values = values_of(response.text)
    assert values["promptcli_requests_total", "/v1/embeddings", "200"] == 1
    assert values["promptcli_requests_total", "/v1/embeddings", "404"] == 1
    assert values["promptcli_requests_total", "other", "404"] == 2
    assert values["promptcli_request_seconds_count", "/v1/embeddings"] == 2
    assert values["promptcli_request_seconds_bucket", "+Inf", "/v1/embeddings"] == 2
    assert values[("promptcli_sentences_total",)] == 4
    assert values[("promptcli_truncated_sentences_total",)] == 1
    assert values[("promptcli_waiting_sentences",)] == 0
    assert values[("promptcli_requests_in_work",)] == 1, "this one"


def test_the_servers_of_a_process_count_apart(client, served):
    client.post("/similarity", json={"a": "x", "b": "y"})
    with opened(Service(*served)) as another:
        values = values_of(another.get("/metrics").text)
    assert values[("promptcli_sentences_total",)] == 0


def test_metrics_need_the_key(served):
    with opened(Service(*served, key="secret")) as client:
        error(client.get("/metrics"), 401)
        given = {"Authorization": "Bearer secret"}
        values = values_of(client.get("/metrics", headers=given).text)
    assert values["promptcli_requests_total", "/metrics", "401"] == 1


def test_the_page_needs_nothing_from_elsewhere_and_its_policy_allows_its_own_style_and_script_only(
    client,
):
    response, text = client.get("/"), PAGE.read_text(encoding="utf-8")
    assert response.text == text and not re.search(r"https?:|//cdn|@import|url\(", text)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text
    )
    assert not re.search(r"<[^>]+\s(on\w+|style)=", text)
    policy = dict(
        rule.strip().split(" ", 1)
        for rule in response.headers["content-security-policy"].split(";")
    )
    for tag in ("style", "script"):
        [content] = re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy[f"{tag}-src"] == f"'sha256-{digest}'"
    assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'"


# Refusals


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/v1/embeddings", b"{not json", 400, "not JSON"),
        ("/v1/embeddings", b'{"model": "tiny", "input": "\\ud800"}', 400, "not JSON"),
        ("/v1/embeddings", b'{"model": "tiny", "input": ' + b"[" * 100_000, 400, "not JSON"),
        (
            "/v1/embeddings",
            {"input": "x"},
            400,
            'missing required field "model"; /v1/embeddings takes input, model, ',
        ),
        (
            "/search",
            {"q": "x", "query": "x"},
            400,
            'unknown field "q"; /search takes query, index, k, min_score, ',
        ),
        ("/v1/embeddings", {"model": "tiny", "input": []}, 400, "empty"),
        ("/v1/embeddings", {"model": "tiny", "input": ["x", ""]}, 400, "input[1]"),
        (
            "/v1/embeddings",
            {"model": "tiny", "input": "x", "input_type": "clustering"},
            400,
            "valid: query",
        ),
        ("/v1/embeddings", {"model": "tiny", "input": [1, 2]}, 400, "token ids"),
        ("/v1/embeddings", {"model": "tiny", "input": ["x"] * 33}, 400, "at most 32"),
        ("/v1/embeddings", {"model": "tiny", "input": "x" * 5001}, 400, "at most 5,000"),
        ("/v1/embeddings", {"model": "tiny", "input": "x" * (2 << 20)}, 413, "1 MiB"),
        (
            "/v1/embeddings",
            {"model": "tiny", "input": "x", "encoding_format": "int8"},
            400,
            "encoding_format",
        ),
        ("/v1/embeddings", {"model": "tiny", "input": "x", "dimensions": 3}, 400, "whitened"),
        ("/v1/embeddings", {"model": "tinny", "input": "x"}, 404, "valid: tiny, other"),
        ("/search", {"query": "x", "index": "nope"}, 404, "first, second"),
        ("/search", {"query": "x", "index": "first", "k": 0}, 400, "k must be from 1"),
        ("/search", {"query": "x", "index": "first", "top": 3}, 400, "top"),
        (
            "/search",
            {"query": "x", "index": "first", "where": "year > 1"},
            400,
            "no such column: year",
        ),
        ("/search", {"query": "x", "index": "first", "by": "both"}, 400, "no words"),
        ("/similarity", {"a": ["x", "y"], "b": "x"}, 400, "pairs need"),
        ("/nowhere", {}, 404, "POST /nowhere is not served"),
        ("/health", {}, 405, "POST /health"),
    ],
)
def test_what_is_wrong_is_one_line_in_openais_shape(served, path, body, status, says):
    limits = ServeSettings(max_texts=32, max_characters=5000, max_body_mib=1)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with opened(Service(*served, limits)) as client:
        assert says in error(client.post(path, content=content, headers=JSON), status)["message"]
        assert embed(client, "x").status_code == 200


def test_a_route_asked_by_another_method_says_which_it_takes(served):
    with opened(Service(*served)) as client:
        for method, path in ROUTES:
            other = "POST" if method == "GET" else "GET"
            answered = client.request(other, path)
            assert f"{method} {path}" in error(answered, 405)["message"]
            assert method in answered.headers["allow"].split(", ")
        assert "POST /search" in error(client.get("/searches"), 404)["message"]


def test_a_key_is_asked_for_if_there_is_one(served):
    wrong = [
        {},
        *({b"Authorization": value} for value in (b"Bearer wrong", b"s3cret", b"Bearer \xff")),
    ]
    with opened(Service(*served, key="s3cret")) as client:
        for method, path in ROUTES:
            for header in wrong:
                response = client.request(method, path, headers=header)
                assert (
                    (response.status_code == 200)
                    if path in ("/", "/health")
                    else error(response, 401)
                ), path
        assert (
            client.get("/v1/models", headers={"Authorization": "Bearer s3cret"}).status_code == 200
        )


def test_every_answer_carries_the_headers_that_keep_a_browser_safe(client):
    for method, path in [*ROUTES, ("GET", "/nowhere")]:
        headers = client.request(method, path).headers
        assert (headers["x-content-type-options"], headers["x-frame-options"]) == (
            "nosniff",
            "DENY",
        )
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "host", ["127.0.0.2", "127.1", "0:0:0:0:0:0:0:1", "2130706433", "::ffff:127.0.0.1", "LocalHost"]
)
def test_every_spelling_of_a_loopback_address_keeps_other_names_out(served, host):
    own = f"[{host}]" if ":" in host else host
    with opened(Service(*served, ServeSettings(host=host))) as client:
        assert client.get("/v1/models", headers={"Host": "evil.example:8000"}).status_code == 400
        for name in (own, f"{own}:8000", "127.0.0.1:8000", "localhost"):
            assert client.get("/health", headers={"Host": name}).status_code == 200, name


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "fe80::1%lo"])
def test_what_other_machines_reach_is_no_loopback_address(host):
    assert ServeSettings(host=host).loopback_names() == ()


def test_another_sites_name_for_this_machine_is_turned_away(client, served):
    assert client.get("/v1/models", headers={"Host": "evil.example:8000"}).status_code == 400
    for name in ("localhost:8000", "127.0.0.1", "[::1]:8000"):
        assert client.get("/health", headers={"Host": name}).status_code == 200
    with opened(Service(*served, ServeSettings(host="0.0.0.0"))) as everywhere:
        assert everywhere.get("/health", headers={"Host": "models.example"}).status_code == 200


PAIR = b'{"a": "x", "b": "y"}'


def test_a_page_of_another_site_cannot_make_it_compute(client):
    def status(**headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named.setdefault("content-type", "application/json")
        return client.post("/similarity", content=PAIR, headers=named).status_code

    assert status() == status(origin=HERE) == status(sec_fetch_site="same-origin") == 200
    # a proxy may have another name than the page
    assert status(origin="https://models.example", sec_fetch_site="same-origin") == 200
    for origin in ("http://evil.example", "null", f"{HERE}:1", "http://[", ""):
        assert status(origin=origin) == 403, origin
    for site in ("cross-site", "same-site"):
        assert status(sec_fetch_site=site, origin=HERE) == 403


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_of_another_type_than_json_is_refused(client, kind):
    response = client.post("/similarity", content=PAIR, headers={"content-type": kind})
    assert "application/json" in error(response, 415)["message"]
    said = {"content-type": "Application/JSON; charset=utf-8"}
    assert client.post("/similarity", content=PAIR, headers=said).status_code == 200


def test_a_failure_of_ours_is_an_answer_and_a_line_in_the_log(client, monkeypatch, notes):
    def fail(self, *arguments, **options):
        raise RuntimeError("no memory")

    with monkeypatch.context() as broken:
        broken.setattr(TorchEncoder, "encode_report", fail)
        response = embed(client, "x")
    assert error(response, 500)["type"] == "server_error" and "no memory" not in response.text
    assert notes == ["/v1/embeddings failed: RuntimeError: no memory"]
    assert embed(client, "x").status_code == 200


def test_vectors_that_are_not_finite_fail_alone(served, encoder, monkeypatch):
    real = TorchEncoder.encode_report

    def spoil(self, sentences, **options):
        encoded = real(self, sentences, **options)
        encoded.vectors[[text == "bad" for text in sentences]] = np.nan
        return encoded

    async def ask(service):
        jobs = (service.batcher.encode(encoder, [text]) for text in ("good", "bad"))
        return await asyncio.gather(*jobs, return_exceptions=True)

    monkeypatch.setattr(TorchEncoder, "encode_report", spoil)
    good, bad = asyncio.run(ask(Service(*served)))
    assert np.isfinite(good.vectors).all()
    assert isinstance(bad, PromptcliError) and "not finite" in str(bad)


class PanicException(BaseException):
    """As Rust's libraries raise it: no ``Exception``."""


def test_a_panic_costs_its_own_request_a_500_and_the_others_nothing(served, monkeypatch, notes):
    real = TorchEncoder.encode_report

    def panic(self, sentences, **options):
        if "bad" in sentences:
            raise PanicException("retry limit")
        return real(self, sentences, **options)

    async def ask(service):
        async with asking(service) as client, held(service) as go:
            both = [posted(client, ["good"] * 3), posted(client, ["good", "bad"])]
            await until_waiting(service, 5)
            go()
            return await asyncio.gather(*both)

    service = Service(*served)
    monkeypatch.setattr(TorchEncoder, "encode_report", panic)
    good, bad = asyncio.run(ask(service))
    assert good.status_code == 200 and error(bad, 500)["type"] == "server_error"
    assert notes == ["/v1/embeddings failed: RuntimeError: PanicException: retry limit"]
    assert (service.in_work, service.held_bytes, service.batcher.waiting_texts) == (0, 0, 0)


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/search", {"query": ["x"] * 200, "k": 6}, " queries, or a lower k"),
        ("/search", {"query": "x", "k": 6}, None),
        (
            "/v1/embeddings",
            {"model": "wide", "input": ["x"] * 3000, "encoding_format": "float"},
            "fewer texts",
        ),
        (
            "/v1/embeddings",
            {"model": "wide", "input": ["x"] * 3000, "encoding_format": "base64"},
            None,
        ),
    ],
)
def test_an_answer_has_a_limit(encoder, path, body, says):
    long = SentenceIndex.build([f"{text} {'x' * 2000}" for text in SENTENCES[:6]], encoder)
    limits = ServeSettings(max_answer_mib=1, max_texts=3000)
    with opened(Service({"wide": encoder}, {"long": long}, limits)) as client:
        response = client.post(path, json=body)
        if says is None:
            assert len(response.content) < 1 << 20 and response.status_code == 200
        else:
            refused = error(response, 400)
            assert says in refused["message"] and "1 MiB" in refused["message"]
            assert refused["code"] == "answer_too_large"


def test_a_long_answer_waits_for_its_client_to_read(served):
    service, sent = Service(*served), []
    body = json.dumps({"model": "tiny", "input": SENTENCES * 60}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def ask():
        go, third = asyncio.Event(), asyncio.Event()

        async def receive():
            return messages.pop() if messages else await asyncio.Future()

        async def send(message):
            sent.append(message)
            if len(sent) == 3:
                third.set()
                await go.wait()

        asked = asyncio.create_task(make_app(service)(scope_of_embeddings(), receive, send))
        await third.wait()
        assert service.in_work == 1 and service.held_bytes > len(body)
        go.set()
        await asked

    asyncio.run(ask())
    _, *pieces = sent
    assert max(len(piece["body"]) for piece in pieces) <= 1 << 16
    assert [piece.get("more_body", False) for piece in pieces] == [
        *[True] * (len(pieces) - 1),
        False,
    ]
    assert (
        len(json.loads(b"".join(piece["body"] for piece in pieces))["data"]) == len(SENTENCES) * 60
    )
    assert (service.in_work, service.held_bytes) == (0, 0)


def test_bodies_and_answers_in_work_have_a_limit_together(served, monkeypatch):
    monkeypatch.setattr(serving, "_MAX_HELD_BYTES", 5000)
    service = Service(*served)

    async def ask():
        async with asking(service) as client, held(service) as go:
            first = posted(client, ["x" * 3000])
            await until_waiting(service, 1)
            refused = await posted(client, ["x" * 3000])
            go()
            return refused, await first, await posted(client, ["x" * 9000])

    refused, *answers = asyncio.run(ask())
    assert error(refused, 429)["code"] == "too_many_bytes"
    assert [response.status_code for response in answers] == [200, 200], "one alone may hold more"
    assert service.held_bytes == 0


def test_an_index_is_searched_as_its_folder_holds_it(encoder, tmp_path):
    folder = tmp_path / "lines"
    SentenceIndex.build(SENTENCES[:3], encoder, output=folder)
    service = Service({"tiny": encoder}, {"lines": SentenceIndex.open(folder, encoder)})
    with opened(service) as client:

        def texts():
            [result] = client.post("/search", json={"query": "x", "k": 99}).json()["results"]
            return {hit["text"] for hit in result["hits"]}

        assert texts() == set(SENTENCES[:3])
        SentenceIndex.open(folder, encoder).add(SENTENCES[3:5])
        assert texts() == set(SENTENCES[:5])
        SentenceIndex.build(SENTENCES[5:7], encoder, output=folder, force=True)
        assert texts() == set(SENTENCES[5:7])
        (folder / "index.sqlite").write_bytes(b"damaged" * 1000)
        assert client.post("/search", json={"query": "x"}).status_code in (400, 500)


# Requests together


def posted(client, texts):
    return asyncio.create_task(embed(client, texts))


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    asked=st.lists(
        st.tuples(st.booleans(), st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=9)),
        max_size=8,
    ),
    room=st.integers(1, 400),
)
def test_whatever_is_asked_together_gets_its_own_rows(encoder, other, asked, room, monkeypatch):
    monkeypatch.setattr(serving, "CHARACTERS_PER_ROUND", room)
    service = Service({"tiny": encoder})

    async def ask():
        jobs = (
            service.batcher.encode(encoder if first else other, texts) for first, texts in asked
        )
        return await asyncio.gather(*jobs)

    for (first, texts), encoded in zip(asked, asyncio.run(ask()), strict=True):
        assert gap(encoded.vectors, (encoder if first else other).encode(texts)) < 1e-6
        assert len(encoded.tokens) == len(encoded.truncated) == len(texts)
    assert service.batcher.waiting_texts == 0


def test_a_long_request_does_not_keep_a_short_one_waiting(served, encoder, monkeypatch):
    monkeypatch.setattr(serving, "CHARACTERS_PER_ROUND", 100)
    service, ended = Service(*served), []

    async def ask(texts):
        ended.append(len((await service.batcher.encode(encoder, texts)).vectors))

    async def both():
        await asyncio.gather(ask(SENTENCES * 20), ask(["I"]))

    asyncio.run(both())
    assert ended == [1, 240]


def test_a_full_queue_is_429_and_takes_what_fits(served):
    service = Service(*served, ServeSettings(max_waiting=4))

    async def ask():
        async with asking(service) as client, held(service) as go:
            first = posted(client, SENTENCES[:3])
            await until_waiting(service, 3)
            refused = await posted(client, SENTENCES[:2])
            fits = posted(client, "x")
            await until_waiting(service, 4)
            go()
            answers = await asyncio.gather(first, fits)
            assert service.batcher.rounds == 2, "the one that was held, and theirs"
            return (
                refused,
                *answers,
                await client.post("/search", json={"query": "x", "index": "first"}),
            )

    refused, *answers = asyncio.run(ask())
    assert (
        error(refused, 429)["type"] == "rate_limit_error"
        and int(refused.headers["retry-after"]) >= 1
    )
    assert [response.status_code for response in answers] == [200, 200, 200]


def test_too_many_requests_in_work_are_429(served):
    service = Service(*served, ServeSettings(max_requests=1))

    async def ask():
        async with asking(service) as client, held(service) as go:
            first = posted(client, "x")
            await until_waiting(service, 1)
            refused, health = await client.get("/v1/models"), await client.get("/health")
            metrics = await client.get("/metrics")
            go()
            return refused, metrics, health, await first

    refused, *answers = asyncio.run(ask())
    assert error(refused, 429)["code"] == "too_many_requests"
    assert [response.status_code for response in answers] == [200, 200, 200]
    values = values_of(answers[0].text)
    assert values[("promptcli_waiting_sentences",)] == 1, "those of the first"
    assert values[("promptcli_requests_in_work",)] == 2
    assert values["promptcli_requests_total", "/v1/models", "429"] == 1


def test_other_requests_are_answered_while_an_index_is_locked(served):
    service, locked, release = Service(*served), threading.Event(), threading.Event()

    def lock():
        with served[1]["first"].store.lock:
            locked.set()
            release.wait(5)

    async def ask():
        holder = asyncio.create_task(asyncio.to_thread(lock))
        await asyncio.to_thread(locked.wait)
        async with asking(service) as client:
            search = asyncio.create_task(client.post("/search", json={"query": "x"}))
            await asyncio.wait([search], timeout=0.1)
            health = await client.get("/health")
            assert not holder.done() and not search.done()
            release.set()
            return health, await search

    assert [answer.status_code for answer in asyncio.run(ask())] == [200, 200]


def test_a_client_that_leaves_costs_nothing_more(served, monkeypatch):
    encoded, real = [], TorchEncoder.encode_report
    service = Service(*served)

    def keep(self, sentences, **options):
        encoded.extend(sentences)
        return real(self, sentences, **options)

    async def leave(app):
        body = json.dumps({"model": "tiny", "input": ["nobody waits for this"]}).encode()
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        gone = asyncio.Event()

        async def receive():
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        left = asyncio.create_task(app(scope_of_embeddings(), receive, mock.AsyncMock()))
        await until_waiting(service, 1)
        gone.set()
        await left
        await until_waiting(service, 0)

    async def ask():
        async with asking(service) as client, held(service) as go:
            await leave(make_app(service))
            stays = posted(client, "stays")
            await until_waiting(service, 1)
            go()
            return (await stays).status_code

    monkeypatch.setattr(TorchEncoder, "encode_report", keep)
    assert asyncio.run(ask()) == 200 and encoded == ["held", "stays"]
    assert service.in_work == 0
    values = values_of(generate_latest(service.metrics.registry).decode())
    assert values["promptcli_requests_total", "/v1/embeddings", "499"] == 1
    assert values[("promptcli_sentences_total",)] == 2


def test_a_search_whose_client_has_left_ends_at_its_next_comparison(served):
    service, began, ended = Service(*served), threading.Event(), threading.Event()

    def endless(check_cancelled):
        began.set()
        try:
            while True:
                check_cancelled()
        finally:
            ended.set()

    async def ask():
        async def receive():
            while not began.is_set():
                await asyncio.sleep(0)
            return {"type": "http.disconnect"}

        with pytest.raises(ClientDisconnect):
            await service.compute(Request({"type": "http"}, receive), endless)

    asyncio.run(ask())
    assert ended.wait(300)
