"""Pre-training: the loss next to that of all places, dropout, and a run that is stopped."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file

from promptcli.backbones.language_models import MaskedInputs
from promptcli.errors import PromptcliError
from promptcli.plugins.pretrain import pretraining as training
from promptcli.plugins.pretrain.plan import Plan
from promptcli.plugins.pretrain.pretraining import Pretrainer
from promptcli.plugins.pretrain.start import new_model, sinusoids
from tests.comparing import gap, refusal
from tests.plugins.pretrain.small_runs import random_corpus, tiny_model

NO_WORDS = (torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), torch.zeros(0))
SHAPE = {"positions": 64, "vocab_size": 500, "width": 32, "heads": 2, "layers": 2}


@pytest.mark.parametrize("tied", [True, False])
def test_the_loss_and_its_gradient_are_those_of_transformers_at_all_places(tied):
    model = tiny_model(tied)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 700, (20, 12), generator=generator)
    real = torch.ones_like(ids, dtype=torch.bool)
    real[3, 7:] = False
    words = real.flatten().nonzero().flatten()  # padding is never predicted
    places = words[torch.randperm(len(words), generator=generator)[:150]]
    gold = torch.randint(5, 700, (150,), generator=generator)
    begins = torch.randint(0, 21, (20,), generator=generator)
    loss, right = model.loss(MaskedInputs(ids, real, begins, places, gold, *NO_WORDS), dropout=0.0)
    loss.backward()
    got = {name: one.grad for name, one in model.parameters.items() if one.grad is not None}
    for parameter in model.parameters.values():
        parameter.grad = None
    model._stored.eval()  # transformers' own pass, on the same tensors; no dropout
    positions = torch.where(real, begins[:, None] + torch.arange(12), 0)
    whole = model._stored(input_ids=ids, attention_mask=real.long(), position_ids=positions).logits
    logits = whole.flatten(0, 1)[places]
    whole = torch.nn.functional.cross_entropy(logits, gold)
    whole.backward()
    assert float(loss.detach()) == pytest.approx(float(whole.detach()), rel=1e-6)
    assert int(right) == int((logits.argmax(dim=1) == gold).sum())
    wanted = {name: one.grad for name, one in model.parameters.items() if one.grad is not None}
    largest = max(float(grad.abs().max()) for grad in wanted.values())
    for name, grad in wanted.items():
        assert gap(got[name], grad) < 1e-6 * largest, name
    assert ("cls.predictions.decoder.weight" in model.parameters) is not tied


def test_our_own_bert_computes_on_the_tensors_that_are_stored(tmp_path, monkeypatch):
    model = tiny_model()
    named = dict(model._stored.bert.named_parameters())
    ours = dict(model._bert.named_parameters())
    assert ours.keys() == named.keys()
    assert all(ours[name] is tensor for name, tensor in named.items())
    monkeypatch.setattr(model._stored.bert, "forward", None)
    ids = torch.randint(5, 700, (4, 8))
    gold = ids.flatten()[:5]
    begins = torch.zeros(4, dtype=torch.int64)
    inputs = MaskedInputs(ids, None, begins, torch.arange(5), gold, *NO_WORDS)
    loss, _ = model.loss(inputs, dropout=0.1)
    loss.backward()
    assert all(tensor.grad is not None for tensor in model.parameters.values())
    model.save(tmp_path, dropout=0.1)
    assert load_file(tmp_path / "model.safetensors").keys() == model.parameters.keys()


def test_untied_embeddings_start_as_equals_and_part_in_training():
    model = tiny_model(tied=False)
    rows, decoder = model.word_embeddings, model._stored.cls.predictions.decoder.weight
    assert torch.equal(rows, decoder)
    assert rows is not decoder
    model.start_from(torch.randn(700, 32))
    assert torch.equal(rows, decoder)
    ids = torch.randint(5, 700, (4, 8))
    real, begins = torch.ones_like(ids, dtype=torch.bool), torch.zeros(4, dtype=torch.int64)
    inputs = MaskedInputs(ids, real, begins, torch.arange(5), ids.flatten()[:5], *NO_WORDS)
    loss, *_ = model.loss(inputs, dropout=0.0)
    loss.backward()
    assert not torch.equal(rows.grad, decoder.grad)


def test_dropout_is_what_the_step_says():
    model = tiny_model()
    ids = torch.randint(5, 700, (4, 8))
    real, begins = torch.ones_like(ids, dtype=torch.bool), torch.zeros(4, dtype=torch.int64)
    inputs = MaskedInputs(ids, real, begins, torch.arange(5), ids.flatten()[:5], *NO_WORDS)

    def loss(dropout, seed):
        torch.manual_seed(seed)
        return float(model.loss(inputs, dropout=dropout)[0].detach())

    assert loss(0.0, 0) == loss(0.0, 1)
    assert loss(0.1, 0) == loss(0.1, 0) != loss(0.1, 1)


@pytest.mark.parametrize("width", [8, 9])
def test_the_position_table_starts_from_sinusoids(width):
    table = sinusoids(32, width)
    for place in range(32):
        for column in range(width):
            angle = place / 10_000 ** (2 * (column // 2) / width)
            wanted = math.cos(angle) if column % 2 else math.sin(angle)
            assert table[place, column].item() == pytest.approx(
                0.02 * math.sqrt(2) * wanted, abs=1e-7
            )
    shape = {"positions": 32, "vocab_size": 700, "width": width, "heads": 1, "layers": 1}
    plan = Plan(tokens=9, batch_tokens=99, **shape)
    assert torch.equal(new_model(plan, "cpu").position_rows, table)


def test_a_run_stopped_in_any_phase_ends_at_the_same_numbers(tmp_path, monkeypatch):
    corpus = random_corpus()
    small = {**SHAPE, "width": 16, "heads": 1, "layers": 1}
    plan = Plan(batch_tokens=256, dropout_from=0.4, tokens=17_000, long_from=0.7, **small)

    def go(name):
        trainer = Pretrainer(plan, "cpu", new_model(plan, "cpu", torch.float32))
        paths = (tmp_path / f"{name}.safetensors", tmp_path / f"{name}.jsonl")
        trainer.train(corpus, *paths, lambda done: None)
        losses = [json.loads(line)["loss"] for line in paths[1].read_text().splitlines()]
        return trainer.model.parameters, losses

    monkeypatch.setattr(training, "_LOG_EVERY", 10)
    monkeypatch.setattr(training, "_SECONDS_TO_SAVE", 0.0)
    whole, losses = go("whole")
    for stop in (20, 60):

        def stopping(trainer, state, position, save=Pretrainer.save, stop=stop):
            save(trainer, state, position)
            if position.step == stop:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Pretrainer, "save", stopping)
            go(f"cut-{stop}")
        resumed, again = go(f"cut-{stop}")
        assert all(torch.equal(whole[name], resumed[name]) for name in whole)
        assert losses == again


def test_a_loss_that_is_no_number_stops_the_run(tmp_path):
    plan = Plan(
        tokens=600, batch_tokens=256, positions=128, vocab_size=500, width=16, heads=1, layers=1
    )
    model = new_model(plan, "cpu")
    model.start_from(torch.full((500, 16), float("nan")))
    trainer = Pretrainer(plan, "cpu", model)
    with refusal("loss at step 1 is not a number", PromptcliError):
        trainer.train(random_corpus(), tmp_path / "state", tmp_path / "log", lambda done: None)
