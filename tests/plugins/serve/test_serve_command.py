"""``promptcli serve`` as a user types it: what it refuses before it loads anything, and how it
ends.
"""

import importlib.util
import json
import re
import signal
import socket
import urllib.request

import pytest

pytest.importorskip("starlette", reason="serve needs starlette: pip install '.[serve]'")

import promptcli as pc
from promptcli.plugins.serve.serving import _listen
from promptcli.plugins.serve.settings import ServeSettings
from tests.comparing import refusal, refused
from tests.processes import Program
from tests.tiny import SENTENCES


def test_without_the_extra_one_line_names_it(run, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "uvicorn" else real(name)
    )
    assert refused(run("serve"), 2, "uvicorn", ".[serve]")


def test_a_name_alone_is_one_model_or_one_index():
    with refusal("no model 'minni'", pc.NotFoundError):
        pc.serve("minni", settings=ServeSettings(port=0))
    with refusal("no index in none;", pc.NotFoundError):
        pc.serve("mini-static", "none", settings=ServeSettings(port=0))


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--host", "203.0.113.7"), 1, ["203.0.113.7", "host"]),
        (("--host", "nowhere.example"), 1, ["nowhere.example", "not known"]),
        (("--host", "a" * 300), 1, ["cannot listen on", "host"]),
        (("--port", 70000), 2, ["--port"]),
        (("--port", "taken"), 1, ["127.0.0.1 port", "in use"]),
        (("minni", "--offline"), 3, ["minni", "did you mean mini?"]),
        (("mini", "-m", "mini"), 2, ["mini", "two models"]),
        (("--index", "none"), 3, ["no index"]),
        (("--index", "a/idx", "--index", "b/idx"), 2, ["'idx'", "rename"]),
    ],
)
def test_what_cannot_be_served_is_one_line(run, monkeypatch, options, code, says):
    real = socket.getaddrinfo

    def resolve(host, port, *arguments, **named):  # without asking a network
        if host == "nowhere.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if host == "203.0.113.7":
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]
        return real(host, port, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = [taken.getsockname()[1] if option == "taken" else option for option in options]
        assert refused(
            run("serve", *(() if "--port" in options else ("--port", 0)), *options), code, *says
        )


def test_an_answer_is_sent_without_delay():
    with (
        _listen(ServeSettings(port=0)) as listening,
        socket.create_connection(listening.getsockname()),
    ):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("key", ["a key", "key\n", "schlüssel"])
def test_a_key_that_no_request_can_send_is_refused(run, monkeypatch, key):
    monkeypatch.setenv("PROMPTCLI_API_KEY", key)
    refused(run("serve"), 2, "API key")


class Started:
    """The command as a new process that takes requests."""

    def __init__(self, *arguments):
        self.process = Program("serve", *arguments, "--port", "0", "--offline")
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"serving .* at http://127\.0\.0\.1:(\d+)\n", line.decode()):
                self.port = int(found[1])
                return
        raise AssertionError(self.lines)

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port))

    def until_in_work(self, requests):
        while True:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
                # and the one that asks
                if f"promptcli_requests_in_work {requests + 1}.0\n" in answer.read().decode():
                    return

    def until_refused(self):
        while True:
            try:
                self.connect().close()
            except ConnectionResetError:  # the socket was closed while it connected
                continue
            except ConnectionRefusedError:
                return


def post(path, body):
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def test_sigterm_answers_what_was_accepted(bert_folder):
    started = Started(bert_folder)
    body = json.dumps({"model": str(bert_folder), "input": SENTENCES}).encode()
    message = post("/v1/embeddings", body)
    accepted = [started.connect() for _ in range(5)]
    for number, connection in enumerate(accepted, 1):
        connection.sendall(message[:-number])
    started.until_in_work(5)
    started.process.send_signal(signal.SIGTERM)
    started.until_refused()
    for number, connection in enumerate(accepted, 1):
        connection.sendall(message[-number:])
    for connection in accepted:
        with connection, connection.makefile("rb") as stream:  # the server closes the connection
            head, _, content = stream.read().partition(b"\r\n\r\n")
        assert head.split()[1] == b"200" and len(json.loads(content)["data"]) == len(SENTENCES)
    rest = started.process.stderr.read()
    assert started.process.wait() == 0 and rest == b"stopped\n"


def test_a_second_signal_ends_at_once(bert_folder):
    started = Started(bert_folder)
    with started.connect() as unfinished:
        unfinished.sendall(post("/search", b"{ }")[:-1])
        started.until_in_work(1)
        started.process.send_signal(signal.SIGTERM)
        started.until_refused()
        started.process.send_signal(signal.SIGTERM)
        rest = started.process.stderr.read()
    assert started.process.wait() == 1 and b"dropped" in rest and b"Traceback" not in rest
