"""Distillation: a student learns a teacher's vectors, or its similarities of sentences."""

from dataclasses import dataclass
from typing import ClassVar

from promptcli.errors import UsageError
from promptcli.grammar import has_mask
from promptcli.recipe import SLOT, pooling_for
from promptcli.training.methods.method import (
    InBatchSettings,
    Method,
    Templates,
    TemplateSettings,
    TrainingSettings,
    Variant,
    setting,
)

_EQUAL_WEIGHT = 0.5  # weight of each teacher


@dataclass(frozen=True)
class TeacherSettings(TrainingSettings):
    """Settings of methods that learn from another encoder."""

    teacher: str = setting(
        "",
        "Teacher model: a name, a folder, a hub id, or the .npy file that `embed`"
        " wrote of the data.",
        model=True,
    )
    second_teacher: str = setting(
        "",
        "Second teacher, in the same forms: the cosine of two sentences is then"
        " the weighted mean of both teachers'.",
        model=True,
        optional=True,
    )
    second_weight: float = setting(
        _EQUAL_WEIGHT, "Weight of `second-teacher`; `teacher` has 1 minus it.", min=0, max=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.second_weight != _EQUAL_WEIGHT and not self.second_teacher:
            raise UsageError("needs second_teacher; give both", parameter="second_weight")


@dataclass(frozen=True)
class DistillSettings(TeacherSettings, TemplateSettings, InBatchSettings):
    """Settings of distillation."""

    most_templates: ClassVar[int] = 1

    target: str = setting(
        "vectors",
        "Target of learning: the teacher's vectors, or only its cosines of all pairs of a batch"
        " (similarities).",
        choices=("vectors", "similarities"),
    )
    similarity_weight: float = setting(
        5.0, "Weight of the cosines of all pairs if the target is vectors.", min=0
    )
    contrastive_weight: float = setting(
        0.0, "Weight of a contrastive loss if the data are pairs or triplets.", min=0
    )
    guide: bool = setting(
        True, "Candidates that the teacher finds nearer than the positive are not negatives."
    )

    target_column: int = setting(
        1,
        "Column (from 1) that the teacher reads while the student reads the first:"
        " 2 for answers or translations. 1: both read every column.",
        min=1,
    )

    pool: str = setting(
        "",
        "Pooling of the student, e.g. static/avg, which trains only word embeddings; default: by"
        " the template.",
    )

    def templates(self, default: Templates) -> Templates:
        return self.template or default

    def pooling(self, default: str) -> str:
        """Return ``pool``, else the state of a given template's mask, else ``default``."""
        if self.pool:
            return self.pool
        if self.template and has_mask(self.template[0]):
            return pooling_for(self.template[0])
        return default


DISTILL = Method(
    name="distill",
    source=(
        "distillation of a sentence encoder: its vectors (Reimers and Gurevych, 2020), or its"
        " similarities (Tung and Mori, 2019)"
    ),
    pooling="last/avg",
    period=False,  # the student's test input equals its training input
    variants={
        "*": Variant((SLOT,), head=None),
        "causal": Variant((SLOT,), head=None, pooling="last/last-token"),
    },
    objective="distillation",
    mini_bert_settings=DistillSettings(
        batch_size=128,
        learning_rate=5e-4,
        eval_steps=100,
        max_length=48,
        dropout=0.0,
        weight_decay=0.01,
        warmup=0.05,
        batches="similar-lengths",
    ),
    paper={},
)
