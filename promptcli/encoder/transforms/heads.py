"""Networks on the pooled vector: ``projection``, ``cls-pooler``, ``topk-tokens``, ``dense``; and
``normalize``.
"""

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from promptcli.backbones import bert
from promptcli.encoder.components import BuildContext, Transform, seeded_by, shapes_of
from promptcli.encoder.embeddings import cut_columns
from promptcli.errors import UsageError, look_up


class ClsPooler(Transform):
    """The checkpoint's pooler; refused if the checkpoint has none."""

    spec = "cls-pooler"

    def __init__(self, context: BuildContext) -> None:
        backbone = context.backbone
        pooler = backbone.pooler
        self.takes = backbone.width
        self.network = pooler
        self.stages = [("head", lambda vectors: pooler(vectors.to(backbone.dtype)).float())]


#: Activation functions by the last part of their torch class name, lower-cased.
ACTIVATIONS = {"identity": bert.ACTIVATIONS["linear"], **bert.ACTIVATIONS}


class Dense(Transform):
    """y = activation(x W^T + b), (n, d) -> (n, d').

    The spec's number tells the tensors of several dense transforms apart.
    """

    def __init__(self, context: BuildContext) -> None:
        self.spec = str(context.spec)
        self.activation: str = context.spec["activation"]  #: its name
        activate = look_up("activation of transform 'dense'", self.activation, ACTIVATIONS)
        names = [f"dense.{context.spec['number']}.{name}" for name in ("weight", "bias")]
        if any(name not in context.tensors for name in names):
            raise UsageError(
                f"transform {self.spec!r} needs learned tensors, which are missing; load its model"
            )
        self._tensors = {name: context.tensors[name].float() for name in names}
        weight, bias = (tensor.to(context.backbone.device) for tensor in self._tensors.values())
        self.takes = weight.size(1)
        self.stages = [
            ("vector", lambda vectors: activate(functional.linear(vectors.float(), weight, bias)))
        ]


class Normalize(Transform):
    """x / |x|; a zero vector stays zero."""

    spec = "normalize"

    def __init__(self, context: BuildContext) -> None:
        context.refuse_argument("transform 'normalize'")
        self.stages = [("vector", lambda vectors: functional.normalize(vectors.float(), dim=1))]


class Truncate(Transform):
    """The first k columns, of a model that was trained for it, e.g. by Matryoshka's loss."""

    def __init__(self, context: BuildContext) -> None:
        k = context.spec["count"]
        if k is None:
            raise UsageError("transform 'truncate' needs the number of columns, e.g. truncate:64")
        self.spec = str(context.spec)
        self.stages = [("vector", lambda vectors: cut_columns(vectors, k))]


_PREFIX = "projection."
_SPREAD = 0.02  # standard deviation of a new head's weights, BERT's initializer_range


def _linear(context: BuildContext) -> nn.Sequential:
    """Return a new dense layer: weights N(0, 0.02), bias zero."""
    dense = nn.Linear(context.backbone.width, context.backbone.width)
    nn.init.normal_(dense.weight, 0, _SPREAD)
    nn.init.zeros_(dense.bias)
    return nn.Sequential(dense)


def _mlm(context: BuildContext) -> nn.Module:
    """Return dense, GELU and LayerNorm with the weights of the pre-trained head (supervised
    PromptBERT, OptiPrompt).

    If learned tensors will replace these, the backbone needs no head: published checkpoints have
    none.
    """
    try:
        return context.backbone.new_transform()
    except UsageError:
        if f"{_PREFIX}0.LayerNorm.weight" not in context.tensors:
            raise
        width = context.backbone.width
        # by the names that BERT's own head has
        layers = {
            "dense": nn.Linear(width, width),
            "gelu": nn.GELU(),
            "LayerNorm": nn.LayerNorm(width, eps=1e-12),
        }
        return nn.Sequential(nn.Sequential(OrderedDict(layers)))


#: Kind of projection -> its network.
PROJECTIONS: dict[str, Callable[[BuildContext], nn.Module]] = {
    "tanh": lambda context: _linear(context).append(nn.Tanh()),
    "mlm": _mlm,
    "linear": _linear,
}


class Projection(Transform):
    """A learned network on the vector, (n, d) -> (n, d)."""

    def __init__(self, context: BuildContext) -> None:
        kind = context.argument or "tanh"
        make = look_up("projection", kind, PROJECTIONS)
        self.spec = f"projection:{kind}"
        self.takes = context.backbone.width
        network = make(context).to(context.backbone.device)
        shapes = shapes_of(network.state_dict())
        owner = f"transform {self.spec!r}"
        network.load_state_dict(context.tensors_of(_PREFIX, shapes, owner, "train it first"))
        self.network = network.eval().requires_grad_(False)
        state = network.state_dict()
        self._tensors = {f"{_PREFIX}{name}": tensor for name, tensor in state.items()}
        self.stages = [("head", lambda vectors: network(vectors.float()))]


def start_projection(
    kind: str, context: BuildContext, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return the tensors that a projection starts learning from, by name."""
    with seeded_by(generator):
        module = PROJECTIONS[kind](context)
    return {f"{_PREFIX}{name}": tensor for name, tensor in module.state_dict().items()}


_PUBLISHED_K = 200  # PromptBERT 4.1


class TopKTokens(Transform):
    """h = sum_v W_v p_v / sum_v p_v over the k most probable tokens v, W the word embeddings."""

    def __init__(self, context: BuildContext) -> None:
        k = context.spec["count"] or _PUBLISHED_K
        embeddings = context.backbone.word_embeddings
        if k > len(embeddings):
            raise UsageError(
                f"transform 'topk-tokens:{k}' is not allowed; the vocabulary has"
                f" {len(embeddings)} tokens"
            )
        self.spec = f"topk-tokens:{k}"
        self.takes = context.backbone.last_width
        self._k = k
        self._embeddings = embeddings
        head = context.backbone.head
        self.stages = [("head", head.to_hidden), ("logits", head.to_logits), ("vector", self._mix)]

    def _mix(self, logits: Tensor) -> Tensor:
        """Return (n, d) from logits (n, v): softmax over the whole vocabulary, then the k best,
        renormalised.
        """
        best, tokens = logits.softmax(-1).topk(self._k, dim=-1)
        sums = (best.unsqueeze(1) @ self._embeddings[tokens].float()).squeeze(1)
        return sums / best.sum(-1, keepdim=True)
