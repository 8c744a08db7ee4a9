"""Pre-training by next-token prediction: the loss, what is predicted, a run cut short, a folder that others load."""

import json
import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from promptcli.backbones.dropout import Dropout
from promptcli.backbones.language_models import CausalLM
from promptcli.backbones.vocabulary import CLS, PAD, SEP
from promptcli.data.demo import SENTENCES
from promptcli.errors import UsageError
from promptcli.pretraining.batches import next_tokens, predict_next, steps
from promptcli.pretraining.optimizer import make_optimizer
from promptcli.pretraining.plan import Plan
from tests.pretraining.test_pretraining_steps import random_corpus

SHAPE = {"layers": 2, "width": 32, "heads": 2, "positions": 32, "vocab_size": 700}


def tiny_model(tied=True, dtype=torch.float32):
    return CausalLM(**SHAPE, tied=tied, seed=0, device="cpu", dtype=dtype)


@pytest.mark.parametrize("tied", [True, False])
def test_the_loss_and_its_gradient_are_those_of_one_chunk_at_a_time(tied, monkeypatch):
    monkeypatch.setattr("promptcli.backbones.language_models._LOGIT_ROWS", 16)
    model = tiny_model(tied)
    chunks = [np.random.default_rng(row).integers(5, 700, length) for row, length in enumerate((3, 9, 6))]
    batch = next_tokens(chunks)
    loss, right, _ = model.loss(*batch.tensors("cpu"), drop=Dropout())
    loss.backward()
    got = {name: parameter.grad.clone() for name, parameter in model.parameters.items()}
    model._model.zero_grad()
    wanted, count, correct = 0.0, 0, 0
    for chunk in chunks:  # nothing is padded here
        ids = [CLS, *chunk.tolist(), SEP]
        logits = model._model(input_ids=torch.tensor([ids])).logits[0]
        for place in range(len(ids) - 1):
            wanted = wanted - torch.log_softmax(logits[place], 0)[ids[place + 1]]
            correct += int(logits[place].argmax()) == ids[place + 1]
            count += 1
    (wanted / count).backward()
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()) / count, rel=1e-6)
    assert int(right) == correct
    largest = max(float(parameter.grad.abs().max()) for parameter in model.parameters.values())
    for name, parameter in model.parameters.items():
        assert (got[name] - parameter.grad).abs().max() < 1e-5 * largest, name
    assert ("lm_head.weight" in model.parameters) is not tied


def test_bfloat16_products_are_near_float32():
    batch = next_tokens([np.arange(5, 25), np.arange(40, 50)])
    models = [tiny_model(dtype=dtype) for dtype in (torch.float32, torch.bfloat16)]
    exact, coarse = (float(model.loss(*batch.tensors("cpu"), drop=Dropout())[0].detach()) for model in models)
    assert coarse == pytest.approx(exact, rel=0.01)
    assert coarse != exact


def test_dropout_is_what_the_step_says():
    model = tiny_model()
    tensors = next_tokens([np.arange(5, 25)]).tensors("cpu")
    for probability, different in ((0.0, 1), (0.3, 2)):
        drop = Dropout(probability)
        assert len({float(model.loss(*tensors, drop=drop)[0].detach()) for _ in range(2)}) == different


def test_every_real_token_predicts_the_next():
    corpus = random_corpus()
    plan = Plan(objective="causal", tokens=3000, batch_tokens=256, positions=64, vocab_size=500, width=16)
    step = next(steps(plan, corpus))
    batch = predict_next(step, plan, corpus)
    predicted = []
    for row, (start, end) in zip(batch.ids, step.spans, strict=True):
        real = [CLS, *corpus.tokens[start:end].tolist(), SEP]
        assert row.tolist() == real + [PAD] * (len(row) - len(real))
        predicted += real[1:]
    assert batch.gold.tolist() == predicted
    assert np.array_equal(batch.ids.ravel()[batch.places + 1], batch.gold)
    assert len(predicted) == step.tokens - len(step.spans)


def test_muon_takes_the_matrices_of_the_layers():
    parameters = tiny_model().parameters
    muon, matrices, vectors = make_optimizer(Plan(optimizer="muon"), parameters).param_groups
    names = {id(parameter): name for name, parameter in parameters.items()}
    assert len(muon["params"]) == 2 * 7
    assert [names[id(one)] for one in matrices["params"]] == ["model.embed_tokens.weight"]
    assert all("norm" in names[id(one)] for one in vectors["params"])


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(SENTENCES.read_text(encoding="utf-8").splitlines()[:600]) + "\n", encoding="utf-8")
    return path


def test_transformers_loads_the_folder_by_itself(run, text, tmp_path):
    folder = tmp_path / "model"
    shape = ["--objective", "causal", "--layers", "1", "--width", "16", "--vocab-size", "600", "--positions", "64"]
    arguments = ["pretrain", text, "-o", folder, *shape, "--batch-tokens", "512", "--held-out", text, "--json"]
    ran = run(*arguments, "--tokens", "12000")
    assert ran.code == 0, ran.err
    figures = json.loads(ran.out)["held_out"]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert type(model).__name__ == "LlamaForCausalLM"
    ids = tokenizer('This sentence : "A dog." means in one word:"')["input_ids"]
    assert ids[0] == tokenizer.bos_token_id == CLS
    assert SEP == tokenizer.eos_token_id not in ids
    assert tokenizer.convert_ids_to_tokens(ids)[-1] == '"'
    loss = right = count = 0
    for line in text.read_text(encoding="utf-8").splitlines():
        ids = torch.tensor([tokenizer(line)["input_ids"][:64]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, :-1]
        loss += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
        right += int((logits.argmax(dim=1) == ids[0, 1:]).sum())
        count += ids.shape[1] - 1
    assert figures["predicted"] == count
    assert figures["perplexity"] == pytest.approx(math.exp(loss / count), rel=1e-3)
    assert figures["accuracy"] == pytest.approx(100 * right / count, abs=0.01)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "causal-LM" in card and "rotary positions" in card
    given = ("--task", f"perplexity:{text}", "--backbone", folder, "--json")
    (measured,) = json.loads(run("eval", *given).out)["results"]
    assert measured["value"] == pytest.approx(figures["perplexity"], abs=0.01)
    again = run(*arguments, "--tokens", "12000")
    assert again.code == 2
    assert "give another `output`" in again.err


@pytest.mark.parametrize("option", [("masking", 0.3), ("mask_mix", "90/5/5"), ("at_start", 1.0)])
def test_what_only_masked_models_have_is_refused(option):
    name, value = option
    with pytest.raises(UsageError, match=f"`{name}` does not go with `objective` causal"):
        Plan(objective="causal", tokens=10, **{name: value})
    assert Plan(tokens=10, **{name: value})


def test_a_run_goes_on_with_its_own_objective(run, text, tmp_path):
    folder = tmp_path / "model" / "work"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps(Plan(tokens=600).to_dict()))
    ran = run("pretrain", text, "-o", folder.parent, "--objective", "causal", "--tokens", "600", "--resume")
    assert ran.code == 2
    assert "was started with objective 'masked', not 'causal'" in ran.err
