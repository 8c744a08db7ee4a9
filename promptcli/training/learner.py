"""A method at work on a backbone: what learns, what is saved, and the encoder that it makes."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor, nn

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.lora import ALPHA
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.tensor_names import TUNED
from promptcli.training.methods.method import Method
from promptcli.training.methods.training_settings import TrainingSettings
from promptcli.training.objectives import find_objective
from promptcli.training.teacher import SentenceVectors
from promptcli.training.trainable_encoder import Columns, TokenizedSide, TrainableEncoder, Views

_DECAY_STEPS = 100  # steps after which the weight of the masked-LM loss has decayed by its factor


class Learner(TrainableEncoder):
    """A method at work on a backbone: an encoder in training and the method's objective."""

    def __init__(
        self,
        method: Method,
        settings: TrainingSettings,
        backbone: Backbone,
        models: Mapping[str, SentenceVectors] = MappingProxyType({}),
    ) -> None:
        objective = find_objective(method)
        generator = torch.Generator().manual_seed(settings.seed)
        super().__init__(method, settings, backbone, generator, models)
        self.objective = objective(settings, self, generator)

    def tokenize(self, columns: Columns) -> list[TokenizedSide]:
        return self.tokenize_sides(self.objective.sides(columns))

    def forward(self, columns: Columns, sides: Sequence[TokenizedSide] | None = None) -> Views:
        """Return the objective's views of n examples, given as texts by column.

        ``sides``: already tokenised.
        """
        # summed loss and number of predictions; every pass adds to them
        self.mlm_sums = torch.zeros(2, device=self.backbone.device)
        if sides is None:
            sides = self.tokenize(columns)
        return self.objective.views(self, sides, columns)

    def masked_lm_loss(self, step: int, predictions: Tensor) -> Tensor:
        """Return the weighted masked-LM loss of the last batch (DCPCSE 3.3).

        It is the sum over this process's passes, divided by the ``predictions`` of all processes.
        """
        weight = self.settings.mlm_weight * self.method.mlm_decay ** (step / _DECAY_STEPS)
        total, _ = self.mlm_sums
        loss: Tensor = weight * total / predictions.clamp(min=1)
        return loss

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the tensors that learn, by their names in the state of a run."""
        trainable = dict(self.learned)
        modules: dict[str, nn.Module | None] = {
            "projection": self.head,
            "objective": self.objective,
            "mlm": self.mlm_head,
        }
        if {"backbone", "adapter"}.intersection(self.method.learns):
            modules[TUNED.rstrip(".")] = self.model
        for prefix, module in modules.items():
            for name, parameter in module.named_parameters() if module is not None else ():
                if parameter.requires_grad:
                    trainable[f"{prefix}.{name}"] = parameter
        return trainable

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of a saved model's tensors: prompt, kept head, and what was tuned of the
        backbone, or added to it.
        """
        tensors = self._outside_the_backbone()
        for name, tensor in self._weights_of_the_backbone().items():
            tensors[f"{TUNED}{name}"] = tensor
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}

    def _outside_the_backbone(self) -> dict[str, Tensor]:
        """Return the learned tensors of prompt and pooling, and of the head if it is kept."""
        tensors = dict(self.learned)
        if self.settings.keep_head:
            for name, parameter in self.head.named_parameters():
                tensors[f"projection.{name}"] = parameter
        return {name: tensor.detach() for name, tensor in tensors.items()}

    def _weights_of_the_backbone(self) -> dict[str, Tensor]:
        """Return the weights of a tuned backbone that are not fixed, or those of an adapter."""
        parameters = dict(self.model.named_parameters())
        fixed = {name for name, tensor in parameters.items() if not tensor.requires_grad}
        if self.settings.lora_rank:
            adapter = {name: one for name, one in parameters.items() if name not in fixed}
            return {**adapter, ALPHA: torch.tensor(float(self.settings.lora_alpha))}
        if "backbone" not in self.method.learns:
            return {}
        weights = self.model.state_dict()
        return {name: tensor for name, tensor in weights.items() if name not in fixed}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy a model's or a checkpoint's tensors into those that learn, where name and shape
        agree.
        """
        with torch.no_grad():
            for name, parameter in self.trainable().items():
                if name in tensors and tensors[name].shape == parameter.shape:
                    parameter.copy_(tensors[name])

    def trained(self, tensors: Mapping[str, Tensor]) -> TorchEncoder:
        """Return the encoder of a checkpoint's tensors, which are copied."""
        self.load(tensors)
        self.eval()
        return self.encoder()

    def encoder(self, *, selecting: bool = False) -> TorchEncoder:
        """Return the encoder of the present weights, which it shares.

        ``selecting``: the encoder that is scored on the development set. With the setting
        ``selection`` "code" it is read as the published program reads it, see
        ``Method.selecting``, else as at test.
        """
        family = self.backbone.provenance.family
        recipe = self.method.recipe(self.backbone.name, family, self.settings)
        if selecting:
            recipe = self.method.selecting(recipe, self.settings, family)
        return TorchEncoder(recipe, self.backbone, self._outside_the_backbone())
