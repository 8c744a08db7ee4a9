"""The computations inside the layers: linear maps, dropout, masks and attention.

Some are private functions of torch, since nothing public is as fast. A release may drop them, so
each has a fallback; ``PRIVATE_NAMES`` records which of them the installed torch has.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

#: A tensor, or a tuple of tensors, with the queries in dimension 2.
Attended = TypeVar("Attended", Tensor, tuple[Tensor, Tensor])

#: Name -> the function, or None if this release of torch does not have it.
PRIVATE_NAMES: dict[str, Any] = {}


def _find(module: Any, name: str) -> Any:
    """Return a private function of torch and record it; None if it is missing."""
    PRIVATE_NAMES[name] = getattr(module, name, None)
    return PRIVATE_NAMES[name]


_FLASH_ON_CPU = _find(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")
_EFFICIENT_ON_CUDA = _find(torch.ops.aten, "_scaled_dot_product_efficient_attention")
_ONEDNN_LINEAR = _find(torch.ops.mkldnn, "_linear_pointwise")
_HAS_ONEDNN = _find(torch._C, "_has_mkldnn")
_AVX512 = _find(torch.cpu, "_is_avx512_supported")
_AVX512_BFLOAT16 = _find(torch.cpu, "_is_avx512_bf16_supported")
_AMX = _find(torch.cpu, "_is_amx_tile_supported")


def cpu_computes_bfloat16() -> bool:
    """Return whether the CPU multiplies matrices of bfloat16 faster than those of float32.

    AMD's CPUs do with AVX512-BF16. Intel's need AMX, and a virtual machine may lack it: with
    AVX512-BF16 their products have half the rate of float32. False if torch does not say.
    """
    if _AVX512_BFLOAT16 is None or not _AVX512_BFLOAT16():
        return False
    return _is_amd() or (_AMX is not None and bool(_AMX()))


@functools.cache
def _is_amd() -> bool:
    """Return whether the CPU is AMD's; False if the system does not say."""
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


@functools.cache
def prefers_onednn() -> bool:
    """Return whether oneDNN should compute the float32 products that torch leaves to MKL.

    On AMD's CPUs with AVX-512 MKL leaves half of the vector units idle.
    """
    if _AVX512 is None or _ONEDNN_LINEAR is None or not _HAS_ONEDNN:
        return False
    return _is_amd() and bool(_AVX512())


class OneDnnLinear(nn.Linear):
    """A linear layer that uses oneDNN instead of MKL for float32 products outside training."""

    def forward(self, input: Tensor) -> Tensor:
        """Return input (..., d) times the weights (d', d), plus the bias."""
        if (
            not torch.compiler.is_compiling()  # a compiler chooses the products itself
            and torch.is_inference_mode_enabled()
            and input.dtype is torch.float32
            and input.device.type == "cpu"
        ):
            product: Tensor = _ONEDNN_LINEAR(input, self.weight, self.bias, "none", [], "")
            return product
        return super().forward(input)


def install_fast_products(model: nn.Module) -> None:
    """Let the linear layers of a model use oneDNN if it is faster than MKL on this CPU."""
    if prefers_onednn():
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = OneDnnLinear


_LEVELS = 2**16  # 16 random bits a number: the probability is exact to 1/131,072


