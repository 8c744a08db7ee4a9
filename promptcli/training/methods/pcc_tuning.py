"""Pcc-tuning (Zhang and Li, 2024): a trained PromptEOL continues on graded pairs, with Pearson's
correlation as loss.
"""

from dataclasses import dataclass

from promptcli.training.methods.method import (
    Method,
    TemplateSettings,
    Variant,
    setting,
)
from promptcli.training.methods.prompteol import LoRASettings
from promptcli.training.methods.sbert import GradedSettings

_TEMPLATE = 'This sentence : "[X]" can be summarized as'


@dataclass(frozen=True)
class PccSettings(LoRASettings, TemplateSettings, GradedSettings):
    """Settings of Pcc-tuning."""

    loss: str = setting(
        "pearson",
        "Loss of the cosines, see sbert-regression.",
        choices=("squared", "cosent", "angle", "pearson"),
    )


#: The released second stage, on the training pairs of STS-B and SICK-R together.
_RELEASED = PccSettings(
    batch_size=216,
    learning_rate=5e-4,
    epochs=8,
    eval_steps=25,
    warmup_steps=100,
    max_length=64,
    dropout=0.0,
)

PCC_TUNING = Method(
    name="pcc-tuning",
    source=(
        "Pcc-tuning: Pearson's correlation with the scores of graded pairs, after `prompteol` by"
        " `start`"
    ),
    pooling="last/last-token",
    text_rule="prompteol",
    learns=("adapter",),
    variants={"*": Variant((_TEMPLATE,), head=None)},
    objective="pair-cosine",
    counts_specials=False,
    program_settings={"optimizer": "adamw"},
    mini_bert_settings=_RELEASED.replace(
        batch_size=32, epochs=1, eval_steps=50, warmup_steps=0, warmup=0.1
    ),
    paper={
        "meta-llama/Llama-2-7b-hf": _RELEASED,
        "huggyllama/llama-7b": _RELEASED.replace(batch_size=200, epochs=10),
        "facebook/opt-6.7b": _RELEASED.replace(batch_size=200, dropout=0.1),
        "mistralai/Mistral-7B-v0.1": _RELEASED.replace(batch_size=208),
    },
)
