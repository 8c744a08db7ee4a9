"""GGUF files, converted to a folder in a separate process (``python -m`` this module FILE FOLDER)."""

import sys
from pathlib import Path
from typing import Any


def is_gguf(name: str) -> bool:
    """Return whether a name is that of a GGUF file that exists."""
    return Path(name).suffix == ".gguf" and Path(name).is_file()


def convert_gguf(file: Path, folder: Path) -> None:
    """Write the model in a GGUF file as a folder with its tokenizer, the weights dequantised to float16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    given = {"gguf_file": file.name, "local_files_only": True}
    model: Any = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float16, **given)
    model.hf_quantizer = None  # its weights are plain now, which transformers does not notice
    del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, **given).save_pretrained(folder)


if __name__ == "__main__":
    convert_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
