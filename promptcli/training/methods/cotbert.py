"""CoT-BERT (Zhang et al., 2024): a two-stage template read at its second mask; a negated view."""

from dataclasses import dataclass
from typing import ClassVar

from promptcli.training.methods.method import (
    ContrastiveSettings,
    Method,
    Templates,
    TemplateSettings,
    Variant,
    setting,
)
from promptcli.training.methods.promptbert import (
    ROBERTA_FAMILIES,
    DenoisingSettings,
    QuoteSettings,
    SelectionSettings,
)


def _templates(sentence: str) -> Templates:
    """Return the three templates around ``sentence``, a family's form of the quoted [X]."""
    two = "means [MASK] , so it can be summarized as [MASK] ."
    not_two = "does not mean [MASK] , so it cannot be summarized as [MASK] ."
    return (
        f"The sentence of {sentence} {two}",
        f"The sentence : {sentence} {two}",
        f"The sentence : {sentence} {not_two}",
    )


@dataclass(frozen=True)
class CoTBERTSettings(
    QuoteSettings, SelectionSettings, DenoisingSettings, TemplateSettings, ContrastiveSettings
):
    """Settings of CoT-BERT."""

    most_templates: ClassVar[int] = 3

    negatives_within: int = setting(
        0,
        "Size of the groups that negatives come from; 0: the whole batch.",
        min=0,
        published=128,
    )


_PAPER = CoTBERTSettings(batch_size=256, learning_rate=1e-5)

COTBERT = Method(
    name="cotbert",
    source=(
        "CoT-BERT, unsupervised: two-stage templates read at the second mask, a negative view,"
        " denoising"
    ),
    pooling="last/mask:2",
    variants={
        "*": Variant(_templates('"[X]"')),
        **dict.fromkeys(ROBERTA_FAMILIES, Variant(_templates("' [X] '"))),
    },
    objective="negative-view",
    program_settings={"drop_last": True},
    counts_specials=False,
    mini_bert_settings=_PAPER.replace(batch_size=128, learning_rate=1e-4, eval_steps=25),
    paper=dict.fromkeys(("bert-base-uncased", "roberta-base"), _PAPER),
)
