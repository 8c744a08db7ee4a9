"""Embedding, head search and training on one device: sentences a second, share of its matrix rate,
share of time busy.

    python benchmarks/device_speed.py [--model 12x768] [--device auto] [--batch 256] [--steps 40]
    [--lines 200000]

The backbone is random with mini's vocabulary (12x768: BERT-base but for it); the sentences are the
demo's, numbered, so that all differ. A forward pass is counted as 24 d^2 operations a token and
layer, a training step as three of them; attention's own products and heads are left out, so the
shares are a little too low. They are of the rate at which the device multiplies matrices in that
precision, measured over 20 products. Busy is the share of the time in which a GPU ran a kernel, by
torch's profiler, in a short run of its own. Training's products are bfloat16 where the device has
it.
"""

import argparse
import functools
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
from torch.profiler import ProfilerActivity, profile

import promptcli
from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.devices import choose_device, choose_dtype, tf32_products
from promptcli.data.demo import SENTENCES_FILE
from promptcli.data.sources import development_task
from promptcli.encoder.encoder import build_encoder
from promptcli.encoder.prefetching import prefetch
from promptcli.recipe import Recipe
from promptcli.searching import search_heads
from promptcli.training.methods import find_method
from promptcli.training.optimizers import OPTIMIZERS
from promptcli.training.processes import Processes
from promptcli.training.trainer import Learner, Trainer

_WARM = 3
_RATE_RUNS = 5
_METHODS = ("promptbert", "simcse", "dcpcse", "optiprompt", "isbert")


def seconds_of(work: Callable[[], object], device: str) -> float:
    """Return the seconds of a piece of work, a GPU's queue included."""
    began = time.perf_counter()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - began


def matrix_rate(device: str, dtype: torch.dtype, shape: tuple[int, int, int]) -> float:
    """Return the measured rate of a matrix product, in 10^9 floating-point operations per second.

    Args:
        device: A torch device.
        dtype: Of the operands, which are random.
        shape: (rows, inner, columns) of the product. The median of some runs counts, each of
            several products, so that the wait for a GPU at its end counts little.
    """
    rows, inner, columns = shape
    a = torch.randn(rows, inner, device=device).to(dtype)
    b = torch.randn(inner, columns, device=device).to(dtype)
    seconds, products = [], 20 if device.startswith("cuda") else 5
    for _ in range(_RATE_RUNS):
        began = time.perf_counter()
        for _ in range(products):
            product = a @ b
        float(product[0, 0])  # a number asked for: work on a GPU is over
        seconds.append(time.perf_counter() - began)
    return 2 * rows * inner * columns * products / statistics.median(seconds) / 1e9


def busy_share(work: Callable[[], object], device: str) -> str:
    """Return the share of the time in which a GPU ran a kernel; nothing on a processor."""
    if not device.startswith("cuda"):
        return ""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        seconds = seconds_of(work, device)
    spans = sorted((one.time_range.start, one.time_range.end) for one in found.events())
    busy, until = 0.0, 0.0
    for start, end in spans:
        busy, until = busy + max(0.0, end - max(start, until)), max(until, end)
    return f"{busy / 1e6 / seconds:.2f}"


def training(
    name: str, folder: str, device: str, lines: list[str], batch: int
) -> Callable[[int], None]:
    """Return what trains so many steps by one method: both views, clipping and optimiser, as
    ``train`` does.
    """
    method = find_method(name, supervised=False)
    learner = Learner(
        method,
        method.small.replace(batch_size=batch, max_length=32),
        load_backbone(folder, device=device),
    )
    mixed = choose_dtype("auto", device) == torch.bfloat16
    trainer = Trainer(
        learner, Processes(Accelerator(cpu=device == "cpu"), device=device, mixed=mixed)
    )
    trainer.optimizer = OPTIMIZERS["adamw"](trainer.parameters, 1e-5, 0.0)

    def run(steps: int) -> None:
        rows = ((number * batch) % max(1, len(lines) - batch) for number in range(steps))
        parts = ([lines[first : first + batch]] for first in rows)
        for number, (part, sides) in enumerate(prefetch(learner.tokenize, parts)):
            trainer.gradients(number, part, sides)
            trainer.apply_gradients()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="12x768")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--lines", type=int, default=200_000)
    given = parser.parse_args()
    device = choose_device(given.device)
    layers, width = map(int, given.model.split("x"))
    demo = SENTENCES_FILE.read_text(encoding="utf-8").splitlines()
    lines = [f"{demo[row % len(demo)]} {row // len(demo)}" for row in range(given.lines)]
    shape = (8192, width, 4 * width)
    rates = {
        dtype: matrix_rate(device, dtype, shape)
        for dtype in {torch.float32, choose_dtype("auto", device)}
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(random_backbone(given.model, Path(temporary)))
        file = Path(temporary, "lines.txt")
        file.write_text("\n".join(lines), encoding="utf-8")
        few = lines[:2000]
        lengths = [min(len(row), 30) + 2 for row in load_backbone(folder).tokenizer.encode(few)]
        # 10^9 operations a sentence
        forward = 24 * width**2 * layers * sum(lengths) / len(few) / 1e9
        print(
            f"{given.model} on {device};"
            f" {', '.join(f'{dtype}: {rate:.0f} GFLOP/s' for dtype, rate in rates.items())}"
        )
        print(
            "| work | sentences/s | share of the matrix rate | busy |\n|---|---|---|---|",
            flush=True,
        )
        usual = str(choose_dtype("auto", device)).removeprefix("torch.")
        for dtype in dict.fromkeys(
            [usual, *(["tf32"] if device.startswith("cuda") else []), "float32"]
        ):
            recipe = Recipe(backbone=folder, pooling="first-last/avg", max_length=32)
            encoder = build_encoder(recipe, device=device, dtype=dtype)
            encoder.encode(few)
            pace = len(lines) / seconds_of(lambda: encoder.encode(lines), device)  # noqa: B023
            with tf32_products():
                rate = (
                    matrix_rate(device, torch.float32, shape)
                    if dtype == "tf32"
                    else rates[encoder.backbone.dtype]
                )
            busy = busy_share(lambda: encoder.encode(lines[:20_000]), device)  # noqa: B023
            print(
                f"| embed, {encoder.provenance['dtype']} | {pace:.0f} | {pace * forward / rate:.2f}"
                f" | {busy} |",
                flush=True,
            )
            embed = functools.partial(
                promptcli.embed, file, output=file.with_suffix(".npy"), model=encoder, force=True
            )
            pace = len(lines) / seconds_of(embed, device)
            busy = busy_share(embed, device)
            print(
                f"| the same, a text to .npy | {pace:.0f} | {pace * forward / rate:.2f} | {busy} |",
                flush=True,
            )
        task, recipe = development_task("demo:dev"), Recipe(backbone=folder)
        whole = build_encoder(recipe, device=device, dtype="float32")
        took = seconds_of(lambda: search_heads(whole, task, demo), device)
        print(f"| ditto-search on demo:dev, all heads: {took:.1f} s | | | |", flush=True)
        rate = rates[choose_dtype("auto", device)]
        for name in _METHODS:
            run = training(name, folder, device, lines, given.batch)
            run(_WARM)
            pace = given.batch * given.steps / seconds_of(lambda: run(given.steps), device)  # noqa: B023
            busy = busy_share(lambda: run(_WARM), device)  # noqa: B023
            print(
                f"| train {name}, two views | {pace:.0f} | {pace * 6 * forward / rate:.2f} |"
                f" {busy} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
