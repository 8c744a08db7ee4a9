"""Bias of attention scores by the distance of two tokens, in buckets (Raffel et al. 2020), as MPNet
has it.
"""

import math

import torch
from torch import Tensor

BUCKETS = 32  #: half of them for tokens to the left, half for tokens to the right
_FARTHEST = 128  # distances from here on share a bucket


def buckets(distances: Tensor) -> Tensor:
    """Return the bucket of every distance j - i of a key j from a query i.

    Near distances have a bucket each, farther ones share buckets whose widths grow like their
    logarithm.
    """
    half = BUCKETS // 2
    near = half // 2
    far = distances.abs()
    growth = torch.log(far.clamp(min=1).float() / near) / math.log(_FARTHEST / near)
    shared = near + (growth * (half - near)).long()
    bucket = torch.where(far < near, far, shared.clamp(max=half - 1))
    return bucket + half * (distances > 0)


def relative_bias(table: Tensor, length: int) -> Tensor:
    """Return the bias of all pairs of t tokens, (1, h, t, t), from a table (buckets, h)."""
    places = torch.arange(length, device=table.device)
    distances = torch.arange(1 - length, length, device=table.device)
    by_distance = table[buckets(distances)].T
    pairs = places.unsqueeze(0) - places.unsqueeze(1) + length - 1
    return by_distance[:, pairs].unsqueeze(0)
