"""GGUF files, llama.cpp's own: each becomes a folder of safetensors once, which is kept.

transformers reads the file; what was quantised is dequantised, because PyTorch computes on plain
weights.
"""

import contextlib
import functools
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

from promptcli.backbones.checking import opening, transformers
from promptcli.errors import NotFoundError, UsageError, require, unknown
from promptcli.notes import note
from promptcli.settings import home_folder
from promptcli.storage.files import sha256
from promptcli.storage.folders import write_folder

SUFFIX = ".gguf"
#: Architectures, as the files call them, that transformers reads and that are families of ours.
_ARCHITECTURES = ("gemma2", "gemma3", "gpt2", "llama", "qwen2", "qwen3")
#: Types of weights that are kept as they are; all others are quantised, and fit into float16.
_PLAIN = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
#: Written last: a folder without it is not complete.
_MARK = "config.json"


def folder_of(name: str) -> Path:
    """Return the folder that a GGUF file becomes; made on the first use, and again if the file has
    changed.
    """
    file = Path(name)
    if not file.is_file():
        raise NotFoundError(f"no GGUF file {name!r}; give the path of one")
    require("gguf", extra="gguf")
    status = file.stat()
    return _converted_folder(file.resolve(), status.st_size, status.st_mtime_ns)


@functools.cache
def _converted_folder(file: Path, size: int, changed: int) -> Path:
    """Return the folder of a file's content; size and time of change tell one content from another
    within a process.
    """
    kept = home_folder() / "cache" / "gguf"
    folder = kept / sha256(file)[:32]
    if not (folder / _MARK).is_file():
        with opening(f"the GGUF file {file.name}"):
            [(weights, _)] = _types_of(file).most_common(1)
            dtype = _PLAIN.get(weights, "float16")
            kept.mkdir(parents=True, exist_ok=True)
            with write_folder(folder) as temporary:
                _convert(file, temporary, dtype)
        size = sum(path.stat().st_size for path in folder.iterdir())
        done = "are kept as" if weights in _PLAIN else "are dequantised to"
        note(f"{file.name}: {weights} weights {done} {dtype}, {size / 2**20:,.1f} MiB in {folder}")
    return folder


def _types_of(file: Path) -> Counter[str]:
    """Return how many weights a file has of each type; refuse what is no language model of ours."""
    reader = _reader(file)
    field = reader.fields.get("general.architecture")
    if field is None:
        raise UsageError(f"the GGUF file {file.name} names no architecture: it holds no model")
    architecture = field.contents()
    if architecture not in _ARCHITECTURES:
        raise unknown(f"architecture of {file.name}", str(architecture), _ARCHITECTURES)
    types = Counter[str]()
    for tensor in reader.tensors:
        types[tensor.tensor_type.name] += int(tensor.n_elements)
    return types


def _reader(file: Path) -> Any:
    """Return the library's reader of a file; refuse one that it cannot read."""
    from gguf import GGUF_MAGIC, GGUFReader

    with file.open("rb") as opened:
        magic = opened.read(4)
    if magic != GGUF_MAGIC.to_bytes(4, "little"):
        raise UsageError(
            f"{file.name} is not a GGUF file: it does not begin with GGUF; give a model of"
            " llama.cpp"
        )
    try:
        return GGUFReader(file)
    except (ValueError, LookupError, ArithmeticError, MemoryError):  # numpy's, mostly
        size = file.stat().st_size
        raise UsageError(
            f"the GGUF file {file.name} is cut, damaged or of a later version: its {size:,} bytes"
            " do not hold what its header lists; fetch it again"
        ) from None


def _convert(file: Path, folder: Path, dtype: str) -> None:
    """Fill a folder with the model and the tokenizer of a GGUF file."""
    given = {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}
    library = transformers()
    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar
        model: Any = library.AutoModelForCausalLM.from_pretrained(file.parent, dtype=dtype, **given)
        tokenizer = library.AutoTokenizer.from_pretrained(file.parent, **given)
    model.hf_quantizer = None  # its weights are plain now, which transformers does not notice
    model.config.quantization_config = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / _MARK).read_text(encoding="utf-8"))
    for field in ("quantization_config", "transformers_version"):  # not of the model
        config.pop(field, None)
    (folder / _MARK).write_text(json.dumps(config, indent=2), encoding="utf-8")
