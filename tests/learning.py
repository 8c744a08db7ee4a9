"""For tests of training: a method at work on a tiny backbone, and the gradients of one of its steps."""

from accelerate import Accelerator

from promptcli.backbones.loading import load_backbone
from promptcli.training.learner import Learner
from promptcli.training.methods import find_method
from promptcli.training.processes import Processes
from promptcli.training.trainer import Trainer
from tests.tiny import SENTENCES

COLUMNS = [SENTENCES[:7]]


def small(method, **changes):
    prefix = {"prefix_length": 3} if method.name == "dcpcse" else {}
    return method.small.replace(**{**prefix, "max_length": 20, "seed": 1, **changes})


def learner_of(method, folder, supervised=False, **changes):
    """Return a learner of a method, given itself or by its name."""
    method = find_method(method, supervised=supervised) if isinstance(method, str) else method
    return Learner(method, small(method, **changes), load_backbone(str(folder)))


def trainer_of(learner):
    return Trainer(learner, Processes(Accelerator(cpu=True)))


def gradients(learner, number=0, columns=COLUMNS):
    loss = float(trainer_of(learner).gradients(number, columns))
    return loss, {name: one.grad.clone() for name, one in learner.trainable().items() if one.grad is not None}
