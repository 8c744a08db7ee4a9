"""Learner: all that learns in a run: an encoder in training and its method's objective."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.lora import ALPHA
from promptcli.encoder.encoder import TUNED, Encoder
from promptcli.training.methods.method import Method
from promptcli.training.methods.training_settings import LoRASettings, TrainingSettings
from promptcli.training.objectives import find_objective
from promptcli.training.trainable_encoder import TokenizedView, TrainableEncoder


@dataclass(frozen=True)
class BatchViews:
    """What the loss of a batch is computed of."""

    #: The objective's views: of ``contrastive`` z1, z2 and, where there are hard negatives, z3, each (n, d) float32.
    vectors: tuple[Tensor, ...]
    mlm: Tensor  #: sum of the masked-LM losses and their number, (2,); zeros without that term


class Learner(nn.Module):
    """A method at work on a backbone.

    Args:
        method: What learns how.
        settings: In force.
        backbone: Float32; changed where the method tunes it.
        models: Encoders that settings name, by setting; they stay as they are.

    Raises:
        UsageError: An unknown objective, or parts that do not fit together.
    """

    def __init__(
        self,
        method: Method,
        settings: TrainingSettings,
        backbone: Backbone,
        models: Mapping[str, Encoder] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.method, self.settings, self.backbone = method, settings, backbone
        objective = find_objective(method)
        generator = torch.Generator().manual_seed(settings.seed)
        self.network = TrainableEncoder(method, settings, backbone, generator)
        self.network.models = models
        self.objective = objective(method, settings, self.network, generator)

    def tokenize(self, columns: Sequence[Sequence[str]]) -> list[TokenizedView]:
        """Return what ``forward`` reads of n examples, given as texts by column; computes nothing on a device."""
        return self.network.tokenize(self.objective.sides(columns))

    def forward(self, columns: Sequence[Sequence[str]], sides: Sequence[TokenizedView] | None = None) -> BatchViews:
        """Return the views of n examples, given as texts by column, and tokenised already if they are."""
        self.network.forget_mlm()
        sides = self.tokenize(columns) if sides is None else sides
        return BatchViews(self.objective.views(self.network, sides, columns), self.network.mlm_sums)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the tensors that learn, by the names they are stored under."""
        parts = {"projection": self.network.head, "objective": self.objective}
        if self.network.mlm is not None:
            parts["mlm"] = self.network.mlm.head
        if {"backbone", "adapter"} & set(self.method.learns):
            parts[TUNED.rstrip(".")] = self.network.model
        found = self.network.learned()
        for part, module in parts.items():
            learning = {name: one for name, one in module.named_parameters() if one.requires_grad}
            found |= {f"{part}.{name}": parameter for name, parameter in learning.items()}
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of what an entry needs: prompt, kept head, and of the backbone what was tuned or added."""
        model = self.network.model.state_dict() if "backbone" in self.method.learns else {}
        if isinstance(self.settings, LoRASettings):
            learned = {name: one for name, one in self.network.model.named_parameters() if one.requires_grad}
            model = {**learned, ALPHA: torch.tensor(float(self.settings.lora_alpha))}
        kept = self._outside() | {f"{TUNED}{name}": tensor for name, tensor in model.items()}
        return {name: tensor.detach().clone() for name, tensor in kept.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take numbers that ``tensors`` gave, of this learner or as far as another one's have the same place."""
        with torch.no_grad():
            for name, parameter in self.trainable().items():
                if name in tensors and tensors[name].shape == parameter.shape:
                    parameter.copy_(tensors[name])

    def _outside(self) -> dict[str, Tensor]:
        """Return what is learned outside the backbone and stays at test time."""
        head = self.network.head.named_parameters() if self.method.keeps_head else ()
        kept = self.network.learned() | {f"projection.{name}": parameter for name, parameter in head}
        return {name: parameter.detach() for name, parameter in kept.items()}

    def encoder(self, *, selecting: bool = False) -> Encoder:
        """Return the encoder that the learner is now, on the same backbone, as at test or as selection wants it."""
        recipe = self.method.recipe(self.backbone.name, self.backbone.provenance.family, self.settings)
        if selecting:
            recipe = self.method.selecting(recipe, self.settings, self.backbone.provenance.family)
        return Encoder(recipe, self.backbone, self._outside())
