"""``negative-view``: InfoNCE extended by a view of every sentence that its template negates (CoT-BERT)."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from promptcli.data.tables import SENTENCES
from promptcli.encoder.denoising import padded_blank
from promptcli.training.methods.method import Method
from promptcli.training.methods.training_settings import TrainingSettings
from promptcli.training.objectives.contrastive import Contrastive, equal_sentences
from promptcli.training.objectives.objective import Columns
from promptcli.training.trainable_encoder import TrainableEncoder


class NegativeView(Contrastive):
    """Two views that mean the sentence and one that does not, each less its template's bias over [PAD] tokens."""

    layouts = (SENTENCES,)

    def __init__(
        self, method: Method, settings: TrainingSettings, encoder: TrainableEncoder, generator: torch.Generator
    ) -> None:
        super().__init__(method, settings, encoder, generator)
        self.blank = padded_blank

    def sides(self, columns: Columns) -> list[tuple[int, Sequence[str]]]:
        """Return the sentences three times, once for each template."""
        return [(view, columns[0]) for view in range(3)]

    def loss(self, views: Sequence[Tensor], columns: Columns) -> Tensor:
        """Return the extended InfoNCE of the batch, or the mean over groups of it that know no others' negatives."""
        same = equal_sentences(columns, views[0].device) if self.settings.mask_duplicates else None
        n = len(columns[0])
        group = getattr(self.settings, "negatives_within", 0) or n
        losses = [
            negative_view_loss(
                *(view[first : first + group] for view in views),
                temperature=self.settings.temperature,
                same=None if same is None else same[first : first + group, first : first + group],
            )
            for first in range(0, n, group)
        ]
        return torch.stack(losses).mean()


def negative_view_loss(
    first: Tensor, second: Tensor, negative: Tensor, *, temperature: float = 0.05, same: Tensor | None = None
) -> Tensor:
    """Return the mean cross-entropy over [cos(z1_i, z2_j), cos(z1_i, z3_j), cos(z2_i, z3_j)] / tau with label i.

    Args:
        first: (n, d), z1.
        second: (n, d), z2.
        negative: (n, d), z3; all 2n cosines to it are negatives, the sentence's own included.
        temperature: tau.
        same: (n, n) bool, True where z2_j is no negative of z1_i although j is not i: equal sentences.
    """
    one, two, three = (functional.normalize(part.float(), dim=1) for part in (first, second, negative))
    positives = one @ two.T
    if same is not None:
        positives = positives.masked_fill(same, float("-inf"))
    logits = torch.cat([positives, one @ three.T, two @ three.T], dim=1) / temperature
    return functional.cross_entropy(logits, torch.arange(len(first), device=first.device))
