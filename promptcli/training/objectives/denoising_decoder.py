"""``denoising-decoder``: InfoNCE, and a decoder that restores a sentence from its vector
(DenoSent).
"""

import contextlib

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from promptcli.backbones.devices import to_device
from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.backbones.states import Batch, HiddenStates
from promptcli.encoder.pooling.weights import state_at
from promptcli.errors import UsageError
from promptcli.training.methods.denosent import DenoSentSettings
from promptcli.training.objective import Columns, TokenizedSides, Views
from promptcli.training.objectives.contrastive import InfoNCE
from promptcli.training.trainable_encoder import TrainableEncoder

_INITIAL_STD = 0.02  # standard deviation of new weights
_INNER_WIDTH = 2048  # of a decoder's layer


class DenoisingDecoder(InfoNCE[DenoSentSettings]):
    """InfoNCE, and the loss of a decoder that sees one vector, z1, and the positive's embeddings
    under heavy dropout.

    The decoder predicts every token of the input by the masked-LM head, which is tied to the word
    embeddings. For a checkpoint without that head the word embeddings are the head.
    """

    def prepare(self, encoder: TrainableEncoder, generator: torch.Generator) -> None:
        super().prepare(encoder, generator)
        settings = self.settings
        backbone = encoder.backbone
        width = backbone.width
        if width % settings.decoder_heads or backbone.word_embeddings.size(1) != width:
            raise UsageError(
                f"denosent needs word embeddings {width} wide, which this divides",
                parameter="decoder_heads",
            )
        layer = nn.TransformerDecoderLayer(
            width,
            settings.decoder_heads,
            _INNER_WIDTH,
            dropout=settings.dropout,
            batch_first=True,
        )
        self.decoder = nn.TransformerDecoder(layer, settings.decoder_layers)
        for name, parameter in self.decoder.named_parameters():
            if parameter.dim() > 1:
                parameter.data.copy_(
                    torch.randn(parameter.shape, generator=generator) * _INITIAL_STD
                )
            elif name.endswith("bias"):
                parameter.data.zero_()
        self.bias = nn.Parameter(torch.zeros(len(backbone.word_embeddings)))
        self.transform: nn.Module = nn.Identity()
        with contextlib.suppress(UsageError):  # a checkpoint without the masked-LM head
            head = backbone.new_head()
            self.transform = head.transform.requires_grad_(True)
            self.bias.data.copy_(head.decoder.get_parameter("bias"))
        self._backbone = backbone
        self.to(backbone.device)

    def views(self, encoder: TrainableEncoder, sides: TokenizedSides, columns: Columns) -> Views:
        """Return z1, z2 and possibly z3, (n, d), then the loss of each row's tokens (n,) and the
        number of its tokens (n,).
        """
        last = encoder.backbone.n_layers
        longest = max(int(side.ids.lengths.max()) for side in sides)

        def read(batch: Batch, hidden: HiddenStates) -> Tensor:
            """Return h and the embedding layer's output, padded to the longest row, (n, 1 +
            longest, d).
            """
            embedded = hidden.layers[0]
            embedded = functional.pad(embedded, (0, 0, 0, longest - embedded.size(1)))
            vectors = state_at(1, hidden.layers[last], batch)
            return torch.cat([vectors.unsqueeze(1), embedded], 1)

        states = encoder.hidden(sides, read=read)
        views = self.split_by_side(encoder.project(states[:, 0]), sides, columns)
        n = len(sides[0].ids)
        embedded_positives = states[n : 2 * n, 1:].detach()
        losses, counts = self.restore(views[0], embedded_positives, sides[1].ids)
        return *views, losses, counts

    def restore(self, vectors: Tensor, embedded: Tensor, rows: RaggedIds) -> tuple[Tensor, Tensor]:
        """Return the summed cross-entropy of each row's tokens (n,), and their number (n,).

        ``embedded`` (n, t, d) is the embedding layer's output of the ``rows``. The ``vectors``
        (n, d) are the decoder's memory.
        """
        t = embedded.size(1)
        is_padding = to_device(np.arange(t) >= rows.lengths[:, None], vectors.device)
        targets = to_device(rows.to_matrix(t, 0), vectors.device)
        noisy = functional.dropout(embedded, self.settings.decoder_noise, self.training)
        states = self.decoder(noisy, vectors.unsqueeze(1), tgt_key_padding_mask=is_padding)
        states = self.transform(states)
        logits = functional.linear(states, self._backbone.word_embeddings, self.bias).float()
        losses = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        losses = losses.masked_fill(is_padding, 0.0)
        return losses.sum(1), to_device(rows.lengths, vectors.device)

    def loss(self, views: Views, columns: Columns) -> Tensor:
        *vectors, losses, counts = views
        contrastive = super().loss(vectors, columns)
        restoring = losses.sum() / counts.sum()
        return (
            self.settings.contrastive_weight * contrastive
            + self.settings.restoring_weight * restoring
        )
