"""Folders from elsewhere, each damaged in one way: one line and a documented code, and nothing
changed on disk.
"""

import json
import os
import re
import shutil
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import BertConfig

from promptcli.backbones.by_name import load_backbone
from promptcli.cli.command_line import main
from promptcli.encoder.encoder import build_encoder
from promptcli.errors import UsageError
from promptcli.recipe import Recipe
from tests.tiny import save_tiny

CODES = {0, 1, 2, 3, 4}
MASKED = ("--prompt", "[X] means [MASK] .", "--pooling", "last/mask")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A sound folder: its vocabulary is a vocab.txt, as of a BERT from long ago."""
    folder = save_tiny("bert", tmp_path_factory.mktemp("sound"))
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "vocab.txt").write_text(
        "".join(f"{item}\n" for item in sorted(vocabulary, key=vocabulary.__getitem__))
    )
    (folder / "tokenizer.json").rename(folder / "tokenizer.json.kept")
    _set_in(folder, "tokenizer_config.json", tokenizer_class="BertTokenizer", backend=None)
    return folder


@pytest.fixture
def invoke(capfd, monkeypatch):
    """Compare two sentences with a backbone.

    All that reaches the terminal is caught, libraries' own lines too.
    """
    monkeypatch.setenv("COLUMNS", "3000")

    def call(folder, *more):
        capfd.readouterr()
        # shown, as outside of pytest
        with (
            pytest.raises(SystemExit) as ended,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("default")
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.showwarning = lambda message, *_: sys.stderr.write(f"{message}\n")
            main(
                [
                    "similarity",
                    "a cat",
                    "the dog",
                    "--backbone",
                    str(folder),
                    "--prompt",
                    "[X]",
                    "--pooling",
                    "last/avg",
                    "--quiet",
                    *more,
                ]
            )
        return ended.value.code, *capfd.readouterr()

    return call


def _set_in(folder, file, **fields):
    content = json.loads((folder / file).read_text()) | fields
    (folder / file).write_text(json.dumps(content))


def config(**fields):
    return lambda folder: _set_in(folder, "config.json", **fields)


def tokenizer_config(**fields):
    return lambda folder: _set_in(folder, "tokenizer_config.json", **fields)


def vocabulary(change):
    def damage(folder):
        items = (folder / "vocab.txt").read_text().splitlines()
        (folder / "vocab.txt").write_text("".join(f"{item}\n" for item in change(items)))

    return damage


def without(token):
    return vocabulary(lambda items: [item for item in items if item != token])


def tokenizer_json(change=lambda content: content):
    """Put a tokenizer.json in the place of the vocab.txt, changed."""

    def damage(folder):
        (folder / "vocab.txt").unlink()
        content = json.loads((folder / "tokenizer.json.kept").read_text())
        (folder / "tokenizer.json").write_text(json.dumps(change(content)))
        _set_in(folder, "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")

    return damage


def weights(change, metadata=None):
    def damage(folder):
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata=metadata or {"format": "pt"})

    return damage


def tensor(name, *shape):
    return weights(lambda tensors: tensors.update({name: torch.zeros(shape)}))


def put(name, value):
    def change(tensors):
        tensors[name].view(-1)[1] = value

    return weights(change)


def written(file, content):
    return lambda folder: (folder / file).write_text(content)


def both(*damages):
    def damage(folder):
        for one in damages:
            one(folder)

    return damage


def _twice(folder):
    tokenizer_json()(folder)
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace('"the": ', '"a": 5, "the": ', 1))


QUERY = "bert.encoder.layer.1.attention.self.query.weight"
WORDS = "bert.embeddings.word_embeddings.weight"
HEAD = "cls.predictions.transform.dense.weight"
NO_MASK = tokenizer_config(mask_token="<foo>")
WORDLESS = {"type": "Unigram", "unk_id": 0, "vocab": [["[UNK]", 0]]}

#: The damage of the folder, and the message.
DAMAGES = {
    # sizes and fields of config.json
    "vocab_size of another model": (
        config(vocab_size=10**9),
        "vocab_size 1000000000, and none of its tensors",
    ),
    "pad_token_id beyond the table": (
        config(pad_token_id=10**6),
        "pad_token_id 1000000 in config.json; its ids go from 0 to",
    ),
    "no layer more": (config(num_hidden_layers=3), "lacks 16 of its tensors"),
    "layers left over": (
        config(num_hidden_layers=1),
        "16 tensors for which its config.json has no place",
    ),
    "a billion layers": (config(num_hidden_layers=10**9), "num_hidden_layers 1000000000"),
    "norms that level all": (config(layer_norm_eps=1e30), "the same vector for different texts"),
    "another size inside": (
        config(intermediate_size=16),
        "of shape 24, where config.json asks for 16",
    ),
    "a decoder": (config(is_decoder=True), "is a decoder"),
    "a family that nobody knows": (
        config(model_type="bloom"),
        "is a bloom: its family is not supported; supported: bert",
    ),
    "config.json a list": (
        written("config.json", "[]"),
        "config.json: Expected `object`, got `array`",
    ),
    "config.json deep": (written("config.json", "[" * 99999), "nested deeper"),
    # what would run code or change the weights
    "remote attention": (
        config(attn_implementation="owner/name"),
        "foreign code.*owner/name.*never run",
    ),
    "a model of its own": (
        config(auto_map={"AutoModel": "a.B"}),
        r"auto_map in config\.json.*never run",
    ),
    "a tokenizer of its own": (
        tokenizer_config(auto_map={"AutoTokenizer": ["a.B", None]}),
        "auto_map in tokenizer_c",
    ),
    "an adapter": (
        written("adapter_config.json", '{"peft_type": "LORA"}'),
        r"adapter_config\.json: merge it",
    ),
    "quantised": (
        config(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}),
        "quantised",
    ),
    # vocabulary
    "no vocabulary": (lambda folder: (folder / "vocab.txt").unlink(), "has no vocabulary"),
    "empty vocabulary": (vocabulary(lambda items: []), "but only 5 tokens;"),
    "half of the lines": (
        vocabulary(lambda items: items[: len(items) // 2]),
        "but only .* tokens; its vocabulary file seems cut off",
    ),
    "no unknown token": (without("[UNK]"), r"has no \[UNK\]"),
    "no mask token": (without("[MASK]"), r"has no \[MASK\]"),
    "no end token": (without("[SEP]"), r"has no \[SEP\]"),
    "a line twice": (vocabulary(lambda items: [*items[:-1], "the"]), "has 'the' twice"),
    "a line too many": (vocabulary(lambda items: [*items, "more"]), r"goes to id 108 \('more'\)"),
    "no words": (
        vocabulary(lambda items: [*items[:5], *map("[unused{}]".format, items[5:])]),
        "no word of any script",
    ),
    "no such mask": (NO_MASK, "goes to id 108 .'<foo>'"),
    "no such mask, rows to spare": (
        both(vocabulary(lambda items: items[:-2]), NO_MASK),
        "has no <foo>",
    ),
    "the mask means unknown": (
        tokenizer_config(mask_token="[UNK]"),
        "which is already another special token",
    ),
    "no start token": (tokenizer_config(cls_token=None), "cls_token"),
    "tokenizer.json without a model": (
        tokenizer_json(lambda content: {"version": "1.0"}),
        "cannot be loaded",
    ),
    "tokenizer.json without words": (
        tokenizer_json(lambda content: content | {"model": WORDLESS}),
        "",
    ),
    "tokenizer.json with an item twice": (_twice, "has 'a' twice"),
    # weights
    "a tensor is missing": (
        weights(lambda tensors: tensors.pop(QUERY)),
        r"lacks 1 of its tensors \(e\.g\. .*query",
    ),
    "a tensor of another shape": (
        tensor(QUERY, 4, 16),
        "of shape 4 x 16, where config.json asks for 16 x 16",
    ),
    "a tensor too many": (tensor("bert.more", 4), r"no place \(e\.g\. bert\.more\)"),
    "NaN": (put(QUERY, float("nan")), "not finite.*query"),
    "TensorFlow's": (weights(lambda tensors: None, {"format": "tf"}), "marked format 'tf'"),
    "words all alike": (
        weights(lambda tensors: tensors[WORDS].zero_()),
        "the same vector for different texts",
    ),
    "weights cut": (lambda folder: os.truncate(folder / "model.safetensors", 1000), "broken"),
}


def copied(sound, folder, damage):
    shutil.copytree(sound, folder)
    damage(folder)
    return folder


def content_of(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_folder_is_one_line(name, bert, tmp_path, invoke):
    damage, expected = DAMAGES[name]
    folder = copied(bert, tmp_path / "damaged", damage)
    before = content_of(tmp_path)
    code, out, err = invoke(folder)
    assert code in {2, 3, 4} and not out
    assert err.count("\n") == 1 and err.startswith("promptcli: ") and len(err) <= 600
    assert str(folder) in err and re.search(expected, err)
    assert content_of(tmp_path) == before


HARMLESS = {
    "nothing": lambda folder: None,
    "return_dict": config(return_dict=False),
    "outputs of all kinds": config(output_attentions=True, output_hidden_states=True),
    "attention that is not installed": config(attn_implementation="flash_attention_2"),
    "a tokenizer.json": tokenizer_json(),
    "heads of other kinds": both(tensor("classifier.weight", 2, 16), tensor("cls.seq", 2)),
    "old positions": weights(
        lambda tensors: tensors.update({"bert.embeddings.position_ids": torch.arange(66)})
    ),
    "weights without a mark": lambda folder: save_file(
        load_file(folder / "model.safetensors"), folder / "model.safetensors"
    ),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_does_not_matter_changes_no_vector(name, bert, tmp_path):
    recipe = Recipe(prompt="[X] means [MASK] .", pooling="last/mask", transforms=("topk-tokens:3",))
    folder = copied(bert, tmp_path / "folder", HARMLESS[name])
    encoders = [build_encoder(recipe, backbone=load_backbone(str(path))) for path in (bert, folder)]
    assert np.array_equal(*(encoder.encode(["The cat sat", "a dog"]) for encoder in encoders))


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (weights(lambda tensors: tensors.pop(HEAD)), r"lacks 1 of its tensors"),
        (tensor(HEAD, 4, 16), "of shape 4 x 16, where config.json asks for 16 x 16"),
        (put(HEAD, float("nan")), "not finite"),
        (
            config(tie_word_embeddings=False),
            r"lacks .* of its tensors \(e\.g\. cls\.predictions\.decoder",
        ),
    ],
    ids=["missing", "shape", "nan", "untied"],
)
def test_a_damaged_head_is_refused_where_it_is_needed(damage, expected, bert, tmp_path, invoke):
    folder = copied(bert, tmp_path / "damaged", damage)
    assert invoke(folder)[0] == 0
    code, out, err = invoke(folder, *MASKED, "--transform", "topk-tokens:3")
    assert code == 2 and not out and err.count("\n") == 1
    assert f"the masked-LM head of backbone '{folder}'" in err and re.search(expected, err)


def test_a_mask_that_the_folder_adds_to_its_vocabulary_is_its_own(bert, tmp_path):
    """As DeBERTa's mask, which comes after the vocabulary."""

    def last(content):
        vocabulary = content["model"]["vocab"]
        items = [
            item for item in sorted(vocabulary, key=vocabulary.__getitem__) if item != "[MASK]"
        ]
        for token in content["added_tokens"]:
            token["id"] = (
                len(items) if token["content"] == "[MASK]" else items.index(token["content"])
            )
        return content | {
            "model": content["model"] | {"vocab": {item: items.index(item) for item in items}}
        }

    tokens = load_backbone(str(copied(bert, tmp_path / "folder", tokenizer_json(last)))).tokenizer
    assert tokens.mask == tokens.highest == 107 and not tokens.knows("[MASK]")


