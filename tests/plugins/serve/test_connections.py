"""Connections of clients that ask for nothing or never read, limits of descriptors, and the end of
a server.
"""

import asyncio
import contextlib
import errno
import socket
import threading
from unittest import mock

import pytest

pytest.importorskip(
    "uvicorn", reason="serve needs uvicorn: pip install 'promptcli-encoders[serve]'"
)
import uvicorn

from promptcli.encoder.encoder import TorchEncoder
from promptcli.plugins.serve import connections as serving
from promptcli.plugins.serve.app import make_app
from promptcli.plugins.serve.connections import Connection, Connections, make_server
from promptcli.plugins.serve.service import Service
from promptcli.plugins.serve.settings import ServeSettings
from promptcli.threads import Worker, computing

GET = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class Clock:
    """A loop's time, set by the test."""

    def __init__(self):
        self.now = 100.0

    def time(self):
        return self.now


class FakeNetwork:
    """Connections on a clock; their transports write nothing."""

    def __init__(self, most=99):
        self.clock, self.connections = Clock(), Connections(most)
        self.config = uvicorn.Config(
            lambda scope: None, http=Connection, ws="none", log_config=None
        )

    def connect(self):
        connection = Connection(self.config, self.connections, {}, self.clock)
        transport = mock.Mock(spec=asyncio.Transport)
        transport.is_closing.return_value, transport.get_write_buffer_size.return_value = False, 0
        transport.get_extra_info.return_value = None
        transport.abort.side_effect = lambda: setattr(transport.is_closing, "return_value", True)
        connection.connection_made(transport)
        return connection

    def wait(self, seconds):
        for _ in range(seconds):
            self.clock.now += 1
            for connection in list(self.connections.connections):
                connection.close_if_late()


def is_closed(connection):
    return connection.transport.abort.called


def test_a_connection_without_a_request_is_closed_after_a_time():
    network = FakeNetwork()
    silent, asking, half = network.connect(), network.connect(), network.connect()
    asking.cycle = mock.Mock(response_complete=False)
    network.wait(20)
    half.conn.receive_data(GET[:20])
    network.wait(10)
    assert not is_closed(silent)
    network.wait(1)
    assert is_closed(silent) and is_closed(half) and not is_closed(asking)
    network.wait(100)
    assert not is_closed(asking)
    asking.cycle.response_complete, asking.idle_since = True, network.clock.now
    network.wait(30)
    assert not is_closed(asking)
    network.wait(1)
    assert is_closed(asking)


@pytest.mark.parametrize("complete", [False, True])
def test_a_client_that_takes_nothing_of_its_answer_is_cut_off_and_a_slow_one_is_not(complete):
    network = FakeNetwork()
    never, slow = network.connect(), network.connect()
    for connection in (never, slow):
        connection.cycle = mock.Mock(response_complete=complete)
        connection.transport.get_write_buffer_size.return_value = 50_000
    for left in range(9, 0, -1):
        network.wait(10)
        slow.transport.get_write_buffer_size.return_value = left * 5000
    assert is_closed(never) and not is_closed(slow)


def test_the_one_that_waits_longest_makes_room_and_it_is_said_once(notes):
    network = FakeNetwork(most=3)
    working, *idle = [network.connect() for _ in range(3)]
    working.cycle = mock.Mock(response_complete=False)
    for since, connection in enumerate(network.connections.connections):
        connection.idle_since = since
    oldest = min(idle, key=lambda connection: connection.idle_since)
    new = [network.connect() for _ in range(2)]
    assert (
        is_closed(oldest) and all(map(is_closed, idle)) and not any(map(is_closed, [working, *new]))
    )
    assert len(notes) == 1 and "3 connections" in notes.text and "ulimit -n" in notes.text
    for connection in new:
        connection.cycle = mock.Mock(response_complete=False)
    assert is_closed(network.connect()), "all others are in work"


