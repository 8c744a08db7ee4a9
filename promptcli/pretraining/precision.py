"""In which precision a run's matrix products are, and how the C library hands out memory while it lasts."""

import ctypes
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from promptcli.backbones.devices import choose_dtype
from promptcli.storage.runs import read_log


@dataclass(frozen=True)
class _Begun:
    precision: str


def choose_precision(device: str, log: Path) -> tuple[torch.dtype, str | None]:
    """Return the precision, and a line for the user where it is not what one would expect.

    bfloat16 where the device computes in it. A run that was begun in the other precision is resumed in float32, which
    every device has.

    Args:
        device: A torch device.
        log: The run's reports so far; they say the precision.
    """
    here = choose_dtype("auto", device)
    lines = read_log(log, _Begun)
    before = lines[0].precision if lines else None
    now = name(here)
    if before is not None and before != now:
        return torch.float32, f"the run was begun in {before}, and this device's own is {now}: it is resumed in float32"
    if here == torch.float32:
        return here, "this device has no bfloat16 arithmetic: the run is in float32"
    return here, None


def name(dtype: torch.dtype) -> str:
    """Return ``bfloat16`` or ``float32``."""
    return str(dtype).removeprefix("torch.")


#: mallopt's parameters (malloc.h): from which size a piece is mapped by itself, how much freed memory is kept.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_LARGEST_PIECE, _KEPT = 1 << 30, (1 << 31) - 1


def keep_freed_memory() -> None:
    """Let the process reuse freed memory instead of giving it back: every step takes and frees the same sizes.

    Where the C library is glibc; elsewhere nothing happens. Without it each large result is mapped anew and its pages
    are cleared by the system, which costs as much as a product that fills them.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    library.mallopt(_MMAP_THRESHOLD, _LARGEST_PIECE)
    library.mallopt(_TRIM_THRESHOLD, _KEPT)
