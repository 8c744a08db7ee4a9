"""Training: objectives, prefixes, soft templates against plain loops and peft.

Runs that end where they should.
"""

import itertools
import math

import numpy as np
import pytest
import torch

from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.states import Batch, Needs
from promptcli.encoder.components import BuildContext
from promptcli.encoder.encoder import TorchEncoder, build_encoder
from promptcli.encoder.prompts import deep_prefix, initial_tensors, soft_template
from promptcli.grammar import parse_prompt
from promptcli.recipe import Recipe
from promptcli.training.methods import METHODS
from promptcli.training.objectives.contrastive import Similarity, contrastive_loss
from promptcli.training.trainer import draw_batches, source_shares
from tests.comparing import gap, refusal
from tests.tiny import SENTENCES
from tests.training_steps import FORMS, family_for, learner_of, views_of

SEAMED = ["bert", "roberta", "electra", "albert", "distilbert", "modernbert", "mpnet"]
CONTRASTIVE = [
    (name, supervised)
    for name, supervised in FORMS
    if METHODS[name][supervised].objective == "contrastive"
]


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "opt", "llama", "qwen2"])
def test_a_deep_prefix_equals_pefts_prefix_tuning(family, tiny_folder):
    peft = pytest.importorskip("peft")
    from transformers import AutoModel

    folder = tiny_folder(family)
    backbone = load_backbone(str(folder))
    shape = deep_prefix.prefix_shape(BuildContext(parse_prompt("deep-prefix:4"), backbone, {}))
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    recipe = Recipe(str(folder), prompt="deep-prefix:4", pooling="last/avg")
    encoder = TorchEncoder(recipe, backbone, {deep_prefix.TENSOR: numbers})
    rows = encoder.inputs(SENTENCES[:4]).ids
    longest = max(map(len, rows))
    options = {} if backbone.causal else {"add_pooling_layer": False}
    plain = AutoModel.from_pretrained(folder, attn_implementation="eager", **options)
    config = peft.PrefixTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=4)
    theirs = peft.get_peft_model(plain, config).eval()
    layers, _, heads, length, width = shape
    with torch.no_grad():
        flat = numbers.permute(3, 0, 1, 2, 4).reshape(length, layers * 2 * heads * width)
        theirs.prompt_encoder["default"].embedding.weight.copy_(flat)
    ids = torch.full((4, longest), backbone.tokenizer.pad)
    for line, row in zip(ids, rows, strict=True):
        line[: len(row)] = torch.tensor(row)
    real = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    batch = Batch(ids, torch.tensor([len(row) for row in rows]))
    needs = Needs(layers=frozenset({backbone.n_layers}))
    with torch.no_grad():
        ours = backbone.run(encoder.prompt.attach(batch), needs).layers[backbone.n_layers]
        expected = theirs(input_ids=ids, attention_mask=real).last_hidden_state
    difference = (ours - expected).abs() * real.unsqueeze(-1)
    assert difference.max() < 1e-5


@pytest.mark.parametrize("family", SEAMED)
def test_a_deep_prefix_moves_every_family_alike_in_any_batch(family, tiny_folder):
    backbone = load_backbone(str(tiny_folder(family)))
    shape = deep_prefix.prefix_shape(BuildContext(parse_prompt("deep-prefix:5"), backbone, {}))
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    recipe = Recipe(str(tiny_folder(family)), prompt="deep-prefix:5", pooling="last/cls")
    encoder = TorchEncoder(recipe, backbone, {deep_prefix.TENSOR: numbers})
    whole = encoder.encode(SENTENCES)
    alone = np.concatenate([encoder.encode([sentence]) for sentence in SENTENCES])
    assert gap(whole, alone) < 1e-5 * np.abs(whole).max()
    average = TorchEncoder(
        recipe.replace(pooling="last/avg"), backbone, {deep_prefix.TENSOR: numbers}
    )
    assert np.isfinite(average.encode(SENTENCES)).all()
    plain = TorchEncoder(recipe.replace(prompt="[X]"), backbone, {}).encode(SENTENCES)
    assert gap(whole, plain) > 1e-3
    assert encoder.max_length == backbone.max_tokens - 5


