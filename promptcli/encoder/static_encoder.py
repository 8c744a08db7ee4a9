"""The mean of word vectors by numpy alone, so that no one waits for torch to be imported."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from promptcli.backbones.names import words_only
from promptcli.backbones.provenance import TABLE
from promptcli.backbones.word_tables import TUNED_ROWS, WordTable, open_table
from promptcli.data.vectors.precision import unit
from promptcli.encoder.averaging import average_rows
from promptcli.encoder.encoded import Encoded, Progress, encode_stream, no_progress
from promptcli.encoder.sentence_encoder import Encoder, longest_input
from promptcli.encoder.template import Inputs, Template, text_rule
from promptcli.encoder.tensor_names import TUNED
from promptcli.errors import UsageError
from promptcli.grammar import Spec
from promptcli.recipe import SLOT, LeadingTexts, Recipe
from promptcli.storage.tensors import StoredTensors

if TYPE_CHECKING:
    import torch
    from torch import Tensor

#: What the rows of a language model's table are rounded to. Other types are torch's.
_NUMBERS = {"stored": "float32", "float32": "float32", "bfloat16": "bfloat16"}


def static_encoder(
    recipe: Recipe,
    tensors: "Mapping[str, Tensor]",
    *,
    device: str,
    dtype: str,
    leading: LeadingTexts,
    on_torch: Callable[[], Any],
) -> "StaticEncoder | None":
    """Return the encoder of a recipe that averages word vectors, on the CPU; None for all others.

    No other place decides which encoders do without torch. ``on_torch`` makes the same encoder on
    torch.
    """
    arrays = arrays_of(tensors)
    tuned_rows = TUNED + TUNED_ROWS
    if not (
        averages_words(recipe, leading)
        and arrays.keys() == tensors.keys() <= {tuned_rows}
        and device in ("auto", "cpu")
        and dtype in _NUMBERS
    ):
        return None
    if words_only(recipe.backbone):
        check_words_only(recipe)
    table = open_table(recipe.backbone, arrays.get(tuned_rows))
    if table is None:
        return None
    if table.provenance.family == TABLE:
        check_words_only(recipe, table=True)
    numbers = _NUMBERS[dtype] if table.of_language_model else "float32"
    return StaticEncoder(
        recipe, table, tensors, numbers=numbers, leading=leading, on_torch=on_torch
    )


def arrays_of(tensors: "Mapping[str, Tensor]") -> Mapping[str, np.ndarray]:
    """Return the numbers of tensors that were read from a file; none of others."""
    return tensors.arrays if isinstance(tensors, StoredTensors) else {}


def averages_words(recipe: Recipe, leading: LeadingTexts) -> bool:
    """Return whether a recipe averages word vectors, of a sentence alone or with one of the model's
    own texts in front, and transforms them by what numpy computes.
    """
    prompts = [text + SLOT for text in ("", *leading.texts.values())]
    return (
        recipe.prompt in prompts
        and recipe.pooling == "static/avg"
        and recipe.denoise == "none"
        and all(map(_by_numpy, recipe.parts.transforms))
    )


def _by_numpy(transform: Spec) -> bool:
    """Return whether numpy computes a transform."""
    if transform.name == "truncate":
        return transform["count"] is not None
    return str(transform) == "normalize"


def check_words_only(recipe: Recipe, *, table: bool = False) -> None:
    """Refuse a recipe that needs more than averaged word vectors.

    A table of words may also have its own dense, normalize and truncate layers, and a prompt.
    """
    allowed = Recipe(recipe.backbone, pooling="static/avg", max_length=recipe.max_length)
    if table:
        layers = ("dense", "normalize", "truncate")
        specs = [str(spec) for spec in recipe.parts.transforms if spec.name in layers]
        allowed = allowed.replace(prompt=recipe.prompt, period=recipe.period, transforms=specs)
    possible = allowed.resolve().to_dict()
    others = [
        f"{key} {value!r}"
        for key, value in recipe.resolve().to_dict().items()
        if value != possible.get(key)
    ]
    if others:
        raise UsageError(
            f"{recipe.backbone!r} holds word vectors, which only the model static-avg averages,"
            f" not {', '.join(others)}"
        )


class StaticEncoder(Encoder):
    """The mean of the vectors of a sentence's words, and ``normalize`` or ``truncate`` after it.

    Another device, and pickling, need ``on_torch()``, the same encoder on torch.
    """

    def __init__(
        self,
        recipe: Recipe,
        table: WordTable,
        tensors: "Mapping[str, Tensor]",
        *,
        numbers: str,
        leading: LeadingTexts,
        on_torch: Callable[[], Any],
    ) -> None:
        self.leading = leading
        self.origin = table.provenance
        self.pieces = table.tokenizer
        self.template = Template(recipe.prompt, table.tokenizer)
        self.max_length = longest_input(recipe.max_length, table.max_tokens, self.origin.backbone)
        self.template.check_room(self.max_length)
        text_rule(recipe.text_rule)
        self.recipe = recipe.resolve()
        self._table = table
        self._tensors = tensors
        self._numbers = numbers
        #: Returns the same encoder on torch, which is made once.
        self.on_torch = functools.cache(on_torch)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the encoder on torch in its place."""
        reduced: tuple[Any, ...] = self.on_torch().__reduce__()
        return reduced

    @property
    def provenance(self) -> dict[str, Any]:
        return {**vars(self.origin), "dtype": self._numbers}

    def tensors(self) -> "Mapping[str, Tensor]":
        return self._tensors

    def _arrays(self) -> Mapping[str, np.ndarray]:
        return arrays_of(self._tensors)

    def to(self, device: "str | torch.device") -> Encoder:
        """Return the encoder itself for the CPU, else one on torch."""
        if str(device) == "cpu":
            return self
        moved: Encoder = self.on_torch().to(device)
        return moved

    def with_leading_text(self, text: str) -> Encoder:
        if not self.leading.counted:  # the weights leave the text out
            on_torch: Encoder = self.on_torch().with_leading_text(text)
            return on_torch
        text, recipe = self._with_text(text)
        encoder = StaticEncoder(
            recipe,
            self._table,
            self._tensors,
            numbers=self._numbers,
            leading=self.leading.with_default(text),
            on_torch=lambda: self.on_torch().with_leading_text(text),
        )
        encoder.name = self.name
        return encoder

    def encode_windows(
        self,
        windows: Iterable[Sequence[str]],
        *,
        progress: Progress = no_progress,
        most: int | None = None,
    ) -> Iterator[Encoded]:
        def begin(inputs: Inputs, progress: Progress) -> Callable[[], list[Encoded]]:
            encoded = [self._encode(inputs, progress)]
            return lambda: encoded

        encoded = encode_stream(windows, self.inputs, begin, progress=progress)
        return (window for [window] in encoded)

    def inputs(self, sentences: Sequence[str]) -> Inputs:
        """Return the inputs of n sentences."""
        ids = self.pieces.encode_ragged(self.prepare(sentences))
        return self.template.splice(ids, self.max_length)

    def _encode(self, inputs: Inputs, progress: Progress) -> Encoded:
        vectors = average_rows(inputs.ids, self._rows, len(self._table.rows))
        for transform in self.recipe.parts.transforms:
            if transform.name == "truncate":
                vectors = vectors[:, : transform["count"]]
            else:
                vectors = unit(vectors)
        progress(len(vectors))
        return Encoded(vectors, inputs.truncated, inputs.ids.lengths)

    def _rows(self, numbers: np.ndarray) -> np.ndarray:
        """Return the rows of some ids, float32."""
        rows: np.ndarray = self._table.rows[numbers].astype(np.float32)
        if self._numbers == "bfloat16":
            rows = as_bfloat16(rows)
        return rows


def as_bfloat16(numbers: np.ndarray) -> np.ndarray:
    """Return float32 numbers rounded to the nearest bfloat16, of two equally near to the even."""
    bits = numbers.view(np.uint32)
    last = (bits >> 16) & 1
    rounded: np.ndarray = (bits + 0x7FFF + last) & 0xFFFF0000
    return rounded.view(np.float32)
