"""Static recipes as models of model2vec, which reads them here, and its folders read by us."""

import json

import numpy as np
import pytest
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers

pytest.importorskip("model2vec", reason="model2vec is not installed")
from model2vec import StaticModel

import promptcli as pc
from promptcli.models.entries import Entry, Registry
from promptcli.models.exporting import export_model2vec
from promptcli.models.sentence_transformers_format import InexactError
from promptcli.recipe import Recipe
from tests.comparing import refused
from tests.random_encoders import random_encoder
from tests.tiny import SENTENCES

STATIC = [
    Recipe(pooling="static/avg"),
    Recipe(pooling="static/avg", transforms=("whitening:8",)),
    Recipe(prompt='This sentence : "[X]" means [MASK] .', pooling="static/avg"),
    Recipe(pooling="mlm-head/avg"),
]


def known(encoder, texts):
    """The texts whose tokens are all in the vocabulary: model2vec leaves out the others."""
    unknown = encoder.backbone.tokenizer.unk
    template = [*encoder.template.prefix, *encoder.template.suffix].count(unknown)
    rows = encoder.inputs(texts).ids
    return [
        text for text, row in zip(texts, rows, strict=True) if [*row].count(unknown) == template
    ]


@pytest.mark.parametrize("recipe", STATIC, ids=lambda recipe: f"{recipe.pooling} {recipe.prompt}")
def test_vectors_are_equal_in_model2vec(recipe, tiny_backbone, tmp_path):
    encoder = random_encoder(recipe, tiny_backbone("bert"))
    made = export_model2vec(Entry("tiny", recipe), encoder, tmp_path)
    texts = known(encoder, SENTENCES)
    assert len(texts) > len(SENTENCES) // 2
    theirs = StaticModel.from_pretrained(tmp_path).encode(texts)
    np.testing.assert_allclose(theirs, encoder.encode(texts), atol=1e-5)
    assert made.tool == "model2vec" and made.cosine > 0.99999


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "qwen2"])
def test_every_kind_of_vocabulary_is_written(family, tiny_backbone, tmp_path):
    recipe = Recipe(pooling="static/avg")
    encoder = random_encoder(recipe, tiny_backbone(family))
    export_model2vec(Entry("tiny", recipe), encoder, tmp_path)
    texts = known(encoder, SENTENCES)
    theirs = StaticModel.from_pretrained(tmp_path).encode(texts)
    np.testing.assert_allclose(theirs, encoder.encode(texts), atol=1e-5)
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"]
    rows = load_file(tmp_path / "model.safetensors")["embeddings"]
    assert len(rows) > max(token["id"] for token in vocabulary)


def test_the_folder_is_read_by_promptcli_too(run, home, bert_folder, tmp_path):
    recipe = Recipe(backbone=str(bert_folder), pooling="static/avg")
    Registry(home).save(Entry("mine", recipe))
    folder = tmp_path / "m2v"
    made = run("export", "mine", "-o", folder, "--to", "model2vec", "--json")
    assert made.code == 0, made.err
    assert json.loads(made.out)["load"] == f'StaticModel.from_pretrained("{folder}")'
    theirs = StaticModel.from_pretrained(folder).encode(SENTENCES)
    np.testing.assert_allclose(pc.load(folder).encode(SENTENCES), theirs, atol=1e-5)
    assert "library_name: model2vec" in (folder / "README.md").read_text().replace('"', "")


def test_what_is_no_table_is_refused_with_the_reason(run, tiny_backbone, tmp_path):
    recipe = Recipe(pooling="last/avg")
    with pytest.raises(InexactError, match="holds a table of words, which pooling 'last/avg'"):
        export_model2vec(
            Entry("x", recipe), random_encoder(recipe, tiny_backbone("bert")), tmp_path
        )
    assert refused(
        run("export", "last-avg", "-o", tmp_path / "x", "--to", "model2vec"),
        2,
        "mini-static",
        "pooling static/avg",
    )
    assert not (tmp_path / "x").exists()


def _unigram():
    pieces = ["▁the", "▁cat", "▁sleeps", *"thecaslp", "▁"]
    scored = [("<s>", 0.0), ("<unk>", 0.0)]
    scored += [(piece, -2.0 - rank / 10) for rank, piece in enumerate(dict.fromkeys(pieces))]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=1))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def _byte_pairs(unknown):
    items = ["<unk>", *"thecaslp", "th", "the"]
    vocabulary = {item: number for number, item in enumerate(items)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("t", "h"), ("th", "e")], unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def _words(kind, unknown):
    vocabulary = {item: number for number, item in enumerate(("[UNK]", "the", "cat", "sleeps"))}
    tokenizer = Tokenizer(kind(vocabulary, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


#: Every kind of model that a tokenizer has.
KINDS = {
    "unigram": _unigram,
    "bpe": lambda: _byte_pairs("<unk>"),
    "bpe-no-unknown": lambda: _byte_pairs(None),
    "wordpiece": lambda: _words(models.WordPiece, "[UNK]"),
    "wordlevel": lambda: _words(models.WordLevel, "[UNK]"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_has_model2vec_s_vectors_whatever_its_tokenizer(kind, tmp_path):
    tokenizer = KINDS[kind]()
    random = np.random.default_rng(0)
    rows = random.normal(size=(tokenizer.get_vocab_size(), 8)).astype(np.float32)
    model = StaticModel(rows, tokenizer, config={"model_type": "model2vec"}, max_length=4)
    model.save_pretrained(tmp_path)
    texts = ["the cat sleeps", "the ☃ cat ☃", "☃", "", "cat" * 30, f"the {'x' * 50} cat"]
    theirs = StaticModel.from_pretrained(tmp_path).encode(texts)
    np.testing.assert_allclose(pc.load(str(tmp_path)).encode(texts), theirs, atol=1e-6)
