"""Sentences per second, promptcli next to sentence-transformers: same weights, same sentences, same
machine, same run.

    python benchmarks/speed.py CORPUS [--lines 10000] [--rounds 3] [--models mini-bert,6x384,12x768]
    [--backends FOLDER]

The peer runs its defaults (float32, batches of 32). ``--backends`` adds ours on each backend,
graphs kept in FOLDER and OpenVINO's own form of benchmark: an asynchronous queue for throughput,
batches of 32 of the sorted sentences. ``mini-bert`` is the shipped backbone; the others have random
weights and its vocabulary: speed does not depend on what the weights are. Rounds are interleaved;
medians are printed, and with ``--json FILE`` written.
"""

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from shapes import random_backbone

from promptcli.backbones.devices import choose_dtype
from promptcli.backbones.model_folder import SHIPPED_BACKBONES
from promptcli.encoder.encoder import build_encoder
from promptcli.models.loading import BACKENDS
from promptcli.plugins.graphs.backends import GraphBackend
from promptcli.recipe import Recipe

MAX_LENGTH = 128


def openvino_form(folder: Path, graph: Path, precision: str) -> Callable[[list[str]], np.ndarray]:
    """Return OpenVINO's own way to run a graph: its queue and its settings for throughput."""
    import openvino
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    settings = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": precision}
    compiled = openvino.Core().compile_model(graph, "CPU", settings)

    def encode(lines: list[str]) -> np.ndarray:
        order = np.argsort([-len(line) for line in lines], kind="stable")
        vectors = np.empty(
            (len(lines), compiled.output(0).partial_shape[1].get_length()), np.float32
        )
        jobs = openvino.AsyncInferQueue(compiled)

        def take(request, rows: np.ndarray) -> None:
            vectors[rows] = request.get_output_tensor(0).data

        jobs.set_callback(take)
        for start in range(0, len(order), 32):
            rows = order[start : start + 32]
            texts = [lines[row] for row in rows]
            batch = tokenizer(
                texts, padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="np"
            )
            jobs.start_async([batch["input_ids"], batch["attention_mask"]], rows)
        jobs.wait_all()
        return vectors

    return encode


def on_backends(
    recipe: Recipe, folder: Path, graphs: Path
) -> dict[str, Callable[[list[str]], np.ndarray]]:
    """Return ours on each backend that is installed, and OpenVINO's own form on the same graph."""
    found = {}
    runs = [
        (name, dtype)
        for name, backend in BACKENDS.items()
        if isinstance(backend, GraphBackend)
        for dtype in backend.dtypes
    ]
    for name, dtype in runs:
        if dtype == "bfloat16" and choose_dtype("auto", "cpu") is torch.float32:
            continue
        row = BACKENDS[name]
        encoder = row(recipe, folder=graphs, rows=None, calibration=(), dtype=dtype)
        found[f"promptcli {name} {dtype}"] = encoder.encode
        if name == "openvino":
            (graph,) = graphs.glob(f"{encoder.fingerprint[:32]}-openvino-[0-9]*/openvino_model.xml")
            found[f"OpenVINO's own form {dtype}"] = openvino_form(
                folder, graph, {"float32": "f32"}.get(dtype, "bf16")
            )
    return found


def contestants(
    folder: Path, backbone: str, graphs: Path | None
) -> dict[str, Callable[[list[str]], np.ndarray]]:
    """Return the encode functions by name, the peer first."""
    word = Transformer(str(folder), max_seq_length=MAX_LENGTH, model_args={"dtype": torch.float32})
    peer = SentenceTransformer(
        modules=[word, Pooling(word.get_embedding_dimension(), "mean")], device="cpu"
    )
    recipe = Recipe(backbone=backbone, pooling="last/avg", max_length=MAX_LENGTH)
    ours = {"promptcli float32": build_encoder(recipe, device="cpu", dtype="float32")}
    if choose_dtype("auto", "cpu") is not torch.float32:
        ours["promptcli default (bfloat16)"] = build_encoder(recipe, device="cpu", dtype="auto")
    return {
        "sentence-transformers": lambda lines: peer.encode(lines, show_progress_bar=False),
        **{name: encoder.encode for name, encoder in ours.items()},
        **(on_backends(recipe, folder, graphs) if graphs else {}),
    }


def lowest_cosine(first: np.ndarray, second: np.ndarray) -> float:
    """Return the smallest cosine between equal rows."""
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return float(((first.astype(np.float64) * second).sum(1) / norms).min())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default="mini-bert,6x384,12x768")
    parser.add_argument("--backends", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = []
    logging.disable(logging.WARNING)
    with arguments.corpus.open(encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line, _ in zip(file, range(arguments.lines), strict=False)]
    for name in arguments.models.split(","):
        with tempfile.TemporaryDirectory() as temporary:
            folder = (
                SHIPPED_BACKBONES[name]
                if name in SHIPPED_BACKBONES
                else random_backbone(name, Path(temporary))
            )
            runs = contestants(
                folder, name if name in SHIPPED_BACKBONES else str(folder), arguments.backends
            )
            seconds: dict[str, list[float]] = {run: [] for run in runs}
            vectors: dict[str, np.ndarray] = {}
            for encode in runs.values():
                encode(lines[:256])
            for number in range(arguments.rounds):
                for run, encode in runs.items():
                    start = time.perf_counter()
                    vectors[run] = encode(lines)
                    seconds[run].append(time.perf_counter() - start)
                    print(
                        f"{name} round {number + 1} {run}: {len(lines) / seconds[run][-1]:.0f}/s",
                        file=sys.stderr,
                    )
            peer = statistics.median(seconds["sentence-transformers"])
            for run in runs:
                median = statistics.median(seconds[run])
                result = {
                    "model": name,
                    "run": run,
                    "sentences_per_second": round(len(lines) / median),
                    "times_peer": round(peer / median, 2),
                    "lowest_cosine_to_peer": round(
                        lowest_cosine(vectors["sentence-transformers"], vectors[run]), 7
                    ),
                    "lines": len(lines),
                    "rounds": arguments.rounds,
                    "threads": torch.get_num_threads(),
                }
                results.append(result)
                print(json.dumps(result), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
