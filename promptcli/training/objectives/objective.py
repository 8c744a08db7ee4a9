"""The base of objectives: the columns it reads, the views of a batch, its own parameters, and the
loss.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from promptcli.backbones.backbone import Backbone
from promptcli.data.sources import TrainingExamples
from promptcli.errors import UsageError
from promptcli.training.methods.training_settings import TrainingSettings
from promptcli.training.objectives.similarity import LearnableScalar
from promptcli.training.trainable_encoder import (
    Columns,
    Side,
    TokenizedSide,
    TrainableEncoder,
    Views,
)

Settings = TypeVar("Settings", bound=TrainingSettings)  #: the settings that an objective reads


class Objective(nn.Module, Generic[Settings]):
    """One objective. Parameters that it registers learn with the rest and are left out of the
    trained encoder.

    If several processes train together, ``views`` sees each process's own examples and carries the
    gradient, and ``loss`` sees the rows of all. Parameters that ``loss`` reads are those of
    ``loss_parameters``. ``generator`` draws what parameters start from.
    """

    layouts: ClassVar[tuple[tuple[str, ...], ...]]  #: layouts of examples that it reads, best first

    def __init__(
        self, settings: Settings, encoder: TrainableEncoder, generator: torch.Generator
    ) -> None:
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

    def prepare(self, encoder: TrainableEncoder, generator: torch.Generator) -> None:
        """Make what views and loss need beside the encoder: mostly nothing."""

    @classmethod
    def choose(
        cls, examples: TrainingExamples, settings: Settings, backbone: Backbone
    ) -> TrainingExamples:
        """Return the examples that can be learned from on that backbone; all of them, mostly."""
        return examples

    @classmethod
    def columns_of_models(cls, settings: Settings) -> slice:
        """Return the columns that the models of the settings, e.g. a teacher, encode: mostly all of
        them.
        """
        return slice(None)

    @classmethod
    def samples(cls, read: Callable[[], TrainingExamples]) -> dict[str, list[str]]:
        """Return what the plan of a run shows of its examples, which are read for it: mostly
        nothing.
        """
        return {}

    def sides(self, columns: Columns) -> list[Side]:
        """Return each side: the number of its template, from 0, and its texts.

        They are tokenised a step ahead.
        """
        return [(0, columns[0])]

    def views(
        self, encoder: TrainableEncoder, sides: Sequence[TokenizedSide], columns: Columns
    ) -> Views:
        """Return what the loss is computed of, row i of each tensor from example i alone: by
        default h, (n, d).
        """
        return (encoder.hidden(sides),)

    def at_widths(self, views: Sequence[Tensor]) -> Iterator[Sequence[Tensor]]:
        """Yield the views (n, d), then their first k dimensions for each k of ``dims`` below d."""
        yield views
        for width in self._widths:
            yield [view[:, :width] for view in views]

    def learned_scalars(self) -> list[LearnableScalar]:
        """Return the numbers of the loss that learn, each at its own rate."""
        scalars = [module for module in self.modules() if isinstance(module, LearnableScalar)]
        return [scalar for scalar in scalars if scalar.logarithm is not None]

    def loss_parameters(self) -> dict[nn.Parameter, float]:
        """Return the parameters that ``loss`` reads, with the peak of their learning rate: by
        default the scalars that learn.
        """
        scalars = self.learned_scalars()
        return {one: scalar.rate for scalar in scalars for one in scalar.parameters()}

    def loss(self, views: Sequence[Tensor], columns: Columns) -> Tensor:
        """Return the mean loss over the examples, a scalar."""
        raise NotImplementedError
