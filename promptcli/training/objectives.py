"""Training objectives on sentence vectors. Knows no models."""

import torch
from torch import Tensor
from torch.nn import functional


def contrastive_loss(
    first: Tensor,
    second: Tensor,
    hard: Tensor | None = None,
    *,
    temperature: float = 0.05,
    same: Tensor | None = None,
) -> Tensor:
    """Return the in-batch contrastive loss, InfoNCE with s(a, b) = cos(a, b) / tau (SimCSE eq. 1 and 5).

    The mean over i of -log( exp s(z1_i, z2_i) / sum_j [exp s(z1_i, z2_j) + exp s(z1_i, z3_j)] ); one direction only.

    Args:
        first: (n, d), z1.
        second: (m, d), z2, m >= n; row i belongs to row i of ``first``, further rows are negatives only.
        hard: (k, d), z3, or None.
        temperature: tau.
        same: (n, m) or (n, m + k) bool, True where row j of ``second``, or of ``hard`` behind it, is no negative of
            first[i] although j is not i: equal sentences.
    """
    others = second if hard is None else torch.cat([second, hard])
    cosines = functional.normalize(first.float(), dim=1) @ functional.normalize(others.float(), dim=1).T
    logits = cosines / temperature
    if same is not None:
        logits = logits.masked_fill(functional.pad(same, (0, len(others) - same.size(1))), float("-inf"))
    return functional.cross_entropy(logits, torch.arange(len(first), device=first.device))
