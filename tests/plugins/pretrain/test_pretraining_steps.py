"""What a pre-training run reads and how it steps: phases, chunks, masks, positions, optimiser,
start vectors.
"""

import itertools
import math
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcli.errors import OutOfMemoryError
from promptcli.plugins.pretrain.batches import batch_of_step, steps
from promptcli.plugins.pretrain.corpus import (
    CLS,
    MASK,
    PAD,
    SEP,
    SPECIALS,
    Corpus,
    Vocabulary,
    make_corpus,
    train_vocabulary,
)
from promptcli.plugins.pretrain.plan import LONG, SHORT, Plan
from promptcli.plugins.pretrain.pretraining import Pretrainer
from promptcli.plugins.pretrain.start import new_model, ppmi_svd
from tests.comparing import gap, refusal
from tests.plugins.pretrain.small_runs import VOCABULARY, random_corpus


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=60),
    related=st.integers(0, 60),
    target=st.sampled_from([(20,), (20, 40), (510,)]),
    longest=st.sampled_from([14, 62, 510]),
)
def test_chunks_are_runs_of_whole_lines(lengths, related, target, longest):
    ends = np.cumsum(lengths)
    related = min(related, len(lengths))
    corpus = Corpus(np.zeros(int(ends[-1]), np.uint16), ends, related, VOCABULARY)
    spans = corpus.chunks(target, longest, np.random.default_rng(0))
    bounds = {0, *ends.tolist()}
    starts = spans[:, 0].tolist()
    assert starts == sorted(set(starts))
    for start, end in spans.tolist():
        assert start in bounds
        assert end in bounds or end - start == longest
        assert 4 <= end - start <= longest
        inside = [stop for stop in ends.tolist() if start < stop < end]
        if start >= (ends[related - 1] if related else 0):
            assert not inside  # of unrelated lines, one a chunk
        elif inside and end in bounds:
            assert end - start <= max(target) or all(stop in (start, end) for stop in inside)


def test_every_long_enough_line_is_read_once_an_epoch():
    corpus = random_corpus()
    covered = np.zeros(len(corpus.tokens), int)
    for start, end in corpus.chunks(SHORT, 62, np.random.default_rng(3)):
        covered[start:end] += 1
    assert covered.max() == 1
    # the rest: chunks of fewer than four tokens, and what is behind the longest
    assert covered.mean() > 0.95


def test_steps_follow_from_the_plan_alone():
    corpus = random_corpus()
    plan = Plan(tokens=12_000, batch_tokens=256, positions=128, vocab_size=500, width=16, heads=1)
    first, second, other = (
        list(steps(each, corpus)) for each in (plan, plan, replace(plan, seed=1))
    )
    assert all(
        np.array_equal(one.spans, again.spans) for one, again in zip(first, second, strict=True)
    )
    assert not np.array_equal(first[0].spans, other[0].spans)
    assert [step.seen for step in first] == [
        0,
        *np.cumsum([step.tokens for step in first[:-1]]).tolist(),
    ]
    assert first[-1].seen < plan.tokens <= first[-1].seen + first[-1].tokens
    dropouts = [step.dropout for step in first]
    assert dropouts == sorted(dropouts)
    changed = next(step for step in first if step.dropout)
    assert changed.seen == pytest.approx(0.5 * plan.tokens, abs=plan.batch_tokens)
    for step in first:
        lengths = step.spans[:, 1] - step.spans[:, 0] + 2
        assert lengths.sum() == step.tokens and lengths.max() * len(lengths) <= plan.batch_tokens


