"""TF-IDF of whole words: which pieces are a word, the weights against plain loops, and the fitted
model.
"""

import math

import numpy as np
import pytest
import torch

from promptcli.encoder.encoder import build_encoder
from promptcli.encoder.pooling.tfidf import IDF, LENGTHS, TOKENS, Words
from promptcli.recipe import Recipe
from promptcli.training.fitting import fit_recipe
from tests.comparing import gap
from tests.reference import plain
from tests.tiny import SENTENCES

POOLING = "first-last/tfidf:word"


def cut_text(backbone, sentence):
    """The words of a sentence as text, specials left out."""
    tokens = backbone.tokenizer
    row = build_encoder(Recipe(), backbone=backbone).inputs([sentence]).ids[0]
    words = Words(backbone).cut(row)
    assert [piece for word in words for piece in word] == row
    assert words[0] == (tokens.start[0],) and words[-1] == (tokens.end[0],)
    joined = (
        "".join(tokens.text(piece).removeprefix("##") for piece in word) for word in words[1:-1]
    )
    return [word.lstrip("Ġ▁") for word in joined]


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_words_are_those_of_the_text(family, tiny_backbone):
    backbone = tiny_backbone(family)
    sentence = "Unbelievably, the unhappy runners kept running; it's empty."
    expected = [
        "Unbelievably",
        ",",
        "the",
        "unhappy",
        "runners",
        "kept",
        "running",
        ";",
        "it",
        "'",
        "s",
        "empty",
        ".",
    ]
    if family == "bert":
        expected = [word.lower() for word in expected]
    found = cut_text(backbone, sentence)
    assert "".join(found) == "".join(expected)
    # "'s" is one piece there
    assert found == expected or (family == "roberta" and found[:8] == expected[:8])
    assert any(
        len(word) > 1 for word in Words(backbone).cut(backbone.tokenizer.encode([sentence])[0])
    )


def test_weights_are_the_words_copied_to_their_pieces(plain_backbone, tiny_backbone):
    reference, backbone = plain_backbone("bert"), tiny_backbone("bert")
    documents = []
    for sentence in SENTENCES:
        ids = reference.ids("[X]", sentence)
        words, word_of = [], []
        for item in reference.tokenizer.convert_ids_to_tokens(ids):
            if item.startswith("##"):
                words[-1] += item[2:]
            else:
                words.append(item)
            word_of.append(len(words) - 1)
        documents.append((ids, words, word_of))
    expected = []
    for ids, words, word_of in documents:
        total = torch.zeros(16)
        for place, row in zip(word_of, plain.first_last(reference.states(ids)[0]), strict=True):
            word = words[place]
            frequency = sum(word in others for _, others, _ in documents)
            total = total + words.count(word) * math.log2(len(documents) / frequency) * row
        expected.append(total.numpy())
    fitted = fit_recipe(Recipe(pooling=POOLING), SENTENCES, backbone=backbone)
    vectors = fitted.encoder.encode(SENTENCES)
    largest = np.abs(expected).max()
    assert gap(vectors, expected) < 1e-5 * largest
    pieces = fit_recipe(
        Recipe(pooling="first-last/tfidf"), SENTENCES, backbone=backbone
    ).encoder.encode(SENTENCES)
    assert gap(vectors, pieces) > 0.01 * largest  # the granularity matters


def test_unseen_words_and_specials_weigh_nothing(tiny_backbone):
    backbone = tiny_backbone("bert")
    encoder = fit_recipe(Recipe(pooling=POOLING), SENTENCES, backbone=backbone).encoder
    assert not encoder.encode([""]).any()
    assert not encoder.encode(["dogdog guitarman"]).any()  # its pieces are known, its words are not
    tensors = encoder.tensors()
    weights = dict(zip(range(len(tensors[LENGTHS])), tensors[IDF].tolist(), strict=True))
    assert tensors[TOKENS][0] == backbone.tokenizer.start[0] and weights[0] == 0.0


def test_the_tensors_bring_the_same_vectors_back(tiny_backbone):
    for family in ("roberta", "xlm-roberta"):
        backbone = tiny_backbone(family)
        encoder = fit_recipe(Recipe(pooling=POOLING), SENTENCES, backbone=backbone).encoder
        again = build_encoder(encoder.recipe, tensors=encoder.tensors(), backbone=backbone)
        assert encoder.recipe.pooling == POOLING and again.fingerprint == encoder.fingerprint
        alone = np.concatenate([encoder.encode([sentence]) for sentence in SENTENCES])
        assert gap(again.encode(SENTENCES), alone) < 1e-5 * np.abs(alone).max()
