"""Sentence vectors next to the papers' own programs of evaluation."""

import functools
from pathlib import Path

import numpy as np
import pytest
import torch

from promptcli.backbones.by_name import load_backbone
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.prompts.token_prepending import TokenPrepending
from promptcli.recipe import RECIPES, Recipe
from promptcli.training.methods import find_method
from promptcli.training.methods.method import ConfiguredMethod
from tests.comparing import gap

OFFICIAL = Path(__file__).parents[1] / "reference" / "official"
SENTENCES = (OFFICIAL / "sentences.txt").read_text(encoding="utf-8").splitlines()
ROBERTA = "This sentence : ' [X] ' means[MASK]."


def recipe(name, **changes):
    return RECIPES[name].replace(**changes)


COTBERT = find_method("cotbert", supervised=False)
#: Case of ``evaluation.npz`` to the recipe that stands for it.
VECTORS = {
    "bert/last-average": recipe("last-avg"),
    "bert/first-last-average": recipe("first-last-avg"),
    "bert/static": recipe("static-avg"),
    "bert/static-unbiased": recipe("static-unbiased"),
    "bert/prompt": recipe("prompt"),
    "bert/prompt-denoised": recipe("prompt-denoised"),
    "bert/prompt-of": recipe("prompt", prompt='This sentence of "[X]" means [MASK] .'),
    "bert/optiprompt": recipe(
        "prompt", prompt='soft-template-lookup:This sentence : "[X]" means [MASK] .'
    ),
    "bert/sup-head-denoised": recipe(
        "prompt",
        prompt='This sentence of "[X]" means [MASK] .',
        transforms=("projection:mlm",),
        denoise="head",
    ),
    "simcse/cls_before_pooler": recipe("cls"),
    "simcse/avg": recipe("last-avg"),
    "simcse/avg_top2": Recipe(pooling="last-two/avg"),
    "simcse/avg_first_last": Recipe(
        pooling="last-two/avg"
    ),  # states 1 and -1, which two layers have as the last two
    "cotbert/test": ConfiguredMethod(COTBERT, COTBERT.mini_bert_settings, "x", "bert").recipe,
    **{
        f"ditto/layer{layer}-head{head}/{states}": Recipe(pooling=f"{states}/ditto:{layer}-{head}")
        for layer, head in ((1, 2), (2, 3))
        for states in ("static", "last", "first-last")
    },
    "ditto/average-static": recipe("static-avg"),
    "roberta/last-average": recipe("last-avg"),
    "roberta/first-last-average": recipe("first-last-avg"),
    "roberta/static": recipe("static-avg"),
    "roberta/static-unbiased": recipe("static-unbiased"),
    "roberta/prompt": recipe("prompt", prompt=ROBERTA),
    "roberta/prompt-denoised": recipe("prompt-denoised", prompt=ROBERTA, denoise="hidden:code"),
}
ONE_WORD = [
    f"tiny-{model}/{name}"
    for model in ("llama", "opt")
    for name in ("prompteol", "pretended-cot", "knowledge")
]


@functools.cache
def backbone(name):
    return load_backbone(str(OFFICIAL / "models" / name), device="cpu", dtype=torch.float32)


def largest_difference(case, expected, model, recipe, tensors=None):
    encoder = TorchEncoder(recipe.replace(backbone=model), backbone(model), tensors or {})
    return gap(encoder.encode(SENTENCES), expected) / np.abs(expected).max()


@pytest.mark.parametrize("case", VECTORS)
def test_vectors_of_the_programs_of_evaluation(case):
    values = np.load(OFFICIAL / "evaluation.npz")
    tensors = {}
    if case == "bert/optiprompt":
        start = np.load(OFFICIAL / "promptbert.npz")["optiprompt/start/p_mbv"]
        tensors = {"soft-template.vectors": torch.from_numpy(start)}
    if case == "bert/sup-head-denoised":
        head = f"{case}/head/"
        names = [name for name in values.files if name.startswith(head)]
        tensors = {
            f"projection.0.{name.removeprefix(head)}": torch.from_numpy(values[name])
            for name in names
        }
    model = "tiny-roberta" if case.startswith("roberta") else "tiny-bert"
    assert largest_difference(case, values[case], model, VECTORS[case], tensors) < 1e-5


@pytest.mark.parametrize("case", ONE_WORD)
def test_vectors_of_one_word_are_the_official_ones(case):
    model, name = case.split("/")
    assert (
        largest_difference(case, np.load(OFFICIAL / "one-word.npz")[case], model, RECIPES[name])
        < 3e-5
    )


@pytest.mark.parametrize("name", ["prompteol", "pretended-cot", "knowledge"])
def test_vectors_of_token_prepending_are_the_official_ones(monkeypatch, name):
    values, case = np.load(OFFICIAL / "one-word.npz"), f"tiny-llama/{name}+tp"
    drawn = torch.from_numpy(values["placeholder"]).reshape(1, -1)
    # drawn anew in each run of the program
    monkeypatch.setattr(TokenPrepending, "_embeddings", drawn)
    wanted = recipe(f"{name}+tp", prompt=f"token-prepending:1-4:{RECIPES[name].prompt}")
    assert largest_difference(case, values[case], "tiny-llama", wanted) < 3e-5
