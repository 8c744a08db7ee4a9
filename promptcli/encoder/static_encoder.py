"""The mean of word vectors by numpy alone, so that no one waits for torch to be imported."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from promptcli.backbones.names import words_only
from promptcli.backbones.provenance import TABLE, Provenance
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.backbones.word_tables import TUNED_ROWS, WordTable, open_table
from promptcli.data.given import check_texts
from promptcli.data.vectors.precision import unit
from promptcli.encoder.averaging import average_rows
from promptcli.encoder.encoded import Encoded, Progress, distinct_texts, no_progress
from promptcli.encoder.prefetching import prefetch
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
_WINDOW = 32_768  # distinct sentences that are encoded together


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
    arrays: Mapping[str, np.ndarray] = {}
    if isinstance(tensors, StoredTensors):
        arrays = tensors.arrays
    tuned_rows = TUNED + TUNED_ROWS
    numbers = _NUMBERS.get(dtype)
    if (
        not averages_words(recipe, leading)
        or arrays.keys() != tensors.keys()
        or not arrays.keys() <= {tuned_rows}
        or device not in ("auto", "cpu")
        or numbers is None
    ):
        return None
    if words_only(recipe.backbone):
        check_words_only(recipe)
    table = open_table(recipe.backbone, arrays.get(tuned_rows))
    if table is None:
        return None
    if table.provenance.family == TABLE:
        check_words_only(recipe, table=True)
    if not table.of_language_model:
        numbers = "float32"
    return StaticEncoder(
        recipe, table, tensors, numbers=numbers, leading=leading, on_torch=on_torch
    )


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
    layers = tuple(
        str(transform)
        for transform in recipe.parts.transforms
        if table and transform.name in ("dense", "normalize", "truncate")
    )
    allowed = Recipe(
        recipe.backbone, pooling="static/avg", max_length=recipe.max_length, transforms=layers
    )
    if table:
        allowed = allowed.replace(prompt=recipe.prompt, period=recipe.period)
    fields = recipe.resolve().to_dict()
    possible = allowed.resolve().to_dict()
    if fields != possible:
        shown = ", ".join(
            f"{key} {value!r}" for key, value in fields.items() if value != possible.get(key)
        )
        raise UsageError(
            f"{recipe.backbone!r} holds word vectors, which only the model static-avg"
            f" averages, not {shown}"
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
        self.template = Template(recipe.prompt, table.tokenizer)
        backbone = table.provenance.backbone
        self.max_length = longest_input(recipe.max_length, table.max_tokens, backbone)
        self.template.check_room(self.max_length)
        text_rule(recipe.text_rule)
        self.recipe = recipe.resolve()
        self._table = table
        self._tensors = tensors
        self._numbers = numbers
        self._make = on_torch

    def on_torch(self) -> Any:
        """Return the same encoder on torch, which is made once."""
        return self._on_torch

    @functools.cached_property
    def _on_torch(self) -> Any:
        return self._make()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the encoder on torch in its place."""
        reduced: tuple[Any, ...] = self.on_torch().__reduce__()
        return reduced

    @property
    def device(self) -> "torch.device":
        """The CPU."""
        import torch

        return torch.device("cpu")

    def _where(self) -> str:
        return "cpu"

    @property
    def origin(self) -> Provenance:
        return self._table.provenance

    @property
    def pieces(self) -> PieceTokenizer:
        return self._table.tokenizer

    @property
    def provenance(self) -> dict[str, Any]:
        return {**vars(self.origin), "dtype": self._numbers}

    def tensors(self) -> "Mapping[str, Tensor]":
        return self._tensors

    def _bytes_of_tensors(self) -> Iterator[tuple[str, bytes]]:
        if isinstance(self._tensors, StoredTensors):
            for name, array in sorted(self._tensors.arrays.items()):
                yield name, array.tobytes()

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

    def encode_report(
        self, sentences: Sequence[str], *, progress: Progress = no_progress, most: int | None = None
    ) -> Encoded:
        texts = check_texts(sentences)
        windows = [texts[start : start + _WINDOW] for start in range(0, len(texts), _WINDOW)]
        return Encoded.join(list(self.encode_windows(windows or [[]], progress=progress)))

    def encode_windows(
        self,
        windows: Iterable[Sequence[str]],
        *,
        progress: Progress = no_progress,
        most: int | None = None,
    ) -> Iterator[Encoded]:
        for window, (places, inputs) in prefetch(self._read, windows):
            yield self._encode(inputs).take(places)
            progress(len(window))

    def _read(self, window: Sequence[str]) -> tuple[np.ndarray, Inputs]:
        """Return each sentence's place among the distinct ones, and the inputs of these."""
        distinct, places = distinct_texts(window)
        return places, self.inputs(distinct)

    def inputs(self, sentences: Sequence[str]) -> Inputs:
        """Return the inputs of n sentences."""
        ids = self.pieces.encode_rows(self.prepare(sentences))
        return self.template.splice(ids, self.max_length)

    def _encode(self, inputs: Inputs) -> Encoded:
        vectors = average_rows(inputs.rows, self._rows, len(self._table.rows))
        for transform in self.recipe.parts.transforms:
            vectors = _APPLY[transform.name](vectors, transform)
        return Encoded(vectors, inputs.truncated, inputs.rows.lengths)

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


#: The transforms that numpy computes: vectors (n, d) to vectors.
_APPLY: dict[str, Callable[[np.ndarray, Spec], np.ndarray]] = {
    "normalize": lambda vectors, _: unit(vectors),
    "truncate": lambda vectors, transform: vectors[:, : transform["count"]],
}
