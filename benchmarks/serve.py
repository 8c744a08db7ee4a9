"""A server under load next to ``embed`` on the same sentences: throughput, waiting times, and what
a stop loses.

    python benchmarks/serve.py CORPUS --lines 4000 --rounds 3

The clients are one process that writes prepared requests and reads answers without parsing them.
Wall-clock figures mean something on an idle machine only; processor seconds, which are given too,
on any.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import torch

import promptcli as pc
from promptcli.data.rows import open_rows
from promptcli.embedding.writing import VectorWriter


def message(texts: list[str], model: str = "mini") -> bytes:
    body = json.dumps({"model": model, "input": texts, "encoding_format": "base64"}).encode()
    return (
        "POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


class Client:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._port, self._streams = port, None

    async def ask(self, request: bytes) -> int:
        """Return the status of the answer, read to its end."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))
        if b"connection: close" in head:
            writer.close()
            self._streams = None
        return int(head.split()[1])


async def closed_loop(port: int, requests: list[bytes], clients: int) -> float:
    """Return the seconds that some clients take for all requests, each asking again once it is
    answered.
    """
    left = iter(requests)

    async def run() -> None:
        client = Client(port)
        for request in left:
            assert await client.ask(request) == 200

    start = time.perf_counter()
    await asyncio.gather(*(run() for _ in range(clients)))
    return time.perf_counter() - start


async def alone(port: int, requests: list[bytes]) -> list[float]:
    """Return the seconds of each request of a single client."""
    client, times = Client(port), []
    for request in requests:
        start = time.perf_counter()
        assert await client.ask(request) == 200
        times.append(time.perf_counter() - start)
    return times


async def open_loop(port: int, requests: list[bytes], rate: float, clients: int) -> list[float]:
    """Return the seconds from when each request was due.

    They are due at random, ``rate`` a second.
    """
    free: asyncio.Queue[Client] = asyncio.Queue()
    for _ in range(clients):
        free.put_nowait(Client(port))
    times: list[float] = []

    async def one(request: bytes, due: float) -> None:
        client = await free.get()
        assert await client.ask(request) == 200
        times.append(time.perf_counter() - due)
        free.put_nowait(client)

    due, chance, tasks = time.perf_counter(), random.Random(0), []
    for request in requests:
        due += chance.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(request, due)))
    await asyncio.gather(*tasks)
    return times


async def stopped_under_load(
    server: psutil.Popen, port: int, requests: list[bytes], clients: int
) -> tuple[int, int]:
    """Return how many requests were answered and how many were not, of those sent, when SIGTERM
    comes in between.
    """
    answered = lost = 0
    endless = itertools.cycle(requests)

    async def run() -> None:
        nonlocal answered, lost
        client = Client(port)
        while True:
            if client._streams is None:
                try:
                    client._streams = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    return  # refused before anything was sent
            try:
                assert await client.ask(next(endless)) == 200
                answered += 1
            except (OSError, asyncio.IncompleteReadError):
                lost += 1
                return
            if answered == 10 * clients:
                server.send_signal(signal.SIGTERM)

    await asyncio.gather(*(run() for _ in range(clients)))
    return answered, lost


@contextlib.contextmanager
def serving(threads: int):
    command = [
        sys.executable,
        "-m",
        "promptcli",
        "serve",
        "--model",
        "mini",
        "--port",
        "0",
        "--threads",
        str(threads),
        "--offline",
    ]
    with psutil.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            yield server, int(re.search(r":(\d+)$", next(server.stderr))[1])
        finally:
            if server.poll() is None:
                server.terminate()


def embed(encoder: pc.Encoder, lines: list[str]) -> tuple[float, float]:
    """Return the seconds and the processor seconds that ``embed`` takes, without start and load."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "in.txt")
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        start, before = time.perf_counter(), time.process_time()
        with open_rows(path) as source:
            VectorWriter(encoder).write_file(source, Path(folder, "out.npy"))
        return time.perf_counter() - start, time.process_time() - before


def at(share: float, times: list[float]) -> float:
    return sorted(times)[min(len(times) - 1, int(share * len(times)))] * 1000


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--lines", type=int, default=4000)
    parser.add_argument("--texts", type=int, default=32, help="texts of a request")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--singles", type=int, default=2000, help="requests of one text, for the waiting times"
    )
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with arguments.corpus.open(encoding="utf-8") as file:
        lines = [line.strip() for line in itertools.islice(file, arguments.lines)]
    many = [
        message(lines[start : start + arguments.texts])
        for start in range(0, len(lines), arguments.texts)
    ]
    single = [message([line]) for line in lines[: arguments.singles]]
    torch.set_num_threads(arguments.threads)
    encoder = pc.load("mini", dtype="auto")  # what `embed` and `serve` take
    embed(encoder, lines[:500])  # every shape has been met
    print(
        f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores,"
        f" {arguments.threads} threads"
    )
    with serving(arguments.threads) as (server, port):
        asyncio.run(closed_loop(port, many[: arguments.clients], arguments.clients))
        shares = []
        for number in range(arguments.rounds):
            plain, cost = embed(encoder, lines)
            before = sum(server.cpu_times()[:2])
            seconds = asyncio.run(closed_loop(port, many, arguments.clients))
            used = sum(server.cpu_times()[:2]) - before
            shares.append((plain / seconds, cost / used))
            print(
                f"round {number + 1}: embed {len(lines) / plain:,.0f} sentences/s, {cost:.1f}"
                f" processor seconds; {arguments.clients} clients of {arguments.texts} texts"
                f" {len(lines) / seconds:,.0f} sentences/s ({plain / seconds:.2f}), {used:.1f}"
                f" processor seconds ({cost / used:.2f})"
            )
        wall, processor = (statistics.median(column) for column in zip(*shares, strict=True))
        print(
            f"share of embed's throughput, median: {wall:.2f}; by processor seconds:"
            f" {processor:.2f}"
        )
        for number in range(arguments.rounds):
            first = asyncio.run(alone(port, single[:200]))
            top = len(single) / asyncio.run(closed_loop(port, single, arguments.clients))
            half = asyncio.run(
                open_loop(port, single[: len(single) // 2], top / 2, arguments.clients)
            )
            again = asyncio.run(alone(port, single[:200]))
            both = [*first, *again]
            print(
                f"round {number + 1}, one text a request: alone median {at(0.5, both):.1f} ms, p99"
                f" {at(0.99, both):.1f}; at most {top:,.0f} requests/s; at half of that median"
                f" {at(0.5, half):.1f}, p90 {at(0.9, half):.1f}, p99 {at(0.99, half):.1f} ms"
            )
            print(
                f"  p99 at half load is {at(0.99, half) / at(0.5, both):.2f} times the median"
                f" alone, {at(0.99, half) / at(0.99, both):.2f} times the p99 alone"
            )
        answered, lost = asyncio.run(stopped_under_load(server, port, single, arguments.clients))
        print(f"SIGTERM under load: {answered:,} answered, {lost} lost, exit code {server.wait()}")


if __name__ == "__main__":
    main()
