"""STS columns: the figures of `promptcli eval` and their average. Rows with the same model input share a pass."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from promptcli.data.task_table import TEST_TASKS
from promptcli.data.tasks import STSTask
from promptcli.evaluation import statistics
from promptcli.evaluation.evaluator import average, distinct_sentences, evaluate
from promptcli.evaluation.scores import SpearmanScore
from promptcli.reproducing.context import MeasureData, MeasurementContext
from promptcli.reproducing.figures import Figure, rounded
from promptcli.reproducing.measured_system import MeasuredSystem

_TESTS = frozenset(map(str, TEST_TASKS))


def measure_sts(
    systems: Sequence[MeasuredSystem], sources: MeasureData, context: MeasurementContext
) -> Iterator[tuple[MeasuredSystem, Mapping[str, Figure]]]:
    """Yield each system's figure on every task that is there, and the average of the test tasks.

    What takes long to make comes last, each when its turn comes, so that a killed run loses one at most.
    """
    tasks: list[STSTask] = sources.content
    groups: dict[object, list[MeasuredSystem]] = {}
    for system in systems:
        groups.setdefault(system if system.slow else system.encoder.input_key, []).append(system)
    for members in sorted(groups.values(), key=lambda members: members[0].slow):
        encoders = [system.encoder for system in members]
        with context.working("eval", len(distinct_sentences(tasks))) as advance:
            scores = evaluate(encoders, tasks, progress=advance)
        per_row = [scores[row * len(tasks) : (row + 1) * len(tasks)] for row in range(len(members))]
        yield from zip(members, _figures(per_row), strict=True)


def _figures(rows: Sequence[Sequence[SpearmanScore]]) -> list[dict[str, Figure]]:
    """Return the figures of each row's scores, tasks in the same order in all rows."""
    found = [{score.column: rounded(score.value, score.ci95, (score.column,)) for score in row} for row in rows]
    tests = [[score for score in row if score.column in _TESTS] for row in rows]
    if tests and tests[0]:
        by_task = list(zip(*tests, strict=True))
        intervals = statistics.average_intervals(
            [np.stack([score.cosines for score in scores]) for scores in by_task],
            [scores[0].gold for scores in by_task],
        )
        for figures, row, (low, high) in zip(found, tests, intervals, strict=True):
            figures["Avg"] = rounded(average(row), (100 * low, 100 * high), tuple(score.column for score in row))
    return found
