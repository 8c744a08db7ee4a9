"""Training: objectives, prefixes, soft templates against plain loops and peft; runs that end where they should."""

import itertools
import json
import math
import os

import numpy as np
import pytest
import torch

from promptcli.backbones.loading import load_backbone
from promptcli.backbones.states import Batch, Needs
from promptcli.data.training_examples import read_examples
from promptcli.encoder.context import BuildContext
from promptcli.encoder.encoder import Encoder, build_encoder
from promptcli.encoder.prompts import deep_prefix, soft_template, start_numbers
from promptcli.errors import UsageError
from promptcli.models.registry import Registry, home
from promptcli.recipe import RECIPES, Recipe
from promptcli.training.methods import METHODS
from promptcli.training.objectives.contrastive import contrastive_loss
from promptcli.training.run import batch_lengths, batches, source_shares, steps_of
from tests.learning import learner_of
from tests.processes import Program
from tests.reference.losses import cosine
from tests.tiny import SENTENCES

SEAMED = ["bert", "roberta", "electra", "albert", "distilbert", "modernbert"]
CONTRASTIVE = [
    (name, supervised)
    for name, pair in METHODS.items()
    for supervised in (False, True)
    if pair[supervised] and pair[supervised].objective == "contrastive"
]
FAMILY = {name: "llama" if name == "prompteol" else "bert" for name in METHODS}


@pytest.mark.parametrize("hard", [False, True])
def test_the_contrastive_loss_is_the_papers(hard):
    generator = torch.Generator().manual_seed(0)
    first, second, third = (torch.randn(5, 7, generator=generator) for _ in range(3))
    expected = 0.0
    for i in range(5):
        others = [*second.tolist(), *(third.tolist() if hard else [])]
        scores = [math.exp(cosine(first[i].tolist(), other) / 0.05) for other in others]
        expected -= math.log(scores[i] / sum(scores)) / 5
    got = contrastive_loss(first, second, third if hard else None, temperature=0.05)
    assert float(got) == pytest.approx(expected, rel=1e-5)


def test_equal_sentences_may_be_kept_from_being_negatives():
    first, second = torch.randn(3, 4), torch.randn(3, 4)
    same = torch.zeros(3, 3, dtype=torch.bool)
    same[0, 2] = True
    expected = 0.0
    for i in range(3):
        scores = [math.exp(cosine(first[i].tolist(), second[j].tolist()) / 0.05) for j in range(3)]
        expected -= math.log(scores[i] / sum(score for j, score in enumerate(scores) if not same[i, j])) / 3
    assert float(contrastive_loss(first, second, same=same)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "opt", "llama", "qwen2"])
def test_a_deep_prefix_equals_pefts_prefix_tuning(family, tiny_folder):
    peft = pytest.importorskip("peft")
    from transformers import AutoModel

    folder = tiny_folder(family)
    backbone = load_backbone(str(folder))
    shape = deep_prefix.prefix_shape(BuildContext("4", backbone, {}))
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    encoder = Encoder(
        Recipe(str(folder), prompt="deep-prefix:4", pooling="last/avg"), backbone, {deep_prefix.TENSOR: numbers}
    )
    rows = encoder.inputs(SENTENCES[:4]).rows
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
        ours = encoder.run(batch, needs).layers[backbone.n_layers]
        expected = theirs(input_ids=ids, attention_mask=real).last_hidden_state
    difference = (ours - expected).abs() * real.unsqueeze(-1)
    assert difference.max() < 1e-5


@pytest.mark.parametrize("family", SEAMED)
def test_a_deep_prefix_moves_every_family_alike_in_any_batch(family, tiny_folder):
    backbone = load_backbone(str(tiny_folder(family)))
    numbers = torch.randn(
        deep_prefix.prefix_shape(BuildContext("5", backbone, {})), generator=torch.Generator().manual_seed(0)
    )
    recipe = Recipe(str(tiny_folder(family)), prompt="deep-prefix:5", pooling="last/cls")
    encoder = Encoder(recipe, backbone, {deep_prefix.TENSOR: numbers})
    whole = encoder.encode(SENTENCES)
    alone = np.concatenate([encoder.encode([sentence]) for sentence in SENTENCES])
    assert np.abs(whole - alone).max() < 1e-5 * np.abs(whole).max()
    average = Encoder(recipe.replace(pooling="last/avg"), backbone, {deep_prefix.TENSOR: numbers})
    assert np.isfinite(average.encode(SENTENCES)).all()
    plain = Encoder(recipe.replace(prompt="[X]"), backbone, {}).encode(SENTENCES)
    assert np.abs(whole - plain).max() > 1e-3
    assert encoder.max_length == backbone.max_tokens - 5


