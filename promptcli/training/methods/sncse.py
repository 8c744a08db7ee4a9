"""SNCSE (Wang and Dou, 2022): PromptBERT's two templates, and the negated sentence, kept near but
farther than the positive.
"""

from dataclasses import dataclass

from promptcli.errors import UsageError
from promptcli.training.methods.method import (
    ContrastiveSettings,
    Method,
    TemplateSettings,
    Variant,
    setting,
)

_VIEWS = ('This sentence : " [X] " means [MASK] .', 'This sentence of " [X] " means [MASK] .')


@dataclass(frozen=True)
class SNCSESettings(TemplateSettings, ContrastiveSettings):
    """Settings of SNCSE."""

    soft_weight: float = setting(1e-3, "Weight of the bounds on the negated sentence.", min=0)
    soft_alpha: float = setting(
        0.1, "Least cosine difference between the positive and the negated sentence.", min=0
    )
    soft_beta: float = setting(
        0.3, "Largest cosine difference between the positive and the negated sentence.", min=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hinge_weight or self.mine:
            raise UsageError(
                "needs hard negatives, but sncse's third sentence is a soft negative; leave it out,"
                " or use promcse",
                parameter="hinge_weight" if self.hinge_weight else "mine",
            )


_PAPER = SNCSESettings(batch_size=256, learning_rate=1e-5)
_LARGE = _PAPER.replace(batch_size=128, learning_rate=5e-6)
_ROBERTA_WEIGHT = 5e-4

SNCSE = Method(
    name="sncse",
    source="SNCSE, unsupervised: two templates, and the negated sentence as a soft negative",
    pooling="last/mask",
    variants={"*": Variant(_VIEWS)},
    objective="soft-negative",
    # the published program's rule, in training and at test
    text_rule="full-stop",
    training_text_rule="full-stop",
    period=False,
    mini_bert_settings=_PAPER.replace(
        batch_size=128, learning_rate=3e-5, temperature=0.2, eval_steps=25
    ),
    paper={
        "bert-base-uncased": _PAPER,
        "bert-large-uncased": _LARGE,
        "roberta-base": _PAPER.replace(soft_weight=_ROBERTA_WEIGHT),
        "roberta-large": _LARGE.replace(soft_weight=_ROBERTA_WEIGHT),
    },
)
