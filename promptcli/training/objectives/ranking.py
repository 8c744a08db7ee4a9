"""``ranking``: InfoNCE, rankings of the batch that agree between two views, and with a teacher's (RankCSE)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from promptcli.data.dialect import SENTENCES
from promptcli.encoder.batching import to_device
from promptcli.training.methods.rankcse import RankCSESettings
from promptcli.training.objectives.contrastive import Contrastive
from promptcli.training.objectives.objective import Columns
from promptcli.training.trainable_encoder import TokenizedView, TrainableEncoder


class Ranking(Contrastive[RankCSESettings]):
    """A sentence ranks those of the batch by their cosines. Of the teacher only its cosines count, at any width."""

    layouts = (SENTENCES,)

    def views(self, encoder: TrainableEncoder, sides: Sequence[TokenizedView], columns: Columns) -> tuple[Tensor, ...]:
        """Return z1 and z2, (n, d) float32, and the teacher's vectors (n, e)."""
        views = super().views(encoder, sides, columns)
        return *views, to_device(encoder.models["teacher"].encode(columns[0]), views[0].device)

    def loss(self, views: Sequence[Tensor], columns: Columns) -> Tensor:
        """Return the sum of the three losses, at each width."""
        settings, (first, second, theirs) = self.settings, views
        teacher = _cosines(theirs, theirs)
        loss = torch.zeros((), device=first.device)
        for one, two in self.at_widths([first, second]):
            logits = _cosines(one, two) / settings.temperature
            loss = loss + self.contrast([one, two], columns) + settings.consistency_weight * consistency(logits)
            if settings.ranking == "listnet":
                ranked = list_net(logits, teacher / settings.teacher_temperature)
            else:
                ranked = list_mle(logits, teacher)
            loss = loss + settings.ranking_weight * ranked
        return loss


def _cosines(first: Tensor, second: Tensor) -> Tensor:
    return functional.normalize(first.float(), dim=1) @ functional.normalize(second.float(), dim=1).T


def consistency(logits: Tensor) -> Tensor:
    """Return the mean Jensen-Shannon divergence of softmax(s(z1_i, z2_j)) and softmax(s(z2_i, z1_j)) over j (eq. 6).

    ``logits`` (n, n) are s(z1_i, z2_j), cosines over a temperature.
    """
    one, two = logits.log_softmax(1), logits.T.log_softmax(1)
    middle = torch.logaddexp(one, two) - math.log(2)
    return 0.5 * sum((part.exp() * (part - middle)).sum(1).mean() for part in (one, two))  # type: ignore[return-value]


def list_net(logits: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean cross-entropy of the teacher's top-one probabilities and the student's, over j other than i.

    Both (n, n), cosines over a temperature.
    """
    n = len(logits)
    others = ~torch.eye(n, dtype=torch.bool, device=logits.device)
    student, theirs = (part.masked_fill(~others, float("-inf")) for part in (logits, teacher))
    return -(theirs.softmax(1) * student.log_softmax(1).masked_fill(~others, 0.0)).sum() / n


def list_mle(logits: Tensor, teacher: Tensor) -> Tensor:
    """Return -log of the likelihood of the teacher's order of the batch, by position and sentence (ListMLE).

    The mean over positions, as in the implementation whose weights the defaults are (the paper's formula is the sum).
    """
    ordered = logits.gather(1, teacher.argsort(dim=1, descending=True, stable=True))
    rest = ordered.flip(1).logcumsumexp(1).flip(1)  # of those not yet placed
    return (rest - ordered).mean()
