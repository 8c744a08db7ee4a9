"""Models behind an endpoint of OpenAI's form: requests, refusals and the key."""

import contextlib
import csv
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import promptcli as pc
from promptcli import PromptcliError, UsageError, notes
from promptcli.plugins.domain import endpoint
from promptcli.plugins.domain.endpoint import Endpoint
from tests.comparing import refusal, refused
from tests.plugins.domain.texts import write_letters

SECRET = "sk-very-secret-0123456789"


class Server:
    """An endpoint in this process, which answers with mini-static's vectors."""

    def __init__(self):
        self.requests = []
        self.retry_after = "0"
        self.answers = []  # statuses and documents to answer with first
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                length = int(self.headers["Content-Length"])
                content = json.loads(self.rfile.read(length))
                outer.requests.append((self.path, self.headers["Authorization"], content))
                status, document = 200, None
                if outer.answers:
                    status, document = outer.answers.pop(0)
                if document is None:
                    document = outer.embed(content["input"])
                body = document
                if not isinstance(body, bytes):
                    body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Retry-After", outer.retry_after)
                self.send_header("Location", "http://example.org/")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.model = f"openai:http://127.0.0.1:{self._server.server_port}/v1#small"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def embed(self, texts):
        vectors = pc.load("mini-static").encode(texts)
        rows = [
            {"index": number, "embedding": vector.tolist()} for number, vector in enumerate(vectors)
        ]
        return {"data": rows[::-1], "model": "small"}

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server():
    started = Server()
    yield started
    started.close()


@pytest.fixture
def letters(tmp_path, monkeypatch):
    monkeypatch.setattr("promptcli.plugins.domain.choosing.SHIPPED", ("mini-static",))
    return write_letters(tmp_path / "letters.csv")


def encode(endpoint, texts):
    return endpoint.encode(texts, lambda done: None)


