"""MPNet: scores with a bias by distance, on our own attention, next to transformers' model."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoModel, MPNetModel
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from promptcli.backbones import kernels
from promptcli.backbones.attention_hook import AttentionHook, Injected, Recorded
from promptcli.backbones.backbone_files import save_weights
from promptcli.backbones.bert import BertModel, bucket_distances, relative_bias
from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.lora import ALPHA
from promptcli.backbones.states import Needs
from promptcli.encoder.components import BuildContext
from promptcli.encoder.encoder import TorchEncoder, build_encoder
from promptcli.encoder.prompts import deep_prefix
from promptcli.grammar import parse_prompt
from promptcli.recipe import RECIPES, Recipe
from tests.comparing import gap, refusal
from tests.tiny import SENTENCES
from tests.training_steps import gradients, learner_of

LONG = 64  # tokens of the longest input, so that distances share buckets
LENGTHS = torch.tensor([LONG, 17, 2])
REAL = torch.arange(LONG) < LENGTHS.unsqueeze(1)
IDS = torch.randint(5, 400, (3, LONG), generator=torch.Generator().manual_seed(0))
IDS[~REAL] = 1  # which transformers takes for padding when it counts positions


@pytest.fixture(scope="module")
def folder(tiny_folder):
    return tiny_folder("mpnet")


@pytest.fixture(scope="module")
def theirs(folder):
    return MPNetModel.from_pretrained(folder, add_pooling_layer=False).eval()


@pytest.fixture
def ours(folder):
    model = load_backbone(str(folder)).model
    assert isinstance(model, BertModel)
    return model


def bucket_of(distance):
    """One distance, in words of the paper."""
    side, far = (16, distance) if distance > 0 else (0, -distance)
    if far < 8:
        return side + far
    return side + min(15, 8 + int(math.log(far / 8) / math.log(128 / 8) * 8))


def test_a_bucket_is_the_formula_and_transformers():
    distances = torch.arange(-600, 601)
    found = bucket_distances(distances)
    assert torch.equal(found, MPNetEncoder.relative_position_bucket(distances))
    for distance, bucket in zip(distances.tolist(), found.tolist(), strict=True):
        if abs(distance) not in (16, 32, 64):  # whole logarithms, where rounding decides
            assert bucket == bucket_of(distance)
    assert set(found.tolist()) == set(range(32)) - {16}


@pytest.mark.parametrize("length", [1, 2, 9, 300])
def test_the_bias_is_that_of_transformers(length, theirs):
    bias = relative_bias(theirs.encoder.relative_attention_bias.weight, length)
    expected = theirs.encoder.compute_position_bias(torch.zeros(1, length, 1))
    assert torch.equal(bias, expected)


def test_states_and_attention_are_those_of_transformers(ours, theirs):
    layers = frozenset(range(2))
    slots = torch.tensor([0, 16, 1])
    rows = frozenset((layer, 1) for layer in layers)
    call = Recorded(Needs(diagonals=layers, matrices=layers, attention_rows=rows), {1: slots})
    given = {"input_ids": IDS, "attention_mask": REAL.long()}
    with torch.inference_mode():
        output = ours(**given, output_hidden_states=True, hook=AttentionHook(recorded=call))
        at_slots = ours(**given, only_at=slots).last_hidden_state[:, 0]
        expected = theirs(**given, output_hidden_states=True, output_attentions=True)
    for one, other in zip(output.hidden_states, expected.hidden_states, strict=True):
        assert (one - other)[REAL].abs().max() < 1e-5
    rows = torch.arange(3)
    assert gap(at_slots, expected.last_hidden_state[rows, slots]) < 1e-5
    for layer, matrix in enumerate(expected.attentions):
        found = call.matrices[layer].transpose(1, 2)[REAL]
        assert gap(found, matrix.transpose(1, 2)[REAL]) < 1e-5
        difference = call.diagonals[layer] - matrix.diagonal(dim1=-2, dim2=-1)
        assert difference.transpose(1, 2)[REAL].abs().max() < 1e-5
        assert gap(call.attention_rows[layer, 1], matrix[rows, :, slots]) < 1e-5


def test_padding_batch_and_order_do_not_matter(ours):
    given = {"input_ids": IDS, "attention_mask": REAL.long()}
    order = torch.tensor([2, 0, 1])
    with torch.inference_mode():
        together = ours(**given).last_hidden_state
        moved = ours(IDS[order], attention_mask=REAL[order].long()).last_hidden_state
        assert (moved - together[order])[REAL[order]].abs().max() < 1e-5
        for row, length in enumerate(LENGTHS.tolist()):
            alone = ours(IDS[row : row + 1, :length]).last_hidden_state[0]
            assert gap(alone, together[row, :length]) < 1e-5


def with_prefix_in_words(attn, keys, values):
    """The attention of transformers' module with keys and values in front, whose bias is 0."""

    def forward(hidden, attention_mask, position_bias, **_):
        heads = attn.num_attention_heads
        q, k, v = (
            one(hidden).unflatten(-1, (heads, -1)).transpose(1, 2)
            for one in (attn.q, attn.k, attn.v)
        )
        n = len(hidden)
        k = torch.cat([keys.expand(n, -1, -1, -1), k], 2)
        v = torch.cat([values.expand(n, -1, -1, -1), v], 2)
        scores = q @ k.transpose(2, 3) / math.sqrt(q.size(-1))
        length = keys.size(1)
        scores[..., length:] += position_bias
        scores += functional.pad(attention_mask, (length, 0))
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return (attn.o(mixed),)

    return forward


