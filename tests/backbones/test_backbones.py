"""Every family: the eager path, the hook, spliced ids, and what a checkpoint without a part
refuses.
"""

import functools
import itertools
import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, BertModel, ElectraForPreTraining, GptOssConfig, GptOssModel

from promptcli.backbones.attention_hook import (
    NAME,
    AttentionHook,
    Injected,
    Recorded,
    attention,
    hook_fault,
)
from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.families import FAMILIES as ROWS
from promptcli.backbones.states import Batch, Needs
from promptcli.encoder.encoder import build_encoder
from promptcli.encoder.template import Template
from promptcli.errors import NotFoundError, PromptcliError
from promptcli.notes import without_network
from promptcli.recipe import Recipe
from tests.comparing import gap, refusal
from tests.reference import plain
from tests.tiny import FAMILIES, SENTENCES, save_tiny
from tests.tiny_causal import CAUSAL

SEAM = [name for name in FAMILIES if ROWS[name].opens]
MASKED = Recipe(prompt="[X] means [MASK] .", pooling="last/mask")
NO_SEAM = [name for name in FAMILIES if not ROWS[name].opens]
TEMPLATES = [*dict.fromkeys(plain.TEMPLATES.values()), "[MASK][X]", "[X]"]


def test_every_family_has_a_tiny_model():
    assert {name for name, family in ROWS.items() if family.causal} == set(CAUSAL)
    # the first shares deberta-v2's row; EmbeddingGemma: tests/published_folders.py
    assert set(ROWS) - set(FAMILIES) - set(CAUSAL) == {"deberta", "gemma3_text-bidirectional"}


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_equal_the_eager_path(family, tiny_backbone, plain_backbone):
    reference = plain_backbone(family)
    average = build_encoder(Recipe(pooling="first-last/avg"), backbone=tiny_backbone(family))
    cls = build_encoder(Recipe(pooling="last/cls"), backbone=tiny_backbone(family))
    for sentence, mean, first in zip(
        SENTENCES, average.encode(SENTENCES), cls.encode(SENTENCES), strict=True
    ):
        ids = torch.tensor([reference.ids("[X]", sentence)])
        hidden = reference.model.base_model(ids, output_hidden_states=True).hidden_states
        expected = ((hidden[0] + hidden[-1]) / 2)[0].mean(0).detach().numpy()
        assert gap(mean, expected) < 1e-5
        assert gap(first, hidden[-1][0, 0].detach().numpy()) < 1e-5


@pytest.mark.parametrize("family", SEAM)
def test_diagonals_equal_the_eager_attention(family, tiny_backbone, plain_backbone):
    reference = plain_backbone(family)
    for head in ("1-1", "2-4"):
        layer, number = (int(part) for part in head.split("-"))
        encoder = build_encoder(
            Recipe(pooling=f"last/ditto:{head}"), backbone=tiny_backbone(family)
        )
        for sentence, vector in zip(SENTENCES, encoder.encode(SENTENCES), strict=True):
            hidden, attentions = reference.states(reference.ids("[X]", sentence))
            expected = plain.ditto(hidden[-1], attentions[layer - 1], number - 1)
            assert gap(vector, expected.numpy()) < 1e-5


@pytest.mark.parametrize("family", SEAM)
def test_a_prefix_equals_keys_and_values_put_in_front(family, tiny_backbone):
    """The hook's prefix against attention written out, on one layer's own q, k and v."""
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 4, 5, 4) for _ in range(3))
    pk, pv = torch.randn(4, 3, 4), torch.randn(4, 3, 4)
    keep = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    call = AttentionHook(Injected([(pk, pv)]), Recorded(Needs(diagonals=frozenset({0}))))
    out, _ = attention(
        torch.nn.Identity(), q, k, v, keep[:, None, None, :].expand(2, 1, 5, 5), hook=call
    )
    for i in range(2):
        for head in range(4):
            keys, values = (
                torch.cat([pk[head], k[i, head][keep[i]]]),
                torch.cat([pv[head], v[i, head][keep[i]]]),
            )
            for t in range(int(keep[i].sum())):
                weights = (keys @ q[i, head, t] / 2).softmax(0)
                assert torch.allclose(out[i, t, head], weights @ values, atol=1e-5)
                assert torch.allclose(
                    call.recorded.diagonals[0][i, head, t], weights[3 + t], atol=1e-5
                )
    tiny_backbone(family).require_hook("Ditto")


@pytest.mark.parametrize("family", NO_SEAM)
def test_families_without_the_hook_keep_the_rest(family, tiny_backbone):
    backbone = tiny_backbone(family)
    with refusal(rf"Ditto needs .*'{family}'.*families that do: bert"):
        build_encoder(Recipe(pooling="last/ditto:1-1"), backbone=backbone)
    with refusal(rf"the states 'attention' needs .*'{family}'.*families that do: bert"):
        build_encoder(Recipe(pooling="attention/avg"), backbone=backbone)
    build_encoder(MASKED, backbone=backbone).encode(SENTENCES)


