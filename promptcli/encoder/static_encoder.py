"""The encoder that averages word vectors, by numpy alone: the import of torch is slow."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from promptcli.backbones.model_folder import TABLE, is_word_file
from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.backbones.word_tables import TUNED_ROWS, WordTable, open_table
from promptcli.data.vectors.precision import unit
from promptcli.encoder.embeddings import Embeddings, PendingEmbeddings, cut_columns, encode_stream
from promptcli.encoder.sentence_encoder import TUNED, Encoder
from promptcli.encoder.template import ModelInputs, Template
from promptcli.errors import UsageError
from promptcli.notes import Advance, no_progress
from promptcli.recipe import SLOT, LeadingTexts, Recipe
from promptcli.storage.tensors import StoredTensors, arrays_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

#: Dtype as it is typed -> dtype that the word vectors of a language model are rounded to. Other
#: dtypes need torch.
_DTYPES = {"stored": "float32", "float32": "float32", "bfloat16": "bfloat16"}


def static_encoder(
    recipe: Recipe,
    tensors: "Mapping[str, Tensor]",
    *,
    device: str,
    dtype: str,
    leading: LeadingTexts,
    name: str,
    on_torch: Callable[[], Encoder],
) -> "StaticEncoder | None":
    """Return the encoder of a recipe that averages word vectors on the CPU; None if the recipe, the
    device or the dtype needs torch.

    Only this function decides that. ``on_torch`` returns the same encoder on torch.
    """
    tuned_rows = TUNED + TUNED_ROWS
    if not (
        averages_words(recipe, leading)
        and tensors.keys() <= {tuned_rows}
        and (not tensors or isinstance(tensors, StoredTensors))
        and device in ("auto", "cpu")
        and dtype in _DTYPES
    ):
        return None
    if is_word_file(recipe.backbone):
        check_words_only(recipe)
    table = open_table(recipe.backbone, arrays_of(tensors).get(tuned_rows))
    if table is None:
        return None
    if table.provenance.family == TABLE:
        check_words_only(recipe, table=True)
    rounded = _DTYPES[dtype] if table.of_language_model else "float32"
    return StaticEncoder(
        recipe, table, tensors, dtype=rounded, leading=leading, name=name, on_torch=on_torch
    )


def averages_words(recipe: Recipe, leading: LeadingTexts) -> bool:
    """Return whether a recipe averages the word vectors of a sentence, with none or one of the
    model's texts in front, and has only transforms that numpy computes.
    """
    prompts = [text + SLOT for text in ("", *leading.texts.values())]
    return (
        recipe.prompt in prompts
        and recipe.pooling == "static/avg"
        and recipe.denoise == "none"
        and all(
            transform["count"] is not None
            if transform.name == "truncate"
            else str(transform) == "normalize"
            for transform in recipe.parts.transforms
        )
    )


def check_words_only(recipe: Recipe, *, table: bool = False) -> None:
    """Refuse a recipe that word vectors alone cannot compute.

    A ``table`` of words may also have its own dense, normalize and truncate layers, and a prompt.
    """
    allowed_recipe = Recipe(recipe.backbone, pooling="static/avg", max_length=recipe.max_length)
    if table:
        layers = ("dense", "normalize", "truncate")
        specs = [str(spec) for spec in recipe.parts.transforms if spec.name in layers]
        allowed_recipe = allowed_recipe.replace(
            prompt=recipe.prompt, period=recipe.period, transforms=specs
        )
    allowed_values = allowed_recipe.resolve().to_dict()
    refused = [
        f"{key} {value!r}"
        for key, value in recipe.resolve().to_dict().items()
        if value != allowed_values.get(key)
    ]
    if refused:
        raise UsageError(
            f"{recipe.backbone!r} holds word vectors, which only the model static-avg averages,"
            f" not {', '.join(refused)}"
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
        dtype: str,
        leading: LeadingTexts,
        name: str,
        on_torch: Callable[[], Encoder],
    ) -> None:
        tokenizer = table.tokenizer
        super().__init__(
            recipe,
            Template(recipe.prompt, tokenizer),
            tokenizer,
            table.provenance,
            leading=leading,
            name=name,
            max_input_tokens=table.max_tokens,
        )
        self._table = table
        self._tensors = tensors
        self._dtype = dtype
        #: Returns the same encoder on torch; only the first call builds it.
        self.on_torch = functools.cache(on_torch)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle the equal encoder on torch instead."""
        return self.on_torch().__reduce__()

    @property
    def provenance(self) -> dict[str, Any]:
        return {**vars(self.backbone_provenance), "dtype": self._dtype}

    def tensors(self) -> "Mapping[str, Tensor]":
        return self._tensors

    def to(self, device: "str | torch.device") -> Encoder:
        """Return the encoder itself for the CPU, else the encoder on torch."""
        if str(device) != "cpu":
            from promptcli.backbones.devices import choose_device

            if choose_device(str(device)) != "cpu":
                return self.on_torch().to(device)
        return self

    def with_leading_text(self, text: str) -> Encoder:
        if not self.leading.counted:  # only torch's weights can leave the text out
            return self.on_torch().with_leading_text(text)
        text, recipe = self._with_text(text)
        return StaticEncoder(
            recipe,
            self._table,
            self._tensors,
            dtype=self._dtype,
            leading=self.leading.with_default(text),
            name=self.name,
            on_torch=lambda: self.on_torch().with_leading_text(text),
        )

    def encode_windows(
        self,
        windows: Iterable[Sequence[str]],
        *,
        progress: Advance = no_progress,
        batch_size: int | None = None,
    ) -> Iterator[Embeddings]:
        return (window[self] for window in encode_stream(windows, [self], progress))

    def begin(self, inputs: ModelInputs, progress: Advance) -> PendingEmbeddings:
        """Encode n inputs; see ``ForwardPass``."""
        vectors = average_embeddings(inputs.ids, self._word_vectors, len(self._table.rows))
        for transform in self.recipe.parts.transforms:
            if transform.name == "truncate":
                vectors = cut_columns(vectors, transform["count"])
            else:
                vectors = unit(vectors)
        progress(len(vectors))
        embeddings = Embeddings(vectors, inputs.truncated, inputs.ids.lengths)
        return lambda: {self: embeddings}

    def _word_vectors(self, tokens: np.ndarray) -> np.ndarray:
        """Return the word vectors of some token ids, float32 numbers of the encoder's dtype."""
        vectors: np.ndarray = self._table.rows[tokens].astype(np.float32)
        return as_bfloat16(vectors) if self._dtype == "bfloat16" else vectors


