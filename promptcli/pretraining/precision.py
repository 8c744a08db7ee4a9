"""In which precision a run's matrix products are, and what there is to say about it."""

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

    bfloat16 where the device computes in it. A run that was begun in the other precision goes on in float32, which
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
        return torch.float32, f"the run was begun in {before}, and this device's own is {now}: it goes on in float32"
    if here == torch.float32:
        return here, "this device has no bfloat16 arithmetic: the run is in float32"
    return here, None


def name(dtype: torch.dtype) -> str:
    """Return ``bfloat16`` or ``float32``."""
    return str(dtype).removeprefix("torch.")
