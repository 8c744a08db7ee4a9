"""A masked-LM loss added to the contrastive one, on the same inputs with the same prefix (DCPCSE 3.3; SimCSE)."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import Batch, Needs
from promptcli.backbones.tokenizer import PieceTokenizer
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
        ids, chosen = mask_tokens(batch, self.backbone.tokenizer, len(self.backbone.token_rows))
        last = self.backbone.n_layers
        states = self.backbone.run(replace(batch, ids=ids), Needs(layers=frozenset({last}))).layers[last]
        logits = self.head.to_logits(self.head.to_hidden(states[chosen]))
        loss = functional.cross_entropy(logits.float(), batch.ids[chosen], reduction="sum")
        return torch.stack([loss, chosen.sum().to(loss.dtype)])


def mask_tokens(batch: Batch, tokens: PieceTokenizer, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return ids (n, t) with 15% of the tokens that are no specials chosen, and the choice (n, t) bool.

    As in transformers [UNK] is a special and never chosen.
    Of the chosen 80% become the mask, 10% a random token of the whole vocabulary, 10% stay.
    """
    specials = torch.tensor(sorted(tokens.specials), device=batch.ids.device)
    words = batch.real() & ~torch.isin(batch.ids, specials)
    draw = torch.rand(batch.ids.shape, device=batch.ids.device)
    chosen = words & (draw < _CHOSEN)
    share = draw / _CHOSEN  # uniform again among the chosen
    random = torch.randint_like(batch.ids, vocabulary)
    assert tokens.mask is not None
    ids = torch.where(chosen & (share < _MASKED), tokens.mask, batch.ids)
    return torch.where(chosen & (share >= 1 - _RANDOM), random, ids), chosen
