"""Batch and HiddenStates: the input and the output of a backbone, plain values."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

LAST = -1  #: the slot of an input's last token


@dataclass(frozen=True)
class SoftTokens:
    """Learned vectors that replace some tokens' word embeddings."""

    vectors: Tensor  #: (m, d) for all inputs, or (n, m, d); (…, e) if embeddings are narrower
    positions: Tensor  #: (n, m), of the vectors


@dataclass(frozen=True)
class SharedTokens:
    """The first tokens of a template's inputs, which are equal in every input of a causal model and
    therefore computed once.
    """

    length: int
    #: per layer the tokens' keys and values, each (1, h', length, d/h)
    prefix: tuple[tuple[Tensor, Tensor], ...]


@dataclass(frozen=True)
class Prepending:
    """Token Prepending: before some layers, placeholders get the states of other tokens, all at the
    same time.
    """

    positions: Tensor  #: (n, k) of the placeholders
    sources: Tensor  #: (n, k) positions of the tokens with the states
    layers: range  #: 0-based


@dataclass(frozen=True)
class Rerouting:
    """KV-Embedding: in some layers every token also attends to the last token's key and value of
    the previous layer.
    """

    layers: range  #: 0-based, from 1
    bias: float  #: added to the scores of that key


@dataclass(frozen=True)
class Contrast:
    """Contrastive Prompting: the heads' mixture at the last token of a layer changes before its
    projection.
    """

    layer: int  #: 0-based
    factor: float  #: C
    norm: bool  #: whether the mixture keeps its length
    #: (n, h d/h) B, the mixtures at the same layer and token under the auxiliary prompt
    other: Tensor

    def __call__(self, mixed: Tensor) -> Tensor:
        """Return C (A - B), times |A| / |A - B| with ``norm``, from A (n, h d/h)."""
        difference = mixed - self.other
        if self.norm:
            lengths = mixed.norm(dim=1, keepdim=True), difference.norm(dim=1, keepdim=True)
            difference = difference * (
                lengths[0] / lengths[1].clamp(min=torch.finfo(mixed.dtype).tiny)
            )
        return self.factor * difference


@dataclass(frozen=True)
class Batch:
    """Model input, right-padded."""

    ids: Tensor  #: (n, t) token ids
    lengths: Tensor  #: (n,) tokens of each input, specials and template included
    #: (n, k) positions of the template's masks, or None if it has none
    mask_positions: Tensor | None = None
    #: (n, t) or (1, t) positions counted from 0, or None for 0..t-1
    position_ids: Tensor | None = None
    raw_positions: bool = False  #: the family's own offset is not added to them
    #: Per layer learned keys and values, each (h', p, d/h) or (n, h', p, d/h); positions start
    #: after them.
    prefix: tuple[tuple[Tensor, Tensor], ...] | None = None
    soft: SoftTokens | None = None
    shared: SharedTokens | None = None  #: computed in advance; every row begins with these tokens
    prepending: Prepending | None = None
    contrast: Contrast | None = None
    rerouting: Rerouting | None = None
    augment: Callable[[Tensor], Tensor] | None = None  #: changes the embeddings (n, t, e)
    #: ``lengths`` in host memory, where reading them does not wait for a device.
    lengths_on_host: np.ndarray | None = field(default=None, compare=False)
    #: ``ids`` in host memory.
    ids_on_host: np.ndarray | None = field(default=None, compare=False)

    @property
    def padded(self) -> bool:
        """Whether any input is shorter than t."""
        return bool((self.host_lengths() != self.ids.size(1)).any())

    def host_lengths(self) -> np.ndarray:
        """Return ``lengths`` in host memory."""
        if self.lengths_on_host is not None:
            return self.lengths_on_host
        return self.lengths.cpu().numpy()

    def host_ids(self) -> np.ndarray:
        """Return ``ids`` in host memory."""
        if self.ids_on_host is not None:
            return self.ids_on_host
        return self.ids.cpu().numpy()

    def real(self) -> Tensor:
        """Return the (n, t) mask of tokens that are not padding."""
        steps = torch.arange(self.ids.size(1), device=self.ids.device)
        return steps.unsqueeze(0) < self.lengths.unsqueeze(1)


