"""Encoder: a recipe with its weights, sentences in and vectors out."""

import contextlib
import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor

from promptcli.backbones.backbone import TABLE, Backbone
from promptcli.backbones.devices import TF32, choose_device, weights_dtype
from promptcli.backbones.families import FAMILIES
from promptcli.backbones.loading import load_backbone, words_only
from promptcli.backbones.states import LAST, Batch, HiddenStates, Needs, SharedTokens
from promptcli.data.given import check_arguments, check_texts
from promptcli.data.vectors.precision import unit
from promptcli.encoder.batching import Encoded, Progress, silent
from promptcli.encoder.compat import ScikitLearnMethods, SentenceTransformerMethods
from promptcli.encoder.denoising import Biases, Denoising, bias_batch
from promptcli.encoder.encoding import encode_together, encode_windows
from promptcli.encoder.pooling import Pooling, build_pooling
from promptcli.encoder.pooling.weights import Weights
from promptcli.encoder.prompts import build_prompt, mean_of, prompts_of_mean
from promptcli.encoder.prompts.prompt import Prompt
from promptcli.encoder.prompts.template import Inputs, lower, text_rule
from promptcli.encoder.streams import Graph
from promptcli.encoder.transforms import build_transforms
from promptcli.encoder.transforms.transform import Stage, Transform
from promptcli.errors import UsageError, WrongKindError, unknown
from promptcli.notes import note
from promptcli.recipe import MASK, SLOT, LeadingTexts, Recipe, split_spec

TUNED = "backbone."  #: prefix of a tuned backbone's tensors
LONGEST_TEXT = 1 << 20  #: most characters of a text that are tokenised


