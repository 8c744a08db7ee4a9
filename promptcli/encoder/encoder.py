"""Encoder: a recipe with its weights, sentences in and vectors out."""

import contextlib
import functools
import hashlib
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import promptcli
from promptcli.backbones.backbone import TABLE, Backbone
from promptcli.backbones.devices import TF32, choose_device, weights_dtype
from promptcli.backbones.families import FAMILIES
from promptcli.backbones.loading import load_backbone, words_only
from promptcli.backbones.states import LAST, Batch, HiddenStates, Needs, SharedTokens
from promptcli.backbones.tokenizer import ID_BYTES, pack, unpack
from promptcli.data.given import check_arguments, check_texts
from promptcli.data.vectors.precision import unit
from promptcli.encoder import batching
from promptcli.encoder.batching import Encoded, Memory, Progress, Share, Vectors, silent
from promptcli.encoder.denoising import Denoising, bias_batch
from promptcli.encoder.pooling import Pooling, build_pooling
from promptcli.encoder.pooling.weights import Weights
from promptcli.encoder.prompts import build_prompt, mean_of, prompts_of_mean
from promptcli.encoder.prompts.prompt import Prompt
from promptcli.encoder.prompts.template import Inputs, lower, text_rule
from promptcli.encoder.streams import STREAM_TOKENS, STREAMS, Graph, ahead, check_not_forked, in_streams
from promptcli.encoder.transforms import build_transforms
from promptcli.encoder.transforms.transform import Stage, Transform
from promptcli.errors import UsageError, WrongKindError, unknown
from promptcli.notes import note
from promptcli.recipe import MASK, SLOT, Prompts, Recipe, split_spec

Option = str | int | bool | Progress | None  #: a value of an argument of ``encode``
TUNED = "backbone."  #: prefix of a tuned backbone's tensors
LONGEST_TEXT = 1 << 20  #: most characters of a text that are tokenised
_AT_ONCE = 16_384  #: inputs averaged at once if no layer has to run
_PLANNED = 32_768  #: distinct sentences whose batches are planned together; the next ones are tokenised in the meantime
_ENCODED = ("vectors", "truncated", "tokens")
Fetch = Callable[[], dict[int, np.ndarray]]  #: waits for vectors from a device, by encoder number
#: Rows of each batch, and the parts of it that memory held.
Batches = Iterator[tuple[np.ndarray, list[tuple[np.ndarray, Fetch]]]]