def test_the_columns_of_a_deep_prefix_have_no_bias(ours, folder):
    prefix = torch.randn(2, 2, 4, 3, 4, generator=torch.Generator().manual_seed(1))
    plain = AutoModel.from_pretrained(folder, add_pooling_layer=False, attn_implementation="eager")
    for layer, (keys, values) in zip(plain.eval().encoder.layer, prefix, strict=True):
        layer.attention.attn.forward = with_prefix_in_words(layer.attention.attn, keys, values)
    given = {"input_ids": IDS, "attention_mask": REAL.long()}
    with torch.inference_mode():
        expected = plain(**given).last_hidden_state[REAL]
        found = ours(**given, hook=AttentionHook(Injected(prefix=list(prefix)))).last_hidden_state[
            REAL
        ]
        hook = AttentionHook(Injected(prefix=list(prefix)))
        slots = ours(**given, hook=hook, only_at=LENGTHS - 1)
    assert gap(found, expected) < 1e-5
    lasts = LENGTHS.cumsum(0) - 1
    assert gap(slots.last_hidden_state[:, 0], expected[lasts]) < 1e-5


@pytest.mark.parametrize("reads", [(), range(2)])
def test_the_table_of_biases_is_learned_as_in_transformers(reads, ours, theirs):
    given = {"input_ids": IDS, "attention_mask": REAL.long()}
    for model, options in (
        (ours, {"hook": AttentionHook(recorded=Recorded(Needs(diagonals=frozenset(reads))))}),
        (theirs, {}),
    ):
        model.zero_grad()
        model(**given, **options).last_hidden_state[REAL].square()[:, :3].sum().backward()
    found, expected = (
        model.get_parameter("encoder.relative_attention_bias.weight").grad
        for model in (ours, theirs)
    )
    assert expected.abs().max() > 1e-2
    assert gap(found, expected) < 1e-5 * expected.abs().max()