@pytest.mark.parametrize(
    ("layers", "width", "length", "count"),
    [(12, 768, 16, 294_912), (24, 1024, 10, 491_520), (12, 768, 14, 258_048)],
)
def test_a_prefix_has_as_many_numbers_as_the_paper_says(
    layers, width, length, count, tiny_backbone, monkeypatch
):
    backbone = tiny_backbone("bert")
    backbone.require_hook("the test")  # looked at once, before the shape is another's
    shape = {
        "n_layers": layers,
        "width": width,
        "n_key_heads": width // 64,
        "head_width": 64,
        "max_tokens": 512,
    }
    for name, value in shape.items():
        monkeypatch.setattr(backbone, name, value)
    assert (
        math.prod(
            deep_prefix.prefix_shape(
                BuildContext(parse_prompt(f"deep-prefix:{length}"), backbone, {})
            )
        )
        == count
    )


@pytest.mark.parametrize("family", ["bert", "roberta", "electra"])
def test_an_unlearned_soft_template_is_its_template(family, tiny_folder):
    backbone = load_backbone(str(tiny_folder(family)))
    text = 'This sentence : "[X]" means [MASK] .'
    hard = TorchEncoder(Recipe(backbone.name, prompt=text, pooling="last/mask"), backbone, {})
    start = initial_tensors(parse_prompt(f"soft-template:{text}"), backbone, torch.Generator())[
        soft_template.TENSOR
    ]
    recipe = Recipe(backbone.name, prompt=f"soft-template:{text}", pooling="last/mask")
    soft = TorchEncoder(recipe, backbone, {soft_template.TENSOR: start})
    assert soft.recipe.period
    expected = hard.encode(SENTENCES)
    assert gap(soft.encode(SENTENCES), expected) < 1e-5 * np.abs(expected).max()
    noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(0))
    for slot in range(len(start)):  # every vector is live
        moved = start.clone()
        moved[slot] += noise[slot]
        other = TorchEncoder(recipe, backbone, {soft_template.TENSOR: moved}).encode(SENTENCES)
        assert gap(other, soft.encode(SENTENCES)) > 1e-4


#: Parameters that no sentence reaches, or that cancel: keys' biases in the softmax, last ones in h
#: - h_hat.
IDLE = (
    "LayerNorm.bias",
    "pooler",
    "position_embeddings",
    "token_type",
    "word_embeddings",
    "key.bias",
)
IDLE += ("lora_A",)  # as long as B is 0


@pytest.mark.parametrize(("name", "supervised"), CONTRASTIVE)
def test_the_views_differ_and_only_what_learns_moves(name, supervised, tiny_folder):
    learner = learner_of(
        name, tiny_folder(family_for(name)), supervised, learning_rate=1e-2
    ).train()
    columns = [SENTENCES[:4]] if not supervised else [SENTENCES[:4], SENTENCES[1:5], SENTENCES[2:6]]
    views = views_of(learner, columns)
    assert len(views) == (3 if supervised else 2)
    assert gap(views[0], views[1]) > 1e-4  # dropout, or the other sentence
    loss = contrastive_loss(views[0], torch.cat(views[1:]), Similarity(0.05))
    loss.backward()
    trainable = learner.trainable()
    learning = [
        parameter.grad
        for name, parameter in trainable.items()
        if not any(part in name for part in IDLE)
    ]
    assert all(grad is not None and grad.abs().max() > 0 for grad in learning)
    frozen = [
        parameter for parameter in learner.backbone.model.parameters() if parameter.requires_grad
    ]
    assert bool(frozen) is bool({"backbone", "adapter"} & set(learner.method.learns))
    assert learner.backbone.model.training


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_denoised_views_are_h_less_h_hat(family, tiny_folder):
    learner = learner_of("promptbert", tiny_folder(family), dropout=0.0).eval()
    backbone = learner.backbone
    first, second = learner.configured.variant.templates
    for view, got in zip((first, second), views_of(learner, [SENTENCES[:4]]), strict=True):
        recipe = Recipe(
            backbone.name, prompt=view, pooling="last/mask", denoise="hidden", period=False
        )
        hidden = torch.from_numpy(TorchEncoder(recipe, backbone, {}).encode(SENTENCES[:4]))
        assert gap(learner.head(hidden), got) < 1e-5


