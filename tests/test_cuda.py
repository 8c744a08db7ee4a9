"""What runs on a GPU gives what the processor gives, and waits for the device no more often than it
has to.

Runs on a real GPU if the machine has one, else on a pretend device that counts no waits
(``tests/pretend_cuda.py``): ``pytest -m cuda``.
"""

import functools

import numpy as np
import pytest
import torch

import promptcli as pc
from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.devices import choose_device
from promptcli.data.training_data import examples_of
from promptcli.encoder.encoder import build_encoder
from promptcli.plugins.papers.classifier import FAST, classify
from promptcli.recipe import CAUSAL_RECIPES, MASKED_RECIPES, Recipe
from promptcli.training.fitting import fit_recipe
from promptcli.training.step import Processes, TrainingStep
from promptcli.training.trainer import Trainer
from tests import training_steps
from tests.comparing import gap, refusal
from tests.pretend_cuda import RealCuda
from tests.select.pairs import EVERY_PAIR
from tests.tiny import FAMILIES, SENTENCES
from tests.training_steps import gradients

pytestmark = pytest.mark.cuda

CLOSE = 1e-4  # of the largest number; a real GPU sums in another order
MANY = SENTENCES + [f"{one} {other}" for one in SENTENCES for other in SENTENCES[:2]]
PROMPT = MASKED_RECIPES["prompt"]


@pytest.fixture
def pair(cuda, tiny_backbone, tiny_folder):
    """Return a function that encodes on both devices, and checks that the vectors are equal."""

    @functools.cache
    def on_gpu(family):
        return load_backbone(str(tiny_folder(family)), device="cuda", dtype=torch.float32)

    def encode(recipe, family="bert", sentences=MANY, **options):
        cpu, gpu = (
            build_encoder(recipe, backbone=backbone, **options)
            for backbone in (tiny_backbone(family), on_gpu(family))
        )
        expected, got = cpu.encode(sentences), gpu.encode(sentences)
        assert gpu.device.type == "cuda"
        assert gap(expected, got) < CLOSE * np.abs(expected).max()
        return cpu, gpu

    return encode


def assert_waits_once_a_batch(encoder, cuda, spare):
    """Check it on a second pass: the first computes what later ones share."""
    if not isinstance(cuda, RealCuda):
        return  # the pretended one has no waits
    batches = 6
    with cuda.waits() as waits:
        encoder.encode(MANY, batch_size=len(MANY) // batches)
    assert waits.total() <= len(encoder.prompt_encoders) * batches + spare, waits


def tiny_recipe(recipe):
    """Return a named recipe with a head and a width that tiny backbones have."""
    pooling = recipe.pooling.replace("ditto", "ditto:2-3")
    return recipe.replace(
        pooling=pooling, transforms=tuple(one.replace("200", "5") for one in recipe.transforms)
    )


EXTRA = {
    "mean of prompts": Recipe(prompt="mean:[X] [MASK] . || so [X] [MASK] .", pooling="last/mask"),
    "maximum": Recipe(pooling="last/max"),
    "all but the top": Recipe(transforms=("all-but-the-top:2",)),
    "spectral": Recipe(transforms=("spectral:2-8",)),
    "words": Recipe(pooling="first-last/tfidf:word"),
}
FITTED = ("tfidf", "whitening", "flow", "all-but", "spectral")


@pytest.mark.parametrize("name", [*MASKED_RECIPES, *EXTRA])
def test_every_recipe_gives_the_processors_vectors(name, pair, cuda, bert_folder):
    recipe = tiny_recipe({**MASKED_RECIPES, **EXTRA}[name]).replace(backbone=str(bert_folder))
    tensors = None
    if any(part in " ".join([recipe.pooling, *recipe.transforms]) for part in FITTED):
        made = [
            fit_recipe(recipe, MANY, device=device, dtype="float32") for device in ("cpu", "cuda")
        ]
        tensors = made[0].encoder.tensors()
        expected, got = (one.encoder.encode(MANY) for one in made)
        assert name == "flow" or gap(np.abs(expected), np.abs(got)) < 0.01 * np.abs(expected).max()
    _, gpu = pair(recipe, tensors=tensors)
    assert_waits_once_a_batch(gpu, cuda, spare=2)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_the_processors_vectors(family, pair, tiny_folder):
    recipe = Recipe(str(tiny_folder(family)), pooling="first-last/avg")
    cpu, _ = pair(recipe, family)
    halved = build_encoder(recipe, device="cuda", dtype="bfloat16")
    assert cosines(cpu.encode(MANY), halved.encode(MANY)).min() > 0.99
    if family != "deberta-v2":  # it has no position ids
        pair(MASKED_RECIPES["prompt-denoised"], family)
    if cpu.backbone.family.hook:
        pair(Recipe(pooling="last/ditto:2-3"), family)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        *((family, "prompteol") for family in ("llama", "opt", "gemma2", "qwen3")),
        *((family, "prompteol+tp") for family in ("llama", "gemma2")),
        ("llama", "metaeol"),
        *(("llama", name) for name in ("aligned-wva", "cp+tp", "cp+knowledge")),
    ],
)
def test_causal_recipes_give_the_processors_vectors(family, name, pair, cuda):
    recipe = CAUSAL_RECIPES[name]
    if name == "metaeol":  # the mean of two will do
        recipe = recipe.replace(prompt=" || ".join(recipe.prompt.split(" || ")[:2]))
    _, gpu = pair(recipe, family, SENTENCES)
    # what begins every input is computed once
    if name == "prompteol" and family in ("llama", "opt"):
        with torch.inference_mode():
            shared = gpu.shared_tokens(gpu.pooling.needs, np.array([90, 80]))
        assert all(part.device.type == "cuda" for layer in shared.prefix for part in layer)
    # what begins every input, once
    assert_waits_once_a_batch(gpu, cuda, spare=4 * len(gpu.prompt_encoders))


