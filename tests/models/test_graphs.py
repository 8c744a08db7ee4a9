"""Exports to ONNX: the graph in torch is the encoder, for every recipe; one is made a file where onnx is installed."""

import json

import pytest
import torch

from promptcli.backbones.saving import file_inputs
from promptcli.models.forms import static_table
from promptcli.models.onnx import EncoderGraph, TableGraph, encode_with, export_onnx
from promptcli.models.registry import Entry
from promptcli.models.target import PROBES, Source, lowest_cosine
from promptcli.recipe import RECIPES, Recipe
from tests.making import random_encoder

PROMPT = RECIPES["prompt"]
PREFIX = Recipe(prompt="deep-prefix:3", pooling="last/cls")
RECIPE = {
    "bert": [
        Recipe(pooling="first-last/avg", transforms=("whitening", "flow")),
        Recipe(pooling="first-last/ditto:1-3"),
        Recipe(pooling="layer-1/tfidf"),
        PREFIX,
        PREFIX.replace(pooling="first-last/ditto:2-1", transforms=("projection:tanh",)),
        PROMPT.replace(denoise="hidden"),
        PROMPT.replace(denoise="logits", transforms=("topk-tokens:5",)),
        Recipe(prompt="[MASK] [X] [MASK]", pooling="last/mask:2", transforms=("projection:mlm",)),
        Recipe(prompt=f"soft-template:{PROMPT.prompt}", pooling="last/mask"),
        Recipe(prompt=f"soft-template-lookup:{PROMPT.prompt}", pooling="last/mask"),
        Recipe(pooling="mlm-head/avg", transforms=("projection:tanh",)),
    ],
    "roberta": [PROMPT.replace(denoise="hidden"), PREFIX],
    "modernbert": [Recipe(pooling="first-last/ditto:2-1"), PREFIX],
    "mpnet": [PROMPT],
    "albert": [PROMPT.replace(pooling="first-last/mask")],
    "qwen2": [RECIPES["prompteol"], Recipe(prompt="deep-prefix:3", pooling="first-last/avg")],
}
CASES = [(family, recipe) for family, recipes in RECIPE.items() for recipe in recipes]


def padded(encoder, texts):
    rows = encoder.inputs(texts).rows
    width = min(max(map(len, rows)) + 2, encoder.max_length)
    ids = torch.tensor([row + [encoder.backbone.tokenizer.pad] * (width - len(row)) for row in rows])
    return ids, torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])


@pytest.mark.parametrize(("family", "recipe"), CASES, ids=lambda case: getattr(case, "pooling", case))
def test_the_graph_is_the_encoder(family, recipe, tiny_backbone):
    encoder = random_encoder(recipe, tiny_backbone(family))
    with torch.inference_mode():
        there = EncoderGraph(encoder)(*padded(encoder, PROBES))
    assert lowest_cosine(encoder.encode(PROBES), there.numpy()) > 0.999999


def test_a_static_recipe_is_its_table(tiny_backbone, tmp_path):
    encoder = random_encoder(Recipe(pooling="static/avg", transforms=("whitening:8",)), tiny_backbone("bert"))
    table = static_table(encoder)
    (tmp_path / "tokenizer.json").write_text(json.dumps(table.definition))
    graph = TableGraph(table)

    def run(batch):
        return graph(batch.ids, batch.real().long()).detach().numpy()

    there = encode_with(run, tmp_path, list(PROBES), encoder)
    assert lowest_cosine(encoder.encode(PROBES), there) > 0.999999


def test_onnxruntime_computes_the_same(tiny_backbone, tmp_path):
    for library in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    encoder = random_encoder(PROMPT.replace(denoise="hidden"), tiny_backbone("bert"))
    written = export_onnx(Source(Entry("x", encoder.recipe), encoder, int8=True), tmp_path)
    assert written.cosine is not None and written.cosine > 0.999999 and written.tool == "onnxruntime"
    assert "Spearman on the demo pairs" in written.notes[-1] and (tmp_path / "model_int8.onnx").is_file()
    limit = encoder.max_length
    assert len(file_inputs(tmp_path / "tokenizer.json", ["word " * 600])[0]) == limit
