"""The grammar of recipes: a text such as ``first-last/ditto:1-10`` to its parts, and back again.

``parse_prompt``, ``parse_pooling``, ``parse_transform`` and ``parse_denoise`` read a text;
``str`` of what they return prints it. No other file takes such a text apart. A name that is not
known here has a plain argument: a row of ``extensions`` may have added it. Whether a name exists,
and whether a number fits the backbone, is checked where the part is built. docs/grammar.md shows
the rules.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal

from promptcli.errors import UsageError, unknown
from promptcli.named_templates import SLOT, mask_in

_WHOLE = "[0-9]{1,18}"
_DECIMAL = rf"{_WHOLE}(?:\.{_WHOLE})?"
_PAIR = f"({_WHOLE})-({_WHOLE})"
#: numbers that no setting takes and that Python itself would refuse to read
_LONG_NUMBER = re.compile("[0-9]{19}")
_LONG_ARGUMENT = re.compile("[a-z-]+:[0-9-]*[0-9]{19}")


class Spec(ABC):
    """One part of a recipe, as data; ``str`` prints it as a recipe writes it."""

    @property
    @abstractmethod
    def argument(self) -> str | None:
        """The text after the name and the colon; None if the name is alone."""


class NamedSpec(Spec):
    """``NAME`` or ``NAME:ARGUMENT``."""

    name: str

    def __str__(self) -> str:
        return self.name if self.argument is None else f"{self.name}:{self.argument}"


@dataclass(frozen=True)
class AttentionHead:
    """One head: ``LAYER-HEAD``, both numbers from 1."""

    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.layer}-{self.head}"


@dataclass(frozen=True)
class LayerRange:
    """Layers by two numbers, ``FIRST-LAST``; the part that has them says from where they count."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


# -- prompts


class PromptSpec(Spec):
    """What is put around a sentence."""

    @property
    def has_words(self) -> bool:
        """Whether it puts words around the sentence."""
        return True

    @property
    @abstractmethod
    def templates(self) -> tuple[str, ...]:
        """The templates in it, or their names."""

    @property
    def has_mask(self) -> bool:
        """Whether every template in it has a mask."""
        return all(map(mask_in, self.templates))


@dataclass(frozen=True)
class TemplateSpec(PromptSpec):
    """A template, or its name; also the ``NAME:ARGUMENT`` of a prompt that a package adds."""

    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def has_words(self) -> bool:
        return self.text != SLOT

    @property
    def argument(self) -> str | None:
        return self.text

    @property
    def templates(self) -> tuple[str, ...]:
        if SLOT in self.text:
            return (self.text,)
        return (self.text.rpartition(":")[2],)

    @property
    def added(self) -> "AddedSpec | None":
        """The text as NAME:ARGUMENT; None if it has no colon."""
        name, argument = split_name(self.text)
        return None if argument is None else AddedSpec(name, argument)


class NamedPromptSpec(NamedSpec, PromptSpec):
    """A prompt that is more than words: ``NAME:ARGUMENT``."""


class NamedTemplateSpec(NamedPromptSpec):
    """``NAME:TEMPLATE``: a prompt that is one template, and more."""

    text: str  #: the template

    @property
    def argument(self) -> str:
        return self.text

    @property
    def templates(self) -> tuple[str, ...]:
        return (self.text,)


@dataclass(frozen=True)
class AddedSpec(NamedTemplateSpec):
    """``NAME:TEXT``: a prompt that a package adds."""

    name: str
    text: str


@dataclass(frozen=True)
class DeepPrefixSpec(NamedPromptSpec):
    """``deep-prefix:P``: P learned keys and values in front of every layer's own."""

    name = "deep-prefix"
    length: int

    @property
    def has_words(self) -> bool:
        return False

    @property
    def argument(self) -> str:
        return str(self.length)

    @property
    def templates(self) -> tuple[str, ...]:
        return (SLOT,)

    @classmethod
    def parse(cls, argument: str) -> "DeepPrefixSpec":
        if not re.fullmatch(_WHOLE, argument):
            raise UsageError(
                f"prefix length {argument!r} is not allowed; give a whole number, e.g."
                " deep-prefix:16"
            )
        return cls(int(argument))


