"""Training next to the papers' own programs: losses, gradients, steps of the optimiser, vectors of
the dev score.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from promptcli.backbones.by_name import load_backbone
from promptcli.training import trainable_encoder
from promptcli.training.methods import find_method
from promptcli.training.methods.method import ConfiguredMethod
from promptcli.training.objectives import find_objective
from promptcli.training.step import OPTIMIZERS
from promptcli.training.trainable_encoder import TrainableEncoder
from tests.comparing import gap
from tests.training_steps import step_of

OFFICIAL = Path(__file__).parents[1] / "reference" / "official"
BATCHES = json.loads((OFFICIAL / "batches.json").read_text(encoding="utf-8"))
SENTENCES = (OFFICIAL / "sentences.txt").read_text(encoding="utf-8").splitlines()
STARTS = np.load(OFFICIAL / "starts.npz")
COLUMNS = ("first", "second", "third")

#: File, case, method, columns, changes of the published settings.
CASES = [
    ("simcse", "unsup", "simcse", 1, {}),
    ("simcse", "unsup-mlm", "simcse", 1, {"mlm_weight": 0.1}),
    ("simcse", "sup", "simcse", 3, {}),
    ("dcpcse", "unsup", "dcpcse", 1, {"prefix_length": 16}),
    ("dcpcse", "unsup-mlm", "dcpcse", 1, {"prefix_length": 16, "mlm_weight": 0.1}),
    ("dcpcse", "sup", "dcpcse", 3, {"prefix_length": 12}),
    ("promptbert", "unsup", "promptbert", 1, {}),
    ("promptbert", "unsup-without-denoising", "promptbert", 1, {"denoising": False}),
    ("promptbert", "sup", "promptbert", 3, {}),
    ("promptbert", "optiprompt", "optiprompt", 1, {}),
    ("promptbert-roberta", "unsup", "promptbert", 1, {}),
    ("promptbert-roberta", "sup", "promptbert", 3, {}),
    ("cotbert", "unsup", "cotbert", 1, {}),
    ("cotbert", "unsup-without-denoising", "cotbert", 1, {"denoising": False}),
]


def make_learner(file, case, method, columns, changes):
    roberta = file.endswith("roberta")
    folder = OFFICIAL / "models" / ("tiny-roberta" if roberta else "tiny-bert")
    backbone = load_backbone(str(folder), device="cpu", dtype=torch.float32)
    form = find_method(method, supervised=columns > 1)
    published = form.published("roberta-base" if roberta else "bert-base-uncased")
    settings = published.replace(
        batch_size=8, max_length=32, dropout=0.0, temperature=0.05, **changes
    )
    configured = ConfiguredMethod(form, settings, backbone.name, backbone.provenance.family)
    learner = TrainableEncoder(configured, backbone, find_objective(form))
    tensors = learner.trainable()
    with torch.no_grad():
        if "projection.0.weight" in tensors:
            tensors["projection.0.weight"].copy_(torch.from_numpy(STARTS["head.weight"]))
            tensors["projection.0.bias"].copy_(torch.from_numpy(STARTS["head.bias"]))
        if "deep-prefix.keys_values" in tensors:
            start = STARTS[f"prefix{settings.prefix_length}"]
            tensors["deep-prefix.keys_values"].copy_(torch.from_numpy(as_prefix(start)))
        if case == "optiprompt":
            tensors["soft-template.vectors"].copy_(
                torch.from_numpy(golden(file)["optiprompt/start/p_mbv"])
            )
    return learner


def golden(file):
    return np.load(OFFICIAL / f"{file}.npz")


def as_prefix(rows, layers=2, heads=4):
    """Return the published layout (p, 2 L d) as (L, 2, heads, p, d / heads)."""
    return rows.reshape(len(rows), layers, 2, heads, -1).transpose(1, 2, 3, 0, 4)


def our_name(name, kept_layer_norm):
    """Return what a tensor of the official programs is called here."""
    if name == "prefix_encoder.embedding.weight":
        return "deep-prefix.keys_values"
    if name == "p_mbv":
        return "soft-template.vectors"
    if name.startswith("mlp."):
        inner = name.removeprefix("mlp.")
        return f"projection.0.{inner if kept_layer_norm else inner.removeprefix('dense.')}"
    if name.startswith("lm_head."):
        inner = name.removeprefix("lm_head.").replace("transform.", "transform.0.")
        return "mlm." + ("decoder.bias" if inner == "bias" else inner)
    return "backbone." + name.partition(".")[2]


def in_our_layout(values, prefix):
    """Return the tensors under ``prefix`` by our names."""
    names = [name.removeprefix(prefix) for name in values.files if name.startswith(prefix)]
    normed = "mlp.LayerNorm.weight" in names
    found = {our_name(name, normed): values[prefix + name] for name in names}
    if "deep-prefix.keys_values" in found:
        found["deep-prefix.keys_values"] = as_prefix(found["deep-prefix.keys_values"])
    return found


def texts(columns):
    return [BATCHES[name] for name in COLUMNS[:columns]]


@pytest.fixture
def official_masks(monkeypatch):
    def chosen(batch, tokens, vocabulary):
        places = torch.arange(batch.ids.size(1)).expand_as(batch.ids)
        specials = torch.tensor(sorted(tokens.specials))
        mine = ((7 * places + batch.ids) % 4 == 1) & ~torch.isin(batch.ids, specials) & batch.real()
        other = torch.where(places % 2 == 0, tokens.mask, (3 * batch.ids + 11) % vocabulary)
        return torch.where(mine, other, batch.ids), mine

    monkeypatch.setattr(trainable_encoder, "mask_tokens", chosen)


@pytest.mark.parametrize(
    ("file", "case", "method", "columns", "changes"), CASES, ids=lambda value: str(value)[:24]
)
def test_loss_gradients_and_selection_vectors(official_masks, file, case, method, columns, changes):
    values = golden(file)
    learner = make_learner(file, case, method, columns, changes)
    number = 250 if (file, case) == ("dcpcse", "unsup-mlm") else 0
    step = step_of(learner)
    loss = float(step.gradients(number, step.tokenize(texts(columns))))
    assert loss == pytest.approx(float(values[f"{case}/loss"]), rel=1e-5)
    wanted = in_our_layout(values, f"{case}/grad/")
    ours = {
        name: tensor.grad for name, tensor in learner.trainable().items() if tensor.grad is not None
    }
    assert set(wanted) <= set(ours)
    assert not any(ours[name].any() for name in set(ours) - set(wanted))
    norm = np.sqrt(
        sum(float(np.square(gradient, dtype=np.float64).sum()) for gradient in wanted.values())
    )
    off = np.sqrt(
        sum(
            float(np.square(ours[name].numpy() - gradient).sum())
            for name, gradient in wanted.items()
        )
    )
    assert off < 2e-5 * norm
    learner.eval()
    vectors = learner.as_encoder(for_development=True).encode(SENTENCES)
    expected = values[f"{case}/selection_vectors"]
    assert gap(vectors, expected) < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("file", "case", "method", "columns", "changes"), CASES, ids=lambda value: str(value)[:24]
)
def test_the_ids_of_a_batch(file, case, method, columns, changes):
    values = golden(file)
    learner = make_learner(file, case, method, columns, changes)
    sides = learner.tokenize(texts(columns))
    rows = [row for side in sides for row in side.ids]
    ids, real = (
        values[f"{case}/batch/input_ids"],
        values[f"{case}/batch/attention_mask"].astype(bool),
    )
    count = ids.shape[1]
    if file == "dcpcse" or file == "simcse":
        assert count == len(sides)
    for index, row in enumerate(rows):
        view, example = divmod(index, 8)
        assert row == ids[example, view][real[example, view]].tolist()


@pytest.mark.parametrize(("name", "optimizer"), [("official", "adamw-4.2.1"), ("torch", "adamw")])
@pytest.mark.parametrize(
    ("file", "rate", "changes"), [("simcse", 3e-4, {}), ("dcpcse", 3e-2, {"prefix_length": 16})]
)
def test_twenty_steps_move_weights_as_the_official_program_does(
    file, rate, changes, name, optimizer
):
    values, prefix = golden(file), f"20-steps-{name}-adamw/"
    learner = make_learner(file, "unsup", file, 1, changes)
    trainable = learner.trainable()
    before = {key: tensor.detach().clone() for key, tensor in trainable.items()}
    made = OPTIMIZERS[optimizer](trainable, rate, 0.0)
    step, losses, norms = step_of(learner), [], []
    for number in range(20):
        for group in made.param_groups:
            group["lr"] = rate * (1 - number / 20)
        batch = step.tokenize([BATCHES[COLUMNS[number % 3]]])
        losses.append(float(step.gradients(0, batch)))
        norms.append(float(torch.nn.utils.clip_grad_norm_(trainable.values(), 1.0)))
        made.step()
    assert losses == pytest.approx(values[prefix + "losses"].tolist(), rel=1e-4)
    assert norms == pytest.approx(
        values[prefix + "gradient_norms_before_clipping"].tolist(), rel=1e-3
    )
    moved = {
        key: way
        for key, way in in_our_layout(values, prefix + "moved/").items()
        if "self.key.bias" not in key
    }
    length = np.sqrt(sum(float(np.square(way).sum()) for way in moved.values()))
    ours = {key: (trainable[key].detach() - before[key]).numpy() for key in moved}
    off = np.sqrt(sum(float(np.square(ours[key] - way).sum()) for key, way in moved.items()))
    assert off < 1e-4 * length
