"""The steps of ``pretrain`` on our own BERT, and on that of transformers with the same tensors.

    python benchmarks/pretraining.py [--steps 12] [--dtype bfloat16] [--threads 2]

Both take the same step in turns: loss, gradients, clipping, AdamW. Figures: tokens a second by the
clock and by the processor's time (of all threads), medians over the steps; and, of the first step
without dropout, how far loss and gradients are apart. Lines are random tokens of natural lengths.
"""

import argparse
import statistics
import time

import numpy as np
import torch

from promptcli.backbones.devices import choose_dtype
from promptcli.backbones.kernels import install_fast_dropout
from promptcli.plugins.pretrain.batches import Step, batch_of_step, chunks_of_phase
from promptcli.plugins.pretrain.corpus import SPECIALS, Corpus, Vocabulary
from promptcli.plugins.pretrain.plan import Plan
from promptcli.plugins.pretrain.pretraining import Pretrainer
from promptcli.plugins.pretrain.start import new_model

DROPOUT = 0.1


class _TransformersBert(torch.nn.Module):
    """transformers' BERT, called as ours is."""

    def __init__(self, stored):
        super().__init__()
        install_fast_dropout(stored)
        self.stored = stored.train()

    def forward(self, input_ids, attention_mask, position_ids):
        return self.stored.bert(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids
        )


def trainer_of(plan, dtype, *, ours):
    model = new_model(plan, "cpu", dtype)
    if not ours:
        model._bert = _TransformersBert(model._stored)
    return Pretrainer(plan, "cpu", model)


def random_corpus(plan, lines):
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(3.1, 0.5, lines), 4, 120).astype(np.int64)
    tokens = rng.integers(len(SPECIALS), plan.vocab_size, lengths.sum()).astype(np.uint16)
    vocabulary = Vocabulary(lambda lines: [], plan.vocab_size)
    return Corpus(tokens, np.cumsum(lengths), lines, vocabulary)


def steps_of(plan, corpus, phase, count, dropout):
    chunks = chunks_of_phase(plan, corpus, phase)
    for number in range(count):
        yield Step(number, 0, next(chunks), dropout)


def differences(plan, corpus):
    """Return how far loss and gradients are apart, relative to the largest, in float32."""
    [step] = steps_of(plan, corpus, 0, 1, 0.0)
    batch = batch_of_step(step, plan, corpus)
    found = []
    for ours in (True, False):
        trainer = trainer_of(plan, torch.float32, ours=ours)
        loss, *_ = trainer.take_step(step, batch).tolist()
        found.append((loss, {name: one.grad for name, one in trainer.model.parameters.items()}))
    (loss, gradients), (their_loss, theirs) = found
    largest = max(float(one.abs().max()) for one in theirs.values())
    apart = max(float((gradients[name] - theirs[name]).abs().max()) for name in theirs)
    return abs(loss - their_loss) / their_loss, apart / largest


def measure(plan, corpus, phase, count, dtype):
    """Return tokens a second by the clock and by processor time, of ours and of transformers'."""
    trainers = [trainer_of(plan, dtype, ours=True), trainer_of(plan, dtype, ours=False)]
    rates = [[], []]
    for step in steps_of(plan, corpus, phase, count + 1, DROPOUT):
        batch = batch_of_step(step, plan, corpus)
        for trainer, found in zip(trainers, rates, strict=True):
            began = time.perf_counter()
            used = time.process_time()
            trainer.take_step(step, batch)
            seconds = time.perf_counter() - began
            processor = time.process_time() - used
            if step.number:  # the first one allocates
                found.append((step.tokens / seconds, step.tokens / processor))
    return [[statistics.median(column) for column in zip(*found, strict=True)] for found in rates]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    plan = Plan(tokens=10**7)
    corpus = random_corpus(plan, arguments.lines)
    loss, gradients = differences(plan, corpus)
    print(f"apart without dropout, float32: loss {loss:.1e}, gradients {gradients:.1e}")
    dtype = choose_dtype(arguments.dtype, "cpu")
    for phase, name in ((0, "short chunks"), (len(plan.phases) - 1, "all lengths")):
        ours, theirs = measure(plan, corpus, phase, arguments.steps, dtype)
        print(
            f"{name}, {dtype}: ours {ours[0]:,.0f} tokens/s ({ours[1]:,.0f} a processor second),"
            f" transformers' {theirs[0]:,.0f} ({theirs[1]:,.0f}): {ours[0] / theirs[0]:.2f} times"
            f" by the clock, {ours[1] / theirs[1]:.2f} by processor time"
        )


if __name__ == "__main__":
    main()