def as_bfloat16(array: np.ndarray) -> np.ndarray:
    """Return a float32 array rounded to the nearest bfloat16, ties to even."""
    bits = array.view(np.uint32)
    last_bit = (bits >> 16) & 1
    rounded: np.ndarray = (bits + 0x7FFF + last_bit) & 0xFFFF0000
    return rounded.view(np.float32)


#: Inputs summed at a time: so few that their sums stay in a core's cache.
_INPUTS_AT_A_TIME = 256


def average_embeddings(
    inputs: RaggedIds, embeddings_of: Callable[[np.ndarray], np.ndarray], vocabulary: int
) -> np.ndarray:
    """Return the mean of the tokens' embeddings for each of n inputs, (n, d) float32; zeros for an
    empty input.

    ``embeddings_of`` returns the embeddings (k, d) float32 of k tokens. It is called once, with the
    tokens of the ``vocabulary`` that occur: the others need not become float32.
    """
    used_tokens = np.flatnonzero(np.bincount(inputs.ids, minlength=vocabulary))
    place = np.empty(vocabulary, dtype=np.int32)
    place[used_tokens] = np.arange(len(used_tokens))
    embeddings = embeddings_of(used_tokens)
    places = place[inputs.ids]
    means = np.zeros((len(inputs), embeddings.shape[1]), np.float32)
    order = np.argsort(-inputs.lengths, kind="stable")[: np.count_nonzero(inputs.lengths)]
    for begin in range(0, len(order), _INPUTS_AT_A_TIME):
        batch = order[begin : begin + _INPUTS_AT_A_TIME]
        lengths = inputs.lengths[batch]
        sums = _sums(embeddings, places, inputs.starts[batch], lengths)
        means[batch] = sums / lengths[:, None].astype(np.float32)
    return means


def _sums(
    embeddings: np.ndarray, places: np.ndarray, starts: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """Return the sums (n, d) of n inputs, sorted from the longest to the shortest; each adds its
    tokens in order.
    """
    sums: np.ndarray = embeddings[places[starts]]
    longer = len(lengths)  # inputs that have further tokens
    for position in range(1, int(lengths[0])):
        while lengths[longer - 1] <= position:
            longer -= 1
        sums[:longer] += embeddings[places[starts[:longer] + position]]
    return sums
