"""Devices and dtypes: what ``auto`` means on this machine, and copies to and from a device."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from promptcli.backbones import kernels
from promptcli.errors import UsageError, unknown_name_error

#: Float32 with matrix products that, on a GPU, round their operands to 10 bits of mantissa.
TF32 = "tf32"
Key = TypeVar("Key")
Fetch = Callable[[], dict[Key, np.ndarray]]  #: waits for arrays from a device, and returns them
DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def choose_device(name: str) -> str:
    """Return torch's name of a device; ``auto`` takes CUDA, else MPS, else the CPU."""
    usable = ["cpu"]
    if torch.backends.mps.is_available():
        usable.insert(0, "mps")
    if gpus := torch.cuda.device_count():
        usable[:0] = ["cuda", *(f"cuda:{number}" for number in range(gpus))]
    if name == "auto":
        return usable[0]
    if name not in usable:
        raise unknown_name_error("device", name, ["auto", *usable])
    return name


def weights_dtype(name: str, device: str) -> torch.dtype | None:
    """Return the dtype of an encoder's weights by its name, as ``choose_dtype`` does; None for
    ``stored`` (the files' dtype), float32 for ``tf32`` (see ``Backbone.tf32``).
    """
    if name == TF32:
        if not device.startswith("cuda"):
            raise UsageError(f"dtype {TF32} needs a GPU; on {device} give float32")
        return torch.float32
    if name == "stored":
        return None
    if name == "int8":
        raise UsageError("int8 needs a backend, e.g. openvino-int8", parameter="dtype")
    return choose_dtype(name, device)


@contextlib.contextmanager
def tf32_products() -> Iterator[None]:
    """Let a GPU round the operands of float32 products to TF32 within the block."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def choose_dtype(name: str, device: str) -> torch.dtype:
    """Return a dtype by its name; ``auto`` takes bfloat16 if the device computes in it, else
    float32.
    """
    if name == "auto":
        return torch.bfloat16 if computes(torch.bfloat16, device) else torch.float32
    if name not in DTYPES:
        raise unknown_name_error("dtype", name, ["auto", *DTYPES])
    return DTYPES[name]


def computes(dtype: torch.dtype, device: str) -> bool:
    """Return whether a device multiplies matrices of that dtype fast."""
    if dtype != torch.bfloat16:
        return dtype == torch.float32 or not device.startswith("cpu")
    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device == "cpu" and kernels.cpu_computes_bfloat16()


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Return an array as a tensor on a device; the copy to a GPU is asynchronous."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def begin_fetch(tensors: Mapping[Key, Tensor]) -> Fetch[Key]:
    """Begin to copy tensors to host memory, asynchronously from a GPU; return the function that
    waits for them.
    """
    device = next(iter(tensors.values())).device
    if device.type != "cuda":
        arrays = {key: tensor.cpu().numpy() for key, tensor in tensors.items()}
        return lambda: arrays
    copies = {
        key: torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        for key, tensor in tensors.items()
    }
    for key, tensor in tensors.items():
        copies[key].copy_(tensor, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(device))

    def fetch() -> dict[Key, np.ndarray]:
        copied.synchronize()
        return {key: copy.numpy() for key, copy in copies.items()}

    return fetch
