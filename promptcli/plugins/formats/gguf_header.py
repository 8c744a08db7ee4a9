"""The header of a GGUF file; counts and lengths are checked while the library reads it.

The format is described at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType

from promptcli.errors import UsageError, shorten, unknown

_MAGIC = b"GGUF"
#: Largest number of items in all arrays. A large vocabulary has 1.3 million, and an item takes 100
#: bytes of the library's memory.
_MOST_ITEMS = 1 << 22
MOST_LAYERS = 1000
#: Architectures, by their names in the files, that both transformers and we support.
ARCHITECTURES = ("gemma2", "gemma3", "gpt2", "llama", "qwen2", "qwen3")
#: Llama 3.1's divisors of rotary frequencies.
_ROTARY_FACTORS = "rope_freqs.weight"


class Header:
    """The values and tensors of a GGUF file.

    Raises:
        UsageError: Not a GGUF file, damaged, or an unsupported architecture.
    """

    def __init__(self, file: Path) -> None:
        self.name = file.name
        with file.open("rb") as opened:
            if opened.read(len(_MAGIC)) != _MAGIC:
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
        self.tensors = {str(tensor.name): tensor for tensor in reader.tensors}
        self.architecture = str(values.get("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            raise unknown(f"architecture of {file.name}", self.architecture, ARCHITECTURES)
        self.tokens: list[str] = values.get("tokenizer.ggml.tokens", [])
        if not self.tokens:
            raise self.error("has no tokenizer.ggml.tokens, its vocabulary")
        if _ROTARY_FACTORS in self.tensors:
            raise self.error(f"has {_ROTARY_FACTORS}, which is not supported")
        for name, value in values.items():
            if ".rope.scal" in name and value not in ("none", 1):
                raise self.error(f"has {name} {shorten(value)}, which is not supported")

    @property
    def weights(self) -> int:
        """The number of weights of the model."""
        return sum(int(tensor.n_elements) for tensor in self.tensors.values())

    @property
    def main_type(self) -> str:
        """The type of most weights."""
        types = Counter[str]()
        for tensor in self.tensors.values():
            types[tensor.tensor_type.name] += int(tensor.n_elements)
        return types.most_common(1)[0][0]

    def value(self, name: str) -> Any:
        """Return a value of the architecture; None if missing."""
        return self.values.get(f"{self.architecture}.{name}")

    def special_token(self, name: str) -> str | None:
        """Return the text of a special token, e.g. ``bos``; None if the file names none."""
        number = self.values.get(f"tokenizer.ggml.{name}_token_id")
        if not isinstance(number, int):
            return None
        if number >= len(self.tokens):
            raise self.error(f"has {name}_token_id {number}, but {len(self.tokens):,} tokens")
        return self.tokens[number]

    def __str__(self) -> str:
        return f"the GGUF file {self.name}"

    def error(self, reason: str) -> UsageError:
        """Return the error that refuses the file; the reason follows its name."""
        return UsageError(
            f"{self} {reason}; take a whole file, or the checkpoint that it was made from"
        )


class _CheckingReader(GGUFReader):
    """The library's reader with checks: it fails at the end of the file, and before arrays with too
    many items.
    """

    _items = 0  # of the arrays so far

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        if offset + int(count) * np.dtype(dtype).itemsize > len(self.data):
            raise LookupError("length")
        return super()._get(offset, dtype, count, override_order)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type == GGUFValueType.ARRAY:
            self._items += int(self._get(orig_offs + 4, np.uint64)[0])  # behind the items' type
            if self._items > _MOST_ITEMS:
                raise LookupError("items")
        return super()._get_field_parts(orig_offs, raw_type)