@pytest.mark.parametrize(
    ("layers", "width", "length", "count"), [(12, 768, 16, 294_912), (24, 1024, 10, 491_520), (12, 768, 14, 258_048)]
)
def test_a_prefix_has_as_many_numbers_as_the_paper_says(layers, width, length, count, tiny_backbone, monkeypatch):
    backbone = tiny_backbone("bert")
    backbone.require_seam("the test")  # looked at once, before the shape is another's
    for name, value in {
        "n_layers": layers,
        "width": width,
        "n_key_heads": width // 64,
        "head_width": 64,
        "max_tokens": 512,
    }.items():
        monkeypatch.setattr(backbone, name, value)
    assert math.prod(deep_prefix.prefix_shape(BuildContext(str(length), backbone, {}))) == count


@pytest.mark.parametrize("family", ["bert", "roberta", "electra"])
def test_an_unlearned_soft_template_is_its_template(family, tiny_folder):
    backbone = load_backbone(str(tiny_folder(family)))
    text = 'This sentence : "[X]" means [MASK] .'
    hard = Encoder(Recipe(backbone.name, prompt=text, pooling="last/mask"), backbone, {})
    start = start_numbers(f"soft-template:{text}", backbone, torch.Generator())[soft_template.TENSOR]
    recipe = Recipe(backbone.name, prompt=f"soft-template:{text}", pooling="last/mask")
    soft = Encoder(recipe, backbone, {soft_template.TENSOR: start})
    assert soft.recipe.period
    expected = hard.encode(SENTENCES)
    assert np.abs(soft.encode(SENTENCES) - expected).max() < 1e-5 * np.abs(expected).max()
    noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(0))
    for slot in range(len(start)):  # every vector is live
        moved = start.clone()
        moved[slot] += noise[slot]
        other = Encoder(recipe, backbone, {soft_template.TENSOR: moved}).encode(SENTENCES)
        assert np.abs(other - soft.encode(SENTENCES)).max() > 1e-4


@pytest.mark.parametrize(("name", "supervised"), CONTRASTIVE)
def test_the_views_differ_and_only_what_learns_moves(name, supervised, tiny_folder):
    learner = learner_of(name, tiny_folder(FAMILY[name]), supervised, learning_rate=1e-2).train()
    columns = [SENTENCES[:4]] if not supervised else [SENTENCES[:4], SENTENCES[1:5], SENTENCES[2:6]]
    views = learner(columns)
    assert len(views) == (3 if supervised else 2)
    assert (views[0] - views[1]).abs().max() > 1e-4  # dropout, or the other sentence
    loss = contrastive_loss(*views)
    loss.backward()
    trainable = learner.trainable()
    assert all(
        parameter.grad is not None and parameter.grad.abs().max() > 0
        for parameter_name, parameter in trainable.items()
        if not _idle(parameter_name)
    )
    frozen = [parameter for parameter in learner.backbone.model.parameters() if parameter.requires_grad]
    assert bool(frozen) is bool({"backbone", "adapter"} & set(learner.method.learns))
    assert learner.backbone.model.training


