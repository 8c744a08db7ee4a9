"""Embedding, head search and training on one device: sentences a second, share of its matrix rate,
share of time busy.

    python benchmarks/device_speed.py [--model 12x768] [--device auto] [--batch 256] [--steps 40]
    [--lines 200000] [--compiled]

The backbone is random with mini's vocabulary (12x768: BERT-base but for it); the sentences are the
demo's, numbered, so that all differ. A forward pass is counted as 24 d^2 operations a token and
layer, a training step as three of them; attention's own products and heads are left out, so the
shares are a little too low. They are of the rate at which the device multiplies matrices in that
precision, measured over 20 products. Busy is the share of the time in which a GPU ran a kernel, by
torch's profiler, in a short run of its own. Training's products are bfloat16 where the device has
it. ``--compiled`` measures SimCSE in batches of that size and of twice that size, and embedding,
each without and with torch.compile. The first seconds are those of a first run, which compiles.
"""

import argparse
import functools
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from shapes import random_backbone
from torch.profiler import ProfilerActivity, profile

import promptcli
from promptcli.backbones.backbone import COMPILE_OPTIONS
from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.devices import choose_device, choose_dtype, tf32_products
from promptcli.data.demo import SENTENCES_FILE
from promptcli.data.training_data import development_task
from promptcli.encoder.embeddings import prefetch
from promptcli.encoder.encoder import build_encoder
from promptcli.recipe import Recipe
from promptcli.select.head_search import search_heads
from promptcli.training.methods import find_method
from promptcli.training.methods.method import ConfiguredMethod
from promptcli.training.objectives import find_objective
from promptcli.training.step import OPTIMIZERS, Processes, TrainingStep
from promptcli.training.trainable_encoder import TrainableEncoder

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


def show_row(
    what: str,
    device: str,
    share_of: float,
    count: int,
    *,
    first: Callable[[], object],
    work: Callable[[], object],
    short: Callable[[], object],
) -> None:
    """Print a row of the table, at once.

    Args:
        what: Its name.
        device: Where the work is done.
        share_of: The sentences/s that the device's matrix rate allows.
        count: Sentences of the work.
        first: What is done before; its seconds are shown.
        work: What is measured.
        short: A part of it, by which the share of the time is measured in which a GPU is busy.
    """
    began = seconds_of(first, device)
    pace = count / seconds_of(work, device)
    busy = busy_share(short, device)
    print(
        f"| {what} | {pace:.0f} | {pace / share_of:.2f} | {busy} | {began:.1f} |",
        flush=True,
    )


def training(
    name: str, folder: str, device: str, lines: list[str], batch: int, *, compiled: bool = False
) -> Callable[[int], None]:
    """Return what trains so many steps by one method: both views, clipping and optimiser, as
    ``train`` does.
    """
    method = find_method(name, supervised=False)
    settings = method.mini_bert_settings.replace(batch_size=batch, max_length=32, compile=compiled)
    backbone = load_backbone(folder, device=device)
    configured = ConfiguredMethod(method, settings, folder, backbone.provenance.family)
    learner = TrainableEncoder(configured, backbone, find_objective(method))
    mixed = choose_dtype("auto", device) == torch.bfloat16
    trainer = TrainingStep(learner, Processes(device=device, mixed=mixed))
    trainer.optimizer = OPTIMIZERS["adamw"](trainer.parameters, 1e-5, 0.0)

    def run(steps: int) -> None:
        rows = ((number * batch) % max(1, len(lines) - batch) for number in range(steps))
        parts = ([lines[first : first + batch]] for first in rows)
        for number, tokenized in enumerate(prefetch(trainer.tokenize, parts)):
            trainer.gradients(number, tokenized)
            trainer.apply_gradients()

    return run


def show_steps(
    what: str,
    run: Callable[[int], None],
    device: str,
    forwards: float,
    batch: int,
    steps: int,
    warm: int = _WARM,
) -> None:
    """Print the row of a training by its steps, each three forward passes of two views.

    ``forwards``: the sentences/s of a forward pass that the device's matrix rate allows.
    """
    show_row(
        what,
        device,
        forwards / 6,
        batch * steps,
        first=functools.partial(run, warm),
        work=functools.partial(run, steps),
        short=functools.partial(run, _WARM),
    )


