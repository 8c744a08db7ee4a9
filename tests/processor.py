"""What decides which kernels torch takes on this machine: ``python -m tests.processor``."""

from pathlib import Path

import torch

from promptcli.backbones import kernels

FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")


def describe() -> str:
    """Return the features of the processor and what torch makes of them."""
    about = Path("/proc/cpuinfo")
    found = set(about.read_text(encoding="utf-8").split()) if about.exists() else set()
    features = [name for name in FEATURES if name in found]
    bfloat16 = "computes" if kernels.cpu_computes_bfloat16() else "does not compute"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{' '.join(features) or 'no listed features'}; torch {capability}, {bfloat16} bfloat16"


if __name__ == "__main__":
    print(describe())
