"""The shipped models: small, of half precision, and as their cards say."""

import shutil

import torch

from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.model_folder import SHIPPED_BACKBONES, SHIPPED_TABLES
from promptcli.models.entries import Registry
from promptcli.models.loading import open_torch_encoder
from promptcli.recipe import Recipe
from tests.comparing import gap

MINI = SHIPPED_BACKBONES["mini-bert"]


def test_the_shipped_files_are_small():
    files = [path for path in MINI.parent.rglob("*") if path.is_file()]
    others = [path for path in files if path.parent.name != "mini-multi"]
    assert sum(path.stat().st_size for path in others) <= 40 * 10**6
    table = SHIPPED_TABLES["mini-multi"]
    assert sum(path.stat().st_size for path in table.iterdir()) <= 24 * 10**6


def test_the_fast_tier_is_word_embeddings_which_know_no_order(home):
    entry = Registry(home).load("mini-static")
    assert (
        entry.recipe == Recipe(backbone="mini-bert", period=False, pooling="static/avg").resolve()
    )
    assert [tensor.dtype for tensor in entry.tensors.values()] == [torch.float16]
    assert (
        entry.provenance["weights_sha256"]
        == open_torch_encoder("mini").provenance["weights_sha256"]
    )
    swapped = open_torch_encoder(entry, dtype="float32").encode(
        ["the dog bit the man", "the man bit the dog", "prices fell in may"]
    )
    assert gap(swapped[0], swapped[1]) < 1e-5 < gap(swapped[0], swapped[2])


def test_the_tokenizer_of_the_shipped_backbone_is_read_once():
    assert load_backbone("mini-bert").tokenizer is load_backbone("mini-bert").tokenizer


def test_the_shipped_backbone_would_pass_the_checks_of_what_others_wrote(tmp_path):
    copied = load_backbone(str(shutil.copytree(MINI, tmp_path / "mini")))
    shipped = load_backbone("mini-bert")
    assert copied.provenance.weights_sha256 == shipped.provenance.weights_sha256