def test_no_mask_token_is_one_line_where_it_is_needed(bert, tmp_path, invoke):
    folder = copied(
        bert, tmp_path / "damaged", both(tokenizer_json(), tokenizer_config(mask_token=None))
    )
    assert invoke(folder)[0] == 0
    code, out, err = invoke(folder, *MASKED)
    assert code == 2 and not out and err.count("\n") == 1 and "mask" in err


#: What tokenizers' library prints, if it is given it -> the file and the change of its content.
UNKNOWN_FIELDS = {
    "added": ("tokenizer.json", lambda content: content["added_tokens"][0].update(note="x")),
    "decoder": (
        "tokenizer_config.json",
        lambda content: content.update(
            added_tokens_decoder={"0": {"content": "<s>", "special": True, "id": 0}}
        ),
    ),
    "marked": (
        "tokenizer_config.json",
        lambda content: content.update(
            unk_token={"__type": "AddedToken", "content": "<unk>", "note": "x"}
        ),
    ),
    "map": (
        "special_tokens_map.json",
        lambda content: content.update(unk_token={"content": "<unk>", "note": "x"}),
    ),
}


@pytest.mark.parametrize("place", UNKNOWN_FIELDS)
def test_a_tokenizer_with_fields_that_its_library_would_print_is_refused(place, tmp_path, invoke):
    folder = save_tiny("roberta", tmp_path / "roberta")
    assert invoke(folder)[0] == 0
    name, change = UNKNOWN_FIELDS[place]
    path = folder / name
    content = json.loads(path.read_text()) if path.exists() else {}
    change(content)
    path.write_text(json.dumps(content))
    code, out, err = invoke(folder)
    assert (code, out, err.count("\n")) == (2, "", 1) and "its library does not know" in err


