"""The package is installed, and promptcli has its command, its pooling and its method."""

import json

import numpy as np
import pytest

import promptcli as pc
from promptcli.cli.command_line import main

SENTENCES = ["It rains.", "The old harbour is quiet before the boats come in.", "Two cats sleep."]


def run(*words):
    with pytest.raises(SystemExit) as ended:
        main([*words, "--offline"])
    return ended.value.code


@pytest.fixture(autouse=True)
def text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROMPTCLI_HOME", str(tmp_path / "home"))
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES * 4))
    pairs = [f"{SENTENCES[0]}\t{other}\t{score}" for score, other in enumerate(SENTENCES)]
    (tmp_path / "pairs.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *pairs]))


def test_the_command_counts_tokens(capsys):
    assert not run("lengths", "text.txt", "--longest", "1", "--json")
    (longest,) = json.loads(capsys.readouterr().out)
    assert longest["text"] == SENTENCES[1] and longest["tokens"] >= 11
    assert run("lengths", "nothing.txt") == 2
    assert "nothing.txt" in capsys.readouterr().err


def test_the_pooling_is_the_mean_of_the_middle():
    middle = pc.load(pc.Recipe(backbone="mini-bert", pooling="last/middle"), dtype="float32")
    together = middle.encode(SENTENCES)
    alone = np.concatenate([middle.encode([sentence]) for sentence in SENTENCES])
    assert np.allclose(together, alone, atol=1e-5) and np.isfinite(middle.encode([""])).all()
    every = pc.load(pc.Recipe(backbone="mini-bert", pooling="last/content-avg"), dtype="float32")
    assert not np.allclose(together[1], every.encode(SENTENCES)[1], atol=1e-3)


def test_the_method_trains():
    pc.train(
        "spreadcse", "text.txt", on="pairs.tsv", batch_size=4, steps=2, name="spread", spread=0.5
    )
    assert pc.list_models()[-1].provenance["trained"]["spread"] == 0.5
    assert pc.load("spread").encode(["A cat sleeps."]).shape == (1, 256)