@dataclass(frozen=True)
class SoftTemplateSpec(NamedTemplateSpec):
    """``soft-template:TEMPLATE``: a template whose words are learned vectors."""

    name = "soft-template"
    text: str


@dataclass(frozen=True)
class SoftTemplateLookupSpec(SoftTemplateSpec):
    """``soft-template-lookup:TEMPLATE``: the same, where OptiPrompt's published code puts them."""

    name = "soft-template-lookup"


@dataclass(frozen=True)
class Blocks:
    """How ``token-prepending`` cuts a text into blocks: ``sentences``, or K tokens each."""

    size: int | None  #: tokens; None: sentences

    def __str__(self) -> str:
        return "sentences" if self.size is None else str(self.size)


@dataclass(frozen=True)
class TokenPrependingSpec(NamedTemplateSpec):
    """``token-prepending:[START-EXIT][;BLOCKS]:TEMPLATE``, layers START <= l < EXIT, from 0."""

    name = "token-prepending"
    layers: LayerRange | None
    blocks: Blocks | None  #: None: the whole text is one, with one placeholder
    text: str

    @property
    def argument(self) -> str:
        settings = "" if self.layers is None else str(self.layers)
        if self.blocks is not None:
            settings += f";{self.blocks}"
        return f"{settings}:{self.text}" if settings else self.text

    @classmethod
    def parse(cls, argument: str) -> "TokenPrependingSpec":
        settings, template = _split_settings(argument, f"(?={_WHOLE}-|;)(?:{_PAIR})?(?:;([^:]*))?")
        if settings is None:
            return cls(None, None, template)
        first, last, cut = settings.groups()
        layers = None if first is None else LayerRange(int(first), int(last))
        return cls(layers, None if cut is None else _parse_blocks(cut), template)


@dataclass(frozen=True)
class Rerouted:
    """Where and how strongly ``kv`` lets tokens attend to the last one: ``START-EXIT;BIAS``."""

    layers: LayerRange  #: START <= l < EXIT, from 0
    bias: float

    def __str__(self) -> str:
        return f"{self.layers};{_number(self.bias)}"


@dataclass(frozen=True)
class KVSpec(NamedTemplateSpec):
    """``kv:[START-EXIT;BIAS:]TEMPLATE``."""

    name = "kv"
    rerouted: Rerouted | None
    text: str

    @property
    def argument(self) -> str:
        return self.text if self.rerouted is None else f"{self.rerouted}:{self.text}"

    @classmethod
    def parse(cls, argument: str) -> "KVSpec":
        rerouted, template = _split_settings(argument, f"{_PAIR};(-?{_DECIMAL})")
        if rerouted is None:
            return cls(None, template)
        layers = LayerRange(int(rerouted[1]), int(rerouted[2]))
        return cls(Rerouted(layers, float(rerouted[3])), template)


@dataclass(frozen=True)
class Subtraction:
    """Where and how ``contrastive`` subtracts: ``LAYER:C`` or ``LAYER:C:norm``."""

    layer: int  #: from 0
    factor: float  #: C
    norm: bool  #: keep the length

    def __str__(self) -> str:
        norm = ":norm" if self.norm else ""
        return f"{self.layer}:{_number(self.factor)}{norm}"


@dataclass(frozen=True)
class ContrastiveSpec(NamedPromptSpec):
    """``contrastive:[LAYER:C[:norm]:]PROMPT || AUXILIARY``."""

    name = "contrastive"
    subtraction: Subtraction | None
    main: PromptSpec
    auxiliary: PromptSpec

    @property
    def argument(self) -> str:
        prompts = f"{self.main}{_BETWEEN}{self.auxiliary}"
        return prompts if self.subtraction is None else f"{self.subtraction}:{prompts}"

    @property
    def templates(self) -> tuple[str, ...]:
        return self.main.templates + self.auxiliary.templates

    @classmethod
    def parse(cls, argument: str) -> "ContrastiveSpec":
        match = re.fullmatch(
            rf"(?:({_WHOLE}):({_DECIMAL})(:norm)?:)?(.*?) \|\| (.*)", argument, re.DOTALL
        )
        if match is None:
            example = "contrastive:4:0.5:prompteol || irrelevant"
            raise UsageError(
                f"prompt 'contrastive:{argument}' is not LAYER:C:TEMPLATE || AUXILIARY: {example}"
            )
        subtraction = None
        if match[1] is not None:
            subtraction = Subtraction(int(match[1]), float(match[2]), match[3] is not None)
        return cls(subtraction, _parse_single(match[4]), _parse_single(match[5]))


