"""Real public models: published figures, every method, every export, and causal recipes against a
plain loop.
"""

import json

import numpy as np
import pytest

import promptcli as pc
from promptcli.errors import missing_libraries
from promptcli.named_templates import named_templates
from promptcli.training.methods import METHODS
from tests.reference import plain
from tests.reference.causal import attention_outputs, contrasted, text_rule
from tests.tiny import SENTENCES
from tests.training_files import FILES
from tests.training_steps import family_for

pytestmark = pytest.mark.real
MINILM, SMOLLM, GLOVE = "all-MiniLM-L6-v2", "SmolLM2-135M-Instruct", "glove.6B.50d.txt"


@pytest.mark.data
def test_minilm_has_its_published_figures(run, real_model, data_folder):
    """MTEB's, which scores all pairs of a year together as SentEval does.

    SICK-R there is on 9,927 pairs.
    """
    published = {"STS12": 72.37, "STS13": 80.60, "STS14": 75.59, "STS-B": 82.03}
    tasks = [word for task in published for word in ("--task", task)]
    ran = run(
        "eval", "-m", real_model(MINILM), "--data-dir", data_folder / "senteval", *tasks, "--json"
    )
    found = {row["task"]: row["value"] for row in ran.json["results"]}
    assert found == pytest.approx(published, abs=0.02)


@pytest.mark.parametrize("name", METHODS)
def test_ten_steps_of_a_method(run, real_model, tmp_path, monkeypatch, name):
    if family_for(name) == "llama":
        pytest.skip(f"{name} is for causal models; its ten steps on SmolLM2 take minutes")
    monkeypatch.chdir(tmp_path)
    for file, lines in FILES.items():
        (tmp_path / file).write_text("\n".join(lines) + "\n")
    data = {"sbert": "nli.tsv", "sbert-regression": "graded.tsv", "defsent": "words.tsv"}.get(
        name, "text.txt"
    )
    options = [
        "--backbone",
        real_model(MINILM),
        "--data",
        data,
        "--steps",
        10,
        "--batch-size",
        4,
        "--json",
        "-q",
    ]
    options += ["--set", "teacher=mini"] if name in ("distill", "rankcse") else []
    ran = run("train", name, *options)
    if name in ("optiprompt", "defsent"):
        assert (ran.code, ran.err.count("\n")) == (2, 1) and "has no masked-LM head" in ran.err
        return
    told = ran.json
    assert told["steps"] == 10
    again = json.loads(run("eval", "-m", told["model"], "--task", "demo", "--json", "-q").out)[
        "results"
    ][0]
    assert again["value"] == pytest.approx(told["scores"][1]["trained"], abs=0.01)


@pytest.mark.parametrize("target", ["sentence-transformers", "onnx", "openvino"])
def test_minilm_goes_out_and_comes_back(run, real_model, tmp_path, target):
    if target in ("onnx", "openvino") and (
        missing := missing_libraries("onnx", "onnxscript", target.replace("onnx", "onnxruntime"))
    ):
        pytest.skip(f"{', '.join(missing)} is not installed")
    ran = run("export", real_model(MINILM), "-o", tmp_path / "out", "--to", target, "--json")
    assert ran.json["cosine"] is None or ran.json["cosine"] > 0.9999
    if target == "sentence-transformers":
        again = pc.load(tmp_path / "out").encode(SENTENCES)
        np.testing.assert_allclose(again, pc.load(real_model(MINILM)).encode(SENTENCES), atol=1e-5)


@pytest.mark.parametrize(
    "name", ["prompteol", "pretended-cot", "knowledge", "aligned-wva", "contrastive-prompting"]
)
def test_causal_recipes_equal_a_plain_loop(real_model, name):
    recipe = pc.RECIPES[name].replace(backbone=str(real_model(SMOLLM)))
    vectors = pc.load(recipe, dtype="float32", device="cpu").encode(SENTENCES)
    reference = plain.Plain(real_model(SMOLLM), causal=True)
    reference.model.float()
    template, auxiliary = (named_templates()[known].text for known in ("prompteol", "irrelevant"))
    for sentence, vector in zip(SENTENCES, vectors, strict=True):
        text = text_rule(sentence)
        if name == "aligned-wva":
            state = attention_outputs(reference, reference.ids(template, text)).sum(0)[-1]
        elif name == "contrastive-prompting":
            with contrasted(reference, reference.ids(auxiliary, text), 4, 0.5, norm=False):
                state = reference.states(reference.ids(template, text))[0][-2][-1]
        else:
            state = reference.states(reference.ids(recipe.prompt, text))[0][-1][-1]
        state = state.numpy()
        assert vector @ state / np.linalg.norm(vector) / np.linalg.norm(state) > 0.99999


def test_glove_averages_its_words(real_model):
    encoder = pc.load(pc.Recipe(f"glove:{real_model(GLOVE)}", pooling="static/avg"))
    words = [encoder.encode(word) for word in ("a", "cat", "sleeps")]
    np.testing.assert_allclose(encoder.encode("A cat sleeps"), np.mean(words, axis=0), atol=1e-6)