def show_compiled(
    folder: str, device: str, lines: list[str], batch: int, steps: int, forwards: float
) -> None:
    """Print SimCSE in batches of two sizes, and embedding, without torch.compile and with it."""
    for size, compiled in itertools.product((batch, 2 * batch), (False, True)):
        torch.compiler.reset()  # else a second shape is compiled for every size
        run = training("simcse", folder, device, lines, size, compiled=compiled)
        what = f"train simcse, batches of {size}{', compiled' if compiled else ''}"
        # whose first run has all shapes of the second
        show_steps(what, run, device, forwards, size, steps, warm=steps)
    recipe = Recipe(backbone=folder, pooling="last/cls", max_length=32)
    for compiled in (False, True):
        encoder = build_encoder(recipe, device=device, dtype="auto")
        if compiled:
            encoder.backbone.model.compile(**COMPILE_OPTIONS[torch.device(device).type])
        encode = functools.partial(encoder.encode, lines)
        show_row(
            f"embed, {encoder.provenance['dtype']}{', compiled' if compiled else ''}",
            device,
            forwards,
            len(lines),
            first=encode,
            work=encode,
            short=functools.partial(encoder.encode, lines[:20_000]),
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="12x768")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--compiled", action="store_true")
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    layers, width = map(int, arguments.model.split("x"))
    demo = SENTENCES_FILE.read_text(encoding="utf-8").splitlines()
    lines = [f"{demo[row % len(demo)]} {row // len(demo)}" for row in range(arguments.lines)]
    shape = (8192, width, 4 * width)
    rates = {
        dtype: matrix_rate(device, dtype, shape)
        for dtype in {torch.float32, choose_dtype("auto", device)}
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(random_backbone(arguments.model, Path(temporary)))
        file = Path(temporary, "lines.txt")
        file.write_text("\n".join(lines), encoding="utf-8")
        few = lines[:2000]
        lengths = [min(len(row), 30) + 2 for row in load_backbone(folder).tokenizer.encode(few)]
        # 10^9 operations a sentence
        forward = 24 * width**2 * layers * sum(lengths) / len(few) / 1e9
        print(
            f"{arguments.model} on {device};"
            f" {', '.join(f'{dtype}: {rate:.0f} GFLOP/s' for dtype, rate in rates.items())}"
        )
        print(
            "| work | sentences/s | share of the matrix rate | busy | first seconds |\n"
            "|---|---|---|---|---|",
            flush=True,
        )
        rate = rates[choose_dtype("auto", device)]
        if arguments.compiled:
            show_compiled(folder, device, lines, arguments.batch, arguments.steps, rate / forward)
            return
        usual = str(choose_dtype("auto", device)).removeprefix("torch.")
        for dtype in dict.fromkeys(
            [usual, *(["tf32"] if device.startswith("cuda") else []), "float32"]
        ):
            recipe = Recipe(backbone=folder, pooling="first-last/avg", max_length=32)
            encoder = build_encoder(recipe, device=device, dtype=dtype)
            with tf32_products():
                of_dtype = (
                    matrix_rate(device, torch.float32, shape)
                    if dtype == "tf32"
                    else rates[encoder.backbone.dtype]
                )
            show_row(
                f"embed, {encoder.provenance['dtype']}",
                device,
                of_dtype / forward,
                len(lines),
                first=functools.partial(encoder.encode, few),
                work=functools.partial(encoder.encode, lines),
                short=functools.partial(encoder.encode, lines[:20_000]),
            )
            embed = functools.partial(
                promptcli.embed, file, output=file.with_suffix(".npy"), model=encoder, force=True
            )
            show_row(
                "the same, a text to .npy",
                device,
                of_dtype / forward,
                len(lines),
                first=functools.partial(encoder.encode, few),
                work=embed,
                short=embed,
            )
        task, recipe = development_task("demo:dev"), Recipe(backbone=folder)
        whole = build_encoder(recipe, device=device, dtype="float32")
        took = seconds_of(lambda: search_heads(whole, task, demo), device)
        print(f"| ditto-search on demo:dev, all heads: {took:.1f} s | | | | |", flush=True)
        for name in _METHODS:
            run = training(name, folder, device, lines, arguments.batch)
            show_steps(
                f"train {name}, two views",
                run,
                device,
                rate / forward,
                arguments.batch,
                arguments.steps,
            )


if __name__ == "__main__":
    main()
