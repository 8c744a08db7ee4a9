"""The base class of objectives, the texts and vectors that pass through one, and the numbers that
one may learn.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.data.training_data import TrainingExamples
from promptcli.encoder.encoder import TorchEncoder
from promptcli.errors import UsageError
from promptcli.training.methods.method import TrainingSettings

Columns = Sequence[Sequence[str]]  #: texts by column, n in each; labels and words are texts
Views = Sequence[Tensor]  #: the inputs of a loss
SideTexts = tuple[int, Sequence[str]]  #: the number of a template, from 0, and its texts
Settings = TypeVar("Settings", bound=TrainingSettings)  #: the settings that an objective reads


@dataclass(frozen=True)
class TokenizedSide:
    """The token ids of a side's texts in their template."""

    encoder: TorchEncoder
    texts: Sequence[str]
    ids: RaggedIds
    truncated: np.ndarray  #: (n,) bool: the text lost tokens

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each sentence, without the template."""
        lengths: list[int] = (self.ids.lengths - self.encoder.template.length).tolist()
        return lengths


TokenizedSides = Sequence[TokenizedSide]


class LearnableScalar(nn.Module):
    """A positive number, fixed or learned at its own rate.

    The learned parameter is its logarithm, ``log_NAME``, so the number stays positive. A run
    reports the value of each learned number, and the model's record keeps it.

    Args:
        name: Name in reports.
        start: The fixed or initial value.
        rate: Peak learning rate; 0: fixed.
        least: Lower bound, unless the initial value is lower.
        device: Device of the parameter.
    """

    def __init__(
        self,
        name: str,
        start: float,
        rate: float = 0.0,
        *,
        least: float = 0.0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.name = name
        self.rate = rate
        self._start = start
        self._least = min(least, start)
        if rate > 0:
            logarithm = nn.Parameter(torch.tensor(math.log(start), device=device))
            self.register_parameter(f"log_{name}", logarithm)

    @property
    def logarithm(self) -> nn.Parameter | None:
        """The learned parameter; None if the number is fixed."""
        return next(self.parameters(), None)

    @property
    def value(self) -> Tensor | float:
        """The number; a scalar tensor with gradient if it learns."""
        if self.logarithm is None:
            return self._start
        return self.logarithm.exp().clamp(min=self._least)


class Objective(nn.Module, Generic[Settings]):
    """The sides, views and loss of a batch.

    The registered parameters of an objective learn with the encoder, and the trained encoder leaves
    them out. The ``encoder`` is the ``TrainableEncoder`` that holds the objective.

    If several processes train together, ``views`` sees the examples of one process and carries the
    gradient, and ``loss`` sees the rows of all processes. ``loss_parameters`` lists the parameters
    that ``loss`` reads.
    """

    layouts: ClassVar[tuple[tuple[str, ...], ...]]  #: supported layouts of examples, best first

    def __init__(self, settings: Settings, encoder: Any, generator: torch.Generator) -> None:
        super().__init__()
        self.settings = settings
        full = encoder.backbone.last_width
        widths = settings.widths
        if max(widths, default=0) > full:
            raise UsageError(
                f"{widths[0]} is too large: {encoder.backbone.name!r} has {full} dimensions",
                parameter="dims",
            )
        self._widths = [width for width in widths if width < full]
        self.prepare(encoder, generator)

    def prepare(self, encoder: Any, generator: torch.Generator) -> None:
        """Make the modules that views and loss need in addition to the encoder; by default none.

        ``generator`` draws initial values.
        """

    @classmethod
    def choose(
        cls, examples: TrainingExamples, settings: Settings, backbone: Backbone
    ) -> TrainingExamples:
        """Return the examples that the objective can use on a backbone; by default all."""
        return examples

    @classmethod
    def columns_of_models(cls, settings: Settings) -> slice:
        """Return the columns that a model named by the settings, e.g. a teacher, encodes; by
        default all.
        """
        return slice(None)

    @classmethod
    def samples(cls, examples: TrainingExamples) -> dict[str, list[str]]:
        """Return the examples that the plan of a run shows; by default none."""
        return {}

    def sides(self, columns: Columns) -> list[SideTexts]:
        """Return the sides: the number of a template, from 0, and its texts.

        The next step's sides are tokenised during a step.
        """
        return [(0, columns[0])]

    def views(self, encoder: Any, sides: TokenizedSides, columns: Columns) -> Views:
        """Return the inputs of the loss; by default h, (n, d).

        Row i of each tensor depends on example i only.
        """
        return (encoder.hidden(sides),)

    def at_widths(self, views: Views) -> Iterator[Sequence[Tensor]]:
        """Yield the views (n, d), then their first k dimensions for each k of ``dims`` below d."""
        yield views
        for width in self._widths:
            yield [view[:, :width] for view in views]

    def learned_scalars(self) -> list[LearnableScalar]:
        """Return the learned scalars of the loss, each with its own rate."""
        scalars = [module for module in self.modules() if isinstance(module, LearnableScalar)]
        return [scalar for scalar in scalars if scalar.logarithm is not None]

    def loss_parameters(self) -> dict[nn.Parameter, float]:
        """Return the parameters that ``loss`` reads, with their peak learning rates; by default the
        learned scalars.
        """
        scalars = self.learned_scalars()
        return {parameter: scalar.rate for scalar in scalars for parameter in scalar.parameters()}

    def loss(self, views: Views, columns: Columns) -> Tensor:
        """Return the mean loss over the examples, a scalar."""
        raise NotImplementedError