def test_the_fused_kernel_takes_a_bias_of_each_head(monkeypatch):
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 9, 8)
    for mask in (torch.randn(1, 4, 9, 9), torch.randn(2, 4, 9, 9)):
        fused = kernels.attention_with_logsumexp(query, key, value, mask, 0.3, None)
        with monkeypatch.context() as patch:
            patch.delitem(kernels._FUSED, "cpu")
            plain = kernels.attention_with_logsumexp(query, key, value, mask, 0.3, None)
        for one, other in zip(fused, plain, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("method", ["simcse", "dcpcse", "promptbert"])
def test_methods_train_it(method, folder):
    learner = learner_of(method, folder, batch_size=8, learning_rate=1e-3)
    learner.eval()
    before = learner.as_encoder().encode(SENTENCES)
    loss, found = gradients(learner)
    assert math.isfinite(loss)
    whole = "backbone.encoder.relative_attention_bias.weight"
    assert (whole in found) is (method != "dcpcse")
    for name, parameter in learner.trainable().items():
        if name in found:
            parameter.data -= 0.1 * found[name]
    stored = build_encoder(
        learner.as_encoder().recipe, tensors=learner.tensors(), device="cpu", dtype="float32"
    )
    learner.eval()
    expected = learner.as_encoder().encode(SENTENCES)
    assert gap(expected, before) > 1e-3
    assert gap(stored.encode(SENTENCES), expected) < 1e-5 * np.abs(expected).max()


def test_an_adapter_is_on_every_map_and_merged_as_peft_computes_it(folder):
    pytest.importorskip("peft")
    from promptcli.backbones.lora import add_lora, merge_lora

    adapted, merged = (load_backbone(str(folder)).model for _ in "ab")
    add_lora(adapted, "mpnet", rank=2, alpha=4, dropout=0.0, seed=0)
    torch.manual_seed(0)
    tensors = {ALPHA: torch.tensor(4.0)}
    for name, one in adapted.named_parameters():
        if "lora_" in name:
            one.data.normal_(0, 0.1)
            tensors[name] = one.detach()
    maps = {name.split(".lora_")[0].rpartition("attention.")[2] for name in tensors}
    assert {"attn.q", "attn.k", "attn.v", "attn.o"} <= maps
    merge_lora("it", merged, tensors)
    given = {"input_ids": IDS, "attention_mask": REAL.long()}
    with torch.inference_mode():
        states = [model(**given).last_hidden_state[REAL] for model in (adapted.eval(), merged)]
        before = load_backbone(str(folder)).model(**given).last_hidden_state[REAL]
    assert gap(states[0], states[1]) < 1e-5
    assert gap(states[0], before) > 1e-3


def test_what_is_saved_is_read_by_transformers(folder, tmp_path):
    backbone = load_backbone(str(folder))
    save_weights(backbone, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["MPNetModel"]
    read, report = AutoModel.from_pretrained(
        tmp_path, add_pooling_layer=False, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    stored = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(stored[name], one) for name, one in read.state_dict().items())


def changed(folder, made, **fields):
    shutil.copytree(folder, made)
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**config, **fields}))
    return str(made)


def test_an_unusual_configuration_is_left_to_transformers_without_its_attention(folder, tmp_path):
    backbone = load_backbone(changed(folder, tmp_path / "made", hidden_act="gelu_fast"))
    assert isinstance(backbone.model, MPNetModel)
    build_encoder(Recipe(pooling="last/avg"), backbone=backbone).encode(SENTENCES)
    with refusal(r"Ditto needs the attention .*'mpnet'"):
        build_encoder(Recipe(pooling="last/ditto:1-1"), backbone=backbone)


def test_a_table_of_another_length_than_it_says_is_refused(folder, tmp_path):
    made = changed(folder, tmp_path / "made", relative_attention_num_buckets=48)
    with refusal("relative_attention_num_buckets 48"):
        load_backbone(made)


def test_a_prefix_shortens_the_longest_input(folder):
    backbone = load_backbone(str(folder))
    shape = deep_prefix.prefix_shape(BuildContext(parse_prompt("deep-prefix:5"), backbone, {}))
    recipe = Recipe(str(folder), prompt="deep-prefix:5", pooling="first-last/ditto:2-3")
    encoder = TorchEncoder(recipe, backbone, {deep_prefix.TENSOR: torch.randn(shape)})
    assert encoder.max_length == backbone.max_tokens - 5 == 64 - 5
    assert np.isfinite(encoder.encode([" ".join(SENTENCES), RECIPES["prompt"].prompt])).all()