@dataclass(frozen=True)
class ReversedSpec(NamedPromptSpec):
    """``reversed:PROMPT``: the words of the sentence in reverse order."""

    name = "reversed"
    inner: PromptSpec

    @property
    def argument(self) -> str:
        return str(self.inner)

    @property
    def templates(self) -> tuple[str, ...]:
        return self.inner.templates

    @classmethod
    def parse(cls, argument: str) -> "ReversedSpec":
        return cls(_parse_single(argument))


@dataclass(frozen=True)
class MeanSpec(NamedPromptSpec):
    """``mean:PROMPT || PROMPT || ...``: prompts whose vectors are averaged."""

    name = "mean"
    prompts: tuple[PromptSpec, ...]

    @property
    def argument(self) -> str:
        return _BETWEEN.join(map(str, self.prompts))

    @property
    def templates(self) -> tuple[str, ...]:
        texts: list[str] = []
        for prompt in self.prompts:
            texts += prompt.templates
        return tuple(texts)

    @classmethod
    def parse(cls, argument: str) -> "MeanSpec":
        return cls(tuple(map(_parse_single, argument.split(_BETWEEN))))


_BETWEEN = " || "
_PROMPTS: dict[str, Callable[[str], PromptSpec]] = {
    DeepPrefixSpec.name: DeepPrefixSpec.parse,
    SoftTemplateSpec.name: SoftTemplateSpec,
    SoftTemplateLookupSpec.name: SoftTemplateLookupSpec,
    TokenPrependingSpec.name: TokenPrependingSpec.parse,
    KVSpec.name: KVSpec.parse,
    ContrastiveSpec.name: ContrastiveSpec.parse,
    ReversedSpec.name: ReversedSpec.parse,
    MeanSpec.name: MeanSpec.parse,
}


def parse_prompt(text: str) -> PromptSpec:
    """Parse a recipe's prompt.

    Example:
        >>> parse_prompt("kv:2-9;0.5:prompteol")
        KVSpec(rerouted=Rerouted(layers=LayerRange(first=2, last=9), bias=0.5), text='prompteol')
    """
    name, argument = split_name(text)
    if argument is None or name not in _PROMPTS:
        return TemplateSpec(text)
    return _PROMPTS[name](argument)


def _parse_blocks(text: str) -> Blocks:
    if text == "sentences":
        return Blocks(None)
    if not re.fullmatch(_WHOLE, text) or int(text) == 0:
        raise UsageError(
            f"blocks {text!r} of prompt 'token-prepending' are not known; give sentences, or a"
            " number of tokens, e.g. token-prepending:1-7;sentences:[X]"
        )
    return Blocks(int(text))


def _split_settings(argument: str, pattern: str) -> tuple[re.Match[str] | None, str]:
    """Return the settings before a template, with a colon between them, and the template.

    None if the text has no settings of this pattern.
    """
    settings = re.match(f"{pattern}:", argument)
    if settings is None:
        return None, argument
    return settings, argument[settings.end() :]


def _parse_single(text: str) -> PromptSpec:
    """Parse a prompt that is part of another."""
    spec = parse_prompt(text)
    if isinstance(spec, MeanSpec):
        raise UsageError(f"prompt {text!r} is a mean, which cannot be part of another prompt")
    return spec


# -- poolings


class StatesSpec(NamedSpec):
    """Which states of the backbone a pooling reads."""


@dataclass(frozen=True)
class PlainStatesSpec(StatesSpec):
    """``NAME`` or ``NAME:TEXT``."""

    name: str
    text: str | None = None

    @property
    def argument(self) -> str | None:
        return self.text