def without_shared(batch: Batch) -> Batch:
    """Return the inputs without the shared tokens, whose keys and values become the prefix."""
    if batch.shared is None:
        return batch
    count = batch.shared.length
    rest = replace(
        batch,
        ids=batch.ids[:, count:],
        lengths=batch.lengths - count,
        prefix=batch.shared.prefix,
        shared=None,
    )
    if batch.lengths_on_host is not None:
        rest = replace(rest, lengths_on_host=batch.lengths_on_host - count)
    if batch.ids_on_host is not None:
        rest = replace(rest, ids_on_host=batch.ids_on_host[:, count:])
    if batch.soft is not None:
        rest = replace(rest, soft=replace(batch.soft, positions=batch.soft.positions - count))
    if batch.prepending is not None:
        positions = batch.prepending.positions - count
        sources = batch.prepending.sources - count
        prepending = replace(batch.prepending, positions=positions, sources=sources)
        rest = replace(rest, prepending=prepending)
    return rest


def slot_positions(batch: Batch, slot: int) -> Tensor:
    """Return the positions (n,) of [CLS] (0), of the k-th mask (k), or of the last token
    (``LAST``).
    """
    if slot == 0:
        return torch.zeros_like(batch.lengths)
    if slot == LAST:
        return batch.lengths - 1
    assert batch.mask_positions is not None
    return batch.mask_positions[:, slot - 1]


@dataclass(frozen=True)
class Needs:
    """The outputs that a pooling reads; nothing else is computed or kept."""

    layers: frozenset[int] = frozenset()  #: of hidden states: 0 = embedding output, L = last layer
    #: layers (0-based) of the attention's diagonals
    diagonals: frozenset[int] = frozenset()
    #: layers (0-based) of the attention matrices
    matrices: frozenset[int] = frozenset()
    #: layers (0-based) and slots of single rows of the attention matrices
    attention_rows: frozenset[tuple[int, int]] = frozenset()
    #: layers (0-based) of the attention blocks' outputs
    attention_outputs: frozenset[int] = frozenset()
    #: layers (0-based) of the attention's values
    values: frozenset[int] = frozenset()
    static: bool = False  #: the raw word-embedding rows
    output_embeddings: bool = False  #: the rows of the masked-LM head's output matrix
    #: the only position that is read: 0 for [CLS], k for the k-th mask, ``LAST``; None for all
    slot: int | None = None

    def __or__(self, other: "Needs") -> "Needs":
        return Needs(
            self.layers | other.layers,
            self.diagonals | other.diagonals,
            self.matrices | other.matrices,
            self.attention_rows | other.attention_rows,
            self.attention_outputs | other.attention_outputs,
            self.values | other.values,
            self.static or other.static,
            self.output_embeddings or other.output_embeddings,
            self.slot if self.slot == other.slot else None,
        )


@dataclass(frozen=True)
class HiddenStates:
    """The requested outputs of one forward pass."""

    #: Layer -> (n, t, d); 0 is the embedding layer's output (word + position + type, LayerNorm), L
    #: the last.
    layers: dict[int, Tensor] = field(default_factory=dict)
    static: Tensor | None = None  #: (n, t, d) raw word-embedding rows: not ``layers[0]``
    #: (n, t, d) rows of the masked-LM head's output matrix; the static ones if tied
    output_embeddings: Tensor | None = None
    #: Layer (0-based) -> (n, h, t) float32, a_ii of the attention matrix (Ditto).
    diagonals: dict[int, Tensor] = field(default_factory=dict)
    #: Layer (0-based) -> (n, h, t, t) float32, a_ij: how much token i attends to token j.
    matrices: dict[int, Tensor] = field(default_factory=dict)
    #: Layer (0-based) and slot -> (n, h, t) float32, a_sj of the slot's position s, 0 on padding.
    attention_rows: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    #: Layer (0-based) -> (n, t, d) float32, the attention block's output after its projection,
    #: before the residual.
    attention_outputs: dict[int, Tensor] = field(default_factory=dict)
    #: Layer (0-based) -> (n, t, h' d/h) float32, the values of its attention.
    values: dict[int, Tensor] = field(default_factory=dict)
    #: if set, layers, ``attention_outputs`` and ``values`` hold only that position: (n, 1, d)
    slot: int | None = None
