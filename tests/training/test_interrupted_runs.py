"""Runs that are stopped anywhere go on from there, to the same weights and scores."""

import functools
import itertools
import json
import os
import signal
import sys

import pytest
import torch
from safetensors import safe_open

import promptcli as pc
from promptcli.storage.runs import delay_interrupts
from promptcli.training import trainer as trainer_module
from promptcli.training.step import TrainingStep
from tests.processes import Program
from tests.tiny import SENTENCES
from tests.training_files import write_graded_pairs
from tests.training_steps import stopped_at

TEXTS = [f"{one} {other}" for one in SENTENCES for other in SENTENCES[:4]]
STEPS = 6


@pytest.fixture
def options(bert_folder, here):
    write_graded_pairs(here / "pairs.tsv", TEXTS[:20])
    (here / "text.txt").write_text("\n".join(TEXTS))
    return {
        "data": "text.txt",
        "on": "pairs.tsv",
        "tests": ["pairs.tsv"],
        "backbone": str(bert_folder),
        "batch_size": 8,
        "steps": STEPS,
        "learning_rate": 0.01,
        "eval_steps": 100,
        "offline": True,
    }


def wait_at(step, seconds_to_save):
    """Let a run say that it has come to a step, from 0, and wait there for a signal.

    Its state is written when ``seconds_to_save`` have passed since the last time.
    """
    trainer_module._SAVE_INTERVAL_S = seconds_to_save
    plain = TrainingStep.gradients

    def waiting(trainer, number, *given):
        if number == step:
            print("waiting", file=sys.stderr, flush=True)
            signal.pause()
        return plain(trainer, number, *given)

    TrainingStep.gradients = waiting


def kept_step(home, name):
    with safe_open(home / "runs" / name / "state.safetensors", framework="pt") as file:
        return json.loads(file.metadata()["position"])["step"]


def assert_same(one, other):
    """Compare two runs: all tensors, all scores and losses of the curve, but the times."""
    first, second = one.entry.tensors, other.entry.tensors
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    curves = [
        [(score.step, score.loss, score.value, score.best) for score in run.curve]
        for run in (one, other)
    ]
    assert curves[0] == curves[1]
    assert one.scores == other.scores


@pytest.mark.parametrize(
    ("number", "code", "seconds_to_save"),
    [(signal.SIGINT, 130, 1e9), (signal.SIGTERM, 143, 1e9), (signal.SIGKILL, -9, 0.0)],
)
def test_a_run_ended_before_its_first_score_goes_on_where_it_was(
    number, code, seconds_to_save, options, home
):
    whole = pc.train("simcse", name="whole", **options)
    arguments = ["--threads", 1, "train", "simcse", "--name", "mine", "--offline"]
    for name, value in options.items():
        if name not in ("offline", "tests", "eval_steps"):
            arguments += [f"--{name.replace('_', '-')}", value]
    arguments += ["--test", "pairs.tsv", "--set", "eval-steps=100"]
    stopped = Program(*arguments, before=functools.partial(wait_at, 3, seconds_to_save))
    said = []
    for line in stopped.stderr:
        said.append(line)
        if b"waiting" in line:
            stopped.send_signal(number)
    assert stopped.wait() == code, b"".join(said)
    assert number == signal.SIGKILL or b"after step 3 of 6" in b"".join(said)
    assert kept_step(home, "mine") == 3
    assert_same(pc.train(name="mine", resume=True), whole)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_run_stopped_while_it_is_scored_is_scored_there_again(nth, options, monkeypatch):
    options["eval_steps"] = 2
    whole = pc.train("simcse", name="whole", **options)
    calls = itertools.count()

    def interrupting(*given):
        if next(calls) == nth:
            raise KeyboardInterrupt
        return plain(*given)

    plain = trainer_module.value_on
    with monkeypatch.context() as patch:
        patch.setattr(trainer_module, "value_on", interrupting)
        with pytest.raises(KeyboardInterrupt):
            pc.train("simcse", name="mine", **options)
    assert_same(pc.train(name="mine", resume=True), whole)


def test_a_run_may_be_stopped_at_every_step(options, monkeypatch):
    options["eval_steps"] = 4
    whole = pc.train("simcse", name="whole", **options)
    begun = False
    for step in range(1, STEPS):
        with stopped_at(monkeypatch, step), pytest.raises(KeyboardInterrupt):
            if begun:
                pc.train(name="mine", resume=True)
            else:
                pc.train("simcse", name="mine", **options)
        begun = True
    assert_same(pc.train(name="mine", resume=True), whole)


def test_a_signal_waits_for_the_end_of_what_must_not_be_half_done():
    came = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        with delay_interrupts():
            os.kill(os.getpid(), signal.SIGTERM)
            assert came == []
        assert came == [signal.SIGTERM]
        os.kill(os.getpid(), signal.SIGTERM)
        assert came == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)
