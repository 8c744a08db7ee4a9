"""``promptcli pretrain``: a backbone from text or from earlier models, runs that are stopped, and
what is refused.
"""

import json
import shlex
import shutil
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file

from promptcli.data.demo import SENTENCES_FILE
from promptcli.plugins.pretrain import pretraining
from promptcli.plugins.pretrain.pretraining import Pretrainer
from tests.comparing import refused

LINES = SENTENCES_FILE.read_text(encoding="utf-8").splitlines()
TINY = ["--layers", "1", "--width", "16", "--vocab-size", "600", "--positions", "64"]
SMALL = ["--batch-tokens", "512", "--threads", "1"]
BAGS = ["--objective", "bag-of-words"]


def weights_of(folder):
    return load_file(folder / "model.safetensors")


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(LINES[:600]) + "\n", encoding="utf-8")
    return tmp_path / "text.txt"


@pytest.fixture
def other_text(tmp_path):
    (tmp_path / "other.txt").write_text("\n".join(LINES[600:900]) + "\n", encoding="utf-8")
    return tmp_path / "other.txt"


@pytest.fixture
def model(run, text, tmp_path):
    folder = tmp_path / "first"
    assert run("pretrain", text, "-o", folder, *TINY, *SMALL, "--tokens", "4000").code == 0
    return folder


def test_a_model_from_text_is_a_backbone(run, text, tmp_path):
    folder = tmp_path / "my model"
    options = [*TINY, *SMALL, "--tokens", "20000", "--json", "--resume"]
    figures = run("pretrain", text, "-o", folder, *options).json
    assert figures["tokens"] >= 20000
    config = json.loads((folder / "config.json").read_text())
    assert (config["hidden_dropout_prob"], config["attention_probs_dropout_prob"]) == (0.1, 0.1)
    record = json.loads((folder / "pretraining.json").read_text())
    assert record["figures"] == figures
    words = ["promptcli", "pretrain", str(text), "-o", str(folder), *options[:-1]]
    assert shlex.split(record["command"]) == words  # quoted


@pytest.mark.parametrize("tied", [True, False])
def test_at_a_learning_rate_of_0_the_model_is_the_one_begun_from(
    run, text, other_text, tmp_path, tied
):
    first, second = tmp_path / "first", tmp_path / "second"
    options = [*TINY, *SMALL, "--tokens", "4000", "--set", f"tied={str(tied).lower()}"]
    assert run("pretrain", text, "-o", first, *options).code == 0
    ran = run(
        "pretrain",
        other_text,
        "--from",
        first,
        "-o",
        second,
        *SMALL,
        "--tokens",
        "2000",
        "--learning-rate",
        "0",
    )
    assert ran.code == 0, ran.err
    weights, kept = weights_of(first), weights_of(second)
    assert weights.keys() == kept.keys()
    assert all(torch.equal(weights[name], kept[name]) for name in weights)
    rows = weights["bert.embeddings.word_embeddings.weight"]
    assert torch.equal(weights.get("cls.predictions.decoder.weight", rows), rows) is tied
    assert (first / "vocab.txt").read_bytes() == (second / "vocab.txt").read_bytes()
    settings = json.loads((second / "work" / "run.json").read_text())["identity"]
    record = json.loads((second / "pretraining.json").read_text())
    assert record["settings"]["begun_from"] == settings["begun_from"]
    assert (
        settings["layers"],
        settings["width"],
        settings["vocab_size"],
        settings["positions"],
    ) == (1, 16, 600, 64)


def test_a_stopped_run_goes_on_to_the_same_numbers(run, model, text, tmp_path, monkeypatch):
    monkeypatch.setattr(pretraining, "_SECONDS_TO_SAVE", 0.0)
    monkeypatch.setattr(pretraining, "_LOG_EVERY", 2)
    begun, options = ("--from", model), [*SMALL, *BAGS, "--tokens", "4000"]
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    with monkeypatch.context() as patched:
        saves = Mock(side_effect=[None, KeyboardInterrupt])
        save = Pretrainer.save
        patched.setattr(Pretrainer, "save", lambda *given: (save(*given), saves()))
        ran = run("pretrain", text, *options, *begun, "-o", stopped)
    assert ran.code != 0 and "resume" in ran.err
    assert not (stopped / "model.safetensors").exists()
    words = ["pretrain", text, *options, "-o", stopped]
    for more, message in (
        (begun, "resume"),
        ((*begun, "--resume", "--seed", "7"), "with seed 0, not 7"),
    ):
        refused(run(*words, *more, "-q"), 2, message)
    refused(run(*words, "--resume", "-q"), 2, "was started with")
    assert run(*words, *begun, "--resume").code == 0
    assert run("pretrain", text, *options, *begun, "-o", whole).code == 0
    one, two = weights_of(whole), weights_of(stopped)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_run_keeps_others_from_its_folder_while_it_lasts(run, text, tmp_path, monkeypatch):
    """The other command begins in the middle of the first.

    In what it would begin again the first is at work.
    """
    take_step, others = Pretrainer.take_step, []
    words = ["pretrain", text, "-o", tmp_path / "model", *TINY, *SMALL, "--tokens", "4000", "-q"]

    def in_the_meantime(trainer, *given):
        if not others:
            others.append(None)
            others.extend([run(*words), run(*words, "--resume")])
        return take_step(trainer, *given)

    monkeypatch.setattr(Pretrainer, "take_step", in_the_meantime)
    first = run(*words)
    assert first.code == 0, first.err
    for other in others[1:]:
        refused(
            other,
            2,
            f"the pre-training of {tmp_path / 'model'} is running: process ",
            "or give another",
        )
    assert not [path for path in (tmp_path / "model").iterdir() if path.name[0] == "."]


