"""Which device and which precision: what ``auto`` means on this machine, and how fast it multiplies matrices."""

import statistics
import time

import torch

from promptcli.errors import UsageError, unknown

_RATE_RUNS = 25
DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(name: str) -> str:
    """Return a torch device name; ``auto`` takes CUDA, else MPS, else the processor.

    Raises:
        UsageError: No such device here.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(kind for kind, there in available.items() if there)
    kind, _, number = name.partition(":")
    if not available.get(kind) or (
        number and not (kind == "cuda" and number in map(str, range(torch.cuda.device_count())))
    ):
        raise unknown("device", name, ["auto", *(kind for kind, there in available.items() if there)])
    return name


def weights_dtype(name: str, device: str) -> torch.dtype | None:
    """Return ``choose_dtype``; None for ``stored``: float32, and for causal models that of their files.

    Raises:
        UsageError: Unknown name.
    """
    return None if name == "stored" else choose_dtype(name, device)


def choose_dtype(name: str, device: str) -> torch.dtype:
    """Return the weights' dtype; ``auto`` takes bfloat16 where the hardware computes in it, else float32.

    Raises:
        UsageError: Unknown name.
    """
    if name == "auto":
        return torch.bfloat16 if computes(torch.bfloat16, device) else torch.float32
    if name not in DTYPES:
        raise unknown("dtype", name, ["auto", *DTYPES])
    return DTYPES[name]


def computes(dtype: torch.dtype, device: str) -> bool:
    """Return whether a device multiplies matrices of that dtype at speed."""
    if dtype != torch.bfloat16:
        return dtype == torch.float32 or not device.startswith("cpu")
    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device == "cpu" and bool(torch.cpu._is_avx512_bf16_supported())


def set_threads(threads: int) -> None:
    """Let one operation use that many processor threads.

    Raises:
        UsageError: Below one.
    """
    if threads < 1:
        raise UsageError(f"threads {threads} is not allowed; give at least 1")
    torch.set_num_threads(threads)


def matrix_rate(device: str, dtype: torch.dtype, shape: tuple[int, int, int]) -> float:
    """Return the measured rate of a matrix product, in 10^9 floating-point operations per second.

    Args:
        device: A torch device.
        dtype: Of the operands, which are random.
        shape: (rows, inner, columns) of the product; the median of some runs counts.
    """
    rows, inner, columns = shape
    left, right = torch.randn(rows, inner, device=device), torch.randn(inner, columns, device=device)
    left, right = left.to(dtype), right.to(dtype)
    seconds = []
    for _ in range(_RATE_RUNS):
        began = time.perf_counter()
        float((left @ right)[0, 0])  # a number asked for: work on a GPU is over
        seconds.append(time.perf_counter() - began)
    return 2 * rows * inner * columns / statistics.median(seconds) / 1e9