class FastDropout(nn.Dropout):
    """``nn.Dropout`` that calls ``dropout``."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p) if self.training else input


def has_fast_dropout(numbers: Tensor) -> bool:
    """Return whether ``dropout`` draws the random numbers for a tensor itself: on a CPU.

    A compiled model contains torch's own dropout.
    """
    return numbers.device.type == "cpu" and not torch.compiler.is_compiling()


def dropout(numbers: Tensor, probability: float) -> Tensor:
    """Return the numbers, each 0 with a probability p, the rest scaled by 1 / (1 - p).

    On a CPU, 64 random bits serve four numbers, and torch's own generator gives the seed. torch
    draws one number after the other on AMD's CPUs, which costs a tenth of a training step.
    """
    if not probability:
        return numbers
    if not has_fast_dropout(numbers):
        return functional.dropout(numbers, probability)
    count = numbers.numel()
    seed = int(torch.randint(2**62, ()))
    words = np.random.Generator(np.random.SFC64(seed)).integers(
        0, 2**64 - 1, size=-(-count // 4), dtype=np.uint64, endpoint=True
    )
    stays: np.ndarray = words.view(np.uint16)[:count] >= round(probability * _LEVELS)
    mask = torch.from_numpy(stays.view(np.int8)).view(numbers.shape)
    return (numbers * mask).mul_(1 / (1 - probability))


def install_fast_dropout(model: nn.Module) -> None:
    """Replace every dropout of a model by ``FastDropout``."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = FastDropout


#: Length in tokens from which a sliding window's mask is computed in blocks of queries. For shorter
#: inputs one product is as fast as several.
MIN_BLOCKED_LENGTH = 1024
_QUERIES_PER_BLOCK = 512


@dataclass(frozen=True)
class SlidingMask:
    """The keys that each query of an input (n, t) attends to, in a sliding window.

    The complete mask has t x t cells, almost all of them False, so it is computed for one block of
    queries at a time.
    """

    #: transformers' rule: positions of inputs, heads, queries and keys, which broadcast -> bool
    allows: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    reach: int  #: greatest distance between a query and its keys
    inputs: int  #: n
    length: int  #: t
    real: Tensor | None  #: (n, t) bool, False on padding; None if nothing is padded
    device: torch.device

    @functools.cached_property
    def blocks(self) -> list[tuple[slice, slice, Tensor]]:
        """For each block its queries, the keys in their reach, and the mask between the two, (n or
        1, 1, queries, keys) bool, True if the query attends to the key. The layers share the
        blocks.
        """
        blocks = []
        for start in range(0, self.length, _QUERIES_PER_BLOCK):
            queries = slice(start, min(start + _QUERIES_PER_BLOCK, self.length))
            keys = slice(max(start - self.reach, 0), min(queries.stop + self.reach, self.length))
            blocks.append((queries, keys, self._between(queries, keys)))
        return blocks

    def full(self) -> Tensor:
        """Return the complete mask, (n or 1, 1, t, t) bool."""
        all_tokens = slice(0, self.length)
        return self._between(all_tokens, all_tokens)

    def _between(self, queries: slice, keys: slice) -> Tensor:
        row = torch.arange(self.inputs, device=self.device).view(-1, 1, 1, 1)
        head = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=self.device)
        query = torch.arange(queries.start, queries.stop, device=self.device).view(1, 1, -1, 1)
        key = torch.arange(keys.start, keys.stop, device=self.device).view(1, 1, 1, -1)
        allowed = self.allows(row, head, query, key)
        if self.real is None:
            return allowed
        return allowed & self.real[:, None, None, keys]


AttentionMask = Tensor | SlidingMask | None


def full_mask(mask: AttentionMask) -> Tensor | None:
    """Return a mask as a tensor (n or 1, h or 1, t or 1, t)."""
    if isinstance(mask, SlidingMask):
        return mask.full()
    return mask


def at_positions(states: Tensor, positions: Tensor | None) -> Tensor:
    """Return states (n, t, ...) at one position (n,) of each input, (n, 1, ...); all for None."""
    if positions is None:
        return states
    rows = torch.arange(states.size(0), device=states.device)
    return states[rows, positions].unsqueeze(1)


def mask_at(mask: Tensor | None, positions: Tensor) -> Tensor | None:
    """Return the row of a mask (n or 1, h or 1, t or 1, t) at one position (n,) of each input."""
    if mask is None or mask.size(2) == 1:
        return mask
    rows = torch.arange(len(positions), device=positions.device)
    return mask.expand(len(positions), -1, -1, -1)[rows, :, positions].unsqueeze(2)


