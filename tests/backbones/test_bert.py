"""Our BERT and our BERT tokenizer, compared with those of transformers."""

import copy
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from promptcli.backbones import kernels
from promptcli.backbones.bert import ACTIVATIONS, BertModel
from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.families import FAMILIES
from promptcli.backbones.model_folder import SHIPPED_BACKBONES
from promptcli.backbones.tokenizer import PieceTokenizer, read_wordpiece
from tests.comparing import gap

PLANNED = [name for name, family in FAMILIES.items() if family.plan]
SPECIALS = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
TEXTS = ["The cats , été 猫", "[MASK] the cat[SEP] [NEW] x", "É\u0301 e"]


def copied(sound, folder, change):
    shutil.copytree(sound, folder)
    change(folder)
    return folder


@pytest.mark.parametrize("family", PLANNED)
def test_states_and_gradients_are_those_of_transformers(family, tiny_folder):
    folder = tiny_folder(family)
    ours = load_backbone(str(folder)).model
    theirs = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    names = {name for name, _ in theirs.named_parameters() if not name.startswith("pooler.")}
    assert isinstance(ours, BertModel) and names <= {name for name, _ in ours.named_parameters()}
    ids = torch.randint(5, 60, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1] * 9, [1] * 5 + [0] * 4, [1] * 2 + [0] * 7])
    first = ours._first_position
    given = {
        "attention_mask": mask,
        "position_ids": torch.arange(9).unsqueeze(0) + first,
        "output_hidden_states": True,
    }
    for chosen in (
        {"input_ids": ids},
        {"inputs_embeds": ours.get_input_embeddings()(ids).detach()},
    ):
        for model in (ours, theirs):
            model.zero_grad()
        output, expected = ours(**chosen, **given), theirs(**chosen, **given)
        for one, other in zip(output.hidden_states, expected.hidden_states, strict=True):
            assert (one - other)[mask.bool()].abs().max() < 1e-5
        for made in (output, expected):
            made.last_hidden_state[mask.bool()].square().mean().backward()
        gradients = {name: weight.grad for name, weight in theirs.named_parameters()}
        for name, weight in ours.named_parameters():
            if gradients.get(name) is not None:
                assert torch.allclose(weight.grad, gradients[name], atol=1e-5), name


@pytest.mark.parametrize("activation", [*ACTIVATIONS, "gelu_fast"])
def test_activations_are_those_of_transformers_or_left_to_it(activation, bert_folder, tmp_path):
    def changed(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"hidden_act": activation}))

    folder = copied(bert_folder, tmp_path / "folder", changed)
    model = load_backbone(str(folder)).model
    assert isinstance(model, BertModel) is (activation in ACTIVATIONS)
    ids = torch.tensor([[2, 7, 8, 9, 3]])
    expected = AutoModel.from_pretrained(folder).eval()(input_ids=ids).last_hidden_state
    assert gap(model(input_ids=ids).last_hidden_state, expected) < 1e-5


@pytest.mark.parametrize(
    ("before", "weight", "bias"), [("bert.", "gamma", "beta"), ("", "weight", "bias")]
)
def test_names_of_old_checkpoints_and_of_headless_ones_are_read(
    before, weight, bias, bert_folder, tmp_path
):
    """bert-base-uncased calls LayerNorm's tensors gamma and beta."""
    whole, names = load_backbone(str(bert_folder)).model.state_dict(), {}
    for name in whole:
        changed = name.replace("LayerNorm.weight", f"LayerNorm.{weight}").replace(
            "LayerNorm.bias", f"LayerNorm.{bias}"
        )
        names[name] = before + changed

    def renamed(folder):
        tensors = {names[name]: tensor for name, tensor in whole.items()}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    folder = copied(bert_folder, tmp_path / "folder", renamed)
    assert load_file(folder / "model.safetensors").keys() == set(names.values())
    read = load_backbone(str(folder)).model.state_dict()
    assert all(torch.equal(read[name], tensor) for name, tensor in whole.items())


def facts(tokenizer):
    """What is read of a tokenizer, its definition to the letter."""
    pieces = PieceTokenizer(tokenizer, "it")
    return {
        name: value for name, value in vars(pieces).items() if name != "_tokenizer"
    }, pieces.encode(TEXTS)


def test_the_shipped_tokenizer_is_the_one_that_transformers_makes():
    folder = SHIPPED_BACKBONES["mini-bert"]
    assert facts(read_wordpiece(folder)) == facts(AutoTokenizer.from_pretrained(folder))


def test_fast_products_are_torchs_and_learn_as_before(monkeypatch):
    if not torch._C._has_mkldnn:
        pytest.skip("torch is built without oneDNN")
    monkeypatch.setattr(kernels, "prefers_onednn", lambda: True)
    plain = torch.nn.Linear(24, 16)
    fast = torch.nn.Sequential(copy.deepcopy(plain))
    kernels.install_fast_products(fast)
    for states in (torch.randn(3, 5, 24), torch.randn(3, 5, 24)[:, 0], torch.randn(0, 24)):
        with torch.inference_mode():
            torch.testing.assert_close(fast(states), plain(states))
    fast(states).sum().backward()
    assert fast[0].weight.grad is not None and fast.state_dict().keys() == {"0.weight", "0.bias"}


def test_a_compiler_chooses_the_products_of_a_model_itself(monkeypatch):
    if not torch._C._has_mkldnn:
        pytest.skip("torch is built without oneDNN")
    monkeypatch.setattr(kernels, "prefers_onednn", lambda: True)
    fast = torch.nn.Sequential(torch.nn.Linear(24, 16))
    kernels.install_fast_products(fast)
    compiled = torch.compile(fast, backend="eager", fullgraph=True)
    states = torch.randn(3, 24)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(states), fast(states))
    torch.testing.assert_close(compiled(states), fast(states))
