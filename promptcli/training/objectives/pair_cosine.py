"""``pair-cosine``: the cosine of two sentences against their graded likeness, squared error (SBERT, section 3)."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from promptcli.backbones.backbone import Backbone
from promptcli.data.training_examples import GRADED_PAIRS, TrainingExamples
from promptcli.encoder.batching import to_device
from promptcli.errors import UsageError
from promptcli.training.methods.method import Method
from promptcli.training.methods.training_settings import GradedSettings, TrainingSettings
from promptcli.training.objectives.objective import Columns, Objective
from promptcli.training.trainable_encoder import TokenizedView, TrainableEncoder


class PairCosine(Objective):
    """Scores are divided by the largest that there may be, so that they lie between 0 and 1."""

    layouts = (GRADED_PAIRS,)

    def __init__(
        self, method: Method, settings: TrainingSettings, encoder: TrainableEncoder, generator: torch.Generator
    ) -> None:
        super().__init__(method, settings, encoder, generator)
        assert isinstance(settings, GradedSettings), f"the settings of {method.name} have no top score"
        self._top = settings.top_score

    @classmethod
    def choose(cls, examples: TrainingExamples, settings: TrainingSettings, backbone: Backbone) -> TrainingExamples:
        """Return the examples.

        Raises:
            UsageError: A score above the largest that there may be.
        """
        assert isinstance(settings, GradedSettings)
        largest = max(map(float, examples.columns[2]))
        if largest > settings.top_score:
            raise UsageError(
                f"a score of {largest:g} is above `top_score`, {settings.top_score:g}; give the scale's end"
            )
        return examples

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
        return functional.mse_loss(views[0], to_device(scores, views[0].device) / self._top)
