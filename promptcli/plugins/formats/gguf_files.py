"""GGUF files (llama.cpp): a file is converted once, into a folder of safetensors that is kept.

transformers reads the file. Quantised weights are dequantised, because PyTorch computes on plain
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
from promptcli.plugins.formats.gguf_header import Header
from promptcli.settings import home_folder
from promptcli.storage import files, tensors
from promptcli.storage.files import write_folder

_MAX_LAYERS = 1000
#: Types of plain weights. Weights of all other types are quantised, and fit into float16.
_PLAIN_TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_CONFIG = "config.json"  # written last: a folder without this file is incomplete
#: Name of a special token in the settings of a tokenizer -> its name in GGUF files.
_SPECIALS = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
}


def folder_of(name: str) -> Path:
    """Return the folder of a converted GGUF file; it is converted if it is new or has changed."""
    file = Path(name)
    if not file.is_file():
        raise NotFoundError(f"no GGUF file {name!r}; give the path of a GGUF file")
    status = file.stat()
    return _converted_folder(file.resolve(), status.st_size, status.st_mtime_ns)


@functools.cache
def _converted_folder(file: Path, size: int, changed: int) -> Path:
    """Return the folder of the converted file. Within a process, ``size`` and ``changed``, the time
    of modification, identify the content of the file.
    """
    cache = home_folder() / "cache" / "gguf"
    # "whole": made from this file alone, and checked
    folder = cache / f"{files.sha256(file)[:32]}-whole"
    if not (folder / _CONFIG).is_file():
        owner = f"the GGUF file {file.name}"
        with opening(owner):
            header = Header(file)
            [(main_type, _)] = header.weight_counts.most_common(1)
            dtype = _PLAIN_TYPES.get(main_type, "float16")
            model, definition = _read(file, header, dtype)
            config = json.loads(model.config.to_json_string(use_diff=False))
            for field in ("quantization_config", "transformers_version", "_name_or_path"):
                config.pop(field, None)  # not part of the model
        # not inside `opening`, because a full disk is not the file's fault
        cache.mkdir(parents=True, exist_ok=True)
        with write_folder(folder) as temporary:
            _write(temporary, model, definition, header)
            with opening(owner):
                tokenizer = PieceTokenizer(load_tokenizer(temporary), owner, causal=True)
                checking.check_vocabulary(owner, temporary, tokenizer, len(header.tokens))
            (temporary / _CONFIG).write_text(json.dumps(config, indent=2), encoding="utf-8")
        size = sum(path.stat().st_size for path in folder.iterdir())
        verb = "are kept as" if main_type in _PLAIN_TYPES else "are dequantised to"
        note(
            f"{file.name}: {main_type} weights {verb} {dtype}, {size / 2**20:,.1f} MiB in {folder}"
        )
    return folder


def _read(file: Path, header: Header, dtype: str) -> tuple[Any, dict[str, Any]]:
    """Return the model of a file and the definition of its tokenizer.

    transformers also reads other files in the folder, so the file is linked into an empty folder.
    """
    library = transformers()
    with tempfile.TemporaryDirectory(prefix="promptcli-") as empty_folder:
        link = Path(empty_folder, "model.gguf")
        try:
            link.symlink_to(file)
        except OSError:  # links may be forbidden on Windows
            os.link(file, link)
        options = {"gguf_file": link.name, "local_files_only": True, "trust_remote_code": False}
        with contextlib.redirect_stderr(io.StringIO()):  # hides a progress bar
            _check_weights(header, library.AutoConfig.from_pretrained(empty_folder, **options))
            model, report = library.AutoModelForCausalLM.from_pretrained(
                empty_folder, dtype=dtype, output_loading_info=True, **options
            )
            tokenizer = library.AutoTokenizer.from_pretrained(empty_folder, **options)
    checking.check_tensors(header, report)
    checking.check_finite(header, model)
    model.hf_quantizer = None  # transformers does not notice that the weights are now plain
    model.config.quantization_config = None
    definition: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    return model, _cut_to_size(header, definition)


def _check_weights(header: Header, config: Any) -> None:
    """Refuse a file that has more or fewer weights than the model that its header describes: the
    library would fill gaps with random numbers.
    """
    if config.num_hidden_layers > _MAX_LAYERS:
        raise header.error(f"has {config.num_hidden_layers:,} layers")
    with torch.device("meta"):  # allocates nothing
        described = transformers().AutoModelForCausalLM.from_config(config)
    expected = sum(weights.numel() for weights in described.parameters())
    count = header.weight_counts.total()
    if count != expected:
        raise header.error(
            f"holds {count:,} weights, but the {header.architecture} that its header describes has"
            f" {expected:,}"
        )
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rotated = header.values.get(f"{header.architecture}.rope.dimension_count")
    if rotated not in (None, width):
        raise header.error(f"rotates {rotated} of the {width} dimensions of a head")


def _cut_to_size(header: Header, definition: dict[str, Any]) -> dict[str, Any]:
    """Return the definition of a tokenizer without the tokens that the library appended to the
    vocabulary: other models of the family have these tokens, but the file does not.
    """
    size = len(header.tokens)
    added = definition["added_tokens"]
    appended = [token["content"] for token in added if token["id"] >= size]
    post_processor = json.dumps(definition["post_processor"])
    for text in appended:
        if json.dumps(text) in post_processor:
            raise UsageError(
                f"{header} has no {errors.short_repr(text)}, which its tokenizer puts around texts"
            )
    model = definition["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        vocabulary = {text: number for text, number in vocabulary.items() if number < size}
    if model.get("unk_token") in appended:
        model = {**model, "unk_token": None}
    return {
        **definition,
        "added_tokens": [token for token in added if token["id"] < size],
        "model": {**model, "vocab": vocabulary},
    }


def _write(folder: Path, model: Any, definition: dict[str, Any], header: Header) -> None:
    """Write a model and its tokenizer to a folder, without ``config.json``."""
    with tensors.disk_errors(folder):
        model.save_pretrained(folder)
    (folder / _CONFIG).unlink()
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for name, gguf_name in _SPECIALS.items():
        if token := header.special_token(gguf_name):
            settings[name] = token
    (folder / "tokenizer.json").write_text(json.dumps(definition), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
