"""Folders are read as what they say they are: sentence-transformers' modules, ours, plain language
models.
"""

import importlib.util
import json

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import promptcli as pc
from promptcli.encoder.encoder import TorchEncoder
from promptcli.errors import PromptcliError
from promptcli.models.entries import Entry, write_manifest
from promptcli.models.exporting import export
from promptcli.models.parity import lowest_cosine
from tests.comparing import gap, refusal
from tests.published_folders import MODULES, static_folder, write, write_folder
from tests.random_encoders import random_encoder, random_numbers
from tests.reference import sentence_transformers_folder as reference
from tests.tiny import SENTENCES

TEXTS = [*SENTENCES, *(" ".join(["dog"] * count) for count in (2, 9, 29, 30, 31, 32, 33, 60, 200))]
WIDTH = 16
TEMPLATE = 'This sentence : "[X]" means [MASK] .'
MODES = [
    "cls",
    "max",
    "mean",
    "mean_sqrt_len_tokens",
    "weightedmean",
    ["cls", "mean"],
    ["weightedmean", "max", "mean"],
]


def load(folder, **options):
    return pc.load(folder, device="cpu", dtype="float32", offline=True, **options)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(
    ("family", "flags"), [("bert", True), ("bert", False), ("roberta", False), ("mpnet", True)]
)
def test_pooling_is_the_folders_own(tiny_folder, tmp_path, family, flags, mode):
    pooling = {"pooling_mode": mode, "include_prompt": True}
    if flags:
        pooling = {
            flag: name in ([mode] if isinstance(mode, str) else mode)
            for name, flag in reference.FLAGS.items()
        }
    folder = write_folder(
        tmp_path, tiny_folder(family), pooling=pooling, inside="0_Transformer" if flags else ""
    )
    vectors, wanted = load(folder).encode(TEXTS), reference.vectors(folder, TEXTS)
    assert lowest_cosine(vectors, wanted) >= 0.9999
    assert gap(vectors, wanted) < 1e-4 * np.abs(wanted).max()


def dense(number, rows, columns, activation, bias=True):
    generator = torch.Generator().manual_seed(number)
    tensors = {"linear.weight": torch.randn(rows, columns, generator=generator)}
    if bias:
        tensors["linear.bias"] = torch.randn(rows, generator=generator)
    config = {
        "in_features": columns,
        "out_features": rows,
        "bias": bias,
        "activation_function": activation,
    }
    return "Dense", config, tensors


def test_layers_after_the_pooling_and_normalize(bert_folder, tmp_path):
    wide = write_folder(
        tmp_path / "wide",
        bert_folder,
        after=[dense(1, 8, 9, "torch.nn.modules.activation.Tanh")],
    )
    with refusal(r"needs vectors of 9 dimensions, and these have 16", PromptcliError):
        load(wide).encode(TEXTS)
    tanh, identity = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"
    layers = [dense(1, 24, WIDTH, tanh), dense(2, 8, 24, identity, bias=False)]
    after = [("Dropout", {"dropout": 0.2}, {}), *layers, ("Normalize", {}, {})]
    folder = write_folder(tmp_path, bert_folder, after=after)
    encoder = load(folder)
    assert encoder.width == 8
    assert gap(encoder.encode(TEXTS), reference.vectors(folder, TEXTS)) < 1e-5
    assert "normalize" in repr(encoder)
    assert encoder.max_seq_length == 32


def test_prompts_by_name_and_by_default(bert_folder, tmp_path):
    prompts = {"query": "the dog : ", "passage": "flowers : ", "none": ""}
    folder = write_folder(tmp_path, bert_folder, prompts=prompts, default="passage")
    encoder = load(folder)

    def wanted(before):
        return reference.vectors(folder, [before + text for text in TEXTS])

    assert (
        dict(encoder.prompts) == {"document": "", **prompts}
        and encoder.default_prompt_name == "passage"
    )
    assert lowest_cosine(encoder.encode(TEXTS), wanted("flowers : ")) >= 0.9999
    assert lowest_cosine(encoder.encode_document(TEXTS), wanted("")) >= 0.9999
    assert lowest_cosine(encoder.encode_query(TEXTS), wanted("the dog : ")) >= 0.9999
    assert lowest_cosine(encoder.encode(TEXTS, prompt_name="query"), wanted("the dog : ")) >= 0.9999
    assert lowest_cosine(encoder.encode(TEXTS, prompt="a man "), wanted("a man ")) >= 0.9999
    assert lowest_cosine(encoder.encode(TEXTS, prompt=""), wanted("")) >= 0.9999
    with refusal("prompt_name 'other'; valid: query, document, passage, none", PromptcliError):
        encoder.encode(TEXTS, prompt_name="other")


