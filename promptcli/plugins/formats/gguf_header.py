"""The header of a GGUF file, read and checked before anything is made of it.

Each count and size is compared with the length of the file, and the tensors with those that the
architecture has. The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import mmap
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from promptcli import errors
from promptcli.errors import UsageError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
#: Types of values: their number in a file -> how ``struct`` reads them. The others are 8, a text,
#: and 9, an array.
_NUMBERS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_TEXT = 8
_ARRAY = 9
#: Bytes of the shortest value with its name, and of the shortest description of a tensor.
_SHORTEST_VALUE = 13
_SHORTEST_TENSOR = 24
#: Items of all arrays. A large vocabulary has 1.3 million, and its library takes 100 bytes for
#: each.
_MOST_ITEMS = 1 << 22
_MOST_LAYERS = 1000
_MOST_AXES = 4

# Sizes, by the names that they have below: of the embeddings, the feed-forward layer, all heads
# together, those of keys and values, one head, the vocabulary, the positions, queries with keys
# and values.
_WIDTH, _INNER, _QUERIES, _KEYS, _HEAD, _WORDS, _PLACES, _TRIPLE = "efqkhvpt"
_Tensors = dict[str, tuple[str, ...]]

#: Tensors of a layer -> their axes, the one that varies fastest first, as in the file.
_GATED: _Tensors = {
    "attn_norm.weight": (_WIDTH,),
    "attn_q.weight": (_WIDTH, _QUERIES),
    "attn_k.weight": (_WIDTH, _KEYS),
    "attn_v.weight": (_WIDTH, _KEYS),
    "attn_output.weight": (_QUERIES, _WIDTH),
    "ffn_norm.weight": (_WIDTH,),
    "ffn_gate.weight": (_WIDTH, _INNER),
    "ffn_up.weight": (_WIDTH, _INNER),
    "ffn_down.weight": (_INNER, _WIDTH),
}
_BIASED: _Tensors = {
    "attn_q.bias": (_QUERIES,),
    "attn_k.bias": (_KEYS,),
    "attn_v.bias": (_KEYS,),
}
_HEAD_NORMS: _Tensors = {"attn_q_norm.weight": (_HEAD,), "attn_k_norm.weight": (_HEAD,)}
_NORMS_AFTER: _Tensors = {
    "post_attention_norm.weight": (_WIDTH,),
    "post_ffw_norm.weight": (_WIDTH,),
}
_GPT2: _Tensors = {
    "attn_norm.weight": (_WIDTH,),
    "attn_norm.bias": (_WIDTH,),
    "attn_qkv.weight": (_WIDTH, _TRIPLE),
    "attn_qkv.bias": (_TRIPLE,),
    "attn_output.weight": (_WIDTH, _WIDTH),
    "attn_output.bias": (_WIDTH,),
    "ffn_norm.weight": (_WIDTH,),
    "ffn_norm.bias": (_WIDTH,),
    "ffn_up.weight": (_WIDTH, _INNER),
    "ffn_up.bias": (_INNER,),
    "ffn_down.weight": (_INNER, _WIDTH),
    "ffn_down.bias": (_WIDTH,),
}
#: Tensors outside of the layers.
_OUTSIDE: _Tensors = {"token_embd.weight": (_WIDTH, _WORDS), "output_norm.weight": (_WIDTH,)}
_OUTSIDE_GPT2: _Tensors = {
    **_OUTSIDE,
    "output_norm.bias": (_WIDTH,),
    "position_embd.weight": (_WIDTH, _PLACES),
}
#: Tensors that a file may lack: the output, if it is the embeddings, and the factors by which
#: rotary frequencies are divided.
_OUTPUT = "output.weight"
ROTARY_FACTORS = "rope_freqs.weight"
#: Architectures, as the files call them, that transformers reads and that are families of ours ->
#: the tensors of a layer.
_LAYERS: dict[str, _Tensors] = {
    "gemma2": {**_GATED, **_NORMS_AFTER},
    "gemma3": {**_GATED, **_NORMS_AFTER, **_HEAD_NORMS},
    "gpt2": _GPT2,
    "llama": _GATED,
    "qwen2": {**_GATED, **_BIASED},
    "qwen3": {**_GATED, **_HEAD_NORMS},
}
_WITHOUT_ROTARY = "gpt2"
#: Values that are needed for sizes, behind the name of the architecture.
_SIZES = (
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "context_length",
)
#: What scales the rotary frequencies and is heeded; any other value of that name is refused.
_SCALING = ("type", "factor", "original_context_length", "finetuned")


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file, which has not been read yet."""

    axes: tuple[int, ...]  #: the one that varies fastest first
    kind: int  #: number of its type
    start: int  #: its first byte

    @property
    def count(self) -> int:
        return math.prod(self.axes)


