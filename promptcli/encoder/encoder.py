"""The encoder on torch: a recipe with its weights.

A sentence becomes a vector in four steps: prompt, backbone, pooling, transforms.
``encode_windows_together`` encodes by several encoders at once; ``_SharedPass`` makes the batches,
takes each through the four steps, and puts the vectors back in order.
"""

import functools
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.devices import (
    TF32,
    Fetch,
    begin_fetch,
    choose_device,
    to_device,
    weights_dtype,
)
from promptcli.backbones.families import FAMILIES
from promptcli.backbones.model_folder import TABLE, is_word_file
from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.backbones.states import LAST, Batch, Needs, SharedTokens
from promptcli.data.arguments import as_texts
from promptcli.encoder.batching import (
    IN_FLIGHT,
    PARALLEL_BATCHES,
    PARALLEL_TOKENS,
    BatchSplitter,
    check_not_forked,
    make_batch,
    map_in_threads,
    plan_batches,
    token_budget,
)
from promptcli.encoder.components import Prompt, Stage
from promptcli.encoder.embeddings import Embeddings, PendingEmbeddings, encode_stream
from promptcli.encoder.pooling import build_pooling
from promptcli.encoder.prompts import build_prompt
from promptcli.encoder.sentence_encoder import TUNED, Encoder
from promptcli.encoder.static_encoder import average_embeddings, check_words_only
from promptcli.encoder.template import ModelInputs, Template
from promptcli.encoder.transforms import build_transforms
from promptcli.errors import UsageError, WrongKindError
from promptcli.extensions import used_extensions
from promptcli.notes import Advance, no_progress, note
from promptcli.recipe import MASK, SLOT, LeadingTexts, Recipe


@dataclass(frozen=True)
class Graph:
    """A complete encoder computed by another library; several threads may call it."""

    run: Callable[[Batch], np.ndarray]  #: (n, d) float32
    provenance: dict[str, str]  #: ``backend``, and the ``dtype`` that it computes in