@dataclass(frozen=True)
class FirstLastSpec(StatesSpec):
    """``first-last[:K]``: the mean of hidden states K, 0 or 1, and the last."""

    name = "first-last"
    first: int | None = None

    @property
    def argument(self) -> str | None:
        return None if self.first is None else str(self.first)

    @classmethod
    def parse(cls, argument: str | None) -> "FirstLastSpec":
        if argument not in (None, "0", "1"):
            raise UsageError(
                f"states 'first-last:{argument}' are not known; valid: first-last, first-last:0,"
                " first-last:1"
            )
        return cls(None if argument is None else int(argument))


@dataclass(frozen=True)
class LayerSpec(StatesSpec):
    """``layer-K``: 0 the embedding layer, L the last one; from the end ``layer--1``."""

    name = "layer"
    layer: int

    def __str__(self) -> str:
        return f"{self.name}-{self.layer}"

    @property
    def argument(self) -> str:
        return str(self.layer)

    @classmethod
    def parse(cls, argument: str | None) -> "LayerSpec":
        if argument is None or not re.fullmatch(f"-?{_WHOLE}", argument):
            raise UsageError(
                f"states 'layer-{argument or ''}' do not exist; valid: layer-K with a whole number,"
                " or from the end layer--1"
            )
        return cls(int(argument))


@dataclass(frozen=True)
class AttentionSpec(StatesSpec):
    """``attention[:A-B]``: the attention's output, summed over the layers A to B, from 1."""

    name = "attention"
    layers: LayerRange | None = None

    @property
    def argument(self) -> str | None:
        return None if self.layers is None else str(self.layers)

    @classmethod
    def parse(cls, argument: str | None) -> "AttentionSpec":
        if argument is None:
            return cls()
        match = re.fullmatch(_PAIR, argument)
        if match is None:
            raise UsageError(
                f"states '{cls.name}:{argument}' do not exist; give {cls.name}, or"
                f" {cls.name}:A-B for the layers A to B"
            )
        return cls(LayerRange(int(match[1]), int(match[2])))


@dataclass(frozen=True)
class ValuesSpec(AttentionSpec):
    """``values[:A-B]``: the values of the attention, summed over the layers A to B, from 1."""

    name = "values"


_STATES: dict[str, Callable[[str | None], StatesSpec]] = {
    FirstLastSpec.name: FirstLastSpec.parse,
    LayerSpec.name: LayerSpec.parse,
    AttentionSpec.name: AttentionSpec.parse,
    ValuesSpec.name: ValuesSpec.parse,
}


class WeightsSpec(NamedSpec):
    """How a pooling weighs the states of the tokens."""


@dataclass(frozen=True)
class PlainWeightsSpec(WeightsSpec):
    """``NAME`` or ``NAME:TEXT``."""

    name: str
    text: str | None = None

    @property
    def argument(self) -> str | None:
        return self.text


@dataclass(frozen=True)
class MaskSpec(WeightsSpec):
    """``mask[:K]``: the K-th mask of the template, from 1."""

    name = "mask"
    slot: int = 1

    @property
    def argument(self) -> str | None:
        return None if self.slot == 1 else str(self.slot)

    @classmethod
    def parse(cls, argument: str | None) -> "MaskSpec":
        slot = argument or "1"
        if not re.fullmatch(_WHOLE, slot) or int(slot) < 1:
            raise UsageError(
                f"weights 'mask:{argument}' are not known; give mask, or mask:K for the K-th mask,"
                " from 1"
            )
        return cls(int(slot))


@dataclass(frozen=True)
class DittoSpec(WeightsSpec):
    """``ditto[:LAYER-HEAD]``."""

    name = "ditto"
    head: AttentionHead | None = None

    @property
    def argument(self) -> str | None:
        return None if self.head is None else str(self.head)

    @classmethod
    def parse(cls, argument: str | None) -> "DittoSpec":
        if not argument:
            return cls()
        match = re.fullmatch(_PAIR, argument)
        if match is None:
            raise UsageError(
                f"head {argument!r} does not exist; give ditto:LAYER-HEAD, both numbers from 1"
            )
        return cls(AttentionHead(int(match[1]), int(match[2])))