def cosines(first, second):
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return (first * second).sum(1) / norms


def learner_of(name, supervised, device, tiny_folder, **changes):
    folder = tiny_folder(training_steps.family_for(name))
    teacher = Recipe(backbone=str(tiny_folder("bert")), pooling="last/avg")
    models = {}
    if name in ("distill", "rankcse"):
        models["teacher"] = pc.load(teacher, device=device, dtype="float32")
    return training_steps.learner_of(
        name, folder, supervised, device=device, models=models, **{"batch_size": 4, **changes}
    )


assert_equal = functools.partial(training_steps.assert_equal, tolerance=1e-4)


@pytest.mark.parametrize(("name", "supervised"), training_steps.FORMS)
def test_every_method_has_the_processors_gradients(name, supervised, cuda, tiny_folder):
    changes = {"dropout": 0.0, **training_steps.CERTAIN.get(name, {})}
    changes |= {"lora_dropout": 0.0} if training_steps.family_for(name) == "llama" else {}
    columns = training_steps.columns_for(name, supervised)
    cpu, gpu = (
        learner_of(name, supervised, device, tiny_folder, **changes) for device in ("cpu", "cuda")
    )
    assert_equal(gradients(cpu, columns=columns), gradients(gpu, columns=columns))
    if not isinstance(cuda, RealCuda):
        return  # the pretended one has no waits
    trainer = training_steps.step_of(learner_of(name, supervised, "cuda", tiny_folder, **changes))
    trainer.gradients(0, trainer.tokenize(columns))
    with cuda.waits() as waits:
        trainer.gradients(1, trainer.tokenize(columns))
    assert waits.total() <= 2, waits


@pytest.mark.parametrize("name", ["simcse", "dcpcse", "prompteol"])
def test_cached_gradients_have_the_same_dropout(name, cuda, tiny_folder):
    options = {"chunk_tokens": 48, "gradient_caching": False}
    plain = learner_of(name, False, "cuda", tiny_folder, **options)
    cached = learner_of(name, False, "cuda", tiny_folder, **options | {"gradient_caching": True})
    assert_equal(
        gradients(plain, columns=training_steps.COLUMNS),
        gradients(cached, columns=training_steps.COLUMNS),
    )


@pytest.mark.parametrize("name", ["simcse", "promptbert", "dcpcse"])
def test_compiled_steps_are_those_of_the_plain_model(name, cuda, tiny_folder):
    if not isinstance(cuda, RealCuda):
        pytest.skip("torch.compile: no GPU here")

    def losses(**changes):
        learner = learner_of(name, False, "cuda", tiny_folder, **changes)
        trainer = training_steps.step_of(learner)
        for number in range(4):  # the first ones record a CUDA graph, the others replay it
            yield float(trainer.gradients(number, trainer.tokenize(training_steps.COLUMNS)))
            trainer.apply_gradients()

    plain, compiled = (list(losses(dropout=0.0, compile=one)) for one in (False, True))
    assert compiled == pytest.approx(plain, rel=CLOSE)
    # a step is repeated with the dropout it had
    assert list(losses(compile=True)) == pytest.approx(list(losses(compile=True)), rel=CLOSE)


