"""What the CPU can do, without torch."""

import functools
import sys
from pathlib import Path

_FLAG = "avx512_bf16"


@functools.cache
def computes_bfloat16() -> bool | None:
    """Return whether the CPU multiplies matrices of bfloat16 at speed, as torch says it.

    None if only torch knows.
    """
    if sys.platform == "darwin":
        return False
    try:
        about = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return None
    return _FLAG in about.split()
