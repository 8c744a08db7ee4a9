"""What a method minimises, by name; a file holds related objectives.

A new one is a file, its import and a row here.
"""

from typing import Any

from promptcli.errors import look_up
from promptcli.extensions import Table
from promptcli.training.methods.method import Method
from promptcli.training.objective import Objective
from promptcli.training.objectives.consert import JointNTXent, NTXent
from promptcli.training.objectives.contrastive import (
    InfoNCE,
    NegativeView,
    SinglePass,
    SoftNegative,
    TeacherRanking,
)
from promptcli.training.objectives.denoising_decoder import DenoisingDecoder
from promptcli.training.objectives.distillation import Distillation
from promptcli.training.objectives.mutual_information import MutualInformation
from promptcli.training.objectives.pairs import PairClassifier, PairCosine
from promptcli.training.objectives.word_prediction import WordPrediction

OBJECTIVES: Table[type[Objective[Any]]] = Table(
    "objectives",
    {
        "contrastive": InfoNCE,
        "pair-classifier": PairClassifier,
        "pair-cosine": PairCosine,
        "nt-xent": NTXent,
        "nt-xent-joint": JointNTXent,
        "mutual-information": MutualInformation,
        "word-prediction": WordPrediction,
        "negative-view": NegativeView,
        "distillation": Distillation,
        "ranking": TeacherRanking,
        "soft-negative": SoftNegative,
        "single-pass": SinglePass,
        "denoising-decoder": DenoisingDecoder,
    },
)


def find_objective(method: Method) -> type[Objective[Any]]:
    """Return a method's objective."""
    return look_up(f"objective of method {method.name}:", method.objective, OBJECTIVES)
