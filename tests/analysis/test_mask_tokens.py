"""Tokens at the mask, with and without the template's bias, against transformers' own masked LM."""

import pytest
import torch
from transformers import AutoModelForMaskedLM

from promptcli.analysis.mask_tokens import PLACES, predict_mask_tokens
from promptcli.encoder.prompts.template import Template
from promptcli.errors import UsageError
from promptcli.recipe import Recipe

TEMPLATE = 'the "[X]" means [MASK] .'
SENTENCES = ["a man is here", "The cat sat on the mat, and it did not move.", "i"]


def recipe(place="hidden", prompt=TEMPLATE):
    return Recipe(prompt=prompt, pooling="last/mask", denoise=place)


def reference(folder, tokens, sentence, family):
    """Return h and h_hat at the mask, and the model, by plain calls."""
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    template = Template(TEMPLATE, tokens)
    piece = tokens.encode(template.pieces([sentence], True))
    ids = template.splice(piece, 60).rows[0]
    length = len(ids) - template.length
    offset = 2 if family == "roberta" else 0
    positions = [place if place < len(template.left) else place + length for place in range(template.length)]
    with torch.no_grad():
        full = model.base_model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        blank = model.base_model(
            input_ids=torch.tensor([[*template.left, *template.right]]),
            attention_mask=torch.ones(1, template.length),
            position_ids=torch.tensor([positions]) + offset,
        ).last_hidden_state[0]
    return model, full[ids.index(tokens.mask)], blank[[*template.left, *template.right].index(tokens.mask)]


def head(model, family):
    if family == "bert":
        return model.cls.predictions.transform, model.cls.predictions.decoder
    lm = model.lm_head
    return lambda states: lm.layer_norm(torch.nn.functional.gelu(lm.dense(states))), lm.decoder


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("place", PLACES)
def test_tokens_are_the_masked_lm_s_own(family, place, tiny_backbone, tiny_folder):
    backbone = tiny_backbone(family)
    found = predict_mask_tokens(backbone, recipe(place), SENTENCES, count=4)
    for row, sentence in zip(found, SENTENCES, strict=True):
        model, state, bias = reference(tiny_folder(family), backbone.tokenizer, sentence, family)
        transform, decoder = head(model, family)
        with torch.no_grad():
            plain = decoder(transform(state))
            denoised = {
                "hidden": decoder(transform(state - bias)),
                "head": decoder(transform(state) - transform(bias)),
                "logits": decoder(transform(state)) - decoder(transform(bias)),
            }[place]
        for guesses, logits in [(row.plain, plain), (row.denoised, denoised)]:
            values, tokens = logits.softmax(-1).topk(4)
            assert [guess.token for guess in guesses] == [backbone.tokenizer.text(token) for token in tokens.tolist()]
            assert [guess.probability for guess in guesses] == pytest.approx(values.tolist(), abs=1e-4)


def test_neither_company_nor_order_matters(tiny_backbone):
    backbone = tiny_backbone("bert")
    together = predict_mask_tokens(backbone, recipe(), SENTENCES)
    alone = [predict_mask_tokens(backbone, recipe(), [sentence])[0] for sentence in SENTENCES]
    for left, right in zip(together, alone, strict=True):
        assert [guess.token for guess in left.plain] == [guess.token for guess in right.plain]
        assert [guess.token for guess in left.denoised] == [guess.token for guess in right.denoised]
    assert [row.sentence for row in together] == SENTENCES and not any(row.truncated for row in together)
    assert predict_mask_tokens(backbone, recipe(), ["the " * 200])[0].truncated


@pytest.mark.parametrize(
    ("made", "count", "message"),
    [
        (recipe("none"), 5, "valid: hidden, head, logits"),
        (recipe("nosuch"), 5, "unknown denoise"),
        (recipe(prompt="the [X] ."), 5, r"has no \[MASK\]"),
        (recipe(), 0, "the vocabulary gives 1 to"),
        (recipe(), 10**6, "the vocabulary gives 1 to"),
    ],
)
def test_what_gives_no_tokens_is_refused(made, count, message, tiny_backbone):
    with pytest.raises(UsageError, match=message):
        predict_mask_tokens(tiny_backbone("bert"), made, ["one"], count=count)
