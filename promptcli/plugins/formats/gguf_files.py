"""GGUF files (llama.cpp): each is converted once into a stored folder of safetensors.

transformers reads the file; quantised weights are dequantised, because PyTorch computes on plain
weights.
"""

import contextlib
import functools
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from promptcli import errors
from promptcli.backbones import checking
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.backbones.transformers_loading import load_tokenizer, opening, transformers
from promptcli.errors import NotFoundError, UsageError
from promptcli.notes import note
from promptcli.plugins.formats.gguf_header import MOST_LAYERS, Header
from promptcli.settings import home_folder
from promptcli.storage import files, tensors
from promptcli.storage.files import write_folder

SUFFIX = ".gguf"
_DEFINITION = "tokenizer.json"
_SETTINGS = "tokenizer_config.json"
#: Weight types that stay unchanged; all others are quantised, and fit into float16.
_UNQUANTISED = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
#: Written last: a folder without this file is incomplete.
_MARK = "config.json"
#: Special tokens: name in tokenizer settings -> name in GGUF files.
_SPECIALS = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
}


def folder_of(name: str) -> Path:
    """Return the folder of a converted GGUF file; it is made on first use, and again if the file
    has changed.
    """
    file = Path(name)
    if not file.is_file():
        raise NotFoundError(f"no GGUF file {name!r}; give the path of a GGUF file")
    status = file.stat()
    return _converted_folder(file.resolve(), status.st_size, status.st_mtime_ns)


@functools.cache
def _converted_folder(file: Path, size: int, changed: int) -> Path:
    """Return the folder of a file's content; within a process, size and modification time identify
    the content.
    """
    kept = home_folder() / "cache" / "gguf"
    # made only from the file, and checked
    folder = kept / f"{files.sha256(file)[:32]}-whole"
    if not (folder / _MARK).is_file():
        owner = f"the GGUF file {file.name}"
        with opening(owner):
            header = Header(file)
            weights = header.main_type
            dtype = _UNQUANTISED.get(weights, "float16")
            model, definition = _read(file, header, dtype)
            config = json.loads(model.config.to_json_string(use_diff=False))
            for field in ("quantization_config", "transformers_version", "_name_or_path"):
                config.pop(field, None)  # not part of the model
        # outside the check, because a full disk is not the file's fault
        kept.mkdir(parents=True, exist_ok=True)
        with write_folder(folder) as temporary:
            specials = {name: header.special_token(number) for name, number in _SPECIALS.items()}
            _write(temporary, model, definition, specials)
            with opening(owner):
                tokenizer = PieceTokenizer(load_tokenizer(temporary), owner, causal=True)
                checking.check_vocabulary(owner, temporary, tokenizer, len(header.tokens))
            (temporary / _MARK).write_text(json.dumps(config, indent=2), encoding="utf-8")
        size = sum(path.stat().st_size for path in folder.iterdir())
        done = "are kept as" if weights in _UNQUANTISED else "are dequantised to"
        note(f"{file.name}: {weights} weights {done} {dtype}, {size / 2**20:,.1f} MiB in {folder}")
    return folder


def _read(file: Path, header: Header, dtype: str) -> tuple[Any, dict[str, Any]]:
    """Return the model of a file and the definition of its tokenizer.

    Transformers also reads neighbouring files, so the file is linked into an empty folder.
    """
    library = transformers()
    with tempfile.TemporaryDirectory(prefix="promptcli-") as alone:
        link = Path(alone, f"model{SUFFIX}")
        try:
            link.symlink_to(file)
        except OSError:  # links may be forbidden on Windows
            os.link(file, link)
        options = {"gguf_file": link.name, "local_files_only": True, "trust_remote_code": False}
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar
            _check_weights(header, library.AutoConfig.from_pretrained(alone, **options))
            model, report = library.AutoModelForCausalLM.from_pretrained(
                alone, dtype=dtype, output_loading_info=True, **options
            )
            tokenizer = library.AutoTokenizer.from_pretrained(alone, **options)
    checking.check_tensors(header, report)
    checking.check_finite(header, model)
    model.hf_quantizer = None  # transformers does not notice that the weights are now plain
    model.config.quantization_config = None
    definition: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    return model, _cut_to_size(header, definition)


def _check_weights(header: Header, config: Any) -> None:
    """Refuse a file with more or fewer weights than its header's model has: the library would fill
    gaps at random.
    """
    if config.num_hidden_layers > MOST_LAYERS:
        raise header.error(f"has {config.num_hidden_layers:,} layers")
    with torch.device("meta"):  # allocates nothing
        described = transformers().AutoModelForCausalLM.from_config(config)
    wanted = sum(weights.numel() for weights in described.parameters())
    if header.weights != wanted:
        raise header.error(
            f"holds {header.weights:,} weights, but the {header.architecture} that its header"
            f" describes has {wanted:,}"
        )
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    turned = header.value("rope.dimension_count")
    if turned not in (None, head):
        raise header.error(f"turns {turned} of the {head} dimensions of a head")


def _cut_to_size(header: Header, definition: dict[str, Any]) -> dict[str, Any]:
    """Return a tokenizer without the tokens that the library appended beyond the vocabulary's size:
    its family has them, but this file does not.
    """
    size = len(header.tokens)
    added = definition["added_tokens"]
    foreign = [token["content"] for token in added if token["id"] >= size]
    around = json.dumps(definition["post_processor"])
    for text in foreign:
        if json.dumps(text) in around:
            raise UsageError(
                f"{header} has no {errors.shorten(text)}, which its tokenizer puts around texts"
            )
    model = definition["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        vocabulary = {text: number for text, number in vocabulary.items() if number < size}
    if model.get("unk_token") in foreign:
        model = {**model, "unk_token": None}
    return {
        **definition,
        "added_tokens": [token for token in added if token["id"] < size],
        "model": {**model, "vocab": vocabulary},
    }


def _write(
    folder: Path, model: Any, definition: dict[str, Any], specials: dict[str, str | None]
) -> None:
    """Write a model and its tokenizer to a folder, without the configuration."""
    with tensors.disk_errors(folder):
        model.save_pretrained(folder)
    (folder / _MARK).unlink()
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: text for name, text in specials.items() if text},
    }
    (folder / _DEFINITION).write_text(json.dumps(definition), encoding="utf-8")
    (folder / _SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
