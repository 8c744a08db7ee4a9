"""LoRA: gradients by the chain rule, adapters merged as peft computes them, PromptEOL's training,
what is refused.
"""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM

from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.lora import ALPHA, merge_lora
from promptcli.backbones.model_folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from promptcli.backbones.states import Batch, Needs
from promptcli.encoder.encoder import TorchEncoder, build_encoder
from promptcli.errors import PromptcliError
from promptcli.recipe import RECIPES
from promptcli.training.objectives.contrastive import Similarity, contrastive_loss
from tests import training_steps
from tests.comparing import gap, refusal
from tests.tiny import SENTENCES

LORA = {"lora_rank": 3, "lora_alpha": 6, "lora_dropout": 0.0, "dropout": 0.0}
TRIPLETS = [SENTENCES[:4], SENTENCES[1:5], SENTENCES[2:6]]


def learner_of(folder, *, supervised=True, **changes):
    return training_steps.learner_of(
        "prompteol", folder, supervised, **{"batch_size": 4, **LORA, **changes}
    )


def randomise(learner):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in learner.trainable().values():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 10)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_adapters_gradient_is_the_chain_rules(family, tiny_folder):
    learner = learner_of(tiny_folder(family))
    randomise(learner)
    learner.train()
    first, second, hard = training_steps.views_of(learner, TRIPLETS)
    contrastive_loss(first, torch.cat([second, hard]), Similarity(0.05)).backward()
    backbone = load_backbone(str(tiny_folder(family)))
    backbone.tune({name.removeprefix("backbone."): one for name, one in learner.tensors().items()})
    backbone.model.requires_grad_(True)
    rows = [learner.template_encoders[0].inputs(column).ids for column in TRIPLETS]
    states = [
        backbone.model(input_ids=torch.tensor([row])).last_hidden_state[0, -1]
        for column in rows
        for row in column
    ]
    first, second, hard = torch.stack(states).split(4)
    contrastive_loss(first, torch.cat([second, hard]), Similarity(0.05)).backward()
    gradients = {name: parameter.grad for name, parameter in backbone.model.named_parameters()}
    found = learner.trainable()
    maps = [
        name
        for name, weight in backbone.model.named_parameters()
        if weight.dim() == 2 and "emb" not in name
    ]
    assert len(found) == 2 * sum("mlp" in name or "attn" in name for name in maps)
    for name, parameter in found.items():
        module, _, part = name.removeprefix("backbone.").partition(".lora_")
        gradient = gradients[f"{module}.weight"]
        # (out, in); GPT-2's are stored the other way
        gradient = gradient.T if family == "gpt2" else gradient
        other = found[
            f"backbone.{module}.lora_{'B' if part[0] == 'A' else 'A'}.default.weight"
        ].detach()
        expected = 6 / 3 * (other.T @ gradient if part[0] == "A" else gradient @ other.T)
        assert gap(parameter.grad, expected) < 1e-5 * expected.abs().max() + 1e-7, name


def test_only_the_adapter_is_learned_and_it_starts_as_nothing(tiny_folder):
    learner = learner_of(tiny_folder("qwen2"))
    assert all(".lora_" in name for name in learner.trainable())
    assert set(learner.tensors()) == {*learner.trainable(), f"backbone.{ALPHA}"}
    learner.eval()
    plain = build_encoder(RECIPES["prompteol"], backbone=load_backbone(str(tiny_folder("qwen2"))))
    assert np.array_equal(learner.as_encoder().encode(SENTENCES), plain.encode(SENTENCES))
    twice = [learner_of(tiny_folder("qwen2")).tensors() for _ in range(2)]
    assert all(torch.equal(one, twice[1][name]) for name, one in twice[0].items())


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_what_was_trained_is_what_is_stored(family, tiny_folder):
    learner = learner_of(tiny_folder(family))
    randomise(learner)
    learner.eval()
    encoder = learner.as_encoder()
    stored = build_encoder(encoder.recipe, tensors=learner.tensors(), device="cpu", dtype="float32")
    got, wanted = stored.encode(SENTENCES), encoder.encode(SENTENCES)
    assert gap(got, wanted) < 1e-5 * np.abs(wanted).max()
    plain = build_encoder(encoder.recipe, backbone=load_backbone(str(tiny_folder(family))))
    assert gap(wanted, plain.encode(SENTENCES)) > 1e-3
    assert (
        encoder.recipe == RECIPES["prompteol"].replace(backbone=encoder.recipe.backbone).resolve()
    )


