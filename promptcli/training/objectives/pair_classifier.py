"""``pair-classifier``: softmax(W [u; v; |u - v|]) of labelled pairs, W new and discarded at test (SBERT, section 3)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from promptcli.data.training_examples import LABELLED_PAIRS
from promptcli.training.methods.method import Method
from promptcli.training.methods.training_settings import TrainingSettings
from promptcli.training.objectives.objective import Columns, Objective
from promptcli.training.trainable_encoder import TrainableEncoder

#: Class of each label, as in the published code.
CLASSES = {"contradiction": 0, "entailment": 1, "neutral": 2}


class PairClassifier(Objective):
    """Cross-entropy of three classes; the classifier has a bias, as the library's has (the paper writes none)."""

    layouts = (LABELLED_PAIRS,)

    def __init__(
        self, method: Method, settings: TrainingSettings, encoder: TrainableEncoder, generator: torch.Generator
    ) -> None:
        super().__init__(method, settings, encoder, generator)
        width = encoder.backbone.width
        self.classifier = nn.Linear(3 * width, len(CLASSES), device=encoder.backbone.device)
        bound = (3 * width) ** -0.5  # torch's own start of a linear layer
        for parameter in self.classifier.parameters():
            start = torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator)
            parameter.data.copy_(start)

    def views(self, encoder: TrainableEncoder, columns: Columns) -> tuple[Tensor, ...]:
        """Return the logits (n, 3) of premises and hypotheses."""
        hidden = encoder.project(encoder.hidden(encoder.tokenize([(0, columns[0]), (1, columns[1])])))
        first, second = torch.split(hidden, len(columns[0]))
        return (self.classifier(torch.cat([first, second, (first - second).abs()], dim=1)).float(),)

    def loss(self, views: Sequence[Tensor], columns: Columns) -> Tensor:
        """Return the mean cross-entropy."""
        classes = torch.tensor([CLASSES[label] for label in columns[2]], device=views[0].device)
        return functional.cross_entropy(views[0], classes)
