"""The public interface of an encoder, the same for torch, exported graphs and numpy.

The sections of the class: construction; from sentences to vectors; texts in front of sentences; the
interfaces of sentence-transformers and scikit-learn; functions of ``promptcli.models``.
"""

import abc
import contextlib
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from numbers import Integral
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
from numpy.typing import NDArray

from promptcli.backbones.model_folder import SHIPPED_TABLES, Provenance
from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.data.arguments import as_texts
from promptcli.data.vectors.precision import check_finite, unit
from promptcli.encoder.embeddings import Embeddings, VectorsLike
from promptcli.encoder.template import ModelInputs, Template, lower, text_rule
from promptcli.errors import UsageError, unknown_name_error
from promptcli.extensions import Extension
from promptcli.notes import Advance, no_progress, note
from promptcli.recipe import MASK, ROLES, SLOT, LeadingTexts, Recipe
from promptcli.storage.tensors import arrays_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from promptcli.backbones.backbone import Backbone

TUNED = "backbone."  #: prefix of the names of a tuned backbone's tensors
LONGEST_TEXT = 1 << 20  #: most characters of a text that are tokenised
#: Soft hyphens, joiners, marks of direction and of byte order.
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")

Texts = str | Sequence[str]  #: a sentence, or n
Option = str | int | bool | Advance | None  #: value of an argument of ``encode``


