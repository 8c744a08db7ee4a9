"""``templates``."""

import pytest
from transformers import AutoTokenizer

from promptcli.named_templates import named_templates
from tests.comparing import refused

MANUAL = 'This sentence : "[X]" means [MASK] .'


@pytest.fixture
def check(run, tiny_folder):
    """Return the JSON of ``templates`` on a tiny backbone, after it has been printed for people."""

    def call(*arguments, family="bert", shown=""):
        words = ("templates", *arguments, "--backbone", tiny_folder(family))
        ran = run(*words)
        assert ran.code == 0 and ran.err == "" and shown in ran.out
        return run(*words, "--json").json

    return call


def test_templates_are_listed_and_shown(run):
    ran = run("templates")
    assert ran.code == 0 and MANUAL in ran.out
    listed = run("templates", "--json").json["templates"]
    assert [row["name"] for row in listed] == list(named_templates())
    shown = run("templates", "manual", "--json").json
    assert shown.items() >= next(row for row in listed if row["name"] == "manual").items()
    ran = run("templates", "manual")
    assert ran.code == 0 and MANUAL in ran.out and "73.44" in ran.out


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize("text", [MANUAL, "[MASK] is [X]", "[X] means [MASK]."])
def test_check_shows_the_filled_string(family, text, check, tiny_folder):
    found = check(text, "--sentence", "The cat sat", family=family, shown="special tokens included")
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder(family))
    ids = tokenizer(text.replace("[MASK]", tokenizer.mask_token).replace("[X]", "The cat sat."))[
        "input_ids"
    ]
    assert [token["id"] for token in found["tokens"]] == ids
    assert [token["text"] for token in found["tokens"]] == tokenizer.convert_ids_to_tokens(ids)
    assert found["mask_position"] == ids.index(tokenizer.mask_token_id)
    assert found["tokens"][found["mask_position"]]["part"] == "mask"
    assert found["sentence"].strip('"') == "The cat sat." and not found["truncated"]
    assert found["room"] == found["max_tokens"] - found["template_tokens"]


def test_check_says_that_a_long_sentence_is_cut(check):
    found = check("the [X] means [MASK] .", "--sentence", " ".join(["the"] * 100))
    assert found["truncated"] and len(found["tokens"]) == found["max_tokens"]
    assert found["mask_position"] == found["max_tokens"] - 3  # mask, period, last special


def test_check_of_a_causal_model_reads_the_last_token(check):
    found = check(
        "prompteol", "--sentence", "The cat sat", family="gpt2", shown="read at the last token"
    )
    assert found["mask_position"] is None and found["tokens"][-1]["part"] == "template"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["[X] means ."], 2, "has no [MASK]"),
        (["nosuch"], 2, "unknown template 'nosuch'"),
        (["[X] [MASK]", "--sentence", " "], 2, "empty"),
    ],
)
def test_wrong_templates_are_refused(arguments, code, message, run, bert_folder):
    refused(run("templates", "--backbone", bert_folder, *arguments), code, message)


def test_the_default_is_the_users_backbone(run, bert_folder, monkeypatch):
    monkeypatch.setenv("PROMPTCLI_BACKBONE", str(bert_folder))
    assert run("templates", "manual", "--json").json["backbone"] == str(bert_folder)
