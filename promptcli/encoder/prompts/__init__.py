"""Prompts: words, learned vectors, or learned keys and values around a sentence.

To add a prompt, add a file, its import and a line here.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.encoder.components import BuildContext, Prompt
from promptcli.encoder.prompts.causal import Contrastive, KVEmbedding, ReversedWords
from promptcli.encoder.prompts.deep_prefix import DeepPrefix
from promptcli.encoder.prompts.soft_template import LookedUpSoftTemplate, SoftTemplate
from promptcli.encoder.prompts.token_prepending import TokenPrepending
from promptcli.extensions import Table
from promptcli.grammar import Spec

#: Prompts that are more than words, by name; anything else is a template of words.
PROMPTS: Table[type[Prompt]] = Table(
    "prompts",
    {
        "deep-prefix": DeepPrefix,
        "soft-template": SoftTemplate,
        "soft-template-lookup": LookedUpSoftTemplate,
        "token-prepending": TokenPrepending,
        "contrastive": Contrastive,
        "reversed": ReversedWords,
        "kv": KVEmbedding,
    },
)


def build_prompt(spec: Spec, backbone: Backbone, tensors: Mapping[str, Tensor]) -> Prompt:
    """Make the prompt that a recipe names."""
    kind, spec = _row_of(spec)
    inner = [build_prompt(part, backbone, {}) for part in spec.values.get("prompts", ())]
    return kind(BuildContext(spec, backbone, tensors, inner))


def initial_tensors(
    spec: Spec, backbone: Backbone, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return the tensors that the prompt of a recipe starts learning from, by name.

    A prompt of words has none.
    """
    kind, spec = _row_of(spec)
    return kind.start(BuildContext(spec, backbone, {}), generator)


def _row_of(spec: Spec) -> tuple[type[Prompt], Spec]:
    """Return the class of a prompt, and the spec that it is built from."""
    if spec.name and spec.name in PROMPTS:
        if spec.name not in PROMPTS.own:  # a package's: the text behind its name is the template
            spec = replace(spec, values={"text": spec.argument})
        return PROMPTS[spec.name], spec
    return Prompt, spec
