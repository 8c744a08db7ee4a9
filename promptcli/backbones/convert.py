"""Convert what is not safetensors, each file in a separate process: a ``pytorch_model.bin``, or a GGUF file.

A pickle can run code: only torch's reader of tensors opens it.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

from promptcli.errors import UsageError

_LONGEST = 600  # seconds


def is_gguf(name: str) -> bool:
    """Return whether a name is that of a GGUF file that exists."""
    return Path(name).suffix == ".gguf" and Path(name).is_file()


def convert_apart(file: Path, target: Path) -> None:
    """Write a pickle's tensors as safetensors, or the model of a GGUF file as a folder, in a new process."""
    command = [sys.executable, "-m", "promptcli.backbones.convert", str(file), str(target)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST, check=False)
        reason = "" if ran.returncode == 0 else next(iter(ran.stderr.strip().splitlines()[-1:]), "no reason given")
    except subprocess.TimeoutExpired:
        reason = f"it took longer than {_LONGEST} s"
    if reason:
        raise UsageError(f"{file} was not converted, and nothing in it was run: {reason[:200]}")


def _convert_pickle(pickle: Path, target: Path) -> None:
    import torch
    from safetensors.torch import save_file

    try:
        stored = torch.load(pickle, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:  # the format of before torch 1.6 cannot be mapped
        stored = torch.load(pickle, map_location="cpu", weights_only=True)
    if not isinstance(stored, dict):
        raise ValueError(f"it holds {type(stored).__name__}, not tensors by name")
    tensors = {str(name): item.contiguous().clone() for name, item in stored.items() if isinstance(item, torch.Tensor)}
    if not tensors:
        raise ValueError("it holds no tensors")
    save_file(tensors, target, metadata={"format": "pt"})


def _convert_gguf(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    given = {"gguf_file": file.name, "local_files_only": True}
    model: Any = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float16, **given)
    model.hf_quantizer = None  # its weights are plain now, which transformers does not notice
    del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, **given).save_pretrained(folder)


if __name__ == "__main__":
    (_convert_gguf if is_gguf(sys.argv[1]) else _convert_pickle)(Path(sys.argv[1]), Path(sys.argv[2]))
