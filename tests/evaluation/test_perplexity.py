"""Masked accuracy and perplexity against a plain loop, and what cannot be measured."""

import math
import re

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, BertModel

from promptcli.backbones.loading import load_backbone
from promptcli.errors import UsageError
from promptcli.evaluation.perplexity import prediction_accuracy
from tests.reference.plain import Plain
from tests.tiny import SENTENCES, save_tiny


def plain_figures(model, lines):
    """Number of tokens, accuracy and perplexity, token by token; a line is its ids, and position -> right id."""
    losses, right = [], 0
    for row, gold in lines:
        with torch.no_grad():
            logits = model(torch.tensor([row])).logits[0].double()
        for place, token in gold.items():
            losses.append(-float(torch.log_softmax(logits[place], 0)[token]))
            right += int(logits[place].argmax()) == token
    return len(losses), 100 * right / len(losses), math.exp(sum(losses) / len(losses))


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_equals_one_sentence_at_a_time(family, tiny_folder, tiny_backbone):
    found = prediction_accuracy(tiny_backbone(family), SENTENCES, share=0.3, seed=4)
    plain = Plain(tiny_folder(family))
    tokens, rng, lines = plain.tokenizer, np.random.default_rng(4), []
    for sentence in SENTENCES:
        ids = tokens(sentence, add_special_tokens=False)["input_ids"]
        row = [tokens.cls_token_id, *ids[: tiny_backbone(family).max_tokens - 2], tokens.sep_token_id]
        words = [place for place in range(1, len(row) - 1) if row[place] != tokens.unk_token_id]
        gold = {place: row[place] for place, draw in zip(words, rng.random(len(words)), strict=True) if draw < 0.3}
        lines.append(([tokens.mask_token_id if place in gold else token for place, token in enumerate(row)], gold))
    assert found.predicted > 20
    assert (found.predicted, found.accuracy, found.perplexity) == pytest.approx(plain_figures(plain.model, lines), 1e-4)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_a_causal_model_predicts_every_token_from_those_before_it(family, tiny_folder, tiny_backbone):
    found = prediction_accuracy(tiny_backbone(family), SENTENCES)
    model = AutoModelForCausalLM.from_pretrained(tiny_folder(family), attn_implementation="eager").eval()
    tokens = tiny_backbone(family).tokenizer
    rows = [[*tokens.start, *ids] for ids in tokens.encode(SENTENCES)]
    first = max(1, len(tokens.start))
    lines = [(row, {place - 1: row[place] for place in range(first, len(row))}) for row in rows]
    assert (found.predicted, found.accuracy, found.perplexity) == pytest.approx(plain_figures(model, lines), 1e-4)
    assert found.sentences == sum(len(row) > 1 for row in rows)


def test_wikitext_marks_are_undone(tiny_backbone):
    backbone = tiny_backbone("bert")
    written = ["the dog @-@ house is <unk> and red , the dog @-@ house is blue"] * 3
    plain = ["the dog-house is [UNK] and red , the dog-house is blue"] * 3
    assert prediction_accuracy(backbone, written) == prediction_accuracy(backbone, plain)


def test_what_cannot_be_measured(tiny_backbone, tmp_path):
    for family, texts in (("bert", ["", " "]), ("gpt2", [""])):
        with pytest.raises(UsageError, match="no token to predict"):
            prediction_accuracy(tiny_backbone(family), texts)
    headless = save_tiny("bert", tmp_path / "headless", model_class=BertModel)
    with pytest.raises(UsageError, match="no masked-LM head"):
        prediction_accuracy(load_backbone(str(headless)), SENTENCES)


@pytest.mark.data
def test_the_card_of_mini_tells_its_figures(data_folder, run):
    from promptcli.backbones.pretrained import SHIPPED

    card = (SHIPPED["mini-bert"] / "README.md").read_text(encoding="utf-8")
    found = re.search(r"top-1 ([\d.]+)%, perplexity ([\d.]+)", card)
    task = f"perplexity:{data_folder}/corpus/wikitext2_valid.txt"
    (figures,) = run("eval", "--task", task, "--backbone", "mini-bert", "--json").json["results"]
    assert figures["accuracy"] == pytest.approx(float(found[1]), abs=0.05)
    assert figures["value"] == pytest.approx(float(found[2]), abs=0.05)
