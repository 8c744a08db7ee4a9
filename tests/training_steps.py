"""For tests of training: a method at work on a tiny backbone, and the gradients of one of its
steps.
"""

import contextlib
import dataclasses
import functools
import itertools

import pytest
import torch

import promptcli as pc
from promptcli.backbones.by_name import load_backbone
from promptcli.training.methods import METHODS, find_method
from promptcli.training.methods.method import ConfiguredMethod
from promptcli.training.objectives import find_objective
from promptcli.training.step import Processes, TrainingStep
from promptcli.training.teacher import EncodedVectors
from promptcli.training.trainable_encoder import TrainableEncoder
from tests.comparing import gap
from tests.tiny import SENTENCES

COLUMNS = [SENTENCES[:7]]
PAIRS = [SENTENCES[:7], SENTENCES[3:10]]
LABELS = ["entailment", "neutral", "contradiction", "neutral", "entailment", "neutral", "neutral"]
SCORES = ["1", "0", "0.5", "0.8", "0.2", "0.6", "0.4"]
#: What methods read that read neither sentences alone nor triplets.
READ = {
    "sbert": [*PAIRS, LABELS],
    "sbert-regression": [*PAIRS, SCORES],
    "pcc-tuning": [*PAIRS, SCORES],
}
READ["sncse"] = [SENTENCES[:7], SENTENCES[3:10], SENTENCES[5:12]]
READ["defsent"] = [SENTENCES[:7], ["woman", "dog", "door", "dog", "woman", "door", "woman"]]
#: Settings that leave nothing to chance, which every process and device draws for itself.
CERTAIN = {
    "consert": {"augment_first": "none", "augment_second": "none"},
    "denosent": {"decoder_noise": 0.0},
}

#: Every method, unsupervised and, if it has that form, supervised.
FORMS = [
    (name, supervised)
    for name, forms in METHODS.items()
    for supervised, form in enumerate(forms)
    if form
]


def columns_for(name, supervised):
    """Return a batch for one form of a method."""
    if name in READ:
        return READ[name]
    if supervised:
        return [*PAIRS, LABELS if name == "consert" else SENTENCES[5:]]
    return COLUMNS


def family_for(name):
    """Return a family of backbones that a method trains."""
    return "llama" if any(form and "adapter" in form.learns for form in METHODS[name]) else "bert"


def small_settings(method, **changes):
    fewer = {"dcpcse": {"prefix_length": 3}, "denosent": {"decoder_layers": 1}}.get(method.name, {})
    return method.mini_bert_settings.replace(**{**fewer, "max_length": 20, "seed": 1, **changes})


def configured_method(method, family="bert", **changes):
    """Return how a method reads on a backbone of a family."""
    return ConfiguredMethod(method, method.mini_bert_settings.replace(**changes), "x", family)


@functools.cache
def _loaded(folder):
    return load_backbone(folder, dtype=torch.float32)


def fresh_backbone(folder, device="cpu"):
    """Return a copy of a folder's backbone, which is read once: a training changes its own."""
    return _loaded(str(folder)).to(torch.device(device))


def learner_of(method, folder, supervised=False, *, device="cpu", models=None, **changes):
    """Return a learner of a method, given itself or by its name."""
    method = find_method(method, supervised=supervised) if isinstance(method, str) else method
    backbone = fresh_backbone(folder, device)
    settings = small_settings(method, **changes)
    configured = ConfiguredMethod(method, settings, backbone.name, backbone.provenance.family)
    return TrainableEncoder(configured, backbone, find_objective(method), models or {})


def views_of(learner, columns):
    """Return the views of examples, given as texts by column."""
    return learner.objective.views(learner, learner.tokenize(columns), columns)


def step_of(learner, *, mixed=False):
    device = learner.backbone.device.type
    return TrainingStep(learner, Processes(device=device, mixed=mixed))


def gradients(learner, number=0, columns=COLUMNS, **options):
    """Return the loss of a step and the gradients, in the processor's memory."""
    step = step_of(learner, **options)
    loss = float(step.gradients(number, step.tokenize(columns)))
    return loss, {
        name: one.grad.clone().cpu()
        for name, one in learner.trainable().items()
        if one.grad is not None
    }


@contextlib.contextmanager
def stopped_at(monkeypatch, number, seed=None):
    """Interrupt a run in the block when it comes to a step, counted from 0.

    In a sweep, this is the run of ``seed``.
    """
    plain = TrainingStep.gradients

    def stopping(trainer, step, *given):
        if step == number and seed in (None, trainer.settings.seed):
            raise KeyboardInterrupt
        return plain(trainer, step, *given)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingStep, "gradients", stopping)
        yield


#: What a loss may differ by under other kernels, whatever its size: it is made of terms near 1, as
#: 1 - cos, and each of the products, the norm, the quotient and the difference rounds one of them.
ROUNDING = 4 * float(torch.finfo(torch.float32).eps)


def assert_equal(one, other, tolerance=1e-5):
    """Compare what ``gradients`` returned."""
    assert one[0] == pytest.approx(other[0], rel=tolerance, abs=ROUNDING)
    assert one[1].keys() == other[1].keys()
    largest = max(float(gradient.abs().max()) for gradient in one[1].values())
    assert largest > 0
    for name, gradient in one[1].items():
        assert gap(gradient, other[1][name]) <= tolerance * largest, name


def mini_vectors(columns, folder):
    encoder = pc.load(pc.Recipe(backbone="mini-bert", pooling="last/avg"), device="cpu")
    vectors = EncodedVectors("mini", encoder, list(dict.fromkeys(itertools.chain(*columns))))
    vectors.make(folder)
    return vectors


def with_scores(model, /, **values):
    """Change the development scores of a model and of its references."""
    entry = model.entry
    facts = dict(entry.provenance["trained"])
    development = next(iter(model.scores))
    changed = {column: {development: value} for column, value in values.items()}
    facts["scores"] = facts["scores"] | changed
    provenance = {**entry.provenance, "trained": facts}
    return dataclasses.replace(model, entry=dataclasses.replace(entry, provenance=provenance))