@dataclass(frozen=True)
class SlotAttentionSpec(WeightsSpec):
    """``slot-attention[:LAYER-HEAD][;ALPHA]``."""

    name = "slot-attention"
    head: AttentionHead | None = None
    alpha: float | None = None

    def __str__(self) -> str:
        head = "" if self.head is None else f":{self.head}"
        alpha = "" if self.alpha is None else f";{_number(self.alpha)}"
        return f"{self.name}{head}{alpha}"

    @property
    def argument(self) -> str | None:
        return str(self).removeprefix(self.name).removeprefix(":") or None

    @classmethod
    def parse(cls, argument: str | None) -> "SlotAttentionSpec":
        match = re.fullmatch(f"(?:{_PAIR})?(?:;({_DECIMAL}))?", argument or "")
        if match is None:
            sign = "" if (argument or "").startswith(";") else ":"
            raise UsageError(
                f"weights 'slot-attention{sign}{argument}' are not known; give slot-attention,"
                " slot-attention:LAYER-HEAD or slot-attention:LAYER-HEAD;ALPHA"
            )
        head = alpha = None
        if match[1] is not None:
            head = AttentionHead(int(match[1]), int(match[2]))
        if match[3] is not None:
            alpha = float(match[3])
        return cls(head, alpha)


@dataclass(frozen=True)
class FromSpec(WeightsSpec):
    """``from:K;WEIGHTS``: other weights on the tokens from the K-th on, from 0."""

    name = "from"
    first: int
    weights: WeightsSpec

    @property
    def argument(self) -> str:
        return f"{self.first};{self.weights}"

    @classmethod
    def parse(cls, argument: str | None) -> WeightsSpec:
        match = re.fullmatch(f"({_WHOLE});(.*)", argument or "", re.DOTALL)
        if match is None:
            return PlainWeightsSpec(cls.name, argument)
        return cls(int(match[1]), parse_weights(match[2]))


_WEIGHTS: dict[str, Callable[[str | None], WeightsSpec]] = {
    MaskSpec.name: MaskSpec.parse,
    DittoSpec.name: DittoSpec.parse,
    SlotAttentionSpec.name: SlotAttentionSpec.parse,
    FromSpec.name: FromSpec.parse,
}


@dataclass(frozen=True)
class PoolingSpec:
    """``STATES/WEIGHTS``, or ``STATES/WEIGHTS+WEIGHTS``: several vectors side by side."""

    states: StatesSpec
    weights: tuple[WeightsSpec, ...]

    def __str__(self) -> str:
        return f"{self.states}/{'+'.join(map(str, self.weights))}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the weights, those on a part of the tokens included."""
        return tuple(_without_from(weights).name for weights in self.weights)

    @property
    def averages_words(self) -> bool:
        """Whether it is ``static/avg``, the mean of word vectors."""
        return str(self) == "static/avg"

    @property
    def head(self) -> AttentionHead | None:
        """The one attention head that its weights read; None if they read none, or several."""
        weights = self.weights[0]
        if isinstance(weights, DittoSpec | SlotAttentionSpec):
            return weights.head
        return None

    @property
    def lacks_head(self) -> bool:
        """Whether it is Ditto's and names no head."""
        return self.weights == (DittoSpec(),)

    def counted_from(self, first: int) -> "PoolingSpec":
        """Return the pooling of the tokens from the K-th on, whichever it began at before; 0 counts
        all.
        """
        plain = tuple(map(_without_from, self.weights))
        if not first:
            return PoolingSpec(self.states, plain)
        return PoolingSpec(self.states, tuple(FromSpec(first, weights) for weights in plain))


def _without_from(weights: WeightsSpec) -> WeightsSpec:
    return weights.weights if isinstance(weights, FromSpec) else weights


