"""``promptcli serve`` as a user types it: what it refuses before it loads anything, and how it ends."""

import importlib.util
import json
import os
import re
import signal
import socket
import threading
import time
import urllib.request

import pytest

pytest.importorskip("starlette", reason="serve needs starlette: pip install 'promptcli[serve]'")

from promptcli.serving.batcher import Batcher
from tests.embed_running import refused
from tests.processes import Program
from tests.tiny import SENTENCES


def test_without_the_extra_one_line_names_it(run, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else real(name))
    assert refused(run("serve"), 2, "uvicorn", "promptcli[serve]")


def test_a_port_in_use_or_an_address_of_elsewhere_is_one_line(run, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert refused(run("serve", "--port", port), 1, f"127.0.0.1 port {port}", "in use", "--port")
    assert refused(run("serve", "--port", 70000), 2, "70000")

    def resolve(host, port, **options):  # without asking a network
        if host == "nowhere.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert refused(run("serve", "--host", "203.0.113.7", "--port", 0), 1, "203.0.113.7", "--host")
    assert refused(run("serve", "--host", "nowhere.example", "--port", 0), 1, "nowhere.example", "not known")


def test_what_is_not_there_is_one_line(run, tmp_path):
    assert refused(run("serve", "minni", "--port", 0, "--offline"), 3, "minni", "did you mean mini?")
    assert refused(run("serve", "--port", 0, "--index", tmp_path / "none"), 3, "no index")


def test_two_indexes_of_one_name_are_one_line(run, tmp_path, tiny_folder):
    (tmp_path / "in.txt").write_text("\n".join(SENTENCES))
    options = ("--backbone", tiny_folder("bert"), "--pooling", "last/avg", "--quiet")
    folders = [tmp_path / name / "idx" for name in ("a", "b")]
    for folder in folders:
        assert run("index", "build", tmp_path / "in.txt", "-o", folder, *options).code == 0
    given = [word for folder in folders for word in ("--index", folder)]
    assert refused(run("serve", tiny_folder("bert"), "--port", 0, *given), 2, "'idx'", "rename")


class Started:
    """The command as a process of its own, once it takes requests."""

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


def post(path, body):
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def answer_of(connection):
    """Return the status and the body of an answer; the server closes the connection."""
    with connection, connection.makefile("rb") as stream:
        text = stream.read()
    head, _, body = text.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def test_sigterm_finishes_what_was_accepted(tiny_folder):
    started = Started(tiny_folder("bert"))
    body = json.dumps({"model": str(tiny_folder("bert")), "input": SENTENCES}).encode()
    message = post("/v1/embeddings", body)
    accepted = [started.connect() for _ in range(5)]
    for number, connection in enumerate(accepted):
        connection.sendall(message[: len(message) * (number + 1) // 6])  # none of them whole yet
    with urllib.request.urlopen(f"http://127.0.0.1:{started.port}/health") as well:
        assert json.load(well)["status"] == "ok"
    started.process.send_signal(signal.SIGTERM)
    for number, connection in enumerate(accepted):
        connection.sendall(message[len(message) * (number + 1) // 6 :])
    for connection in accepted:
        status, found = answer_of(connection)
        assert status == 200 and len(found["data"]) == len(SENTENCES)
    rest = started.process.stderr.read()
    assert started.process.wait() == 0 and rest == b"stopped; 6 requests were answered\n"
    with pytest.raises(ConnectionRefusedError):
        started.connect()


def test_sigterm_does_not_wait_for_clients_that_stand_still(tiny_folder):
    started = Started(tiny_folder("bert"))
    half, deaf = started.connect(), socket.socket()
    half.sendall(b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nabc")
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.connect(("127.0.0.1", started.port))
    body = json.dumps({"model": str(tiny_folder("bert")), "input": SENTENCES * 200}).encode()
    deaf.sendall(post("/v1/embeddings", body))
    deaf.recv(1)  # its answer is on the way
    started.process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    started.process.stderr.read()
    assert started.process.wait() == 0 and time.monotonic() - began < 45  # a body may take 60 seconds otherwise
    for connection in (half, deaf):
        connection.close()


@pytest.mark.parametrize("host", [os.fsdecode(b"\xff"), "a" * 300])
def test_a_host_that_is_none_is_one_line(run, host):
    refused(run("serve", "--host", host), 1, "cannot listen on", "--host")


@pytest.mark.parametrize("key", ["a key", "key\n"])
def test_a_key_that_no_request_can_send_is_refused(run, monkeypatch, key):
    monkeypatch.setenv("PROMPTCLI_API_KEY", key)
    refused(run("serve"), 2, "PROMPTCLI_API_KEY holds blanks or line ends")


def test_a_second_signal_ends_at_once(run, tiny_folder, monkeypatch):
    """In this process: requests are in work that would never end."""
    hold, made = threading.Event(), []
    begun = threading.Event()
    real = Batcher.__init__

    def held(self, **options):
        real(self, **options)
        made.append(self)
        self.call(lambda progress: begun.set() or [progress(0) for _ in iter(lambda: hold.wait(0.01), True)])

    monkeypatch.setattr(Batcher, "__init__", held)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def signals():
        begun.wait()
        connection = None
        while connection is None:
            try:
                connection = socket.create_connection(("127.0.0.1", port))
            except ConnectionRefusedError:
                hold.wait(0.05)
        connection.sendall(post("/tokens", b'{"sentence": "The cat"}'))
        while not made[0]._calls:  # it waits behind what never ends
            hold.wait(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        with connection:
            while True:  # the second one may not be taken for the first
                try:
                    with socket.create_connection(("127.0.0.1", port)) as asking:
                        asking.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                        if b"stopping" in asking.recv(65536):
                            break
                except OSError:
                    break
            os.kill(os.getpid(), signal.SIGTERM)
            connection.recv(1)

    other = threading.Thread(target=signals)
    other.start()
    try:
        ran = run("serve", tiny_folder("bert"), "--port", port, "--offline")
    finally:
        hold.set()
        other.join()
    assert ran.code == 128 + signal.SIGTERM and "dropped" in ran.err
    assert not made[0].alive
