"""Objectives of pairs with a label or a grade: SBERT's classifier (section 3), and losses of
cosines or angles.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.devices import to_device
from promptcli.data.layouts import GRADED_PAIRS, LABELLED_PAIRS
from promptcli.data.training_data import TrainingExamples
from promptcli.errors import UsageError
from promptcli.notes import note
from promptcli.training.methods.sbert import GradedSettings
from promptcli.training.objective import (
    Columns,
    Objective,
    Settings,
    SideTexts,
    TokenizedSides,
    Views,
)
from promptcli.training.trainable_encoder import TrainableEncoder

#: The class of each label, as in the published code.
CLASSES = {"contradiction": 0, "entailment": 1, "neutral": 2}


class PairClassifier(Objective[Settings]):
    """softmax(W [u; v; |u - v|]) of three classes; W is new, and discarded after training.

    The classifier has a bias, as in the library; the paper's formula has no bias.
    """

    layouts = (LABELLED_PAIRS,)
    blocks: ClassVar[int] = 3  #: vectors side by side that the classifier reads

    def prepare(self, encoder: TrainableEncoder, generator: torch.Generator) -> None:
        width = self.blocks * encoder.backbone.width
        self.classifier = nn.Linear(width, len(CLASSES), device=encoder.backbone.device)
        bound = width**-0.5  # as torch initialises a linear layer
        for parameter in self.classifier.parameters():
            start = torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator)
            parameter.data.copy_(start)

    def sides(self, columns: Columns) -> list[SideTexts]:
        return [(0, columns[0]), (1, columns[1])]

    def views(self, encoder: TrainableEncoder, sides: TokenizedSides, columns: Columns) -> Views:
        hidden = encoder.project(encoder.hidden(sides))
        return (self.classify(hidden),)

    def classify(self, hidden: Tensor) -> Tensor:
        """Return the logits (n, 3) of the vectors of premises, then hypotheses, (2n, d)."""
        first, second = hidden.chunk(2)
        logits: Tensor = self.classifier(torch.cat(self.features(first, second), dim=1))
        return logits.float()

    def features(self, first: Tensor, second: Tensor) -> list[Tensor]:
        """Return the vectors that the classifier reads, each (n, d)."""
        return [first, second, (first - second).abs()]

    def loss(self, views: Views, columns: Columns) -> Tensor:
        classes = np.array([CLASSES[label] for label in columns[2]])
        return functional.cross_entropy(views[0], to_device(classes, views[0].device))


class PairCosine(Objective[GradedSettings]):
    """A loss of graded pairs.

    Scores are divided by ``top_score``, else by the one farthest from 0, to lie between -1 and 1.
    """

    layouts = (GRADED_PAIRS,)

    @classmethod
    def choose(
        cls, examples: TrainingExamples, settings: GradedSettings, backbone: Backbone
    ) -> TrainingExamples:
        *sides, column = examples.columns
        scores = [float(score) for score in column]
        farthest = max(scores, key=abs)
        top = settings.top_score or abs(farthest)
        if abs(farthest) > top:
            raise UsageError(
                f"a score of {farthest:g} is beyond {top:g}; give the scale's end",
                parameter="top_score",
            )
        note(
            f"scores from {min(scores):g} to {max(scores):g} are divided by {top:g}; top-score sets"
            " another divisor"
        )
        return replace(examples, columns=(*sides, [repr(score / top) for score in scores]))

    def sides(self, columns: Columns) -> list[SideTexts]:
        return [(0, columns[0]), (0, columns[1])]

    def views(self, encoder: TrainableEncoder, sides: TokenizedSides, columns: Columns) -> Views:
        return encoder.hidden(sides).float().chunk(2)

    def loss(self, views: Views, columns: Columns) -> Tensor:
        first, second = views
        scores = to_device(
            np.array([float(score) for score in columns[2]], dtype=np.float32), first.device
        )
        return LOSSES[self.settings.loss](first, second, scores, self.settings)


def squared(first: Tensor, second: Tensor, scores: Tensor, settings: GradedSettings) -> Tensor:
    """Return the mean of (cos(u_i, v_i) - score_i)^2 (SBERT, section 3)."""
    return functional.mse_loss(functional.cosine_similarity(first, second), scores)


def cosent(first: Tensor, second: Tensor, scores: Tensor, settings: GradedSettings) -> Tensor:
    """Return CoSENT: a pair with a higher score should have a larger cosine."""
    return _order_loss(functional.cosine_similarity(first, second), scores, settings.scale)


def angle(first: Tensor, second: Tensor, scores: Tensor, settings: GradedSettings) -> Tensor:
    """Return AnglE (Li and Li, 2024, eq. 3 to 6): the order by angles, and the weighted in-batch
    negatives.
    """
    loss = _order_loss(angle_similarity(first, second), scores, settings.scale)
    if settings.in_batch_weight:
        in_batch = _in_batch_loss(first, second, scores, settings.scale)
        loss = loss + settings.in_batch_weight * in_batch
    return loss


def pearson(first: Tensor, second: Tensor, scores: Tensor, settings: GradedSettings) -> Tensor:
    """Return 1 - Pearson's correlation of cosines and scores over the batch (Pcc-tuning).

    The loss is 1 if the cosines or the scores are constant.
    """
    cosines = functional.cosine_similarity(first, second)
    x = cosines - cosines.mean()
    y = scores - scores.mean()
    lengths = (x.square().sum() * y.square().sum()).clamp(min=1e-12).sqrt()
    return 1 - (x * y).sum() / lengths


def angle_similarity(first: Tensor, second: Tensor) -> Tensor:
    """Return |sum of Re and Im of z / w, over |z| / |w||, (n,).

    The first half of a vector is the real part, the second half the imaginary part.
    """
    a, b = first.chunk(2, dim=1)  # z = a + bi
    c, d = second.chunk(2, dim=1)  # w = c + di
    real = a * c + b * d
    imaginary = b * c - a * d
    lengths = torch.linalg.vector_norm(first, dim=1) * torch.linalg.vector_norm(second, dim=1)
    similarities: Tensor = ((real + imaginary).sum(1) / lengths.clamp(min=1e-8)).abs()
    return similarities


def _order_loss(similarities: Tensor, scores: Tensor, scale: float) -> Tensor:
    """Return log(1 + sum of exp(scale (s_j - s_i)) over the pairs i with a higher score than j)."""
    differences = scale * (similarities.unsqueeze(0) - similarities.unsqueeze(1))
    is_not_higher = scores.unsqueeze(1) <= scores.unsqueeze(0)
    differences = differences.masked_fill(is_not_higher, float("-inf"))
    log_one = differences.new_zeros(1)  # the 1 of the formula
    return torch.logsumexp(torch.cat([log_one, differences.flatten()]), 0)


def _in_batch_loss(first: Tensor, second: Tensor, scores: Tensor, scale: float) -> Tensor:
    """Return the sum of the cross-entropies of each sentence's partner among all other sentences,
    over the pairs with the highest score, divided by 2n.
    """
    both = functional.normalize(torch.cat([first, second]), dim=1)
    logits = scale * (both @ both.T)
    itself = torch.eye(len(both), dtype=torch.bool, device=both.device)
    partners = torch.arange(len(both), device=both.device).roll(len(first))
    losses = functional.cross_entropy(
        logits.masked_fill(itself, float("-inf")), partners, reduction="none"
    )
    mean: Tensor = (losses * (scores >= 1).repeat(2)).mean()
    return mean


#: A loss takes the first and second vectors (n, d), scores (n,) from -1 to 1 and the settings, and
#: returns a scalar.
LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor, GradedSettings], Tensor]] = {
    "squared": squared,
    "cosent": cosent,
    "angle": angle,
    "pearson": pearson,
}