@pytest.mark.parametrize("family", FAMILIES)
def test_positions_change_the_states_or_moving_them_is_refused(family, tiny_backbone):
    recipe = MASKED.replace(denoise="hidden")
    if family == "deberta-v2":  # its attention reads distances alone
        with refusal(r"denoise 'hidden' moves tokens.*'deberta-v2' ignores position ids"):
            build_encoder(recipe, backbone=tiny_backbone(family))
        ids = torch.tensor([[5, 6, 7]])
        shuffled = Batch(ids, torch.tensor([3]), position_ids=ids.flip(1) - 5)  # as by ConSERT
        with refusal(r"this computation moves tokens.*'deberta-v2' ignores position ids"):
            tiny_backbone(family).run(shuffled, Needs(frozenset({1})))
        return
    short, long = build_encoder(recipe, backbone=tiny_backbone(family)).biases(np.array([1, 8]))
    assert not torch.allclose(short, long, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", TEMPLATES)
def test_spliced_ids_equal_the_filled_string(family, text, tiny_backbone, plain_backbone):
    reference = plain_backbone(family)
    encoder = build_encoder(Recipe(prompt=text, period=False), backbone=tiny_backbone(family))
    rows = encoder.inputs(SENTENCES).ids
    for sentence, row in zip(SENTENCES, rows, strict=True):
        assert row == reference.ids(text, sentence)
        if "[MASK]" in text:
            slot = encoder.template.mask_positions(np.array([len(row)]))[0, 0]
            assert row[slot] == reference.tokenizer.mask_token_id


whole = functools.cache(AutoTokenizer.from_pretrained)
WORDS = st.sampled_from(["Represent", "this", "I", ":", "-", '"', "'", ".", "means"])
#: SentencePiece of these tiny vocabularies has no token for a line break.
SPACES = {
    "bert": " \t\r\n",
    "roberta": " \t\r\n",
    "gpt2": " \t\r\n",
    "xlm-roberta": " \t\r\n",
    "llama": " ",
}


@pytest.mark.parametrize("family", SPACES)
@given(data=st.data())
def test_any_white_space_in_a_template_is_tokenised_as_in_the_filled_string(
    family, data, tiny_backbone, tiny_folder
):
    space = st.text(SPACES[family], max_size=2)
    parts = st.lists(st.tuples(WORDS, space), max_size=3)
    before, after = ("".join(itertools.chain(*data.draw(parts))) for _ in range(2))
    tokens = tiny_backbone(family).tokenizer
    template, sentence = (
        Template(f"{before}[X]{after}", tokens),
        data.draw(st.sampled_from(SENTENCES)),
    )
    texts = template.with_touching([sentence.strip()])
    row = template.inputs(texts, tokens.encode_ragged, 10_000).ids[0]
    filled = f"{before}{sentence}{after}".rstrip()
    assert row == [
        *tokens.start,
        *whole(tiny_folder(family))(filled, add_special_tokens=False).input_ids,
        *tokens.end,
    ]


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_typed_mask_token_does_not_move_the_slot(family, tiny_backbone):
    encoder = build_encoder(MASKED, backbone=tiny_backbone(family))
    tokens = encoder.backbone.tokenizer
    row = encoder.inputs([f"he said {tokens.mask_text} loudly"]).ids[0]
    places = [place for place, token in enumerate(row) if token == tokens.mask]
    assert (
        len(places) == 2
        and encoder.template.mask_positions(np.array([len(row)]))[0, 0] == places[1]
    )


@pytest.mark.parametrize("family", [*FAMILIES, *CAUSAL])
def test_the_head_equals_that_of_the_language_model(family, tiny_backbone, plain_backbone):
    reference = plain_backbone(family)
    head = tiny_backbone(family).head
    hidden = torch.randn(3, tiny_backbone(family).width)
    for row, logits in zip(hidden, head.to_logits(head.to_hidden(hidden)), strict=True):
        assert torch.allclose(logits, reference.logits(row), atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_sentence_is_cut_and_never_the_template(family, tiny_backbone):
    encoder = build_encoder(MASKED.replace(max_length=14), backbone=tiny_backbone(family))
    long = " ".join(SENTENCES)
    encoded = encoder.encode_report(["I", long, long + " and more"])
    assert encoded.truncated.tolist() == [False, True, True]
    assert np.array_equal(encoded.vectors[1], encoded.vectors[2])
    (row,), suffix = encoder.inputs([long]).ids, encoder.template.suffix
    assert len(row) <= 14 and row[-len(suffix) :] == suffix
    longest = build_encoder(Recipe(pooling="last/avg"), backbone=tiny_backbone(family))
    assert len(longest.inputs([long * 3]).ids[0]) == longest.backbone.max_tokens
    assert np.isfinite(longest.encode([long * 3, "I"])).all()
    full = MASKED.replace(max_length=encoder.template.length)
    with refusal("no room"):
        build_encoder(full, backbone=tiny_backbone(family)).encode(["I"])


def test_checkpoints_without_a_head_refuse_what_needs_it(tmp_path):
    for number, (family, model) in enumerate(
        [("electra", ElectraForPreTraining), ("bert", BertModel)]
    ):
        folder = save_tiny(family, tmp_path / str(number), model_class=model)
        recipe = Recipe(backbone=str(folder), prompt="[X] [MASK] .", pooling="last/mask")
        build_encoder(recipe).encode(["fine without the head"])
        with refusal("has no masked-LM head"):
            build_encoder(recipe.replace(transforms=("topk-tokens:3",)))


def test_a_pattern_of_a_tokenizer_that_goes_on_for_ever_is_one_line(tmp_path):
    save_tiny("roberta", tmp_path)
    path = tmp_path / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    endless = {
        "type": "Split",
        "pattern": {"Regex": "(?:q|qq|qqq)+z"},
        "behavior": "Isolated",
        "invert": False,
    }
    tokenizer["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [tokenizer["pre_tokenizer"], endless],
    }
    path.write_text(json.dumps(tokenizer))
    backbone = load_backbone(str(tmp_path))
    with refusal(r"tokenizer of the model fails at a text \(Onig", PromptcliError) as failed:
        backbone.tokenizer.encode(["a cat", "q" * 45 + " z"])
    assert "\n" not in str(failed.value)


def test_pickled_weights_are_refused(tmp_path):
    folder = save_tiny("bert", tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with refusal(r"pytorch_model\.bin only, which is a pickle"):
        load_backbone(str(folder))
    (folder / "pytorch_model.bin").unlink()
    with refusal(r"no \*\.safetensors"):
        load_backbone(str(folder))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nowhere", "no backbone folder"),
        (".", r"no config\.json"),
        ("nobody/nothing-here", "no local model"),
    ],
)
def test_a_name_without_a_model_is_not_found(name, message, here):
    with without_network(), refusal(message, NotFoundError):
        load_backbone(name)


def test_provenance_tells_backbones_apart(tiny_folder, tmp_path):
    first = load_backbone(str(tiny_folder("bert")))
    copy = tmp_path / "copy"
    shutil.copytree(tiny_folder("bert"), copy)
    same = load_backbone(str(copy))
    assert same.provenance.weights_sha256 == first.provenance.weights_sha256
    encoders = [build_encoder(Recipe(), backbone=backbone) for backbone in (first, same)]
    assert encoders[0].fingerprint == encoders[1].fingerprint
    other = load_backbone(str(tiny_folder("roberta")))
    assert build_encoder(Recipe(), backbone=other).fingerprint != encoders[0].fingerprint
    assert Template("[X]", first.tokenizer).length == 2


def test_shipped_mini_loads_and_predicts():
    """The shipped weights are a language model: the mask of a plain sentence is filled with a
    sensible word.
    """
    backbone = load_backbone("mini-bert")
    encoder = build_encoder(Recipe(prompt="[X]"), backbone=backbone)
    ids = encoder.inputs(["paris is the capital of [MASK] ."]).ids[0]
    slot = ids.index(backbone.tokenizer.mask)
    with torch.inference_mode():
        hidden = backbone.model(input_ids=torch.tensor([ids])).last_hidden_state[0, slot : slot + 1]
        best = backbone.head.to_logits(backbone.head.to_hidden(hidden))[0].topk(10).indices
    assert "france" in [backbone.tokenizer.text(int(token)) for token in best]


def test_a_model_that_the_hook_would_compute_wrongly_is_refused(tiny_backbone, monkeypatch):
    """GPT-OSS gives every head a sink that takes a share of the softmax: the hook does not know
    it.
    """
    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=16,
        num_local_experts=2,
        num_experts_per_tok=1,
        initializer_range=0.3,
        attn_implementation=NAME,
    )
    model = GptOssModel(config).eval()
    fault = hook_fault(model, 2)
    assert fault is not None and model.config._attn_implementation == NAME and not model.training
    backbone = tiny_backbone("bert")
    monkeypatch.setattr(backbone, "_hook_fault", fault)
    with refusal(r"Ditto needs .* family 'bert' .* does not open: (its own|it fails)"):
        backbone.require_hook("Ditto")


@pytest.mark.parametrize("family", [name for name in SEAM if ROWS[name].plan is None])
def test_the_hook_computes_what_the_model_computes(family, tiny_backbone):
    backbone = tiny_backbone(family)
    attentions = []  # that another thread would compute with
    backbone.model.register_forward_hook(
        lambda *_: attentions.append(backbone.model.config._attn_implementation)
    )
    assert hook_fault(backbone.model, backbone.n_layers) is None
    assert set(attentions) == {NAME}
    assert hook_fault(backbone.model, backbone.n_layers + 1) == "its layers do not call it"
