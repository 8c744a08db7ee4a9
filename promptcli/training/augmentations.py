"""Augmentations of the embedding layer that make a view of a sentence (ConSERT, section 3.2); a new one is a line here.

Each takes its share of every sentence alike, floor(rate x n) of n, drawn by torch's own generator.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from promptcli.backbones.states import Batch

#: A batch and a rate to the batch that is passed.
Augmentation = Callable[[Batch, float], Batch]


def _none(batch: Batch, rate: float) -> Batch:
    return batch


def _shuffle(batch: Batch, rate: float) -> Batch:
    """Permute the positions of all tokens, specials included; the rate plays no part."""
    real = batch.real()
    draws = torch.rand(real.shape, device=real.device).masked_fill(~real, 2.0)  # padding keeps its place at the end
    return replace(batch, positions=draws.argsort(1))


def _token_cutoff(batch: Batch, rate: float) -> Batch:
    """Set whole tokens to 0, specials included."""
    return replace(batch, augment=lambda output: _cut(output, batch.real(), rate, batch.lengths))


def _feature_cutoff(batch: Batch, rate: float) -> Batch:
    """Set whole features to 0, others in every sentence."""

    def cut(output: Tensor) -> Tensor:
        every = torch.ones_like(output[:, 0], dtype=torch.bool)
        return _cut(output.transpose(1, 2), every, rate, every.sum(1)).transpose(1, 2)

    return replace(batch, augment=cut)


def _dropout(batch: Batch, rate: float) -> Batch:
    """Set single numbers to 0; the others are not scaled, as in the published code."""

    def cut(output: Tensor) -> Tensor:
        every = batch.real().unsqueeze(2).expand_as(output).flatten(1)
        return _cut(output.flatten(1).unsqueeze(2), every, rate, every.sum(1)).view_as(output)

    return replace(batch, augment=cut)


def _cut(rows: Tensor, may: Tensor, rate: float, counts: Tensor) -> Tensor:
    """Return ``rows`` (n, k, m) with floor(rate x count) of those rows set to 0 that ``may`` (n, k) be."""
    ranks = torch.rand(may.shape, device=may.device).masked_fill(~may, 2.0).argsort(1).argsort(1)
    chosen = ranks < (rate * counts.double()).long().unsqueeze(1)
    return rows.masked_fill(chosen.unsqueeze(2), 0.0)


#: By the name that the settings of a method take.
AUGMENTATIONS: dict[str, Augmentation] = {
    "none": _none,
    "shuffle": _shuffle,
    "token-cutoff": _token_cutoff,
    "feature-cutoff": _feature_cutoff,
    "dropout": _dropout,
}


class Adversary:
    """``adversarial``: the embeddings moved where a supervised loss grows fastest, by a fixed length a token.

    One pass watches, the next is moved. Passes are known by their ids, so that gradient caching may repeat them.
    """

    def __init__(self) -> None:
        self._leaves: dict[bytes, Tensor] = {}
        self._moves: dict[bytes, Tensor] = {}

    def watch(self, batch: Batch) -> Batch:
        """Return the batch of a pass whose embeddings' gradient will be asked for."""

        def add(output: Tensor) -> Tensor:
            leaf = self._leaves.setdefault(_key(batch), torch.zeros_like(output).requires_grad_())
            return output + leaf

        return replace(batch, augment=add)

    def turn(self, loss: Tensor, length: float) -> None:
        """Take the gradient of the watched passes' loss: g / |g| x length for each token."""
        gradients = torch.autograd.grad(loss, list(self._leaves.values()), retain_graph=True)
        for key, gradient in zip(self._leaves, gradients, strict=True):
            norm = gradient.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(gradient.dtype).tiny)
            self._moves[key] = length * gradient / norm

    def move(self, batch: Batch) -> Batch:
        """Return the batch of a pass over the same rows, its embeddings moved."""
        return replace(batch, augment=lambda output: output + self._moves[_key(batch)])


def _key(batch: Batch) -> bytes:
    return batch.host_ids().tobytes()
