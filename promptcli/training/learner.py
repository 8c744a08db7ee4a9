"""Learner: all that learns in a run: an encoder in training and its method's objective."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor, nn

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.lora import ALPHA
from promptcli.encoder.encoder import TUNED, Encoder
from promptcli.training.methods.method import Method, keeps_head
from promptcli.training.methods.training_settings import LoRASettings, TrainingSettings
from promptcli.training.objectives import find_objective
from promptcli.training.trainable_encoder import TokenizedView, TrainableEncoder


class Learner(TrainableEncoder):
    """A method at work on a backbone; see ``TrainableEncoder``, and an unknown objective is refused."""

    def __init__(
        self,
        method: Method,
        settings: TrainingSettings,
        backbone: Backbone,
        models: Mapping[str, Encoder] = MappingProxyType({}),
    ) -> None:
        objective = find_objective(method)
        generator = torch.Generator().manual_seed(settings.seed)
        super().__init__(method, settings, backbone, generator, models)
        self.objective = objective(settings, self, generator)

    def tokenize(self, columns: Sequence[Sequence[str]]) -> list[TokenizedView]:
        """Return what ``forward`` reads of n examples, given as texts by column; computes nothing on a device."""
        return self.tokenize_sides(self.objective.sides(columns))

    def forward(
        self, columns: Sequence[Sequence[str]], sides: Sequence[TokenizedView] | None = None
    ) -> tuple[Tensor, ...]:
        """Return the objective's views of n examples, given as texts by column, and tokenised already if they are.

        Of ``contrastive`` z1, z2 and, where there are hard negatives, z3, each (n, d) float32.
        """
        self.mlm_sums = torch.zeros(2, device=self.backbone.device)
        return self.objective.views(self, self.tokenize(columns) if sides is None else sides, columns)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the tensors that learn, by the names they are stored under."""
        parts: dict[str, nn.Module | None] = {
            "projection": self.head,
            "objective": self.objective,
            "mlm": self.mlm_head,
            TUNED.rstrip("."): self.model if {"backbone", "adapter"} & set(self.method.learns) else None,
        }
        found = self.learned()
        for part, module in parts.items():
            for name, parameter in () if module is None else module.named_parameters():
                if parameter.requires_grad:
                    found[f"{part}.{name}"] = parameter
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of what an entry needs: prompt, kept head, and of the backbone what was tuned or added."""
        model = self.model.state_dict() if "backbone" in self.method.learns else {}
        if isinstance(self.settings, LoRASettings):
            learned = {name: one for name, one in self.model.named_parameters() if one.requires_grad}
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
        head = self.head.named_parameters() if keeps_head(self.settings) else ()
        kept = self.learned() | {f"projection.{name}": parameter for name, parameter in head}
        return {name: parameter.detach() for name, parameter in kept.items()}

    def encoder(self, *, selecting: bool = False) -> Encoder:
        """Return the encoder that the learner is now, on the same backbone, as at test or as selection wants it."""
        family = self.backbone.provenance.family
        recipe = self.method.recipe(self.backbone.name, family, self.settings)
        if selecting:
            recipe = self.method.selecting(recipe, self.settings, family)
        return Encoder(recipe, self.backbone, self._outside())