def _idle(name):
    """Parameters that no sentence reaches, or that cancel: keys' biases in the softmax, last ones in h - h_hat."""
    return any(
        part in name
        for part in (
            *("LayerNorm.bias", "pooler", "position_embeddings", "token_type", "word_embeddings", "key.bias"),
            "lora_A",  # as long as B is 0
        )
    )


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_denoised_views_are_h_less_h_hat(family, tiny_folder):
    learner = learner_of("promptbert", tiny_folder(family), dropout=0.0).eval()
    backbone = learner.backbone
    first, second = learner.method.variant(family).views
    for view, got in zip((first, second), learner([SENTENCES[:4]]), strict=True):
        recipe = Recipe(backbone.name, prompt=view, pooling="last/mask", denoise="hidden", period=False)
        hidden = torch.from_numpy(Encoder(recipe, backbone, {}).encode(SENTENCES[:4]))
        assert (learner.head(hidden) - got).abs().max() < 1e-5


def test_supervised_promptbert_subtracts_behind_the_head(tiny_folder):
    learner = learner_of("promptbert", tiny_folder("bert"), True, dropout=0.0).eval()
    views = learner([SENTENCES[:4], SENTENCES[1:5], SENTENCES[2:6]])
    assert learner.method.recipe("x", "bert", learner.settings).denoise == "head"
    encoder = learner.encoder()
    expected = Encoder(encoder.recipe.replace(period=False), learner.backbone, encoder.tensors()).encode(SENTENCES[:4])
    assert np.abs(views[0].detach().numpy() - expected).max() < 1e-5


@pytest.mark.parametrize("name", ["promptbert", "simcse", "dcpcse"])
def test_a_head_that_is_not_kept_learns_and_is_no_part_of_the_encoder(name, tiny_folder):
    kept, dropped = (learner_of(name, tiny_folder("bert"), True, keep_head=keep) for keep in (True, False))
    assert dropped.trainable().keys() == kept.trainable().keys()
    (head,) = kept.encoder().recipe.transforms
    assert head.startswith("projection:") and any(key.startswith("projection.") for key in kept.tensors())
    encoder = dropped.encoder()
    assert (encoder.recipe.transforms, encoder.recipe.denoise) == ((), "none")
    assert not [key for key in dropped.tensors() if key.startswith("projection.")]
    plain = kept.encoder().recipe.replace(transforms=(), denoise="none")
    states = Encoder(plain, dropped.backbone, encoder.tensors()).encode(SENTENCES)
    np.testing.assert_array_equal(encoder.encode(SENTENCES), states)


def test_batches_are_every_example_once_an_epoch():
    settings = METHODS["simcse"][0].small.replace(batch_size=4, epochs=2.5, seed=3)
    stream = batches(settings, [10])
    first, second = ([next(stream).tolist() for _ in range(3)] for _ in range(2))
    flat = [sorted(itertools.chain.from_iterable(epoch)) for epoch in (first, second)]
    assert flat == [list(range(10))] * 2
    assert first != second
    assert [len(batch) for batch in first] == [4, 4, 2]
    assert first == [rows.tolist() for rows in itertools.islice(batches(settings, [4, 6]), 3)]
    assert steps_of(settings, [10]) == 8
    with pytest.raises(UsageError, match="3 examples are less than one batch of 4"):
        steps_of(settings, [2, 1])


@pytest.mark.parametrize("kind", ["mixed", "one-source"])
@pytest.mark.parametrize(("temperature", "shares"), [(1, [90, 10]), (2, [75, 25]), (1e6, [50, 50])])
def test_sources_have_shares_by_temperature(temperature, shares, kind):
    settings = METHODS["simcse"][0].small.replace(batch_size=8, data_temperature=temperature, batches=kind)
    assert source_shares([90, 10], temperature) == shares
    lengths = batch_lengths(settings, [90, 10])
    stream = batches(settings, [90, 10])
    for _ in range(3):
        epoch = [next(stream).tolist() for _ in lengths]
        assert sorted(map(len, epoch)) == sorted(lengths)
        counts = [sum(row < 90 for batch in epoch for row in batch), sum(row >= 90 for batch in epoch for row in batch)]
        assert counts == shares
        alone = all(len({row < 90 for row in batch}) == 1 for batch in epoch)
        assert alone is (kind == "one-source")
        seen = [sum(row == other for batch in epoch for row in batch) for other in range(90, 100)]
        assert max(seen) - min(seen) <= 1  # the smaller source is gone through evenly
    if temperature == 1 and kind == "one-source":
        assert sorted(itertools.chain(*epoch)) == list(range(100))
        assert steps_of(settings.replace(drop_last=True), [90, 10]) == 12


