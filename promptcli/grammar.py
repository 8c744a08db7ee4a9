"""The grammar of recipes, e.g. of ``first-last/ditto:1-10``; docs/grammar.md describes it.

``parse_prompt``, ``parse_pooling`` and ``parse_transform`` parse a text; ``str`` of their result is
the text again. The tables say which argument a name takes. A name that is in no table may be an
extension's, so its argument is any text. Whether a name exists, and whether a number fits the
backbone, is checked when the encoder is built.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from promptcli.errors import UsageError
from promptcli.named_templates import MASK, SLOT, named_templates


class Pair(NamedTuple):
    """Two whole numbers, ``A-B``: layer and head, both from 1; a range of layers; or the numbers of
    axes at both ends.
    """

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


@dataclass(frozen=True)
class Spec:
    """``NAME`` or ``NAME:ARGUMENT``, parsed; ``str`` returns the text again.

    ``spec["head"]`` is the head in the argument, or None if it is left out.
    """

    text: str
    name: str = field(compare=False)
    argument: str | None = field(default=None, compare=False)
    values: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        return self.text

    def __getitem__(self, value: str) -> Any:
        return self.values[value]


class _Form(NamedTuple):
    """The form of a name's argument."""

    pattern: str  #: its named groups are the values
    allowed_texts: str  #: for messages


_WHOLE = "[0-9]{1,18}"
COUNT = "[1-9][0-9]{0,17}"  #: a whole number above 0
_DECIMAL = rf"{_WHOLE}(?:\.{_WHOLE})?"
_PAIR = f"{_WHOLE}-{_WHOLE}"
_NO_SETTINGS = "(?!(?:[0-9]+-[0-9]+)?[;:])"  #: a template does not begin with settings
_SEPARATOR = " || "  #: of the prompts in a prompt
_INNER_PROMPT = r"(?:(?! \|\| ).)*"


def _parse_pair(text: str) -> Pair:
    return Pair(*map(int, text.split("-")))


def _parse_prompts(text: str) -> tuple[Spec, ...]:
    """Parse the prompts inside a prompt."""
    prompts = tuple(map(parse_prompt, text.split(_SEPARATOR)))
    for prompt in prompts:
        if prompt.name == "mean":
            raise UsageError(f"prompt '{prompt}' is a mean, which cannot be part of another prompt")
    return prompts


#: Group of a pattern -> the parser of its value; other values stay texts.
_VALUE_PARSERS: dict[str, Callable[[str], Any]] = {
    "head": _parse_pair,
    "layers": _parse_pair,
    "ends": _parse_pair,
    "length": int,
    "layer": int,
    "first": int,
    "slot": int,
    "count": int,
    "bias": float,
    "factor": float,
    "alpha": float,
    "exponent": float,
    "columns": lambda text: None if text == "all" else int(text),
    "prompts": _parse_prompts,
    "weights": lambda text: parse_weights(text),
}


def _parse(forms: Mapping[str, _Form], text: str, name: str, argument: str | None) -> Spec:
    """Return the spec of a text, whose name and argument are already separated."""
    if name not in forms:
        return Spec(text, name, argument, {"text": text})
    form = forms[name]
    match = re.fullmatch(form.pattern, argument or "", re.DOTALL)
    if match is None:
        raise UsageError(f"{text!r} is not allowed; give {form.allowed_texts}")
    values = {}
    for key, value in match.groupdict().items():
        values[key] = None if value is None else _VALUE_PARSERS.get(key, str)(value)
    return Spec(text, name, argument, values)


def decimal_text(value: float) -> str:
    """Return the shortest text without an exponent that is read as the same number."""
    return format(Decimal(repr(value)), "f").removesuffix(".0")


def split_name(text: str) -> tuple[str, str | None]:
    """Split ``NAME:ARGUMENT``; without a colon, the argument is None."""
    name, colon, argument = text.partition(":")
    return name, argument if colon else None


# -- prompts

