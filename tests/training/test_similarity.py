"""The temperature of the contrastive losses, which may learn."""

import pytest
import torch

import promptcli as pc
from promptcli.storage.runs import RunProgress, load_state, save_state
from promptcli.training.methods import METHODS
from promptcli.training.methods.method import ContrastiveSettings
from promptcli.training.objective import LearnableScalar
from promptcli.training.objectives import OBJECTIVES
from promptcli.training.objectives.contrastive import MIN_TEMPERATURE, InfoNCE, Similarity
from tests.reference.losses import cosine, infonce
from tests.tiny import SENTENCES
from tests.training_steps import (
    COLUMNS,
    READ,
    family_for,
    gradients,
    learner_of,
    step_of,
    stopped_at,
    views_of,
)

TAU = "objective.similarity.log_temperature"
CONTRASTIVE = [
    name
    for name, (unsupervised, _) in METHODS.items()
    if unsupervised and isinstance(unsupervised.mini_bert_settings, ContrastiveSettings)
]


def test_the_similarity_is_the_cosine_over_the_temperature():
    first, second = (torch.randn(n, 6, generator=torch.Generator().manual_seed(n)) for n in (3, 4))
    found = Similarity(0.2)(first, second)
    for i, one in enumerate(first.tolist()):
        for j, other in enumerate(second.tolist()):
            assert float(found[i, j]) == pytest.approx(cosine(one, other) / 0.2, rel=1e-5)
    assert torch.equal(Similarity(0.25, rate=1e-3)(first, second), Similarity(0.25)(first, second))


@pytest.mark.parametrize(("start", "least"), [(0.05, MIN_TEMPERATURE), (0.005, 0.005)])
def test_a_learned_temperature_has_a_floor(start, least):
    similarity = Similarity(start, rate=1e-3)
    with torch.no_grad():
        similarity.log_temperature.fill_(-20.0)
    assert float(similarity.value.detach()) == pytest.approx(least)


def test_the_gradient_of_the_temperature_is_that_of_the_plain_loop(bert_folder):
    still = {"dropout": 0.0, "temperature": 0.3, "temperature_rate": 1e-3}
    learner = learner_of("simcse", bert_folder, **still)
    _, found = gradients(learner)
    view, _ = (part.tolist() for part in views_of(learner.eval(), COLUMNS))
    count = len(view)
    none = [[False] * count] * count

    def loss(tau):
        return infonce(view, view, [[]] * count, tau, none, [[[]] * count] * count)

    step = 1e-4
    higher, lower = loss(0.3 + step), loss(0.3 - step)
    assert float(found[TAU]) == pytest.approx(0.3 * (higher - lower) / (2 * step), rel=1e-3)


@pytest.mark.parametrize("name", CONTRASTIVE)
def test_the_temperature_of_every_contrastive_method_learns(name, tiny_folder):
    columns = READ.get(name, COLUMNS)
    models = {}
    if name == "rankcse":
        models["teacher"] = pc.load("mini-static")
    still = {"temperature": 0.3, "temperature_rate": 1e-3, "dropout": 0.0}
    learner = learner_of(name, tiny_folder(family_for(name)), models=models, **still)
    loss, found = gradients(learner, columns=columns)
    assert found[TAU].abs() > 1e-4
    assert TAU not in learner.tensors()
    kept = learner_of(
        name, tiny_folder(family_for(name)), models=models, **still | {"temperature_rate": 0.0}
    )
    plain, others = gradients(kept, columns=columns)
    assert plain == pytest.approx(loss, rel=1e-6)
    assert found.keys() - others.keys() == {TAU}


def test_it_learns_at_a_rate_of_its_own_without_decay(bert_folder):
    options = {"learning_rate": 1e-6, "temperature_rate": 0.02, "weight_decay": 0.5}
    step = step_of(learner_of("simcse", bert_folder, **options))
    peaks = {group["peak"]: group["weight_decay"] for group in step.optimizer.param_groups}
    assert peaks == {1e-6: 0.5, 0.02: 0.0}
    before = float(step.encoder.objective.similarity.log_temperature.detach())
    step.gradients(0, step.tokenize(COLUMNS))
    step.apply_gradients()
    after = float(step.encoder.objective.similarity.log_temperature.detach())
    assert abs(after - before) == pytest.approx(0.02, rel=1e-3)  # a step of Adam


