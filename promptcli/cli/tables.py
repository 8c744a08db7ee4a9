"""Tables of scores."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from promptcli.cli.console import as_typed, half_interval, show
from promptcli.cli.grids import Grid
from promptcli.data.task_table import TEST_TASKS, TRANSFER_TASKS, TaskName, task_row
from promptcli.data.tasks import STSTask, any_task_names
from promptcli.evaluation.evaluator import EvalSettings, average
from promptcli.evaluation.scores import (
    AccuracyScore,
    Comparison,
    Evaluation,
    Label,
    RetrievalScore,
    SpearmanScore,
)

#: Tables and lines that are shown one below the other.
Parts = list[str | Grid]
Names = Mapping[Label, str]


def table_names(labels: Collection[Label]) -> dict[Label, str]:
    """Return a short name of each encoder that no other one has: its model, its recipe, or both if
    they differ.

    A path is cut to its last part if that tells the models apart.
    """
    rows, ends = Counter(label.model for label in labels), dict[str, set[str]]()
    for label in labels:
        ends.setdefault(label.end, set()).add(label.model)
    names: dict[Label, str] = {}
    for label in labels:
        model = label.end if len(ends[label.end]) == 1 else label.model
        recipe = label.recipe.removeprefix("pooling=")
        alone = rows[label.model] == 1 and (label.named or "=" in label.recipe or not label.recipe)
        names[label] = model if alone else recipe if len(rows) == 1 else f"{model} {recipe}"
    return names


def evaluation_tables(
    evaluation: Evaluation, settings: EvalSettings, *, subsets: bool
) -> list[Parts]:
    """Return the tables of graded pairs and of accuracies as in the papers, other figures one below
    the other.
    """
    rows, missing = evaluation.rows, evaluation.missing
    names, scored = table_names(rows), {*missing, *(task.name for task in evaluation.tasks)}
    columns = {label: {score.column: score for score in row} for label, row in rows.items()}
    pairs = [task for task in evaluation.tasks if isinstance(task, STSTask)]
    tables = list[Parts]()
    if pairs:
        graded = map(str, any_task_names([*missing, *(task.label for task in pairs)]))
        heads = [name for name in graded if name not in TRANSFER_TASKS]
        short = {task.label: task for task in pairs if len(task.pairs()) != task.expected_pairs}
        remarks = [
            f"* {name}: {len(task.pairs())} pairs, not {task.expected_pairs}: not comparable with"
            " printed figures"
            for name, task in short.items()
        ]
        papers = list(map(str, TEST_TASKS))
        tables.append(
            [*_caption(pairs), *_score_table(names, columns, heads, papers, short), *remarks]
        )
    for task in (task for task in pairs if subsets and len(task.subsets) > 1):
        of_task = {
            label: getattr(row.get(task.label), "subsets", {}) for label, row in columns.items()
        }
        counts = ["pairs", *(str(len(subset)) for subset in task.subsets.values())]
        cells = [counts, *_figures(names, of_task, list(task.subsets))]
        tables.append([f"{task.label} by subset", Grid(["", *task.subsets], cells)])
    if any(isinstance(score, AccuracyScore) for score in evaluation):
        heads = [name for name in TRANSFER_TASKS if name in scored]
        caption = (
            f"{settings.training.caption(settings.seed)}; ± half of the 95% bootstrap interval"
        )
        tables.append([caption, *_score_table(names, columns, heads, list(TRANSFER_TASKS))])
    if others := _other_figures(evaluation, names):
        tables.append([Grid(("", "task", "metric", "value", ""), others)])
    if evaluation.comparisons:
        tables.append(_comparison_table(evaluation.comparisons, names))
    if evaluation.refused:
        lacks = {
            label: "is not complete" if rows[label] else "has no figures"
            for label in evaluation.refused
        }
        reasons = evaluation.refused.items()
        tables.append([as_typed(f"{names[label]} {lacks[label]}: {why}") for label, why in reasons])
    return tables


def show_tables(tables: Sequence[Parts]) -> None:
    """Print tables, a blank line between two of them."""
    for number, parts in enumerate(tables):
        if number:
            show("")
        show(*parts)


def _score_table(
    names: Names,
    rows: Mapping[Label, Mapping[str, Any]],
    columns: Sequence[str],
    papers: Sequence[str],
    short: Collection[str] = (),
) -> Parts:
    """Lay out figures by column, and the average of those of the papers' tasks.

    Tasks in ``short`` are starred.
    """
    averaged = [name for name in papers if any(name in row for row in rows.values())]
    heads = [
        "",
        *(column + "*" * (column in short) for column in columns),
        *["Avg"][: len(averaged)],
    ]
    remark = f"Avg: mean of {len(averaged)} of the papers' {len(papers)} tasks"
    cells = _figures(names, rows, columns, averaged)
    return [Grid(heads, cells), *([remark] if 0 < len(averaged) < len(papers) else [])]


def _figures(
    names: Names,
    rows: Mapping[Label, Mapping[str, Any]],
    columns: Sequence[str],
    averaged: Sequence[str] = (),
) -> list[list[str]]:
    """Return a line of figures for each encoder, dashes for missing ones, and one of half the 95%
    intervals, if any.
    """
    lines = []
    for label, row in rows.items():
        scores = [row.get(column) for column in columns]
        line = [names[label], *("-" if score is None else f"{score.value:.2f}" for score in scores)]
        intervals = [getattr(score, "ci95", None) for score in scores]
        halves = [
            "",
            *("" if interval is None else half_interval(interval) for interval in intervals),
        ]
        if averaged:
            # of fewer tasks it could not be compared
            complete = all(name in row for name in averaged)
            line.append(f"{average([row[name] for name in averaged]):.2f}" if complete else "-")
            halves.append("")
        lines += [line, halves] if any(intervals) else [line]
    return lines


def _other_figures(evaluation: Evaluation, names: Names) -> list[list[str]]:
    cells = []
    for label, row in evaluation.rows.items():
        for score in (
            score for score in row if not isinstance(score, SpearmanScore | AccuracyScore)
        ):
            half = "" if score.ci95 is None else half_interval(score.ci95)
            cells.append([names[label], score.task, score.metric, f"{score.value:.2f}", half])
            if isinstance(score, RetrievalScore):
                recalls = {"recall@10": score.recall_at_10, "recall@100": score.recall_at_100}
                cells += [["", "", name, f"{recall:.2f}", ""] for name, recall in recalls.items()]
    return cells


def _comparison_table(comparisons: Sequence[Comparison], names: Names) -> Parts:
    """Lay out differences of two encoders; those beyond chance are starred."""
    compared = {_compared_on(item) for item in comparisons}
    single = len(compared) == 1
    cells = []
    for item in comparisons:
        line = [f"{names[item.first]} - {names[item.second]}"]
        if not single:
            line.append(_compared_on(item))
        line.append(f"{item.difference:+.2f}" + "*" * item.beyond_chance)
        line.append("{:+.2f} to {:+.2f}".format(*item.ci95))
        line.append("<0.001" if item.p_holm < 0.001 else f"{item.p_holm:.3f}")
        cells.append(line)
    on = compared.pop() if single else "by task"
    caption = f"differences, {on}: paired bootstrap, Holm over {len(cells)}; * beyond chance"
    return [
        caption,
        Grid(["", *([] if single else ["task"]), "points", "95% interval", "p"], cells),
    ]


def _compared_on(comparison: Comparison) -> str:
    tasks = comparison.tasks
    return tasks[0] if len(tasks) == 1 else f"mean of {len(tasks)} tasks ({comparison.metric})"


def _caption(tasks: Sequence[STSTask]) -> Parts:
    texts: dict[str, list[str]] = {}
    for task in tasks:
        texts.setdefault(task.text, []).append(task.label)
    treated = "; ".join(
        text if len(texts) == 1 else f"{', '.join(labels)}: {text}"
        for text, labels in texts.items()
    )
    published = any(
        task_row(TaskName(task.name, task.split), task.protocol).folder for task in tasks
    )
    # the package's pairs and a user's have none
    protocol = f"protocol {tasks[0].protocol}; " if published else ""
    return [
        f"{protocol}Spearman x 100 over all pairs of a task; ± half of the 95% bootstrap interval",
        f"text: {treated}",
    ]