@dataclass(frozen=True)
class Header:
    """The header of a GGUF file that holds a whole model that promptcli knows."""

    name: str  #: of the file
    values: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @property
    def architecture(self) -> str:
        return str(self.values["general.architecture"])

    @property
    def tokens(self) -> Sequence[str]:
        """The vocabulary, in the order of the ids."""
        tokens: Sequence[str] = self.values["tokenizer.ggml.tokens"]
        return tokens

    @cached_property
    def types(self) -> Counter[str]:
        """How many weights there are of each type."""
        from gguf import GGMLQuantizationType

        types = Counter[str]()
        for tensor in self.tensors.values():
            types[GGMLQuantizationType(tensor.kind).name] += tensor.count
        return types

    def value(self, name: str, default: Any = None) -> Any:
        """Return a value of the architecture."""
        return self.values.get(f"{self.architecture}.{name}", default)

    def special_token(self, name: str) -> str | None:
        """Return the text of a special token, ``bos`` say; None if the file names none."""
        number = self.values.get(f"tokenizer.ggml.{name}_token_id")
        if not isinstance(number, int) or not 0 <= number < len(self.tokens):
            return None
        return self.tokens[number]


def read_header(file: Path) -> Header:
    """Return the header of a file; refuse one without a whole model that promptcli knows."""
    with file.open("rb") as opened:
        if opened.read(len(_MAGIC)) != _MAGIC:
            raise UsageError(
                f"{file.name} is not a GGUF file: it does not begin with GGUF; give a model of"
                " llama.cpp"
            )
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                values, tensors = _Cursor(content).header()
            except (struct.error, ValueError, LookupError) as fault:
                why = f" ({fault})" if isinstance(fault, _DamagedError) else ""
                raise UsageError(
                    f"the GGUF file {file.name} is cut, damaged or of a later version: its"
                    f" {len(content):,} bytes do not hold what its header lists{why}; fetch it"
                    " again"
                ) from None
            header = Header(file.name, values, tensors)
            _check_values(header)
            _check_tensors(header)
            _check_scaling(header)
            return header


def rotary_factors(file: Path, header: Header) -> list[float] | None:
    """Return the numbers by which a file divides its rotary frequencies, None if it has none."""
    tensor = header.tensors.get(ROTARY_FACTORS)
    if tensor is None:
        return None
    with file.open("rb") as opened:
        opened.seek(tensor.start)
        return list(struct.unpack(f"<{tensor.count}f", opened.read(4 * tensor.count)))


def rotary_scaling(header: Header) -> dict[str, Any]:
    """Return how a file scales its rotary frequencies, as transformers' configurations say it."""
    kind = header.value("rope.scaling.type", "none")
    factor = header.value("rope.scaling.factor", header.value("rope.scale_linear", 1.0))
    if kind == "none" and "rope.scaling.type" not in header.values and factor != 1:
        kind = "linear"  # older files
    if kind == "none" or (kind == "linear" and factor == 1):
        return {}
    scaling = {"rope_type": kind, "factor": float(factor)}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = header.value(
            "rope.scaling.original_context_length"
        )
    return scaling


class _DamagedError(ValueError):
    """A count or a size that cannot be."""


