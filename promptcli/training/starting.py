"""Where a run goes on from: an entry of the registry whose backbone was tuned."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from promptcli.encoder.encoder import tuned_weights
from promptcli.errors import UsageError
from promptcli.registry.registry import Registry
from promptcli.training.methods import METHODS, forms
from promptcli.training.training_plan import TrainingPlan


@dataclass(frozen=True)
class Start:
    """The numbers of an entry; those that a run has a place for are what it starts with."""

    name: str
    tensors: Mapping[str, Tensor]

    @property
    def sha256(self) -> str:
        """Of names and numbers."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.tensors.items()):
            digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def read_start(plan: TrainingPlan, registry: Registry) -> Start | None:
    """Return the entry that a plan goes on from; None where it names none.

    Raises:
        NotFoundError: No such entry.
        UsageError: Its backbone was never tuned, is not the plan's, or would not be tuned by the method.
    """
    if plan.start is None:
        return None
    tuning = list(dict.fromkeys(form.name for form in forms() if "backbone" in form.learns))
    if plan.method in METHODS and plan.method not in tuning:
        raise UsageError(
            f"--from goes on with a trained backbone, which {plan.method} leaves as it is; methods that tune it:"
            f" {', '.join(tuning)}"
        )
    entry = registry.load(plan.start)
    own = entry.recipe.backbone
    if not tuned_weights(entry.tensors):
        raise UsageError(f"model {plan.start!r} has no trained backbone to go on from; give --backbone {own}")
    if plan.backbone != own:
        raise UsageError(f"model {plan.start!r} is on backbone {own!r}, not {plan.backbone!r}; leave out --backbone")
    return Start(plan.start, entry.tensors)
