"""Prompt: what stands around a sentence: words, learned vectors, learned keys and values. A new one is a line here.

A prompt is a template of words; a soft template's words are replaced by learned vectors (OptiPrompt, SCPCSE); a deep
prefix adds learned keys and values to every layer (DCPCSE). Knows nothing of pooling.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import Batch
from promptcli.encoder.prompts.deep_prefix import DeepPrefix
from promptcli.encoder.prompts.named import template_text
from promptcli.encoder.prompts.soft_template import SoftTemplate
from promptcli.encoder.prompts.template import Template
from promptcli.encoder.recipe import SLOT, split_spec


class Learned(Protocol):
    """The learned part of a prompt."""

    def attach(self, batch: Batch) -> Batch:
        """Return the batch with the learned numbers in it."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return the learned numbers by name."""
        ...


@dataclass(frozen=True)
class Prompt:
    """One choice of prompt.

    Attributes:
        spec: As a recipe writes it, in full.
        template: The words around the sentence; empty for a deep prefix.
        learned: What is learned of it, or None.
        length: Positions that it takes in front of the input (a deep prefix's p).
    """

    spec: str
    template: Template
    learned: Learned | None = None
    length: int = 0

    def attach(self, batch: Batch) -> Batch:
        """Return the batch with the learned numbers in it."""
        return self.learned.attach(batch) if self.learned else batch

    def tensors(self) -> dict[str, Tensor]:
        """Return the learned numbers by name; none for a template of words."""
        return self.learned.tensors() if self.learned else {}


def _deep_prefix(argument: str, backbone: Backbone, tensors: Mapping[str, Tensor]) -> Prompt:
    prefix = DeepPrefix.of(argument, backbone, tensors)
    return Prompt(f"deep-prefix:{prefix.length}", Template(SLOT, backbone.tokenizer), prefix, prefix.length)


def _soft_template(argument: str, backbone: Backbone, tensors: Mapping[str, Tensor]) -> Prompt:
    template = Template(template_text(argument), backbone.tokenizer)
    return Prompt(f"soft-template:{template.text}", template, SoftTemplate.of(template, backbone, tensors))


def _looked_up(argument: str, backbone: Backbone, tensors: Mapping[str, Tensor]) -> Prompt:
    template = Template(template_text(argument), backbone.tokenizer)
    learned = SoftTemplate.of(template, backbone, tensors, lookup=True)
    return Prompt(f"soft-template-lookup:{template.text}", template, learned)


#: Prompts that are learned, by the name before the colon; anything else is a template of words.
PROMPTS: dict[str, Callable[[str, Backbone, Mapping[str, Tensor]], Prompt]] = {
    "deep-prefix": _deep_prefix,
    "soft-template": _soft_template,
    "soft-template-lookup": _looked_up,
}


def build_prompt(spec: str, backbone: Backbone, tensors: Mapping[str, Tensor]) -> Prompt:
    """Make the prompt that a recipe names.

    Raises:
        UsageError: No template, an argument that is not allowed, or learned numbers that are not there.
    """
    name, argument = split_spec(spec)
    if name in PROMPTS and argument is not None:
        return PROMPTS[name](argument, backbone, tensors)
    template = Template(template_text(spec), backbone.tokenizer)
    return Prompt(template.text, template)
