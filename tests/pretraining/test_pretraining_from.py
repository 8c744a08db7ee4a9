"""``pretrain --from``: a run that goes on from a model made before."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from promptcli.data.demo import SENTENCES
from tests.processes import Program

SHAPE = ["--layers", "1", "--width", "16", "--vocab-size", "600", "--positions", "64"]
SMALL = ["--batch-tokens", "512", "--threads", "1"]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(SENTENCES.read_text(encoding="utf-8").splitlines()[:600]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def model(run, text, tmp_path):
    folder = tmp_path / "first"
    assert run("pretrain", text, "-o", folder, *SHAPE, *SMALL, "--tokens", "4000").code == 0
    return folder


@pytest.fixture
def other_text(tmp_path):
    path = tmp_path / "other.txt"
    lines = SENTENCES.read_text(encoding="utf-8").splitlines()[600:900]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("tied", ["tied=true", "tied=false"])
def test_at_a_learning_rate_of_0_the_model_is_the_one_begun_from(run, text, other_text, tmp_path, tied):
    first, second = tmp_path / "first", tmp_path / "second"
    assert run("pretrain", text, "-o", first, *SHAPE, *SMALL, "--tokens", "4000", "--set", tied).code == 0
    ran = run("pretrain", other_text, "--from", first, "-o", second, *SMALL, "--tokens", "2000", "--learning-rate", "0")
    assert ran.code == 0, ran.err
    weights, kept = load_file(first / "model.safetensors"), load_file(second / "model.safetensors")
    assert weights.keys() == kept.keys()
    assert all(torch.equal(weights[name], kept[name]) for name in weights)
    assert (first / "vocab.txt").read_bytes() == (second / "vocab.txt").read_bytes()
    settings = json.loads((second / "work" / "plan.json").read_text())
    assert f"Went on from the weights {settings['begun_from']}" in (second / "README.md").read_text(encoding="utf-8")
    assert (settings["layers"], settings["width"], settings["vocab_size"], settings["positions"]) == (1, 16, 600, 64)


def test_several_are_begun_from_at_their_mean(run, text, other_text, model, tmp_path):
    step = ["--from", model, *SMALL, "--tokens", "2000"]
    one, other, mean = tmp_path / "one", tmp_path / "other", tmp_path / "mean"
    assert run("pretrain", text, "-o", one, *step).code == 0
    assert run("pretrain", other_text, "-o", other, *step).code == 0
    both = ["--from", one, "--from", other, *SMALL, "--tokens", "600", "--learning-rate", "0"]
    assert run("pretrain", other_text, "-o", mean, *both).code == 0
    first, second, found = (load_file(folder / "model.safetensors") for folder in (one, other, mean))
    assert any(not torch.equal(first[name], second[name]) for name in first)
    for name in first:
        assert torch.allclose(found[name], (first[name] + second[name]) / 2, rtol=0, atol=1e-6), name
    begun_from = json.loads((mean / "work" / "plan.json").read_text())["begun_from"].split()
    assert f"the mean of the weights {begun_from[0]} and {begun_from[1]}" in (mean / "README.md").read_text("utf-8")


@pytest.mark.parametrize("what", ["shape", "vocabulary"])
def test_models_without_a_mean(run, model, text, other_text, tmp_path, what):
    other, shape = tmp_path / "other", list(SHAPE)
    if what == "shape":
        shape[1] = "2"
    assert run("pretrain", other_text, "-o", other, *shape, *SMALL, "--tokens", "600").code == 0
    ran = run("pretrain", text, "--from", model, "--from", other, "-o", tmp_path / "mean", *SMALL, "--tokens", "600")
    assert ran.code == 2
    assert f"has another {what} than `start`" in ran.err
    assert len(ran.err.strip().splitlines()) == 1
    assert not (tmp_path / "mean").exists()


def test_it_learns_from_where_it_begins(run, model, text, tmp_path):
    losses = []
    for options in (["--from", model], SHAPE):
        folder = tmp_path / f"model{len(losses)}"
        ran = run("pretrain", text, "-o", folder, *options, *SMALL, "--tokens", "12000", "--set", "warmup=0")
        assert ran.code == 0, ran.err
        losses.append(json.loads((folder / "log.jsonl").read_text().splitlines()[0])["loss"])
    assert losses[0] < losses[1]
    before, after = (load_file(folder / "model.safetensors") for folder in (model, tmp_path / "model0"))
    assert not torch.equal(before["cls.predictions.bias"], after["cls.predictions.bias"])


def test_a_killed_run_ends_at_the_same_numbers(run, model, other_text, tmp_path, home):
    arguments = ["pretrain", other_text, "--from", model, *SMALL, "--tokens", "15000", "--save-minutes", "0"]
    killed = Program(*arguments, "-o", tmp_path / "killed", environment={"PROMPTCLI_HOME": str(home)})
    killed.kill_once_there(tmp_path / "killed" / "work" / "state.safetensors")
    shutil.copytree(tmp_path / "killed", tmp_path / "whole")  # killed before its first state was kept
    (tmp_path / "whole" / "work" / "state.safetensors").unlink()
    for name in ("killed", "whole"):
        ran = run(*arguments, "-o", tmp_path / name, "--resume")
        assert ran.code == 0, ran.err
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("killed", "whole")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_run_goes_on_from_its_own_model_only(run, model, text, other_text, tmp_path):
    second = tmp_path / "second"
    begin = ["pretrain", other_text, *SMALL, "--tokens", "2000", "-o", second]
    assert run(*begin, "--from", model).code == 0
    third = tmp_path / "third"
    assert run("pretrain", text, "-o", third, *SHAPE, *SMALL, "--tokens", "4000", "--seed", "1").code == 0
    (second / "README.md").unlink()
    ran = run(*begin, "--from", third, "--resume")
    assert ran.code == 2
    assert "was started with begun-from" in ran.err


def test_the_shipped_model_is_begun_from_by_its_name(run, other_text, tmp_path):
    folder = tmp_path / "model"
    ran = run("pretrain", other_text, "--from", "mini-bert", "-o", folder, "--tokens", "600", "--batch-tokens", "512")
    assert ran.code == 0, ran.err
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 16384


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layers", "3"], "`layers` 3 does not go with `start`"),
        (["--set", "tied=false"], "`tied` False does not go with `start`"),
    ],
)
def test_what_does_not_go_with_it(run, model, text, tmp_path, options, message):
    ran = run("pretrain", text, "--from", model, "-o", tmp_path / "second", *SMALL, "--tokens", "600", *options)
    assert ran.code == 2
    assert message in ran.err
    assert len(ran.err.strip().splitlines()) == 1
    assert not (tmp_path / "second").exists()


def _no_vocabulary(folder):
    (folder / "vocab.txt").unlink()


def _another_vocabulary(folder):
    (folder / "vocab.txt").write_text("[PAD]\n[unused0]\n" * 300, encoding="utf-8")


def _another_family(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "roberta"}))


def _no_shape(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": "wide"}))


def _a_layer_more(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))


@pytest.mark.parametrize(
    "damage", [_no_vocabulary, _another_vocabulary, _another_family, _no_shape, _a_layer_more], ids=lambda d: d.__name__
)
def test_a_model_that_it_did_not_make(run, model, text, tmp_path, damage):
    damage(model)
    ran = run("pretrain", text, "--from", model, "-o", tmp_path / "second", *SMALL, "--tokens", "600", "--quiet")
    assert ran.code == 2
    assert "not a BERT made by `promptcli pretrain`" in ran.err
    assert "Traceback" not in ran.err
    assert not (tmp_path / "second" / "config.json").exists()


def test_a_model_that_is_not_there(run, text, tmp_path):
    ran = run("pretrain", text, "--from", tmp_path / "none", "-o", tmp_path / "second", "--tokens", "600")
    assert ran.code == 3
    assert "no backbone folder" in ran.err
