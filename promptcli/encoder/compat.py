"""The methods by which an encoder replaces a model of sentence-transformers, and a transformer of
scikit-learn.
"""

import abc
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from promptcli.encoder.encoded import Progress, VectorsLike

if TYPE_CHECKING:
    from torch import Tensor

Option = str | int | bool | Progress | None  #: a value of an argument of ``encode``


class SentenceTransformerMethods(abc.ABC):
    """Methods of a ``SentenceTransformer``, with that library's names and arguments."""

    similarity_fn_name = "cosine"  #: sentence-transformers' name for what ``similarity`` computes
    max_length: int

    @abc.abstractmethod
    def encode(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> Any:
        """Return the vectors of n sentences, (n, d), or of a single one, (d,)."""

    @property
    @abc.abstractmethod
    def prompts(self) -> Mapping[str, str]:
        """Texts in front of a sentence, by name."""

    def encode_query(
        self, sentences: str | Sequence[str], **options: Option
    ) -> "np.ndarray | Tensor":
        """Return the vectors of queries, with the prompt ``query`` if the model has one.

        See ``encode``.
        """
        return self._encode_as(sentences, options, ("query",))

    def encode_document(
        self, sentences: str | Sequence[str], **options: Option
    ) -> "np.ndarray | Tensor":
        """Return the vectors of documents, with the prompt ``document``, ``passage`` or ``corpus``
        if the model has it.

        A model of sentence-transformers always has ``query`` and ``document``, empty unless its
        folder says otherwise, as in that library.
        """
        return self._encode_as(sentences, options, ("document", "passage", "corpus"))

    def _encode_as(
        self, sentences: str | Sequence[str], options: dict[str, Any], names: Sequence[str]
    ) -> "np.ndarray | Tensor":
        """Encode with the first prompt of these names that the model has, unless the options give
        one.
        """
        if options.get("prompt") is None and options.get("prompt_name") is None:
            options["prompt_name"] = next((name for name in names if name in self.prompts), None)
        vectors: np.ndarray | Tensor = self.encode(sentences, **options)
        return vectors

    def similarity(self, first: VectorsLike, second: VectorsLike) -> "Tensor":
        """Return the cosine of every vector of ``first`` (n, d) with every one of ``second`` (m,
        d), (n, m).
        """
        return _unit_rows(first) @ _unit_rows(second).T

    def similarity_pairwise(self, first: VectorsLike, second: VectorsLike) -> "Tensor":
        """Return the cosine of row i of ``first`` (n, d) with row i of ``second`` (n, d), (n,)."""
        import torch
        from torch.nn import functional

        return functional.cosine_similarity(
            torch.as_tensor(first).float(), torch.as_tensor(second).float(), dim=-1
        )

    def get_sentence_embedding_dimension(self) -> int:
        """Return d, the width of the vectors (sentence-transformers' name for it)."""
        return int(self.width)

    get_embedding_dimension = get_sentence_embedding_dimension

    @property
    @abc.abstractmethod
    def width(self) -> int:
        """d, the width of the vectors."""

    @property
    def max_seq_length(self) -> int:
        """The longest input in tokens (sentence-transformers' name for ``max_length``)."""
        return self.max_length

    @property
    def model_card_data(self) -> Any:
        """Takes the figures that sentence-transformers' evaluators store, and forgets them."""
        return SimpleNamespace(set_evaluation_metrics=lambda *_, **__: None)


def _unit_rows(vectors: VectorsLike) -> "Tensor":
    """Return vectors (n, d), or a single one (d,), as rows of length 1, (n, d)."""
    import torch
    from torch.nn import functional

    tensor = torch.as_tensor(vectors).float()
    return functional.normalize(tensor.reshape(-1, tensor.size(-1)), dim=1)


class ScikitLearnMethods(abc.ABC):
    """Methods of a scikit-learn transformer that learns nothing."""

    @abc.abstractmethod
    def encode(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> Any:
        """Return the vectors of n sentences, (n, d), or of a single one, (d,)."""

    def fit(self, sentences: object = None, labels: object = None) -> Self:
        """Return self: scikit-learn pipelines call it, and nothing is learned."""
        return self

    def transform(self, sentences: Sequence[str]) -> np.ndarray:
        """Return ``encode(sentences)``, for pipelines of scikit-learn."""
        vectors: np.ndarray = self.encode(sentences)
        return vectors

    def __sklearn_clone__(self) -> Self:
        """Let every fold of a cross-validation use this one encoder: nothing in it changes."""
        return self

    def __sklearn_tags__(self) -> Any:
        """Say that nothing has to be fitted; BERTopic asks a pipeline whether it is."""
        from sklearn.base import BaseEstimator

        tags = BaseEstimator().__sklearn_tags__()
        tags.requires_fit = False
        return tags
