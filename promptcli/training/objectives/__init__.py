"""What a method minimises: one objective a file, and this table. A new one is a file and a line here."""

from promptcli.errors import unknown
from promptcli.training.methods.method import Method
from promptcli.training.objectives.contrastive import Contrastive
from promptcli.training.objectives.objective import Objective
from promptcli.training.objectives.pair_classifier import PairClassifier

OBJECTIVES: dict[str, type[Objective]] = {
    "contrastive": Contrastive,
    "pair-classifier": PairClassifier,
}


def find_objective(method: Method) -> type[Objective]:
    """Return a method's objective.

    Raises:
        UsageError: No such objective.
    """
    if method.objective not in OBJECTIVES:
        raise unknown(f"objective of method {method.name}:", method.objective, OBJECTIVES)
    return OBJECTIVES[method.objective]
