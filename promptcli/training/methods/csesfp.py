"""CSE-SFP (Zhang et al., 2025): one pass of a two-stage template gives both views, one at the end
of each stage.
"""

from dataclasses import dataclass
from typing import ClassVar

from promptcli.training.methods.method import (
    ContrastiveSettings,
    Method,
    TemplateSettings,
    Variant,
)
from promptcli.training.methods.prompteol import LoRASettings


@dataclass(frozen=True)
class CSESFPSettings(LoRASettings, TemplateSettings, ContrastiveSettings):
    """Settings of CSE-SFP."""

    most_templates: ClassVar[int] = 1


def _variant(first: str, second: str = "it can be summarized as") -> Variant:
    """Return the template whose stages end in these words, separated by a comma."""
    template = f'This sentence : "[X]" means {first}, {second}'
    return Variant((template, template), head=None)


#: The released runs' settings; their base weights are in 4 bits, ours in float32.
_RELEASED = CSESFPSettings(
    batch_size=256, learning_rate=4e-5, eval_steps=150, warmup_steps=100, dropout=0.0
)

CSESFP = Method(
    name="cse-sfp",
    source=(
        "CSE-SFP, unsupervised: the states at both ends of a two-stage template, in a single pass"
    ),
    pooling="last/last-token",
    training_pooling="last/avg",  # its pass returns every token's state
    text_rule="prompteol",
    learns=("adapter",),
    variants={
        "*": _variant("in one word"),
        "mistral": _variant("something"),
        "opt": _variant("something", "it can also be summarized as"),
    },
    objective="single-pass",
    counts_specials=False,
    program_settings={"optimizer": "adamw"},
    mini_bert_settings=_RELEASED.replace(
        batch_size=128, learning_rate=5e-4, eval_steps=25, warmup_steps=0
    ),
    paper={
        "meta-llama/Llama-2-7b-hf": _RELEASED,
        "meta-llama/Meta-Llama-3-8B": _RELEASED.replace(learning_rate=5e-5),
        "mistralai/Mistral-7B-v0.1": _RELEASED.replace(batch_size=312, learning_rate=2e-5),
        "facebook/opt-6.7b": _RELEASED.replace(batch_size=264, learning_rate=3e-5, dropout=0.1),
    },
)
