"""The shipped models: small, half precision, with a card that says how they were made."""

import json

import numpy as np
import torch
from safetensors import safe_open

from promptcli.backbones.pretrained import SHIPPED
from promptcli.models.loading import open_model
from promptcli.models.registry import Registry
from promptcli.recipe import Recipe

MINI = SHIPPED["mini-bert"]


def test_mini_is_in_half_precision_and_its_card_says_how_it_was_made():
    with safe_open(MINI / "model.safetensors", framework="pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F16"}
    config = json.loads((MINI / "config.json").read_text())
    assert (config["max_position_embeddings"], config["hidden_dropout_prob"]) == (512, 0.1)
    assert config["attention_probs_dropout_prob"] == 0.1
    card = (MINI / "README.md").read_text(encoding="utf-8")
    assert all(text in card for text in ("`promptcli pretrain ", "Tokens seen", "seed", "SHA-256", "STS-B"))


def test_long_inputs_are_trained_positions(tiny_backbone):
    """Positions of the last phase have moved away from their random start: none is like fresh noise of N(0, 0.02)."""
    with safe_open(MINI / "model.safetensors", framework="pt") as file:
        rows = file.get_tensor("bert.embeddings.position_embeddings.weight").float()
    assert rows.shape[0] == 512
    neighbours = torch.nn.functional.cosine_similarity(rows[:-1], rows[1:])
    assert neighbours[:62].mean() > 0.4
    assert neighbours[64:].mean() > 0.05  # seen in the last phase only; fresh ones have 0 +- 0.003


def test_the_shipped_files_are_small():
    assert sum(path.stat().st_size for path in MINI.parent.rglob("*") if path.is_file()) <= 40 * 10**6


def test_the_fast_tier_is_word_embeddings_and_says_how_it_was_made(home):
    folder = MINI.parent / "mini-static"
    registry = Registry(home)
    entry, card = registry.load("mini-static"), registry.card("mini-static")
    static = Recipe(backbone="mini-bert", period=False, pooling="static/avg")
    assert entry.recipe == card.recipe == static.explicit()
    (table,) = entry.tensors.items()
    assert (table[0], table[1].dtype) == ("backbone.embeddings.word_embeddings.weight", torch.float16)
    assert entry.provenance["weights_sha256"] == open_model(registry.load("mini")).provenance["weights_sha256"]
    trained = entry.provenance["trained"]
    assert (trained["method"], trained["chosen_by"]) == ("distill", "STS-B:dev")
    best = max(trained["curve"], key=lambda score: score["value"])
    assert (best["step"], best["best"]) == (trained["best_step"], True)
    assert "promptcli train distill --data sentences.txt " in (folder / "README.md").read_text(encoding="utf-8")


def test_the_fast_tier_knows_words_and_not_their_order(home):
    encoder = open_model(Registry(home).load("mini-static"), dtype="float32")
    swapped = encoder.encode(["the dog bit the man", "the man bit the dog", "prices fell in may"])
    assert np.abs(swapped[0] - swapped[1]).max() < 1e-5 < np.abs(swapped[0] - swapped[2]).max()
