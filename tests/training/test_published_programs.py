"""What ```paper``` does as the published programs do, where our own presets do otherwise.

What a device needs.
"""

import dataclasses

import pytest
import torch
from torch import nn

import promptcli as pc
from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.states import Batch
from promptcli.storage.runs import RunProgress, load_state, save_state
from promptcli.training import training_settings
from promptcli.training.methods import METHODS, find_method
from promptcli.training.methods.method import TrainingSettings
from promptcli.training.objectives.contrastive import Similarity, negative_view_loss
from promptcli.training.step import OPTIMIZERS
from promptcli.training.trainable_encoder import mask_tokens
from promptcli.training.trainer import DevScore, draw_batches, has_stalled, learning_rate
from tests.comparing import refusal
from tests.tiny import SENTENCES
from tests.training_steps import configured_method, learner_of


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("paper", [True, False])
def test_a_dry_run_reads_no_weights_and_no_network(monkeypatch, name, paper):
    def loaded(*arguments, **options):
        raise AssertionError("a dry run loads nothing")

    monkeypatch.setattr("promptcli.backbones.by_name._open", loaded)
    for form in METHODS[name]:
        if form is None:
            continue
        given = {"paper": paper, "supervised": form is METHODS[name][1]}
        if paper and not form.paper:
            with refusal(f"{name} has no published settings"):
                training_settings(name, **given)
        else:
            assert (training_settings(name, **given)["backbone"] in form.paper) is paper


def test_a_method_may_be_published_on_any_backbone(monkeypatch, tiny_folder):
    simcse, folder = METHODS["simcse"][0], str(tiny_folder("electra"))
    monkeypatch.setitem(
        METHODS,
        "mine",
        (dataclasses.replace(simcse, name="mine", paper={folder: simcse.mini_bert_settings}), None),
    )
    shown = training_settings("mine", paper=True)
    assert (shown["backbone"], shown["pooling"]) == (folder, "last/cls")


def test_the_learning_rate_rises_and_falls_as_published():
    settings = TrainingSettings(learning_rate=1.0, warmup=0.1)
    rates = [learning_rate(settings, step, 20, 1.0) for step in range(20)]
    assert rates == pytest.approx([0.0, 0.5, *((20 - step) / 18 for step in range(2, 20))])
    assert learning_rate(settings.replace(warmup=0.0), 5, 20, 1.0) == 0.75
    in_steps = settings.replace(warmup_steps=4)
    assert [learning_rate(in_steps, step, 12, 1.0) for step in (0, 2, 4, 8)] == [0, 0.5, 1, 0.5]
    # a run that ends while it rises
    assert learning_rate(settings.replace(warmup_steps=50), 3, 12, 1.0) < 1
    constant = find_method("denosent", supervised=False).published("bert-base-uncased")
    assert [
        learning_rate(constant, step, 5000, constant.learning_rate) for step in (0, 250, 500, 4999)
    ] == [0, 2e-5, 4e-5, 4e-5]


@pytest.mark.parametrize("count", [8, 10])
def test_an_epochs_short_batch_may_be_left_out(count):
    settings = (
        find_method("cotbert", supervised=False)
        .published("bert-base-uncased")
        .replace(batch_size=4)
    )
    assert settings.total_steps(count) == count // 4
    made = draw_batches(settings, [count])
    assert [len(next(made)) for _ in range(5)] == [4] * 5


def test_negatives_within_groups_are_those_of_each_replica(bert_folder):
    learner = learner_of("cotbert", bert_folder, negatives_within=3, mask_duplicates=False)
    generator = torch.Generator().manual_seed(0)
    views = [torch.randn(7, 8, generator=generator) for _ in range(3)]
    columns = [[str(number) for number in range(7)]]
    groups = [
        negative_view_loss(*(view[first : first + 3] for view in views), Similarity(0.05))
        for first in (0, 3, 6)
    ]
    assert float(learner.objective.loss(views, columns)) == pytest.approx(
        float(torch.stack(groups).mean()), rel=1e-6
    )