class TorchEncoder(Encoder):
    """h(s) = T(sum_t w_t x_t), (x, w) read from Backbone(Prompt(s)), computed by torch.

    T are the recipe's transforms. Denoising subtracts h_hat, the vector of the template without a
    sentence, before T or after one of T's stages.

    ``mean:PROMPT || PROMPT`` (MetaEOL, ReverseEOL) is the mean of the vectors of several prompts.
    Each prompt has its own encoder, without transforms, which subtracts its own h_hat. The prompts
    are words: nothing is learned.
    """

    def __init__(
        self,
        recipe: Recipe,
        backbone: Backbone,
        tensors: Mapping[str, Tensor],
        *,
        leading: LeadingTexts = LeadingTexts(),  # noqa: B008 - frozen
        name: str = "",
        graphs: Sequence[Graph] = (),  # exported models (ONNX), one for each prompt of the recipe
    ) -> None:
        with used_extensions() as extensions:
            averaged_encoders = _encoders_of_prompts(recipe, backbone, tensors, graphs)
            if averaged_encoders:
                prompt = averaged_encoders[0].prompt
                specs = [encoder.prompt.spec for encoder in averaged_encoders]
                prompt_spec = f"mean:{' || '.join(specs)}"
            else:
                prompt = build_prompt(recipe.parts.prompt, backbone, tensors)
                prompt_spec = prompt.spec
            pooling = build_pooling(recipe.parts.pooling, backbone, tensors, prompt.template)
            transforms = build_transforms(recipe.parts.transforms, backbone, tensors)
        if backbone.extension is not None:
            extensions.add(backbone.extension)
        super().__init__(
            recipe.replace(
                prompt=prompt_spec,
                pooling=pooling.spec,
                transforms=tuple(transform.spec for transform in transforms),
            ),
            prompt.template,
            backbone.tokenizer,
            backbone.provenance,
            leading=leading,
            name=name,
            max_input_tokens=backbone.max_tokens - prompt.length,
            device_name=str(backbone.device),
        )
        self.backbone = backbone
        self.prompt: Prompt = prompt  #: the first prompt of a mean
        self.pooling = pooling
        self.transforms = transforms
        self.extensions = sorted(extensions)
        self.denoising = recipe.parts.denoise
        #: an encoder for each prompt of a mean; empty for a single prompt
        self._averaged_encoders = averaged_encoders
        self.takes_leading_text = type(prompt) is Prompt and not averaged_encoders
        if transforms:
            self.is_prefix_truncatable = transforms[-1].is_prefix_truncatable
        self._tuned = {name: tensor for name, tensor in tensors.items() if name.startswith(TUNED)}
        self.loaded_backbone = None if self._tuned else backbone
        #: An exported model that computes the vectors instead of the backbone and the pooling;
        #: None: torch computes them.
        self.graph: Graph | None = graphs[0] if graphs else None
        self._biases: dict[int, Tensor] = {}
        #: Names and functions that are applied in order to the pooled vector. The recipe's
        #: ``denoise`` names the stage after which h_hat is subtracted. The stage "hidden" changes
        #: nothing: it is the place before all transforms.
        self.stages: list[Stage] = [("hidden", lambda vectors: vectors)]
        for transform in transforms:
            self.stages += transform.stages
        self._check()

    def _check(self) -> None:
        """Refuse components that do not fit each other."""
        template = self.template
        needs = self.pooling.needs
        if needs.slot == LAST and not self.backbone.causal and not template.text.endswith(SLOT):
            # only a model that continues a text sums it up in the state of its last token
            causal = ", ".join(name for name, family in FAMILIES.items() if family.causal)
            raise WrongKindError(
                f"weights 'last-token' are for causal models ({causal}), not"
                f" {self.backbone.name!r}; use the recipe prompt"
            )
        if self.backbone.is_word_table:
            check_words_only(self.recipe, table=self.backbone_provenance.family == TABLE)
        masks = len(template.masks)
        # [CLS] is slot 0 and the last token slot -1: every template has both
        if max([needs.slot or 0, *(slot for _, slot in needs.attention_rows)]) > masks:
            has = f"has only {masks}; give mask:1 to mask:{masks}" if masks else f"has no {MASK}"
            raise UsageError(
                f"pooling {self.pooling.spec!r} reads the mask, but template {template.text!r}"
                f" {has}"
            )
        place = self.denoising.name
        if place == "none":
            return
        places = ["hidden"] if self._averaged_encoders else [name for name, _ in self.stages]
        if place not in places:
            raise UsageError(
                f"denoise {place!r} needs a transform with that stage, e.g. topk-tokens:200; for a"
                " mean of prompts only denoise hidden is allowed"
            )
        if self.pooling.weights.reads_content_only:
            raise UsageError(
                f"denoise {place!r} subtracts the vector of the template without a sentence, whose"
                f" tokens the weights {self.pooling.weights.spec!r} leave out; set denoise to none"
            )
        self.backbone.require_positions(f"denoise {place!r}")
        # refuses a template without words, which has no bias
        bias_batch(template, [0], self.backbone, raw_positions=False)

    @property
    def prompt_encoders(self) -> "Sequence[TorchEncoder]":
        return self._averaged_encoders or [self]

    def one_prompt(self) -> "TorchEncoder":
        """Return the encoder itself; refuse the mean of several prompts."""
        if self._averaged_encoders:
            raise UsageError(
                f"a mean of {len(self._averaged_encoders)} prompts cannot be used here; give a"
                " recipe with one prompt"
            )
        return self

    # -- the path of a sentence

    def inputs(self, sentences: Sequence[str]) -> ModelInputs:
        """Return the model inputs of n sentences; refuse the mean of several prompts, which has an
        input for each prompt.
        """
        self.one_prompt()
        return super().inputs(sentences)

    def rewrite(self, sentences: Sequence[str]) -> list[str]:
        return self.prompt.rewrite(sentences)

    def token_ids(self, texts: Sequence[str]) -> RaggedIds:
        return self.pooling.weights.token_ids(texts, self.backbone)

    def batch(self, inputs: Iterable[Sequence[int]], shared: SharedTokens | None = None) -> Batch:
        """Return the ids of n inputs as a padded batch on the backbone's device, with the prompt's
        learned vectors.

        ``shared``: the keys and values of the tokens that begin every input, if they are known.
        """
        ids = RaggedIds.of(inputs)
        masks = self.template.mask_positions(ids.lengths)
        pad = self.backbone.tokenizer.pad
        batch = make_batch(ids, masks, pad, self.backbone.device, self.max_length)
        return self.prompt.attach(replace(batch, shared=shared))

    def apply_transforms(self, vectors: Tensor, lengths: np.ndarray) -> Tensor:
        """Return pooled vectors (n, d) after transforms and denoising; ``lengths`` (n,) are those
        of the inputs.
        """
        for name, stage in self.stages:
            vectors = stage(vectors)
            if name == self.denoising.name:
                vectors = vectors - self.biases(lengths - self.template.length)
        return vectors

    def biases(self, lengths: np.ndarray) -> Tensor:
        """Return h_hat (n, d) for sentences of these lengths (n,), as it is subtracted.

        The bias of a length is computed once.
        """
        distinct, places = np.unique(lengths.clip(min=0), return_inverse=True)
        missing = distinct[[length not in self._biases for length in distinct.tolist()]]
        if len(missing):
            splitter = BatchSplitter(np.full(len(missing), self.template.length), self.device)
            batches_with_biases = splitter.run(
                lambda batch: self._compute_biases(missing[batch]), np.arange(len(missing))
            )
            for batch, biases in batches_with_biases:
                self._biases.update(zip(missing[batch].tolist(), biases, strict=True))
        table = torch.stack([self._biases[length] for length in distinct.tolist()])
        return table.index_select(0, to_device(places.reshape(-1), table.device))

    def _compute_biases(self, lengths: np.ndarray) -> Tensor:
        """Return h_hat (n, d) for n lengths, by one forward pass."""
        raw_positions = self.denoising.argument == "code"
        batch = bias_batch(
            self.template, lengths.tolist(), self.backbone, raw_positions=raw_positions
        )
        states = self.backbone.run(self.prompt.attach(batch), self.pooling.needs)
        biases = self.pooling.pool(batch, states)
        for name, stage in self.stages:
            biases = stage(biases)
            if name == self.denoising.name:
                break
        return biases

    def without_cache(self) -> "TorchEncoder":
        encoder = self.shallow_copy()
        encoder._biases = {}
        encoder._averaged_encoders = [single.without_cache() for single in self._averaged_encoders]
        return encoder

    @property
    def input_key(self) -> tuple[object, ...]:
        """Equal for encoders that can share a forward pass: the same backbone, graph, input and
        learned prompt.
        """
        return (
            id(self.backbone),
            id(self.graph),
            self.prompt.spec,
            self.recipe.period,
            self.recipe.text_rule,
            id(self.prompt) if self.prompt.tensors() else None,
            self.max_length,
            self.pooling.weights.rewriting,
        )

    def shared_tokens(self, needs: Needs, lengths: np.ndarray) -> SharedTokens | None:
        """Return the keys and values of the tokens that begin each input; ``lengths`` (n,) are the
        inputs' lengths.

        None if sharing does not pay, or if an input has no other tokens.
        """
        ids = self.prompt.shared
        if len(lengths) < 2 or lengths.min() <= len(ids):
            return None
        return self.backbone.shared_tokens(ids, needs, int(lengths.max()))

    def averaged_matrix(self) -> Tensor | None:
        """Return the matrix (v, d) whose rows are averaged by the pooling: word embeddings, or the
        output embeddings of the head; None for other poolings.

        An encoder with such a matrix runs no layer for a sentence.
        """
        averages = self.pooling.weights.averaged is not None
        if averages and not self.prompt.tensors() and not self.template.has_blocks:
            if self.pooling.needs == Needs(static=True):
                return self.backbone.word_embeddings
            if self.pooling.needs == Needs(output_embeddings=True):
                return self.backbone.head.output_embeddings
        return None

    # -- what every encoder has

    def encode_windows(
        self,
        windows: Iterable[Sequence[str]],
        *,
        progress: Advance = no_progress,
        batch_size: int | None = None,
    ) -> Iterator[Embeddings]:
        encoded = encode_windows_together([self], windows, progress=progress, batch_size=batch_size)
        return (window for (window,) in encoded)

    def combine(self, encoded: Sequence[Embeddings]) -> Embeddings:
        """Return the encoder's embeddings from those of its single prompts."""
        if not self._averaged_encoders:
            return encoded[0]
        mean = np.mean([of_prompt.vectors for of_prompt in encoded], axis=0, dtype=np.float32)
        vectors = torch.from_numpy(mean).to(self.device)
        with torch.inference_mode():
            for _, stage in self.stages:
                vectors = stage(vectors)
        truncated = np.any([of_prompt.truncated for of_prompt in encoded], axis=0)
        tokens = np.sum([of_prompt.tokens for of_prompt in encoded], axis=0)
        return Embeddings(vectors.float().cpu().numpy(), truncated, tokens)

    def to(self, device: str | torch.device) -> Self:
        """Return the encoder itself if it is on ``device``, else a copy there, without a graph.

        ``device`` is torch's name of a device, such as cuda:0, or auto.
        """
        target = torch.device(choose_device(str(device)))
        if target == self.device:
            return self
        backbone = self.backbone.to(target)
        return type(self)(
            self.recipe, backbone, self.tensors(), leading=self.leading, name=self.name
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the recipe and all weights, but no graph: torch computes the copy's vectors."""
        arguments = (self.recipe, self.backbone, self.tensors())
        return functools.partial(type(self), leading=self.leading, name=self.name), arguments

    def tensors(self) -> dict[str, Tensor]:
        """Return every learned or fitted tensor by name; the backbone's only if they were tuned."""
        tensors = self.prompt.tensors() | self.pooling.weights.tensors()
        for transform in self.transforms:
            tensors |= transform.tensors()
        return tensors | self._tuned

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The backbone's transformers tokenizer."""
        return self.backbone.tokenizer_of_transformers()

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the backbone came from, and the precision it runs in; JSON-ready."""
        provenance = dict(vars(self.backbone_provenance))
        if self.extensions:
            provenance["extensions"] = [vars(extension) for extension in self.extensions]
        if self.graph is not None:
            return {**provenance, **self.graph.provenance}
        dtype = str(self.backbone.dtype).removeprefix("torch.")
        return {**provenance, "dtype": TF32 if self.backbone.tf32 else dtype}

    def with_leading_text(self, text: str) -> "TorchEncoder":
        text, recipe = self._with_text(text)
        if not self.leading.counted:
            # the model's ``include_prompt`` is false: its weights begin after the text
            first = 0
            if text:
                tokenizer = self.backbone.tokenizer
                blank = " " if tokenizer.start_blank else ""
                first = len(tokenizer.start) + len(tokenizer.encode([blank + text])[0])
            recipe = recipe.replace(pooling=str(self.recipe.parts.pooling.counted_from(first)))
        encoder = TorchEncoder(
            recipe,
            self.backbone,
            self.tensors(),
            leading=self.leading.with_default(text),
            name=self.name,
            graphs=[] if self.graph is None else [self.graph],
        )
        if self.graph is not None:
            # a graph has fixed pooling and mask positions, and the bias of its template
            exported = (self.pooling.spec, self.template.masks)
            fits = exported == (encoder.pooling.spec, encoder.template.masks)
            if self.denoising.name != "none" or not fits:
                raise UsageError(
                    f"the graph of backend {self.graph.provenance['backend']} was made for another"
                    f" prompt than {text!r}; use the backend torch"
                )
        return encoder


def _encoders_of_prompts(
    recipe: Recipe,
    backbone: Backbone,
    tensors: Mapping[str, Tensor],
    graphs: Sequence[Graph],
) -> list[TorchEncoder]:
    """Return an encoder without transforms for each prompt of a mean; none for another prompt."""
    prompt = recipe.parts.prompt
    if prompt.name != "mean":
        return []
    encoders = []
    for number, spec in enumerate(prompt["prompts"]):
        single = recipe.replace(prompt=str(spec), transforms=())
        graph = graphs[number : number + 1]
        encoders.append(TorchEncoder(single, backbone, tensors, graphs=graph))
    return encoders


def bias_batch(
    template: Template, lengths: Sequence[int], backbone: Backbone, *, raw_positions: bool
) -> Batch:
    """Return the inputs whose vectors are h_hat (PromptBERT, section 4.3): one for each of K
    sentence lengths k, (K, t), t the template's length.

    Each is the template without a sentence; its tokens after [X] have the positions that they would
    have after a sentence of k tokens.
    """
    if template.text == SLOT or template.has_blocks or template.copies > 1:
        raise UsageError(
            f"denoising needs a template with words around one {SLOT}, not {template.text!r}"
            f"{' in blocks' if template.has_blocks else ''}"
        )
    batch = make_batch(
        [[*template.left, *template.right]] * len(lengths),
        template.mask_positions(np.full(len(lengths), template.length)),
        backbone.tokenizer.pad,
        backbone.device,
        template.length,
    )
    places = np.arange(template.length)
    shift = np.asarray(lengths, dtype=np.int64)[:, None] * (places >= len(template.left))
    return replace(
        batch, position_ids=to_device(places + shift, backbone.device), raw_positions=raw_positions
    )


def build_encoder(
    recipe: Recipe,
    *,
    device: str = "auto",
    dtype: str = "auto",
    tensors: Mapping[str, Tensor] | None = None,
    backbone: Backbone | None = None,
    leading: LeadingTexts = LeadingTexts(),  # noqa: B008 - frozen
    name: str = "",
) -> TorchEncoder:
    """Return the encoder of a recipe.

    Args:
        recipe: The recipe.
        device: See ``load``.
        dtype: See ``load``.
        tensors: Its learned and fitted tensors, by name.
        backbone: A loaded backbone to share. None, or a tuned backbone among the tensors: it is
            loaded.
        leading: Texts in front of a sentence, by name.
        name: Name of the model, for messages and manifests.
    """
    if is_word_file(recipe.backbone):
        check_words_only(recipe)  # before the word vectors are read
    tuned = tuned_weights(tensors or {})
    if backbone is None or tuned:
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
    return TorchEncoder(recipe, backbone, tensors or {}, leading=leading, name=name)


def tuned_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a tuned backbone among an entry's, by their names in the backbone."""
    return {
        name.removeprefix(TUNED): tensor
        for name, tensor in tensors.items()
        if name.startswith(TUNED)
    }


def encode_together(
    encoders: Sequence[TorchEncoder],
    sentences: Sequence[str],
    *,
    progress: Advance = no_progress,
) -> list[Embeddings]:
    """Return each encoder's embeddings of n sentences, see ``encode_windows_together``."""
    windows = [as_texts(sentences)]
    [encoded] = encode_windows_together(encoders, windows, progress=progress)
    return encoded


def encode_windows_together(
    encoders: Sequence[TorchEncoder],
    windows: Iterable[Sequence[str]],
    *,
    progress: Advance = no_progress,
    batch_size: int | None = None,
) -> Iterator[list[Embeddings]]:
    """Yield each encoder's embeddings of one window of sentences after the other.

    Encoders with the same model input share a forward pass. The vectors of a sentence do not depend
    on the batch that it is in, on the other sentences or on the other encoders. A batch has at most
    ``batch_size`` sentences and fills the token budget otherwise.
    """
    check_not_forked()
    sharing: dict[tuple[object, ...], list[TorchEncoder]] = {}
    for encoder in encoders:
        for single in encoder.prompt_encoders:
            sharing.setdefault(single.input_key, []).append(single)
    passes = [_SharedPass(sharing_encoders, batch_size) for sharing_encoders in sharing.values()]
    for window in encode_stream(windows, passes, progress):
        yield [
            encoder.combine([window[single] for single in encoder.prompt_encoders])
            for encoder in encoders
        ]
    for encoder in encoders:
        for single in encoder.prompt_encoders:
            for line in single.pooling.weights.notes():
                note(line)


class _SharedPass:
    """Encoders with the same model input: one forward pass computes the vectors of all of them."""

    def __init__(self, encoders: Sequence[TorchEncoder], batch_size: int | None) -> None:
        self._batch_size = batch_size
        self._first = encoders[0]  # makes the inputs of all
        #: encoder -> the matrix whose rows it averages; these encoders need no layer
        self._averaging: dict[TorchEncoder, Tensor] = {}
        self._deep: list[TorchEncoder] = []  # the encoders that need the backbone's layers
        for encoder in encoders:
            matrix = encoder.averaged_matrix()
            if matrix is None:
                self._deep.append(encoder)
            else:
                self._averaging[encoder] = matrix
        needs = [encoder.pooling.needs for encoder in self._deep] or [Needs()]
        self._needs = functools.reduce(operator.or_, needs)

    def inputs(self, sentences: Sequence[str]) -> ModelInputs:
        """Return the model inputs of n sentences."""
        return self._first.inputs(sentences)

    def begin(self, inputs: ModelInputs, progress: Advance) -> PendingEmbeddings:
        """Begin to encode n inputs; see ``ForwardPass``."""
        ids = inputs.ids
        pending = _PendingVectors(inputs)
        remaining = len(ids)
        with torch.inference_mode():
            for encoder, matrix in self._averaging.items():
                pending.vectors[encoder] = _average_rows(encoder, ids, matrix)
            for batch, fetch in self._begin_batches(ids):
                pending.add(batch, fetch)
                new = min(len(batch), remaining)  # the last batch may repeat its inputs
                remaining -= new
                progress(new)
        if remaining:
            progress(remaining)
        return pending.wait

    def _begin_batches(self, ids: RaggedIds) -> Iterator[tuple[np.ndarray, Fetch[TorchEncoder]]]:
        """Yield batches (indices of inputs) that fit into memory, each with a function that waits
        for its vectors.
        """
        if not self._deep:
            return
        first = self._first
        backbone = first.backbone
        lengths = ids.lengths
        shared = None
        if first.graph is None:
            shared = first.shared_tokens(self._needs, lengths)
            for encoder in self._deep:
                if encoder.denoising.name != "none":
                    # of all lengths at once, so that they do not depend on the order of batches
                    encoder.biases(lengths - encoder.template.length)
        batches_at_a_time = 1
        budget = token_budget(backbone.device, backbone.word_embeddings.size(1))
        if first.graph or backbone.runs_in_threads:
            batches_at_a_time = PARALLEL_BATCHES
            budget = PARALLEL_TOKENS
        elif backbone.causal and backbone.device.type == "cpu":  # the threads share the batch
            budget = min(budget, PARALLEL_TOKENS * torch.get_num_threads())
        own_lengths = lengths if shared is None else lengths - shared.length
        batches = list(plan_batches(own_lengths, budget, batch_size=self._batch_size))
        splitter = BatchSplitter(lengths, first.device)
        compute = functools.partial(self._compute, ids, shared)
        for fitting_batches in map_in_threads(
            functools.partial(splitter.run, compute), batches, max_threads=batches_at_a_time
        ):
            yield from fitting_batches

    def _compute(
        self, ids: RaggedIds, shared: SharedTokens | None, batch: np.ndarray
    ) -> Fetch[TorchEncoder]:
        """Begin to compute the vectors of a batch, given by the indices of its inputs."""
        first = self._first
        model_input = first.batch(ids.take(batch), shared)
        if first.graph is not None:
            by_graph = dict.fromkeys(self._deep, first.graph.run(model_input))
            return lambda: by_graph
        states = first.backbone.run(model_input, self._needs)
        vectors = {}
        for encoder in self._deep:
            pooled = encoder.pooling.pool(model_input, states)
            vectors[encoder] = encoder.apply_transforms(pooled, model_input.host_lengths()).float()
        return begin_fetch(vectors)


class _PendingVectors:
    """The vectors of n inputs, by encoder; the last batches may still be computed."""

    def __init__(self, inputs: ModelInputs) -> None:
        self._inputs = inputs
        self._in_flight = deque[tuple[np.ndarray, Fetch[TorchEncoder]]]()
        self.vectors: dict[TorchEncoder, np.ndarray] = {}  #: (n, d) float32 each

    def add(self, batch: np.ndarray, fetch: Fetch[TorchEncoder]) -> None:
        """Add a batch (indices of inputs); wait for an earlier one if too many are in flight."""
        self._in_flight.append((batch, fetch))
        if len(self._in_flight) > IN_FLIGHT:
            self._read_batch()

    def _read_batch(self) -> None:
        """Wait for the vectors of the oldest batch in flight, and put them at its indices."""
        batch, fetch = self._in_flight.popleft()
        for encoder, vectors in fetch().items():
            if encoder not in self.vectors:
                shape = (len(self._inputs.ids), vectors.shape[1])
                self.vectors[encoder] = np.empty(shape, np.float32)
            self.vectors[encoder][batch] = vectors

    def wait(self) -> dict[TorchEncoder, Embeddings]:
        """Return the embeddings of all inputs, once."""
        while self._in_flight:
            self._read_batch()
        by_encoder, self.vectors = self.vectors, {}  # only the caller keeps them in memory
        return {
            encoder: Embeddings(vectors, self._inputs.truncated, self._inputs.ids.lengths)
            for encoder, vectors in by_encoder.items()
        }


def _average_rows(encoder: TorchEncoder, ids: RaggedIds, matrix: Tensor) -> np.ndarray:
    """Return the vectors (n, d) float32 of an encoder that averages rows of a matrix, without
    batches or padding.
    """
    averaged_tokens = encoder.pooling.weights.averaged or slice(None)

    def embeddings_of(tokens: np.ndarray) -> np.ndarray:
        return matrix[to_device(tokens, matrix.device)].float().cpu().numpy()

    means = average_embeddings(ids.slice_rows(averaged_tokens), embeddings_of, len(matrix))
    vectors = encoder.apply_transforms(to_device(means, matrix.device), ids.lengths)
    return vectors.cpu().numpy()