class LearnedBound(InfoNCE):
    """InfoNCE, and a bound on the cosine of the two views that learns."""

    def __init__(self, settings, encoder, generator):
        super().__init__(settings, encoder, generator)
        self.bound = LearnableScalar("bound", 0.5, 0.1, device=encoder.backbone.device)

    def contrast(self, views, columns):
        cosine = torch.nn.functional.cosine_similarity(views[0], views[1])
        bounds = torch.relu(cosine - self.bound.value).mean() + 2 * self.bound.value
        return super().contrast(views, columns) + bounds


def test_every_number_that_an_objective_learns_is_reported_and_kept(
    monkeypatch, notes, bert_folder
):
    options = {"backbone": str(bert_folder), "on": "demo", "steps": 6, "batch_size": 8}
    options |= {"eval_steps": 2, "temperature_rate": 0.01}
    monkeypatch.setitem(OBJECTIVES, "contrastive", LearnedBound)
    trained = pc.train("simcse", SENTENCES * 3, name="complete", **options)
    assert "temperature 0.05" in notes.text and "bound 0.5" in notes.text
    curve = [score.learned for score in trained.curve]
    assert curve[0] == pytest.approx({"temperature": 0.05, "bound": 0.5})
    for name in ("temperature", "bound"):
        assert len({learned[name] for learned in curve}) == len(curve)
    assert trained.facts["temperature"] == 0.05  # the setting, from which it starts
    with stopped_at(monkeypatch, 5), pytest.raises(KeyboardInterrupt):
        pc.train("simcse", SENTENCES * 3, name="killed", **options)
    resumed = pc.train("simcse", SENTENCES * 3, name="killed", resume=True, **options)
    assert [score.learned for score in resumed.curve] == curve


def test_each_number_that_learns_has_its_own_rate(bert_folder, monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "contrastive", LearnedBound)
    options = {"learning_rate": 1e-6, "temperature_rate": 0.02}
    step = step_of(learner_of("simcse", bert_folder, **options))
    assert [group["peak"] for group in step.optimizer.param_groups] == [1e-6, 0.02, 0.1]


def test_a_parameter_that_had_no_gradient_in_a_step_has_taken_fewer_after_resuming(tmp_path):
    parameters = {name: torch.nn.Parameter(torch.ones(2)) for name in ("always", "seldom")}
    optimizer = torch.optim.AdamW(parameters.values(), fused=True)
    for step in range(3):
        for name, parameter in parameters.items():
            parameter.grad = torch.ones(2) if name == "always" or step == 1 else None
        optimizer.step()
    save_state(tmp_path / "state", parameters, optimizer, RunProgress(3))
    again = {name: torch.nn.Parameter(torch.zeros(2)) for name in parameters}
    resumed = torch.optim.AdamW(again.values(), fused=True)
    load_state(tmp_path / "state", again, resumed)
    taken = {name: int(resumed.state[parameter]["step"]) for name, parameter in again.items()}
    assert taken == {"always": 3, "seldom": 1}


def test_a_large_gradient_of_the_temperature_leaves_those_of_the_model(bert_folder):
    step = step_of(learner_of("simcse", bert_folder, temperature_rate=1e-3))
    step.gradients(0, step.tokenize(COLUMNS))
    tau = step.parameters[TAU]
    tau.grad.fill_(1e6)
    for name, parameter in step.parameters.items():
        if name != TAU and parameter.grad is not None:
            parameter.grad.mul_(1e-6)
    learning = {name: one for name, one in step.parameters.items() if one.grad is not None}
    before = {name: one.grad.clone() for name, one in learning.items()}
    step.apply_gradients()
    for name, gradient in before.items():
        if name != TAU:
            assert torch.equal(step.parameters[name].grad, gradient)
    assert float(tau.grad) <= 1.0