def test_what_a_source_does_not_give_to_an_epoch_comes_in_the_next():
    settings = METHODS["simcse"][0].small.replace(batch_size=10, data_temperature=1e6)
    stream = batches(settings, [60, 20])  # shares of 40
    rows = np.concatenate([next(stream) for _ in range(24)])
    assert np.unique(rows[rows < 60], return_counts=True)[1].tolist() == [2] * 60
    assert np.unique(rows[rows >= 60], return_counts=True)[1].tolist() == [6] * 20


@pytest.mark.parametrize("changes", [{"learning_rate": float("1e400")}, {"epochs": float("inf")}, {"batch_size": -3}])
def test_numbers_out_of_range_are_refused_before_the_work(changes):
    with pytest.raises(UsageError, match=r"is not allowed; valid: (at least 0|above 0|at least 2)"):
        METHODS["simcse"][0].changed(METHODS["simcse"][0].small, changes)


def test_examples_of_every_form(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("one\n\ntwo\n")
    assert read_examples(text).columns == (["one", "two"],)
    triplets = tmp_path / "b.csv"
    triplets.write_text('sent0,sent1,hard_neg\n"a, b",c,d\ne,,f\n')
    assert read_examples(triplets).columns == (["a, b"], ["c"], ["d"])
    pairs = tmp_path / "c.jsonl"
    pairs.write_text('{"sent0": "x", "sent1": "y"}\n')
    assert read_examples(pairs).columns == (["x"], ["y"])
    blank = tmp_path / "d.txt"
    blank.write_text("\n \n")
    with pytest.raises(UsageError, match="no sentence to train on"):
        read_examples(blank)
    ragged = tmp_path / "ragged.csv"
    for rows in ("a,b,c\na,b,c,d\n", "a,b,c,d\n"):
        ragged.write_text("sent0,sent1,hard_neg\n" + rows)
        with pytest.raises(UsageError, match="4 columns, but the header has 3"):
            read_examples(ragged)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"{one} {other}" for one in SENTENCES for other in SENTENCES[:4]))
    return path


@pytest.mark.usefixtures("few_demo_pairs")
@pytest.mark.parametrize(("name", "supervised"), CONTRASTIVE)
def test_a_trained_entry_is_used_like_any_other(name, supervised, run, text, tiny_folder, tmp_path):
    data = text
    if supervised:
        data = tmp_path / "triplets.csv"
        rows = [
            f"{one},{other},{third}" for one, other, third in zip(SENTENCES, SENTENCES[1:], SENTENCES[2:], strict=False)
        ]
        data.write_text("sent0,sent1,hard_neg\n" + "\n".join(row for row in rows if row.count(",") == 2))
    options = ["--backbone", tiny_folder(FAMILY[name]), "--data", data, "--name", "mine"]
    options += ["--batch-size", 4, "--set", "eval-steps=2", "--learning-rate", 0.01, "--offline"]
    options += ["--epochs", 3 if supervised else 0.5]
    options += ["--set", "prefix-length=3"] if name == "dcpcse" else []
    ran = run("train", "--method", name, *options, "--json")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert [row["task"] for row in told["scores"]] == ["demo:dev", "demo"]
    shown = json.loads(run("models", "show", "mine", "--json").out)
    assert shown["provenance"]["trained"]["method"] == name
    again = json.loads(run("eval", "-m", "mine", "--task", "demo", "--json", "--offline").out)["results"][0]
    assert again["value"] == pytest.approx(told["scores"][1]["trained"], abs=0.01)
    again = run("train", "--method", name, *options)
    assert again.code == 2 and "'mine' is there already" in again.err and "`force`" in again.err
    entry = Registry(home(os.environ)).load("mine")
    if name == "dcpcse" and not supervised:
        assert set(entry.tensors) == {deep_prefix.TENSOR}
    plain = {"transforms": (), "denoise": "none"} if (name, supervised) == ("promptbert", True) else None
    assert entry.transfer == (plain and entry.recipe.replace(**plain))


