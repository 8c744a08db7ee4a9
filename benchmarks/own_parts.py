"""What promptcli computes itself next to transformers and tokenizers, with the same batching: one
part after the other replaced, all in one process, rounds interleaved.

    python benchmarks/own_parts.py CORPUS [--models mini,FOLDER] [--lines 1500] [--rounds 7]
    [--parts NAMES] [--work embed,ditto,train]

``embed`` encodes the lines with the mean of the last layer (``mini``: as it ships), ``ditto`` with
Ditto's weights, ``train`` takes steps of SimCSE at batch 64. Printed are medians of lines a second,
by the clock and by the processor's seconds, and ours divided by the plain way, round by round.
"""

import argparse
import contextlib
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from training import ours

from promptcli.backbones import by_name, devices, kernels
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.encoder.encoder import build_encoder
from promptcli.models.loading import load
from promptcli.recipe import Recipe

_BATCH = 64
#: Part -> the names that stand for it while a model is opened, and while it computes.
_PLAIN_WHEN_OPENED = {
    "bert": (by_name, "read_bert_config", lambda family, values: None),
    "products": (kernels, "prefers_onednn", lambda: False),
}
_PLAIN_IN_USE = {
    "words": (PieceTokenizer, "_by_words", PieceTokenizer._whole),
    "dropout": (kernels, "has_fast_dropout", lambda numbers: False),
    "logsumexp": (kernels, "_FUSED", {}),
}
ALL = "all"
PARTS = (*_PLAIN_WHEN_OPENED, *_PLAIN_IN_USE, ALL)


@contextlib.contextmanager
def without(part: str, table: dict) -> Iterator[None]:
    """Replace a part, or all, by the plain way."""
    with contextlib.ExitStack() as stack:
        for name, (owner, attribute, plain) in table.items():
            if part in (name, ALL):
                stack.enter_context(mock.patch.object(owner, attribute, plain))
        yield


def worker(work: str, model: str, dtype: str) -> Callable[[list[str]], object]:
    """Return what is measured, on a model that is opened now."""
    if work == "train":
        folder = "mini-bert" if model == "mini" else model
        gradients, learned, _ = ours("simcse", folder, _BATCH, dtype == "bfloat16")
        optimizer = torch.optim.AdamW(learned, lr=1e-5, fused=True)

        def train(lines: list[str]) -> None:
            for first in range(0, len(lines) - _BATCH + 1, _BATCH):
                gradients(lines[first : first + _BATCH])
                optimizer.step()

        return train
    if work == "embed" and model == "mini":
        return load("mini", device="cpu", dtype=dtype).encode
    name = "mini-bert" if model == "mini" else model
    pooling = "last/avg" if work == "embed" else "first-last/ditto:1-2"
    recipe = Recipe(backbone=name, pooling=pooling)
    return build_encoder(recipe, device="cpu", dtype=dtype).encode


def forget_words(run: Callable[[list[str]], object]) -> None:
    """Let the tokenizer of an encoder begin without the words of earlier rounds."""
    backbone = getattr(getattr(run, "__self__", None), "backbone", None)
    if backbone is not None:
        tokenizer: PieceTokenizer = backbone.tokenizer
        tokenizer._ids_of_word = {}
        tokenizer._cached_characters = 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--models", default="mini")
    parser.add_argument("--lines", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--work", default="embed,ditto,train")
    arguments = parser.parse_args()
    with arguments.corpus.open(encoding="utf-8") as file:
        lines = [line.strip() for line in itertools.islice(file, arguments.lines)]
    dtypes = ["float32"]
    if devices.computes(torch.bfloat16, "cpu"):
        dtypes.append("bfloat16")
    rows = itertools.product(arguments.models.split(","), arguments.work.split(","), dtypes)
    for model, work, dtype in rows:
        runs = {"ours": worker(work, model, dtype)}
        for part in arguments.parts.split(","):
            with without(part, _PLAIN_WHEN_OPENED):
                runs[part] = worker(work, model, dtype)
        clock: dict[str, list[float]] = {part: [] for part in runs}
        processor: dict[str, list[float]] = {part: [] for part in runs}
        for number in range(arguments.rounds + 1):
            for part, run in runs.items():
                forget_words(run)
                with without(part, _PLAIN_IN_USE):
                    wall, cpu = time.perf_counter(), time.process_time()
                    run(lines)
                    if number:  # the first is not counted
                        clock[part].append(time.perf_counter() - wall)
                        processor[part].append(time.process_time() - cpu)
        for part in runs:
            print(
                json.dumps(
                    {
                        "model": Path(model).name,
                        "work": work,
                        "dtype": dtype,
                        "plain": part,
                        "lines/s": round(len(lines) / statistics.median(clock[part])),
                        "lines/cpu s": round(len(lines) / statistics.median(processor[part])),
                        "ours is faster": _ratio(clock, part),
                        "by the processor": _ratio(processor, part),
                    }
                ),
                flush=True,
            )


def _ratio(seconds: dict[str, list[float]], part: str) -> float:
    pairs = zip(seconds[part], seconds["ours"], strict=True)
    return round(statistics.median(plain / own for plain, own in pairs), 2)


if __name__ == "__main__":
    main()