class Encoder(SentenceTransformerMethods, ScikitLearnMethods):
    """h(s) = T(sum_t w_t x_t), (x, w) read from Backbone(Prompt(s)).

    T are the recipe's transforms. A recipe of several prompts averages their sums before T; one
    with denoising subtracts h_hat, the vector of the template without a sentence, before T or after
    a stage of it.

    It can be used in place of a sentence-transformers model and in a scikit-learn pipeline. Its
    vectors never change, so several threads may call it.

    A recipe's prompt, ``self.prompt``, is a template around the sentence, or learned vectors. What
    sentence-transformers calls prompts, the arguments ``prompt`` and ``prompt_name`` of ``encode``
    and the property ``prompts``, are ``self.leading``: texts in front of a sentence, for queries
    and for documents, say.

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

    def __new__(cls, *args: Any, **_: Any) -> "Encoder":
        """Refuse the name of a model, which ``promptcli.load`` opens."""
        if args and not isinstance(args[0], Recipe):
            raise UsageError(
                f"Encoder({args[0]!r:.60}) is not how a model is opened; call promptcli.load"
            )
        return super().__new__(cls)

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
        #: Encoders of the single prompts whose vectors are averaged before the transforms; empty
        #: for one prompt.
        self.members = [
            Encoder(
                recipe.replace(prompt=prompt, transforms=()),
                backbone,
                tensors,
                graphs=graphs[number : number + 1],
            )
            for number, prompt in enumerate(prompts_of_mean(recipe.prompt))
        ]
        self.prompt: Prompt
        if self.members:
            self.prompt = self.members[0].prompt
            prompt_spec = mean_of([member.prompt.spec for member in self.members])
        else:
            self.prompt = build_prompt(recipe.prompt, backbone, tensors)
            prompt_spec = self.prompt.spec
        self.template = self.prompt.template
        self.pooling: Pooling = build_pooling(recipe.pooling, backbone, tensors)
        self.transforms: list[Transform] = build_transforms(recipe.transforms, backbone, tensors)
        self.denoising = Denoising.from_spec(recipe.denoise)
        _check_last_token(self.pooling, recipe.prompt, backbone)
        self.max_length = _longest_input(recipe.max_length, self.prompt, backbone)
        self._tuned = {name: tensor for name, tensor in tensors.items() if name.startswith(TUNED)}
        self.recipe = recipe.replace(
            prompt=prompt_spec,
            pooling=self.pooling.spec,
            transforms=tuple(transform.spec for transform in self.transforms),
        ).explicit()
        #: Names and functions that are applied in order to the pooled vector; "hidden" does
        #: nothing. With ``denoise`` NAME, h_hat is subtracted after the stage of that name.
        self.stages: list[Stage] = [("hidden", lambda vectors: vectors)]
        for transform in self.transforms:
            self.stages += transform.stages
        #: h_hat, the template's vector without a sentence, by sentence length; kept between calls.
        self.biases = Biases(
            self.template, backbone, self.prompt, self.pooling, self.stages, self.denoising
        )
        #: An exported model that computes the vectors, pooling included, in the backbone's place;
        #: None: torch computes them.
        self.graph: Graph | None = None
        if graphs and not self.members:
            self.graph = graphs[0]
        self._check()

    def _check(self) -> None:
        text_rule(self.recipe.text_rule)
        self.template.check_room(self.max_length)
        if self.backbone.words_only:
            _check_words_only(self.recipe, table=self.backbone.provenance.family == TABLE)
        masks = len(self.template.masks)
        slots = [slot for _, slot in self.pooling.needs.rows]
        if max([self.pooling.needs.slot or 0, *slots]) > masks:
            has = f"has no {MASK}"
            if masks:
                has = f"has only {masks}; give mask:1 to mask:{masks}"
            raise UsageError(
                f"pooling {self.pooling.spec!r} reads the mask, but template {self.template.text!r}"
                f" {has}"
            )
        place = self.denoising.place
        if place not in ("none", *(name for name, _ in self.stages)):
            raise UsageError(
                f"denoise {place!r} needs a transform with that stage, e.g. `transforms`"
                " topk-tokens:200"
            )
        if place != "none":  # refuses the template [X], which has no words to take the bias of
            bias_batch(self.template, [0], self.backbone, raw_positions=False)

    @check_arguments
    def save(self, folder: str | Path, *, force: bool = False) -> None:
        """Write the encoder into a folder that ``load`` and sentence-transformers open.

        See ``promptcli.save``.
        """
        from promptcli.models import save

        save(self, folder, force=force)

    save_pretrained = save

    @check_arguments
    def register(self, name: str, *, force: bool = False) -> None:
        """Keep the encoder under a name that ``promptcli.load`` and ``--model`` know.

        See ``promptcli.register``.
        """
        from promptcli.models.loading import register

        register(self, name, force=force)

    @check_arguments
    def push_to_hub(self, repo: str, *, private: bool = False, revision: str | None = None) -> Any:
        """Send the encoder to ``OWNER/NAME`` of the Hugging Face hub; see ``promptcli.push``."""
        from promptcli.models import push

        return push(self, repo, private=private, revision=revision)

    def to(self, device: str | torch.device) -> "Encoder":
        """Return a copy on ``device``, computed by torch, or the encoder itself if it is there.

        ``device`` is a name that torch knows, such as cuda:0, or auto.
        """
        target = torch.device(choose_device(str(device)))
        if target == self.device:
            return self
        return Encoder(self.recipe, self.backbone.to(target), self.tensors(), leading=self.leading)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the parts, weights included.

        A graph stays behind, and torch computes in its place.
        """
        return functools.partial(Encoder, leading=self.leading), (
            self.recipe,
            self.backbone,
            self.tensors(),
        )

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
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        **options: Any,
    ) -> np.ndarray: ...
    @check_arguments
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
        **others: None,
    ) -> np.ndarray | Tensor:
        """Return the vectors of n sentences, (n, d) float32, or of a single one, (d,).

        The arguments are those of sentence-transformers, so that an encoder can replace one.

        Args:
            sentences: n texts, or one.
            prompt_name: Put this text of ``prompts``, by its name, in front of every sentence.
            prompt: Put this text in front of every sentence, whatever ``prompt_name`` says.
            batch_size: Most sentences in a forward pass; by default a budget of tokens decides. The
                vectors do not depend on it.
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
        """
        if precision not in (None, "float32"):
            raise UsageError(
                f"precision {precision!r} is not allowed; give float32, then promptcli.quantize"
            )
        if batch_size is not None and batch_size < 1:
            raise UsageError(
                f"batch_size {batch_size} is not allowed; give at least 1, or leave it out"
            )
        texts = check_texts(sentences)
        encoder = self
        if device is not None:
            encoder = self.to(device)
        if prompt is None and prompt_name is not None:
            if prompt_name not in self.prompts:
                valid = self.prompts or ["none: this model has no prompts"]
                raise unknown("prompt_name", str(prompt_name), valid)
            prompt = self.prompts[prompt_name]
        if prompt is not None:
            encoder = encoder.prompted(prompt)
        advancing: AbstractContextManager[Progress] = contextlib.nullcontext(progress)
        if show_progress_bar:
            advancing = _progress_bar(len(texts), progress)
        with advancing as advance:
            encoded = encoder.encode_report(texts, progress=advance, most=batch_size)
        vectors: Any = encoded.vectors[:, :truncate_dim]
        if normalize_embeddings:
            vectors = unit(vectors)
        if convert_to_tensor or not convert_to_numpy:
            vectors = torch.from_numpy(vectors).to(self.device)
        if not convert_to_tensor and not convert_to_numpy:
            vectors = list(vectors)
        if isinstance(sentences, str):
            vectors = vectors[0]
        return vectors  # type: ignore[no-any-return]

    def encode_report(
        self, sentences: Sequence[str], *, progress: Progress = silent, most: int | None = None
    ) -> Encoded:
        """Return the vectors of n sentences and which of them were cut.

        A forward pass takes at most ``most`` sentences.
        """
        return encode_together([self], check_texts(sentences), progress=progress, most=most)[0]

    def encode_windows(
        self,
        windows: Iterable[Sequence[str]],
        *,
        progress: Progress = silent,
        most: int | None = None,
        fresh_biases: bool = False,
    ) -> Iterator[Encoded]:
        """Yield ``encode_report`` of each window of sentences.

        The next window is read while one is computed.

        ``fresh_biases``: the biases of denoising are computed again, so that the result does not
        depend, even in the last bits, on earlier calls.
        """
        encoded = encode_windows(
            [self], windows, progress=progress, most=most, fresh_biases=fresh_biases
        )
        return (window for (window,) in encoded)

    @property
    def device(self) -> torch.device:
        return self.backbone.device

    @functools.cached_property
    def width(self) -> int:
        """d, the width of the vectors."""
        return int(encode_together([self], ["."])[0].vectors.shape[1])

    def tensors(self) -> dict[str, Tensor]:
        """Return every learned or fitted tensor by name; the backbone's only if they were tuned.

        Of several prompts, which hold words alone, there are none.
        """
        owners: list[Prompt | Weights | Transform] = [
            self.prompt,
            self.pooling.weights,
            *self.transforms,
        ]
        tensors = dict[str, Tensor]()
        for owner in owners:
            tensors |= owner.tensors()
        return tensors | self._tuned

    @property
    def prompts(self) -> Mapping[str, str]:
        """Texts in front of a sentence, by name, as sentence-transformers calls them."""
        return self.leading.texts

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
        return self.prompted(text)

    def prompted(self, text: str) -> "Encoder":
        """Return the encoder that puts ``text`` in front of every sentence.

        Only a prompt of words takes one: it goes directly before [X], in place of the model's
        default text.
        """
        if self.recipe.text_rule == "lower":
            text = lower(text)
        before = self.leading.default_text + SLOT
        is_one_template = type(self.prompt) is Prompt and not self.members
        if not is_one_template or before not in self.recipe.prompt:
            raise UsageError(
                f"prompt {self.recipe.prompt!r} takes no text in front; write it into the sentences"
            )
        if SLOT in text or MASK in text:
            raise UsageError(f"prompt {text!r} holds {SLOT} or {MASK}; give the text alone")
        recipe = self.recipe.replace(prompt=self.recipe.prompt.replace(before, text + SLOT))
        if not self.leading.counted:
            recipe = recipe.replace(pooling=self._pooling_without(text))
        encoder = Encoder(
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

    def _pooling_without(self, text: str) -> str:
        """Return the pooling that leaves out the tokens of a text in front.

        Models ask for it by ``include_prompt`` false. Each of its weights ``w`` becomes
        ``from:k;w``, k the position of the first token after the text, which begins the template.
        """
        tokens = self.backbone.tokenizer
        states, _, weights = self.recipe.pooling.partition("/")
        plain = [re.sub("^from:[0-9]+;", "", spec) for spec in weights.split("+")]
        if not text:
            return f"{states}/" + "+".join(plain)
        blank = " " if tokens.start_blank else ""
        count = len(tokens.start) + len(tokens.encode([blank + text])[0])
        return f"{states}/" + "+".join(f"from:{count};{spec}" for spec in plain)

    def _check_graph_fits(self, other: "Encoder", text: str) -> None:
        """Refuse to let this encoder's graph compute another encoder that it does not fit.

        A graph has fixed pooling and mask positions, and computes no bias.
        """
        assert self.graph is not None
        backend = self.graph.provenance["backend"]
        if self.denoising.place != "none":
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

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The backbone's tokenizer, as transformers has it."""
        return self.backbone.tokenizer_of_transformers()

    def __repr__(self) -> str:
        """Return the backbone, how sentences are read, the width and the device."""
        recipe = self.recipe
        after = "".join(f", {transform}" for transform in recipe.transforms)
        if recipe.denoise != "none":
            after += f", denoise {recipe.denoise}"
        read = f"{recipe.prompt!r}, {recipe.pooling}{after}"
        return f"Encoder({recipe.backbone!r}, {read}, {self.width} dimensions, on {self.device})"

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the backbone came from, and the precision it runs in; JSON-ready."""
        graph = (self.members or [self])[0].graph
        provenance = vars(self.backbone.provenance)
        if graph is not None:
            return {**provenance, **graph.provenance}
        dtype = str(self.backbone.dtype).removeprefix("torch.")
        if self.backbone.tf32:
            dtype = TF32
        return {**provenance, "dtype": dtype}

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of recipe, weights and tokenizer: equal for the same encoder, whatever folder its
        backbone came from.

        Precision and graph, which change last digits, are in ``provenance``.
        """
        provenance = self.backbone.provenance
        digest = hashlib.sha256(self.recipe.replace(backbone="").to_json().encode())
        digest.update(f"{provenance.weights_sha256} {provenance.tokenizer_sha256}".encode())
        for name, tensor in sorted(self.tensors().items()):
            digest.update(name.encode() + tensor.cpu().numpy().tobytes())
        return digest.hexdigest()

    @property
    def input_key(self) -> tuple[object, ...]:
        """Equal for encoders whose model input is the same, so that one forward pass serves
        both.
        """
        rewriting = self.pooling.weights.rewriting
        learned = None
        if self.prompt.tensors():
            learned = id(self.prompt)
        text = (self.prompt.spec, self.recipe.period, self.recipe.text_rule)
        return (id(self.backbone), id(self.graph), *text, learned, self.max_length, rewriting)

    def inputs(self, sentences: Sequence[str]) -> Inputs:
        """Return the model inputs of n sentences.

        The mean of several prompts, which have one each, is refused.
        """
        if self.members:
            raise UsageError(
                f"this works with one template, not with the mean of {len(self.members)}"
            )
        ids = self.pooling.weights.token_ids(self.prepared(sentences), self.backbone)
        return self.template.splice(ids, self.max_length)

    def prepared(self, sentences: Sequence[str]) -> list[str]:
        """Return n sentences as they go to the tokenizer, see ``Template.prepared``.

        They are cut to ``LONGEST_TEXT`` first, since a tokenizer takes many times the memory of a
        text.
        """
        cut = []
        for text in sentences:
            if len(text) > LONGEST_TEXT:
                text = text.strip()[:LONGEST_TEXT]
            cut.append(text)
        rule = text_rule(self.recipe.text_rule)
        return self.template.prepared(self.prompt.sentences(cut), bool(self.recipe.period), rule)

    def run(self, batch: Batch, needs: Needs) -> HiddenStates:
        """Return what the backbone computes of a batch, with what the prompt has learned in it."""
        return self.backbone.run(self.prompt.attach(batch), needs)

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

        Its rows are word vectors, or those of the language model's head. Such an encoder needs no
        forward pass. None for all others.
        """
        if self.pooling.weights.averaged is None or self.prompt.tensors():
            return None
        if self.pooling.needs == Needs(static=True):
            return self.backbone.token_rows
        if self.pooling.needs == Needs(decoder=True):
            return self.backbone.head.rows
        return None


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
    leading: LeadingTexts = LeadingTexts(),  # noqa: B008 - frozen
) -> Encoder:
    """Make the encoder of a recipe.

    For device and dtype see ``load``. ``backbone`` is a loaded one to share.
    """
    if words_only(recipe.backbone):
        _check_words_only(recipe)  # before they are read
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
    return Encoder(recipe, backbone, tensors or {}, leading=leading)


def tuned_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a tuned backbone among an entry's tensors, under the backbone's own
    names.
    """
    return {
        name.removeprefix(TUNED): tensor
        for name, tensor in tensors.items()
        if name.startswith(TUNED)
    }


def _check_last_token(pooling: Pooling, prompt: str, backbone: Backbone) -> None:
    """Refuse the prompts of causal models, "[X] means in one word:", in any other model.

    Other models are not trained to continue a text: the state of their last token sums up nothing.
    The last token of a bare sentence may be read.
    """
    ends_with_sentence = prompt.split(SLOT)[1:] == [""]
    if pooling.needs.slot == LAST and not backbone.causal and not ends_with_sentence:
        causal = ", ".join(name for name, family in FAMILIES.items() if family.causal)
        raise WrongKindError(
            f"weights 'last-token' are for causal models ({causal}), not {backbone.name!r}: take"
            " `model` prompt"
        )


def _longest_input(wanted: int | None, prompt: Prompt, backbone: Backbone) -> int:
    """Return the longest input in tokens: the wanted one, or what the backbone has room for."""
    longest = backbone.max_tokens - prompt.length
    if wanted is None:
        wanted = longest
    if not 1 <= wanted <= longest:
        raise UsageError(
            f"max_length {wanted} is not allowed; {backbone.name!r} takes 1 to {longest}"
        )
    return wanted


def _check_words_only(recipe: Recipe, *, table: bool = False) -> None:
    """Refuse a recipe that needs more than averaged word vectors.

    A table of words may also have its own dense, normalize and truncate layers, and a prompt.
    """
    layers = tuple(
        spec
        for spec in recipe.transforms
        if table and split_spec(spec)[0] in ("dense", "normalize", "truncate")
    )
    allowed = Recipe(
        recipe.backbone, pooling="static/avg", max_length=recipe.max_length, transforms=layers
    )
    if table:
        allowed = allowed.replace(prompt=recipe.prompt, period=recipe.period)
    fields = recipe.explicit().to_dict()
    possible = allowed.explicit().to_dict()
    if fields != possible:
        shown = ", ".join(
            f"{key} {value!r}" for key, value in fields.items() if value != possible.get(key)
        )
        raise UsageError(
            f"{recipe.backbone!r} holds word vectors, which only `model` static-avg averages, not"
            f" {shown}"
        )
