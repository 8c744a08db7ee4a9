"""BERT (Devlin et al. 2019) and the families that share its layout: RoBERTa, XLM-R, CamemBERT,
ELECTRA, MPNet.

It is implemented here because importing transformers' models takes several times as long as
encoding a small file. The tensors have the checkpoints' names, the attention is the hook's, and the
last layer can be computed at one position of each input. transformers opens configurations that
need more.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional

from promptcli.backbones.attention_hook import NO_HOOK, AttentionHook, attention
from promptcli.backbones.families import FAMILIES, BertPlan, Family
from promptcli.backbones.kernels import (
    FastDropout,
    additive_mask,
    at_positions,
    attend,
    full_mask,
    mask_at,
)
from promptcli.storage.typed_documents import convert

_TANH = functools.partial(functional.gelu, approximate="tanh")
#: Activations by their names in configurations.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda numbers: numbers,
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "gelu_new": _TANH,
    "gelu_pytorch_tanh": _TANH,
    "relu": functional.relu,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
}
BUCKETS = 32  #: of distances: half for tokens to the left, half for tokens to the right
_LAST_BUCKET_DISTANCE = 128  # distances from here on share a bucket
# names in checkpoints that came from TensorFlow, of LayerNorm's tensors
_TENSORFLOW_NAMES = {"gamma": "weight", "beta": "bias"}

_Size = Annotated[int, msgspec.Meta(ge=1)]


@dataclass
class BertConfig:
    """The fields of a ``config.json`` that define the model; the defaults are transformers'."""

    vocab_size: _Size
    hidden_size: _Size
    num_hidden_layers: _Size
    num_attention_heads: _Size
    intermediate_size: _Size
    max_position_embeddings: _Size
    pad_token_id: int
    type_vocab_size: _Size = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    embedding_size: _Size | None = None  #: ELECTRA's; None for the hidden size
    #: rows of MPNet's table of biases
    relative_attention_num_buckets: Annotated[int, msgspec.Meta(ge=BUCKETS)] = BUCKETS
    values: dict[str, Any] = field(default_factory=dict)  #: the file's whole content

    def to_dict(self) -> dict[str, Any]:
        return dict(self.values)


def read_bert_config(family: str, values: Mapping[str, Any]) -> BertConfig | None:
    """Return the configuration in a ``config.json``, or None if the model needs transformers."""
    plan = FAMILIES[family].plan
    if plan is None or values.get("add_cross_attention"):
        return None
    fields = {"pad_token_id": plan.pad, **values, "values": values}
    if not plan.projected:
        fields.pop("embedding_size", None)
    elif "embedding_size" not in values:
        return None
    try:
        config = convert(fields, BertConfig)
    except ValueError:  # a size is missing or not a positive number
        return None
    heads_fit = config.hidden_size % config.num_attention_heads == 0
    return config if heads_fit and config.hidden_act in ACTIVATIONS else None


@dataclass(frozen=True)
class BertOutput:
    """The output of a forward pass."""

    last_hidden_state: Tensor  #: (n, t, d), or (n, 1, d) with ``only_at``
    #: on request: the first layer's input, then every layer's output
    hidden_states: tuple[Tensor, ...] = ()


def _table(rows: int, width: int, pad: int | None = None) -> nn.Embedding:
    # torch would draw initial weights, and import its compiler for them on the meta device
    return nn.Embedding(rows, width, padding_idx=pad, _weight=torch.empty(rows, width))


