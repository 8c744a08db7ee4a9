"""Embedding, head search and training steps on one device, and their share of its matrix rate.

    python benchmarks/device_speed.py [--model 12x768] [--device auto] [--batch 256] [--steps 10] [--lines 5849]

The backbone is random with mini's vocabulary (12x768: BERT-base but for it), the sentences are the demo's. A forward
pass is counted as 24 d^2 operations a token and layer, a training step as three of them; attention's own products and
heads are left out, so the shares are a little too low. Embedding is in the device's own precision, the search in
float32, training with bfloat16 products where the device has them.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from accelerate import Accelerator
from shapes import random_backbone

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.devices import choose_device, choose_dtype, matrix_rate
from promptcli.backbones.loading import load_backbone
from promptcli.data.demo import SENTENCES
from promptcli.data.sources import development_task
from promptcli.encoder.encoder import build_encoder
from promptcli.recipe import Recipe
from promptcli.searching.heads import search_heads
from promptcli.training.learner import Learner
from promptcli.training.methods import METHODS, find_method
from promptcli.training.processes import Processes
from promptcli.training.trainer import Trainer

_WARM = 2


def seconds_of(work: Callable[[], object], device: str) -> float:
    """Return the seconds of a piece of work, a GPU's queue included."""
    began = time.perf_counter()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - began


def train_seconds(name: str, backbone: Backbone, device: str, lines: list[str], batch: int, steps: int) -> float:
    """Return the median seconds of a step of one method, both views and the optimiser included."""
    method = find_method(name, supervised=False)
    learner = Learner(method, method.small.replace(batch_size=batch, max_length=32), backbone)
    halves = choose_dtype("auto", device) == torch.bfloat16
    step = Trainer(learner, Processes(Accelerator(cpu=device == "cpu"), device=device, halves=halves))
    optimizer = torch.optim.AdamW(learner.trainable().values(), lr=1e-5)
    found = []
    for number in range(_WARM + steps):
        part = [lines[(number * batch + row) % len(lines)] for row in range(batch)]
        found.append(seconds_of(lambda: (step.gradients(number, [part]), optimizer.step()), device))  # noqa: B023
    return statistics.median(found[_WARM:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="12x768")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--lines", type=int, default=5849)
    given = parser.parse_args()
    device = choose_device(given.device)
    dtype = choose_dtype("auto", device)
    layers, width = map(int, given.model.split("x"))
    lines = SENTENCES.read_text(encoding="utf-8").splitlines()[: given.lines]
    rate = matrix_rate(device, dtype, (8192, width, 4 * width))
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(random_backbone(given.model, Path(temporary)))
        whole, halved = (load_backbone(folder, device=device, dtype=kind) for kind in (torch.float32, dtype))
        lengths = [min(len(row), 30) + 2 for row in whole.tokenizer.encode(lines)]
        forward = 24 * width**2 * layers * sum(lengths) / len(lines) / 1e9  # 10^9 operations a sentence
        print(f"{given.model} on {device}, {dtype}; one matrix product: {rate:.0f} GFLOP/s")
        print("| work | sentences/s | share of the matrix rate |\n|---|---|---|")
        encoder = build_encoder(Recipe(backbone=folder, pooling="first-last/avg", max_length=32), backbone=halved)
        encoder.encode(lines[:256])
        pace = len(lines) / seconds_of(lambda: encoder.encode(lines), device)
        print(f"| embed | {pace:.0f} | {pace * forward / rate:.2f} |", flush=True)
        task = development_task("demo:dev", None)
        took = seconds_of(lambda: search_heads(build_encoder(Recipe(), backbone=whole), task, lines), device)
        print(f"| ditto-search on demo:dev, all heads: {took:.1f} s | | |", flush=True)
        for name in (name for name, (unsupervised, _) in METHODS.items() if unsupervised):
            backbone = load_backbone(folder, device=device)
            pace = given.batch / train_seconds(name, backbone, device, lines, given.batch, given.steps)
            print(f"| train {name}, two views | {pace:.0f} | {pace * 6 * forward / rate:.2f} |", flush=True)


if __name__ == "__main__":
    main()