def test_an_endpoint_is_a_row_as_good_as_the_same_model_here(run, server, letters, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    ran = run("choose", letters, "-m", server.model, "--json")
    assert ran.code == 0, ran.err
    by_way = {(way["model"], way["by"]): way for way in ran.json["ways"]}
    for by in ("meaning", "both"):
        there = by_way[server.model, by]
        assert there["ndcg"] == pytest.approx(by_way["mini-static", by]["ndcg"])
        assert there["megabytes"] is None
    assert "127.0.0.1" in ran.err  # the network is said
    path, authorization, content = server.requests[0]
    assert (path, authorization) == ("/v1/embeddings", f"Bearer {SECRET}")
    assert content["model"] == "small" and 0 < len(content["input"]) <= 64
    assert SECRET not in ran.out + ran.err


def test_the_best_that_a_search_can_take_is_advised_and_kept(run, server, letters):
    with letters.open() as file:
        rows = list(csv.reader(file))[1:]
    row_of = {text: number for number, row in enumerate(rows) for text in row}

    def perfect(texts):
        vectors = np.eye(len(rows) + 1)
        numbers = [row_of.get(text, len(rows)) for text in texts]
        data = [{"index": n, "embedding": vectors[row].tolist()} for n, row in enumerate(numbers)]
        return {"data": data}

    server.embed = perfect
    ran = run("choose", letters, "-m", server.model)
    assert ran.out.splitlines()[1].startswith(f"{server.model} ")
    assert f"best is {server.model}" in ran.err and f"use {server.model}" not in ran.err


def test_the_key_is_shown_nowhere(run, server, letters, home, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    server.answers = [(401, {"error": {"message": f"wrong key {SECRET}"}})]
    ran = run("choose", letters, "-m", server.model)
    assert (ran.code, ran.out) == (1, "")
    assert "401 Unauthorized" in ran.err and SECRET[:8] not in ran.err
    assert SECRET not in repr(Endpoint(server.model, SECRET))
    stored = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in content for content in stored)


@pytest.mark.parametrize("key", [f"{SECRET}\n{SECRET}", f"{SECRET} x", "schlüssel"])
def test_what_is_no_key_is_refused_without_being_shown(key):
    with pytest.raises(UsageError) as error:
        Endpoint("openai:http://localhost#x", key)
    assert key.split()[0] not in str(error.value)


def test_the_key_does_not_follow_a_redirection(server):
    server.answers = [(307, {})]
    with refusal("307", PromptcliError):
        encode(Endpoint(server.model, SECRET), ["a"])
    assert len(server.requests) == 1


def test_offline_refuses_an_endpoint(run, server, letters):
    refused(run("choose", letters, "-m", server.model, "--offline"), 2, "--offline")
    assert server.requests == []
    with notes.without_network(), pytest.raises(UsageError):
        pc.choose([letters], models=[server.model])


def test_a_busy_endpoint_is_asked_again(server):
    server.answers = [(429, {}), (503, {})]
    vectors = encode(Endpoint(server.model, None), ["one", "two"])
    assert vectors.shape == (2, 256) and len(server.requests) == 3
    np.testing.assert_allclose(vectors, pc.load("mini-static").encode(["one", "two"]), atol=1e-6)
    assert server.requests[0][1] is None  # no key, no header


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        {"data": [{"index": 0, "embedding": "AAAA"}]},
        {"data": [{"index": 1, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": [float("nan")]}]},
        {"data": []},
        {"data": [{"index": 0, "embedding": []}]},
        {"data": [{"index": 0, "embedding": [1e300]}]},
        b'{"data":[{"index":0,"embedding":[1' + b"0" * 400 + b"]}]}",
        b"[" * 200_000,
        b"\xff",
    ],
)
def test_an_answer_of_another_form_is_one_line(server, document):
    server.answers = [(200, document)]
    with refusal("small", PromptcliError):
        encode(Endpoint(server.model, None), ["a"])


def test_an_answer_has_a_limit_of_bytes(server, monkeypatch):
    monkeypatch.setattr(endpoint, "_MAX_ANSWER_BYTES", 1 << 20)
    server.answers = [(200, b" " * (2 << 20))]
    with refusal("more than 1 MiB", PromptcliError):
        encode(Endpoint(server.model, None), ["a"])


@pytest.mark.parametrize("sent", [b"HTTP/1.1 200 OK\r\n\r\n", b""])
def test_a_whole_answer_has_a_limit_of_time(sent, monkeypatch):
    """Of an endpoint that sends a byte now and then, of the head or of the body."""
    monkeypatch.setattr(endpoint, "_ANSWER_TIMEOUT_S", 0.1)
    listening = socket.create_server(("127.0.0.1", 0))

    def drip():
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(sent)
            for _ in range(200):
                connection.sendall(b"H")
                time.sleep(0.05)

    threading.Thread(target=drip, daemon=True).start()
    slow = Endpoint(f"openai:http://127.0.0.1:{listening.getsockname()[1]}#x", None)
    with listening, refusal(r"within|HTTP", PromptcliError):
        encode(slow, ["a"])


@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [("nan", 2), ("-5", 2), ("soon", 2), ("", 2), ("0", 0), ("7.5", 7.5), ("inf", 60)],
)
def test_a_pause_is_a_number_of_seconds(retry_after, seconds):
    assert endpoint._pause(retry_after, tries=1) == seconds


@pytest.mark.parametrize(
    "sent", [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n{}", b"no"]
)
def test_what_is_not_http_is_one_line(sent):
    listening = socket.create_server(("127.0.0.1", 0))

    def reply():
        with listening.accept()[0] as connection:
            connection.recv(1 << 16)
            connection.sendall(sent)

    threading.Thread(target=reply, daemon=True).start()
    odd = Endpoint(f"openai:http://127.0.0.1:{listening.getsockname()[1]}#x", None)
    with listening, refusal("check the URL", PromptcliError):
        encode(odd, ["a"])


@pytest.mark.parametrize(
    "typed",
    [
        "openai:http://localhost",
        "openai:#name",
        "openai:ftp://localhost#name",
        "openai:http://me:secret@localhost#name",
        "openai:http://localhost?key=secret#name",
        "openai:http://[#name",
    ],
)
def test_a_name_that_is_no_endpoint_is_refused(typed):
    with pytest.raises(UsageError) as error:
        Endpoint(typed, None)
    assert "secret" not in str(error.value)


def test_nobody_there_is_one_line(run, server, letters):
    server.close()
    ran = run("choose", letters, "-m", server.model)
    assert (ran.code, ran.out) == (1, "") and "Traceback" not in ran.err
    assert ran.err.splitlines()[-1].startswith("promptcli: 127.0.0.1")
