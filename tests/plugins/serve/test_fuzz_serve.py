"""Whatever a request's body holds: an answer of a documented status, its error in one shape, a
server that goes on.

PROMPTCLI_FUZZ is the number of inputs in all, as in ``test_fuzz.py``.
"""

import json
import os

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="serve needs starlette: pip install '.[serve]'")
from starlette.testclient import TestClient

from promptcli.errors import LONGEST_MESSAGE
from promptcli.plugins.serve.app import make_app
from promptcli.plugins.serve.service import Service
from promptcli.retrieval.sentence_index import SentenceIndex
from tests.fuzz.kinds import any_json
from tests.tiny import SENTENCES

INPUTS = int(os.environ.get("PROMPTCLI_FUZZ", "0"))
#: A sound body of every route that takes one.
BODIES = {
    "/v1/embeddings": {
        "model": "tiny",
        "input": SENTENCES[:2],
        "encoding_format": "float",
        "dimensions": 16,
    },
    "/search": {"query": ["a cat"], "index": "some", "k": 2, "min_score": 0.1, "where": "id >= 0"},
    "/similarity": {"a": SENTENCES[:2], "b": SENTENCES[2:4], "model": "tiny"},
}
MIB = 1 << 20
#: Bodies that take long to write down.
LARGE = {
    "10 MB of text": lambda name: json.dumps({name: "a" * 10 * MIB}).encode(),
    "7 MB of lists": lambda name: b'{"%s":' % name.encode() + b"[" * 7 * MIB,
    "a number of 7 MB": lambda name: b'{"%s":' % name.encode() + b"1" * 7 * MIB + b"}",
}


@pytest.fixture(scope="module")
def client(encoder):
    index = SentenceIndex.build(SENTENCES, encoder)
    with TestClient(
        make_app(Service({"tiny": encoder}, {"some": index})), base_url="http://127.0.0.1"
    ) as client:
        yield client


def holds(client, path, body):
    """Assert that an answer is well or an error in one shape, and return its status."""
    response = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code in (200, 400, 404, 413)
    if response.status_code != 200:
        error = response.json()["error"]
        assert (
            set(error) == {"message", "type", "param", "code"}
            and "Traceback" not in error["message"]
        )
        assert "\n" not in error["message"] and len(error["message"]) <= LONGEST_MESSAGE
    return response.status_code


@pytest.mark.parametrize("path", BODIES)
def test_whatever_a_body_holds(path, client):
    assert holds(client, path, json.dumps(BODIES[path]).encode()) == 200

    @settings(
        max_examples=max(INPUTS // 100, 12),
        derandomize=not INPUTS,
        database=None,
        phases=(Phase.generate, Phase.shrink) if INPUTS else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(any_json(json.dumps(BODIES[path]).encode()) | st.binary(max_size=60))
    def check(body):
        holds(client, path, body)

    check()
    assert holds(
        client, path, json.dumps({**BODIES[path], "\n" * 3000 + "x" * 3000: None}).encode()
    ) in (200, 400)
    for name in (name for name, value in BODIES[path].items() if isinstance(value, str)):
        assert holds(client, path, json.dumps({**BODIES[path], name: "x" * 3000}).encode()) in (
            200,
            400,
            404,
        )
    assert holds(client, path, json.dumps(BODIES[path]).encode()) == 200


#: Parts of a condition, among them those that take long to read if a pattern goes back.
PARTS = st.sampled_from(
    [
        *"id text = != <= > in like is null and or not ( ) , true 1e9 -0.5 'a' \"%_%\" `a b` ` '"
        ' " . é \0'.split(" "),
        *(
            "9" * 9000 + "x",
            "." * 9000,
            "'" + "''" * 4000,
            "%a" * 90,
            "id=1 or " * 600,
            "not " * 2000,
            "(" * 5000,
        ),
    ]
)


def test_whatever_a_condition_holds(client):
    @settings(
        max_examples=max(INPUTS // 50, 30),
        derandomize=not INPUTS,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        st.lists(PARTS, max_size=9).map(" ".join)
        | st.lists(PARTS, max_size=5).map("".join)
        | st.text(max_size=40)
    )
    def check(condition):
        body = json.dumps({**BODIES["/search"], "where": condition}).encode("utf-8", "replace")
        assert holds(client, "/search", body) in (200, 400)

    check()


@pytest.mark.parametrize("name", LARGE)
def test_large_bodies_are_refused(name, client):
    for path, field in (("/v1/embeddings", "input"), ("/search", "query")):
        assert holds(client, path, LARGE[name](field)) in (400, 413)
