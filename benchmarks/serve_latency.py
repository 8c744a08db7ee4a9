"""Milliseconds of requests of one sentence: promptcli and sentence-transformers behind the same
server, in one run.

    python benchmarks/serve_latency.py MODEL CORPUS [--requests 300] [--rounds 3]

MODEL is a folder of sentence-transformers. Every program is a server process of its own; one client
asks one after the other, in rounds that alternate. The server is ``serve``'s, the program in it
computes the vectors.
"""

import argparse
import asyncio
import itertools
import logging
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from serve import alone, at, message

PROGRAMS = {
    "sentence-transformers": {},
    "promptcli float32": {"dtype": "float32"},
    "promptcli default": {"dtype": "auto"},
    "promptcli openvino": {"dtype": "auto", "backend": "openvino"},
    "promptcli openvino-int8": {"dtype": "int8", "backend": "openvino-int8"},
}


def serve(program: str, model: Path) -> None:
    """Serve a model at a free port until SIGTERM."""
    import promptcli as pc
    from promptcli.encoder.embeddings import Embeddings
    from promptcli.plugins.serve.serving import serve as run
    from promptcli.plugins.serve.settings import ServeSettings

    encoder = pc.load(model, device="cpu", **PROGRAMS[program])
    if program == "sentence-transformers":
        from sentence_transformers import SentenceTransformer

        peer = SentenceTransformer(str(model), device="cpu")

        def encode(texts: list[str]) -> Embeddings:
            ones = np.ones(len(texts), np.int64)
            return Embeddings(peer.encode(texts, show_progress_bar=False), ones < 1, ones)

        encoder.encode_report = encode
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    run([encoder], settings=ServeSettings(port=0))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.program:
        serve(arguments.program, arguments.model)
        return
    with arguments.corpus.open(encoding="utf-8") as file:
        lines = [
            line.strip() for line in itertools.islice(file, arguments.requests * arguments.rounds)
        ]
    servers, times = {}, {program: [] for program in PROGRAMS}
    for program in PROGRAMS:
        command = [sys.executable, *sys.argv, "--program", program]
        servers[program] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    ports = {}
    for program, server in servers.items():
        ports[program] = next(
            int(found[1])
            for line in server.stdout
            if (found := re.search(r"http://.*:(\d+)$", line))
        )
        asyncio.run(alone(ports[program], [message([line], "encoder") for line in lines[:20]]))
    for number in range(arguments.rounds):
        requests = [
            message([line], "encoder")
            for line in lines[number * arguments.requests : (number + 1) * arguments.requests]
        ]
        for program in PROGRAMS:
            times[program] += asyncio.run(alone(ports[program], requests))
    print("| program | median, ms | 99th percentile, ms | times the median |\n|---|---|---|---|")
    for program, taken in times.items():
        ratio = at(0.5, times["sentence-transformers"]) / at(0.5, taken)
        print(
            f"| {program} | {at(0.5, taken):.1f} | {at(0.99, taken):.1f} | {ratio:.2f} |",
            flush=True,
        )
        servers[program].terminate()


if __name__ == "__main__":
    main()
