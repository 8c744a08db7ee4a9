"""Recipe: the description of an encoder as plain data, and the named recipes of the papers."""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from promptcli.errors import UsageError, unknown_name_error
from promptcli.grammar import (
    DENOISINGS,
    Parts,
    Spec,
    has_mask,
    has_words,
    parse_pooling,
    parse_prompt,
    parse_transform,
    split_name,
    with_states,
)
from promptcli.named_templates import MASK as MASK
from promptcli.named_templates import SLOT as SLOT
from promptcli.named_templates import last_part as last_part
from promptcli.settings import BUILT_IN, check_bounds, list_of_names, setting
from promptcli.storage.typed_documents import convert, parse_json, parse_toml


def pooling_for(prompt: str) -> str:
    """Return the default pooling of a prompt: the state at the mask, if it has one."""
    return "last/mask" if has_mask(prompt) else "first-last/avg"


@dataclass(frozen=True)
class Recipe:
    """One encoder, h(s) = T(sum_t w_t * x_t), as data: backbone, prompt, pooling, transforms.

    The ``help`` of a field is the help text of the command-line option of the same name.
    """

    backbone: str = setting(
        "mini-bert",
        "Pre-trained model: `mini-bert` (shipped), a local folder, a GGUF file, or a hub id;"
        " `glove:FILE`: word vectors, for static-avg.",
    )
    prompt: str = setting(
        SLOT,
        "Template with [X] for the sentence and [MASK] for the mask, or the name of a template."
        " Learned: deep-prefix:P, soft-template:TEXT. For causal models:"
        " token-prepending:START-EXIT:TEXT (or START-EXIT;sentences), kv:START-EXIT;BIAS:TEXT,"
        " `contrastive:LAYER:C:TEXT || AUXILIARY`. Also reversed:TEXT, and `mean:ONE || OTHER`"
        " for the mean of several prompts.",
    )
    period: bool | None = setting(
        None,
        "Append '.' to a sentence that does not end in . ? \" ' (PromptBERT's evaluation); another"
        " script gets its own end mark. Default: on if the template has words.",
    )
    text_rule: str | None = setting(
        None,
        'Rule for the characters of a sentence, applied after the period: `prompteol` (" becomes'
        ' \', a final ? becomes a full stop), `full-stop` (" ." is appended unless punctuation ends'
        " the sentence), `lower`, `as-typed` (white space around it stays). Default: none.",
    )
    pooling: str = setting(
        "",
        "STATES/WEIGHTS, e.g. `last/mask`, `first-last/ditto:1-10`. States: static, last,"
        " first-last, last-two, layer-K, attention, attention:A-B, values, values:A-B, mlm-head."
        " Weights: avg, max, sqrt, weighted, cls, mask, last-token, last-and-mean, unbiased, tfidf,"
        " ditto, slot-attention, content-avg, content-max, cnn. Default: last/mask if the prompt"
        " has a mask, else first-last/avg.",
    )
    transforms: tuple[str, ...] = setting(
        (),
        "Transform of the vectors, in order; repeatable: `topk-tokens:200`, `whitening:256`,"
        " `all-but-the-top:3`, `spectral:16-112`, embed-filter, flow, cls-pooler, projection,"
        " dense, normalize, `truncate:64`.",
    )
    denoise: str = setting(
        "none",
        "Template denoising h - h_hat: none, or its place: hidden, head, logits.",
        choices=DENOISINGS,
    )
    max_length: int | None = setting(
        None,
        "Longest input in tokens, special tokens and template included. Default: all positions of"
        " the backbone.",
        min=1,
    )
    #: shorter widths to which its vectors may be cut (Matryoshka training), largest first
    dims: tuple[int, ...] = ()
    #: whether the pooling was derived from the prompt; ``replace`` then derives it again
    pooling_by_prompt: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", tuple(list_of_names(self.transforms)))
        check_bounds(self)
        if not self.pooling:
            object.__setattr__(self, "pooling", pooling_for(self.prompt))
            object.__setattr__(self, "pooling_by_prompt", True)
        object.__setattr__(self, "pooling", with_states(self.pooling))
        object.__setattr__(self, "dims", tuple(self.dims))

    @functools.cached_property
    def parts(self) -> Parts:
        """Prompt, pooling, transforms and denoising, parsed.

        Raises:
            UsageError: A text is not in the grammar (docs/grammar.md).
        """
        return Parts(
            parse_prompt(self.prompt),
            parse_pooling(self.pooling),
            tuple(map(parse_transform, self.transforms)),
            Spec(self.denoise, *split_name(self.denoise)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values, without a ``text_rule`` or ``dims`` not set."""
        values = dataclasses.asdict(self)
        del values["pooling_by_prompt"]
        values["transforms"] = list(self.transforms)
        values["dims"] = list(self.dims)
        for name in ("text_rule", "dims"):
            if not values[name]:
                # so that a recipe keeps the fingerprint that it had before these fields existed
                del values[name]
        return values

    def to_json(self) -> str:
        """Return one line of JSON, from which ``from_text`` makes an equal recipe."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Recipe":
        """Make a recipe from plain values."""
        names = [item.name for item in dataclasses.fields(cls) if item.init]
        for name in values:
            if name not in names:
                raise UsageError(f"the recipe: {unknown_name_error('key', name, names)}")
        try:
            return convert(values, cls)
        except ValueError as error:
            raise UsageError(f"the recipe: {error}") from None

    @classmethod
    def from_text(cls, text: str) -> "Recipe":
        """Make a recipe from JSON or TOML text."""
        try:
            values = (parse_json if text.lstrip().startswith("{") else parse_toml)(text)
        except ValueError as error:
            raise UsageError(f"the recipe is neither JSON nor TOML: {error}") from None
        return cls.from_dict(values)

    def replace(self, **changes: str | int | Sequence[str] | None) -> "Recipe":
        """Return a copy with ``changes``; a default pooling follows a new prompt."""
        if self.pooling_by_prompt:
            changes = {"pooling": "", **changes}
        return dataclasses.replace(self, **dict[str, Any](changes))

    def truncate(self, dim: int) -> "Recipe":
        """Return the recipe cut to ``dim`` dimensions, a width for which the model was trained."""
        if dim < 1:
            raise UsageError(f"must be at least 1, got {dim}", parameter="dim")
        if dim not in self.dims:
            reason = "this model has only its full width"
            if self.dims:
                reason = f"this model was trained for the widths {', '.join(map(str, self.dims))}"
            raise UsageError(
                f"{reason}; train a model of {dim} dimensions by `promptcli train METHOD --set"
                f" dims={dim}`",
                parameter="dim",
            )
        return self.replace(transforms=(*self.transforms, f"truncate:{dim}"), dims=())

    def resolve(self) -> "Recipe":
        """Return the recipe with ``period`` decided: on if the prompt has words.

        [X] and a deep prefix have no words.
        """
        if self.period is None:
            return self.replace(period=has_words(self.prompt))
        return self


#: Names that models give to the prompts of queries, and of documents.
ROLES = (("query", "search_query"), ("document", "passage", "corpus", "search_document"))


@dataclass(frozen=True)
class LeadingTexts:
    """Texts that a model puts in front of sentences, by name, e.g. "query": "query: ".

    sentence-transformers calls them the model's prompts.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None  #: name of the text in front of a sentence without a role
    #: whether the pooling includes the text's tokens (``include_prompt``); stored by this name
    counted: bool = True

    @property
    def default_text(self) -> str:
        """The text with the default name; "" if there is no default."""
        return self.texts.get(self.default or "", "")

    def name_for(self, role: str) -> str | None:
        """Return the name under which a role's text is stored, or None.

        A name with a text is preferred to one with an empty text.
        """
        # a role that is not in the table is a name of the model
        spellings = next((names for names in ROLES if role in names), (role,))
        stored = [name for name in spellings if name in self.texts]
        return max(stored, key=lambda name: bool(self.texts[name]), default=None)

    def with_default(self, text: str) -> "LeadingTexts":
        """Return the texts with this one as the default; a text without a name is named "given"."""
        name = next((name for name in self.texts if self.texts[name] == text), "given")
        return dataclasses.replace(self, texts={**self.texts, name: text}, default=name)


@dataclass(frozen=True)
class ModelChoice:
    """A model that is not loaded yet, changes of its recipe, and how to compute it."""

    #: a value that ``load`` takes, e.g. a name, a folder or a hub id; None: the default model
    model: Any = None
    changes: Mapping[str, Any] = field(default_factory=dict)  #: field of the recipe -> value
    backbone: str = BUILT_IN.backbone  #: of recipes that do not name one
    device: str = "auto"
    #: None: float32 for scores, ``auto`` for encoding in bulk
    dtype: str | None = None
    backend: str = "torch"
    dim: int | None = None  #: number of dimensions to keep, for a model trained for it; None: all
    threads: int | None = None  #: number of CPU threads, if the user set it; a run records it


def is_chosen(model: object) -> bool:
    """Return whether the user chose a model, and not only a device."""
    if isinstance(model, ModelChoice):
        return (model.model, model.dim) != (None, None) or bool(model.changes)
    return model is not None


_MANUAL = f'This sentence : "{SLOT}" means {MASK} .'

#: The encoders of the papers' tables that need no training, for masked models or any model.
MASKED_RECIPES: dict[str, Recipe] = {
    "static-avg": Recipe(pooling="static/avg"),
    "last-avg": Recipe(pooling="last/avg"),
    "first-last-avg": Recipe(pooling="first-last/avg"),
    "cls": Recipe(pooling="last/cls"),
    "static-unbiased": Recipe(pooling="static/unbiased"),
    "static-ditto": Recipe(pooling="static/ditto"),
    "last-ditto": Recipe(pooling="last/ditto"),
    "first-last-ditto": Recipe(pooling="first-last/ditto"),
    "values-avg": Recipe(pooling="values/avg"),
    "values-ditto": Recipe(pooling="values/ditto"),
    "first-last-tfidf": Recipe(pooling="first-last/tfidf"),
    "whitening": Recipe(transforms=("whitening",)),
    "flow": Recipe(transforms=("flow",)),
    "prompt": Recipe(prompt=_MANUAL, pooling="last/mask"),
    "prompt-denoised": Recipe(prompt=_MANUAL, pooling="last/mask", denoise="hidden"),
    "prompt-attention": Recipe(prompt=_MANUAL, pooling="attention/mask"),
    "prompt-topk": Recipe(prompt=_MANUAL, pooling="last/mask", transforms=("topk-tokens:200",)),
    "prompt-topk-denoised": Recipe(
        prompt=_MANUAL, pooling="last/mask", transforms=("topk-tokens:200",), denoise="hidden"
    ),
}

_EOL = f'his sentence : "{SLOT}" means in one word:"'
_KNOWLEDGE = (
    "The essence of a sentence is often captured by its main subjects and actions, while"
    " descriptive terms provide additional but less central details. With this in mind , t"
)
_COMPRESS = f"[Context]: {SLOT} Compress the [Context] in one word:"
_ECHO = f"Rewrite the following sentence: {SLOT}\nThe rewritten sentence: {SLOT}"
_META = ("category", "opinion", "rating", "emotion", "paraphrase", "synonym", "fact", "entity")


def _at_last_token(prompt: str) -> Recipe:
    return Recipe(prompt=prompt, text_rule="prompteol", pooling="last/last-token")


_ONE_PASS: dict[str, Recipe] = {
    "prompteol": _at_last_token(f"T{_EOL}"),
    "prompteol-icl": _at_last_token("prompteol-icl"),
    "pretended-cot": _at_last_token(f"After thinking step by step , t{_EOL}"),
    "knowledge": _at_last_token(f"{_KNOWLEDGE}{_EOL}"),
}


def _contrast(prompt: str) -> Recipe:
    return _at_last_token(f"contrastive:{prompt} || irrelevant").replace(
        pooling="layer--2/last-token"
    )


_PREPENDED: dict[str, Recipe] = {  # the paper pools layer -2
    f"{name}+tp": recipe.replace(
        prompt=f"token-prepending:{recipe.prompt}", pooling="layer--2/last-token"
    )
    for name, recipe in _ONE_PASS.items()
}


def _mean_of(*prompts: str) -> str:
    return "mean:" + " || ".join(prompts)


def _add_reversed(recipe: Recipe) -> Recipe:
    return recipe.replace(prompt=_mean_of(recipe.prompt, f"reversed:{recipe.prompt}"))


#: Recipes of causal models.
CAUSAL_RECIPES: dict[str, Recipe] = {
    **_ONE_PASS,
    **_PREPENDED,
    "cot+knowledge": _at_last_token(
        _mean_of(_ONE_PASS["pretended-cot"].prompt, _ONE_PASS["knowledge"].prompt)
    ),
    "metaeol": _at_last_token(_mean_of(*(f"metaeol-{task}" for task in _META))),
    "prompteol+rev": _add_reversed(_ONE_PASS["prompteol"]),
    "knowledge+rev": _add_reversed(_ONE_PASS["knowledge"]),
    "echo": Recipe(prompt=_ECHO, pooling="last/content-avg"),
    "htp": Recipe(prompt="token-prepending:;sentences:[X]", pooling="layer--2/content-avg"),
    "kv-embedding": _at_last_token(f"kv:{_COMPRESS}").replace(pooling="last/last-and-mean"),
    "aligned-wva": _ONE_PASS["prompteol"].replace(pooling="attention/last-token"),
    "contrastive-prompting": _contrast(_ONE_PASS["prompteol"].prompt),
    "cp+tp": _contrast(_PREPENDED["prompteol+tp"].prompt),
    "cp+knowledge": _contrast(_ONE_PASS["knowledge"].prompt),
}

RECIPES: dict[str, Recipe] = {**MASKED_RECIPES, **CAUSAL_RECIPES}

#: Recipes shown in lists; the guides describe the others.
LISTED = (
    *MASKED_RECIPES,
    *("prompteol", "pretended-cot", "knowledge", "cot+knowledge", "metaeol"),
)
#: Recipes that ``eval`` scores by default. Eq. 3 of PromptBERT is left out: it scores far below the
#: state at the mask.
COMPARED = tuple(name for name in RECIPES if not name.startswith("prompt-topk"))