def test_the_tokenizers_limit_holds_if_the_module_has_none(bert_folder, tmp_path):
    folder = write_folder(tmp_path, bert_folder, limit=None)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    write(folder, "tokenizer_config.json", {**config, "model_max_length": 16})
    assert load(folder).max_length == 16


@pytest.mark.parametrize(
    ("family", "pooling"), [("llama", "last/last-token"), ("bert", pc.Recipe().pooling)]
)
def test_the_pooling_assumed_for_a_plain_model_is_said(family, pooling, tiny_folder, notes):
    assert load(tiny_folder(family)).recipe.pooling == pooling
    assert "assumed" in notes.text


def remove(file):
    return lambda folder: (folder / file).unlink()


def change(file, **fields):
    return lambda folder: write(folder, file, {**json.loads((folder / file).read_text()), **fields})


def add_module(kind):
    def damage(folder):
        modules = json.loads((folder / "modules.json").read_text())
        write(
            folder, "modules.json", [*modules, {"idx": 9, "name": "9", "path": "9_X", "type": kind}]
        )

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove("1_Pooling/config.json"), "has no 1_Pooling/config.json"),
        (remove("2_Dense/model.safetensors"), "has no 2_Dense/model.safetensors"),
        (
            change("2_Dense/config.json", activation_function="torch.nn.Mish"),
            "a Dense layer with mish",
        ),
        (change("1_Pooling/config.json", pooling_mode="median"), "pools by median"),
        (
            lambda folder: write(
                folder, "config_sentence_transformers.json", {"prompts": {"query": ["x"]}}
            ),
            "prompts",
        ),
        (
            lambda folder: write(
                folder, "config_sentence_transformers.json", {"default_prompt_name": ["q"]}
            ),
            "default_prompt_name",
        ),
        (change("config.json", use_bidirectional_attention=True), "is a bert-bidirectional"),
        (add_module(f"{MODULES}LSTM"), "has a module LSTM (9_X); supported"),
        (add_module("custom_st.Transformer"), "remote code and is never run"),
        (
            lambda folder: write(folder, "modules.json", {"a": 1}),
            "modules.json: Expected `array`, got `object`",
        ),
    ],
)
def test_what_cannot_be_read_faithfully_is_refused_by_name(bert_folder, tmp_path, damage, message):
    folder = write_folder(
        tmp_path,
        bert_folder,
        after=[dense(1, 8, WIDTH, "torch.nn.modules.activation.Tanh")],
    )
    damage(folder)
    with pytest.raises(PromptcliError) as raised:
        load(folder)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "mode", ["cls", "max", "mean", "mean_sqrt_len_tokens", "lasttoken", ["cls", "mean"]], ids=str
)
def test_a_pooling_may_leave_the_prompt_out(bert_folder, tmp_path, mode):
    body, query = bert_folder, "the dog : "
    pooling = {"pooling_mode": mode, "include_prompt": False}
    encoder = load(write_folder(tmp_path, body, pooling=pooling, prompts={"query": query}))
    tokenizer, model = AutoTokenizer.from_pretrained(body), AutoModel.from_pretrained(body).eval()
    count = len(tokenizer(query)["input_ids"]) - 1  # [SEP] is no part of it

    def wanted(before, first):
        vectors = []
        for text in TEXTS:
            tokens = tokenizer(before + text, truncation=True, max_length=32, return_tensors="pt")
            with torch.inference_mode():
                x = model(**tokens).last_hidden_state[0, first:]
            modes = [mode] if isinstance(mode, str) else mode
            vectors.append(
                torch.cat([reference.pooled(x, name, torch.ones(len(x))) for name in modes]).numpy()
            )
        return np.array(vectors)

    assert lowest_cosine(encoder.encode_query(TEXTS), wanted(query, count)) >= 0.9999
    assert lowest_cosine(encoder.encode(TEXTS), wanted("", 0)) >= 0.9999
    assert (
        lowest_cosine(encoder.with_leading_text(query).encode_document(TEXTS), wanted("", 0))
        >= 0.9999
    )


