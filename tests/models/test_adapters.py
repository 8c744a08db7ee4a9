"""Exports to peft, model2vec and plain checkpoints: the other side's own files, read as the other side reads them."""

import json

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModel

from promptcli.encoder.encoder import TUNED, build_encoder
from promptcli.errors import UsageError
from promptcli.models.export import export_merged, export_peft
from promptcli.models.forms import export_model2vec
from promptcli.models.registry import Entry
from promptcli.models.target import InexactError, Source, lowest_cosine
from promptcli.recipe import RECIPES, Recipe
from tests.making import random_encoder
from tests.reference import sentence_transformers_folder
from tests.tiny import SENTENCES

PREFIX = Recipe(prompt="deep-prefix:3", pooling="last/cls")


def test_a_deep_prefix_is_peft_s_prefix_tuning(tiny_backbone, tiny_folder, tmp_path):
    encoder = random_encoder(PREFIX, tiny_backbone("bert"))
    export_peft(Source(Entry("x", PREFIX), encoder, base="owner/tiny@abc"), tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("owner/tiny", "abc")
    body = AutoModel.from_pretrained(tiny_folder("bert"), add_pooling_layer=False).eval()
    model = PeftModel.from_pretrained(body, tmp_path).eval()
    for sentence in SENTENCES[:4]:
        ids = torch.tensor(encoder.inputs([sentence]).rows)
        with torch.inference_mode():
            state = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0, 0]
        np.testing.assert_allclose(state.numpy(), encoder.encode(sentence), atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "gpt2"])  # GPT-2 stores its linear maps the other way round
def test_a_lora_is_peft_s_and_comes_back(family, tiny_folder, tmp_path):
    pooling = "last/cls" if family == "bert" else "last/last-token"
    recipe = Recipe(backbone=str(tiny_folder(family)), pooling=pooling)
    body = AutoModel.from_pretrained(tiny_folder(family))
    modules = [name for name, _ in body.named_modules() if name.endswith(("query", "value", "c_attn", "mlp.c_proj"))]
    generator = torch.Generator().manual_seed(0)
    tensors = {f"{TUNED}lora_alpha": torch.tensor(6.0)}
    for name in modules:
        weight = body.get_submodule(name).weight
        out, width = weight.T.shape if family == "gpt2" else weight.shape
        for part, shape in (("A", (2, width)), ("B", (out, 2))):
            tensors[f"{TUNED}{name}.lora_{part}.default.weight"] = torch.randn(shape, generator=generator) * 0.1
    encoder = build_encoder(recipe, device="cpu", dtype="float32", tensors=tensors)
    plain = build_encoder(recipe, device="cpu", dtype="float32").encode(SENTENCES)
    assert np.abs(plain - encoder.encode(SENTENCES)).max() > 1e-3
    export_peft(Source(Entry("x", recipe), encoder, base="owner/tiny"), tmp_path)
    model = PeftModel.from_pretrained(body, tmp_path).eval()
    for sentence in SENTENCES[:4]:
        ids = torch.tensor(encoder.inputs([sentence]).rows)
        with torch.inference_mode():
            state = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
        np.testing.assert_allclose(state[0 if family == "bert" else -1], encoder.encode(sentence), atol=1e-5)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(tiny_folder(family))
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    back = build_encoder(recipe.replace(backbone=str(tmp_path)), device="cpu", dtype="float32")
    np.testing.assert_allclose(back.encode(SENTENCES), encoder.encode(SENTENCES), atol=1e-6)


@pytest.mark.parametrize(
    ("recipe", "base", "said"),
    [
        (PREFIX, None, "`base` OWNER/NAME"),
        (RECIPES["cls"], "a/b", "no learned keys and values"),
        (Recipe(prompt="soft-template:it is [X] [MASK]", pooling="last/mask"), "a/b", "before \\[CLS\\]"),
    ],
)
def test_what_peft_cannot_hold_is_refused_with_the_reason(recipe, base, said, tiny_backbone, tmp_path):
    with pytest.raises(UsageError, match=said):
        export_peft(Source(Entry("x", recipe), random_encoder(recipe, tiny_backbone("bert")), base), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_static_recipe_is_a_table_of_words(tiny_backbone, tmp_path):
    encoder = random_encoder(Recipe(pooling="static/avg", transforms=("whitening:8",)), tiny_backbone("bert"))
    export_model2vec(Source(Entry("x", encoder.recipe), encoder), tmp_path)
    rows = load_file(tmp_path / "model.safetensors")["embeddings"]
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())
    assert len(rows) == len(vocabulary["model"]["vocab"]) + 1  # the token of what stands around a sentence
    there = sentence_transformers_folder.vectors(tmp_path, SENTENCES)
    assert lowest_cosine(encoder.encode(SENTENCES), there) > 0.999999
    with pytest.raises(InexactError, match="does not average static rows"):
        export_model2vec(Source(Entry("x", PREFIX), random_encoder(PREFIX, tiny_backbone("bert"))), tmp_path)


def test_a_tuned_backbone_becomes_a_plain_checkpoint(tiny_backbone, tiny_folder, tmp_path):
    recipe = Recipe(backbone=str(tiny_folder("bert")), pooling="last/avg")
    with pytest.raises(UsageError, match="nothing to merge"):
        export_merged(Source(Entry("x", recipe), build_encoder(recipe, backbone=tiny_backbone("bert"))), tmp_path)
    weights = tiny_backbone("bert").model.state_dict()
    tuned = {f"{TUNED}{name}": tensor + 0.01 for name, tensor in weights.items()}
    encoder = build_encoder(recipe, device="cpu", dtype="float32", tensors=tuned)
    export_merged(Source(Entry("x", recipe), encoder), tmp_path)
    again = build_encoder(recipe.replace(backbone=str(tmp_path)), device="cpu", dtype="float32")
    np.testing.assert_allclose(again.encode(SENTENCES), encoder.encode(SENTENCES), atol=1e-6)
