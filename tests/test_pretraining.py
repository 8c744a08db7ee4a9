"""Masked-LM pre-training: the loss, the chunks, the masks, the start vectors, and a run that survives a kill."""

import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from promptcli.backbones.masked_lm import MaskedLM
from promptcli.backbones.vocabulary import CLS, MASK, PAD, SEP, SPECIALS
from promptcli.data.demo import SENTENCES
from promptcli.errors import PromptcliError, UsageError
from promptcli.pretraining import loop
from promptcli.pretraining.batches import mask, steps
from promptcli.pretraining.corpus import Corpus
from promptcli.pretraining.plan import LONG, SHORT, Plan
from promptcli.pretraining.start import ppmi_svd
from promptcli.storage.training_state import load_state, save_state

TINY = ["--layers", "1", "--width", "16", "--vocab-size", "600", "--batch-tokens", "512", "--positions", "64"]


def tiny_model(tied=True, **changes):
    shape = {"layers": 2, "width": 32, "heads": 2, "positions": 32, "vocab_size": 700, "tied": tied, "seed": 0}
    return MaskedLM(**{**shape, **changes}, device="cpu", dtype=torch.float32)


def random_corpus(seed=0, lines=300, unrelated=60):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 30, lines)
    tokens = rng.integers(len(SPECIALS), 500, lengths.sum()).astype(np.uint16)
    return Corpus(tokens, np.cumsum(lengths), lines - unrelated)


@pytest.mark.parametrize("tied", [True, False])
def test_the_loss_and_its_gradient_are_those_of_whole_logits(tied, monkeypatch):
    monkeypatch.setattr("promptcli.backbones.masked_lm._LOGIT_ROWS", 64)
    model = tiny_model(tied)
    model.set_dropout(0.0)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 700, (20, 12), generator=generator)
    real = torch.ones_like(ids, dtype=torch.bool)
    real[3, 7:] = False
    places = torch.randperm(240, generator=generator)[:150]
    gold = torch.randint(5, 700, (150,), generator=generator)
    loss, right = model.loss(ids, real, places, gold)
    (3 * loss).backward()  # a gradient that comes from behind is passed on
    got = {name: parameter.grad.clone() for name, parameter in model.parameters.items() if parameter.grad is not None}
    for parameter in model.parameters.values():
        parameter.grad = None
    logits = model._model(input_ids=ids, attention_mask=real.long()).logits.flatten(0, 1)[places]
    whole = torch.nn.functional.cross_entropy(logits, gold)
    (3 * whole).backward()
    assert float(loss.detach()) == pytest.approx(float(whole.detach()), rel=1e-6)
    assert int(right) == int((logits.argmax(dim=1) == gold).sum())
    largest = max(
        float(parameter.grad.abs().max()) for parameter in model.parameters.values() if parameter.grad is not None
    )
    for name, parameter in model.parameters.items():
        if parameter.grad is not None:
            assert (got[name] - parameter.grad).abs().max() < 1e-5 * largest, name
    assert ("cls.predictions.decoder.weight" in model.parameters) is not tied


def test_untied_embeddings_start_as_equals_and_part_in_training():
    model = tiny_model(tied=False)
    rows, decoder = model.token_rows, model._model.cls.predictions.decoder.weight
    assert torch.equal(rows, decoder)
    assert rows is not decoder
    model.start_from(torch.randn(700, 32))
    assert torch.equal(rows, decoder)
    ids = torch.randint(5, 700, (4, 8))
    loss, _ = model.loss(ids, torch.ones_like(ids, dtype=torch.bool), torch.arange(5), ids.flatten()[:5])
    loss.backward()
    assert not torch.equal(rows.grad, decoder.grad)


