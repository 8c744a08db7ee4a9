"""Pre-training: the loss next to transformers' own, a batch in parts, and a run that survives a kill."""

import itertools
import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from promptcli.backbones.dropout import Dropout
from promptcli.backbones.language_models import MaskedLM
from promptcli.data.demo import SENTENCES
from promptcli.errors import PromptcliError, UsageError
from promptcli.pretraining import trainer as training
from promptcli.pretraining.batches import mask, steps
from promptcli.pretraining.plan import Plan
from promptcli.pretraining.prepare import sinusoids
from promptcli.pretraining.trainer import Report, Trainer, choose_precision
from promptcli.storage.runs import Position, load_state, save_state
from tests.pretraining.test_pretraining_steps import random_corpus
from tests.processes import Program

TINY = ["--layers", "1", "--width", "16", "--vocab-size", "600", "--batch-tokens", "512", "--positions", "64"]


def tiny_model(tied=True, **changes):
    shape = {"layers": 2, "width": 32, "heads": 2, "positions": 32, "vocab_size": 700, "tied": tied, "seed": 0}
    return MaskedLM(**{**shape, **changes}, device="cpu", dtype=torch.float32)


@pytest.mark.parametrize("tied", [True, False])
def test_the_loss_and_its_gradient_are_those_of_transformers(tied):
    model = tiny_model(tied)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 700, (20, 12), generator=generator)
    real = torch.ones_like(ids, dtype=torch.bool)
    real[3, 7:] = False
    places = torch.randperm(240, generator=generator)[:150]
    gold = torch.randint(5, 700, (150,), generator=generator)
    begins = torch.randint(0, 21, (20,), generator=generator)
    loss, right, _ = model.loss(ids, real, begins, places, gold, drop=Dropout())
    loss.backward()
    got = {name: parameter.grad.clone() for name, parameter in model.parameters.items() if parameter.grad is not None}
    for parameter in model.parameters.values():
        parameter.grad = None
    model._model.eval()  # no dropout
    positions = torch.where(real, begins[:, None] + torch.arange(12), 0)
    whole = model._model(input_ids=ids, attention_mask=real.long(), position_ids=positions).logits
    logits = whole.flatten(0, 1)[places]
    whole = torch.nn.functional.cross_entropy(logits, gold)
    whole.backward()
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
    real, begins = torch.ones_like(ids, dtype=torch.bool), torch.zeros(4, dtype=torch.int64)
    loss, *_ = model.loss(ids, real, begins, torch.arange(5), ids.flatten()[:5], drop=Dropout())
    loss.backward()
    assert not torch.equal(rows.grad, decoder.grad)


def test_dropout_is_what_the_step_says():
    model = tiny_model()
    ids = torch.randint(5, 700, (4, 8))
    real, begins = torch.ones_like(ids, dtype=torch.bool), torch.zeros(4, dtype=torch.int64)
    arguments = (ids, real, begins, torch.arange(5), ids.flatten()[:5])

    def losses(*drops):
        return len({float(model.loss(*arguments, drop=drop)[0].detach()) for drop in drops})

    assert losses(Dropout(), Dropout()) == 1
    assert losses(Dropout(0.1), Dropout(0.1)) == 2
    assert losses(*(Dropout(0.1, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))) == 2


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(("optimizer", "part_of_movement"), [("adamw", 1e-3), ("muon", 0.1)])
def test_a_batch_in_parts_is_the_whole_batch(threads, optimizer, part_of_movement):
    # Muon makes matrices orthogonal in bfloat16: what a gradient's last bit changes there is hundredths of its steps
    corpus = random_corpus(lines=600)
    shape = {"positions": 64, "vocab_size": 500, "width": 32, "heads": 2, "layers": 2}
    plan = Plan(tokens=9000, batch_tokens=1024, optimizer=optimizer, dropout=0.0, **shape)
    taken = list(itertools.islice(steps(plan, corpus), 4))
    made = {}
    for count in (1, 4):
        threads(count)
        trainer = Trainer(plan, "cpu", dtype=torch.float32)
        trainer.corpus = corpus
        before = {name: weight.detach().clone() for name, weight in trainer.model.parameters.items()}
        figures = [trainer.step(step, trainer.read(step)) for step in taken]
        made[count] = figures, {name: weight.detach() for name, weight in trainer.model.parameters.items()}
    assert [right for _, right in made[4][0]] == [right for _, right in made[1][0]]
    assert [loss for loss, _ in made[4][0]] == pytest.approx([loss for loss, _ in made[1][0]], rel=1e-5)
    for name, weight in made[1][1].items():
        moved = (weight - before[name]).norm()
        assert (made[4][1][name] - weight).norm() < part_of_movement * moved + 1e-6, name


