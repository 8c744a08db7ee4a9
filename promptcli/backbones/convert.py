"""Convert a ``pytorch_model.bin`` to safetensors, in a separate process, because a pickle can run
code.

It is opened by torch's reader that accepts tensors only.
"""

import subprocess
import sys
from pathlib import Path

from promptcli.children import python_command
from promptcli.errors import UsageError

_TIMEOUT_S = 600


def convert_apart(file: Path, target: Path) -> None:
    """Write a pickle's tensors as safetensors; a new process reads the pickle."""
    command = python_command("promptcli.backbones.convert", str(file), str(target))
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        reason = f"it took longer than {_TIMEOUT_S} s"
    else:
        if process.returncode == 0:
            return
        *_, last_line = ["no reason given", *process.stderr.strip().splitlines()]
        reason = last_line.removeprefix("ValueError: ")
    raise UsageError(f"{file} was not converted, and nothing in it was run: {reason[:200]}")


def _convert(file: Path, target: Path) -> None:
    import torch
    from safetensors.torch import save_file

    try:
        try:
            stored = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # the format before torch 1.6 cannot be mapped into memory
            stored = torch.load(file, map_location="cpu", weights_only=True)
    except (MemoryError, OSError, RuntimeError):
        raise
    except Exception:  # torch's message advises to run the code of the pickle
        raise ValueError("it is not a pickle, or it holds more than tensors") from None
    if not isinstance(stored, dict):
        raise ValueError(f"it holds {type(stored).__name__}, not tensors by name")
    tensors = {
        str(name): item.contiguous().clone()
        for name, item in stored.items()
        if isinstance(item, torch.Tensor)
    }
    if not tensors:
        raise ValueError("it holds no tensors")
    save_file(tensors, target, metadata={"format": "pt"})


if __name__ == "__main__":
    _convert(Path(sys.argv[1]), Path(sys.argv[2]))
