"""Private names of torch that a release may move or drop, each with a fallback.

Nothing public replaces them. ``PRIVATE_NAMES`` records which of them this torch has.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

#: Name -> the function, or None if this release of torch does not have it.
PRIVATE_NAMES: dict[str, Any | None] = {}


def _find(place: Any, name: str) -> Any | None:
    """Return a private name of torch, or None; record it."""
    PRIVATE_NAMES[name] = getattr(place, name, None)
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
def mkl_is_slow() -> bool:
    """Return whether oneDNN should compute the float32 products that torch leaves to MKL.

    On AMD's CPUs with AVX-512 MKL leaves half of the vector units idle.
    """
    if _AVX512 is None or _ONEDNN_LINEAR is None or not _HAS_ONEDNN:
        return False
    return _is_amd() and bool(_AVX512())


def onednn_linear(vectors: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return vectors (..., d) times the weights (d', d), plus the bias (d',), float32 on a CPU, by
    oneDNN.
    """
    if _ONEDNN_LINEAR is None:
        return functional.linear(vectors, weight, bias)
    product: Tensor = _ONEDNN_LINEAR(vectors, weight, bias, "none", [], "")
    return product


def attention_with_logsumexp(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """Return an attention's output (n, h, t, d/h) and its logsumexp over keys (n, h, t) float32.

    If the device has a fused kernel, and scores are not capped, the matrix (n, h, t, t) is never
    made.
    """
    kernel = _FUSED.get(query.device.type)
    learned = mask is not None and mask.requires_grad  # the kernels have no gradient of a mask
    if kernel is None or softcap is not None or learned:
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
    """Return scaled dot products s as c tanh(s / c) for a cap c (Gemma 2), unchanged without
    one.
    """
    if softcap is None:
        return products
    return softcap * torch.tanh(products / softcap)


def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to be added to scores: a boolean one (True = attend) becomes 0 and a very low
    number.
    """
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    # half the lowest number: padding that may attend to nothing (sliding windows) must not overflow
    # to NaN
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min / 2)


def _fused_on_cpu(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> Any:
    assert _FLASH_ON_CPU is not None
    return _FLASH_ON_CPU(query, key, value, 0.0, False, attn_mask=mask, scale=scale)


def _fused_on_cuda(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> Any:
    assert _EFFICIENT_ON_CUDA is not None
    if mask is not None:  # the kernel wants rows that start at multiples of 16 elements
        width = key.size(2)
        aligned = functional.pad(mask, (0, -width % 16))[..., :width]
        mask = aligned.expand(query.size(0), query.size(1), query.size(2), width)
    return _EFFICIENT_ON_CUDA(query, key, value, mask, True, 0.0, False, scale=scale)[:2]


#: The fused attention of each type of device. It takes an additive mask.
_FUSED: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {}
if _FLASH_ON_CPU is not None:
    _FUSED["cpu"] = _fused_on_cpu
if _EFFICIENT_ON_CUDA is not None:
    _FUSED["cuda"] = _fused_on_cuda
