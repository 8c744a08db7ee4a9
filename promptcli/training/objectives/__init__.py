"""What a method minimises: one objective a file, and this table. A new one is a file and a line here."""

from collections.abc import MutableMapping

from promptcli.errors import unknown
from promptcli.extensions import Table
from promptcli.training.methods.method import Method
from promptcli.training.objectives.contrastive import Contrastive
from promptcli.training.objectives.distillation import Distillation
from promptcli.training.objectives.mutual_information import MutualInformation
from promptcli.training.objectives.negative_view import NegativeView
from promptcli.training.objectives.nt_xent import JointNTXent, NTXent
from promptcli.training.objectives.objective import Objective
from promptcli.training.objectives.pair_classifier import PairClassifier
from promptcli.training.objectives.pair_cosine import PairCosine
from promptcli.training.objectives.word_prediction import WordPrediction

OBJECTIVES: MutableMapping[str, type[Objective]] = {
    "contrastive": Contrastive,
    "pair-classifier": PairClassifier,
    "pair-cosine": PairCosine,
    "nt-xent": NTXent,
    "nt-xent-joint": JointNTXent,
    "mutual-information": MutualInformation,
    "word-prediction": WordPrediction,
    "negative-view": NegativeView,
    "distillation": Distillation,
}
OBJECTIVES = Table("objectives", OBJECTIVES)


def find_objective(method: Method) -> type[Objective]:
    """Return a method's objective.

    Raises:
        UsageError: No such objective.
    """
    if method.objective not in OBJECTIVES:
        raise unknown(f"objective of method {method.name}:", method.objective, OBJECTIVES)
    return OBJECTIVES[method.objective]
