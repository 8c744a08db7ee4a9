"""What an encoder is to those who use it, whatever computes its vectors."""

import abc
import contextlib
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np

from promptcli.backbones.locating import SHIPPED_TABLES
from promptcli.backbones.provenance import Provenance
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.data.given import check_texts
from promptcli.data.vectors.precision import check_finite, unit
from promptcli.encoder.compat import (
    ModelMethods,
    ScikitLearnMethods,
    SentenceTransformerMethods,
)
from promptcli.encoder.encoded import Encoded, Progress, no_progress
from promptcli.encoder.template import Template, lower, text_rule
from promptcli.errors import UsageError, unknown
from promptcli.extensions import Extension
from promptcli.notes import note
from promptcli.recipe import MASK, ROLES, SLOT, LeadingTexts, Recipe

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from promptcli.backbones.backbone import Backbone

LONGEST_TEXT = 1 << 20  #: most characters of a text that are tokenised
#: Soft hyphens, joiners, marks of direction and of byte order.
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")


class Encoder(SentenceTransformerMethods, ScikitLearnMethods, ModelMethods):
    """Sentences in, vectors out; ``promptcli.load`` opens one.

    It can be used in place of a sentence-transformers model and in a scikit-learn pipeline. Nothing
    in it changes what it encodes, so several threads may call it.

    A recipe's prompt is a template around the sentence, or learned vectors. What
    sentence-transformers calls prompts, the arguments ``prompt`` and ``prompt_name`` of ``encode``
    and the property ``prompts``, are texts in front of a sentence, for queries and for documents,
    say.

    Example:
        >>> import promptcli as pc
        >>> encoder = pc.load(pc.RECIPES["prompt"], device="cpu")
        >>> encoder.encode(["A cat sleeps.", "Two dogs play."]).shape
        (2, 256)
        >>> encoder.encode("A cat sleeps.").shape
        (256,)
    """

    recipe: Recipe  #: with its parts written out: template text, Ditto head, period
    leading: LeadingTexts  #: texts in front of a sentence, by name
    template: Template
    max_length: int  #: longest input in tokens, those of the template included
    name = ""  #: of the model that it was opened as, for messages and manifests

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Refuse to make what no one computes; ``promptcli.load`` opens a model by its name."""
        if cls is Encoder:
            raise UsageError("Encoder() is not how a model is opened; call promptcli.load")
        return super().__new__(cls)

    @property
    def parts(self) -> "Sequence[Encoder]":
        """The encoders of single prompts whose vectors make its own: itself, or several."""
        return [self]

    @property
    def loaded_backbone(self) -> "Backbone | None":
        """Its backbone, for others to share; None if it is tuned, or word vectors alone."""
        return None

    @property
    def ordered(self) -> bool:
        """Whether the first columns of a vector are a usable vector, see ``Transform``."""
        return False

    @property
    @abc.abstractmethod
    def device(self) -> "torch.device":
        """Where its vectors are computed."""

    @property
    @abc.abstractmethod
    def origin(self) -> Provenance:
        """Where its backbone came from."""

    @property
    @abc.abstractmethod
    def pieces(self) -> PieceTokenizer:
        """The backbone's tokenizer, fit for pieces of text."""

    @property
    @abc.abstractmethod
    def provenance(self) -> dict[str, Any]:
        """Where the backbone came from, and the precision it runs in; JSON-ready."""

    @abc.abstractmethod
    def tensors(self) -> "Mapping[str, Tensor]":
        """Return every learned or fitted tensor by name; the backbone's only if they were tuned."""

    @abc.abstractmethod
    def _bytes_of_tensors(self) -> Iterator[tuple[str, bytes]]:
        """Yield the name and the numbers of each of its tensors, in the order of their names."""

    @abc.abstractmethod
    def to(self, device: "str | torch.device") -> "Encoder":
        """Return a copy on ``device``, or the encoder itself if it is there."""

    @abc.abstractmethod
    def with_leading_text(self, text: str) -> "Encoder":
        """Return the encoder that puts ``text`` in front of every sentence."""

    @abc.abstractmethod
    def encode_report(
        self, sentences: Sequence[str], *, progress: Progress = no_progress, most: int | None = None
    ) -> Encoded:
        """Return the vectors of n sentences and which of them were cut.

        A forward pass takes at most ``most`` sentences.
        """

    @abc.abstractmethod
    def encode_windows(
        self,
        windows: Iterable[Sequence[str]],
        *,
        progress: Progress = no_progress,
        most: int | None = None,
    ) -> Iterator[Encoded]:
        """Yield ``encode_report`` of each window of sentences.

        The next window is read while one is computed.
        """

    def without_cache(self) -> "Encoder":
        """Return the encoder without what it keeps between calls, the biases of denoising.

        Those were computed in batches of earlier calls, which may change their last bits.
        """
        return self

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
        progress: Progress = no_progress,
        **others: None,
    ) -> "np.ndarray | Tensor":
        """Return the vectors of n sentences, (n, d) float32, or of a single one, (d,).

        The arguments are those of sentence-transformers, so that an encoder can replace one.

        Args:
            sentences: n texts, or one.
            prompt_name: Put this text of ``prompts``, by its name, in front of every sentence.
            prompt: Put this text in front of every sentence, whatever ``prompt_name`` says.
            batch_size: Most sentences in a forward pass; by default a budget of tokens decides. The
                vectors do not depend on it, up to rounding.
            show_progress_bar: Draw a bar to stderr, or into the notebook.
            precision: ``float32``, nothing else; ``promptcli.quantize`` makes others of the
                vectors.
            convert_to_numpy: A numpy array; else a list of n tensors.
            convert_to_tensor: One tensor, on the encoder's device, whatever ``convert_to_numpy``
                says.
            normalize_embeddings: Scale every vector to length 1; a vector of zeros stays unchanged.
            truncate_dim: Keep the first k dimensions of a vector, before it is scaled.
            device: Encode on another device than the encoder's.
            progress: Called with the number of sentences newly done.
            others: Further arguments of sentence-transformers (``pool``, ``chunk_size``). They must
                be None.

        Raises:
            UsageError: A sentence is not a string, with its index and type; or an argument has a
                value that is not allowed.
            PromptcliError: A vector is not finite.
        """
        if any(value is not None for value in others.values()):
            raise TypeError(f"encode takes no {', '.join(others)}")
        if precision not in (None, "float32"):
            raise UsageError(
                f"{precision!r} is not allowed; give float32, then promptcli.quantize",
                parameter="precision",
            )
        if batch_size is not None and batch_size < 1:
            raise UsageError(f"must be at least 1, got {batch_size}", parameter="batch_size")
        texts = check_texts(sentences)
        encoder: Encoder = self
        if device is not None:
            encoder = self.to(device)
        if prompt is None and prompt_name is not None:
            if prompt_name not in self.prompts:
                valid = self.prompts or ["none: this model has no prompts"]
                raise unknown("prompt_name", str(prompt_name), valid)
            prompt = self.prompts[prompt_name]
        if prompt is not None:
            encoder = encoder.with_leading_text(prompt)
        advancing: AbstractContextManager[Progress] = contextlib.nullcontext(progress)
        if show_progress_bar:
            advancing = progress_bar(len(texts), progress)
        with advancing as advance:
            encoded = encoder.encode_report(texts, progress=advance, most=batch_size)
        check_finite(encoded.vectors, texts)
        vectors: Any = encoded.vectors[:, :truncate_dim]
        if normalize_embeddings:
            vectors = unit(vectors)
        if convert_to_tensor or not convert_to_numpy:
            import torch

            vectors = torch.from_numpy(vectors).to(self.device)
        if not convert_to_tensor and not convert_to_numpy:
            vectors = list(vectors)
        if isinstance(sentences, str):
            vectors = vectors[0]
        return vectors  # type: ignore[no-any-return]

    @functools.cached_property
    def width(self) -> int:
        """d, the width of the vectors."""
        return int(self.encode_report(["."]).vectors.shape[1])

    @property
    def prompts(self) -> Mapping[str, str]:
        """Texts in front of a sentence, by name, as sentence-transformers calls them."""
        return self.leading.texts

    def roles(self) -> list[str]:
        """Return the names that ``in_role`` takes: the usual ones, and those of ``prompts``."""
        usual = itertools.chain(*ROLES)
        return list(dict.fromkeys([*usual, *self.prompts]))

    @property
    def default_prompt_name(self) -> str | None:
        """The name, in ``prompts``, of the text in front of every sentence by default."""
        return self.leading.default

    def in_role(self, role: str, *, report: bool = False) -> "Encoder":
        """Return the encoder for texts of a role: ``query``, ``document``, or a key of ``prompts``.

        It puts the text that the model has for the role in front of every sentence. It is this
        encoder itself if the model has none, if it has that text already, or if the recipe's prompt
        does not begin with the model's default text, directly followed by [X]. ``report``: a note
        names the text.
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

    def _with_text(self, text: str) -> tuple[str, Recipe]:
        """Return a text as it goes in front of every sentence, in place of the model's default
        text, and the recipe that has it directly before [X].
        """
        if self.recipe.text_rule == "lower":
            text = lower(text)
        before = self.leading.default_text + SLOT
        if not self._takes_text() or before not in self.recipe.prompt:
            raise no_text_in_front(self.recipe.prompt)
        if SLOT in text or MASK in text:
            raise UsageError(f"prompt {text!r} holds {SLOT} or {MASK}; give the text alone")
        return text, self.recipe.replace(prompt=self.recipe.prompt.replace(before, text + SLOT))

    def _takes_text(self) -> bool:
        """Return whether the prompt is words, and one."""
        return True

    def __repr__(self) -> str:
        """Return the backbone, how sentences are read, and the device; nothing is computed."""
        recipe = self.recipe
        after = "".join(f", {transform}" for transform in recipe.transforms)
        if recipe.denoise != "none":
            after += f", denoise {recipe.denoise}"
        read = f"{recipe.prompt!r}, {recipe.pooling}{after}"
        return f"Encoder({recipe.backbone!r}, {read}, on {self._where()})"

    def _where(self) -> str:
        """Return the name of its device."""
        return str(self.device)

    @property
    def extensions(self) -> Sequence[Extension]:
        """Parts whose code is not promptcli's own, in order; none for most encoders."""
        return ()

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of recipe, weights, tokenizer and extensions: equal for the same encoder, whatever
        folder its backbone came from.

        Precision and graph, which change vectors a little, are in ``provenance``.
        """
        provenance = self.origin
        digest = hashlib.sha256(self.recipe.replace(backbone="").to_json().encode())
        digest.update(f"{provenance.weights_sha256} {provenance.tokenizer_sha256}".encode())
        for name, numbers in self._bytes_of_tensors():
            digest.update(name.encode() + numbers)
        for extension in self.extensions:
            digest.update(json.dumps(vars(extension), sort_keys=True).encode())
        return digest.hexdigest()

    def prepare(self, sentences: Sequence[str]) -> list[str]:
        """Return n sentences as they go to the tokenizer, see ``Template.prepare``.

        They are cut to ``LONGEST_TEXT`` first, since a tokenizer takes many times the memory of a
        text. A shipped table would read a soft hyphen as the end of a word, where BERT's tokenizer
        leaves it out.
        """
        cut = []
        reads_invisible = self.origin.backbone in SHIPPED_TABLES
        for text in sentences:
            if reads_invisible and not text.isascii():
                text = _INVISIBLE.sub("", text)
            if len(text) > LONGEST_TEXT:
                text = text.strip()[:LONGEST_TEXT]
            cut.append(text)
        rule = text_rule(self.recipe.text_rule)
        return self.template.prepare(self._rewrite(cut), bool(self.recipe.period), rule)

    def _rewrite(self, sentences: Sequence[str]) -> list[str]:
        """Return n sentences as the prompt takes them."""
        return list(sentences)


def no_text_in_front(prompt: str) -> UsageError:
    """Return the error for a prompt that takes no text in front of a sentence."""
    return UsageError(f"prompt {prompt!r} takes no text in front; write it into the sentences")


def longest_input(wanted: int | None, room: int, backbone: str) -> int:
    """Return the longest input in tokens: the wanted one, else as much as a backbone takes."""
    if wanted is None:
        wanted = room
    if not 1 <= wanted <= room:
        raise UsageError(f"max_length {wanted} is not allowed; {backbone!r} takes 1 to {room}")
    return wanted


@contextlib.contextmanager
def progress_bar(total: int, progress: Progress) -> Iterator[Progress]:
    """Draw a bar of sentences; the function yielded adds to it, and calls ``progress``."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    with tqdm(total=total, desc="Sentences", unit="") as bar:

        def advance(done: int) -> None:
            bar.update(done)
            progress(done)

        yield advance