def test_a_weighted_mean_that_leaves_the_prompt_out_is_refused_when_it_is_asked_for(
    bert_folder, tmp_path
):
    pooling = {"pooling_mode": "weightedmean", "include_prompt": False}
    encoder = load(write_folder(tmp_path, bert_folder, pooling=pooling, prompts={"query": "ask: "}))
    with refusal("weights weighted", PromptcliError):
        encoder.encode_query(TEXTS)


@pytest.mark.parametrize("weights", ["ditto:1-1", "mask", "slot-attention:1-1"])
def test_weights_of_all_tokens_that_leave_the_prompt_out_are_refused(
    bert_folder, tmp_path, weights
):
    pooling = {"pooling_mode": "mean", "include_prompt": False}
    plain = load(write_folder(tmp_path, bert_folder, pooling=pooling, prompts={"query": "ask: "}))
    recipe = plain.recipe.replace(prompt="[X] [MASK]", pooling=f"last/{weights}")
    encoder = TorchEncoder(recipe, plain.backbone, {}, leading=plain.leading)
    assert encoder.encode(TEXTS).shape == (len(TEXTS), plain.width)
    with refusal("include_prompt false cannot be used; use avg", PromptcliError):
        encoder.encode_query(TEXTS)


def test_a_name_of_a_model_and_of_a_folder_is_the_model(bert_folder, here):
    write_folder(here, bert_folder, pooling={"pooling_mode": "cls"})
    load(pc.Recipe(backbone=str(bert_folder), pooling="last/avg")).register("model")
    assert load("model").recipe.pooling == "last/avg"
    assert load("./model").recipe.pooling == "last/cls"


@pytest.mark.parametrize("distilled", [False, True])
def test_a_table_of_words_is_read_as_a_static_model(tmp_path, distilled):
    tokenizer, rows = static_folder(tmp_path, distilled=distilled)
    texts, wanted = [*TEXTS, "dog ☂ cat", ""], []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        ids = [
            token for token in ids if not (distilled and token == tokenizer.token_to_id("[UNK]"))
        ]
        vector = rows[ids].mean(0) if ids else torch.zeros(8)
        wanted.append(
            (torch.nn.functional.normalize(vector, dim=0) if distilled else vector).numpy()
        )
    encoder = load(tmp_path)
    np.testing.assert_allclose(encoder.encode(texts), wanted, atol=1e-6)
    encoder.save(tmp_path / "saved")
    np.testing.assert_array_equal(load(tmp_path / "saved").encode(texts), encoder.encode(texts))
    with refusal("holds word vectors", PromptcliError):
        load(tmp_path, pooling="last/avg")
    for program, there in (("model2vec", distilled), ("sentence_transformers", not distilled)):
        if there and importlib.util.find_spec(program):
            library = importlib.import_module(program)
            kind = library.StaticModel.from_pretrained if distilled else library.SentenceTransformer
            np.testing.assert_allclose(
                kind(str(tmp_path)).encode(texts), encoder.encode(texts), atol=1e-6
            )


@pytest.mark.parametrize(
    "recipe",
    [
        pc.Recipe(prompt=TEMPLATE, pooling="last/mask", transforms=("projection:mlm",)),
        pc.Recipe(pooling="first-last/ditto:1-3"),
        pc.Recipe(pooling="static/avg", transforms=("whitening:8",)),
        pc.Recipe(pooling="static/unbiased"),
    ],
)
def test_exports_are_read_back(recipe, bert_folder, tiny_backbone, tmp_path):
    recipe, backbone = recipe.replace(backbone=str(bert_folder)), tiny_backbone("bert")
    export(
        Entry("x", recipe, random_numbers(recipe, backbone)),
        tmp_path / "out",
        "sentence-transformers",
    )
    back = load(tmp_path / "out").encode(SENTENCES)
    assert lowest_cosine(back, random_encoder(recipe, backbone).encode(SENTENCES)) >= 0.9999


def test_a_graph_is_refused_by_name(tmp_path):
    write_manifest(tmp_path, Entry("x", pc.Recipe(), target="onnx"))
    with refusal("is an export for onnx: a graph", PromptcliError):
        load(tmp_path)