def test_dropout_is_what_the_step_says():
    model = tiny_model()
    ids = torch.randint(5, 700, (4, 8))
    arguments = (ids, torch.ones_like(ids, dtype=torch.bool), torch.arange(5), ids.flatten()[:5])

    def losses():
        return [float(model.loss(*arguments)[0].detach()) for _ in range(2)]

    model.set_dropout(0.0)
    assert len(set(losses())) == 1
    model.set_dropout(0.1)
    assert len(set(losses())) == 2


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=60),
    related=st.integers(0, 60),
    target=st.sampled_from([(20,), (20, 40), (510,)]),
    longest=st.sampled_from([14, 62, 510]),
)
def test_chunks_are_runs_of_whole_lines(lengths, related, target, longest):
    ends = np.cumsum(lengths)
    related = min(related, len(lengths))
    corpus = Corpus(np.zeros(int(ends[-1]), np.uint16), ends, related)
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
    spans = corpus.chunks(SHORT, 62, np.random.default_rng(3))
    covered = np.zeros(len(corpus.tokens), int)
    for start, end in spans:
        covered[start:end] += 1
    assert covered.max() == 1
    assert covered.mean() > 0.95  # the rest: chunks of fewer than four tokens, and what is behind the longest


def test_steps_follow_from_the_plan_alone():
    corpus = random_corpus()
    plan = Plan(tokens=12_000, batch_tokens=256, positions=128, vocab_size=500, width=16, heads=1)
    first, second = (list(steps(plan, corpus)) for _ in range(2))
    assert all(np.array_equal(one.spans, other.spans) for one, other in zip(first, second, strict=True))
    assert [step.seen for step in first] == [0, *np.cumsum([step.tokens for step in first[:-1]]).tolist()]
    assert first[-1].seen < plan.tokens <= first[-1].seen + first[-1].tokens
    dropouts = [step.dropout for step in first]
    assert dropouts == sorted(dropouts)
    changed = next(step for step in first if step.dropout)
    assert changed.seen == pytest.approx(0.7 * plan.tokens, abs=plan.batch_tokens)
    for step in first:
        lengths = step.spans[:, 1] - step.spans[:, 0] + 2
        assert lengths.sum() == step.tokens
        assert lengths.max() * len(lengths) <= plan.batch_tokens
    other = list(steps(Plan(**{**plan.to_dict(), "seed": 1}), corpus))
    assert not np.array_equal(first[0].spans, other[0].spans)


def test_masks_are_berts():
    corpus = random_corpus(lines=3000)
    plan = Plan(tokens=60_000, batch_tokens=4096, positions=128, vocab_size=500, width=16, heads=1)
    masked = kept = random = total = 0
    for step in itertools.islice(steps(plan, corpus), 12):
        batch, again = mask(step, plan, corpus), mask(step, plan, corpus)
        assert np.array_equal(batch.ids, again.ids)
        for row, real, (start, end) in zip(batch.ids, batch.real, step.spans, strict=True):
            assert row[0] == CLS
            assert row[end - start + 1] == SEP
            assert real.sum() == end - start + 2
            assert (row[~real] == PAD).all()
        flat = batch.ids.ravel()
        whole = np.concatenate([[CLS, *corpus.tokens[start:end], SEP] for start, end in step.spans])
        restored = batch.ids.copy()
        restored.ravel()[batch.places] = batch.gold
        assert np.array_equal(restored[batch.real], whole)
        total += step.tokens - 2 * len(step.spans)
        masked += int((flat[batch.places] == MASK).sum())
        kept += int((flat[batch.places] == batch.gold).sum())
        random += int(((flat[batch.places] != MASK) & (flat[batch.places] != batch.gold)).sum())
    predicted = masked + kept + random
    assert predicted / total == pytest.approx(0.2, abs=0.01)
    assert masked / predicted == pytest.approx(0.8, abs=0.02)
    assert kept / predicted == pytest.approx(0.1, abs=0.02)


def test_the_learning_rate_rises_and_falls():
    plan = Plan(tokens=1000, learning_rate=2e-3, warmup=0.1)
    assert plan.learning_rate_at(0) == 0
    assert plan.learning_rate_at(50) == pytest.approx(2e-3 * 0.5 * 0.95)
    assert plan.learning_rate_at(100) == pytest.approx(2e-3 * 0.9)
    assert plan.learning_rate_at(1000) == 0


