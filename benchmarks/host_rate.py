"""What the host alone can do: ``embed`` and ``train`` with a backbone that answers at once.

    python benchmarks/host_rate.py [--lines 200000] [--examples 50000] [--rounds 3]

The backbone is ``mini-bert``, whose layers are left out: the states have the right shape and are
zeros. So what is left is everything that a GPU would wait for. Sentences are 20 drawn words, torch
has one thread, and batches are as large as on a GPU. ``embed`` is measured with the batches of a
processor, too, which are small: each has its share of Python.

Printed are sentences/s by the clock and by processor seconds, medians of the rounds, and the
processor seconds of each part by its share; ``the rest`` is the loop around them. Parts run in two
threads, so their sum may be more than the time by the clock. Then ``embed`` is measured before a
card that is a clock: it computes one batch after the other, at 60,000 sentences/s, beside the
program, which waits where it fetches vectors that are not done. Busy is the share of the time in
which it computes. ``train`` is measured in its steps: the time of a run of few steps is taken off.
Loss, head and optimiser are computed on the processor here, so its rates are lower bounds.

To compare two versions, run it with ``PYTHONPATH`` at each in turn.
"""

import argparse
import functools
import itertools
import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch

import promptcli as pc
from promptcli.backbones import by_name
from promptcli.backbones.backbone import Backbone
from promptcli.backbones.devices import Fetch, begin_fetch
from promptcli.backbones.model_folder import SHIPPED_BACKBONES
from promptcli.backbones.states import Batch, HiddenStates, Needs
from promptcli.embedding import writing
from promptcli.encoder import encoder as engine
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.static_encoder import StaticEncoder
from promptcli.training import trainable_encoder
from promptcli.training.step import TrainingStep

WORDS = 20
#: padded tokens of a batch on a GPU with free memory, and of a pass of training there
GPU_TOKENS = 65_536
CARD = 60_000  #: sentences/s of the card that is a clock
GPU_TRAINING_TOKENS = 32_768
RECIPE = pc.Recipe(backbone="mini-bert", pooling="last/cls")


class Spent:
    """Processor seconds of parts, each without those of the parts inside it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside = threading.local()

    def add(self, part: str, work: Callable[[], Any]) -> Any:
        """Return what some work returns, and count its time for the part."""
        outer = getattr(self._inside, "seconds", 0.0)
        self._inside.seconds = 0.0
        began = time.thread_time()
        try:
            return work()
        finally:
            whole = time.thread_time() - began
            self.seconds[part] += whole - self._inside.seconds
            self._inside.seconds = outer + whole

    def timed(self, owner: Any, name: str, part: str) -> None:
        """Count the calls of a function or method for a part, also the steps of an iterator."""
        plain = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            result = self.add(part, lambda: plain(*arguments, **options))
            return self._steps(result, part) if isinstance(result, Iterator) else result

        setattr(owner, name, call)

    def _steps(self, iterator: Iterator[Any], part: str) -> Iterator[Any]:
        end = object()
        while (item := self.add(part, lambda: next(iterator, end))) is not end:
            yield item


class Card:
    """A GPU that is a clock: it computes one batch after the other, beside the program."""

    def __init__(self, rate: float) -> None:
        self.rate = rate  #: rows a second
        self.busy = 0.0  #: seconds in which it has computed
        self._free_at = 0.0

    def begin_fetch(self, tensors: Mapping[int, torch.Tensor]) -> Fetch[Any]:
        """Return what waits until the card has computed the tensors."""
        fetch = begin_fetch(tensors)
        seconds = len(next(iter(tensors.values()))) / self.rate
        self.busy += seconds
        done_at = self._free_at = max(time.perf_counter(), self._free_at) + seconds

        def wait() -> dict[int, np.ndarray]:
            time.sleep(max(0.0, done_at - time.perf_counter()))
            return fetch()

        return wait


def replace(owner: Any, name: str, value: Any) -> None:
    """Replace an attribute until the end of the program; AttributeError if it does not exist."""
    mock.patch.object(owner, name, value).start()


@functools.cache
def last_bias(model: torch.nn.Module) -> torch.Tensor:
    """Return the last one of a model's parameters, a vector."""
    *_, last = model.parameters()
    return last


def answer_at_once(backbone: Backbone, batch: Batch, needs: Needs) -> HiddenStates:
    """Return zeros for the states, with a gradient that is zero, too, and of one bias alone."""
    n, t = batch.ids.shape
    if needs.slot is not None:
        t = 1
    states = (last_bias(backbone.model)[0] * 0).expand(n, t, backbone.width)
    return HiddenStates(dict.fromkeys(needs.layers, states), slot=needs.slot)


def draw_lines(file: Path, lines: int) -> None:
    """Write lines of words whose frequencies fall as those of a language."""
    vocabulary = (
        (SHIPPED_BACKBONES["mini-bert"] / "vocab.txt").read_text(encoding="utf-8").split("\n")
    )
    words = np.array([word for word in vocabulary if word.isalpha() and len(word) > 2])
    shares = 1 / np.arange(10, len(words) + 10)
    drawn = np.random.default_rng(0).choice(
        len(words), size=(lines, WORDS), p=shares / shares.sum()
    )
    file.write_text("\n".join(" ".join(row) for row in words[drawn]), encoding="utf-8")


