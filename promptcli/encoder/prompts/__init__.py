"""Prompts: words, learned vectors, or learned keys and values around a sentence.

To add a prompt, add a file with a subclass of ``Prompt``, and a line to ``PROMPTS``.
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
    """Return the prompt that a recipe names."""
    kind, spec = _find_kind(spec)
    prompts = [build_prompt(each, backbone, {}) for each in spec.values.get("prompts", ())]
    return kind(BuildContext(spec, backbone, tensors, prompts))


def initial_tensors(
    spec: Spec, backbone: Backbone, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return the tensors that a recipe's prompt starts learning from, by name; empty for words."""
    kind, spec = _find_kind(spec)
    return kind.initial_tensors(BuildContext(spec, backbone, {}), generator)


def _find_kind(spec: Spec) -> tuple[type[Prompt], Spec]:
    """Return the class of a prompt, and the spec that it is built from."""
    if spec.name and spec.name in PROMPTS:
        # for another package's prompt, the grammar knows only its argument: that is the template
        if spec.name not in PROMPTS.built_in:
            spec = replace(spec, values={"text": spec.argument})
        return PROMPTS[spec.name], spec
    return Prompt, spec
