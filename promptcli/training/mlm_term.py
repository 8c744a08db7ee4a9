"""A masked-LM loss added to the contrastive one, on the same inputs with the same prefix (DCPCSE 3.3; SimCSE)."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import Batch, Needs
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.encoder.batching import to_device
from promptcli.errors import UsageError

_CHOSEN, _MASKED, _RANDOM = 0.15, 0.8, 0.1  # BERT's shares; the rest of the chosen stand as they are


class MLMTerm(nn.Module):
    """The loss and its head, which starts as the pre-trained one and is not tied to the word embeddings.

    Raises:
        UsageError: The checkpoint has no masked-LM head.
    """

    def __init__(self, backbone: Backbone, *, frozen: bool) -> None:
        super().__init__()
        if backbone.tokenizer.mask is None:
            raise UsageError(
                f"--mlm-weight masks tokens, and backbone {backbone.name!r} has no mask token; leave it out"
            )
        self.backbone = backbone
        self.head = backbone.new_head().requires_grad_(not frozen)

    def sums(self, batch: Batch) -> Tensor:
        """Return the sum of the losses over the chosen tokens and how many they are, (2,); chosen by torch's generator.

        Args:
            batch: With what is learned attached, as the contrastive pass had it.
        """
        backbone, device = self.backbone, self.backbone.device
        ids, chosen = mask_tokens(batch, backbone.tokenizer, len(backbone.token_rows))
        places = np.flatnonzero(chosen)
        masked = replace(batch, ids=to_device(ids.numpy(), device), rows=ids.numpy())
        states = backbone.run(masked, Needs(layers=frozenset({backbone.n_layers}))).layers[backbone.n_layers]
        logits = self.head.to_logits(self.head.to_hidden(states.flatten(0, 1)[to_device(places, device)]))
        gold = to_device(batch.host_ids().ravel()[places], device)
        loss = functional.cross_entropy(logits.float(), gold, reduction="sum")
        return torch.stack([loss, torch.full_like(loss, len(places))])


def mask_tokens(batch: Batch, tokens: PieceTokenizer, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return ids (n, t) with 15% of the tokens that are no specials chosen, and the choice (n, t) bool.

    Both in the processor's memory, where they are drawn: how many are chosen is known without waiting for a GPU. As in
    transformers [UNK] is a special and never chosen. Of the chosen 80% become the mask, 10% a random
    token of the whole vocabulary, 10% stay.
    """
    given = torch.from_numpy(batch.host_ids())
    real = np.arange(given.size(1)) < batch.host_lengths()[:, None]
    words = torch.from_numpy(real) & ~torch.isin(given, torch.tensor(sorted(tokens.specials)))
    draw = torch.rand(given.shape)
    chosen = words & (draw < _CHOSEN)
    share = draw / _CHOSEN  # uniform again among the chosen
    random = torch.randint_like(given, vocabulary)
    assert tokens.mask is not None
    ids = torch.where(chosen & (share < _MASKED), tokens.mask, given)
    return torch.where(chosen & (share >= 1 - _RANDOM), random, ids), chosen
