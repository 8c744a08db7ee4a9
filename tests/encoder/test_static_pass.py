"""What needs no layer takes a shorter way, words are tokenised once: with the ids and vectors of
the long way.
"""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from promptcli.backbones import tokenizer as tokenizer_module
from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.encoder.encoder import TorchEncoder, build_encoder
from promptcli.encoder.static_encoder import average_embeddings
from promptcli.recipe import Recipe
from tests.comparing import gap
from tests.tiny import SENTENCES

ODD = [
    "",
    "I",
    "..., !",
    "the the",
    "[MASK] the [SEP]",
    "a^b ^ c",
    "x" * 130,
    "naïve Ａ\t猫が好き。 über",
    "##s the",
]
TEXT = st.text(
    alphabet=st.one_of(
        st.characters(codec="utf-8"), st.sampled_from("abthe ^|＾｜.,'[MASK]#-σΣé猫。\t\u0301")
    )
)


@pytest.fixture(scope="module")
def tokens_of(tiny_backbone):
    """The tiny vocabulary has no mark to join words by, the shipped ones have; that of mini-multi
    reads full-width characters as ASCII.
    """
    mini = load_backbone("mini-bert").tokenizer
    multi = load_backbone("mini-multi").tokenizer
    return {"tiny": tiny_backbone("bert").tokenizer, "mini-bert": mini, "mini-multi": multi}


@pytest.mark.parametrize("name", ["tiny", "mini-bert", "mini-multi"])
@settings(max_examples=200)
@given(pieces=st.lists(TEXT, max_size=4))
@example(pieces=["a ｜ b", "c", "＾"])
def test_the_ids_of_words_are_those_of_the_text(name, pieces, tokens_of):
    tokens = tokens_of[name]
    marks = [mark for mark in tokenizer_module._MARKS if tokens.knows(mark)]
    assert "".join(marks[:1]) == {"tiny": "", "mini-bert": "^", "mini-multi": "|"}[name]
    assert tokens.splits_at_blanks and tokens._by_words(pieces) == tokens._whole(pieces)


@pytest.mark.parametrize("name", ["tiny", "mini-bert"])
def test_pieces_that_are_not_split_keep_their_place_among_the_others(name, tokens_of):
    tokens = tokens_of[name]
    pieces = ["the cat", "a [MASK] dog", "", "the \0 dog", "the, cat!", "[SEP]", "\0"]
    assert tokens.encode_ragged(pieces) == [
        row for piece in pieces for row in tokens._whole([piece])
    ]


def test_words_are_forgotten_before_they_fill_the_memory(tiny_backbone, monkeypatch):
    monkeypatch.setattr(tokenizer_module, "_MAX_CACHED_CHARACTERS", 20)
    tokens = tiny_backbone("bert").tokenizer
    for sentence in [*SENTENCES, *ODD, *SENTENCES]:
        assert tokens.encode_ragged([sentence]) == tokens._whole([sentence])
        assert sum(map(len, tokens._ids_of_word)) < 20 + 150


@pytest.mark.parametrize("weights", ["unbiased:freq", "unbiased:sub", "unbiased:case", "unbiased"])
def test_what_is_left_of_each_token_is_left_of_each_sentence(weights, tiny_backbone, monkeypatch):
    encoder = build_encoder(Recipe(pooling=f"static/{weights}"), backbone=tiny_backbone("bert"))
    short = encoder.inputs([*SENTENCES, *ODD]).ids
    monkeypatch.setattr(encoder.backbone.tokenizer, "splits_at_blanks", False)
    assert encoder.inputs([*SENTENCES, *ODD]).ids == short


RECIPES = {
    "static": Recipe(pooling="static/avg"),
    "decoder": Recipe(pooling="mlm-head/avg"),
    "unbiased": Recipe(pooling="static/unbiased"),
    "template": Recipe(prompt='It says : "[X]" , [MASK] .', pooling="static/avg"),
    "denoised": Recipe(prompt='It says : "[X]" , [MASK] .', pooling="static/avg", denoise="hidden"),
    "transformed": Recipe(pooling="static/avg", transforms=("embed-filter:2-3",)),
}


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("name", RECIPES)
def test_averages_equal_the_batches(name, family, tiny_backbone, monkeypatch):
    encoder = build_encoder(RECIPES[name], backbone=tiny_backbone(family))
    assert encoder.averaged_matrix() is not None
    sentences = [*SENTENCES, *ODD, "the " * 600]
    report = encoder.encode_report(sentences)
    short = report.vectors
    done = []
    assert np.array_equal(encoder.encode(ODD, progress=done.append), short[len(SENTENCES) : -1])
    assert sum(done) == len(ODD)
    assert encoder.encode([]).shape == (0, encoder.width)
    monkeypatch.setattr(TorchEncoder, "averaged_matrix", lambda self: None)
    batched = encoder.encode_report(sentences)
    assert gap(batched.vectors, short) < 1e-6
    assert report.truncated[-1] == (name != "unbiased") and np.array_equal(
        batched.truncated, report.truncated
    )
    assert np.array_equal(batched.tokens, report.tokens)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_mean_of_rows_is_that_of_a_loop(dtype):
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(50, 3, generator=generator).to(dtype)
    asked = []

    def rows(numbers):
        asked.append(numbers.tolist())
        return matrix[torch.from_numpy(numbers)].float().numpy()

    bags = [[7, 7, 49], [], [0], list(range(50)), *([[3, 5]] * 700)]
    expected = [
        sum((matrix[i].float() for i in bag), torch.zeros(3)) / max(len(bag), 1) for bag in bags
    ]
    means = average_embeddings(RaggedIds.of(bags), rows, len(matrix))
    assert gap(means, torch.stack(expected).numpy()) < 1e-6
    assert means.dtype == np.float32 and asked == [list(range(50))]
    assert np.array_equal(average_embeddings(RaggedIds.of([[], []]), rows, 50), np.zeros((2, 3)))
    average_embeddings(RaggedIds.of([[4, 4, 9]]), rows, 50)
    assert asked[-1] == [4, 9]  # no other row is read
