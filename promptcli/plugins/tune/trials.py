"""What several trainings are made of and end as: the space of settings, the trials, the best."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from promptcli.errors import UsageError

if TYPE_CHECKING:
    from promptcli.training.config import Setting
    from promptcli.training.trained import Trained

FINISHED = "finished"
PRUNED = "pruned"
FAILED = "failed"


@dataclass(frozen=True)
class Range:
    """The numbers from ``low`` to ``high``; with ``log`` every order of magnitude is as likely.

    Example:
        >>> Range.of("1e-5..1e-4:log")
        Range(low=1e-05, high=0.0001, log=True)
    """

    low: float
    high: float
    log: bool = False

    @classmethod
    def of(cls, written: str) -> "Range":
        """Return the range that is written as ``LOW..HIGH`` or ``LOW..HIGH:log``."""
        ends, _, scale = written.partition(":")
        low, _, high = ends.partition("..")
        try:
            drawn = cls(_number(low), _number(high), {"": False, "log": True}[scale])
        except (ValueError, KeyError):
            drawn = cls(0, 0)
        if drawn.low >= drawn.high or (drawn.log and drawn.low <= 0):
            raise UsageError(
                f"range {written!r} is not allowed; give LOW..HIGH or LOW..HIGH:log with LOW below"
                " HIGH, and above 0 for a logarithm, e.g. 1e-5..1e-4:log",
                parameter="sweep",
            )
        return drawn

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}" + (":log" if self.log else "")


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)


#: Setting -> what is tried: a list of values, or a range that trials draw from.
Space = dict[str, Range | list[Any]]


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
