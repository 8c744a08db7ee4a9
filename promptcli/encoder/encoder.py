"""A recipe with its weights: sentences in, vectors out, in four steps.

``PromptEncoder.encode_batch`` has them: prompt, backbone, pooling, transforms. ``encoding.py``
calls it with sentences sorted by length and in batches, and puts the vectors back in order.
"""

import copy
import functools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.devices import TF32, choose_device, weights_dtype
from promptcli.backbones.families import FAMILIES
from promptcli.backbones.names import words_only
from promptcli.backbones.provenance import TABLE, Provenance
from promptcli.backbones.states import LAST, Batch, HiddenStates, Needs, SharedTokens
from promptcli.backbones.token_rows import TokenRows
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.data.given import check_texts
from promptcli.encoder.batching import make_batch
from promptcli.encoder.denoising import Biases, bias_batch
from promptcli.encoder.encoded import Encoded, Progress, no_progress
from promptcli.encoder.encoding import encode_together, encode_windows
from promptcli.encoder.pooling import Pooling, build_pooling
from promptcli.encoder.pooling.weights import Weights
from promptcli.encoder.prompts import build_prompt
from promptcli.encoder.prompts.prompt import Prompt
from promptcli.encoder.sentence_encoder import Encoder, longest_input, no_text_in_front
from promptcli.encoder.static_encoder import check_words_only
from promptcli.encoder.streams import Graph
from promptcli.encoder.template import Inputs, Template, text_rule
from promptcli.encoder.tensor_names import TUNED
from promptcli.encoder.transforms import build_transforms
from promptcli.encoder.transforms.transform import Stage, Transform
from promptcli.errors import UsageError, WrongKindError
from promptcli.extensions import Extension, used_extensions
from promptcli.recipe import MASK, SLOT, LeadingTexts, Recipe