def test_transfer_tasks_may_read_an_encoder_by_another_recipe(run, text, tiny_folder):
    options = ["--backbone", tiny_folder("bert"), "--data", text, "--steps", 1, "--batch-size", 4, "--offline"]
    train = ["train", "promptbert", *options, "--name", "mine", "--set"]
    assert run(*train, "transfer-recipe=first-last-avg").code == 0
    entry = Registry(home(os.environ)).load("mine")
    assert entry.transfer == RECIPES["first-last-avg"].replace(backbone=entry.recipe.backbone).explicit()
    for wrong in ("whitening", "nothing"):  # fitted; unknown
        refused = run(*train, f"transfer-recipe={wrong}", "--name", "other")
        assert (refused.code, wrong in refused.err) == (2, True)
    assert not (home(os.environ) / "runs").exists() or not list((home(os.environ) / "runs").iterdir())


def launch(*arguments, home):
    return Program(*arguments, "--threads", "1", "--offline", environment={"PROMPTCLI_HOME": str(home)})


def test_a_killed_run_ends_at_the_same_numbers(text, tiny_folder, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    pairs = tmp_path / "pairs.tsv"
    rows = [f"{one}\t{other}\t{len(one) % 6}" for one, other in itertools.product(SENTENCES, repeat=2)]
    pairs.write_text("\n".join(["sentence1\tsentence2\tscore", *rows]))
    data = ["--on", pairs, "--backbone", tiny_folder("bert"), "--data", text]
    settings = ["--batch-size", 4, "--set", "eval-steps=2", "--epochs", 3, "--learning-rate", 0.01]
    arguments = ["train", "--method", "dcpcse", *data, *settings, "--json"]
    whole = launch(*arguments, home=tmp_path / "whole")
    killed = launch(*arguments, home=tmp_path / "killed")
    killed.kill_once_there(tmp_path / "killed" / "runs" / "dcpcse" / "state.safetensors")
    assert not (tmp_path / "killed" / "models" / "dcpcse").exists() and not list(scratch.iterdir())
    other = launch(*arguments, "--resume", "--temperature", "0.1", home=tmp_path / "killed")
    assert other.wait() == 2
    assert "was started with temperature 0.05, not 0.1" in other.stderr.read().decode()
    resumed = launch(*arguments, "--resume", home=tmp_path / "killed")
    assert resumed.wait() == 0, resumed.stderr.read()
    assert whole.wait() == 0, whole.stderr.read()
    one, two = json.loads(whole.stdout.read()), json.loads(resumed.stdout.read())
    assert {**one, "seconds": 0} == {**two, "seconds": 0}
    first, second = (Registry(tmp_path / name).load("dcpcse").tensors for name in ("whole", "killed"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_learned_prompts_need_their_numbers(tiny_backbone):
    with pytest.raises(UsageError, match="train it first"):
        build_encoder(Recipe("x", prompt="deep-prefix:4", pooling="last/cls"), backbone=tiny_backbone("bert"))
    with pytest.raises(UsageError, match="train it first"):
        build_encoder(
            Recipe("x", prompt="soft-template:[X] is [MASK]", pooling="last/mask"), backbone=tiny_backbone("bert")
        )
    with pytest.raises(UsageError, match="train it first"):
        build_encoder(Recipe("x", transforms=("projection:tanh",)), backbone=tiny_backbone("bert"))


def test_dry_run_prints_the_published_settings(run):
    ran = run("train", "--method", "promptbert", "--paper", "--dry-run", "--json")
    shown = json.loads(ran.out)
    assert (shown["backbone"], shown["batch_size"], shown["learning_rate"]) == ("bert-base-uncased", 256, 1e-5)
    assert (shown["epochs"], shown["eval_steps"], shown["temperature"], shown["max_length"]) == (1, 125, 0.05, 32)
    assert shown["views"] == ['This sentence of "[X]" means [MASK] .', 'This sentence : "[X]" means [MASK] .']
    ran = run("train", "--method", "dcpcse", "--paper", "--dry-run")
    assert "prefix-length = 16" in ran.out
    assert "learning-rate = 0.03" in ran.out