def parse_pooling(text: str) -> PoolingSpec:
    """Parse a recipe's pooling.

    Example:
        >>> parse_pooling("layer--2/avg+max").states
        LayerSpec(layer=-2)
    """
    states, slash, weights = text.partition("/")
    if not slash:
        raise UsageError(
            f"pooling {text!r} is not STATES/WEIGHTS; e.g. last/avg, first-last/ditto:1-10"
        )
    return PoolingSpec(parse_states(states), tuple(map(parse_weights, weights.split("+"))))


def parse_ditto(text: str) -> PoolingSpec | None:
    """Parse ``[STATES/]ditto:LAYER-HEAD``; None for any other text."""
    try:
        pooling = parse_pooling(in_full(text))
    except UsageError:
        return None
    is_ditto = pooling.names == (DittoSpec.name,) and pooling.head is not None
    return pooling if is_ditto and isinstance(pooling.weights[0], DittoSpec) else None


def in_full(pooling: str) -> str:
    """Return the text of a pooling with its states: ``ditto:1-10`` alone has those of the paper."""
    if pooling.startswith(f"{DittoSpec.name}:"):
        return f"{FirstLastSpec.name}/{pooling}"
    return pooling


def parse_states(text: str) -> StatesSpec:
    """Parse the states, before the slash of a pooling."""
    name, argument = split_name(text)
    if text.startswith(f"{LayerSpec.name}-"):
        name, _, argument = text.partition("-")
    if name in _STATES:
        return _STATES[name](argument)
    return PlainStatesSpec(name, argument)


def parse_weights(text: str) -> WeightsSpec:
    """Parse one of the weights, behind the slash of a pooling."""
    name, argument = split_name(text)
    if argument is None and ";" in text:  # slot-attention;ALPHA
        name, _, rest = text.partition(";")
        argument = f";{rest}"
    if name in _WEIGHTS:
        return _WEIGHTS[name](argument)
    return PlainWeightsSpec(name, argument)


# -- transforms


class TransformSpec(NamedSpec):
    """What is done to a vector after pooling."""


@dataclass(frozen=True)
class PlainTransformSpec(TransformSpec):
    """``NAME`` or ``NAME:TEXT``."""

    name: str
    text: str | None = None

    @property
    def argument(self) -> str | None:
        return self.text


@dataclass(frozen=True)
class CountSpec(TransformSpec):
    """``NAME[:K]``, K a whole number above 0: ``topk-tokens``, ``all-but-the-top``,
    ``truncate``.
    """

    name: str
    count: int | None = None

    @property
    def argument(self) -> str | None:
        return None if self.count is None else str(self.count)

    @classmethod
    def parse(cls, name: str, argument: str | None) -> "CountSpec":
        if argument is None:
            return cls(name)
        if not re.fullmatch(_WHOLE, argument) or int(argument) < 1:
            raise UsageError(
                f"'{name}:{argument}' is not allowed; give a whole number, e.g. {name}:200"
            )
        return cls(name, int(argument))


@dataclass(frozen=True)
class EndsSpec(TransformSpec):
    """``NAME[:A-B]``, axes to drop at the top and at the bottom: ``spectral``,
    ``embed-filter``.
    """

    name: str
    ends: tuple[int, int] | None = None

    @property
    def argument(self) -> str | None:
        return None if self.ends is None else f"{self.ends[0]}-{self.ends[1]}"

    @classmethod
    def parse(cls, name: str, argument: str | None) -> "EndsSpec":
        if argument is None:
            return cls(name)
        match = re.fullmatch(_PAIR, argument)
        if match is None:
            raise UsageError(
                f"'{name}:{argument}' is not allowed; give how many axes to drop at the"
                f" top and the bottom, e.g. {name}:16-64"
            )
        return cls(name, (int(match[1]), int(match[2])))