def test_start_vectors_are_the_svd_of_the_ppmi():
    rng = np.random.default_rng(5)
    lines = [rng.integers(5, 20, rng.integers(2, 12)).tolist() for _ in range(80)]
    corpus = Corpus(np.concatenate(lines).astype(np.uint16), np.cumsum([len(line) for line in lines]), 80)
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
            ppmi[one, other] = max(0.0, math.log(counts[one, other] / (sums[one] * contexts[other])))
    left, singular, _ = np.linalg.svd(ppmi)
    expected = left[:, :6] * np.sqrt(singular[:6])
    expected = expected[5:] / np.linalg.norm(expected[5:])
    vectors = ppmi_svd(corpus, 20, 6, seed=0)[5:]
    got = vectors / np.linalg.norm(vectors)
    assert np.abs(got @ got.T - expected @ expected.T).max() < 1e-6  # the same up to signs and order of columns
    assert 0.03 < vectors.std() < 0.06
    wider = ppmi_svd(corpus, 20, 30, seed=0)  # than the vocabulary allows: the rest is plain
    assert wider.shape == (20, 30)
    assert 0.01 < wider[5:, 19:].std() < 0.03


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(SENTENCES.read_text(encoding="utf-8").splitlines()[:600]) + "\n", encoding="utf-8")
    return path


def test_a_model_from_text_is_a_backbone(run, text, tmp_path):
    folder = tmp_path / "model"
    ran = run("pretrain", text, "-o", folder, *TINY, "--tokens", "20000", "--held-out", text, "--half", "--json")
    assert ran.code == 0, ran.err
    figures = json.loads(ran.out)
    assert figures["tokens"] >= 20000
    assert 0 <= figures["held_out"]["accuracy"] <= 100
    assert 1 < figures["held_out"]["perplexity"] < 560  # guessing among the 600 items would have 600
    config = json.loads((folder / "config.json").read_text())
    assert (config["hidden_dropout_prob"], config["attention_probs_dropout_prob"]) == (0.1, 0.1)
    weights = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert f"promptcli pretrain {text}" in card or "Command:" in card
    logged = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [report["step"] for report in logged] == list(range(20, figures["steps"] + 1, 20))
    vectors = tmp_path / "vectors.npy"
    assert run("embed", text, "--backbone", folder, "--pooling", "last/cls", "-o", vectors).code == 0
    assert np.load(vectors).shape == (600, 16)
    ran = run("perplexity", text, "--backbone", folder, "--json")
    assert json.loads(ran.out)["perplexity"] == pytest.approx(figures["held_out"]["perplexity"], abs=0.01)


def test_untied_by_option(run, text, tmp_path):
    folder = tmp_path / "model"
    assert run("pretrain", text, "-o", folder, *TINY, "--tokens", "4000", "--untie").code == 0
    weights = load_file(folder / "model.safetensors")
    rows = weights["bert.embeddings.word_embeddings.weight"]
    assert not torch.equal(weights["cls.predictions.decoder.weight"], rows)
    loaded = run("eval", "--backbone", folder, "-r", "prompt", "--task", "demo", "--json")
    assert loaded.code == 0


def test_minutes_become_tokens(run, text, tmp_path):
    folder = tmp_path / "model"
    ran = run("pretrain", text, "-o", folder, *TINY, "--minutes", "0.1", "--json")
    assert ran.code == 0, ran.err
    plan = json.loads((folder / "work" / "plan.json").read_text())
    assert 512 <= plan["tokens"] <= json.loads(ran.out)["tokens"]