def test_the_number_of_connections_fits_the_descriptors(encoder, monkeypatch):
    def most(allowed, settings=None):
        monkeypatch.setattr(serving.resource, "getrlimit", lambda kind: (allowed, allowed))
        monkeypatch.setattr(serving.os, "listdir", lambda folder: range(20))
        service = Service({"tiny": encoder}, settings=settings)
        return make_server(make_app(service), service).server_state.max_count, service.max_requests

    assert most(100) == (48, 24)
    assert most(10) == (4, 2)
    assert most(100_000) == (1024, 512)
    assert most(serving.resource.RLIM_INFINITY, ServeSettings(max_connections=9)) == (9, 4)


@contextlib.asynccontextmanager
async def running(service):
    """A server on a free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = make_server(make_app(service), service)
        task = asyncio.create_task(server._serve([listening]))
        while not server.started:
            await asyncio.sleep(0)
        try:
            yield server, listening.getsockname()[1]
        finally:
            server.should_exit = True
            await task


async def connect(port):
    return await asyncio.open_connection("127.0.0.1", port)


async def health(port):
    reader, writer = await connect(port)
    writer.write(GET)
    head = await reader.readuntil(b"\r\n")
    writer.close()
    return head


def test_others_are_answered_next_to_any_number_of_silent_connections(encoder, monkeypatch):
    async def ask():
        service = Service({"tiny": encoder}, settings=ServeSettings(max_connections=8))
        async with running(service) as (server, port):
            silent = [await connect(port) for _ in range(40)]
            for _, writer in silent[::2]:
                writer.write(GET[:20])
            assert b" 200 " in await health(port)
            assert len(server.server_state.connections) <= 8
            first, _ = silent[0]
            assert await first.read() == b"", "the oldest are closed"
            for _, writer in silent:
                writer.close()

    asyncio.run(ask())


def test_a_full_table_of_descriptors_is_one_line_in_the_log(encoder, notes):
    async def ask():
        async with running(Service({"tiny": encoder})) as (_, port):
            for _ in range(3):
                error = OSError(errno.EMFILE, "Too many open files")
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "accept", "exception": error}
                )
            assert b" 200 " in await health(port)

    asyncio.run(ask())
    assert len(notes) == 1 and "descriptors" in notes.text


def test_what_has_been_sent_before_the_end_is_answered(encoder):
    clients = [socket.socket() for _ in range(3 * serving._ACCEPTED_AT_A_TIME)]

    async def ask():
        service = Service({"tiny": encoder})
        listening = socket.create_server(("127.0.0.1", 0))
        server = make_server(make_app(service), service)
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup([listening])
        for client in clients:  # no step of the loop between these and the end
            client.connect(listening.getsockname())
            client.sendall(GET)
        await server.shutdown([listening])

    asyncio.run(ask())
    answers = []
    for client in clients:
        with client:
            answers.append(client.recv(12))
    assert answers == [b"HTTP/1.1 200"] * len(clients)


def test_a_server_ends_whatever_its_threads_compute(encoder, monkeypatch):
    monkeypatch.setattr(serving, "DRAIN_TIMEOUT_S", 0)
    service, go = Service({"tiny": encoder}), threading.Event()
    body = b'{"model": "tiny", "input": "x"}'
    head = (
        "POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )

    async def ask():
        async with running(service) as (_, port):
            _, writer = await connect(port)
            writer.write(head.encode() + body)
            while not computing():
                await asyncio.sleep(0)
        writer.close()

    monkeypatch.setattr(TorchEncoder, "encode_report", lambda self, texts: go.wait())
    asyncio.run(ask())
    assert service.dropped == 1 and computing()
    go.set()


def test_a_worker_hands_back_what_its_work_raises():
    class Panic(BaseException):
        pass

    def fail(error):
        raise error

    worker = Worker()
    assert worker.submit(lambda first, second: first + second, 1, second=2).result(60) == 3
    with pytest.raises(ValueError, match="bad"):
        worker.submit(fail, ValueError("bad")).result(60)
    with pytest.raises(RuntimeError, match="Panic: worse"):
        worker.submit(fail, Panic("worse")).result(60)
    assert worker.submit(lambda: threading.current_thread().daemon).result(60)
