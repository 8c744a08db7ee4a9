"""Distillation: a student learns the vectors of a teacher encoder, or its similarities of sentences."""

from dataclasses import dataclass

from promptcli.training.methods.method import Method, Variant
from promptcli.training.methods.training_settings import TrainingSettings, setting


@dataclass(frozen=True)
class DistillSettings(TrainingSettings):
    """Settings of distillation."""

    teacher: str = setting("", "model that is learned from: a name, a folder or a hub id.", model=True)
    target: str = setting(
        "similarities",
        "target of learning: the teacher's cosines of all pairs of a batch (similarities), or its vectors (vectors).",
        choices=("similarities", "vectors"),
    )


DISTILL = Method(
    name="distill",
    source="distillation of a sentence encoder: its vectors (Reimers and Gurevych, 2020), or its similarities"
    " (Tung and Mori, 2019)",
    pooling="last/avg",
    learns=("backbone",),
    variants={"*": Variant(head=None), "causal": Variant(head=None, pooling="last/last-token")},
    objective="distillation",
    small=DistillSettings(batch_size=128, learning_rate=1e-4, eval_steps=25, max_length=64, warmup=0.1),
    paper={},
)
