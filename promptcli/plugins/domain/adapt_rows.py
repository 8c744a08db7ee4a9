"""The rows of ``adapt``'s table: the gain of each attempt over the start, and the verdict."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import promptcli as pc
from promptcli.data.tasks import RetrievalTask, STSTask
from promptcli.encoder.encoder import TorchEncoder
from promptcli.evaluation import evaluator, statistics
from promptcli.evaluation.scores import Label
from promptcli.plugins.domain.adapt_runs import ATTEMPTS

AS_IT_IS = "as it is"  #: the row of the start
#: The verdicts on a row.
BETTER = "better"
BETTER_HERE = "better here, worse elsewhere"
WORSE = "worse"
UNCHANGED = "no real difference"
NOTHING_LEARNED = "nothing learned"


@dataclass(frozen=True)
class Row:
    """An attempt that was run, beside the start."""

    name: str
    trained: pc.Trained
    scores: Sequence[Any]  #: on the test queries, then elsewhere
    #: of them, against the start; the p-value of the first is corrected for the number of attempts
    changes: list[Any]

    def verdict(self, margin: float) -> str:
        """Return the verdict; ``margin``: points that the row may lose on other texts."""
        own, *elsewhere = self.changes
        attempt = ATTEMPTS[self.name]
        starts_elsewhere = attempt.is_frozen or attempt.is_pretrained
        if self.trained.facts["best_step"] == 0 and not starts_elsewhere:
            return NOTHING_LEARNED
        if not own.beyond_chance:
            return UNCHANGED
        if own.difference < 0:
            return WORSE
        if any(each.difference < -margin for each in elsewhere):
            return BETTER_HERE
        return BETTER

    def to_dict(self, margin: float) -> dict[str, Any]:
        facts = self.trained.facts
        return {
            "row": self.name,
            "method": ATTEMPTS[self.name].method,
            "learns_from": ATTEMPTS[self.name].about,
            **{field: facts[field] for field in ("steps", "best_step", "seconds")},
            "development": round(self.trained.chosen_by, 4),
            "scores": [score.figures() for score in self.scores],
            "changes": [change.to_dict() for change in self.changes],
            "verdict": self.verdict(margin),
        }


def compare(
    trained: Mapping[str, pc.Trained],
    start: Sequence[Any],
    tasks: Sequence[RetrievalTask | STSTask],
) -> list[Row]:
    """Return a row for each run, by the name of its attempt, beside the scores of the start.

    The p-values on the first task are corrected for the number of runs (Holm).
    """
    rows = []
    for name, run in trained.items():
        scores = score_model(run.encoder, name, tasks)
        pairs = zip(scores, start, strict=True)
        rows.append(
            Row(name, run, scores, [evaluator.compare([now], [before]) for now, before in pairs])
        )
    p_values = statistics.holm([row.changes[0].p_value for row in rows])
    for row, p_value in zip(rows, p_values, strict=True):
        row.changes[0] = dataclasses.replace(row.changes[0], p_holm=p_value)
    return rows


def score_model(
    encoder: TorchEncoder, name: str, tasks: Sequence[RetrievalTask | STSTask]
) -> list[Any]:
    """Return the score of a model on each task."""
    return evaluator.score_encoders([encoder], tasks, [Label(name, name)])
