"""Prompts: words, learned vectors, or learned keys and values around a sentence.

A new one is a file, its import and a row here.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.encoder.context import BuildContext
from promptcli.encoder.prompts.contrastive import Contrastive
from promptcli.encoder.prompts.deep_prefix import DeepPrefix
from promptcli.encoder.prompts.kv_embedding import KVEmbedding
from promptcli.encoder.prompts.prompt import Prompt
from promptcli.encoder.prompts.reversed_words import ReversedWords
from promptcli.encoder.prompts.soft_template import LookedUpSoftTemplate, SoftTemplate
from promptcli.encoder.prompts.token_prepending import TokenPrepending
from promptcli.extensions import Table
from promptcli.recipe import split_spec

#: Prompts that are more than words, by the name before the colon; anything else is a template of
#: words.
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
_MEAN = "mean:"
_BETWEEN = " || "


def build_prompt(spec: str, backbone: Backbone, tensors: Mapping[str, Tensor]) -> Prompt:
    """Make the prompt that a recipe names."""

    def build_part(part: str) -> Prompt:
        return build_prompt(part, backbone, {})

    kind, argument = _read_spec(spec)
    return kind(BuildContext(argument, backbone, tensors, build_part))


def initial_tensors(spec: str, backbone: Backbone, generator: torch.Generator) -> dict[str, Tensor]:
    """Return the tensors that the prompt of a recipe starts learning from, by name.

    Empty for words.
    """
    kind, argument = _read_spec(spec)
    return kind.start(BuildContext(argument, backbone, {}), generator)


def _read_spec(spec: str) -> tuple[type[Prompt], str]:
    name, argument = split_spec(spec)
    if name in PROMPTS and argument is not None:
        return PROMPTS[name], argument
    return Prompt, spec


def prompts_of_mean(spec: str) -> list[str]:
    """Return the prompts of ``mean:FIRST || SECOND || ...``, whose vectors are averaged (MetaEOL).

    Empty for another prompt.
    """
    if not spec.startswith(_MEAN):
        return []
    return spec.removeprefix(_MEAN).split(_BETWEEN)


def mean_of(specs: Sequence[str]) -> str:
    """Return the spec of the mean of some prompts."""
    return _MEAN + _BETWEEN.join(specs)