@pytest.mark.parametrize(
    "name", ["simcse", "dcpcse", "prompteol", "denosent", "cse-sfp", "pcc-tuning"]
)
def test_products_in_bfloat16_are_near(name, cuda, tiny_folder):
    still = {"dropout": 0.0, **training_steps.CERTAIN.get(name, {})}
    supervised = name == "pcc-tuning"
    learners = (learner_of(name, supervised, "cuda", tiny_folder, **still) for _ in "ab")
    columns = training_steps.columns_for(name, supervised)
    whole, halved = (
        gradients(next(learners), columns=columns, mixed=mixed) for mixed in (False, True)
    )
    assert halved[0] == pytest.approx(whole[0], abs=0.1 + 0.01 * whole[0])
    flat, other = (
        torch.cat([part.flatten() for part in one[1].values()]) for one in (whole, halved)
    )
    assert torch.nn.functional.cosine_similarity(flat, other, dim=0) > 0.9
    assert {part.dtype for part in halved[1].values()} == {torch.float32}


@pytest.mark.parametrize(("name", "optimizer"), [("simcse", "adamw-4.2.1"), ("dcpcse", "adamw")])
def test_a_killed_training_run_ends_at_the_same_numbers(
    name, optimizer, cuda, tiny_folder, tmp_path, monkeypatch
):
    def go(folder):
        learner = learner_of(
            name, False, "cuda", tiny_folder, optimizer=optimizer, eval_steps=2, epochs=2
        )
        folder.mkdir(exist_ok=True)
        examples = examples_of(SENTENCES)
        trainer = Trainer(learner, Processes(device="cuda"), examples, EVERY_PAIR, folder)
        return trainer, trainer.fit()

    def kill(trainer, number, *given, whole=TrainingStep.gradients):
        if number == 4:
            raise KeyboardInterrupt
        return whole(trainer, number, *given)

    whole, tensors = go(tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TrainingStep, "gradients", kill)
        go(tmp_path / "killed")
    resumed, again = go(tmp_path / "killed")
    assert whole.steps == resumed.steps == 6
    assert [one.value for one in whole.dev_scores] == pytest.approx(
        [one.value for one in resumed.dev_scores], abs=1e-2
    )
    for key, tensor in tensors.items():
        assert torch.allclose(tensor.cpu(), again[key].cpu(), atol=1e-5), key


def test_searches_find_the_processors_figures(cuda, bert_folder):
    found = []
    for device in ("cpu", "cuda"):
        encoder = build_encoder(Recipe(str(bert_folder)), device=device, dtype="float32")
        heads = pc.search_heads(encoder, EVERY_PAIR, SENTENCES)
        layers = pc.search_layers(encoder, EVERY_PAIR)
        templates = pc.search_templates(encoder, EVERY_PAIR, mode="free", limit=4)
        found.append([row.value for search in (heads, layers, templates) for row in search.ranked])
    assert found[0] == pytest.approx(found[1], abs=0.05)


def test_the_transfer_classifier_is_the_processors(cuda):
    draws = np.random.default_rng(0)
    labels = draws.integers(0, 2, 90)
    features = (draws.normal(size=(90, 8)) + labels[:, None]).astype(np.float32)
    splits = {"train": (features[:60], labels[:60]), "test": (features[60:], labels[60:])}
    cpu, gpu = (classify(splits, FAST, device=device) for device in ("cpu", "cuda"))
    assert (cpu.test, cpu.dev, cpu.decays) == (gpu.test, gpu.dev, gpu.decays)
    assert np.array_equal(cpu.right, gpu.right)


def test_waits_do_not_grow_with_the_number_of_sentences(cuda, bert_folder):
    if not isinstance(cuda, RealCuda):
        pytest.skip("waits: no GPU here")
    backbone = load_backbone(str(bert_folder), device="cuda")
    encoder = build_encoder(Recipe(pooling="last/avg"), backbone=backbone)
    for work in (
        lambda lines: encoder.encode(lines),
        lambda lines: pc.search_heads(encoder, EVERY_PAIR, lines),
    ):
        counted = []
        for lines in (MANY[:12], MANY):
            work(lines)
            with cuda.waits() as waits:
                work(lines)
            counted.append(waits)
        assert counted[0].total() == counted[1].total(), counted


def test_a_gpu_that_is_not_there_is_one_line(cuda):
    count = torch.cuda.device_count()
    with refusal(rf"unknown device .cuda:{count}."):
        choose_device(f"cuda:{count}")
    assert choose_device("auto") == "cuda" and choose_device("cuda:0") == "cuda:0"


def test_tf32_is_float32_with_products_of_rounded_operands(cuda, bert_folder):
    recipe = Recipe(str(bert_folder), pooling="last/avg")
    plain, rounded = (
        build_encoder(recipe, device="cuda", dtype=dtype) for dtype in ("float32", "tf32")
    )
    assert cosines(plain.encode(SENTENCES), rounded.encode(SENTENCES)).min() > 0.9999
    assert (plain.provenance["dtype"], rounded.provenance["dtype"]) == ("float32", "tf32")
    assert torch.get_float32_matmul_precision() == "highest"
    with refusal("dtype tf32 needs a GPU; on cpu give float32"):
        build_encoder(recipe, device="cpu", dtype="tf32")
