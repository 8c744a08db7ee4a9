"""Tables of scores."""

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from promptcli.cli.console import half_interval, show, table
from promptcli.data.task_table import TEST_TASKS, TRANSFER_TASKS, TaskName, task_row
from promptcli.data.tasks import STSTask
from promptcli.evaluation.evaluator import average
from promptcli.evaluation.scores import AccuracyScore, Comparison, Label, SpearmanScore

#: Tables and lines that are shown one below the other.
Parts = list[RenderableType]


def table_names(labels: Collection[Label]) -> dict[Label, str]:
    """Return the name of each encoder in a table: its recipe, with its model if the models differ.

    A model whose recipe is a long template without a name is called by its own.
    """
    counts = Counter(label.model for label in labels)
    names = {label: label.recipe if len(counts) == 1 else f"{label.model} {label.recipe}" for label in labels}
    alone = [label for label in names if label.recipe.startswith("prompt=") and counts[label.model] == 1]
    return names | {label: label.model for label in alone}


def score_table(
    rows: dict[Label, list[SpearmanScore]],
    names: dict[Label, str],
    wanted: Sequence[TaskName],
    tasks: Sequence[STSTask],
) -> Parts:
    """Lay out one row of figures per encoder, half of each 95% interval below, and a caption above.

    The columns are the tasks ``wanted``; those missing from ``tasks`` are dashes.
    """
    columns = [str(name) for name in wanted]
    in_average = {str(name) for name in TEST_TASKS} & {task.label for task in tasks}
    short = {task.label for task in tasks if len(task.pairs()) != task.expected_pairs}
    heads = ["", *(column + "*" * (column in short) for column in columns)]
    if in_average:
        heads.append(_average_head(len(in_average), len(TEST_TASKS)))
    cells: list[list[str]] = []
    for label, scores in rows.items():
        by_column = {score.column: score for score in scores}
        values = [names[label], *_figures(by_column, columns)]
        halves = ["", *(half_interval(by_column[name].ci95) if name in by_column else "" for name in columns)]
        if in_average:
            values.append(f"{average(score for score in scores if score.column in in_average):.2f}")
            halves.append("")
        cells += [values, halves]
    remarks = [
        f"* {task.label}: {len(task.pairs())} pairs, not {task.expected_pairs}: not comparable with printed figures"
        for task in tasks
        if task.label in short
    ]
    return [*_caption(tasks), table(heads, cells, ["", "dim"] * len(rows)), *remarks]


def subset_table(rows: dict[Label, list[SpearmanScore]], names: dict[Label, str], task: STSTask) -> Parts:
    """Lay out each encoder's figures on the subsets of one task."""
    cells = [["pairs", *(str(len(pairs)) for pairs in task.subsets.values())]]
    for label, scores in rows.items():
        score = next(score for score in scores if score.column == task.label)
        cells.append([names[label], *_figures(score.subsets, list(task.subsets))])
    return [f"{task.label} by subset", table(["", *task.subsets], cells)]


def comparison_table(comparisons: Sequence[Comparison], first: str, second: str) -> Parts:
    """Lay out one encoder's differences from another, task by task."""
    cells = []
    for item in comparisons:
        interval = "{:+.2f} to {:+.2f}".format(*item.ci95)
        task = str(TaskName(item.task, item.split))
        cells.append([task, f"{item.difference:+.2f}", interval, f"{item.p_value:.3f}", str(item.pairs)])
    heads = ["", "difference", "95% interval", "p", "pairs"]
    return [f"{first} - {second}, paired bootstrap over the pairs of each task", table(heads, cells)]


def score_tables(
    rows: dict[Label, list[SpearmanScore]],
    comparisons: Sequence[Comparison],
    wanted: Sequence[TaskName],
    tasks: Sequence[STSTask],
    *,
    subsets: bool,
) -> list[Parts]:
    """Lay out all that ``eval`` shows: the scores, those of subsets on request, and comparisons."""
    names = table_names(rows)
    tables = [score_table(rows, names, wanted, tasks)]
    if subsets:
        tables += [subset_table(rows, names, task) for task in tasks if len(task.subsets) > 1]
    for first, group in itertools.groupby(comparisons, key=lambda comparison: comparison.first):
        block = list(group)
        tables.append(comparison_table(block, names[first], names[block[0].second]))
    return tables


def accuracy_table(rows: dict[Label, list[AccuracyScore]], wanted: Sequence[str]) -> Parts:
    """Lay out one row of accuracies per encoder; missing tasks are dashes."""
    names, cells = table_names(rows), []
    for label, scores in rows.items():
        by_task = {score.task: score for score in scores}
        cells.append([names[label], *_figures(by_task, wanted), f"{average(scores):.2f}"])
    return [table(["", *wanted, _average_head(len(by_task), len(TRANSFER_TASKS))], cells)]


def print_tables(tables: Iterable[Parts]) -> None:
    """Print tables with an empty line between them."""
    for number, parts in enumerate(tables):
        show(*([""] if number else []), *parts)


def _figures(scores: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    return [f"{scores[column].value:.2f}" if column in scores else "-" for column in columns]


def _average_head(count: int, total: int) -> str:
    return "Avg" if count == total else f"Avg ({count} of {total})"


def _caption(tasks: Sequence[STSTask]) -> list[str]:
    texts: dict[str, list[str]] = {}
    for task in tasks:
        texts.setdefault(task.text, []).append(task.label)
    treated = "; ".join(text if len(texts) == 1 else f"{', '.join(labels)}: {text}" for text, labels in texts.items())
    published = any(task_row(TaskName(task.name, task.split), task.protocol).folder for task in tasks)
    protocol = f"protocol {tasks[0].protocol}; " if published else ""  # the package's pairs and a user's have none
    return [
        f"{protocol}Spearman x 100 over all pairs of a task; ± half of the 95% bootstrap interval",
        f"text: {treated}",
    ]
