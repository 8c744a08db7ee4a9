"""What a program expects of a model of sentences: the calls of sentence-transformers and of scikit-learn.

Knows nothing of how the vectors are made.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, overload

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from promptcli.data.given import check_texts as check_texts
from promptcli.errors import UsageError, unknown

Progress = Callable[[int], None]


def silent(done: int) -> None:
    """Take the number of rows newly done, and say nothing."""


class Share:
    """Turns progress in distinct rows of all groups into progress in sentences."""

    def __init__(self, progress: Progress, sentences: int, rows: int) -> None:
        self._progress, self._sentences, self._rows = progress, sentences, rows
        self._done = 0

    def __call__(self, rows: int) -> None:
        """Take the number of rows newly done."""
        before = self._done * self._sentences // self._rows
        self._done += rows
        self._progress(self._done * self._sentences // self._rows - before)


@dataclass(frozen=True)
class Encoded:
    """Encoded sentences."""

    vectors: np.ndarray  #: (n, d) float32, row i is sentence i; not normalised
    truncated: np.ndarray  #: (n,) bool: the sentence lost tokens to the longest input
    tokens: np.ndarray  #: (n,) int64: tokens of the model's input, template and special tokens included


class Embedder(ABC):
    """Sentences in, vectors out; everything but the vectors themselves."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the weights are."""

    @property
    @abstractmethod
    def width(self) -> int:
        """d, the width of the vectors."""

    @property
    @abstractmethod
    def prompts(self) -> Mapping[str, str]:
        """Texts in front of a sentence, by name (sentence-transformers' prompts)."""

    @abstractmethod
    def prompted(self, text: str) -> "Embedder":
        """Return the encoder with this text in front of every sentence in place of its own."""

    @abstractmethod
    def encode_report(
        self, sentences: Sequence[str], *, progress: Progress = silent, most: int | None = None
    ) -> Encoded:
        """Return the vectors of n sentences and which of them were cut; ``most`` sentences in a forward pass."""

    def encode_windows(
        self, windows: Iterable[Sequence[str]], *, progress: Progress = silent, most: int | None = None
    ) -> Iterator[Encoded]:
        """Yield ``encode_report`` of one window of sentences after the other, read as they are needed."""
        for window in windows:
            yield self.encode_report(window, progress=progress, most=most)

    @overload
    def encode(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: Literal[False] = False,
        normalize_embeddings: bool = False,
        progress: Progress = silent,
    ) -> np.ndarray: ...
    @overload
    def encode(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: Literal[True],
        normalize_embeddings: bool = False,
        progress: Progress = silent,
    ) -> Tensor: ...
    def encode(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        progress: Progress = silent,
    ) -> Any:
        """Return the vectors of n sentences, (n, d) float32, or of a single one, (d,).

        The arguments are those of sentence-transformers, so that an encoder can stand in its place.

        Args:
            sentences: n texts, or one.
            prompt_name: A text of ``prompts`` by its name, in front of every sentence.
            prompt: That text itself.
            batch_size: At most so many sentences in a forward pass; by default as many as fit a budget of tokens. The
                vectors do not depend on it.
            show_progress_bar: Draw a bar to stderr, or into the notebook.
            precision: ``float32``, nothing else; ``promptcli.quantize`` makes others of the vectors.
            convert_to_numpy: A numpy array; else a list of n tensors.
            convert_to_tensor: One tensor, on the encoder's device, whatever ``convert_to_numpy`` says.
            normalize_embeddings: Scale every vector to length 1; a vector of zeros stays one.
            progress: Called with the number of sentences newly done.

        Raises:
            UsageError: What is given is no text; with its index and type.
        """
        if precision != "float32":
            raise UsageError(f"precision {precision!r} is not allowed; give float32, then promptcli.quantize")
        if batch_size is not None and batch_size < 1:
            raise UsageError(f"batch_size {batch_size} is not allowed; give at least 1, or leave it out")
        texts = check_texts(sentences)
        encoder: Embedder = self
        if prompt is not None or prompt_name is not None:
            encoder = self.prompted(self._prompt_text(prompt_name, prompt))
        with _progress_bar(len(texts), progress) if show_progress_bar else contextlib.nullcontext(progress) as advance:
            encoded = encoder.encode_report(texts, progress=advance, most=batch_size).vectors
        vectors = unit(encoded) if normalize_embeddings else encoded
        found: Any = vectors
        if convert_to_tensor or not convert_to_numpy:
            found = torch.from_numpy(vectors).to(self.device)
            found = found if convert_to_tensor else list(found)
        return found[0] if isinstance(sentences, str) else found

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Return the vectors of questions: with the prompt ``query`` where the model has one; see ``encode``."""
        return self._encode_as(("query",), sentences, options)

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Return the vectors of what is searched: with the prompt ``document``, ``passage`` or ``corpus``, if any.

        A model of sentence-transformers always has ``query`` and ``document``, empty unless its folder says otherwise,
        as in that library.
        """
        return self._encode_as(("document", "passage", "corpus"), sentences, options)

    def _encode_as(self, names: Sequence[str], sentences: str | Sequence[str], options: dict[str, Any]) -> Any:
        if options.get("prompt") is None and options.get("prompt_name") is None:
            options["prompt_name"] = next((name for name in names if name in self.prompts), None)
        return self.encode(sentences, **options)

    def _prompt_text(self, name: str | None, text: str | None) -> str:
        if text is not None:
            return text
        if name is None or name not in self.prompts:
            raise unknown("prompt_name", str(name), self.prompts or ["none: this model has no prompts"])
        return self.prompts[name]

    def similarity(self, first: Any, second: Any) -> Tensor:
        """Return the cosine of every vector of ``first`` (n, d) with every one of ``second`` (m, d), (n, m)."""
        tensors = (torch.as_tensor(vectors).float() for vectors in (first, second))
        left, right = (vectors.reshape(-1, vectors.size(-1)) for vectors in tensors)
        return functional.normalize(left, dim=1) @ functional.normalize(right, dim=1).T

    def similarity_pairwise(self, first: Any, second: Any) -> Tensor:
        """Return the cosine of row i of ``first`` (n, d) with row i of ``second`` (n, d), (n,)."""
        left, right = (torch.as_tensor(vectors).float() for vectors in (first, second))
        return functional.cosine_similarity(left, right, dim=-1)

    def get_sentence_embedding_dimension(self) -> int:
        """Return d, the width of the vectors (sentence-transformers' name for it)."""
        return self.width

    def fit(self, sentences: Any = None, labels: Any = None) -> Self:
        """Return the encoder as it is, for pipelines of scikit-learn: nothing is learned."""
        return self

    def transform(self, sentences: Sequence[str]) -> np.ndarray:
        """Return ``encode(sentences)``, for pipelines of scikit-learn."""
        return self.encode(sentences)

    def __sklearn_clone__(self) -> Self:
        """Let every fold of a cross-validation use this one encoder: nothing in it changes."""
        return self

    def __sklearn_tags__(self) -> Any:
        """Say that nothing has to be fitted; BERTopic asks a pipeline whether it is."""
        from sklearn.base import BaseEstimator

        tags = BaseEstimator().__sklearn_tags__()
        tags.requires_fit = False
        return tags


@contextlib.contextmanager
def _progress_bar(total: int, progress: Progress) -> Iterator[Progress]:
    """Draw a bar to stderr or into the notebook, as sentence-transformers does where it is asked to."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    with tqdm(total=total, desc="Sentences", unit="") as bar:

        def advance(done: int) -> None:
            bar.update(done)
            progress(done)

        yield advance


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return vectors (n, d) scaled to length 1; a vector of zeros stays one."""
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        extreme = ~np.isfinite(lengths[:, 0]) | (lengths[:, 0] == 0)
        if extreme.any():  # squares of very large or very small numbers are infinite or zero
            largest = np.abs(vectors[extreme]).max(axis=1, keepdims=True)
            vectors = vectors.copy()
            vectors[extreme] /= np.where(largest > 0, largest, 1)
            lengths[extreme] = np.linalg.norm(vectors[extreme], axis=1, keepdims=True)
        scaled: np.ndarray = np.divide(vectors, np.where(lengths > 0, lengths, 1), dtype=np.float32)
    return scaled
