"""``templates``."""

import json

import pytest
from transformers import AutoTokenizer, ElectraForPreTraining

from promptcli.encoder.prompts.named import named_templates
from tests.tiny import save_tiny

MANUAL = 'This sentence : "[X]" means [MASK] .'


def test_list_and_show(run):
    ran = run("templates")
    assert ran.code == 0 and MANUAL in ran.out
    listed = json.loads(run("templates", "--json").out)["templates"]
    assert [row["name"] for row in listed] == list(named_templates())
    shown = json.loads(run("templates", "manual", "--json").out)
    assert shown.items() >= next(row for row in listed if row["name"] == "manual").items()
    ran = run("templates", "manual")
    assert ran.code == 0 and MANUAL in ran.out and "73.44" in ran.out
    ran = run("templates", "nosuch")
    assert (ran.code, ran.out) == (2, "") and "valid: manual, " in ran.err and ran.err.count("\n") == 1


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize("text", [MANUAL, "[MASK] is [X]", "[X] means [MASK]."])
def test_check_shows_the_filled_string(family, text, run, tiny_folder):
    folder = tiny_folder(family)
    ran = run("templates", text, "--backbone", folder, "--sentence", "The cat sat", "--json")
    assert ran.code == 0 and ran.err == ""
    found = json.loads(ran.out)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text.replace("[MASK]", tokenizer.mask_token).replace("[X]", "The cat sat."))["input_ids"]
    assert [token["id"] for token in found["tokens"]] == ids
    assert [token["text"] for token in found["tokens"]] == tokenizer.convert_ids_to_tokens(ids)
    assert found["mask_position"] == ids.index(tokenizer.mask_token_id)
    assert found["tokens"][found["mask_position"]]["part"] == "mask"
    assert found["sentence"].strip('"') == "The cat sat." and not found["truncated"]
    assert found["room"] == found["max_tokens"] - found["template_tokens"]


def test_check_says_what_a_long_sentence_loses(run, tiny_folder):
    folder = tiny_folder("bert")
    cut = json.loads(run("templates", "the [X] means [MASK] .", "--backbone", folder, "--json").out)
    assert cut["template_tokens"] == cut["max_tokens"] - cut["room"]
    truncation = cut["truncation"]
    assert truncation["sentence_tokens"] > truncation["kept"] == cut["room"]
    assert truncation["input_tokens"] == cut["max_tokens"]
    assert truncation["mask_position"] == cut["max_tokens"] - 3  # mask, period, last special
    long = " ".join(["the"] * 100)
    found = json.loads(
        run("templates", "the [X] means [MASK] .", "--backbone", folder, "--sentence", long, "--json").out
    )
    assert found["truncated"] and len(found["tokens"]) == found["max_tokens"]
    assert found["truncation"]["sentence_tokens"] == 101 and found["mask_position"] == truncation["mask_position"]


def test_check_of_a_causal_model_reads_the_last_token(run, tiny_folder):
    line = ["templates", "prompteol", "--backbone", tiny_folder("gpt2"), "--sentence", "The cat sat"]
    found = json.loads(run(*line, "--json").out)
    assert found["mask_position"] is None and found["truncation"]["mask_position"] is None
    assert found["tokens"][-1]["part"] == "template" and found["truncation"]["kept"] == found["room"]
    shown = run(*line)
    assert shown.code == 0 and "read at the last token" in shown.out and "mask" not in shown.out


def test_check_for_people(run, tiny_folder):
    ran = run("templates", "manual", "--backbone", tiny_folder("bert"), "--sentence", "the cat")
    assert ran.code == 0 and ran.err == ""
    assert "[MASK]" in ran.out and "special tokens included" in ran.out and "never the template" in ran.out


def test_check_notes_a_backbone_without_a_head(run, tmp_path):
    folder = save_tiny("electra", tmp_path / "electra", model_class=ElectraForPreTraining)
    ran = run("templates", "[X] means [MASK] .", "--backbone", folder)
    assert ran.code == 0 and "no masked-LM head" in ran.err and ran.err.count("\n") == 1
    found = json.loads(run("templates", "[X] means [MASK] .", "--backbone", folder, "--json").out)
    assert "no masked-LM head" in found["notes"][0]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["[X] means ."], 2, "has no [MASK]"),
        (["means [MASK] ."], 2, "has no [X]"),
        (["[X] [X] [MASK]"], 2, "has 2 [X]"),
        (["nosuch"], 2, "unknown template 'nosuch'"),
        (["[X] [MASK]", "--sentence", " "], 2, "empty"),
        (["[X] [MASK] " + "the " * 80], 2, "leaves no room"),
        (["[X] [MASK]", "--backbone", "./nosuch"], 3, "no backbone folder"),
    ],
)
def test_check_refuses_in_one_line(arguments, code, message, run, tiny_folder):
    ran = run("templates", "--backbone", tiny_folder("bert"), *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err and ran.err.count("\n") == 1