class TorchEncoder(Encoder):
    """h(s) = T(sum_t w_t x_t), (x, w) read from Backbone(Prompt(s)), computed by torch.

    T are the recipe's transforms. A recipe with denoising subtracts h_hat, the vector of the
    template without a sentence, before T or after a stage of it. ``make_encoder`` makes a
    ``PromptEncoder``, or a ``MeanEncoder`` of several prompts.
    """

    backbone: Backbone
    prompt: Prompt  #: of several prompts, the first
    pooling: Pooling

    def __init__(
        self,
        recipe: Recipe,
        backbone: Backbone,
        tensors: Mapping[str, Tensor],
        *,
        leading: LeadingTexts = LeadingTexts(),  # noqa: B008 - frozen
        graphs: Sequence[Graph] = (),  # exported models (ONNX), one for each prompt of the recipe
    ) -> None:
        self.backbone = backbone
        self.leading = leading
        self.denoising = recipe.parts.denoise
        with used_extensions() as used:
            prompt = self._build_prompt(recipe, tensors, graphs)
            self.template = self.prompt.template
            self.pooling = build_pooling(recipe.parts.pooling, backbone, tensors, self.template)
            self.transforms: list[Transform] = build_transforms(
                recipe.parts.transforms, backbone, tensors
            )
        if backbone.extension is not None:
            used.add(backbone.extension)
        self._extensions = sorted(used)
        room = backbone.max_tokens - self.prompt.length
        self.max_length = longest_input(recipe.max_length, room, backbone.name)
        self._tuned = {name: tensor for name, tensor in tensors.items() if name.startswith(TUNED)}
        self.recipe = recipe.replace(
            prompt=prompt,
            pooling=self.pooling.spec,
            transforms=tuple(transform.spec for transform in self.transforms),
        ).resolve()
        #: Names and functions that are applied in order to the pooled vector. With ``denoise``
        #: NAME, h_hat is subtracted after the stage of that name; "hidden", which changes nothing,
        #: names the place before all transforms.
        self.stages: list[Stage] = [("hidden", lambda vectors: vectors)]
        for transform in self.transforms:
            self.stages += transform.stages
        self._check()

    @abstractmethod
    def _build_prompt(
        self, recipe: Recipe, tensors: Mapping[str, Tensor], graphs: Sequence[Graph]
    ) -> str:
        """Make the prompt, or the prompts; return the recipe's with its arguments written out."""

    @property
    @abstractmethod
    def parts(self) -> "Sequence[PromptEncoder]":
        """The encoders of single prompts whose vectors make its own."""

    @abstractmethod
    def combine(self, encoded: Sequence[Encoded]) -> Encoded:
        """Return its own vectors from those of its parts."""

    @abstractmethod
    def with_leading_text(self, text: str) -> "TorchEncoder": ...

    def one_prompt(self) -> "PromptEncoder":
        """Return the encoder itself; refuse the mean of several prompts."""
        if len(self.parts) == 1:
            return self.parts[0]
        raise UsageError(f"this works with one template, not with the mean of {len(self.parts)}")

    def inputs(self, sentences: Sequence[str]) -> Inputs:
        """Return the model inputs of n sentences.

        The mean of several prompts has an input for each, and is refused.
        """
        return self.one_prompt().inputs(sentences)

    def _check(self) -> None:
        text_rule(self.recipe.text_rule)
        self.template.check_room(self.max_length)
        if self.backbone.words_only:
            check_words_only(self.recipe, table=self.backbone.provenance.family == TABLE)
        masks = len(self.template.masks)
        slots = [slot for _, slot in self.pooling.needs.rows]
        slots.append(self.pooling.needs.slot or 0)
        if max(slots) > masks:  # [CLS] is 0 and the last token -1: every template has them
            has = f"has no {MASK}"
            if masks:
                has = f"has only {masks}; give mask:1 to mask:{masks}"
            raise UsageError(
                f"pooling {self.pooling.spec!r} reads the mask, but template {self.template.text!r}"
                f" {has}"
            )
        place = self.denoising.name
        if place not in ("none", *(name for name, _ in self.stages)):
            raise UsageError(
                f"denoise {place!r} needs a transform with that stage, e.g. the transform"
                " topk-tokens:200"
            )
        if place != "none" and self.pooling.weights.of_content:
            raise UsageError(
                f"denoise {place!r} subtracts the vector of the template alone, whose tokens"
                f" {self.pooling.weights.spec!r} leave out; give none"
            )
        if place != "none":  # refuses the template [X], which has no words to take the bias of
            bias_batch(self.template, [0], self.backbone, raw_positions=False)

    def to(self, device: str | torch.device) -> Self:
        """Return the encoder itself if it is on ``device``, else a copy there, computed by torch.

        ``device`` is a name that torch knows, such as cuda:0, or auto.
        """
        target = torch.device(choose_device(str(device)))
        if target == self.device:
            return self
        moved = type(self)(
            self.recipe, self.backbone.to(target), self.tensors(), leading=self.leading
        )
        moved.name = self.name
        return moved

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the parts, weights included.

        A graph stays behind, and torch computes in its place.
        """
        parts = (self.recipe, self.backbone, self.tensors())
        return functools.partial(type(self), leading=self.leading), parts, {"name": self.name}

    def encode_report(
        self, sentences: Sequence[str], *, progress: Progress = no_progress, most: int | None = None
    ) -> Encoded:
        return encode_together([self], check_texts(sentences), progress=progress, most=most)[0]

    def encode_windows(
        self,
        windows: Iterable[Sequence[str]],
        *,
        progress: Progress = no_progress,
        most: int | None = None,
    ) -> Iterator[Encoded]:
        encoded = encode_windows([self], windows, progress=progress, most=most)
        return (window for (window,) in encoded)

    @property
    def ordered(self) -> bool:
        return bool(self.transforms) and self.transforms[-1].ordered

    @property
    def loaded_backbone(self) -> Backbone | None:
        return None if self._tuned else self.backbone

    @property
    def device(self) -> torch.device:
        return self.backbone.device

    @property
    def origin(self) -> Provenance:
        return self.backbone.provenance

    @property
    def extensions(self) -> Sequence[Extension]:
        return self._extensions

    @property
    def pieces(self) -> PieceTokenizer:
        return self.backbone.tokenizer

    def tensors(self) -> dict[str, Tensor]:
        """Return every learned or fitted tensor by name; the backbone's only if they were tuned."""
        owners: list[Prompt | Weights | Transform] = [
            self.prompt,
            self.pooling.weights,
            *self.transforms,
        ]
        tensors = dict[str, Tensor]()
        for owner in owners:
            tensors |= owner.tensors()
        return tensors | self._tuned

    def _rewrite(self, sentences: Sequence[str]) -> list[str]:
        return self.prompt.sentences(sentences)

    def _bytes_of_tensors(self) -> Iterator[tuple[str, bytes]]:
        for name, tensor in sorted(self.tensors().items()):
            yield name, tensor.cpu().numpy().tobytes()

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The backbone's tokenizer, as transformers has it."""
        return self.backbone.tokenizer_of_transformers()

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the backbone came from, and the precision it runs in; JSON-ready."""
        graph = self.parts[0].graph
        provenance = dict(vars(self.backbone.provenance))
        if self._extensions:
            provenance["extensions"] = [vars(extension) for extension in self._extensions]
        if graph is not None:
            return {**provenance, **graph.provenance}
        dtype = str(self.backbone.dtype).removeprefix("torch.")
        if self.backbone.tf32:
            dtype = TF32
        return {**provenance, "dtype": dtype}


class PromptEncoder(TorchEncoder):
    """The encoder of one prompt."""

    def _build_prompt(
        self, recipe: Recipe, tensors: Mapping[str, Tensor], graphs: Sequence[Graph]
    ) -> str:
        self.prompt = build_prompt(recipe.parts.prompt, self.backbone, tensors)
        #: An exported model that computes the vectors, pooling included, in the backbone's place;
        #: None: torch computes them.
        self.graph: Graph | None = graphs[0] if graphs else None
        return self.prompt.spec

    def _check(self) -> None:
        _check_last_token(self.pooling, self.template, self.backbone)
        super()._check()

    @property
    def parts(self) -> "Sequence[PromptEncoder]":
        return [self]

    def combine(self, encoded: Sequence[Encoded]) -> Encoded:
        return encoded[0]

    @functools.cached_property
    def biases(self) -> Biases:
        """h_hat, the template's vector without a sentence, by sentence length."""
        return Biases(
            self.template, self.backbone, self.prompt, self.pooling, self.stages, self.denoising
        )

    def without_cache(self) -> "PromptEncoder":
        encoder = copy.copy(self)
        encoder.biases = self.biases.empty_copy()
        return encoder

    def encode_batch(
        self,
        rows: Sequence[Sequence[int]],
        peers: Sequence["PromptEncoder"],
        needs: Needs,
        shared: SharedTokens | None = None,
    ) -> list[Tensor]:
        """Return the vectors (n, d) of a batch of rows of ids, of each of several encoders.

        This is the path of a sentence: prompt, backbone, pooling, transforms. ``rows`` are of
        ``inputs``. The ``peers`` have this encoder's ``input_key`` and share its pass, which
        computes what all of them need.
        """
        batch = self.prompt.attach(self.batch(rows, shared))
        states = self.backbone.run(batch, needs)
        vectors = []
        for peer in peers:
            pooled = peer.pooling.pool(batch, states)
            vectors.append(peer.apply_transforms(pooled, batch.host_lengths()))
        return vectors

    def inputs(self, sentences: Sequence[str]) -> Inputs:
        """Return the ids of n sentences in the prompt's template."""
        tokenize = functools.partial(self.pooling.weights.token_ids, backbone=self.backbone)
        return self.template.inputs(self.prepare(sentences), tokenize, self.max_length)

    def batch(self, rows: Sequence[Sequence[int]], shared: SharedTokens | None = None) -> Batch:
        """Return rows of ids as a batch on the backbone's device, padded.

        ``shared``: the tokens that begin every row, if they are computed already.
        """
        rows = TokenRows.of(rows)
        slots = self.template.slots_of(rows.lengths)
        pad = self.backbone.tokenizer.pad
        batch = make_batch(rows, slots, pad, self.backbone.device, self.max_length)
        return replace(batch, shared=shared)

    def run(self, batch: Batch, needs: Needs) -> HiddenStates:
        """Return what the backbone computes of a batch, with what the prompt has learned in it."""
        return self.backbone.run(self.prompt.attach(batch), needs)

    def apply_transforms(self, vectors: Tensor, lengths: np.ndarray) -> Tensor:
        """Return pooled vectors (n, d) after transforms and denoising, of inputs of these lengths
        (n,).
        """
        for name, step in self.stages:
            vectors = step(vectors)
            if name == self.denoising.name:
                vectors = vectors - self.biases.at(self.sentence_lengths(lengths))
        return vectors

    def sentence_lengths(self, lengths: np.ndarray) -> np.ndarray:
        """Return the tokens of the sentences in inputs of these lengths (n,)."""
        return np.asarray((lengths - self.template.length).clip(min=0))

    @property
    def input_key(self) -> tuple[object, ...]:
        """Equal for encoders that one forward pass can serve: the same backbone and graph, the same
        input, and the same learned prompt in it.
        """
        rewriting = self.pooling.weights.rewriting
        learned = None
        if self.prompt.tensors():
            learned = id(self.prompt)
        text = (self.prompt.spec, self.recipe.period, self.recipe.text_rule)
        return (id(self.backbone), id(self.graph), *text, learned, self.max_length, rewriting)

    def shared_tokens(self, needs: Needs, lengths: np.ndarray) -> SharedTokens | None:
        """Return the keys and values of the tokens that begin every input.

        None if sharing them does not pay, or if an input has no other tokens.
        """
        ids = self.prompt.shared
        if len(lengths) < 2 or lengths.min() <= len(ids):
            return None
        return self.backbone.shared_tokens(ids, needs, int(lengths.max()))

    def averaged_rows(self) -> Tensor | None:
        """Return the matrix (v, d) of which each pooled vector is the mean of its tokens' rows.

        Its rows are word vectors, or those of the language model's head. Such an encoder runs no
        layer for a sentence. None for all others.
        """
        if self.pooling.weights.averaged is None or self.prompt.tensors():
            return None
        if self.template.has_blocks:
            return None
        if self.pooling.needs == Needs(static=True):
            return self.backbone.token_rows
        if self.pooling.needs == Needs(decoder=True):
            return self.backbone.head.rows
        return None

    def with_leading_text(self, text: str) -> "PromptEncoder":
        """Return the encoder that puts ``text`` in front of every sentence.

        Only a prompt of words takes one: it goes directly before [X], in place of the model's
        default text.
        """
        text, recipe = self._with_text(text)
        if not self.leading.counted:
            recipe = recipe.replace(pooling=self._pooling_without(text))
        encoder = PromptEncoder(
            recipe,
            self.backbone,
            self.tensors(),
            leading=self.leading.with_default(text),
            graphs=[] if self.graph is None else [self.graph],
        )
        encoder.name = self.name
        if self.graph is not None:
            self._check_graph_fits(encoder, text)
        return encoder

    def _takes_text(self) -> bool:
        return type(self.prompt) is Prompt

    def _pooling_without(self, text: str) -> str:
        """Return the pooling that leaves out the tokens of a text in front.

        Models ask for it by ``include_prompt`` false. Each of its weights ``w`` becomes
        ``from:k;w``, k the position of the first token after the text, which begins the template.
        """
        tokens = self.backbone.tokenizer
        count = 0
        if text:
            blank = " " if tokens.start_blank else ""
            count = len(tokens.start) + len(tokens.encode([blank + text])[0])
        return str(self.recipe.parts.pooling.counted_from(count))

    def _check_graph_fits(self, other: "PromptEncoder", text: str) -> None:
        """Refuse to let this encoder's graph compute another encoder that it does not fit.

        A graph has fixed pooling and mask positions, and the bias of its template.
        """
        assert self.graph is not None
        backend = self.graph.provenance["backend"]
        if self.denoising.name != "none":
            raise UsageError(
                f"the graph of backend {backend} computes no bias of another prompt than its own;"
                " give torch"
            )
        exported = (self.pooling.spec, self.template.masks)
        if exported != (other.pooling.spec, other.template.masks):
            raise UsageError(
                f"the graph of backend {backend} was made for another prompt than {text!r}; give"
                " torch"
            )