def test_masks_are_berts():
    corpus = random_corpus(lines=3000)
    plan = Plan(tokens=60_000, batch_tokens=4096, positions=128, vocab_size=500, width=16, heads=1)
    masked = kept = predicted = total = 0
    for step in itertools.islice(steps(plan, corpus), 12):
        batch, again = batch_of_step(step, plan, corpus), batch_of_step(step, plan, corpus)
        assert np.array_equal(batch.ids, again.ids) and np.array_equal(batch.begins, again.begins)
        restored, hidden = batch.ids.copy(), batch.ids.ravel()[batch.places]
        restored.ravel()[batch.places] = batch.gold
        for row, real, (start, end) in zip(restored, batch.real, step.spans, strict=True):
            assert (
                row[real].tolist() == [CLS, *corpus.tokens[start:end], SEP]
                and (row[~real] == PAD).all()
            )
        total += step.tokens - 2 * len(step.spans)
        predicted += len(hidden)
        masked += int((hidden == MASK).sum())
        kept += int((hidden == batch.gold).sum())
    assert predicted / total == pytest.approx(0.2, abs=0.01)
    assert masked / predicted == pytest.approx(0.8, abs=0.02)
    assert kept / predicted == pytest.approx(0.1, abs=0.02)


def test_chunks_begin_anywhere_in_the_position_table():
    corpus = random_corpus(lines=3000)
    plan = Plan(
        tokens=60_000,
        batch_tokens=4096,
        positions=96,
        vocab_size=500,
        width=16,
        heads=1,
        at_start=0.25,
    )
    begins, used = [], set()
    for step in itertools.islice(steps(plan, corpus), 30):
        batch = batch_of_step(step, plan, corpus)
        ends = batch.begins + batch.real.sum(axis=1)
        assert (batch.begins >= 0).all() and (ends <= 96).all()
        begins += batch.begins.tolist()
        used |= set((ends - 1).tolist())
    assert np.mean(np.array(begins) == 0) == pytest.approx(0.25 + 0.75 / 60, abs=0.05)
    assert len(set(begins)) > 60 and 95 in used
    still = replace(plan, at_start=1.0)
    assert not batch_of_step(next(steps(still, corpus)), still, corpus).begins.any()


def test_vectors_have_no_weight_decay():
    plan = Plan(tokens=9, width=32, layers=1, vocab_size=700, weight_decay=0.1)
    trainer = Pretrainer(plan, "cpu", new_model(plan, "cpu"))
    matrices, vectors = trainer.optimizer.param_groups
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)
    assert {one.dim() for one in matrices["params"]} == {2} and {
        one.dim() for one in vectors["params"]
    } == {1}
    assert len(matrices["params"]) + len(vectors["params"]) == len(trainer.model.parameters)


def test_a_batch_that_memory_does_not_hold_is_one_line(monkeypatch):
    corpus = random_corpus()
    plan = Plan(tokens=600, batch_tokens=4096, positions=64, vocab_size=500, width=16, heads=1)
    step, trainer = next(steps(plan, corpus)), Pretrainer(plan, "cpu", new_model(plan, "cpu"))
    monkeypatch.setattr(
        trainer.model, "loss", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory."))
    )
    with refusal("fewer tokens a step", OutOfMemoryError):
        trainer.take_step(step, batch_of_step(step, plan, corpus))


@pytest.mark.parametrize("file", ["lines.npz", "tokens.bin"])
@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04 no archive", b"\x93NUMPY\x01\x00v\x00{", b"\xff" * 64]
)
def test_damaged_files_of_a_run_are_one_line(file, content, tmp_path):
    vocabulary = Vocabulary(lambda lines: [], size=9)
    np.array([1, 2, 3], np.uint16).tofile(tmp_path / "tokens.bin")
    np.savez(tmp_path / "lines.npz", ends=np.array([1, 3]), unrelated_from=2)
    assert make_corpus(tmp_path, [], [], vocabulary).tokens.tolist() == [1, 2, 3]
    (tmp_path / file).write_bytes(content)
    with refusal(r"are damaged .* delete the folder and start again"):
        make_corpus(tmp_path, [], [], vocabulary)