def test_the_dropout_of_parts_follows_from_the_step(threads):
    threads(4)
    corpus = random_corpus(lines=600)
    shape = {"positions": 64, "vocab_size": 500, "width": 32, "heads": 2, "layers": 2}
    plan = Plan(tokens=9000, batch_tokens=1024, dropout_from=0.0, **shape)
    taken = list(itertools.islice(steps(plan, corpus), 3))

    def losses(plan):
        trainer = Trainer(plan, "cpu", dtype=torch.float32)
        trainer.corpus = corpus
        return [trainer.step(step, trainer.read(step))[0] for step in taken]

    assert losses(plan) == losses(plan)  # bit for bit, whichever thread is first


def test_parts_of_a_batch_have_all_its_rows_and_places():
    corpus = random_corpus(lines=3000)
    plan = Plan(tokens=60_000, batch_tokens=2048, positions=128, vocab_size=500, width=16, heads=1, masking=0.05)
    for step in itertools.islice(steps(plan, corpus), 8):
        batch = mask(step, plan, corpus)
        for count in (1, 2, 3, 50):
            parts = batch.split(count)
            assert all(len(part.gold) for part in parts)
            gold = np.concatenate([part.ids.ravel()[part.places] for part in parts])
            assert np.array_equal(gold, batch.ids.ravel()[batch.places])
            assert np.array_equal(np.concatenate([part.gold for part in parts]), batch.gold)
            if count < 4:
                for field in ("ids", "real", "begins"):
                    whole = np.concatenate([getattr(part, field) for part in parts])
                    assert np.array_equal(whole, getattr(batch, field))