class MeanEncoder(TorchEncoder):
    """The mean of the vectors of several prompts, each denoised on its own, before the transforms.

    ``mean:PROMPT || PROMPT`` (MetaEOL, ReverseEOL). The prompts are words: nothing is learned.
    """

    def _build_prompt(
        self, recipe: Recipe, tensors: Mapping[str, Tensor], graphs: Sequence[Graph]
    ) -> str:
        if self.denoising.name not in ("none", "hidden"):
            raise UsageError(
                f"denoise {recipe.denoise!r} comes after a transform, but the prompts of a mean are"
                " denoised one by one, before it; give hidden"
            )
        self._parts = []
        for number, prompt in enumerate(recipe.parts.prompt["prompts"]):
            single = recipe.replace(prompt=str(prompt), transforms=())
            of_prompt = graphs[number : number + 1]
            self._parts.append(PromptEncoder(single, self.backbone, tensors, graphs=of_prompt))
        self.prompt = self._parts[0].prompt
        return "mean:" + " || ".join(part.prompt.spec for part in self._parts)

    @property
    def parts(self) -> Sequence[PromptEncoder]:
        return self._parts

    def combine(self, encoded: Sequence[Encoded]) -> Encoded:
        mean = np.mean([part.vectors for part in encoded], axis=0, dtype=np.float32)
        vectors = torch.from_numpy(mean).to(self.device)
        with torch.inference_mode():
            for _, step in self.stages:
                vectors = step(vectors)
        truncated = np.any([part.truncated for part in encoded], axis=0)
        tokens = np.sum([part.tokens for part in encoded], axis=0)
        return Encoded(vectors.float().cpu().numpy(), truncated, tokens)

    def without_cache(self) -> "MeanEncoder":
        encoder = copy.copy(self)
        encoder._parts = [part.without_cache() for part in self._parts]
        return encoder

    def with_leading_text(self, text: str) -> TorchEncoder:
        raise no_text_in_front(self.recipe.prompt)


