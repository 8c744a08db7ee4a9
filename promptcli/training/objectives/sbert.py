"""``pair-classifier``: SBERT's classifier of labelled pairs (section 3)."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from promptcli.data.dialect import LABELLED_PAIRS
from promptcli.encoder.batching import to_device
from promptcli.training.objectives.objective import Columns, Objective, Settings
from promptcli.training.trainable_encoder import TokenizedView, TrainableEncoder

CLASSES = {"contradiction": 0, "entailment": 1, "neutral": 2}  #: class of each label, as in the published code


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
        classes = np.array([CLASSES[label] for label in columns[2]])
        return functional.cross_entropy(views[0], to_device(classes, views[0].device))