@pytest.mark.parametrize("width", [8, 9])
def test_the_position_table_starts_from_sinusoids(width):
    table = sinusoids(32, width)
    for place in range(32):
        for column in range(width):
            angle = place / 10_000 ** (2 * (column // 2) / width)
            wanted = math.cos(angle) if column % 2 else math.sin(angle)
            assert table[place, column].item() == pytest.approx(0.02 * math.sqrt(2) * wanted, abs=1e-7)
    shape = {"positions": 32, "vocab_size": 700, "width": width, "heads": 1, "layers": 1}
    models = [Trainer(Plan(tokens=9, batch_tokens=99, **shape, sinusoids=on), "cpu").model for on in (True, False)]
    assert torch.equal(models[0].position_rows, table)
    assert (models[1].position_rows - table).abs().max() > 0.01


@pytest.mark.parametrize(
    ("before", "here", "precision", "said"),
    [
        (None, torch.bfloat16, torch.bfloat16, None),
        ("bfloat16", torch.bfloat16, torch.bfloat16, None),
        (None, torch.float32, torch.float32, "no bfloat16 arithmetic"),
        ("bfloat16", torch.float32, torch.float32, "was started in bfloat16"),
        ("float32", torch.bfloat16, torch.float32, "float32 from here"),
    ],
)
def test_the_precision_is_the_devices_and_a_resumed_run_keeps_to_float32(
    monkeypatch, tmp_path, caplog, before, here, precision, said
):
    monkeypatch.setattr("promptcli.pretraining.trainer.choose_dtype", lambda name, device: here)
    log = tmp_path / "log.jsonl"
    if before:
        report = Report(20, 9, 1.0, 0.1, 0.1, 1.0, 1.0, 1.0, precision=before)
        log.write_text(json.dumps(vars(report)) + "\n")
    with caplog.at_level("INFO", "promptcli"):
        assert choose_precision("cpu", log) == precision
    assert bool(caplog.messages) is bool(said) and all(said in message for message in caplog.messages)


class Stopped(Exception):
    """Stands for the end of a process."""


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("stop", [20, 60])
def test_a_run_stopped_in_any_phase_ends_at_the_same_numbers(tmp_path, monkeypatch, optimizer, stop):
    corpus = random_corpus()
    shape = {"positions": 64, "vocab_size": 500, "width": 16, "heads": 1, "layers": 1}
    plan = Plan(batch_tokens=256, dropout_from=0.4, optimizer=optimizer, tokens=17_000, long_from=0.7, **shape)

    def go(name):
        trainer = Trainer(plan, "cpu", dtype=torch.float32)
        paths = (tmp_path / f"{name}.safetensors", tmp_path / f"{name}.jsonl")
        trainer.train(corpus, *paths, save_seconds=0.0, advance=lambda done: None)
        return trainer.parameters

    def stopping(trainer, state, position, whole=Trainer.save):
        whole(trainer, state, position)
        if position.step == stop:
            raise Stopped

    monkeypatch.setattr(training, "_LOG_EVERY", 10)
    whole = go("whole")
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(Trainer, "save", stopping)
        go("cut")
    resumed = go("cut")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    logs = [(tmp_path / f"{name}.jsonl").read_text().splitlines() for name in ("whole", "cut")]
    assert [json.loads(line)["loss"] for line in logs[0]] == [json.loads(line)["loss"] for line in logs[1]]


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
    ran = run("eval", "--task", f"perplexity:{text}", "--backbone", folder, "--json")
    assert json.loads(ran.out)["results"][0]["value"] == pytest.approx(figures["held_out"]["perplexity"], abs=0.01)


@pytest.mark.usefixtures("few_demo_pairs")
def test_untied_by_option(run, text, tmp_path):
    folder = tmp_path / "model"
    assert run("pretrain", text, "-o", folder, *TINY, "--tokens", "4000", "--set", "tied=false").code == 0
    weights = load_file(folder / "model.safetensors")
    rows = weights["bert.embeddings.word_embeddings.weight"]
    assert not torch.equal(weights["cls.predictions.decoder.weight"], rows)
    loaded = run("eval", "--backbone", folder, "-m", "prompt", "--task", "demo", "--json")
    assert loaded.code == 0


def launch(*arguments, home):
    return Program(*arguments, "--threads", "1", environment={"PROMPTCLI_HOME": str(home)})


def test_a_killed_run_ends_at_the_same_numbers(run, text, tmp_path, home):
    arguments = ["pretrain", text, *TINY, "--tokens", "20000", "--save-minutes", "0"]
    killed = launch(*arguments, "-o", tmp_path / "killed", home=home)
    killed.kill_once_there(tmp_path / "killed" / "work" / "state.safetensors")
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    shutil.copytree(tmp_path / "killed", tmp_path / "whole")  # the same vocabulary, but from the first step on
    (tmp_path / "whole" / "work" / "state.safetensors").unlink()
    whole = launch(*arguments, "-o", tmp_path / "whole", "--resume", home=home)
    again = run(*arguments, "-o", tmp_path / "killed")
    assert again.code == 2
    assert "`resume`" in again.err
    other = run(*arguments, "-o", tmp_path / "killed", "--resume", "--seed", "7")
    assert other.code == 2
    assert "was started with seed 0, not 7" in other.err
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


@pytest.mark.parametrize("bfloat16", [True, False])
@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", ["--tokens", "10"], "is empty"),
        (b"\x00\xff\xfe binary \x80", ["--tokens", "10"], "not text"),
        (b"a few words\nare no corpus\n", ["--tokens", "10"], "the corpus is too small for `vocab_size`"),
        (b"text\n", [], "the budget of the run"),
        (b"text\n", ["--tokens", "10", "--width", "100", "--heads", "3"], "`width` 100 is not a multiple of `heads` 3"),
        (
            b"text\n",
            ["--tokens", "10", "--set", "masking=0"],
            "`masking` 0.0 is not allowed; valid: above 0 and below 1",
        ),
        (b"text\n", ["--tokens", "10", "--set", "long-from=1.2"], "valid: at least 0 and at most 1"),
        (b"text\n", ["--tokens", "10", "--set", "optimizer=sgd"], "valid: adamw, muon"),
        (b"text\n", ["--tokens", "10", "--seed", "99999999999"], "'--seed'"),
        (b"text\n", ["--tokens", "10", "--set", "mask-mix=100"], "valid: 80/10/10, 90/5/5"),
        (b"text\n", ["--tokens", "10", "--batch-tokens", "100"], "`batch_tokens` 100"),
        (b"text\n", ["--tokens", "10", "--resume"], "no unfinished run"),
    ],
)
def test_what_cannot_be_trained_on(run, tmp_path, monkeypatch, bfloat16, content, options, message):
    monkeypatch.setattr(
        "promptcli.backbones.devices.computes", lambda dtype, device: bfloat16 or dtype == torch.float32
    )
    file = tmp_path / "bad.txt"
    file.write_bytes(content)
    ran = run("pretrain", file, "-o", tmp_path / "model", *options)
    assert ran.code == 2
    assert message in ran.err
    assert len(ran.err.strip().splitlines()) == 1
    assert not (tmp_path / "model" / "config.json").exists()


