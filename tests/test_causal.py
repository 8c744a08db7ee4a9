"""Causal backbones: every family against transformers' eager path, read at the last token; what does not fit."""

import numpy as np
import pytest
import torch

from promptcli.backbones.families import FAMILIES
from promptcli.encoder.encoder import build_encoder
from promptcli.encoder.recipe import RECIPES, Recipe
from promptcli.errors import UsageError
from tests.reference import plain
from tests.tiny import SENTENCES
from tests.tiny_causal import CAUSAL

PROMPTEOL = RECIPES["prompteol"]
TEXTS = [*SENTENCES, 'Is it "so"?', "What?", ""]


def ruled(sentence):
    """PromptEOL's text rule, step by step."""
    text = sentence.strip()
    if text and text[-1] not in ".?\"'":
        text += "."
    text = text.replace('"', "'")
    return text[:-1] + "." if text[-1:] == "?" else text


def test_every_causal_family_has_a_tiny_model():
    assert {name for name, family in FAMILIES.items() if family.causal} == set(CAUSAL)


@pytest.mark.parametrize("family", CAUSAL)
def test_prompteol_equals_the_eager_path_at_the_last_token(family, tiny_backbone, tiny_folder):
    reference = plain.Plain(tiny_folder(family), causal=True)
    encoder = build_encoder(PROMPTEOL, backbone=tiny_backbone(family))
    rows = encoder.inputs(TEXTS).rows
    vectors = encoder.encode(TEXTS)
    for text, row, vector in zip(TEXTS, rows, vectors, strict=True):
        ids = reference.ids(PROMPTEOL.prompt, ruled(text))
        assert row == ids
        states, _ = reference.states(ids)
        assert np.abs(vector - states[-1][-1].numpy()).max() < 1e-5
    order = np.random.default_rng(0).permutation(len(TEXTS))
    again = encoder.encode([TEXTS[place] for place in order], batch_size=3)  # other neighbours, other padding
    assert np.abs(again - vectors[order]).max() < 1e-5


@pytest.mark.parametrize("family", CAUSAL)
def test_averages_layers_and_diagonals_equal_the_eager_path(family, tiny_backbone, tiny_folder):
    reference = plain.Plain(tiny_folder(family), causal=True)
    read = {
        "static/avg": lambda ids, states, _: plain.average(reference.rows()[ids]),
        "first-last/avg": lambda ids, states, _: plain.average(torch.stack(plain.first_last(states))),
        "layer--2/last-token": lambda ids, states, _: states[-2][-1],
        "layer-1/avg": lambda ids, states, _: plain.average(states[1]),
        "last/ditto:2-3": lambda ids, states, matrices: plain.ditto(states[-1], matrices[1], 2),
    }
    encoders = {spec: build_encoder(Recipe(pooling=spec), backbone=tiny_backbone(family)) for spec in read}
    vectors = {spec: encoder.encode(SENTENCES) for spec, encoder in encoders.items()}
    for number, sentence in enumerate(SENTENCES):
        ids = reference.ids("[X]", sentence)
        states, matrices = reference.states(ids)
        for spec, formula in read.items():
            assert np.abs(vectors[spec][number] - formula(ids, states, matrices).numpy()).max() < 1e-5, spec


@pytest.mark.parametrize("family", CAUSAL)
def test_the_head_equals_the_causal_lm(family, tiny_backbone, tiny_folder):
    reference = plain.Plain(tiny_folder(family), causal=True)
    head = tiny_backbone(family).head
    hidden = torch.randn(3, tiny_backbone(family).width)
    for row, logits in zip(hidden, head.to_logits(head.to_hidden(hidden)), strict=True):
        assert torch.allclose(logits, reference.logits(row), atol=1e-4)


def test_what_does_not_fit_a_kind_of_model_names_what_does(tiny_backbone):
    causal, masked = tiny_backbone("gpt2"), tiny_backbone("bert")
    for recipe, backbone, said in [
        (PROMPTEOL, masked, r"'last-token' are for causal models \(gpt2, .*--recipe prompt$"),
        (RECIPES["prompt"], causal, r"causal and read at its last token: take --recipe prompteol"),
        (RECIPES["cls"], causal, r"'cls' read the first token.*take last-token"),
        (Recipe(text_rule="other"), masked, r"text rule 'other'.*prompteol"),
        (Recipe(pooling="layer--5/avg"), causal, r"layer-0 to layer-3, or from the end layer--1 to layer--4"),
    ]:
        with pytest.raises(UsageError, match=said):
            build_encoder(recipe, backbone=backbone)
