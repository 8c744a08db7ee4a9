"""Templates with two [X]: the input, the copy that is read, cuts and refusals."""

import numpy as np
import pytest
import torch

from promptcli.backbones.states import Needs
from promptcli.embedding.splitting import Splitter
from promptcli.encoder.encoder import build_encoder
from promptcli.models.sentence_transformers_format import InexactError, write_tokenizer
from promptcli.recipe import RECIPES, Recipe
from tests.comparing import gap, refusal
from tests.reference import plain
from tests.tiny import SENTENCES
from tests.tiny_causal import CAUSAL

ECHO = RECIPES["echo"]
TEXTS = [*SENTENCES, 'Is it "so"?', "What?"]
QUOTED = 'Say "[X]" again : "[X]" now'


def last_copy(reference, template, sentence):
    """The filled string's ids, and the places of the tokens of its last copy."""
    filled = reference.filled(template, sentence)
    ids = reference.ids(template, sentence)
    first = filled.rindex(sentence)
    offsets = reference.tokenizer(filled, return_offsets_mapping=True)["offset_mapping"]
    places = [
        place
        for place, (start, end) in enumerate(offsets[: len(ids)])
        if start < first + len(sentence) and end > first and end > start
    ]
    return ids, places


@pytest.mark.parametrize("template", [ECHO.prompt, QUOTED])
@pytest.mark.parametrize("family", [*CAUSAL, "bert", "roberta"])
def test_the_mean_of_the_second_copy(template, family, tiny_backbone, plain_backbone):
    reference = plain_backbone(family)
    recipe = ECHO.replace(prompt=template, period=False)
    encoder = build_encoder(recipe, backbone=tiny_backbone(family))
    vectors = encoder.encode(TEXTS)
    for text, row, vector in zip(TEXTS, encoder.inputs(TEXTS).ids, vectors, strict=True):
        ids, places = last_copy(reference, template, text)
        if len(ids) > encoder.max_length:
            continue
        assert row == ids
        states = reference.states(ids)[0][-1]
        assert gap(vector, plain.average(states[places]).numpy()) < 1e-5
    order = np.random.default_rng(0).permutation(len(TEXTS))
    again = encoder.encode([TEXTS[place] for place in order], batch_size=3)
    assert gap(again, vectors[order]) < 1e-5


def test_the_first_copy_changes_the_vector_and_none_of_its_tokens_is_in_the_mean(tiny_backbone):
    backbone = tiny_backbone("llama")
    encoder = build_encoder(ECHO, backbone=backbone)
    row = encoder.inputs(SENTENCES[:1]).ids[0]
    first, second = encoder.template.pieces(len(row))
    assert row[first] == row[second] and first.stop <= second.start
    changed = [*row]
    changed[first] = reversed(row[first])
    other = [*row]
    other[second.start - 1] = row[0]
    needs = Needs(layers=frozenset({backbone.n_layers}))
    weights = encoder.pooling.weights
    pooled = []
    for ids in (row, changed, other):
        batch = encoder.batch([ids])
        hidden = backbone.run(batch, needs)
        states = hidden.layers[backbone.n_layers]
        pooled.append(weights.pool(states, batch, hidden))
        marked = torch.zeros_like(states)
        marked[:, first] = 1
        assert weights.pool(marked, batch, hidden).abs().max() == 0
        marked[:, second] = 1
        assert torch.allclose(weights.pool(marked, batch, hidden), torch.ones(1))
    assert gap(pooled[0], pooled[1]) > 1e-3


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_both_copies_are_cut_alike(family, tiny_backbone):
    encoder = build_encoder(ECHO.replace(max_length=50), backbone=tiny_backbone(family))
    long = " ".join(SENTENCES)
    inputs = encoder.inputs([long, ""])
    assert inputs.truncated.tolist() == [True, False]
    row = inputs.ids[0]
    assert 49 <= len(row) <= 50
    first, second = encoder.template.pieces(len(row))
    whole = encoder.piece_tokenizer.encode(encoder.prepare([long]))[0]
    assert row[first] == row[second] == whole[: len(row[first])]
    empty = inputs.ids[1]
    first, second = encoder.template.pieces(len(empty))
    assert empty[first] == empty[second] and first.stop - first.start <= 1  # a blank
    assert np.isfinite(encoder.encode([long, ""])).all()


def test_a_template_whose_places_differ_or_that_is_not_for_two_is_refused(tiny_backbone, tmp_path):
    causal, masked = tiny_backbone("llama"), tiny_backbone("bert")
    for recipe, backbone, said in [
        (ECHO.replace(prompt='Say [X] again: "[X]"'), causal, "different characters"),
        (Recipe(prompt="[X] [MASK] [X]"), masked, "between its two"),
        (Recipe(prompt="[X] is [X] [MASK]", denoise="hidden"), masked, "around one"),
        (ECHO.replace(prompt="[X] [X] [X]"), causal, "has 3"),
        (
            ECHO.replace(prompt="contrastive:0:0.5:Say [X] and [X] || Not [X]"),
            causal,
            "'contrastive' needs two",
        ),
        (ECHO.replace(prompt="token-prepending:Say [X] and [X]"), causal, "has 2"),
    ]:
        with refusal(said):
            build_encoder(recipe, backbone=backbone)
    with pytest.raises(InexactError, match="two places"):
        write_tokenizer(build_encoder(ECHO, backbone=causal), tmp_path)


def test_a_masked_model_takes_it_with_a_note(tiny_backbone, notes):
    encoder = build_encoder(
        Recipe(prompt="[X] , [X] [MASK]", pooling="last/mask"), backbone=tiny_backbone("bert")
    )
    assert encoder.template.copies == 2
    assert "is for causal models" in notes.text
    row = encoder.inputs(["the cat"]).ids[0]
    assert (
        row[encoder.template.mask_positions(np.array([len(row)]))[0, 0]]
        == encoder.piece_tokenizer.mask
    )


def test_parts_of_a_long_text_fit_both_copies(tiny_backbone):
    encoder = build_encoder(ECHO.replace(max_length=60), backbone=tiny_backbone("llama"))
    parts = Splitter(encoder).parts(" ".join(SENTENCES))
    inputs = encoder.inputs(parts)
    assert len(parts) > 3 and not any(inputs.truncated)
    assert max(map(len, inputs.ids)) <= 60