class Encoder:
    """h(s) = T(sum_t w_t x_t), (x, w) read from Backbone(Prompt(s)).

    It can be used in place of a sentence-transformers model and in a scikit-learn pipeline. It never changes, so
    several threads may call it.

    Example:
        >>> import promptcli as pc
        >>> encoder = pc.load(pc.RECIPES["prompt"], device="cpu")
        >>> encoder.encode(["A cat sleeps.", "Two dogs play."]).shape
        (2, 256)
        >>> encoder.encode("A cat sleeps.").shape
        (256,)
    """

    recipe: Recipe  #: with every name resolved: template text, Ditto head, period
    backbone: Backbone
    max_length: int  #: longest input in tokens
    name = ""  #: of the model that it was opened as, for messages and manifests
    similarity_fn_name = "cosine"  #: sentence-transformers' name for what ``similarity`` computes

    def __new__(cls, *args: Any, **_: Any) -> "Encoder":
        """Refuse the name of a model, which ``promptcli.load`` opens."""
        if args and not isinstance(args[0], Recipe):
            raise UsageError(f"Encoder({args[0]!r:.60}) is not how a model is opened; call promptcli.load")
        return super().__new__(cls)

    def __init__(
        self,
        recipe: Recipe,
        backbone: Backbone,
        tensors: Mapping[str, Tensor],
        *,
        prompts: Prompts = Prompts(),  # noqa: B008 - frozen
        graphs: Sequence[Graph] = (),  # that compute it: one, or one for each of its ``members``
    ) -> None:
        self.backbone = backbone
        self.texts = prompts
        #: Encoders of the single prompts whose vectors are averaged before the transforms; empty for one prompt.
        self.members = [
            Encoder(recipe.replace(prompt=prompt, transforms=()), backbone, tensors, graphs=graphs[number : number + 1])
            for number, prompt in enumerate(prompts_of_mean(recipe.prompt))
        ]
        first = self.members[0].prompt if self.members else build_prompt(recipe.prompt, backbone, tensors)
        self.prompt: Prompt = first
        self.template = self.prompt.template
        self.pooling: Pooling = build_pooling(recipe.pooling, backbone, tensors)
        self.transforms: list[Transform] = build_transforms(recipe.transforms, backbone, tensors)
        self.denoising = Denoising.from_spec(recipe.denoise)
        if self.pooling.needs.slot == LAST and not backbone.causal and recipe.prompt.split(SLOT)[1:] != [""]:
            causal = ", ".join(name for name, family in FAMILIES.items() if family.causal)
            fits = f"causal models ({causal}), not {backbone.name!r}: take `model` prompt"
            raise WrongKindError(f"weights 'last-token' are for {fits}")  # before the length, which may be too long
        longest = backbone.max_tokens - self.prompt.length
        self.max_length = longest if recipe.max_length is None else recipe.max_length
        if not 1 <= self.max_length <= longest:
            raise UsageError(f"max_length {recipe.max_length} is not allowed; {backbone.name!r} takes 1 to {longest}")
        self._tuned = {name: tensor for name, tensor in tensors.items() if name.startswith(TUNED)}
        self.recipe = recipe.replace(
            prompt=mean_of([member.prompt.spec for member in self.members]) if self.members else self.prompt.spec,
            pooling=self.pooling.spec,
            transforms=tuple(transform.spec for transform in self.transforms),
        ).explicit()
        #: The steps after pooling, by name; denoising is subtracted after the step of its name.
        self.stages: list[Stage] = [
            ("hidden", lambda vectors: vectors),
            *(stage for transform in self.transforms for stage in transform.stages),
        ]
        self.biases: dict[int, Tensor] = {}  #: h_hat by length, kept between calls
        #: Computes batches instead of the backbone.
        self.graph: Graph | None = graphs[0] if graphs and not self.members else None
        self._check()

    def _check(self) -> None:
        text_rule(self.recipe.text_rule)
        self.template.check_room(self.max_length)
        if self.backbone.words_only:
            _check_words_only(self.recipe, table=self.backbone.provenance.family == TABLE)
        masks = len(self.template.masks)
        if (self.pooling.needs.slot or 0) > masks:
            has = f"has only {masks}; give mask:1 to mask:{masks}" if masks else f"has no {MASK}"
            raise UsageError(f"pooling {self.pooling.spec!r} reads the mask, but template {self.template.text!r} {has}")
        place = self.denoising.place
        if place not in ("none", *(name for name, _ in self.stages)):
            raise UsageError(f"denoise {place!r} needs a transform with that stage, e.g. `transforms` topk-tokens:200")
        if place != "none":
            bias_batch(self.template, [0], self.backbone, raw_positions=False)

    @check_arguments
    def save(self, folder: str | Path, *, force: bool = False) -> None:
        """Write the encoder into a folder that ``load`` and sentence-transformers open; see ``promptcli.save``."""
        promptcli.save(self, folder, force=force)

    save_pretrained = save

    @check_arguments
    def register(self, name: str, *, force: bool = False) -> None:
        """Keep the encoder under a name that ``promptcli.load`` and ``--model`` know; see ``promptcli.register``."""
        promptcli.register(self, name, force=force)

    def push_to_hub(self, repo: str, *, private: bool = False, revision: str | None = None) -> Any:
        """Send the encoder to ``OWNER/NAME`` of the Hugging Face hub; see ``promptcli.push``."""
        return promptcli.push(self, repo, private=private, revision=revision)

    def to(self, device: str | torch.device) -> "Encoder":
        """Return a copy on ``device``, or the encoder itself if it is already on it."""
        target = torch.device(choose_device(str(device)))
        if target == self.device:
            return self
        return Encoder(self.recipe, self.backbone.to(target), self.tensors(), prompts=self.texts)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the parts, weights included; a graph stays behind, and torch computes in its place."""
        return functools.partial(Encoder, prompts=self.texts), (self.recipe, self.backbone, self.tensors())

    @overload
    def encode(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        *,
        convert_to_tensor: Literal[True],
        **options: Any,
    ) -> Tensor: ...
    @overload
    def encode(
        self, sentences: str | Sequence[str], prompt_name: str | None = ..., prompt: str | None = ..., **options: Any
    ) -> np.ndarray: ...
    @check_arguments  # type: ignore[misc]
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
        device: str | torch.device | None = None,
        progress: Progress = silent,
    ) -> np.ndarray | Tensor:
        """Return the vectors of n sentences, (n, d) float32, or of a single one, (d,).

        The arguments are those of sentence-transformers, so that an encoder can replace one.

        Args:
            sentences: n texts, or one.
            prompt_name: A text of ``prompts`` by its name, in front of every sentence.
            prompt: That text itself.
            batch_size: Most sentences in a forward pass; by default a budget of tokens decides. The vectors do not
                depend on it.
            show_progress_bar: Draw a bar to stderr, or into the notebook.
            precision: ``float32``, nothing else; ``promptcli.quantize`` makes others of the vectors.
            convert_to_numpy: A numpy array; else a list of n tensors.
            convert_to_tensor: One tensor, on the encoder's device, whatever ``convert_to_numpy`` says.
            normalize_embeddings: Scale every vector to length 1; a vector of zeros stays one.
            truncate_dim: Keep the first k numbers of a vector, before it is scaled.
            device: Encode on another device than the encoder's.
            progress: Called with the number of sentences newly done.

        Raises:
            UsageError: A sentence is not a string; with its index and type.
        """
        if precision not in (None, "float32"):
            raise UsageError(f"precision {precision!r} is not allowed; give float32, then promptcli.quantize")
        if batch_size is not None and batch_size < 1:
            raise UsageError(f"batch_size {batch_size} is not allowed; give at least 1, or leave it out")
        texts = check_texts(sentences)
        encoder = self if device is None else self.to(device)
        if prompt is not None or prompt_name is not None:
            if prompt is None and prompt_name not in self.prompts:
                raise unknown("prompt_name", str(prompt_name), self.prompts or ["none: this model has no prompts"])
            encoder = encoder.prompted(self.prompts[str(prompt_name)] if prompt is None else prompt)
        with _progress_bar(len(texts), progress) if show_progress_bar else contextlib.nullcontext(progress) as advance:
            encoded = encoder.encode_report(texts, progress=advance, most=batch_size).vectors[:, :truncate_dim]
        vectors: Any = unit(encoded) if normalize_embeddings else encoded
        if convert_to_tensor or not convert_to_numpy:
            vectors = torch.from_numpy(vectors).to(self.device)
            vectors = vectors if convert_to_tensor else list(vectors)
        result: np.ndarray | Tensor = vectors[0] if isinstance(sentences, str) else vectors
        return result

    def encode_query(self, sentences: str | Sequence[str], **options: Option) -> np.ndarray | Tensor:
        """Return the vectors of queries, with the prompt ``query`` if the model has one; see ``encode``."""
        return self._encode_as(sentences, options, "query")

    def encode_document(self, sentences: str | Sequence[str], **options: Option) -> np.ndarray | Tensor:
        """Return the vectors of documents, with the prompt ``document``, ``passage`` or ``corpus`` if the model has it.

        A model of sentence-transformers always has ``query`` and ``document``, empty unless its folder says otherwise,
        as in that library.
        """
        return self._encode_as(sentences, options, "document", "passage", "corpus")

    def _encode_as(self, sentences: str | Sequence[str], options: dict[str, Any], *names: str) -> np.ndarray | Tensor:
        if options.get("prompt") is None and options.get("prompt_name") is None:
            options["prompt_name"] = next((name for name in names if name in self.prompts), None)
        vectors: np.ndarray | Tensor = self.encode(sentences, **options)
        return vectors

    def similarity(self, first: Vectors, second: Vectors) -> Tensor:
        """Return the cosine of every vector of ``first`` (n, d) with every one of ``second`` (m, d), (n, m)."""
        tensors = (torch.as_tensor(vectors).float() for vectors in (first, second))
        a, b = (functional.normalize(vectors.reshape(-1, vectors.size(-1)), dim=1) for vectors in tensors)
        return a @ b.T

    def similarity_pairwise(self, first: Vectors, second: Vectors) -> Tensor:
        """Return the cosine of row i of ``first`` (n, d) with row i of ``second`` (n, d), (n,)."""
        return functional.cosine_similarity(torch.as_tensor(first).float(), torch.as_tensor(second).float(), dim=-1)

    def get_sentence_embedding_dimension(self) -> int:
        """Return d, the width of the vectors (sentence-transformers' name for it)."""
        return int(self.width)

    get_embedding_dimension = get_sentence_embedding_dimension

    @property
    def model_card_data(self) -> Any:
        """Takes the figures that sentence-transformers' evaluators store, and forgets them."""
        return SimpleNamespace(set_evaluation_metrics=lambda *_, **__: None)

    def fit(self, sentences: object = None, labels: object = None) -> "Encoder":
        """Return self: scikit-learn pipelines call it, and nothing is learned."""
        return self

    def transform(self, sentences: Sequence[str]) -> np.ndarray:
        """Return ``encode(sentences)``, for pipelines of scikit-learn."""
        return self.encode(sentences)

    def __sklearn_clone__(self) -> "Encoder":
        """Let every fold of a cross-validation use this one encoder: nothing in it changes."""
        return self

    def __sklearn_tags__(self) -> Any:
        """Say that nothing has to be fitted; BERTopic asks a pipeline whether it is."""
        from sklearn.base import BaseEstimator

        tags = BaseEstimator().__sklearn_tags__()
        tags.requires_fit = False
        return tags

    def encode_report(
        self, sentences: Sequence[str], *, progress: Progress = silent, most: int | None = None
    ) -> Encoded:
        """Return the vectors of n sentences and which of them were cut; ``most`` sentences in a forward pass."""
        return encode_together([self], check_texts(sentences), progress=progress, most=most)[0]

    def encode_windows(
        self, windows: Iterable[Sequence[str]], *, progress: Progress = silent, most: int | None = None
    ) -> Iterator[Encoded]:
        """Yield ``encode_report`` of each window of sentences; the next window is read while one is computed."""
        return map(operator.itemgetter(0), encode_windows([self], windows, progress=progress, most=most))

    @property
    def device(self) -> torch.device:
        return self.backbone.device

    @functools.cached_property
    def width(self) -> int:
        """d, the width of the vectors."""
        return int(encode_together([self], ["."])[0].vectors.shape[1])

    def tensors(self) -> dict[str, Tensor]:
        """Return every learned or fitted tensor by name; the backbone's only if they were tuned."""
        owners: list[Prompt | Weights | Transform] = [self.prompt, self.pooling.weights, *self.transforms]
        return {name: tensor for owner in owners for name, tensor in owner.tensors().items()} | self._tuned

    @property
    def prompts(self) -> Mapping[str, str]:
        """Texts in front of a sentence, by name (sentence-transformers' prompts)."""
        return self.texts.texts

    @property
    def default_prompt_name(self) -> str | None:
        """The prompt put in front of a sentence by default."""
        return self.texts.default

    def in_role(self, role: str, *, report: bool = False) -> "Encoder":
        """Return the encoder of ``query``, ``document`` or another prompt, which the model may have or not.

        Words of the recipe's own in front of the sentence take its place; ``report`` tells the user of it.
        """
        name = self.texts.of(role)
        if name is None or not self.recipe.prompt.startswith(self.texts.text + SLOT):
            return self
        text = self.prompts[name]
        if report and (text or self.texts.text):
            texts = {"query": "queries", "document": "documents"}.get(role, "texts")
            note(f"{texts} begin with the model's prompt {name!r}: {text!r}")
        return self if text == self.texts.text else self.prompted(text)

    def prompted(self, text: str) -> "Encoder":
        """Return an encoder that puts this text in front of every sentence instead of the default prompt.

        In a template the text becomes the beginning of the sentence.
        """
        text = lower(text) if self.recipe.text_rule == "lower" else text
        default = self.texts.text + SLOT
        if type(self.prompt) is not Prompt or self.members or default not in self.recipe.prompt:
            raise UsageError(f"prompt {self.recipe.prompt!r} takes no text in front; write it into the sentences")
        if any(mark in text for mark in (SLOT, MASK)):
            raise UsageError(f"prompt {text!r} holds {SLOT} or {MASK}; give the text alone")
        pooling = self.recipe.pooling if self.texts.counted else self._without_text(text)
        recipe = self.recipe.replace(prompt=self.recipe.prompt.replace(default, text + SLOT), pooling=pooling)
        name = next((name for name, known in self.texts.texts.items() if known == text), "given")
        prompts = replace(self.texts, texts={**self.texts.texts, name: text}, default=name)
        graphs = [self.graph] if self.graph else []
        encoder = Encoder(recipe, self.backbone, self.tensors(), prompts=prompts, graphs=graphs)
        encoder.name = self.name
        fixed = (self.pooling.spec, self.template.masks, "none")  # what the graph knows of the template
        if self.graph and fixed != (encoder.pooling.spec, encoder.template.masks, self.denoising.place):
            backend = self.graph.provenance["backend"]
            raise UsageError(f"the graph of backend {backend} was made for another prompt than {text!r}; give torch")
        return encoder

    def _without_text(self, text: str) -> str:
        """Return the pooling with the tokens of a text in front left out, as ``include_prompt: false`` asks for."""
        tokens = self.backbone.tokenizer
        states, _, weights = self.recipe.pooling.partition("/")
        plain = [spec.rpartition(";")[2] for spec in weights.split("+")]
        blank = " " if tokens.start_blank and text else ""
        count = len(tokens.start) + len(tokens.encode([blank + text])[0]) if text else 0
        return f"{states}/" + "+".join(f"from:{count};{spec}" if count else spec for spec in plain)

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The backbone's tokenizer, as transformers has it."""
        return self.backbone.tokenizer_of_transformers()

    @property
    def max_seq_length(self) -> int:
        """The longest input in tokens (sentence-transformers' name for ``max_length``)."""
        return self.max_length

    def __repr__(self) -> str:
        """Return the backbone, how sentences are read, the width and the device."""
        recipe = self.recipe
        after = "".join(f", {transform}" for transform in recipe.transforms)
        denoised = "" if recipe.denoise == "none" else f", denoise {recipe.denoise}"
        read = f"{recipe.prompt!r}, {recipe.pooling}{after}{denoised}"
        return f"Encoder({recipe.backbone!r}, {read}, {self.width} numbers, on {self.device})"

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the backbone came from, and the precision it runs in; JSON-ready."""
        graph = (self.members or [self])[0].graph
        dtype = TF32 if self.backbone.tf32 else str(self.backbone.dtype).removeprefix("torch.")
        by = {"dtype": dtype} if graph is None else graph.provenance
        return {**vars(self.backbone.provenance), **by}

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of all that decides the vectors: equal for the same encoder, whatever folder its backbone came from."""
        provenance = self.backbone.provenance
        digest = hashlib.sha256(self.recipe.replace(backbone="").to_json().encode())
        digest.update(f"{provenance.weights_sha256} {provenance.tokenizer_sha256}".encode())
        for name, tensor in sorted(self.tensors().items()):
            digest.update(name.encode() + tensor.cpu().numpy().tobytes())
        return digest.hexdigest()

    @property
    def input_key(self) -> tuple[object, ...]:
        """Equal for encoders whose model input is the same, so that one forward pass serves both."""
        rewriting = self.pooling.weights.rewriting
        learned = id(self.prompt) if self.prompt.tensors() else None
        text = (self.prompt.spec, self.recipe.period, self.recipe.text_rule)
        return (id(self.backbone), id(self.graph), *text, learned, self.max_length, rewriting)

    def inputs(self, sentences: Sequence[str]) -> Inputs:
        """Return the model inputs of n sentences; the mean of several prompts, which have one each, is refused."""
        if self.members:
            raise UsageError(f"this works with one template, not with the mean of {len(self.members)}")
        ids = self.pooling.weights.rewrite(self.pieces(sentences), self.backbone)
        return self.template.splice(ids, self.max_length)

    def pieces(self, sentences: Sequence[str]) -> list[str]:
        """Return n sentences as the pieces to tokenise: with period and text rule, and what touches them.

        Texts are cut to ``LONGEST_TEXT`` first, since a tokenizer takes many times the memory of a text.
        """
        sentences = [text if len(text) <= LONGEST_TEXT else text.strip()[:LONGEST_TEXT] for text in sentences]
        return self.template.pieces(sentences, bool(self.recipe.period), text_rule(self.recipe.text_rule))

    def run(self, batch: Batch, needs: Needs) -> HiddenStates:
        return self.backbone.run(self.prompt.attach(batch), needs)

    def shared_tokens(self, needs: Needs, lengths: np.ndarray) -> SharedTokens | None:
        """Return the keys and values of the tokens that begin every input, or None if sharing them does not pay."""
        ids = self.prompt.shared
        if len(lengths) < 2 or lengths.min() <= len(ids):
            return None
        return self.backbone.shared_tokens(ids, needs, int(lengths.max()))

    def average_members(self, encoded: Sequence[Encoded]) -> Encoded:
        """Return the members' mean after the transforms; a single encoder's vectors unchanged."""
        if not self.members:
            return encoded[0]
        mean = np.mean([member.vectors for member in encoded], axis=0, dtype=np.float32)
        vectors = torch.from_numpy(mean).to(self.device)
        with torch.inference_mode():
            for _, step in self.stages:
                vectors = step(vectors)
        truncated = np.any([member.truncated for member in encoded], axis=0)
        return Encoded(vectors.float().cpu().numpy(), truncated, np.sum([member.tokens for member in encoded], axis=0))

    def averaged_rows(self) -> Tensor | None:
        """Return the matrix (v, d) whose rows this encoder averages; None if it needs anything else."""
        learned = bool(self.prompt.tensors())
        if self.pooling.weights.averaged is None or learned:
            return None
        if self.pooling.needs == Needs(static=True):
            return self.backbone.token_rows
        return self.backbone.head.rows if self.pooling.needs == Needs(decoder=True) else None

    def average(self, rows: Sequence[bytes], lengths: np.ndarray, matrix: Tensor) -> np.ndarray:
        """Return the vectors (n, d) float32 of n packed inputs from ``averaged_rows``, without batches or padding."""
        inner = self.pooling.weights.averaged or slice(None)
        if inner != slice(None):
            rows = [pack(unpack(row)[inner]) for row in rows]
        vectors = batching.average_rows(rows, matrix)
        return self.apply_transforms(vectors, lambda: lengths).cpu().numpy()

    def apply_transforms(self, vectors: Tensor, lengths: Callable[[], np.ndarray]) -> Tensor:
        """Apply transforms and denoising to pooled vectors (n, d); ``lengths`` are the input lengths (n,)."""
        for name, step in self.stages:
            vectors = step(vectors)
            if name == self.denoising.place:
                vectors = vectors - self.bias_at((lengths() - self.template.length).clip(min=0).tolist())
        return vectors

    def bias_at(self, lengths: list[int]) -> Tensor:
        """Return h_hat (n, d) for sentences of those lengths, taken where denoising is."""
        missing = sorted(set(lengths) - self.biases.keys())
        if missing:
            memory = Memory(np.full(len(missing), self.template.length), self.device)
            every = np.array(missing)
            for rows, biases in memory.within(lambda rows: self._bias(every[rows].tolist()), np.arange(len(every))):
                self.biases.update(zip(every[rows].tolist(), biases, strict=True))
        distinct, places = np.unique(lengths, return_inverse=True)
        table = torch.stack([self.biases[length] for length in distinct.tolist()])
        return table.index_select(0, batching.to_device(places.reshape(-1), table.device))

    def _bias(self, lengths: list[int]) -> Tensor:
        batch = bias_batch(self.template, lengths, self.backbone, raw_positions=self.denoising.raw_positions)
        biases = self.pooling.pool(batch, self.run(batch, self.pooling.needs))
        for name, step in self.stages:
            biases = step(biases)
            if name == self.denoising.place:
                break
        return biases


@contextlib.contextmanager
def _progress_bar(total: int, progress: Progress) -> Iterator[Progress]:
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    with tqdm(total=total, desc="Sentences", unit="") as bar:

        def advance(done: int) -> None:
            bar.update(done)
            progress(done)

        yield advance


def build_encoder(
    recipe: Recipe,
    *,
    device: str = "auto",
    dtype: str = "auto",
    tensors: Mapping[str, Tensor] | None = None,
    backbone: Backbone | None = None,
    prompts: Prompts = Prompts(),  # noqa: B008 - frozen
) -> Encoder:
    """Make the encoder of a recipe; for device and dtype see ``load``. ``backbone`` is a loaded one to share."""
    if words_only(recipe.backbone):
        _check_words_only(recipe)  # before they are read
    tuned = tuned_weights(tensors or {})
    if backbone is None or tuned:  # tuned weights never go into a shared backbone
        device = choose_device(device)
        backbone = load_backbone(recipe.backbone, device=device, dtype=weights_dtype(dtype, device), words=True)
        backbone.tf32 = dtype == TF32
        if tuned:
            backbone.tune(tuned)
    return Encoder(recipe, backbone, tensors or {}, prompts=prompts)


def tuned_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a tuned backbone among an entry's tensors, under the backbone's own names."""
    return {name.removeprefix(TUNED): tensor for name, tensor in tensors.items() if name.startswith(TUNED)}


def _check_words_only(recipe: Recipe, *, table: bool = False) -> None:
    """Refuse what word vectors cannot do; those of a table have the layers that come with it, and its prompts."""
    layers = tuple(
        spec for spec in recipe.transforms if table and split_spec(spec)[0] in ("dense", "normalize", "truncate")
    )
    allowed = Recipe(recipe.backbone, pooling="static/avg", max_length=recipe.max_length, transforms=layers)
    if table:
        allowed = allowed.replace(prompt=recipe.prompt, period=recipe.period)
    fields, possible = recipe.explicit().to_dict(), allowed.explicit().to_dict()
    if fields != possible:
        shown = ", ".join(f"{key} {value!r}" for key, value in fields.items() if value != possible.get(key))
        raise UsageError(f"{recipe.backbone!r} holds word vectors, which only `model` static-avg averages, not {shown}")


def encode_together(
    encoders: Sequence["Encoder"], sentences: Sequence[str], *, progress: Progress = silent, most: int | None = None
) -> list[Encoded]:
    """Encode with several encoders, one forward pass wherever the model input is the same.

    Each distinct sentence is encoded once; the order is restored. Results do not depend on the batch, which
    has at most ``most`` sentences and fills the token budget otherwise. ``progress`` adds up to n.
    """
    unique, back = _distinct(sentences)
    windows = [unique[start : start + _PLANNED] for start in range(0, len(unique), _PLANNED)] or [[]]
    share = Share(progress, len(sentences), len(unique))
    by_window = list(encode_windows(encoders, windows, progress=share, most=most))
    return [
        Encoded(*(np.concatenate([getattr(window, field) for window in encoded])[back] for field in _ENCODED))
        for encoded in zip(*by_window, strict=True)
    ]


def _distinct(sentences: Sequence[str]) -> tuple[list[str], np.ndarray]:
    row_of: dict[str, int] = {}
    back = np.fromiter((row_of.setdefault(sentence, len(row_of)) for sentence in sentences), np.int64, len(sentences))
    return list(row_of), back


def encode_windows(
    encoders: Sequence["Encoder"],
    windows: Iterable[Sequence[str]],
    *,
    progress: Progress = silent,
    most: int | None = None,
) -> Iterator[list[Encoded]]:
    """Yield each encoder's vectors of one window after the other; another thread reads the next one."""
    check_not_forked()
    single = [member for encoder in encoders for member in encoder.members or [encoder]]
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, encoder in enumerate(single):
        groups.setdefault(encoder.input_key, []).append(number)

    def read(window: Sequence[str]) -> tuple[np.ndarray, list[Inputs]]:
        unique, back = _distinct(window)
        return back, [single[members[0]].inputs(unique) for members in groups.values()]

    for window, (back, inputs) in ahead(read, windows):
        share = Share(progress, len(window), sum(len(each.packed) for each in inputs))
        encoded: dict[int, Encoded] = {}
        for members, group_inputs in zip(groups.values(), inputs, strict=True):
            results = _encode_group([single[number] for number in members], group_inputs, share, most)
            encoded.update(zip(members, results, strict=True))
        in_order = (encoded[number] for number in range(len(single)))
        rows = [encoder.average_members([next(in_order) for _ in encoder.members or [encoder]]) for encoder in encoders]
        yield [Encoded(result.vectors[back], result.truncated[back], result.tokens[back]) for result in rows]


def _encode_group(encoders: Sequence["Encoder"], inputs: Inputs, progress: Progress, most: int | None) -> list[Encoded]:
    packed, count = inputs.packed, len(inputs.packed)
    if not count:
        return [
            Encoded(np.empty((0, encoder.width), np.float32), np.empty(0, bool), np.empty(0, np.int64))
            for encoder in encoders
        ]
    lengths = np.fromiter(map(len, packed), np.int64, count) // ID_BYTES
    vectors: dict[int, np.ndarray] = {}
    deep = {}
    with torch.inference_mode():
        for number, encoder in enumerate(encoders):
            matrix = encoder.averaged_rows()
            if matrix is None:
                deep[number] = encoder
            else:
                chunks = (slice(start, start + _AT_ONCE) for start in range(0, count, _AT_ONCE))
                vectors[number] = np.concatenate(
                    [encoder.average(packed[chunk], lengths[chunk], matrix) for chunk in chunks]
                )
        if deep:
            vectors |= _gather(_run_batches(deep, inputs.rows, lengths, most), count, progress)
        else:
            progress(count)
    truncated = np.array(inputs.truncated, dtype=bool)
    return [Encoded(vectors[number], truncated, lengths) for number in range(len(encoders))]


def _run_batches(
    encoders: Mapping[int, "Encoder"], rows: list[list[int]], lengths: np.ndarray, most: int | None
) -> Batches:
    """Return the batches of encoders with the same ``input_key``; what iterates over them computes them."""
    first = next(iter(encoders.values()))
    needs = functools.reduce(operator.or_, (encoder.pooling.needs for encoder in encoders.values()))
    shared = None if first.graph else first.shared_tokens(needs, lengths)
    for encoder in encoders.values():
        if encoder.denoising.place != "none" and encoder.graph is None:  # at once, so that no order of batches shows
            encoder.bias_at(np.unique((lengths - encoder.template.length).clip(min=0)).tolist())

    def compute(numbers: np.ndarray) -> Fetch:
        ids = [rows[row] for row in numbers]
        slots = [first.template.mask_slots(len(row)) for row in ids]
        batch = batching.make_batch(ids, slots, first.backbone.tokenizer.pad, first.backbone.device, first.max_length)
        if first.graph is not None:
            by_graph = dict.fromkeys(encoders, first.graph.run(batch))
            return lambda: by_graph
        hidden = first.run(replace(batch, shared=shared), needs)
        results = {}
        for number, encoder in encoders.items():
            pooled = encoder.pooling.pool(batch, hidden)
            results[number] = encoder.apply_transforms(pooled, batch.host_lengths).float()
        return batching.begin_fetch(results)

    if first.graph or first.backbone.reentrant:
        streams, budget = STREAMS, STREAM_TOKENS
    elif first.backbone.causal and first.device.type == "cpu":  # in one stream, whose threads share the batch
        streams, budget = 1, min(batching.TOKEN_BUDGET, STREAM_TOKENS * torch.get_num_threads())
    else:
        streams, budget = 1, batching.token_budget(first.device, first.backbone.token_rows.size(1))
    computed_lengths = lengths if shared is None else lengths - shared.length
    batches = list(batching.plan_batches(computed_lengths, token_budget=budget, most=most))
    memory = Memory(lengths, first.device)
    return in_streams(functools.partial(memory.within, compute), batches, most=streams)


def _gather(batches: Batches, count: int, progress: Progress) -> dict[int, np.ndarray]:
    """Return the vectors (count, d) by encoder number; a batch is fetched late, while a GPU computes the next."""
    vectors: dict[int, np.ndarray] = {}
    late: list[tuple[np.ndarray, Fetch]] = []
    for numbers, results in itertools.chain(batches, [(np.empty(0, np.int64), [])]):
        for rows, fetch in late:
            for number, values in fetch().items():
                if number not in vectors:
                    vectors[number] = np.empty((count, values.shape[1]), dtype=np.float32)
                vectors[number][rows] = values
        late = results
        progress(len(np.unique(numbers)))
    return vectors
