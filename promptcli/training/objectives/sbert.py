"""SBERT's objectives (section 3): ``pair-classifier`` of labelled pairs, ``pair-cosine`` of graded ones."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from promptcli.backbones.backbone import Backbone
from promptcli.data.dialect import GRADED_PAIRS, LABELLED_PAIRS
from promptcli.data.sources import TrainingExamples
from promptcli.encoder.batching import to_device
from promptcli.errors import UsageError
from promptcli.notes import note
from promptcli.training.methods.sbert import GradedSettings
from promptcli.training.objectives.objective import Columns, Objective, Settings
from promptcli.training.trainable_encoder import TokenizedView, TrainableEncoder

#: Class of each label, as in the published code.
CLASSES = {"contradiction": 0, "entailment": 1, "neutral": 2}


class PairClassifier(Objective[Settings]):
    """softmax(W [u; v; |u - v|]) of three classes, W new and discarded at test.

    The classifier has a bias, as the library's has (the paper writes none).
    """

    layouts = (LABELLED_PAIRS,)
    blocks: ClassVar[int] = 3  #: vectors side by side that the classifier reads

    def __init__(self, settings: Settings, encoder: TrainableEncoder, generator: torch.Generator) -> None:
        super().__init__(settings, encoder, generator)
        width = self.blocks * encoder.backbone.width
        self.classifier = nn.Linear(width, len(CLASSES), device=encoder.backbone.device)
        bound = width**-0.5  # torch's own start of a linear layer
        for parameter in self.classifier.parameters():
            start = torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator)
            parameter.data.copy_(start)

    def sides(self, columns: Columns) -> list[tuple[int, Sequence[str]]]:
        """Return the premises and the hypotheses."""
        return [(0, columns[0]), (1, columns[1])]

    def views(self, encoder: TrainableEncoder, sides: Sequence[TokenizedView], columns: Columns) -> tuple[Tensor, ...]:
        """Return the logits (n, 3) of premises and hypotheses."""
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

    def loss(self, views: Sequence[Tensor], columns: Columns) -> Tensor:
        """Return the mean cross-entropy."""
        classes = np.array([CLASSES[label] for label in columns[2]])
        return functional.cross_entropy(views[0], to_device(classes, views[0].device))


class PairCosine(Objective[GradedSettings]):
    """Squared error of the cosine of two sentences against their graded similarity.

    Scores lie between 0 and 1: those of the data are divided by the highest, or by ``top_score``.
    """

    layouts = (GRADED_PAIRS,)

    @classmethod
    def choose(cls, examples: TrainingExamples, settings: GradedSettings, backbone: Backbone) -> TrainingExamples:
        """Return the examples with scores from 0 to 1."""
        *sides, column = examples.columns
        scores = list(map(float, column))
        top = settings.top_score or max(scores)
        if max(scores) > top:
            raise UsageError(f"a score of {max(scores):g} is above `top_score`, {top:g}; give the scale's end")
        note(f"scores from {min(scores):g} to {max(scores):g} are divided by {top:g}; `top_score` sets another divisor")
        return replace(examples, columns=(*sides, [repr(score / top) for score in scores]))

    def sides(self, columns: Columns) -> list[tuple[int, Sequence[str]]]:
        """Return the first and the second sentences."""
        return [(0, columns[0]), (0, columns[1])]

    def views(self, encoder: TrainableEncoder, sides: Sequence[TokenizedView], columns: Columns) -> tuple[Tensor, ...]:
        """Return the cosines (n,)."""
        first, second = encoder.hidden(sides).chunk(2)
        return (functional.cosine_similarity(first, second),)

    def loss(self, views: Sequence[Tensor], columns: Columns) -> Tensor:
        """Return the mean squared error."""
        scores = np.array([float(score) for score in columns[2]], dtype=np.float32)
        return functional.mse_loss(views[0], to_device(scores, views[0].device))
