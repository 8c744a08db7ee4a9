"""The header of a GGUF file, whose counts and lengths are checked while the library reads it.

The format is described at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType

from promptcli.errors import UsageError, short_repr, unknown_name_error

#: In all arrays. A large vocabulary has 1.3 million items, each of which takes 100 bytes in memory.
_MAX_ARRAY_ITEMS = 1 << 22
#: Architectures that transformers and promptcli support, by their names in the files.
ARCHITECTURES = ("gemma2", "gemma3", "gpt2", "llama", "qwen2", "qwen3")
_ROTARY_FACTORS = "rope_freqs.weight"  # Llama 3.1's divisors of rotary frequencies


class Header:
    """The values of a GGUF file, and the types and sizes of its tensors.

    Raises:
        UsageError: The file is not a GGUF file, is damaged, or has an unsupported architecture.
    """

    def __init__(self, file: Path) -> None:
        self.name = file.name
        with file.open("rb") as opened:
            if opened.read(4) != b"GGUF":
                raise UsageError(
                    f"{file.name} is not a GGUF file: it does not begin with GGUF; give a model of"
                    " llama.cpp"
                )
        try:
            reader = _CheckingReader(file)
            values = {name: field.contents() for name, field in reader.fields.items()}
        except (ValueError, LookupError, OverflowError, RecursionError) as error:
            raise UsageError(
                f"the GGUF file {file.name} is cut, damaged or of a later version: its"
                f" {file.stat().st_size:,} bytes do not hold what its header lists; fetch it again"
            ) from error
        self.values: dict[str, Any] = values
        #: Type -> number of weights of that type.
        self.weight_counts = Counter[str]()
        for tensor in reader.tensors:
            self.weight_counts[tensor.tensor_type.name] += int(tensor.n_elements)
        self.architecture = str(values.get("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            raise unknown_name_error(
                f"architecture of {file.name}", self.architecture, ARCHITECTURES
            )
        self.tokens: list[str] = values.get("tokenizer.ggml.tokens", [])
        if not self.tokens:
            raise self.error("has no tokenizer.ggml.tokens, its vocabulary")
        if any(tensor.name == _ROTARY_FACTORS for tensor in reader.tensors):
            raise self.error(f"has {_ROTARY_FACTORS}, which is not supported")
        for name, value in values.items():
            if ".rope.scal" in name and value not in ("none", 1):
                raise self.error(f"has {name} {short_repr(value)}, which is not supported")

    def special_token(self, name: str) -> str | None:
        """Return the text of a special token, e.g. ``bos``; None if the file does not name it."""
        number = self.values.get(f"tokenizer.ggml.{name}_token_id")
        if not isinstance(number, int):
            return None
        if number >= len(self.tokens):
            raise self.error(f"has {name}_token_id {number}, but {len(self.tokens):,} tokens")
        return self.tokens[number]

    def __str__(self) -> str:
        return f"the GGUF file {self.name}"

    def error(self, reason: str) -> UsageError:
        """Return the error that refuses the file; its message is the file's name and the reason."""
        return UsageError(
            f"{self} {reason}; take a complete file, or the checkpoint from which it was made"
        )


class _CheckingReader(GGUFReader):
    """The library's reader with two checks: nothing is read beyond the end of the file, and the
    arrays do not have too many items.
    """

    _items = 0  # of the arrays that were read

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        if offset + int(count) * np.dtype(dtype).itemsize > len(self.data):
            raise LookupError("length")
        return super()._get(offset, dtype, count, override_order)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type == GGUFValueType.ARRAY:
            self._items += int(
                self._get(orig_offs + 4, np.uint64)[0]
            )  # the type of the items comes first
            if self._items > _MAX_ARRAY_ITEMS:
                raise LookupError("items")
        return super()._get_field_parts(orig_offs, raw_type)
