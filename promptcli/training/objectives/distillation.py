"""``distillation``: a student's vectors against a teacher's, or the cosines of all pairs of a batch against its."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from promptcli.data.dialect import SENTENCES
from promptcli.encoder.batching import to_device
from promptcli.training.methods.distill import DistillSettings
from promptcli.training.objectives.objective import Columns, Objective
from promptcli.training.trainable_encoder import TokenizedView, TrainableEncoder


class Distillation(Objective[DistillSettings]):
    """The teacher reads as at test; vectors of another width are compared through a linear map that is discarded."""

    layouts = (SENTENCES,)

    def __init__(self, settings: DistillSettings, encoder: TrainableEncoder, generator: torch.Generator) -> None:
        super().__init__(settings, encoder, generator)
        self.teacher, self.distance = encoder.models["teacher"], _DISTANCES[settings.target]
        self.map: nn.Module = nn.Identity()
        width = encoder.backbone.width
        if settings.target == "vectors" and width != self.teacher.width:
            self.map = nn.Linear(width, self.teacher.width, bias=False, device=encoder.backbone.device)
            self.map.weight.data.copy_(torch.randn(self.map.weight.shape, generator=generator) * width**-0.5)

    def views(self, encoder: TrainableEncoder, sides: Sequence[TokenizedView], columns: Columns) -> tuple[Tensor, ...]:
        """Return the student's vectors (n, d) and the teacher's (n, d'), float32."""
        student = self.map(encoder.hidden(sides)).float()
        with torch.autocast(student.device.type, enabled=False):
            teacher = to_device(self.teacher.encode(list(columns[0])), student.device)
        return student, teacher

    def loss(self, views: Sequence[Tensor], columns: Columns) -> Tensor:
        """Return the distance of the whole batch."""
        return self.distance(*views)


def vector_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean of 1 - cos(h_i, t_i), of the student's h and the teacher's t, both (n, d)."""
    return (1 - functional.cosine_similarity(student, teacher)).mean()


def similarity_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean over all pairs i != j of (cos(h_i, h_j) - cos(t_i, t_j))^2 (Tung and Mori 2019, eq. 4, cosines).

    The student's h are (n, d), the teacher's t (n, e).
    """
    h, t = functional.normalize(student, dim=1), functional.normalize(teacher, dim=1)
    n = len(student)
    return (h @ h.T - t @ t.T).fill_diagonal_(0).square().sum() / max(1, n * (n - 1))


_DISTANCES = {"vectors": vector_distance, "similarities": similarity_distance}
