"""``nt-xent`` and ``nt-xent-joint``: ConSERT's loss over two augmented views, alone or with labelled pairs' classes."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from promptcli.data.tables import SENTENCES
from promptcli.training.augmentations import AUGMENTATIONS, Adversary
from promptcli.training.methods.method import Method
from promptcli.training.methods.training_settings import (
    ADVERSARIAL,
    AugmentationSettings,
    JointSettings,
    TrainingSettings,
)
from promptcli.training.objectives.contrastive import equal_sentences
from promptcli.training.objectives.objective import Columns, Objective
from promptcli.training.objectives.pair_classifier import PairClassifier
from promptcli.training.trainable_encoder import TokenizedView, TrainableEncoder


class NTXent(Objective):
    """Each sentence is passed twice, by one augmentation and by the other."""

    layouts = (SENTENCES,)

    def __init__(
        self, method: Method, settings: TrainingSettings, encoder: TrainableEncoder, generator: torch.Generator
    ) -> None:
        super().__init__(method, settings, encoder, generator)
        assert isinstance(settings, AugmentationSettings), f"the settings of {method.name} have no augmentations"
        self.settings = settings

    def views(self, encoder: TrainableEncoder, sides: Sequence[TokenizedView], columns: Columns) -> tuple[Tensor, ...]:
        """Return both views, each (n, d) float32."""
        return tuple(augmented(encoder, sides, name, self.settings) for name in self.settings.augmentations)

    def loss(self, views: Sequence[Tensor], columns: Columns) -> Tensor:
        """Return NT-Xent of the whole batch."""
        return _contrast(views, columns[0], self.settings)


class JointNTXent(PairClassifier):
    """Cross-entropy over [u; v; |u - v|; max(u, v)^2] plus a share of NT-Xent of the premises and of the hypotheses."""

    blocks = 4

    def __init__(
        self, method: Method, settings: TrainingSettings, encoder: TrainableEncoder, generator: torch.Generator
    ) -> None:
        super().__init__(method, settings, encoder, generator)
        assert isinstance(settings, JointSettings), f"the settings of {method.name} have no contrastive weight"
        self.settings = settings

    def sides(self, columns: Columns) -> list[tuple[int, Sequence[str]]]:
        """Return the premises and the hypotheses, both as the one view sees them."""
        return [(0, columns[0]), (0, columns[1])]

    def features(self, first: Tensor, second: Tensor) -> list[Tensor]:
        """Return SBERT's features and the squares of the larger of both vectors' numbers."""
        return [*super().features(first, second), torch.maximum(first, second).square()]

    def views(self, encoder: TrainableEncoder, sides: Sequence[TokenizedView], columns: Columns) -> tuple[Tensor, ...]:
        """Return the logits (n, 3) of the plain vectors, and both views of premises and of hypotheses, (n, d) each."""
        settings, adversary = self.settings, Adversary()
        adversarial = ADVERSARIAL in settings.augmentations
        plain = encoder.hidden(sides, adversary.watch) if adversarial else encoder.hidden(sides)
        logits = self.classify(plain)
        if adversarial:
            adversary.turn(super().loss([logits], columns), settings.perturbation)
        made = {
            "none": lambda: plain,
            ADVERSARIAL: lambda: encoder.hidden(sides, adversary.move),
        }
        views = [
            made[name]() if name in made else augmented(encoder, sides, name, settings)
            for name in settings.augmentations
        ]
        return (logits, *(part for view in views for part in view.chunk(2)))

    def loss(self, views: Sequence[Tensor], columns: Columns) -> Tensor:
        """Return the classifier's loss and the contrastive ones, weighted."""
        logits, first, other_first, second, other_second = views
        premises = _contrast([first, second], columns[0], self.settings)
        hypotheses = _contrast([other_first, other_second], columns[1], self.settings)
        return super().loss([logits], columns) + self.settings.contrastive_weight * (premises + hypotheses)


def augmented(
    encoder: TrainableEncoder, sides: Sequence[TokenizedView], name: str, settings: AugmentationSettings
) -> Tensor:
    """Return the vectors of some sentences, augmented, (n, d) float32."""
    return encoder.hidden(sides, lambda batch: AUGMENTATIONS[name](batch, settings.cutoff_rate))


def _contrast(views: Sequence[Tensor], sentences: Sequence[str], settings: AugmentationSettings) -> Tensor:
    same = equal_sentences([sentences], views[0].device) if settings.mask_duplicates else None
    return nt_xent(*views, temperature=settings.temperature, same=same)


def nt_xent(first: Tensor, second: Tensor, *, temperature: float, same: Tensor | None = None) -> Tensor:
    """Return NT-Xent over 2n vectors: CE(a vs [b, a without itself]) + CE(b vs [a, b without itself]).

    With s(x, y) = cos(x, y) / tau each term is the mean over i of -log( exp s(a_i, b_i) / (sum_j exp s(a_i, b_j) +
    sum_{j != i} exp s(a_i, a_j)) ) (ConSERT, eq. 1; the published code adds both terms).

    Args:
        first: (n, d), a.
        second: (n, d), b.
        temperature: tau.
        same: (n, n) bool, True where sentence j is no negative of sentence i although j is not i: equal sentences.
    """
    one, two = (functional.normalize(part.float(), dim=1) for part in (first, second))
    itself = torch.eye(len(one), dtype=torch.bool, device=one.device)
    same = torch.zeros_like(itself) if same is None else same
    hidden = torch.cat([same, same | itself], dim=1)
    labels = torch.arange(len(one), device=one.device)
    losses = [
        functional.cross_entropy(
            (torch.cat([a @ b.T, a @ a.T], dim=1) / temperature).masked_fill(hidden, float("-inf")), labels
        )
        for a, b in ((one, two), (two, one))
    ]
    return losses[0] + losses[1]