@dataclass(frozen=True)
class WhiteningSpec(TransformSpec):
    """``whitening[:K[:A]]``: the first K columns, or ``all``, and the exponent A, from 0 to 1."""

    name = "whitening"
    columns: int | None = None
    exponent: float | None = None

    @property
    def argument(self) -> str | None:
        columns = "all" if self.columns is None else str(self.columns)
        if self.exponent is not None:
            return f"{columns}:{_number(self.exponent)}"
        return None if self.columns is None else columns

    @classmethod
    def parse(cls, name: str, argument: str | None) -> "WhiteningSpec":
        match = re.fullmatch(
            rf"({_WHOLE}|all)(?::({_DECIMAL}|\.{_WHOLE}))?", "all" if argument is None else argument
        )
        if match is None or match[1].startswith("0") or float(match[2] or 0) > 1:
            raise UsageError(
                f"'{name}:{argument}' is not allowed; give a whole number, e.g."
                f" {name}:200, and perhaps an exponent from 0 to 1, {name}:all:0.25"
            )
        columns = exponent = None
        if match[1] != "all":
            columns = int(match[1])
        if match[2] is not None:
            exponent = float(match[2])
        return cls(columns, exponent)


@dataclass(frozen=True)
class DenseSpec(TransformSpec):
    """``dense:NUMBER:ACTIVATION``; the number tells several of them apart."""

    name = "dense"
    number: str
    activation: str

    @property
    def argument(self) -> str:
        return f"{self.number}:{self.activation}"

    @classmethod
    def parse(cls, name: str, argument: str | None) -> "DenseSpec":
        number, _, activation = (argument or "").partition(":")
        return cls(number, activation)


_TRANSFORMS: dict[str, Callable[[str, str | None], TransformSpec]] = {
    "topk-tokens": CountSpec.parse,
    "all-but-the-top": CountSpec.parse,
    "truncate": CountSpec.parse,
    "spectral": EndsSpec.parse,
    "embed-filter": EndsSpec.parse,
    WhiteningSpec.name: WhiteningSpec.parse,
    DenseSpec.name: DenseSpec.parse,
}


def parse_transform(text: str) -> TransformSpec:
    """Parse one of a recipe's transforms.

    Example:
        >>> parse_transform("whitening:256")
        WhiteningSpec(columns=256, exponent=None)
    """
    name, argument = split_name(text)
    parse = _TRANSFORMS.get(name, PlainTransformSpec)
    return parse(name, argument)


# -- denoising

#: Where h - h_hat may be taken: before or after a stage of the transforms.
PLACES = ("none", "hidden", "head", "logits")


@dataclass(frozen=True)
class DenoiseSpec:
    """``PLACE`` or ``PLACE:code``."""

    place: str  #: one of ``PLACES``
    #: Bias positions are counted from 0 in every family, which is the published code's slip for
    #: RoBERTa (its real inputs start at 2); the paper says the same positions, the default.
    raw_positions: bool = False

    def __str__(self) -> str:
        return f"{self.place}:code" if self.raw_positions else self.place

    def at(self, place: str) -> "DenoiseSpec":
        """Return the same denoising at another place."""
        return replace(self, place=place)


def parse_denoise(text: str) -> DenoiseSpec:
    """Parse a recipe's denoising."""
    place, option = split_name(text)
    if place not in PLACES or option not in (None, "code"):
        raise unknown("denoise", text, [*PLACES, *(f"{place}:code" for place in PLACES[1:])])
    return DenoiseSpec(place, option == "code")


# -- all of them


@dataclass(frozen=True)
class Parts:
    """The parts of a recipe that a text describes."""

    prompt: PromptSpec
    pooling: PoolingSpec
    transforms: tuple[TransformSpec, ...]
    denoise: DenoiseSpec


def check_numbers(prompt: str, *others: str) -> None:
    """Refuse numbers that no setting takes, and that Python itself would refuse to read."""
    if _LONG_NUMBER.search(" ".join(others)) or _LONG_ARGUMENT.match(prompt):
        raise UsageError(
            "a number of the recipe has more than 18 digits; see `promptcli models list --recipes`"
        )


def split_name(text: str) -> tuple[str, str | None]:
    """Split ``name:argument``; the argument is None without a colon."""
    name, colon, argument = text.partition(":")
    return name, argument if colon else None


def _number(value: float) -> str:
    """Return the shortest text that is read as the number again, without an exponent."""
    text = format(Decimal(repr(value)), "f")
    return text.removesuffix(".0")