def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask that is added to scores: True (attend) becomes 0, False a very low number."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    # Half the lowest number, because the sum with a score must not overflow: padding beyond a
    # sliding window attends to nothing, and its softmax would be NaN.
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min / 2)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    probability: float,
    scale: float,
    softcap: float | None = None,
    *,
    causal: bool = False,
) -> Tensor:
    """Return the attention's output (n, h, t, d/h), with dropout of that probability."""
    # torch's kernel does not cap scores, and its dropout is slow on a CPU
    if softcap is None and not (probability and has_fast_dropout(query)):
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=probability, scale=scale, is_causal=causal
        )
    weights = scores(query, key, mask, scale, softcap).softmax(-1).to(value.dtype)
    return dropout(weights, probability) @ value


def attend_in_blocks(
    compute: Callable[[Tensor, Tensor, Tensor, Tensor | None], Attended],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: AttentionMask,
) -> Attended:
    """Return the result of ``compute`` for queries, keys, values (n, h, t, d/h) and their mask.

    Under a sliding mask it is called for each block of queries, with the keys in their reach.
    """
    if not isinstance(mask, SlidingMask):
        return compute(query, key, value, mask)
    results = [
        compute(query[:, :, queries], key[:, :, keys], value[:, :, keys], between)
        for queries, keys, between in mask.blocks
    ]
    if isinstance(results[0], Tensor):
        return torch.cat(results, 2)
    outputs, logsumexps = zip(*results, strict=True)
    return torch.cat(outputs, 2), torch.cat(logsumexps, 2)


def attention_with_logsumexp(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """Return an attention's output (n, h, t, d/h) and its logsumexp over keys (n, h, t) float32.

    A fused kernel does not store the matrix (n, h, t, t). No kernel caps scores or has the gradient
    of a mask.
    """
    kernel = _FUSED.get(query.device.type)
    is_learned = mask is not None and mask.requires_grad
    if kernel is None or softcap is not None or is_learned:
        all_scores = scores(query, key, mask, scale, softcap)
        return all_scores.softmax(-1).to(value.dtype) @ value, all_scores.logsumexp(-1)
    if mask is not None:
        mask = additive_mask(mask, query.dtype)
        mask = mask.expand(query.size(0), -1, query.size(2), key.size(2))
    output, logsumexp = kernel(query, key, value, mask, scale)
    return output, logsumexp[..., : query.size(2)].float()


def scores(
    query: Tensor, key: Tensor, mask: Tensor | None, scale: float, softcap: float | None = None
) -> Tensor:
    """Return the scaled, capped and masked dot products (n, h, t, t) float32 of an attention."""
    products = cap_scores((query @ key.transpose(-1, -2)).float() * scale, softcap)
    if mask is None:
        return products
    return products + additive_mask(mask, products.dtype)


def cap_scores(products: Tensor, softcap: float | None) -> Tensor:
    """Return c tanh(s / c) for scaled dot products s and a cap c (Gemma 2)."""
    if softcap is None:
        return products
    return softcap * torch.tanh(products / softcap)


def _fused_on_cpu(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> Any:
    return _FLASH_ON_CPU(query, key, value, 0.0, False, attn_mask=mask, scale=scale)


def _fused_on_cuda(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> Any:
    if mask is not None:  # the kernel needs rows that start at multiples of 16 elements
        width = key.size(2)
        aligned = functional.pad(mask, (0, -width % 16))[..., :width]
        mask = aligned.expand(query.size(0), query.size(1), query.size(2), width)
    return _EFFICIENT_ON_CUDA(query, key, value, mask, True, 0.0, False, scale=scale)[:2]


#: Type of device -> its fused attention, which takes an additive mask.
_FUSED: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {}
if _FLASH_ON_CPU is not None:
    _FUSED["cpu"] = _fused_on_cpu
if _EFFICIENT_ON_CUDA is not None:
    _FUSED["cuda"] = _fused_on_cuda