def measure(what: str, work: Callable[[], object], count: int, rounds: int, spent: Spent) -> None:
    """Print the rates of some work and the shares of its parts."""
    work()  # words that are seen for the first time are tokenised here
    spent.seconds.clear()
    times = [timed(work) for _ in range(rounds)]
    clock, processor = np.median(times, axis=0)
    show(what, count / clock, count / processor)
    show_shares(spent, sum(of_processor for _, of_processor in times))


def measure_steps(batch: int, examples: int, spent: Spent, folder: Path) -> None:
    """Print the rates of the steps of ``train simcse`` and the shares of their parts."""
    steps = examples // batch
    names = map(f"host-{batch}-{{}}".format, itertools.count())

    def train(steps: int) -> None:
        options: dict[str, Any] = {"batch_size": batch, "chunk_tokens": GPU_TRAINING_TOKENS}
        options |= {"steps": steps, "eval_steps": steps}
        file, pairs = folder / "lines.txt", folder / "pairs.tsv"
        pc.train("simcse", file, on=pairs, name=next(names), **options)

    train(2)
    spent.seconds.clear()
    few = timed(lambda: train(2))
    of_few = dict(spent.seconds)
    many = timed(lambda: train(steps + 2))
    clock, processor = np.subtract(many, few)
    for part, seconds in of_few.items():
        spent.seconds[part] -= 2 * seconds  # both runs were counted
    examples = steps * batch
    show(f"train simcse, batches of {batch}", examples / clock, examples / processor)
    print(f"  {processor / steps * 1e3:.1f} ms a step, {few[1]:.1f} s before and after the steps")
    show_shares(spent, processor)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds by the clock and of the processor that some work takes."""
    began = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began[0], time.process_time() - began[1]


def show(what: str, by_clock: float, by_processor: float) -> None:
    """Print the rates of some work."""
    print(
        f"{what}: {by_clock:,.0f} sentences/s by the clock, {by_processor:,.0f} a processor second"
    )


def show_shares(spent: Spent, whole: float) -> None:
    """Print the shares of the parts in processor seconds."""
    shares = {**spent.seconds, "the rest": whole - sum(spent.seconds.values())}
    for part, seconds in sorted(shares.items(), key=lambda item: -item[1]):
        print(f"  {seconds / whole:5.1%}  {part}")


def main() -> None:
    """Measure ``embed``, then ``train``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--examples", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    encoder = pc.load(RECIPE, dtype="float32")
    static = pc.load("mini-static")
    print(f"{Path(pc.__file__).parent.parent}: torch {torch.__version__}")
    replace(Backbone, "run", answer_at_once)
    # it would refuse such a backbone
    replace(by_name, "_check_vectors", lambda folder, backbone: None)
    spent = Spent()
    spent.timed(writing, "windows", "read")
    spent.timed(TorchEncoder, "inputs", "tokenise")
    spent.timed(StaticEncoder, "inputs", "tokenise")
    spent.timed(StaticEncoder, "begin", "compute")
    spent.timed(engine, "plan_batches", "plan batches")
    spent.timed(engine._PendingVectors, "_read_batch", "gather")
    spent.timed(engine._SharedPass, "_compute", "compute")
    spent.timed(TorchEncoder, "batch", "make batches")
    spent.timed(trainable_encoder, "make_batch", "make batches")
    spent.timed(TrainingStep, "gradients", "loss and gradients")
    spent.timed(TrainingStep, "apply_gradients", "optimiser")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["PROMPTCLI_HOME"] = str(folder / "home")
        file = folder / "lines.txt"
        draw_lines(file, asked.lines)

        def embed(model: Any) -> None:
            pc.embed(file, output=folder / "lines.npy", model=model, force=True)

        def measure_embed(what: str, model: Any) -> None:
            measure(what, lambda: embed(model), asked.lines, asked.rounds, spent)

        measure_embed("embed, batches of a processor", encoder)
        torch.set_num_threads(1)
        measure_embed("embed, mini-static", static)
        replace(engine, "PARALLEL_BATCHES", 1)
        replace(engine, "PARALLEL_TOKENS", GPU_TOKENS)
        measure_embed("embed, batches of a GPU", encoder)
        card = Card(CARD)
        replace(engine, "begin_fetch", card.begin_fetch)
        clock, _ = timed(lambda: embed(encoder))
        pace = asked.lines / clock
        print(f"embed, a card of {CARD:,} sentences/s: {pace:,.0f}, busy {card.busy / clock:.2f}")
        draw_lines(file, asked.examples)
        (folder / "pairs.tsv").write_text(
            "sentence1\tsentence2\tscore\n"
            "A cat sleeps.\tIt rains.\t0\nA cat sleeps.\tA cat is asleep.\t5\n"
        )
        for batch in (64, 256):
            measure_steps(batch, asked.examples, spent, folder)


if __name__ == "__main__":
    main()
