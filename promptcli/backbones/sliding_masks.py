"""Masks of sliding windows over long inputs, made for a block of queries at a time.

The whole mask has the square of the length in cells, almost all of them False.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

#: A tensor, or the tensors of a tuple, with the queries in dimension 2.
Attended = TypeVar("Attended", Tensor, tuple[Tensor, Tensor])

#: Length from which a mask is made in blocks: below it, one product is as fast as several.
LONG = 1024
_QUERIES_AT_ONCE = 512  # queries of a block


@dataclass(frozen=True)
class SlidingMask:
    """Which keys each query of an input (n, t) attends to."""

    #: transformers' rule: positions of inputs, heads, queries and keys, which broadcast -> bool
    allows: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    reach: int  #: greatest distance between a query and its keys
    inputs: int  #: n
    length: int  #: t
    real: Tensor | None  #: (n, t) bool, False on padding; None if nothing is padded
    device: torch.device

    @functools.cached_property
    def blocks(self) -> list[tuple[slice, slice, Tensor]]:
        """Slices of queries and of the keys in their reach, and the mask between the two, (n or 1,
        1, queries, keys) bool, True where a query attends. Every layer with the window reads them.
        """
        blocks = []
        for start in range(0, self.length, _QUERIES_AT_ONCE):
            queries = slice(start, min(start + _QUERIES_AT_ONCE, self.length))
            keys = slice(max(start - self.reach, 0), min(queries.stop + self.reach, self.length))
            blocks.append((queries, keys, self._between(queries, keys)))
        return blocks

    def full(self) -> Tensor:
        """Return the complete mask, (n or 1, 1, t, t) bool."""
        everything = slice(0, self.length)
        return self._between(everything, everything)

    def _between(self, queries: slice, keys: slice) -> Tensor:
        each = torch.arange(self.inputs, device=self.device).view(-1, 1, 1, 1)
        head = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=self.device)
        query = torch.arange(queries.start, queries.stop, device=self.device).view(1, 1, -1, 1)
        key = torch.arange(keys.start, keys.stop, device=self.device).view(1, 1, 1, -1)
        allowed = self.allows(each, head, query, key)
        if self.real is None:
            return allowed
        return allowed & self.real[:, None, None, keys]


AttentionMask = Tensor | SlidingMask | None  #: of an attention


def full_mask(mask: AttentionMask) -> Tensor | None:
    """Return a mask as a tensor, for code that needs all keys at once."""
    if isinstance(mask, SlidingMask):
        return mask.full()
    return mask


def attend_in_blocks(
    attend: Callable[[Tensor, Tensor, Tensor, Tensor | None], Attended],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: AttentionMask,
) -> Attended:
    """Return the result of ``attend`` for queries, keys, values (n, h, t, d/h) and their mask.

    Under a sliding mask it is called for each block of queries, with the keys in reach.
    """
    if not isinstance(mask, SlidingMask):
        return attend(query, key, value, mask)
    parts = [
        attend(query[:, :, queries], key[:, :, keys], value[:, :, keys], between)
        for queries, keys, between in mask.blocks
    ]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts, 2)
    first, second = zip(*parts, strict=True)
    return torch.cat(first, 2), torch.cat(second, 2)
