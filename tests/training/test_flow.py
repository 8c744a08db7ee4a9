"""BERT-flow: the formulas, its inverse, its volume, how it starts and learns, and the model that
comes of it.
"""

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from promptcli.encoder.encoder import build_encoder
from promptcli.encoder.transforms.flow import ActNorm, FlowStep, Glow
from promptcli.notes import showing_stages
from promptcli.recipe import RECIPES, Recipe
from promptcli.training.fitting import fit_flow, fit_recipe
from tests.comparing import gap, refusal
from tests.reference import flow as plain
from tests.tiny import SENTENCES

D = 16
MANY = SENTENCES + [f"{one} {other}" for one in SENTENCES for other in SENTENCES[:4]]


@pytest.fixture
def glow():
    """A flow whose every number is random, as after learning.

    Float64, so that rounding hides nothing.
    """
    torch.manual_seed(0)
    made = Glow(D)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0, 0.2)
    return made.double()


def numbers(glow):
    return {name: tensor.numpy() for name, tensor in glow.state_dict().items()}


def test_forward_equals_the_plain_loops_and_can_be_undone(glow):
    x = torch.randn(5, D, dtype=torch.float64)
    expected = [plain.forward(row, numbers(glow)) for row in x.tolist()]
    assert gap(glow(x).detach().numpy(), expected) < 1e-12
    back = [plain.backward(row, numbers(glow)) for row in glow(x).tolist()]
    assert gap(np.array(back), x.numpy()) < 1e-9
    assert gap(glow(x).detach().numpy(), x.numpy()) > 0.1


def test_logdet_is_that_of_the_jacobian(glow):
    for x in torch.randn(3, D, dtype=torch.float64):
        jacobian = torch.autograd.functional.jacobian(lambda row: glow(row.unsqueeze(0))[0], x)
        assert torch.linalg.slogdet(jacobian).logabsdet == pytest.approx(
            glow.logdet().item(), abs=1e-9
        )
    assert abs(glow.logdet().item()) > 0.1


def test_loss_is_bits_per_dimension(glow):
    x = torch.randn(4, D, dtype=torch.float64)
    total = 0.0
    for row in x.tolist():
        log_p = sum(
            -0.5 * value**2 - 0.5 * math.log(2 * math.pi)
            for value in plain.forward(row, numbers(glow))
        )
        total += -(log_p + glow.logdet().item()) / (D * math.log(2))
    assert glow.loss(x).item() == pytest.approx(total / 4, abs=1e-9)


def test_actnorm_starts_with_mean_0_and_variance_1():
    batch = (
        torch.randn(32, D, generator=torch.Generator().manual_seed(1)) * torch.linspace(0.1, 9, D)
        + 5
    )
    norm = ActNorm(D)
    with torch.no_grad():
        first = norm(batch, start=True)
        other = norm(batch + 1)
    assert first.mean(0).abs().max() < 1e-5
    assert gap(first.var(0, correction=0), 1) < 1e-4
    assert (
        other.mean(0).abs() > 0.05
    ).all()  # the numbers stay; the next batch is not normalised by its own


def test_every_actnorm_starts_from_what_reaches_it():
    """The first batch leaves every step normalised: the zero layers move nothing yet."""
    batch = torch.randn(32, D, generator=torch.Generator().manual_seed(1)) @ torch.randn(D, D) + 3
    glow = Glow(D)
    glow.start(batch, torch.Generator().manual_seed(2))
    seen = []
    for module in glow.modules():
        if isinstance(module, FlowStep | ActNorm):
            module.register_forward_hook(lambda *given: seen.append(given[-1]))
    with torch.no_grad():
        z = glow(batch)
    assert len(seen) == 9 + 27
    for values in [*seen, z]:
        assert values.mean(0).abs().max() < 1e-4
        # a hidden channel that is zero over the whole batch has no variance to scale
        assert gap(values.var(0, correction=0), 1) < 2e-2


@pytest.mark.parametrize(
    ("rows", "d", "message"),
    [(64, 12, "divisible by 8, and 12 is not"), (31, 8, "one batch of 32 sentences; 31 were")],
)
def test_vectors_that_no_flow_is_fitted_to(rows, d, message):
    with refusal(message):
        fit_flow(np.zeros((rows, d), np.float32))


def test_learning_makes_vectors_likelier_and_is_repeatable():
    """Two moons of data: not normal, so that there is something to learn."""
    generator = np.random.default_rng(0)
    angle = generator.uniform(0, np.pi, (2000, D // 2))
    vectors = np.concatenate(
        [np.cos(angle), np.sin(angle) + 0.05 * generator.normal(size=angle.shape)], 1
    )
    vectors = vectors.astype(np.float32)
    torch.manual_seed(5)
    tensors = fit_flow(vectors)
    torch.manual_seed(6)
    again = fit_flow(vectors)
    assert all(torch.equal(tensors[name], again[name]) for name in tensors)
    learned, started = Glow(D), Glow(D)
    learned.load_state_dict(
        {name.removeprefix("flow."): tensor for name, tensor in tensors.items()}
    )
    started.start(torch.from_numpy(vectors[:32]), torch.Generator().manual_seed(0))
    rows = torch.from_numpy(vectors)
    with torch.no_grad():
        assert learned.loss(rows) < started.loss(rows) - 0.05
        moved = {name: (tensor != 0).any() for name, tensor in learned.state_dict().items()}
    assert all(moved.values()), "every number learns"


def test_the_recipe_is_first_last_average_and_flow(tiny_backbone):
    assert RECIPES["flow"] == Recipe(pooling="first-last/avg", transforms=("flow",))
    backbone = tiny_backbone("bert")
    done = {}

    def shown(name, steps):
        done[name] = (steps, counted := [])
        return nullcontext(counted.append)

    with showing_stages(shown):
        fitted = fit_recipe(RECIPES["flow"], MANY, backbone=backbone)
    assert list(done) == ["fit flow", "train flow"]
    assert all(sum(counted) == steps for steps, counted in done.values())
    vectors = build_encoder(Recipe(), backbone=backbone).encode(SENTENCES)
    numbers = {
        name.removeprefix("flow."): tensor.numpy()
        for name, tensor in fitted.encoder.tensors().items()
    }
    expected = [plain.forward(row, numbers) for row in vectors.tolist()]
    assert gap(fitted.encoder.encode(SENTENCES), expected) < 1e-3


def test_behind_whitening_it_takes_the_width_that_is_left(tiny_backbone):
    fitted = fit_recipe(
        Recipe(transforms=("whitening:8", "flow")), MANY, backbone=tiny_backbone("bert")
    )
    assert fitted.encoder.width == 8


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("flow", "promptcli fit --model flow"),
        ("flow:3", "no argument is allowed for transform 'flow', got '3'"),
    ],
)
def test_a_flow_without_its_numbers_is_refused(spec, message, tiny_backbone):
    with refusal(message):
        build_encoder(Recipe(transforms=(spec,)), backbone=tiny_backbone("bert"))
