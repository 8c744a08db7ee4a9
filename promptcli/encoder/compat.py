"""The methods by which an encoder replaces a model of sentence-transformers, and a transformer of
scikit-learn.
"""

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.precision import unit
from promptcli.encoder.encoded import Progress, VectorsLike

if TYPE_CHECKING:
    from torch import Tensor

Texts = str | Sequence[str]  #: a sentence, or n
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

    @overload  # a text is a sequence of texts, too
    def similarity(self, first: str, second: str) -> float: ...  # type: ignore[overload-overlap]
    @overload
    def similarity(self, first: Texts, second: Texts) -> "NDArray[np.float32]": ...
    @overload
    def similarity(self, first: VectorsLike, second: VectorsLike) -> "Tensor": ...
    def similarity(self, first: Any, second: Any) -> Any:
        """Return the cosine of every one of ``first`` with every one of ``second``, (n, m).

        They are n and m sentences, or their vectors (n, d) and (m, d); of two single sentences the
        cosine is a number.
        """
        if not any(map(_are_texts, (first, second))):
            return _unit_rows(first) @ _unit_rows(second).T
        left = unit(self.encode([first] if isinstance(first, str) else list(first)))
        right = unit(self.encode([second] if isinstance(second, str) else list(second)))
        cosines: NDArray[np.float32] = (left @ right.T).clip(-1, 1)  # rounding
        if isinstance(first, str) and isinstance(second, str):
            return float(cosines[0, 0])
        return cosines

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


def _are_texts(given: Any) -> bool:
    return isinstance(given, str) or (len(given) > 0 and isinstance(given[0], str))


class ScikitLearnMethods(abc.ABC):
    """Methods of a scikit-learn transformer that learns nothing; its parameter is ``model``."""

    @abc.abstractmethod
    def encode(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> Any:
        """Return the vectors of n sentences, (n, d), or of a single one, (d,)."""

    def fit(self, X: object = None, y: object = None) -> Self:
        """Return self: nothing is learned."""
        return self

    def transform(self, X: Sequence[str]) -> np.ndarray:
        """Return ``encode(X)``, (n, d)."""
        vectors: np.ndarray = self.encode(X)
        return vectors

    def fit_transform(self, X: Sequence[str], y: object = None) -> np.ndarray:
        """Return ``encode(X)``, (n, d)."""
        return self.transform(X)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return ``model``, which is this encoder: what ``set_params`` replaces."""
        return {"model": self}

    def set_params(self, **params: Any) -> Self:
        """Become the encoder of another ``model``, which is what ``load`` takes, or an encoder.

        Raises:
            ValueError: Another parameter is given.
        """
        from promptcli.models.loading import open_encoder

        if params.keys() - {"model"}:
            raise ValueError(f"invalid parameter {', '.join(params)}; an encoder has model")
        if params.get("model", self) is not self:
            opened = open_encoder(params["model"])
            self.__class__ = type(opened)  # type: ignore[assignment]
            self.__dict__ = dict(vars(opened))
        return self

    def __sklearn_clone__(self) -> Self:
        """Return a copy that ``set_params`` can change; they share their weights."""
        copied = object.__new__(type(self))
        vars(copied).update(vars(self))
        return copied

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        """Say that nothing has to be fitted; BERTopic asks a pipeline whether it is."""
        from sklearn.base import BaseEstimator

        tags = BaseEstimator().__sklearn_tags__()
        tags.requires_fit = False
        return tags


class ModelMethods:
    """Functions of ``promptcli.models`` as methods; only this file of the package calls it."""

    def save(self, folder: str | Path, *, force: bool = False) -> None:
        """Write the encoder into a folder that ``load`` and sentence-transformers open.

        See ``promptcli.save``.
        """
        from promptcli.models.saving import save

        save(self, folder, force=force)  # type: ignore[arg-type]

    save_pretrained = save

    def register(self, name: str, *, force: bool = False) -> None:
        """Keep the encoder under a name that ``promptcli.load`` and ``--model`` know.

        See ``promptcli.register``.
        """
        from promptcli.models.loading import register

        register(self, name, force=force)  # type: ignore[arg-type]

    def push_to_hub(self, repo: str, *, private: bool = False, revision: str | None = None) -> Any:
        """Send the encoder to ``OWNER/NAME`` of the Hugging Face hub; see ``promptcli.push``."""
        from promptcli.models.hub import push

        return push(self, repo, private=private, revision=revision)  # type: ignore[arg-type]