class _Cursor:
    """Reads a header from its first byte to its last."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self._place = len(_MAGIC)
        self._items = 0  # of the arrays so far

    def header(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        if self._number("<I") not in _VERSIONS:
            raise _DamagedError("its version is not 2 or 3")
        tensors = self._count("<Q", _SHORTEST_TENSOR)
        count = self._count("<Q", _SHORTEST_VALUE)
        values: dict[str, Any] = {}
        for _ in range(count):
            name = self._text()
            if name in values:
                raise _DamagedError(f"{errors.shorten(name)} is there twice")
            values[name] = self._value(self._number("<I"))
        return values, self._tensors(tensors, values.get("general.alignment", 32))

    def _tensors(self, count: int, alignment: Any) -> dict[str, Tensor]:
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise _DamagedError("its alignment is no number of bytes")
        tensors: dict[str, Tensor] = {}
        for _ in range(count):
            name = self._text()
            axes = tuple(self._number("<Q") for _ in range(self._number("<I", most=_MOST_AXES)))
            kind = self._number("<I")
            if name in tensors:
                raise _DamagedError(f"{errors.shorten(name)} is there twice")
            tensors[name] = Tensor(axes, kind, self._number("<Q"))
        first = -(-self._place // alignment) * alignment
        placed = {}
        for name, tensor in tensors.items():
            placed[name] = Tensor(tensor.axes, tensor.kind, first + tensor.start)
            if placed[name].start + _size(tensor) > len(self._content):
                raise _DamagedError(f"{errors.shorten(name)} ends behind its end")
        return placed

    def _number(self, form: str, *, most: int | None = None) -> Any:
        (number,) = struct.unpack_from(form, self._content, self._place)
        if most is not None and number > most:
            raise _DamagedError(f"{number:,} of at most {most:,}")
        self._place += struct.calcsize(form)
        return number

    def _count(self, form: str, size: int) -> int:
        """Return a number of things that have at least ``size`` bytes each."""
        remaining = len(self._content) - self._place
        return int(self._number(form, most=remaining // size))

    def _text(self) -> str:
        length = self._count("<Q", 1)
        end = self._place + length
        if end > len(self._content):
            raise _DamagedError("a text ends behind its end")
        text = self._content[self._place : end].decode("utf-8", "replace")
        self._place = end
        return text

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind != _ARRAY:
            return self._number(_NUMBERS[kind])
        kind = self._number("<I")
        size = 8 if kind == _TEXT else struct.calcsize(_NUMBERS[kind])
        count = self._count("<Q", size)
        self._items += count
        if self._items > _MOST_ITEMS:
            raise UsageError(
                f"the arrays of the GGUF file have {self._items:,} items, more than any vocabulary"
                f" needs (at most {_MOST_ITEMS:,}); fetch a file of a language model"
            )
        if kind == _TEXT:
            return [self._text() for _ in range(count)]
        if self._place + size * count > len(self._content):
            raise _DamagedError("an array ends behind its end")
        form = f"<{count}{_NUMBERS[kind][1]}"
        numbers = struct.unpack_from(form, self._content, self._place)
        self._place += size * count
        return numbers


def _size(tensor: Tensor) -> int:
    """Return the bytes of a tensor."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    block, size = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.kind)]
    if not tensor.axes or 0 in tensor.axes or tensor.axes[0] % block:
        raise _DamagedError("a tensor has no size")
    return tensor.count // block * size


def _check_values(header: Header) -> None:
    """Refuse a file of another architecture, or without the sizes and the vocabulary of a model."""
    what = f"the GGUF file {header.name}"
    architecture = header.values.get("general.architecture")
    if architecture is None:
        raise UsageError(f"{what} names no architecture: it holds no model")
    if architecture not in _LAYERS:
        raise errors.unknown(f"architecture of {header.name}", str(architecture), sorted(_LAYERS))
    for name in _SIZES:
        value = header.value(name)
        if not isinstance(value, int) or value < 1:
            raise UsageError(
                f"{what} has no {architecture}.{name}, a size of the model; fetch a whole file"
            )
    layers = header.value("block_count")
    if layers > _MOST_LAYERS:
        raise UsageError(f"{what} has {layers:,} layers, which no model has")
    norm = "attention.layer_norm_rms_epsilon"
    if architecture == _WITHOUT_ROTARY:
        norm = "attention.layer_norm_epsilon"
    if not isinstance(header.value(norm), float):
        raise UsageError(f"{what} has no {architecture}.{norm}; fetch a whole file")
    tokens = header.values.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise UsageError(f"{what} has no tokenizer.ggml.tokens, its vocabulary; fetch a whole file")
    for name, number in header.values.items():
        special = name.startswith("tokenizer.ggml.") and name.endswith("_token_id")
        if special and isinstance(number, int) and number >= len(tokens):
            raise UsageError(f"{what} has {name} {number}, and a vocabulary of {len(tokens):,}")


