"""Prompts: words, learned vectors, or learned keys and values around a sentence. A new one: one file, one line here."""

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import Batch
from promptcli.encoder.context import BuildContext
from promptcli.encoder.prompts.named import template_text
from promptcli.encoder.prompts.template import Template
from promptcli.extensions import Table
from promptcli.recipe import split_spec


class Prompt:
    """A template of words; the base of the learned prompts, which make and load their own numbers."""

    template: Template  #: the words around the sentence; may be empty
    spec: str  #: as a recipe writes it, in full
    length: int = 0  #: positions that it takes in front of the input (a deep prefix's p)
    shared: Sequence[int] = ()  #: tokens that begin every input, and that nothing learned changes

    def __init__(self, context: BuildContext) -> None:
        self.template = self.read_template(context)
        self.spec = self.template.text
        self.shared = self.template.prefix

    @classmethod
    def read_template(cls, context: BuildContext) -> Template:
        """Return the template that the spec's argument names or spells out."""
        return Template(template_text(context.argument or "", context.backbone.name), context.backbone.tokenizer)

    @classmethod
    def start(cls, context: BuildContext, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the initial values of the learned tensors by name; none for words."""
        return {}

    def attach(self, batch: Batch) -> Batch:
        """Return the batch with the learned numbers in it."""
        return batch

    def tensors(self) -> dict[str, Tensor]:
        """Return the learned tensors by name; none for words."""
        return {}

    def set_dropout(self, probability: float) -> Self:
        """Set the dropout of learned tensors, if the method has one; 0 unless training."""
        return self

    def nearest_words(self, count: int) -> list[tuple[str, list[str]]]:
        """Return each word whose vector is learned, with the ``count`` tokens nearest to that vector."""
        return []


#: Prompts that are more than words, by the name before the colon; anything else is a template of words.
PROMPTS: Table[type[Prompt]] = Table(
    "prompts",
    {
        "deep-prefix": "deep_prefix:DeepPrefix",
        "soft-template": "soft_template:SoftTemplate",
        "soft-template-lookup": "soft_template:LookedUpSoftTemplate",
        "token-prepending": "token_prepending:TokenPrepending",
        "contrastive": "contrastive:Contrastive",
    },
    __name__,
)
_MEAN, _BETWEEN = "mean:", " || "


def build_prompt(spec: str, backbone: Backbone, tensors: Mapping[str, Tensor]) -> Prompt:
    """Make the prompt that a recipe names."""
    kind, argument = _read_spec(spec)
    return kind(BuildContext(argument, backbone, tensors))


def start_numbers(spec: str, backbone: Backbone, generator: torch.Generator) -> dict[str, Tensor]:
    """Return the numbers that the prompt of a recipe starts learning from, by name; none for words."""
    kind, argument = _read_spec(spec)
    return kind.start(BuildContext(argument, backbone, {}), generator)


def _read_spec(spec: str) -> tuple[type[Prompt], str]:
    name, argument = split_spec(spec)
    return (PROMPTS[name], argument) if name in PROMPTS and argument is not None else (Prompt, spec)


def prompts_of_mean(spec: str) -> list[str]:
    """Return the prompts of ``mean:FIRST || SECOND || ...``, whose vectors are averaged (MetaEOL); none for another."""
    return spec.removeprefix(_MEAN).split(_BETWEEN) if spec.startswith(_MEAN) else []


def mean_of(specs: Sequence[str]) -> str:
    """Return the spec of the mean of some prompts."""
    return _MEAN + _BETWEEN.join(specs)