_TEMPLATE = "(?P<text>.*)"
_PROMPTS = {
    "deep-prefix": _Form(f"(?P<length>{_WHOLE})", "deep-prefix:P with a prefix length, e.g. 16"),
    "soft-template": _Form(_TEMPLATE, "soft-template:TEMPLATE"),
    "soft-template-lookup": _Form(_TEMPLATE, "soft-template-lookup:TEMPLATE"),
    # layers START <= l < EXIT, from 0; a block is a sentence or a number of tokens
    "token-prepending": _Form(
        rf"(?:(?=[0-9;])(?P<layers>{_PAIR})?(?:;(?P<blocks>sentences|{COUNT}))?:)?"
        rf"{_NO_SETTINGS}(?P<text>.*)",
        "token-prepending:TEMPLATE, or START-EXIT and perhaps ;sentences or ;TOKENS in front of the"
        " template, e.g. token-prepending:1-7;sentences:[X]",
    ),
    "kv": _Form(
        rf"(?:(?P<layers>{_PAIR});(?P<bias>-?{_DECIMAL}):)?{_NO_SETTINGS}(?P<text>.*)",
        "kv:TEMPLATE or kv:START-EXIT;BIAS:TEMPLATE",
    ),
    "contrastive": _Form(
        rf"(?:(?P<layer>{_WHOLE}):(?P<factor>{_DECIMAL})(?P<norm>:norm)?:)?"
        rf"(?P<prompts>{_INNER_PROMPT} \|\| {_INNER_PROMPT})",
        "TEMPLATE || AUXILIARY, perhaps after LAYER:C, e.g. contrastive:4:0.5:prompteol ||"
        " irrelevant",
    ),
    "reversed": _Form(rf"(?P<prompts>{_INNER_PROMPT})", "reversed:PROMPT"),
    "mean": _Form("(?P<prompts>.*)", "mean:PROMPT || PROMPT"),
}


def parse_prompt(text: str) -> Spec:
    """Parse a recipe's prompt: a template, the name of one, or ``NAME:ARGUMENT``.

    Example:
        >>> parse_prompt("kv:2-9;0.5:prompteol")["bias"]
        0.5
    """
    name, argument = split_name(text)
    return _parse(_PROMPTS, text, "" if argument is None else name, argument)


def has_words(prompt: str) -> bool:
    """Return whether a prompt adds words around the sentence."""
    return prompt != SLOT and parse_prompt(prompt).name != "deep-prefix"


def has_mask(prompt: str) -> bool:
    """Return whether every template in a prompt has a mask."""
    spec = parse_prompt(prompt)
    if "prompts" in spec.values:
        return all(has_mask(str(inner)) for inner in spec["prompts"])
    template: str = spec.values.get("text", SLOT)
    name = template.rpartition(":")[2]
    if SLOT not in template and name in named_templates():
        template = named_templates()[name].text
    return MASK in template


# -- poolings

_STATES = {
    "first-last": _Form("(?P<first>[01])?", "first-last, first-last:0 or first-last:1"),
    "layer": _Form(
        f"(?P<layer>-?{_WHOLE})", "layer-K with a whole number, or from the end layer--1"
    ),
    "attention": _Form(f"(?P<layers>{_PAIR})?", "attention, or attention:A-B for layers"),
    "values": _Form(f"(?P<layers>{_PAIR})?", "values, or values:A-B for layers"),
}
_WEIGHTS = {
    "mask": _Form(f"(?P<slot>{COUNT})?", "mask, or mask:K for the K-th mask, from 1"),
    "ditto": _Form(f"(?P<head>{_PAIR})?", "ditto:LAYER-HEAD, both numbers from 1"),
    "slot-attention": _Form(
        f"(?P<head>{_PAIR})?(?:;(?P<alpha>{_DECIMAL}))?",
        "slot-attention, slot-attention:LAYER-HEAD or slot-attention:LAYER-HEAD;ALPHA",
    ),
    "from": _Form(f"(?P<first>{_WHOLE});(?P<weights>.*)", "from:K;WEIGHTS"),
}