def _sizes(header: Header) -> dict[str, int]:
    """Return the sizes of the axes, by their names."""
    width = header.value("embedding_length")
    heads = header.value("attention.head_count")
    head = header.value("attention.key_length", width // heads)
    keys = header.value("attention.head_count_kv", heads)
    if not isinstance(keys, int) or not isinstance(head, int):
        raise UsageError(
            f"the GGUF file {header.name} has heads of several sizes, which no family of ours has"
        )
    return {
        _WIDTH: width,
        _INNER: header.value("feed_forward_length"),
        _QUERIES: heads * head,
        _KEYS: keys * head,
        _HEAD: head,
        _WORDS: len(header.tokens),
        _PLACES: header.value("context_length"),
        _TRIPLE: 3 * width,
    }


def _check_tensors(header: Header) -> None:
    """Refuse a file that lacks a tensor, has one of another shape, or one that no part of the model
    takes.
    """
    what = f"the GGUF file {header.name}"
    architecture = header.architecture
    needed = dict(_OUTSIDE_GPT2 if architecture == _WITHOUT_ROTARY else _OUTSIDE)
    for layer in range(header.value("block_count")):
        needed |= {f"blk.{layer}.{name}": axes for name, axes in _LAYERS[architecture].items()}
    missing = [name for name in needed if name not in header.tensors]
    if missing:
        raise UsageError(
            f"{what} lacks {len(missing)} of its tensors (e.g. {missing[0]}): not a whole model;"
            " fetch it again"
        )
    allowed = {**needed, _OUTPUT: (_WIDTH, _WORDS)}
    sizes = _sizes(header)
    for name, tensor in header.tensors.items():
        if name == ROTARY_FACTORS and architecture == "llama":
            if tensor.axes != (sizes[_HEAD] // 2,) or tensor.kind != 0:
                raise UsageError(f"{what} has a tensor {name} that is not a number for each pair")
            continue
        if name not in allowed:
            raise UsageError(
                f"{what} has a tensor {errors.shorten(name)}, for which {architecture} has no"
                " place; take the checkpoint that it was made from"
            )
        wanted = tuple(sizes[axis] for axis in allowed[name])
        if tensor.axes != wanted:
            raise UsageError(
                f"{what} has a tensor {name} of shape {_shape(tensor.axes)}, where its header asks"
                f" for {_shape(wanted)}"
            )


def _shape(axes: Sequence[int]) -> str:
    return " x ".join(map(str, axes))


def _check_scaling(header: Header) -> None:
    """Refuse what changes the rotary frequencies in a way that is not computed here."""
    what = f"the GGUF file {header.name}"
    better = "take the checkpoint that it was made from"
    begin = f"{header.architecture}.rope.scaling."
    names = [name for name in header.values if name.startswith(begin)]
    kind = header.value("rope.scaling.type", "none")
    turned = header.value("rope.dimension_count")
    head = _sizes(header)[_HEAD]
    if header.architecture != _WITHOUT_ROTARY and turned not in (None, head):
        raise UsageError(
            f"{what} has {header.architecture}.rope.dimension_count {turned}, and heads of {head}"
            f" dimensions: a part of a head is turned, which is not computed; {better}"
        )
    kinds = ("none",) if header.architecture == _WITHOUT_ROTARY else ("none", "linear", "yarn")
    if kind not in kinds:
        raise UsageError(
            f"{what} has {begin}type {errors.shorten(kind)}, which is not computed (only"
            f" {', '.join(kinds)}); {better}"
        )
    for name in names:
        if name.removeprefix(begin) not in _SCALING:
            raise UsageError(
                f"{what} has {name} {errors.shorten(header.values[name])}, which is not computed;"
                f" {better}"
            )
    scaling = rotary_scaling(header)
    if not scaling:
        return
    if not 1 <= scaling["factor"] < math.inf:
        raise UsageError(
            f"{what} has {begin}factor {scaling['factor']}, which is not 1 or more; {better}"
        )
    original = scaling.get("original_max_position_embeddings", 1)
    if not isinstance(original, int) or original < 1:
        raise UsageError(
            f"{what} has {begin}type yarn without {begin}original_context_length; {better}"
        )
    if ROTARY_FACTORS in header.tensors:
        raise UsageError(f"{what} has both {ROTARY_FACTORS} and {begin}type {kind}; {better}")