@pytest.fixture(scope="module")
def adapter(tiny_folder, tmp_path_factory):
    """Return a function: family -> folder of an adapter as peft saves it, and peft's own model."""
    peft = pytest.importorskip("peft")
    made = {}

    def save(family):
        if family not in made:
            model = AutoModelForCausalLM.from_pretrained(tiny_folder(family))
            config = peft.LoraConfig(
                r=2, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"
            )
            torch.manual_seed(0)
            model = peft.get_peft_model(model, config).eval()
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.data.normal_(0, 0.1)
            folder = tmp_path_factory.mktemp(f"{family}-adapter")
            model.save_pretrained(folder)
            shutil.copytree(tiny_folder(family), folder / "base")
            config = json.loads((folder / ADAPTER_CONFIG).read_text())
            # elsewhere, which is refused
            assert config["base_model_name_or_path"] == str(tiny_folder(family))
            (folder / ADAPTER_CONFIG).write_text(
                json.dumps({**config, "base_model_name_or_path": "base"})
            )
            made[family] = (folder, model)
        return made[family]

    return save


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_an_adapter_written_by_peft_is_a_backbone(family, adapter, tiny_folder):
    folder, model = adapter(family)
    backbone = load_backbone(str(folder))
    assert backbone.name == str(folder)
    row = TorchEncoder(RECIPES["prompteol"], backbone, {}).inputs(SENTENCES[:1]).ids[0]
    batch = Batch(torch.tensor([row]), torch.tensor([len(row)]))
    with torch.no_grad():
        ours = backbone.run(batch, Needs(layers=frozenset({backbone.n_layers}))).layers[
            backbone.n_layers
        ]
        theirs = model(input_ids=batch.ids, output_hidden_states=True).hidden_states[-1]
        base = AutoModel.from_pretrained(tiny_folder(family))(input_ids=batch.ids).last_hidden_state
    assert gap(ours, theirs) < 1e-5 * theirs.abs().max()
    assert gap(ours, base) > 1e-3
    plain = load_backbone(str(tiny_folder(family)))
    assert backbone.provenance.weights_sha256 != plain.provenance.weights_sha256


@pytest.mark.parametrize(
    ("change", "weights", "message"),
    [
        ({"use_dora": True}, None, "not a plain LoRA .use_dora"),
        ({"peft_type": "IA3"}, None, "not a plain LoRA .peft_type"),
        ({"lora_alpha": "much"}, None, r"adapter_config\.json: .*lora_alpha"),
        ({"lora_alpha": None}, None, "has no lora_alpha"),
        ({"base_model_name_or_path": None}, None, "names no base model"),
        ({"base_model_name_or_path": 1}, None, r"adapter_config\.json: .*base_model_name_or_path"),
        ({"base_model_name_or_path": "./nowhere"}, None, "no backbone folder './nowhere'"),
        ({"base_model_name_or_path": "/private/model"}, None, "a folder outside the adapter's"),
        ({"base_model_name_or_path": "../private"}, None, "a folder outside the adapter's"),
        ({"base_model_name_or_path": "here"}, None, "a folder outside the adapter's"),
        ({"base_model_name_or_path": "."}, None, "a folder outside the adapter's"),
        ({"base_model_name_or_path": "linked"}, None, "a folder outside the adapter's"),
        ({"base_model_name_or_path": "adapter"}, None, "an adapter itself"),
        ({"base_model_name_or_path": "gpt2"}, None, "which this backbone lacks"),
        ({}, b"{}", "is damaged"),
        ({}, b"", "pickles are not read"),
    ],
)
def test_adapters_that_cannot_be_added(
    change, weights, message, adapter, tiny_folder, tmp_path, monkeypatch
):
    folder, _ = adapter("llama")
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(tiny_folder("llama"), elsewhere / "here")
    monkeypatch.chdir(elsewhere)
    tmp_path = tmp_path / "tried"
    shutil.copytree(tiny_folder("gpt2"), tmp_path / "gpt2")
    shutil.copytree(tiny_folder("llama"), tmp_path / "base")
    shutil.copytree(folder, tmp_path / "adapter")
    (tmp_path / "linked").symlink_to(elsewhere / "here")
    (tmp_path / ADAPTER_CONFIG).write_text(
        json.dumps({**json.loads((folder / ADAPTER_CONFIG).read_text()), **change})
    )
    (tmp_path / ("adapter_model.bin" if weights == b"" else ADAPTER_WEIGHTS)).write_bytes(
        (folder / ADAPTER_WEIGHTS).read_bytes() if weights is None else weights
    )
    with refusal(message, PromptcliError):
        load_backbone(str(tmp_path))


def test_an_adapter_of_other_shapes():
    model = torch.nn.ModuleDict({"one": torch.nn.Linear(3, 3)})
    tensors = {
        "one.lora_A.default.weight": torch.zeros(2, 4),
        "one.lora_B.default.weight": torch.zeros(3, 2),
    }
    with refusal(r"changes one of shape \(3, 4\), this backbone has \(3, 3\)"):
        merge_lora("the adapter", model, {**tensors, ALPHA: torch.tensor(1.0)})


def test_an_adapter_that_cannot_be_trained_is_refused(tiny_folder, monkeypatch):
    peft = pytest.importorskip("peft")

    def refuse(*_):
        raise ValueError("Please specify `target_modules`\nand more")

    with refusal("last-token", PromptcliError):
        learner_of(tiny_folder("bert"))
    monkeypatch.setattr(peft, "inject_adapter_in_model", refuse)
    with refusal(r"peft has no LoRA for family 'llama': Please specify `target_modules`$"):
        learner_of(tiny_folder("llama"))
    monkeypatch.setitem(sys.modules, "peft", None)
    with refusal(r"pip install '\.\[peft\]'"):
        learner_of(tiny_folder("llama"))