class PanicException(BaseException):
    """As pyo3 raises it: it is not an Exception."""


@pytest.mark.parametrize(
    "raised",
    [PanicException("called `Option::unwrap()`\n on None"), KeyboardInterrupt(), SystemExit()],
)
def test_a_panic_of_the_tokenizer_is_one_line_and_what_stops_the_program_stops_it(
    raised, bert, monkeypatch
):
    def fails(*_, **__):
        raise raised

    monkeypatch.setattr("promptcli.backbones.by_name.load_tokenizer", fails)
    panic = isinstance(raised, PanicException)
    with pytest.raises(
        UsageError if panic else type(raised), match=r"unwrap\(\)` on None$" if panic else None
    ):
        load_backbone(str(bert))


CONFIG = [
    *BertConfig().to_dict(),
    "auto_map",
    "attn_implementation",
    "_attn_implementation",
    "quantization_config",
    "pruned_heads",
    "rope_parameters",
    "text_config",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "num_labels",
]
TOKENIZER = """
    tokenizer_class backend cls_token sep_token pad_token unk_token mask_token bos_token
    model_max_length do_lower_case tokenize_chinese_chars strip_accents never_split auto_map
    added_tokens_decoder padding_side
    additional_special_tokens extra_special_tokens truncation_side model_input_names
    clean_up_tokenization_spaces chat_template tokenizer_file vocab_file special_tokens_map_file
    name_or_path
""".split()
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-3, 120)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["[MASK]", "[UNK]", "the", "gelu", "float16", "BertTokenizer", "sdpa", "owner/name", 10**10]
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    field=st.sampled_from([("config.json", field) for field in CONFIG])
    | st.sampled_from([("tokenizer_config.json", field) for field in TOKENIZER]),
    value=VALUES,
)
def test_any_value_of_any_field_ends_well(field, value, bert, tmp_path_factory, invoke):
    file, name = field
    folder = copied(
        bert,
        tmp_path_factory.mktemp("any") / "folder",
        lambda it: _set_in(it, file, **{name: value}),
    )
    before = content_of(folder)
    code, out, err = invoke(folder)
    assert code in CODES
    if code:
        assert (
            not out and err.count("\n") == 1 and err.startswith("promptcli: ") and len(err) <= 600
        )
    else:
        assert out.count("\n") == 1 and not err
    assert content_of(folder) == before
    shutil.rmtree(folder)