def make_encoder(
    recipe: Recipe,
    backbone: Backbone,
    tensors: Mapping[str, Tensor],
    *,
    leading: LeadingTexts = LeadingTexts(),  # noqa: B008 - frozen
    graphs: Sequence[Graph] = (),
) -> TorchEncoder:
    """Make the encoder of a recipe on a loaded backbone, without changing the backbone.

    ``graphs`` are exported models, one for each prompt of the recipe.
    """
    kind: type[PromptEncoder] | type[MeanEncoder] = PromptEncoder
    if recipe.parts.prompt.name == "mean":
        kind = MeanEncoder
    return kind(recipe, backbone, tensors, leading=leading, graphs=graphs)


def build_encoder(
    recipe: Recipe,
    *,
    device: str = "auto",
    dtype: str = "auto",
    tensors: Mapping[str, Tensor] | None = None,
    backbone: Backbone | None = None,
    leading: LeadingTexts = LeadingTexts(),  # noqa: B008 - frozen
) -> TorchEncoder:
    """Make the encoder of a recipe, with its backbone.

    For device and dtype see ``load``. ``backbone`` is a loaded one to share; tensors of a tuned
    backbone get their own copy.
    """
    if words_only(recipe.backbone):
        check_words_only(recipe)  # before they are read
    tuned = tuned_weights(tensors or {})
    if backbone is None or tuned:  # tuned weights never go into a shared backbone
        device = choose_device(device)
        backbone = load_backbone(
            recipe.backbone,
            device=device,
            dtype=weights_dtype(dtype, device),
            allow_word_vectors=True,
        )
        backbone.tf32 = dtype == TF32
        if tuned:
            backbone.tune(tuned)
    return make_encoder(recipe, backbone, tensors or {}, leading=leading)


def tuned_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a tuned backbone among an entry's tensors, under the backbone's own
    names.
    """
    return {
        name.removeprefix(TUNED): tensor
        for name, tensor in tensors.items()
        if name.startswith(TUNED)
    }


def _check_last_token(pooling: Pooling, template: Template, backbone: Backbone) -> None:
    """Refuse to read the last token of a prompt such as "[X] means in one word:", but in causal
    models.

    Other models are not trained to continue a text: the state of their last token sums up nothing.
    It may be read where the prompt ends with the sentence.
    """
    ends_with_sentence = template.text.endswith(SLOT)
    if pooling.needs.slot == LAST and not backbone.causal and not ends_with_sentence:
        causal = ", ".join(name for name, family in FAMILIES.items() if family.causal)
        raise WrongKindError(
            f"weights 'last-token' are for causal models ({causal}), not {backbone.name!r}: take"
            f" the model prompt"
        )