class _Embeddings(nn.Module):
    def __init__(self, config: BertConfig, family: Family, plan: BertPlan) -> None:
        super().__init__()
        width = config.embedding_size or config.hidden_size
        pad = config.pad_token_id
        self.word_embeddings = _table(config.vocab_size, width, pad)
        self.position_embeddings = _table(
            config.max_position_embeddings, width, pad if family.pads_before_positions else None
        )
        self.token_type_embeddings: nn.Embedding | None = None
        if plan.token_types:
            self.token_type_embeddings = _table(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = FastDropout(config.hidden_dropout_prob)

    def forward(self, words: Tensor, positions: Tensor) -> Tensor:
        """Return (n, t, d) from word embeddings (n, t, d) and positions (n or 1, t).

        All tokens are of type 0.
        """
        if self.token_type_embeddings is not None:
            words = words + self.token_type_embeddings.weight[0]
        summed = words + self.position_embeddings(positions)
        embedded: Tensor = self.dropout(self.LayerNorm(summed))
        return embedded


class _SelfAttention(nn.Module):
    """The heads of a layer; ``maps`` are the names of the linear maps to queries, keys, values."""

    def __init__(
        self, config: BertConfig, maps: tuple[str, str, str] = ("query", "key", "value")
    ) -> None:
        super().__init__()
        self.n_heads = config.num_attention_heads
        self._maps = maps
        for name in maps:
            self.add_module(name, nn.Linear(config.hidden_size, config.hidden_size))
        self.dropout = FastDropout(config.attention_probs_dropout_prob)

    def by_heads(self, states: Tensor) -> Tensor:
        """Return (n, h, t, d/h) from (n, t, d)."""
        return states.view(*states.shape[:-1], self.n_heads, -1).transpose(1, 2)

    def forward(
        self, hidden: Tensor, mask: Tensor | None, hook: AttentionHook, only_at: Tensor | None
    ) -> Tensor:
        """Return the heads' mixtures (n, t, d) of hidden states (n, t, d); only those (n, 1, d) at
        the positions ``only_at`` (n,), if given.
        """
        to_queries, to_keys, to_values = map(self.get_submodule, self._maps)
        keys = self.by_heads(to_keys(hidden))
        values = self.by_heads(to_values(hidden))
        queries = self.by_heads(to_queries(at_positions(hidden, only_at)))
        probability = self.dropout.p if self.training else 0.0
        if only_at is None:
            mixed, _ = attention(self, queries, keys, values, mask, dropout=probability, hook=hook)
            return mixed.flatten(2)
        keys, values, seen = hook.widen(-1, keys, values, mask_at(mask, only_at))
        scale = queries.size(-1) ** -0.5
        mixed = attend(queries, keys, values, full_mask(seen), probability, scale)
        return mixed.transpose(1, 2).flatten(2)


class _Residual(nn.Module):
    """LayerNorm(dropout(W x + b) + input)."""

    def __init__(self, width: int, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = FastDropout(config.hidden_dropout_prob)

    def forward(self, states: Tensor, input: Tensor) -> Tensor:
        normed: Tensor = self.LayerNorm(self.dropout(self.dense(states)) + input)
        return normed


class _Attention(nn.ModuleDict):
    """Self-attention with its residual connection."""

    def __init__(self, config: BertConfig) -> None:
        output = _Residual(config.hidden_size, config)
        super().__init__({"self": _SelfAttention(config), "output": output})

    def forward(
        self, hidden: Tensor, mask: Tensor | None, hook: AttentionHook, only_at: Tensor | None
    ) -> Tensor:
        mixed = self["self"](hidden, mask, hook, only_at)
        attended: Tensor = self["output"](mixed, at_positions(hidden, only_at))
        return attended


class _MPNetAttention(nn.ModuleDict):
    """The same computation, with MPNet's names: the output projection is among the heads' maps."""

    def __init__(self, config: BertConfig) -> None:
        output = _Residual(config.hidden_size, config)
        heads = _SelfAttention(config, ("q", "k", "v"))
        heads.add_module("o", output.dense)
        super().__init__({"attn": heads, "LayerNorm": output.LayerNorm, "dropout": output.dropout})

    def forward(
        self, hidden: Tensor, mask: Tensor | None, hook: AttentionHook, only_at: Tensor | None
    ) -> Tensor:
        heads = self["attn"]
        mixed = heads.get_submodule("o")(heads(hidden, mask, hook, only_at))
        attended: Tensor = self["LayerNorm"](self["dropout"](mixed) + at_positions(hidden, only_at))
        return attended


class _Layer(nn.Module):
    def __init__(self, config: BertConfig, plan: BertPlan) -> None:
        super().__init__()
        width = config.hidden_size
        inner = config.intermediate_size
        self.attention = (_MPNetAttention if plan.relative_positions else _Attention)(config)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, inner)})
        self.activation = ACTIVATIONS[config.hidden_act]
        self.output = _Residual(inner, config)

    def forward(
        self,
        hidden: Tensor,
        mask: Tensor | None,
        hook: AttentionHook,
        only_at: Tensor | None = None,
    ) -> Tensor:
        attended = self.attention(hidden, mask, hook, only_at)
        inner = self.activation(self.intermediate["dense"](attended))
        output: Tensor = self.output(inner, attended)
        return output


