"""What several trainings end as: the trials, and the best."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from promptcli.training.config import Setting
    from promptcli.training.trained import Trained

FINISHED = "finished"
PRUNED = "pruned"
FAILED = "failed"


@dataclass(frozen=True)
class Trial:
    """One of the trainings."""

    changes: dict[str, "Setting"]  #: of the settings
    state: str  #: ``finished``; ``pruned``: ended below the median; ``failed``: no score
    curve: list[dict[str, Any]]  #: its development scores
    record: dict[str, Any]  #: of a finished one, what ``Trained.to_dict`` says
    reason: str = ""  #: why it failed

    @property
    def value(self) -> float | None:
        """The best score on the development set."""
        return max((score["value"] for score in self.curve), default=None)

    def row(self) -> dict[str, Any]:
        return {"changes": self.changes, "state": self.state, "value": self.value}


@dataclass(frozen=True)
class Tuned:
    """The best of several trainings, which the model is, and all of them in order."""

    best: "Trained"
    trials: list[Trial]
    chosen: int  #: number of the best one, from 0
    drawn: bool  #: whether Optuna drew the settings
