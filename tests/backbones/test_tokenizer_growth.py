"""Tokenizers that make megabytes of a letter are refused, and those that people use are not."""

import base64
import json
import string

import pytest

import promptcli as pc
from promptcli.backbones.checking import check_growth
from tests.comparing import refusal
from tests.published_folders import static_folder
from tests.tiny import save_tiny
from tests.tiny_causal import save_tiny_causal

MANY = "b" * 1_000_000


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def text(pattern, content):
    return replace({"String": pattern}, content)


def regex(pattern, content):
    return replace({"Regex": pattern}, content)


def chain(*steps):
    return {"type": "Sequence", "normalizers": list(steps)}


def charsmap(longest):
    content = (4).to_bytes(4, "little") + bytes(4) + b"ab\0" + longest + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
SEQUENCE = {"Sequence": {"id": "A", "type_id": 0}}


def template(single, **special):
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [SEQUENCE],
        "special_tokens": special,
    }


BOMBS = {
    "text": {"normalizer": text("a", MANY)},
    "regex": {"normalizer": regex("a", MANY)},
    "nothing": {"normalizer": text("", MANY)},
    "nested": {"normalizer": chain(chain(chain(regex("[a-z]", MANY))))},
    "doubled": {"normalizer": chain(*[text("a", "aa")] * 30)},
    "in turn": {"normalizer": chain(*[text("a", "bb"), text("b", "aa")] * 15)},
    "of neighbours": {"normalizer": chain(*[text("a", "bc"), text("cb", "aaaa" * 4)] * 15)},
    "at empty places": {"normalizer": chain(*[regex("y*", "x")] * 30)},
    "looked at": {"normalizer": chain(*[regex("(?=q)", "q")] * 30)},
    "letters of bytes": {"normalizer": chain(*[BYTES] * 30)},
    "words of bytes": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES] * 30}},
    "ligature": {"normalizer": chain(*[text("a", "ﷺ"), {"type": "NFKC"}, text("ل", "a")] * 9)},
    "before": {"normalizer": {"type": "Prepend", "prepend": MANY}},
    "map": {"normalizer": charsmap(MANY.encode())},
    "decoder": {"decoder": {"type": "Sequence", "decoders": [text("a", MANY)]}},
    "copies": {"post_processor": template([SEQUENCE] * 1000)},
    "copies of copies": {
        "post_processor": {"type": "Sequence", "processors": [template([SEQUENCE] * 2)] * 30}
    },
    "tokens": {
        "post_processor": template(
            [SEQUENCE], x={"id": "x", "ids": [1] * 9999, "tokens": ["a"] * 9999}
        )
    },
    "unknown": {"model": {"type": "WordLevel", "unk_token": MANY}},
    "prefix": {"model": {"type": "WordPiece", "continuing_subword_prefix": MANY}},
    "many steps": {"normalizer": chain(*[text("a", "b")] * 1000)},
}


@pytest.mark.parametrize("kind", BOMBS)
def test_what_makes_too_much_of_a_text_is_refused(kind):
    with refusal("expands a text too far"):
        check_growth("x", BOMBS[kind])


USUAL = {
    "nothing": {},
    "wrong": {"normalizer": [1], "model": "x", "post_processor": {"type": "?"}},
    "spaces": {"normalizer": chain({"type": "Prepend", "prepend": "▁"}, text(" ", "▁"))},
    "punctuation": {
        "normalizer": chain(
            {"type": "BertNormalizer"},
            *(text(sign, f" {sign} ") for sign in string.punctuation),
            regex(r"\s+", " "),
        )
    },
    "classes": {"normalizer": chain(*(regex(f"[{letter}]+", " ") for letter in "abcdefghijklmno"))},
    "runs": {"normalizer": chain(*[regex("x*", "x")] * 30)},
    "removed": {"normalizer": chain(*(regex(f"{letter}*", "") for letter in "abcdefghijklmno"))},
    "unicode": {"normalizer": chain({"type": "NFKD"}, {"type": "Lowercase"}, {"type": "NFC"})},
    "map": {"normalizer": chain(charsmap("ﷺ".encode()), regex(" {2,}", " "))},
    "bytes": {"normalizer": {"type": "NFC"}, "pre_tokenizer": BYTES, "decoder": BYTES},
    "fractions": {"normalizer": chain(*[text("½", " 1/2 "), text("…", "...")] * 20)},
}


@pytest.mark.parametrize("kind", USUAL)
def test_what_people_use_is_not_refused(kind):
    check_growth("x", USUAL[kind])


@pytest.mark.parametrize("folder", ["backbone", "table"])
def test_such_a_folder_is_refused_before_its_library_reads_it(folder, tmp_path):
    if folder == "backbone":
        path = save_tiny("roberta", tmp_path)
    else:
        static_folder(tmp_path, distilled=True)
        path = tmp_path
    definition = json.loads((path / "tokenizer.json").read_text())
    definition |= BOMBS["doubled"]
    (path / "tokenizer.json").write_text(json.dumps(definition))
    with refusal("expands a text too far"):
        pc.load(pc.Recipe(str(path), pooling="static/avg")).encode(["a" * 9])


def test_tokenizers_of_the_families_are_not_refused(tmp_path):
    for family in ("bert", "roberta", "xlm-roberta"):
        folder = save_tiny(family, tmp_path / family)
        check_growth(family, json.loads((folder / "tokenizer.json").read_text()))
    for family in ("llama", "qwen2", "gemma2"):
        folder = save_tiny_causal(family, tmp_path / family)
        check_growth(family, json.loads((folder / "tokenizer.json").read_text()))