def test_supervised_promptbert_subtracts_behind_the_head(bert_folder):
    learner = learner_of("promptbert", bert_folder, True, dropout=0.0).eval()
    views = views_of(learner, [SENTENCES[:4], SENTENCES[1:5], SENTENCES[2:6]])
    assert learner.configured.recipe.denoise == "head"
    encoder = learner.as_encoder()
    expected = TorchEncoder(
        encoder.recipe.replace(period=False), learner.backbone, encoder.tensors()
    ).encode(SENTENCES[:4])
    assert gap(views[0].detach().numpy(), expected) < 1e-5


@pytest.mark.parametrize("name", ["promptbert", "simcse", "dcpcse"])
def test_a_head_that_is_not_kept_learns_and_is_no_part_of_the_encoder(name, bert_folder):
    kept, dropped = (learner_of(name, bert_folder, True, keep_head=keep) for keep in (True, False))
    assert dropped.trainable().keys() == kept.trainable().keys()
    (head,) = kept.as_encoder().recipe.transforms
    assert head.startswith("projection:") and any(
        key.startswith("projection.") for key in kept.tensors()
    )
    encoder = dropped.as_encoder()
    assert encoder.recipe == kept.as_encoder().recipe.replace(transforms=(), denoise="none")
    assert not [key for key in dropped.tensors() if key.startswith("projection.")]


def test_batches_are_every_example_once_an_epoch():
    settings = METHODS["simcse"][0].mini_bert_settings.replace(batch_size=4, epochs=2.5, seed=3)
    stream = draw_batches(settings, [10])
    first, second = ([next(stream).tolist() for _ in range(3)] for _ in range(2))
    flat = [sorted(itertools.chain.from_iterable(epoch)) for epoch in (first, second)]
    assert flat == [list(range(10))] * 2
    assert first != second
    assert [len(batch) for batch in first] == [4, 4, 2]
    assert first == [rows.tolist() for rows in itertools.islice(draw_batches(settings, [4, 6]), 3)]
    assert settings.total_steps(10) == 8
    too_few = "batch_size: 3 examples are fewer than one batch of 4"
    with refusal(too_few):
        settings.total_steps(3)
    with refusal("1 example are fewer than one batch of 4"):
        settings.total_steps(1)
    assert settings.replace(drop_last=True).total_steps(10) == 5


@pytest.mark.parametrize(("temperature", "shares"), [(1, [90, 10]), (2, [75, 25]), (1e6, [50, 50])])
def test_sources_have_shares_by_temperature(temperature, shares):
    settings = METHODS["simcse"][0].mini_bert_settings.replace(
        batch_size=8, data_temperature=temperature
    )
    assert source_shares([90, 10], temperature) == shares
    stream = draw_batches(settings, [90, 10])
    for _ in range(3):
        epoch = [next(stream).tolist() for _ in range(13)]
        assert list(map(len, epoch)) == [8] * 12 + [4]
        smaller = sum(row >= 90 for batch in epoch for row in batch)
        assert [100 - smaller, smaller] == shares
        seen = [sum(row == other for batch in epoch for row in batch) for other in range(90, 100)]
        assert max(seen) - min(seen) <= 1  # the smaller source is gone through evenly
    if temperature == 1:
        assert sorted(itertools.chain(*epoch)) == list(range(100))


def test_what_a_source_does_not_give_to_an_epoch_comes_in_the_next():
    settings = METHODS["simcse"][0].mini_bert_settings.replace(batch_size=10, data_temperature=1e6)
    stream = draw_batches(settings, [60, 20])  # shares of 40
    counts = np.bincount(np.concatenate([next(stream) for _ in range(24)]))
    assert counts.tolist() == [2] * 60 + [6] * 20


@pytest.mark.parametrize(
    "learned", ["deep-prefix:4", "soft-template:[X] is [MASK]", "projection:tanh"]
)
def test_what_is_learned_needs_its_numbers(learned, tiny_backbone):
    recipe = (
        Recipe("x", transforms=(learned,))
        if learned.startswith("proj")
        else Recipe("x", prompt=learned)
    )
    with refusal("train it first"):
        build_encoder(recipe, backbone=tiny_backbone("bert"))