@dataclass(frozen=True)
class PoolingSpec:
    """``STATES/WEIGHTS``; of ``STATES/WEIGHTS+WEIGHTS``, the vectors are put side by side."""

    states: Spec
    weights: tuple[Spec, ...]

    def __str__(self) -> str:
        return f"{self.states}/{'+'.join(map(str, self.weights))}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the weights; for ``from:K;NAME`` it is ``NAME``."""
        return tuple(_without_start(weights).name for weights in self.weights)

    @property
    def head(self) -> Pair | None:
        """The attention head, LAYER-HEAD, of the first weights, if they name one."""
        head: Pair | None = self.weights[0].values.get("head")
        return head

    @property
    def lacks_head(self) -> bool:
        """Whether it is Ditto pooling without a head."""
        return self.names == ("ditto",) and self.head is None

    def counted_from(self, first: int) -> "PoolingSpec":
        """Return the pooling of the tokens from ``first`` on, instead of its own start; 0 pools all
        tokens.
        """
        weights = tuple(map(_without_start, self.weights))
        if first:
            weights = tuple(parse_weights(f"from:{first};{inner}") for inner in weights)
        return PoolingSpec(self.states, weights)


def _without_start(weights: Spec) -> Spec:
    return weights["weights"] if weights.name == "from" else weights


def parse_pooling(text: str) -> PoolingSpec:
    """Parse a recipe's pooling.

    Example:
        >>> parse_pooling("layer--2/avg+max").states["layer"]
        -2
    """
    states, slash, weights = text.partition("/")
    if not slash:
        raise UsageError(
            f"pooling {text!r} is not STATES/WEIGHTS; e.g. last/avg, first-last/ditto:1-10"
        )
    return PoolingSpec(parse_states(states), tuple(map(parse_weights, weights.split("+"))))


def parse_ditto(text: str) -> PoolingSpec | None:
    """Parse ``[STATES/]ditto:LAYER-HEAD``; return None for any other text."""
    try:
        pooling = parse_pooling(with_states(text))
    except UsageError:
        return None
    names = [weights.name for weights in pooling.weights]
    return pooling if names == ["ditto"] and pooling.head is not None else None


def with_states(pooling: str) -> str:
    """Return the text of a pooling with the paper's states if it is ``ditto:LAYER-HEAD`` alone."""
    return f"first-last/{pooling}" if pooling.startswith("ditto:") else pooling


def parse_states(text: str) -> Spec:
    """Parse the states, in front of the slash of a pooling."""
    name, argument = split_name(text)
    if text.startswith("layer-"):
        name, _, argument = text.partition("-")
    return _parse(_STATES, text, name, argument)


def parse_weights(text: str) -> Spec:
    """Parse one of the weights, behind the slash of a pooling."""
    name, argument = split_name(text)
    if argument is None and ";" in text:  # slot-attention;ALPHA
        name = text.partition(";")[0]
        argument = text.removeprefix(name)
    return _parse(_WEIGHTS, text, name, argument)


# -- transforms

_TRANSFORMS = {
    name: _Form(f"(?P<count>{COUNT})?", f"a whole number above 0, e.g. {name}:200")
    for name in ("topk-tokens", "all-but-the-top", "truncate")
}
_TRANSFORMS |= {
    name: _Form(
        f"(?P<ends>{_PAIR})?",
        f"how many axes to drop at the top and the bottom, e.g. {name}:16-64",
    )
    for name in ("spectral", "embed-filter")
}
_TRANSFORMS |= {
    "whitening": _Form(
        rf"(?:(?P<columns>all|{COUNT})"
        r"(?::(?P<exponent>[01]|[01]\.0{1,18}|0?\.[0-9]{1,18}))?)?",
        "a whole number above 0, e.g. whitening:200, and perhaps an exponent from 0 to 1,"
        " whitening:all:0.25",
    ),
    # the number distinguishes several dense layers
    "dense": _Form("(?P<number>[^:]*):(?P<activation>.*)", "dense:NUMBER:ACTIVATION"),
}


def parse_transform(text: str) -> Spec:
    """Parse one of a recipe's transforms.

    Example:
        >>> parse_transform("whitening:256")["columns"]
        256
    """
    return _parse(_TRANSFORMS, text, *split_name(text))


# -- denoising

#: Places at which a template's bias h_hat is subtracted from h.
PLACES = ("hidden", "head", "logits")
#: Values of a recipe's ``denoise``. With ``code``, the positions of the bias count from 0 in every
#: family, as in the published code; the paper uses the positions of real inputs, which start at 2
#: in RoBERTa.
DENOISINGS = ("none", *PLACES, *(f"{place}:code" for place in PLACES))


@dataclass(frozen=True)
class Parts:
    """The parsed parts of a recipe."""

    prompt: Spec
    pooling: PoolingSpec
    transforms: tuple[Spec, ...]
    denoise: Spec