class BertModel(nn.Module):
    """The encoder without a head; its tensors have the checkpoints' names.

    With ``pooler`` it holds the weights of the pooler's dense layer, which ``Backbone.pooler``
    computes.
    """

    def __init__(self, config: BertConfig, family: Family, *, pooler: bool) -> None:
        super().__init__()
        self.config = config
        plan = family.plan
        assert plan is not None
        self.base_model_prefix = plan.prefix
        self._first_position = 0
        if family.pads_before_positions:
            self._first_position = config.pad_token_id + 1
        self.embeddings = _Embeddings(config, family, plan)
        self.embeddings_project: nn.Linear | None = None
        if config.embedding_size not in (None, config.hidden_size):
            self.embeddings_project = nn.Linear(config.embedding_size, config.hidden_size)
        layers = nn.ModuleList(_Layer(config, plan) for _ in range(config.num_hidden_layers))
        self.encoder = nn.ModuleDict({"layer": layers})
        if plan.relative_positions:
            self.encoder["relative_attention_bias"] = _table(
                config.relative_attention_num_buckets, config.num_attention_heads
            )
        self.pooler: nn.ModuleDict | None = None
        if pooler:
            dense = nn.Linear(config.hidden_size, config.hidden_size)
            self.pooler = nn.ModuleDict({"dense": dense})

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings.word_embeddings

    def forward(
        self,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        output_hidden_states: bool = False,
        hook: AttentionHook = NO_HOOK,
        only_at: Tensor | None = None,
    ) -> BertOutput:
        """Return the last layer's states from ids (n, t), or embeddings (n, t, d).

        The mask (n, t) is None without padding, positions are (n or 1, t). With ``only_at`` (n,),
        the last layer is computed at one position of each input.
        """
        if inputs_embeds is None:
            inputs_embeds = self.embeddings.word_embeddings(input_ids)
        if position_ids is None:
            steps = torch.arange(inputs_embeds.size(1), device=inputs_embeds.device)
            position_ids = steps.unsqueeze(0) + self._first_position
        hidden = self.embeddings(inputs_embeds, position_ids)
        if self.embeddings_project is not None:
            hidden = self.embeddings_project(hidden)
        mask = self._mask(hidden.size(1), attention_mask)
        states = [hidden]
        *layers, last = self.encoder["layer"].children()
        for layer in layers:
            hidden = layer(hidden, mask, hook)
            if output_hidden_states:
                states.append(hidden)
        hidden = last(hidden, mask, hook, only_at)
        return BertOutput(hidden, (*states, hidden) if output_hidden_states else ())

    def _mask(self, length: int, real: Tensor | None) -> Tensor | None:
        """Return the mask of the attention over inputs (n, t): boolean, or additive with the bias
        of relative positions; ``real`` (n, t) is None without padding.
        """
        mask = None
        if real is not None:
            mask = real.bool()[:, None, None, :]
        if "relative_attention_bias" not in self.encoder:
            return mask
        # distances are counted in the input, even if the tokens have other positions
        table = self.encoder.get_parameter("relative_attention_bias.weight")
        bias = relative_bias(table, length)
        if mask is None:
            return bias
        return bias + additive_mask(mask, bias.dtype)


def bucket_distances(distances: Tensor) -> Tensor:
    """Return the bucket of every distance j - i of a key j from a query i (Raffel et al. 2020).

    Each near distance has its own bucket. Farther distances share buckets, whose widths grow
    exponentially.
    """
    half = BUCKETS // 2
    near = half // 2
    far = distances.abs()
    growth = torch.log(far.clamp(min=1).float() / near) / math.log(_LAST_BUCKET_DISTANCE / near)
    shared = near + (growth * (half - near)).long()
    bucket = torch.where(far < near, far, shared.clamp(max=half - 1))
    return bucket + half * (distances > 0)


def relative_bias(table: Tensor, length: int) -> Tensor:
    """Return the bias of all pairs of t tokens, (1, h, t, t), from a table (buckets, h)."""
    steps = torch.arange(length, device=table.device)
    distances = torch.arange(1 - length, length, device=table.device)
    by_distance = table[bucket_distances(distances)].T
    pairs = steps.unsqueeze(0) - steps.unsqueeze(1) + length - 1
    return by_distance[:, pairs].unsqueeze(0)


def load_bert(
    config: BertConfig, family: Family, files: Sequence[Path], names: frozenset[str]
) -> tuple[BertModel, dict[str, Any]]:
    """Return the model in float32, and a report on its tensors like that of transformers."""
    pooler = family.pooler and any(name.endswith("pooler.dense.weight") for name in names)
    with torch.device("meta"):
        model = BertModel(config, family, pooler=pooler)
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    tensors: dict[str, Tensor] = {}
    unexpected = []
    for path in files:
        with safe_open(path, framework="pt") as file:
            for stored in file.keys():
                name = stored.removeprefix(f"{model.base_model_prefix}.")
                place, _, last = name.rpartition(".")
                name = f"{place}.{_TENSORFLOW_NAMES.get(last, last)}"
                if name in shapes:
                    tensors[name] = file.get_tensor(stored).float()
                else:
                    unexpected.append(stored)
    mismatched = [
        (name, [*tensor.shape], shapes[name])
        for name, tensor in tensors.items()
        if [*tensor.shape] != shapes[name]
    ]
    missing = shapes.keys() - tensors.keys()
    if not missing and not mismatched:
        model.load_state_dict(tensors, assign=True)
    return model, {
        "missing_keys": missing,
        "mismatched_keys": mismatched,
        "unexpected_keys": unexpected,
    }