def test_one_text_has_one_vocabulary():
    words = [
        f"{first}{second}{third}"
        for first in "abcdefgh"
        for second in "ijklmnop"
        for third in "qrstuvwx"
    ]
    # ties everywhere
    lines = [" ".join(words[start : start + 16] * 3) for start in range(0, len(words), 16)]
    made = [train_vocabulary(lambda: lines, 260) for _ in range(4)]
    items = [{piece: number for number, piece in enumerate(one.pieces)} for one in made]
    assert all(one == items[0] for one in items)
    assert made[0].encode(["[MASK] ##i abc"]) == made[1].encode(["[MASK] ##i abc"])
    assert [items[0][special] for special in SPECIALS] == list(range(5))


def test_the_learning_rate_rises_and_falls():
    plan = Plan(tokens=1000, learning_rate=2e-3, warmup=0.1)  # decay over all of it
    assert plan.learning_rate_at(0) == 0
    assert plan.learning_rate_at(50) == pytest.approx(2e-3 * 0.5 * 0.95)
    assert plan.learning_rate_at(100) == pytest.approx(2e-3 * 0.9)
    assert plan.learning_rate_at(1000) == 0
    plan = Plan(tokens=1000, learning_rate=2e-3, warmup=0.1, decay=0.2)
    wanted = [2e-3 * factor for factor in (0, 0.5, 1, 1, 1, 0.5, 0)]
    assert [
        plan.learning_rate_at(seen) for seen in (0, 50, 100, 500, 800, 900, 1000)
    ] == pytest.approx(wanted)
    assert Plan(tokens=1000, warmup=0.0).learning_rate_at(0) == 1e-3


def test_start_vectors_are_the_svd_of_the_ppmi():
    rng = np.random.default_rng(5)
    lines = [rng.integers(5, 20, rng.integers(2, 12)).tolist() for _ in range(80)]
    tokens = np.concatenate(lines).astype(np.uint16)
    corpus = Corpus(tokens, np.cumsum([len(line) for line in lines]), 80, VOCABULARY)
    counts = np.zeros((20, 20))
    for line in lines:
        for (i, one), (j, other) in itertools.permutations(enumerate(line), 2):
            if abs(i - j) <= 5:
                counts[one, other] += 1 / abs(i - j)
    sums = counts.sum(axis=1)
    contexts = sums**0.75 / (sums**0.75).sum()
    ppmi = np.zeros((20, 20))
    for one, other in itertools.product(range(20), repeat=2):
        if counts[one, other]:
            ppmi[one, other] = max(
                0.0, math.log(counts[one, other] / (sums[one] * contexts[other]))
            )
    left, singular, _ = np.linalg.svd(ppmi)
    expected = left[:, :6] * np.sqrt(singular[:6])
    expected = expected[5:] / np.linalg.norm(expected[5:])
    vectors = ppmi_svd(corpus, 20, 6, seed=0)[5:]
    got = vectors / np.linalg.norm(vectors)
    # the same up to signs and order of columns
    assert gap(got @ got.T, expected @ expected.T) < 1e-6
    assert 0.03 < vectors.std() < 0.06
    wider = ppmi_svd(corpus, 20, 30, seed=0)  # than the vocabulary allows: the rest is plain
    assert wider.shape == (20, 30)
    assert 0.01 < wider[5:, 19:].std() < 0.03


def test_the_phases_stay_within_the_positions():
    assert [(phase.lengths, phase.dropout) for phase in Plan().phases] == [
        (SHORT, 0.0),
        (SHORT, 0.1),
        (LONG, 0.1),
    ]
    assert [phase.until for phase in Plan().phases] == [0.5, 0.9, 1]
    assert max(Plan(positions=64).phases[-1].lengths) == 62
    assert Plan(positions=16).phases[0].lengths == (14,)
    assert len(Plan(dropout_from=0.0, long_from=0.0).phases) == 1
    late = Plan(dropout_from=1.0, long_from=0.5).phases
    assert [(phase.lengths, phase.dropout) for phase in late] == [(SHORT, 0.0), (LONG, 0.0)]
