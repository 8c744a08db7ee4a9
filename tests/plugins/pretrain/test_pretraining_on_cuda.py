"""Pre-training on a GPU, see ``tests/test_cuda.py``."""

import itertools

import pytest
import torch

from promptcli.plugins.pretrain.batches import batch_of_step, steps
from promptcli.plugins.pretrain.plan import Plan
from promptcli.plugins.pretrain.pretraining import Pretrainer
from promptcli.plugins.pretrain.start import new_model
from tests.plugins.pretrain.small_runs import random_corpus
from tests.pretend_cuda import RealCuda

pytestmark = pytest.mark.cuda


def test_pretraining_has_the_processors_loss(cuda):
    corpus = random_corpus()
    shape = {"positions": 64, "vocab_size": 500, "width": 16, "heads": 1, "layers": 1}
    plan = Plan(tokens=600, batch_tokens=256, dropout_from=1.0, **shape)
    losses = []
    for device in ("cpu", "cuda"):
        trainer = Pretrainer(plan, device, new_model(plan, device, torch.float32))
        taken = itertools.islice(steps(plan, corpus), 2)
        losses.append(
            [float(trainer.take_step(step, batch_of_step(step, plan, corpus))[0]) for step in taken]
        )
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    if not isinstance(cuda, RealCuda):
        return  # the pretended one has no waits
    step = next(steps(plan, corpus))
    batch = batch_of_step(step, plan, corpus)
    with cuda.waits() as waits:
        trainer.take_step(step, batch)
    assert not waits, waits