@pytest.mark.parametrize("name", ["promptbert", "cotbert"])
def test_roberta_has_no_blank_before_the_sentence_in_training_alone(name):
    method = find_method(name, supervised=False)
    reading = configured_method(method, "roberta")
    published = dataclasses.replace(reading, settings=method.published("roberta-base"))
    recipe = published.recipe
    selecting = published.development_recipe
    assert "' [X] '" in recipe.prompt and "'[X] '" in selecting.prompt and selecting.period is False
    assert all("'[X] '" in prompt for prompt in published.prompts(training=True))
    assert reading.prompts(training=True) == reading.prompts()
    if name == "promptbert":
        assert selecting.denoise == "hidden:code"
        plain = dataclasses.replace(published, settings=published.settings.replace(denoising=False))
        assert plain.development_recipe.denoise == "none"


def test_unknown_tokens_are_never_masked(bert_folder):
    backbone = load_backbone(str(bert_folder))
    tokens = backbone.tokenizer
    ids = torch.full((4, 400), tokens.unk)
    ids[:, ::2] = max(tokens.specials) + 1
    torch.manual_seed(0)
    changed, chosen = mask_tokens(Batch(ids, torch.full((4,), 400)), tokens, 60)
    assert chosen.any()
    assert not chosen[ids == tokens.unk].any()
    assert (changed[ids == tokens.unk] == tokens.unk).all()


@pytest.mark.parametrize(("scored", "steps"), [("also-ends", [0, 3, 5]), ("multiples", [3])])
def test_scores_are_taken_at_the_published_steps(bert_folder, scored, steps):
    options = {"batch_size": 4, "epochs": 1.67, "eval_steps": 3, "on": "demo:dev", "scored": scored}
    trained = pc.train("simcse", SENTENCES[:10], backbone=str(bert_folder), **options)
    assert [score.step for score in trained.curve] == steps


def test_a_run_may_end_early():
    made = [
        DevScore(step, None, 1.0, best, 0.0, None)
        for step, best in enumerate([True, True, False, False])
    ]
    assert [has_stalled(made, patience) for patience in (0, 2, 3)] == [False, True, False]
    assert not has_stalled(made[:2], 2)


def test_biases_and_norms_do_not_decay_in_the_older_optimiser():
    named = {
        name: nn.Parameter(torch.ones(3)) for name in ("a.weight", "a.bias", "b.LayerNorm.weight")
    }
    optimizer = OPTIMIZERS["adamw-uncorrected"](named, 0.1, 0.5)
    for parameter in named.values():
        parameter.grad = torch.full((3,), 2.0)
    optimizer.step()
    moved = 0.1 * (0.1 * 2) / ((0.001 * 4) ** 0.5 + 1e-6)  # no bias correction
    assert named["a.bias"].detach().tolist() == pytest.approx([1 - moved] * 3)
    assert named["b.LayerNorm.weight"].detach().tolist() == pytest.approx([1 - moved] * 3)
    assert named["a.weight"].detach().tolist() == pytest.approx([(1 - moved) * (1 - 0.1 * 0.5)] * 3)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
@pytest.mark.parametrize(("fused", "where"), [(True, "meta"), (False, "cpu")])
def test_a_resumed_fused_optimiser_counts_its_steps_where_the_parameter_is(
    tmp_path, name, fused, where
):
    named = {"w": nn.Parameter(torch.ones(3))}
    optimizer = OPTIMIZERS[name](named, 0.1, 0.0)
    named["w"].grad = torch.ones(3)
    optimizer.step()
    save_state(tmp_path / "state", named, optimizer, RunProgress(1, 4, 0.5))
    elsewhere = {"w": nn.Parameter(torch.ones(3, device="meta"))}
    other = OPTIMIZERS["adamw-4.2.1"](elsewhere, 0.1, 0.0)
    other.param_groups[0]["fused"] = fused
    assert load_state(tmp_path / "state", elsewhere, other) == RunProgress(1, 4, 0.5)
    state = other.state[elsewhere["w"]]
    assert state.pop("step").device.type == where
    assert {tensor.device.type for tensor in state.values()} == {"meta"}
