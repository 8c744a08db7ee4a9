"""Static vectors in a backbone's place, for the average of a sentence's words; see
``word_tables``.
"""

from typing import Any

import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import Batch, HiddenStates, Needs
from promptcli.backbones.word_tables import WordTable


class WordVectors(Backbone):
    """A matrix of word vectors; no layers, no attention, no head. Always float32."""

    words_only = True
    causal = False

    def __init__(self, table: WordTable, device: str | torch.device) -> None:
        self._table = table
        self._rows = torch.from_numpy(table.rows[:]).to(device)
        self.tokenizer = table.tokenizer
        self.folder = table.folder
        self.provenance = table.provenance
        self.width = self.last_width = self._rows.size(1)
        self.n_layers = self.n_heads = 0
        self.max_tokens = table.max_tokens

    @property
    def token_rows(self) -> Tensor:
        """The vectors, (v + 1, d); the row of a sentence without any word is zero."""
        return self._rows

    def to(self, device: torch.device) -> "WordVectors":
        return WordVectors(self._table, device)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def run(self, batch: Batch, needs: Needs) -> HiddenStates:
        return HiddenStates(static=self._rows[batch.ids])