class Encoder(abc.ABC):
    """Sentences in, vectors out; ``promptcli.load`` opens one.

    It can be used in place of a sentence-transformers model and in a scikit-learn pipeline. Several
    threads may call it.

    A recipe's prompt is a template around the sentence, or learned vectors. sentence-transformers
    calls something else prompts: texts in front of a sentence, e.g. for queries and for documents.
    These are meant by the arguments ``prompt`` and ``prompt_name`` of ``encode`` and by the
    property ``prompts``.

    Example:
        >>> import promptcli as pc
        >>> encoder = pc.load(pc.RECIPES["prompt"], device="cpu")
        >>> encoder.encode(["A cat sleeps.", "Two dogs play."]).shape
        (2, 256)
        >>> encoder.encode("A cat sleeps.").shape
        (256,)
    """

    #: its backbone, which other encoders may share; None for a tuned backbone and for word vectors
    loaded_backbone: "Backbone | None" = None
    #: whether the first k columns of a vector are themselves a usable vector
    is_prefix_truncatable = False
    takes_leading_text = True  #: whether its prompt is a single template of words
    extensions: Sequence[Extension] = ()  #: other packages whose code it uses, sorted
    similarity_fn_name = "cosine"  #: sentence-transformers' name for what ``similarity`` computes

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Refuse to create the abstract class; ``promptcli.load`` opens a model by its name."""
        if cls is Encoder:
            raise UsageError("Encoder is abstract; open a model with promptcli.load")
        return super().__new__(cls)

    def __init__(
        self,
        recipe: Recipe,
        template: Template,
        tokenizer: PieceTokenizer,
        provenance: Provenance,
        *,
        leading: LeadingTexts,
        name: str,
        max_input_tokens: int,
        device_name: str = "cpu",
    ) -> None:
        self.name = name  #: name of its model, for messages and manifests
        #: with every default written out: template text, Ditto head, period
        self.recipe = recipe.resolve()
        self.template = template
        self.piece_tokenizer = tokenizer  #: the backbone's tokenizer, for pieces of text
        self.backbone_provenance = provenance  #: where its backbone came from
        self.leading = leading  #: texts in front of a sentence, by name
        self._device_name = device_name
        #: longest input in tokens, template included; at most ``max_input_tokens``
        self.max_length = max_input_tokens if recipe.max_length is None else recipe.max_length
        if not 1 <= self.max_length <= max_input_tokens:
            raise UsageError(
                f"max_length {self.max_length} is not allowed; with {provenance.backbone!r} it must"
                f" be 1 to {max_input_tokens}"
            )
        template.check_room(self.max_length)
        self._text_rule = text_rule(recipe.text_rule)

    @property
    def device(self) -> "torch.device":
        """The device that computes its vectors."""
        import torch

        return torch.device(self._device_name)

    @property
    @abc.abstractmethod
    def provenance(self) -> dict[str, Any]:
        """The backbone's source, and the precision that it runs in; JSON-ready."""

    @abc.abstractmethod
    def tensors(self) -> "Mapping[str, Tensor]":
        """Return every learned or fitted tensor by name, and those of a tuned backbone."""

    @abc.abstractmethod
    def to(self, device: "str | torch.device") -> "Encoder":
        """Return a copy on ``device``, or the encoder itself if it is on it."""

    @functools.cached_property
    def width(self) -> int:
        """d, the width of the vectors."""
        return int(self.encode_report([]).vectors.shape[1])

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of recipe, weights, tokenizer and extensions: equal for the same encoder, even if
        its backbone is in another folder.

        Precision and graph, which change vectors a little, are not in it, but in ``provenance``.
        """
        backbone = self.backbone_provenance
        digest = hashlib.sha256(self.recipe.replace(backbone="").to_json().encode())
        digest.update(f"{backbone.weights_sha256} {backbone.tokenizer_sha256}".encode())
        for name, array in sorted(arrays_of(self.tensors()).items()):
            digest.update(name.encode() + array.tobytes())
        for extension in self.extensions:
            digest.update(json.dumps(vars(extension), sort_keys=True).encode())
        return digest.hexdigest()

    def shallow_copy(self) -> Self:
        """Return a copy that shares the weights; ``copy.copy`` would build them again."""
        copied = object.__new__(type(self))
        vars(copied).update(vars(self))
        return copied

    def without_cache(self) -> "Encoder":
        """Return the encoder without the biases of denoising, which it keeps from call to call.

        A bias that was computed in another batch may differ in its last bits.
        """
        return self

    def __repr__(self) -> str:
        """Return the backbone, how sentences are read, and the device; nothing is computed."""
        recipe = self.recipe
        steps = [repr(recipe.prompt), recipe.pooling, *recipe.transforms]
        if recipe.denoise != "none":
            steps.append(f"denoise {recipe.denoise}")
        return f"Encoder({recipe.backbone!r}, {', '.join(steps)}, on {self._device_name})"

    # -- from sentences to vectors

    @property
    def prompt_encoders(self) -> "Sequence[Encoder]":
        """The encoder itself, or for the mean of several prompts, an encoder of each prompt."""
        return [self]

    def rewrite(self, sentences: Sequence[str]) -> list[str]:
        """Return n sentences changed for the prompt; most prompts leave them unchanged."""
        return list(sentences)

    def prepare(self, sentences: Sequence[str]) -> list[str]:
        """Return the n texts that are tokenised: the sentences after the recipe's text rule and
        period, with the template's characters that touch them.

        They are cut to ``LONGEST_TEXT`` first, since a tokenizer takes many times the memory of a
        text. For shipped tables, invisible characters are left out, as by BERT's tokenizer: a
        table's tokenizer would end a word at a soft hyphen.
        """
        limited = []
        ends_words_at_invisible = self.backbone_provenance.backbone in SHIPPED_TABLES
        for text in sentences:
            if ends_words_at_invisible and not text.isascii():
                text = _INVISIBLE.sub("", text)
            if len(text) > LONGEST_TEXT:
                text = text.strip()[:LONGEST_TEXT]
            limited.append(text)
        period = bool(self.recipe.period)
        texts = [self._text_rule.apply(text, period=period) for text in self.rewrite(limited)]
        return self.template.with_touching(texts)

    def token_ids(self, texts: Sequence[str]) -> RaggedIds:
        """Return each text's token ids, without specials."""
        return self.piece_tokenizer.encode_ragged(texts)

    def inputs(self, sentences: Sequence[str]) -> ModelInputs:
        """Return the model inputs of n sentences: their token ids in the prompt's template."""
        return self.template.inputs(self.prepare(sentences), self.token_ids, self.max_length)

    @abc.abstractmethod
    def encode_windows(
        self,
        windows: Iterable[Sequence[str]],
        *,
        progress: Advance = no_progress,
        batch_size: int | None = None,
    ) -> Iterator[Embeddings]:
        """Yield the ``encode_report`` of each window of sentences.

        The next window is read while a window is computed.
        """

    def encode_report(
        self,
        sentences: Sequence[str],
        *,
        progress: Advance = no_progress,
        batch_size: int | None = None,
    ) -> Embeddings:
        """Return the vectors of n sentences, and which sentences were cut.

        A forward pass takes at most ``batch_size`` sentences.
        """
        windows = [as_texts(sentences)]
        [encoded] = self.encode_windows(windows, progress=progress, batch_size=batch_size)
        return encoded

    # -- texts in front of sentences; sentence-transformers calls them prompts

    @property
    def prompts(self) -> Mapping[str, str]:
        """Texts in front of a sentence, by name."""
        return self.leading.texts

    @property
    def default_prompt_name(self) -> str | None:
        """The name, in ``prompts``, of the text that is in front of every sentence by default."""
        return self.leading.default

    @abc.abstractmethod
    def with_leading_text(self, text: str) -> "Encoder":
        """Return the encoder that puts ``text`` in front of every sentence.

        Only a prompt of words takes one: it goes directly before [X], in place of the model's
        default text.
        """

    def _with_text(self, text: str) -> tuple[str, Recipe]:
        """Return a text as it is put in front of every sentence, and the recipe with it directly
        before [X], in place of the model's default text.
        """
        if self.recipe.text_rule == "lower":
            text = lower(text)
        prompt = self.recipe.prompt
        before = self.leading.default_text + SLOT
        if not self.takes_leading_text or before not in prompt:
            raise UsageError(
                f"no text can be put in front with prompt {prompt!r}; write the text into the"
                " sentences"
            )
        if SLOT in text or MASK in text:
            raise UsageError(f"prompt {text!r} contains {SLOT} or {MASK}; leave these out")
        return text, self.recipe.replace(prompt=prompt.replace(before, text + SLOT))

    def roles(self) -> list[str]:
        """Return the names that ``in_role`` takes: the usual names and the names in ``prompts``."""
        return list(dict.fromkeys(itertools.chain(*ROLES, self.prompts)))

    def in_role(self, role: str, *, report: bool = False) -> "Encoder":
        """Return the encoder for texts of a role: ``query``, ``document``, or a key of ``prompts``.

        That encoder puts the model's text for the role in front of every sentence. This encoder is
        returned if the model has no such text, if the text is in front already, or if the recipe's
        prompt does not begin with the model's default text and [X]. With ``report`` a note names
        the text.
        """
        default = self.leading.default_text
        name = self.leading.name_for(role)
        if name is None or not self.recipe.prompt.startswith(default + SLOT):
            return self
        text = self.leading.texts[name]
        if report and (text or default):
            texts = {"query": "queries", "document": "documents"}.get(role, "texts")
            note(f"{texts} begin with the model's prompt {name!r}: {text!r}")
        if text == default:
            return self
        return self.with_leading_text(text)

    # -- the interface of sentence-transformers

    @overload
    def encode(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        *,
        convert_to_tensor: Literal[True],
        **options: Any,
    ) -> "Tensor": ...
    @overload
    def encode(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        **options: Any,
    ) -> np.ndarray: ...
    def encode(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        device: "str | torch.device | None" = None,
        progress: Advance = no_progress,
        **unsupported: None,
    ) -> "np.ndarray | Tensor":
        """Return the vectors of n sentences, (n, d) float32, or of a single one, (d,).

        The arguments are those of sentence-transformers, so that an encoder can replace one.

        Args:
            sentences: n texts, or one.
            prompt_name: Put this text of ``prompts``, by its name, in front of every sentence.
            prompt: Put this text in front of every sentence, whatever ``prompt_name`` says.
            batch_size: Largest number of sentences in a forward pass. By default a budget of tokens
                decides. The vectors do not depend on it, up to rounding.
            show_progress_bar: Draw a bar to stderr, or into the notebook.
            precision: ``float32`` only; ``promptcli.quantize`` converts the vectors.
            convert_to_numpy: Return a numpy array; if False, a list of n tensors.
            convert_to_tensor: Return one tensor on the device that encodes, whatever
                ``convert_to_numpy`` says.
            normalize_embeddings: Scale every vector to length 1; a vector of zeros stays unchanged.
            truncate_dim: Keep the first k dimensions of a vector, before it is scaled.
            device: Encode on another device than the encoder's.
            progress: Called with the number of new sentences.
            unsupported: Further arguments of sentence-transformers (``pool``, ``chunk_size``);
                they must be None.

        Raises:
            UsageError: A sentence is not a string, with its index and type; or an argument has a
                value that is not allowed.
            PromptcliError: A vector is not finite.
        """
        refused = [name for name, value in unsupported.items() if value is not None]
        if refused:
            raise TypeError(f"encode takes no {', '.join(refused)}")
        if precision not in (None, "float32"):
            raise UsageError(
                f"must be float32, got {precision!r}; promptcli.quantize converts the vectors",
                parameter="precision",
            )
        for name, value in {"batch_size": batch_size, "truncate_dim": truncate_dim}.items():
            if value is not None and (not isinstance(value, Integral) or value < 1):
                raise UsageError(f"must be a whole number from 1, got {value}", parameter=name)
        truncate_dim = truncate_dim or self.width
        if truncate_dim > self.width:
            raise UsageError(
                f"must be at most the width {self.width}, got {truncate_dim}",
                parameter="truncate_dim",
            )
        texts = as_texts(sentences)
        encoder: Encoder = self
        if device is not None:
            encoder = self.to(device)
        if prompt is None and prompt_name is not None:
            if prompt_name not in self.prompts:
                valid = self.prompts or ["none: this model has no prompts"]
                raise unknown_name_error("prompt_name", str(prompt_name), valid)
            prompt = self.prompts[prompt_name]
        if prompt is not None:
            encoder = encoder.with_leading_text(prompt)
        advancing: AbstractContextManager[Advance] = contextlib.nullcontext(progress)
        if show_progress_bar:
            advancing = _progress_bar(len(texts), progress)
        with advancing as advance:
            encoded = encoder.encode_report(texts, progress=advance, batch_size=batch_size)
        check_finite(encoded.vectors, texts)
        vectors: Any = encoded.vectors[:, :truncate_dim]
        if normalize_embeddings:
            vectors = unit(vectors)
        if convert_to_tensor or not convert_to_numpy:
            import torch

            vectors = torch.from_numpy(vectors).to(encoder.device)
        if not convert_to_tensor and not convert_to_numpy:
            vectors = list(vectors)
        if isinstance(sentences, str):
            vectors = vectors[0]
        return vectors  # type: ignore[no-any-return]

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
        folder says otherwise, as in that library; a search also takes prompts of other names
        (``in_role``).
        """
        return self._encode_as(sentences, options, ("document", "passage", "corpus"))

    def _encode_as(
        self, sentences: str | Sequence[str], options: dict[str, Any], names: Sequence[str]
    ) -> "np.ndarray | Tensor":
        """Return the vectors with the first of these prompts that the model has, unless the options
        give a prompt.
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
        """Return the cosine of each of ``first`` with each of ``second``, (n, m).

        Both are sentences, or vectors (n, d) and (m, d). For two single sentences the cosine is a
        number.
        """
        if not any(map(_are_texts, (first, second))):
            return _unit_rows(first) @ _unit_rows(second).T
        left, right = (unit(self.encode(as_texts(texts))) for texts in (first, second))
        cosines = (left @ right.T).clip(-1, 1)  # rounding
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
        return self.width

    get_embedding_dimension = get_sentence_embedding_dimension

    @property
    def max_seq_length(self) -> int:
        """The longest input in tokens (sentence-transformers' name for ``max_length``)."""
        return self.max_length

    @property
    def model_card_data(self) -> Any:
        """An object that discards the figures which sentence-transformers' evaluators store."""
        return SimpleNamespace(set_evaluation_metrics=lambda *_, **__: None)

    # -- the interface of scikit-learn: a transformer whose only parameter is ``model``

    def fit(self, X: object = None, y: object = None) -> Self:
        """Return self: nothing is learned."""
        return self

    def transform(self, X: Sequence[str]) -> np.ndarray:
        """Return ``encode(X)``, (n, d)."""
        return self.encode(X)

    def fit_transform(self, X: Sequence[str], y: object = None) -> np.ndarray:
        """Return ``encode(X)``, (n, d)."""
        return self.encode(X)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameter ``model``: this encoder."""
        return {"model": self}

    def set_params(self, **params: Any) -> Self:
        """Become the encoder of another ``model``: an encoder, or any value that ``load`` takes.

        Raises:
            ValueError: Another parameter is given.
        """
        from promptcli.models.loading import open_encoder

        if unknown := params.keys() - {"model"}:
            raise ValueError(f"invalid parameter {', '.join(unknown)}; an encoder has model")
        if params.get("model", self) is not self:
            opened = open_encoder(params["model"])
            self.__class__ = type(opened)  # type: ignore[assignment]
            self.__dict__ = dict(vars(opened))
        return self

    def __sklearn_clone__(self) -> Self:
        """Return a copy that ``set_params`` can change."""
        return self.shallow_copy()

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's description of a transformer that needs no fit."""
        from sklearn.base import BaseEstimator

        tags = BaseEstimator().__sklearn_tags__()
        tags.requires_fit = False
        return tags

    # -- functions of promptcli.models, as methods

    def save(self, folder: str | Path, *, force: bool = False) -> None:
        """Write the encoder into a folder that ``load`` and sentence-transformers open.

        See ``promptcli.save``.
        """
        from promptcli.models.saving import save

        save(self, folder, force=force)

    save_pretrained = save

    def register(self, name: str, *, force: bool = False) -> None:
        """Keep the encoder under a name that ``promptcli.load`` and ``--model`` know.

        See ``promptcli.register``.
        """
        from promptcli.models.loading import register

        register(self, name, force=force)

    def push_to_hub(self, repo: str, *, private: bool = False) -> Any:
        """Send the encoder to ``OWNER/NAME`` on the Hugging Face hub; see ``promptcli.push``."""
        from promptcli.models.hub import push

        return push(self, repo, private=private)


def _unit_rows(vectors: VectorsLike) -> "Tensor":
    """Return vectors (n, d), or a single vector (d,), as rows of length 1, (n, d)."""
    import torch
    from torch.nn import functional

    tensor = torch.as_tensor(vectors).float()
    return functional.normalize(tensor.reshape(-1, tensor.size(-1)), dim=1)


def _are_texts(values: Any) -> bool:
    """Return whether these are texts, not vectors; an empty list counts as texts."""
    if not isinstance(values, Collection):
        return True  # ``as_texts`` refuses it
    if len(values) == 0:
        return isinstance(values, str | list)
    return isinstance(next(iter(values)), str)


@contextlib.contextmanager
def _progress_bar(total: int, progress: Advance) -> Iterator[Advance]:
    """Draw a bar; yield the function that advances it and ``progress`` by a number of sentences."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    with tqdm(total=total, desc="Sentences", unit="") as bar:

        def advance(done: float) -> None:
            bar.update(done)
            progress(done)

        yield advance
