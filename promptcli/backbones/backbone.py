"""Backbone: one loaded language model behind a face that is the same for every family. Knows nothing of recipes."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from promptcli.backbones.families import FAMILIES, Family
from promptcli.backbones.head import MLMHead, load_head
from promptcli.backbones.last_layer import compute_last_layer_at_slots
from promptcli.backbones.seam import SeamCall
from promptcli.backbones.states import Batch, HiddenStates, Needs
from promptcli.backbones.tokens import Tokens
from promptcli.errors import UsageError

if TYPE_CHECKING:
    from promptcli.backbones.loading import Provenance


class Backbone:
    """A pre-trained encoder and its tokenizer.

    Attributes:
        tokens: The tokenizer.
        provenance: Name, family, revision and hashes.
        width: d.
        n_layers: L.
        n_heads: h.
        max_tokens: Longest input in tokens, specials included.
    """

    def __init__(
        self, *, model: Any, tokens: Tokens, provenance: "Provenance", folder: Path, tensor_names: frozenset[str]
    ) -> None:
        self.model = model
        self.tokens = tokens
        self.provenance = provenance
        self.family: Family = FAMILIES[provenance.family]
        self.width: int = model.config.hidden_size
        self.n_layers: int = model.config.num_hidden_layers
        self.n_heads: int = model.config.num_attention_heads
        self._folder = folder
        self._tensor_names = tensor_names
        self._position_offset = (model.config.pad_token_id or 0) + 1 if self.family.pads_before_positions else 0
        self.max_tokens: int = model.config.max_position_embeddings - self._position_offset
        if self.family.bert_plan:
            compute_last_layer_at_slots(model)

    @property
    def name(self) -> str:
        """The name it was loaded by."""
        return self.provenance.backbone

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.token_rows.device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' own."""
        return self.token_rows.dtype

    @property
    def token_rows(self) -> Tensor:
        """The word-embedding matrix, (v, d) (d may be smaller than the width: ALBERT, small ELECTRA)."""
        rows: Tensor = self.model.get_input_embeddings().weight
        return rows

    def run(self, batch: Batch, needs: Needs) -> HiddenStates:
        """Compute what is needed of a batch, and no more.

        Raises:
            UsageError: Diagonals are needed and the attention seam does not reach this family.
        """
        static = self.token_rows[batch.ids].float() if needs.static else None
        if not needs.layers and not needs.diagonals:
            return HiddenStates(static=static)
        seam = SeamCall(diagonal_layers=needs.diagonals)
        last_only = needs.layers == {self.n_layers} and not needs.diagonals
        slot = needs.slot if last_only and self.family.bert_plan else None
        options: dict[str, Any] = {"seam": seam} if self.family.seam else {}
        if slot is not None:
            options["slots"] = batch.mask_slots if slot == "mask" else torch.full_like(batch.lengths, batch.cls_slot)
        output = self.model(
            input_ids=batch.ids,
            attention_mask=batch.real().long() if batch.padded else None,
            position_ids=self._positions(batch),
            output_hidden_states=not needs.layers <= {self.n_layers},
            **options,
        )
        if needs.diagonals - seam.diagonals.keys():
            self.require_seam("Ditto")
        layers = {
            layer: (output.last_hidden_state if layer == self.n_layers else output.hidden_states[layer]).float()
            for layer in needs.layers
        }
        return HiddenStates(layers, static, seam.diagonals, slot)

    def _positions(self, batch: Batch) -> Tensor:
        positions = batch.positions
        if positions is None:
            positions = torch.arange(batch.ids.size(1), device=batch.ids.device).unsqueeze(0)
        return positions if batch.raw_positions else positions + self._position_offset

    def require_seam(self, wanted: str) -> None:
        """Prove that the attention seam is live: a probe prefix must move the output.

        Raises:
            UsageError: It is not; the family is named.
        """
        if not (self.family.seam and self._seam_is_live):
            raise UsageError(
                f"{wanted} needs the attention of the layers, which family {self.provenance.family!r} of backbone"
                f" {self.name!r} does not open; families that do:"
                f" {', '.join(name for name, family in FAMILIES.items() if family.seam)}"
            )

    @functools.cached_property
    def _seam_is_live(self) -> bool:
        ids = torch.tensor([[self.tokens.cls, self.tokens.sep]], device=self.device)
        shape = (self.n_heads, 1, self.width // self.n_heads)
        probe = torch.linspace(-1, 1, shape[0] * shape[2], device=self.device, dtype=self.dtype).reshape(shape)
        with torch.inference_mode():
            plain = self.model(input_ids=ids, seam=SeamCall()).last_hidden_state
            moved = self.model(input_ids=ids, seam=SeamCall([(probe, probe)] * self.n_layers)).last_hidden_state
        return not torch.equal(plain, moved)

    @functools.cached_property
    def head(self) -> MLMHead:
        """The pre-trained masked-LM head.

        Raises:
            UsageError: The checkpoint has none; transformers would fill it with random numbers.
        """
        return load_head(self._folder, self.name, self.provenance.family, self._tensor_names).to(
            self.device, self.dtype
        )

    @functools.cached_property
    def pooler(self) -> Callable[[Tensor], Tensor]:
        """The pre-trained pooler, (n, d) -> (n, d): tanh(W x + b).

        Raises:
            UsageError: The checkpoint has none.
        """
        pooler = getattr(self.model, "pooler", None)
        if pooler is None:
            raise UsageError(
                f"backbone {self.name!r} has no pooler weights; `cls-pooler` needs them, `last/cls` does not"
            )
        dense: nn.Module = getattr(pooler, "dense", pooler)
        return lambda vectors: torch.tanh(dense(vectors.to(self.dtype))).float()
