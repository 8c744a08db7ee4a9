"""Sentences per second, promptcli next to sentence-transformers: same weights, same sentences, same machine, same run.

    python benchmarks/speed.py CORPUS [--lines 10000] [--rounds 3] [--models mini,6x384,12x768]

The peer runs its defaults (float32, batches of 32). ``mini`` is the shipped backbone; the others have random weights
and mini's vocabulary: speed does not depend on what the weights are. Rounds are interleaved; medians are printed.
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
from promptcli.backbones.pretrained import SHIPPED
from promptcli.encoder.encoder import build_encoder
from promptcli.encoder.recipe import Recipe

MAX_LENGTH = 128


def contestants(folder: Path, backbone: str) -> dict[str, Callable[[list[str]], np.ndarray]]:
    """Return the encode functions by name, the peer first."""
    word = Transformer(str(folder), max_seq_length=MAX_LENGTH, model_args={"dtype": torch.float32})
    peer = SentenceTransformer(modules=[word, Pooling(word.get_embedding_dimension(), "mean")], device="cpu")
    recipe = Recipe(backbone=backbone, pooling="last/avg", max_length=MAX_LENGTH)
    ours = {"promptcli float32": build_encoder(recipe, device="cpu", dtype="float32")}
    if choose_dtype("auto", "cpu") is not torch.float32:
        ours["promptcli default (bfloat16)"] = build_encoder(recipe, device="cpu", dtype="auto")
    return {
        "sentence-transformers": lambda lines: peer.encode(lines, show_progress_bar=False),
        **{name: encoder.encode for name, encoder in ours.items()},
    }


def lowest_cosine(first: np.ndarray, second: np.ndarray) -> float:
    """Return the smallest cosine between equal rows."""
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return float(((first.astype(np.float64) * second).sum(1) / norms).min())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default="mini,6x384,12x768")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    with given.corpus.open(encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line, _ in zip(file, range(given.lines), strict=False)]
    for name in given.models.split(","):
        with tempfile.TemporaryDirectory() as temporary:
            folder = SHIPPED[name] if name in SHIPPED else random_backbone(name, Path(temporary))
            runs = contestants(folder, name if name in SHIPPED else str(folder))
            seconds: dict[str, list[float]] = {run: [] for run in runs}
            vectors: dict[str, np.ndarray] = {}
            for encode in runs.values():
                encode(lines[:256])
            for number in range(given.rounds):
                for run, encode in runs.items():
                    start = time.perf_counter()
                    vectors[run] = encode(lines)
                    seconds[run].append(time.perf_counter() - start)
                    print(f"{name} round {number + 1} {run}: {len(lines) / seconds[run][-1]:.0f}/s", file=sys.stderr)
            peer = statistics.median(seconds["sentence-transformers"])
            for run in runs:
                median = statistics.median(seconds[run])
                print(
                    json.dumps(
                        {
                            "model": name,
                            "run": run,
                            "sentences_per_second": round(len(lines) / median),
                            "times_peer": round(peer / median, 2),
                            "lowest_cosine_to_peer": round(
                                lowest_cosine(vectors["sentence-transformers"], vectors[run]), 7
                            ),
                            "lines": len(lines),
                            "rounds": given.rounds,
                            "threads": torch.get_num_threads(),
                        }
                    ),
                    flush=True,
                )


if __name__ == "__main__":
    main()
