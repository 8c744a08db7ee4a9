"""Distillation: both targets against plain loops, and runs that hold a second model."""

import itertools

import pytest
import torch

import promptcli as pc
from promptcli.backbones.loading import load_backbone
from promptcli.training.methods import find_method
from promptcli.training.objectives.distillation import similarity_distance, vector_distance
from promptcli.training.run import Learner
from tests.reference.losses import cosine
from tests.tiny import SENTENCES


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def test_the_vectors_distance_is_a_loops():
    student, teacher = drawn(5, 6), drawn(5, 6).flip(0)
    expected = sum(1 - cosine(one, other) for one, other in zip(student.tolist(), teacher.tolist(), strict=True)) / 5
    assert float(vector_distance(student, teacher)) == pytest.approx(expected, rel=1e-5)


def test_the_similarities_distance_is_a_loops():
    student, teacher = drawn(5, 6), drawn(5, 9)
    ours, theirs = student.tolist(), teacher.tolist()
    pairs = list(itertools.permutations(range(5), 2))
    expected = sum((cosine(ours[i], ours[j]) - cosine(theirs[i], theirs[j])) ** 2 for i, j in pairs) / len(pairs)
    assert float(similarity_distance(student, teacher)) == pytest.approx(expected, rel=1e-5)
    assert float(similarity_distance(student[:1], teacher[:1])) == 0  # an epoch's last batch


@pytest.mark.parametrize("target", ["similarities", "vectors"])
def test_the_teacher_reads_as_at_test_and_stays(target, tiny_folder):
    teacher = pc.load(pc.Recipe(backbone="mini-bert", pooling="last/avg"), device="cpu")
    before = teacher.encode(SENTENCES[:4])
    method = find_method("distill", supervised=False)
    settings = method.small.replace(target=target, teacher="mini", dropout=0.0, max_length=60)
    learner = Learner(method, settings, load_backbone(str(tiny_folder("bert"))), {"teacher": teacher})
    student, theirs = learner([SENTENCES[:4]])
    assert torch.equal(theirs, torch.from_numpy(before))
    assert student.shape == (4, 256 if target == "vectors" else 16)
    learner.objective.loss((student, theirs), [SENTENCES[:4]]).backward()
    assert ("objective.map.weight" in learner.trainable()) is (target == "vectors")
    assert not [name for name in learner.tensors() if "map" in name]
    assert all(parameter.grad is None for parameter in teacher.backbone.model.parameters())


@pytest.mark.usefixtures("few_demo_pairs")
@pytest.mark.parametrize("target", ["similarities", "vectors"])
def test_a_student_comes_nearer_to_its_teacher(target, tiny_folder):
    sentences = [f"{one} {other}" for one in SENTENCES for other in SENTENCES[:4]]
    options = {"backbone": str(tiny_folder("bert")), "teacher": "mini", "target": target}
    settings = {"steps": 60, "eval_steps": 20, "batch_size": 16, "learning_rate": 3e-3, "warmup": 0.0}
    trained = pc.train("distill", sentences, **options, **settings)
    losses = [score.loss for score in trained.curve[1:]]
    assert losses[-1] < losses[0]
    about = trained.entry.provenance["trained"]
    assert about["teacher_fingerprint"] == pc.load("mini", device="cpu").fingerprint
    assert trained.encoder.encode(SENTENCES[:2]).shape == (2, 16)