def launch(*arguments, home):
    command = [sys.executable, "-m", "promptcli", *(str(argument) for argument in arguments), "--threads", "1"]
    environment = {**os.environ, "PROMPTCLI_HOME": str(home), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_killed_run_ends_at_the_same_numbers(text, tmp_path, home):
    arguments = ["pretrain", text, *TINY, "--tokens", "60000", "--save-minutes", "0"]
    killed = launch(*arguments, "-o", tmp_path / "killed", home=home)
    state = tmp_path / "killed" / "work" / "state.safetensors"
    limit = time.monotonic() + 100
    while not state.exists() and killed.poll() is None and time.monotonic() < limit:
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    shutil.copytree(tmp_path / "killed", tmp_path / "whole")  # the same vocabulary, but from the first step on
    (tmp_path / "whole" / "work" / "state.safetensors").unlink()
    whole = launch(*arguments, "-o", tmp_path / "whole", "--resume", home=home)
    again = launch(*arguments, "-o", tmp_path / "killed", home=home)
    assert again.wait() == 2
    assert "--resume" in again.stderr.read()
    other = launch(*arguments, "-o", tmp_path / "killed", "--resume", "--seed", "7", home=home)
    assert other.wait() == 2
    assert "was started with seed 0, not 7" in other.stderr.read()
    resumed = launch(*arguments, "-o", tmp_path / "killed", "--resume", home=home)
    assert resumed.wait() == 0, resumed.stderr.read()
    assert whole.wait() == 0, whole.stderr.read()
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    curves = []
    for name in ("whole", "killed"):
        logged = [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        curves.append([(report["step"], report["loss"], report["accuracy"]) for report in logged])
    assert curves[0] == curves[1]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", ["--tokens", "10"], "is empty"),
        (b"\x00\xff\xfe binary \x80", ["--tokens", "10"], "UTF-8"),
        (b"a few words\nare no corpus\n", ["--tokens", "10"], "the corpus is too small for --vocab-size"),
        (b"text\n", [], "--tokens N or --minutes M"),
        (b"text\n", ["--tokens", "10", "--minutes", "1"], "--tokens N or --minutes M"),
        (b"text\n", ["--tokens", "10", "--width", "100", "--heads", "3"], "--width 100 is no multiple of --heads 3"),
        (b"text\n", ["--tokens", "10", "--masking", "0"], "--masking"),
        (b"text\n", ["--tokens", "10", "--batch-tokens", "100"], "--batch-tokens 100"),
        (b"text\n", ["--tokens", "10", "--resume"], "no unfinished run"),
    ],
)
def test_what_cannot_be_trained_on(run, tmp_path, content, options, message):
    file = tmp_path / "bad.txt"
    file.write_bytes(content)
    ran = run("pretrain", file, "-o", tmp_path / "model", *options)
    assert ran.code == 2
    assert message in ran.err
    assert len(ran.err.strip().splitlines()) == 1
    assert not (tmp_path / "model" / "config.json").exists()


def test_a_folder_with_something_in_it_is_left_alone(run, text, tmp_path):
    ran = run("pretrain", text, "-o", tmp_path, *TINY, "--tokens", "10")
    assert ran.code == 2
    assert "is not empty" in ran.err
    assert run("pretrain", tmp_path / "none.txt", "-o", tmp_path / "m", "--tokens", "10").code == 3


def test_a_state_of_another_shape_is_refused(tmp_path):
    path = tmp_path / "state.safetensors"
    corpus = random_corpus()
    plan = Plan(tokens=600, batch_tokens=256, positions=128, vocab_size=500, width=16, heads=1, layers=1)
    trainer = loop.Trainer(plan, "cpu")
    step = next(steps(plan, corpus))
    trainer.step(step, mask(step, plan, corpus))
    save_state(path, trainer.model.parameters, trainer.optimizer, loop.Position(1, step.tokens, 0.5))
    wider = loop.Trainer(Plan(**{**plan.to_dict(), "width": 32}), "cpu")
    with pytest.raises(UsageError, match=r"of shape .* this model has"):
        load_state(path, wider.model.parameters, wider.optimizer)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UsageError, match="no state of this run"):
        load_state(path, trainer.model.parameters, trainer.optimizer)


def test_a_loss_that_is_no_number_stops_the_run():
    corpus = random_corpus()
    plan = Plan(tokens=600, batch_tokens=256, positions=128, vocab_size=500, width=16, heads=1, layers=1)
    trainer = loop.Trainer(plan, "cpu", start=torch.full((500, 16), float("nan")))
    step = next(steps(plan, corpus))
    with pytest.raises(PromptcliError, match="loss at step 1 is not a number"):
        trainer.step(step, mask(step, plan, corpus))


def test_the_phases_stay_within_the_positions():
    assert Plan().phases[0].lengths == SHORT
    assert Plan().phases[1].lengths == LONG
    assert max(Plan(positions=64).phases[1].lengths) == 62
    assert Plan(positions=16).phases[0].lengths == (14,)
    assert len(Plan(last_phase=0.0).phases) == 1
