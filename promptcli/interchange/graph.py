"""An encoder as one traceable graph: token ids and their mask in, vectors out; what ONNX and all that reads it hold."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from promptcli.backbones.states import Batch, HiddenStates
from promptcli.encoder.encoder import Encoder
from promptcli.encoder.pooling.tfidf import WordTfIdf
from promptcli.interchange.exactness import InexactError
from promptcli.interchange.static_table import StaticTable


@dataclass(frozen=True)
class _TracedBatch(Batch):
    """A batch of unknown size: nothing of it is looked at while the graph is made."""

    mask: Tensor = field(default_factory=lambda: torch.ones(1, 1))

    @property
    def padded(self) -> bool:
        """Always taken for padded."""
        return True

    def real(self) -> Tensor:
        """Return the mask that came in, boolean."""
        return self.mask.bool()


class EncoderGraph(nn.Module):
    """The encoder's own parts, in the encoder's own order.

    Ditto's diagonal is read off the attention matrix, which an exporter knows, instead of a kernel that it does not;
    the biases of denoising are a table, one row a length.

    Raises:
        InexactError: A part that is a program and no graph.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        weights = encoder.pooling.weights
        if weights.rewriting is not None or isinstance(weights, WordTfIdf):
            raise InexactError(f"weights {weights.spec!r} rewrite or cut sentences by a program, which is no graph")
        self.model = encoder.backbone.model  # registered, so that its weights are the graph's
        self.encoder = encoder
        own = encoder.pooling.needs
        self.needs = replace(own, diagonals=frozenset(), matrices=own.matrices | own.diagonals, slot=None)
        places = range(encoder.max_length - encoder.template.length + 1)
        with torch.no_grad():
            self.biases = encoder.bias_at(list(places)) if encoder.denoising.place != "none" else None

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return (n, d) float32 from ids and mask, both (n, t) int64."""
        encoder, lengths = self.encoder, attention_mask.sum(1)
        slots = [lengths + place if place < 0 else torch.full_like(lengths, place) for place in encoder.template.masks]
        batch = _TracedBatch(
            ids=input_ids, lengths=lengths, mask_slots=torch.stack(slots, 1) if slots else None, mask=attention_mask
        )
        hidden = encoder.run(batch, self.needs)
        prefix = encoder.prompt.length
        diagonals = {layer: matrix.diagonal(prefix, -2, -1) for layer, matrix in hidden.matrices.items()}
        states = HiddenStates(hidden.layers, hidden.static, hidden.decoder, diagonals)
        vectors = encoder.pooling.pool(batch, states)
        for name, step in encoder.stages:
            vectors = step(vectors)
            if self.biases is not None and name == encoder.denoising.place:
                length = (lengths - encoder.template.length).clamp(0, len(self.biases) - 1)
                vectors = vectors - self.biases[length]
        return vectors


class TableGraph(nn.Module):
    """The mean of the rows of a table."""

    def __init__(self, table: StaticTable) -> None:
        super().__init__()
        self.rows = nn.Parameter(table.rows, requires_grad=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return (n, d) float32 from ids and mask, both (n, t) int64; a vector of zeros where there is no token."""
        mask = attention_mask.float()
        return (mask.unsqueeze(1) @ self.rows[input_ids]).squeeze(1) / mask.sum(1, keepdim=True).clamp(min=1)
