"""The base of prompts: a template of words around a sentence."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from promptcli.backbones.states import Batch
from promptcli.encoder.context import BuildContext
from promptcli.encoder.template import Template
from promptcli.named_templates import template_text
from promptcli.notes import note


class Prompt:
    """A template of words, and the base of the learned prompts."""

    template: Template  #: the words around the sentence; may be empty
    spec: str  #: as a recipe writes it, in full
    length: int = 0  #: of a deep prefix, p: keys and values before those of the input's tokens
    shared: Sequence[int] = ()  #: tokens that begin every input, and that nothing learned changes
    #: why a single-pass graph (ONNX, OpenVINO) cannot express it; None: it can
    beyond_graphs: str | None = None

    def __init__(self, context: BuildContext) -> None:
        self.template = self.read_template(context)
        if self.template.copies > 1 and not context.backbone.causal:
            note("a template with two [X] is for causal models; no paper has tried it on others")
        self.spec = self.template.text
        self.shared = self.template.prefix

    @classmethod
    def read_template(cls, context: BuildContext) -> Template:
        """Return the template that the spec names or spells out."""
        text = template_text(context.spec["text"], context.backbone.name)
        return Template(text, context.backbone.tokenizer)

    @classmethod
    def start(cls, context: BuildContext, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the initial values of the learned tensors by name; empty for words."""
        return {}

    def sentences(self, sentences: Sequence[str]) -> list[str]:
        """Return n sentences changed for the prompt; most prompts leave them unchanged."""
        return list(sentences)

    def attach(self, batch: Batch) -> Batch:
        """Return the batch with the learned tensors added."""
        return batch

    def tensors(self) -> dict[str, Tensor]:
        """Return the learned tensors by name; empty for words."""
        return {}

    def set_dropout(self, probability: float) -> Self:
        """Set the dropout of learned tensors, if the method has one; 0 unless training."""
        return self

    def nearest_words(self, count: int) -> list[tuple[str, list[str]]]:
        """Return each word whose vector is learned, with the ``count`` tokens nearest to that
        vector.
        """
        return []