def test_a_corpus_smaller_than_one_batch(run, text, tmp_path):
    ran = run("pretrain", text, "-o", tmp_path / "model", *TINY, "--batch-tokens", "1000000", "--tokens", "10")
    assert ran.code == 2
    assert "fewer than one batch (`batch_tokens` 1000000)" in ran.err
    assert "Traceback" not in ran.err


def test_text_to_hold_out_that_is_not_there_is_said_before_the_work(run, text, tmp_path):
    options = ["-o", tmp_path / "model", *TINY, "--tokens", "20000", "--held-out", tmp_path / "none.txt"]
    ran = run("pretrain", text, *options)
    assert ran.code == 3 and "none.txt' cannot be opened" in ran.err
    assert not (tmp_path / "model").exists()


def test_a_folder_with_something_in_it_is_left_alone(run, text, tmp_path):
    ran = run("pretrain", text, "-o", tmp_path, *TINY, "--tokens", "10")
    assert ran.code == 2
    assert "is not empty" in ran.err
    assert run("pretrain", tmp_path / "none.txt", "-o", tmp_path / "m", "--tokens", "10").code == 3


def test_a_state_of_another_shape_is_refused(tmp_path):
    path = tmp_path / "state.safetensors"
    corpus = random_corpus()
    plan = Plan(tokens=600, batch_tokens=256, positions=128, vocab_size=500, width=16, heads=1, layers=1)
    trainer = Trainer(plan, "cpu")
    step = next(steps(plan, corpus))
    trainer.step(step, mask(step, plan, corpus))
    save_state(path, trainer.model.parameters, trainer.optimizer, Position(1, step.tokens, 0.5))
    wider = Trainer(replace(plan, width=32), "cpu")
    with pytest.raises(UsageError, match=r"of shape .* this model has"):
        load_state(path, wider.model.parameters, wider.optimizer)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UsageError, match="start again"):
        load_state(path, trainer.model.parameters, trainer.optimizer)


def test_a_loss_that_is_no_number_stops_the_run():
    corpus = random_corpus()
    plan = Plan(tokens=600, batch_tokens=256, positions=128, vocab_size=500, width=16, heads=1, layers=1)
    trainer = Trainer(plan, "cpu", start=torch.full((500, 16), float("nan")))
    step = next(steps(plan, corpus))
    with pytest.raises(PromptcliError, match="loss at step 1 is not a number"):
        trainer.step(step, mask(step, plan, corpus))
