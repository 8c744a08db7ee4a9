"""The grammar of recipes: a text such as ``first-last/ditto:1-10`` to its parts, and back again.

``parse_prompt``, ``parse_pooling``, ``parse_transform`` and ``parse_denoise`` read a text; ``str``
of their result is that text. The tables say which argument a name takes. A name outside the tables
has a plain argument, since an extension may have added it. Whether a name exists, and whether a
number fits the backbone, is checked when the part is built. docs/grammar.md shows the rules.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from promptcli.errors import UsageError, unknown
from promptcli.named_templates import SLOT, mask_in


class Pair(NamedTuple):
    """Two whole numbers, ``A-B``: LAYER-HEAD from 1, a range of layers, or axes at both ends."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


@dataclass(frozen=True)
class Spec:
    """One part of a recipe, ``NAME`` or ``NAME:ARGUMENT``; ``str`` prints it as a recipe writes it.

    ``spec["head"]`` is the head in the argument; None if it is left out.
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
    """The form of a name's argument; its groups are the values."""

    pattern: str
    allowed: str  #: what messages say is allowed


_WHOLE = "[0-9]{1,18}"
COUNT = "[1-9][0-9]{0,17}"  #: a whole number above 0
_DECIMAL = rf"{_WHOLE}(?:\.{_WHOLE})?"
_PAIR = f"{_WHOLE}-{_WHOLE}"
_NO_SETTINGS = "(?!(?:[0-9]+-[0-9]+)?[;:])"  #: a template does not begin with settings
_BETWEEN = " || "
_NOT_BETWEEN = r"(?:(?! \|\| ).)*"


def _parse_pair(text: str) -> Pair:
    return Pair(*map(int, text.split("-")))


def _parse_inner(text: str) -> tuple[Spec, ...]:
    """Parse the prompts that a prompt consists of."""
    prompts = tuple(map(parse_prompt, text.split(_BETWEEN)))
    for prompt in prompts:
        if prompt.name == "mean":
            raise UsageError(f"prompt '{prompt}' is a mean, which cannot be part of another prompt")
    return prompts


#: Group -> parser of its value; other values are texts.
_READ: dict[str, Callable[[str], Any]] = {
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
    "prompts": _parse_inner,
    "weights": lambda text: parse_weights(text),
}


def _parse(forms: Mapping[str, _Form], text: str, name: str, argument: str | None) -> Spec:
    """Parse a text, given its name and argument."""
    if name not in forms:
        return Spec(text, name, argument, {"text": text})
    form = forms[name]
    match = re.fullmatch(form.pattern, argument or "", re.DOTALL)
    if match is None:
        raise UsageError(f"{text!r} is not allowed; give {form.allowed}")
    values = {}
    for key, found in match.groupdict().items():
        values[key] = None if found is None else _READ.get(key, str)(found)
    return Spec(text, name, argument, values)


def decimal_text(value: float) -> str:
    """Return the shortest text that is read as the number again, without an exponent."""
    return format(Decimal(repr(value)), "f").removesuffix(".0")


def split_name(text: str) -> tuple[str, str | None]:
    """Split ``name:argument``; the argument is None without a colon."""
    name, colon, argument = text.partition(":")
    return name, argument if colon else None


# -- prompts

_TEMPLATE = "(?P<text>.*)"
_PROMPTS = {
    "deep-prefix": _Form(f"(?P<length>{_WHOLE})", "deep-prefix:P with a prefix length, e.g. 16"),
    "soft-template": _Form(_TEMPLATE, "soft-template:TEMPLATE"),
    "soft-template-lookup": _Form(_TEMPLATE, "soft-template-lookup:TEMPLATE"),
    # layers START <= l < EXIT, from 0; blocks of a number of tokens, or sentences
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
        rf"(?P<prompts>{_NOT_BETWEEN} \|\| {_NOT_BETWEEN})",
        "TEMPLATE || AUXILIARY, perhaps after LAYER:C, e.g. contrastive:4:0.5:prompteol ||"
        " irrelevant",
    ),
    "reversed": _Form(rf"(?P<prompts>{_NOT_BETWEEN})", "reversed:PROMPT"),
    "mean": _Form("(?P<prompts>.*)", "mean:PROMPT || PROMPT"),
}


def parse_prompt(text: str) -> Spec:
    """Parse a recipe's prompt: a template, its name, or ``NAME:ARGUMENT``.

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
    return mask_in(template if SLOT in template else template.rpartition(":")[2])


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
    """``STATES/WEIGHTS``, or ``STATES/WEIGHTS+WEIGHTS``: several vectors side by side."""

    states: Spec
    weights: tuple[Spec, ...]

    def __str__(self) -> str:
        return f"{self.states}/{'+'.join(map(str, self.weights))}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the weights, those on a part of the tokens included."""
        return tuple(_of_all_tokens(weights).name for weights in self.weights)

    @property
    def head(self) -> Pair | None:
        """The attention head, LAYER-HEAD, that its first weights read, if they name one."""
        head: Pair | None = self.weights[0].values.get("head")
        return head

    @property
    def lacks_head(self) -> bool:
        """Whether it is Ditto pooling without a head."""
        return self.names == ("ditto",) and self.head is None

    def counted_from(self, first: int) -> "PoolingSpec":
        """Return the pooling of the tokens from the K-th on, replacing any earlier start; 0 pools
        all.
        """
        weights = tuple(map(_of_all_tokens, self.weights))
        if first:
            weights = tuple(parse_weights(f"from:{first};{each}") for each in weights)
        return PoolingSpec(self.states, weights)


def _of_all_tokens(weights: Spec) -> Spec:
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
    """Parse ``[STATES/]ditto:LAYER-HEAD``; None for any other text."""
    try:
        pooling = parse_pooling(in_full(text))
    except UsageError:
        return None
    names = [weights.name for weights in pooling.weights]
    return pooling if names == ["ditto"] and pooling.head is not None else None


def in_full(pooling: str) -> str:
    """Return the text of a pooling with its states: ``ditto:1-10`` alone gets the paper's
    states.
    """
    return f"first-last/{pooling}" if pooling.startswith("ditto:") else pooling


def parse_states(text: str) -> Spec:
    """Parse the states, before the slash of a pooling."""
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
    name: _Form(f"(?P<count>{COUNT})?", f"a whole number, e.g. {name}:200")
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
        "a whole number, e.g. whitening:200, and perhaps an exponent from 0 to 1,"
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

#: Where h - h_hat may be taken: before or after a stage of the transforms.
PLACES = ("none", "hidden", "head", "logits")


def parse_denoise(text: str) -> Spec:
    """Parse a recipe's denoising, ``PLACE`` or ``PLACE:code``.

    With ``code`` the bias's positions are counted from 0 in every family, which is the published
    code's slip for RoBERTa (its real inputs start at 2); the paper says the same positions.
    """
    allowed = [*PLACES, *(f"{place}:code" for place in PLACES)]
    if text not in allowed:
        raise unknown("denoise", text, allowed)
    return Spec(text, *split_name(text))


@dataclass(frozen=True)
class Parts:
    """The parts of a recipe that a text describes."""

    prompt: Spec
    pooling: PoolingSpec
    transforms: tuple[Spec, ...]
    denoise: Spec