def test_one_word_sentences_and_another_script_are_said_and_trained_on(
    run, model, other_text, tmp_path
):
    other_text.write_text(
        "word\n" * 30 + "привет мир как дела сегодня утром\n" * 100 + other_text.read_text()
    )
    ran = run(
        "pretrain",
        other_text,
        *BAGS,
        "--from",
        model,
        *SMALL,
        "--tokens",
        "2000",
        "-o",
        tmp_path / "m",
    )
    assert ran.code == 0, ran.err
    assert "of the tokens are [UNK]" in ran.err


def test_the_shipped_model_is_begun_from_by_its_name(run, other_text, tmp_path):
    folder = tmp_path / "model"
    ran = run(
        "pretrain",
        other_text,
        "--from",
        "mini-bert",
        "-o",
        folder,
        "--tokens",
        "600",
        "--batch-tokens",
        "512",
    )
    assert ran.code == 0, ran.err
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 16384


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, ["--layers", "3"], "--layers: 3 does not go with"),
        ({}, ["--set", "tied=false"], "--set tied: False does not go with"),
        ({"vocab.txt": "[PAD]\n[unused0]\n" * 300}, [], "vocabulary"),
        ({"model_type": "roberta"}, [], "the checkpoint is not complete"),
        ({"hidden_size": "wide"}, [], "hidden_size"),
        ({"num_hidden_layers": 2}, [], "the checkpoint is not complete"),
    ],
)
def test_a_model_that_cannot_be_begun_from_is_refused(
    run, model, text, here, changes, options, message
):
    shutil.copytree(model, "changed")
    config = json.loads((model / "config.json").read_text())
    (here / "changed" / "config.json").write_text(json.dumps({**config, **changes}))
    (here / "changed" / "vocab.txt").write_text(
        changes.get("vocab.txt", (model / "vocab.txt").read_text())
    )
    words = [
        "pretrain",
        text,
        *options,
        "--from",
        "changed",
        "-o",
        "second",
        *SMALL,
        "--tokens",
        "600",
        "-q",
    ]
    refused(run(*words), 2, message)
    assert not (here / "second").exists()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--vocab-size", "16384"], 2, "--vocab-size"),
        (["--tokens", "0"], 2, "the budget of the run"),
        (["--width", "100", "--heads", "3"], 2, "--width: 100 is not a multiple of the 3 heads"),
        (["--set", "masking=0"], 2, "masking"),
        (["--set", "optimizer=sgd"], 2, "unknown setting 'optimizer'"),
        (["--batch-tokens", "50"], 2, "--batch-tokens: 50"),
        (["--batch-tokens", "1000000"], 2, "--batch-tokens: 1,000,000 are more than"),
        (["-o", "."], 2, "is not empty"),
        (["none.txt"], 3, "none.txt"),
        (["empty.txt"], 2, "is empty"),
        (["--from", "./none"], 3, "no backbone folder"),
        (["--objective", "words"], 2, "valid: masked, bag-of-words"),
        (["--templates", "t.txt"], 2, "bag-of-words"),
        ([*BAGS, "--templates", "absent.txt"], 3, "absent.txt"),
    ],
)
def test_a_pretraining_that_cannot_begin_is_refused(run, text, here, options, code, message):
    (here / "empty.txt").write_bytes(b"")
    refused(
        run("pretrain", text, "-o", "model", *TINY, *SMALL, "--tokens", "10", *options, "-q"),
        code,
        message,
    )
    assert not (here / "model").exists()  # it would block the corrected command
