"""What a method minimises: one paper a file, and this table. A new one is a file and a line here."""

from typing import Any

from promptcli.errors import look_up
from promptcli.extensions import Table
from promptcli.training.methods.method import Method
from promptcli.training.objectives.objective import Objective

OBJECTIVES: Table[type[Objective[Any]]] = Table(
    "objectives",
    {
        "contrastive": "contrastive:Contrastive",
        "pair-classifier": "pairs:PairClassifier",
        "pair-cosine": "pairs:PairCosine",
        "nt-xent": "consert:NTXent",
        "nt-xent-joint": "consert:JointNTXent",
        "mutual-information": "mutual_information:MutualInformation",
        "word-prediction": "word_prediction:WordPrediction",
        "negative-view": "contrastive:NegativeView",
        "distillation": "distillation:Distillation",
        "ranking": "contrastive:Ranking",
        "single-pass": "contrastive:SinglePass",
        "denoising-decoder": "denoising_decoder:DenoisingDecoder",
    },
    __name__,
)


def find_objective(method: Method) -> type[Objective[Any]]:
    """Return a method's objective."""
    return look_up(f"objective of method {method.name}:", method.objective, OBJECTIVES)
