"""RankCSE (Liu et al., 2023): SimCSE, with rankings of the batch that agree between both views and
with a teacher.
"""

from dataclasses import dataclass

from promptcli.training.methods.distill import TeacherSettings
from promptcli.training.methods.method import (
    ContrastiveSettings,
    Method,
    Variant,
    setting,
)


@dataclass(frozen=True)
class RankCSESettings(TeacherSettings, ContrastiveSettings):
    """Settings of RankCSE."""

    ranking: str = setting(
        "listmle",
        "Loss against the teacher's ranking: listmle or listnet.",
        choices=("listmle", "listnet"),
    )
    consistency_weight: float = setting(
        1.0, "Weight of the divergence between both views' rankings.", min=0
    )
    ranking_weight: float = setting(1.0, "Weight of the loss against the teacher's ranking.", min=0)
    teacher_temperature: float = setting(
        0.025, "Temperature of the teacher's cosines for listnet.", min=1e-4
    )


_PAPER = RankCSESettings(batch_size=128, learning_rate=3e-5)

RANKCSE = Method(
    name="rankcse",
    source=(
        "RankCSE, unsupervised: SimCSE, consistent rankings of two dropout views, a teacher's"
        " ranking"
    ),
    pooling="last/cls",
    variants={"*": Variant(), "causal": Variant(pooling="last/last-token")},
    objective="ranking",
    mini_bert_settings=_PAPER.replace(learning_rate=3e-4, eval_steps=25),
    paper={"bert-base-uncased": _PAPER},
)
