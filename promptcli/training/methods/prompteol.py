"""Trained PromptEOL (Jiang et al., 2023, section 3.3): SimCSE's losses at the last token, with
LoRA.
"""

from dataclasses import dataclass, replace

from promptcli.recipe import RECIPES
from promptcli.training.methods.method import (
    ContrastiveSettings,
    LoRA,
    Method,
    TemplateSettings,
    TrainingSettings,
    Variant,
    setting,
)

_RECIPE = RECIPES["prompteol"]
_VARIANTS = {"*": Variant((_RECIPE.prompt,), head=None)}


@dataclass(frozen=True)
class LoRASettings(TrainingSettings):
    """Settings of methods that learn a low-rank adapter of a frozen backbone."""

    lora_rank: int = setting(64, "Rank r of the adapter.", min=1)
    lora_alpha: int = setting(16, "Alpha of the adapter's scale, alpha / r.", min=1)
    lora_dropout: float = setting(0.05, "Dropout of the adapter's input.", min=0, max=0.9)

    @property
    def lora(self) -> LoRA:
        return LoRA(self.lora_rank, self.lora_alpha, self.lora_dropout)


@dataclass(frozen=True)
class PromptEOLSettings(LoRASettings, TemplateSettings, ContrastiveSettings):
    """Settings of PromptEOL."""


_RELEASED = PromptEOLSettings(
    batch_size=256, learning_rate=5e-4, epochs=1, eval_steps=50, warmup_steps=100
)
#: The released runs' settings; their base weights are in 4 bits, ours in float32. Llama's
#: attention has no dropout there.
_PAPER = {
    "facebook/opt-1.3b": _RELEASED,
    "facebook/opt-2.7b": _RELEASED,
    "facebook/opt-6.7b": _RELEASED,
    "facebook/opt-13b": _RELEASED.replace(batch_size=200),
    "huggyllama/llama-7b": _RELEASED.replace(dropout=0.0),
    "huggyllama/llama-13b": _RELEASED.replace(dropout=0.0, batch_size=200),
    "huggyllama/llama-30b": _RELEASED.replace(dropout=0.0),
}

UNSUPERVISED = Method(
    name="prompteol",
    source=(
        "PromptEOL's reading, learned from sentences alone as SimCSE is: two dropout views (not in"
        " the paper)"
    ),
    pooling=_RECIPE.pooling,
    text_rule=_RECIPE.text_rule,
    learns=("adapter",),
    variants=_VARIANTS,
    counts_specials=False,
    program_settings={"optimizer": "adamw"},
    mini_bert_settings=PromptEOLSettings(batch_size=128, learning_rate=5e-4, eval_steps=25),
    paper=_PAPER,
)

SUPERVISED = replace(
    UNSUPERVISED,
    source=(
        "PromptEOL, supervised: entailment pairs, contradictions as hard negatives, LoRA on every"
        " linear map"
    ),
)
