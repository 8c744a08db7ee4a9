"""Tables of scores."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from promptcli.cli.console import half_interval
from promptcli.cli.grids import Grid, best_cells
from promptcli.data.task_table import TEST_TASKS, TaskName, task_row
from promptcli.data.tasks import STSTask, any_task_names
from promptcli.evaluation.evaluator import average
from promptcli.evaluation.scores import (
    Comparison,
    Evaluation,
    Label,
    RetrievalScore,
    Score,
    SpearmanScore,
)
from promptcli.recipe import Recipe

#: Tables and lines that are shown one below the other.
ReportParts = list[str | Grid]
Names = Mapping[Label, str]
#: Fields of a score that are columns of a CSV.
_FIELDS = ("model", "recipe", "task", "split", "metric", "value")
#: The end of a caption.
_HALVES = "; ± half of the 95% bootstrap interval"
#: Metric -> what a difference is over, if not pairs.
_COUNTED = {"accuracy": "test examples", "ndcg@10": "queries"}
_NEARLY_ALL = 99.995  #: of a share x 100, rounded as printed
_MOST_NEEDED = 1_000_000  #: pairs that one could collect
#: By encoder, its scores by column.
ScoresByLabel = dict[Label, dict[str, Score]]


def table_names(labels: Collection[Label]) -> dict[Label, str]:
    """Return a short name of each encoder that no other one has.

    It is the name of an encoder alone, or the recipe, or a model and its pooling or recipe. A path
    is cut to its last part if that tells the models apart.
    """
    encoders_of = Counter(label.model for label in labels)
    models_of: dict[str, set[str]] = {}
    for label in labels:
        models_of.setdefault(label.end, set()).add(label.model)
    names: dict[Label, str] = {}
    for label in labels:
        model = label.end if len(models_of[label.end]) == 1 else label.model
        recipe = label.recipe.removeprefix("pooling=")
        alone = encoders_of[label.model] == 1
        if alone and (label.entry or not label.recipe):
            names[label] = model
        elif alone and "=" in label.recipe:
            names[label] = f"{model} {_pooling_in(label.recipe)}"
        elif alone and label.named:
            names[label] = f"{model} {recipe}"
        elif len(encoders_of) == 1:
            names[label] = recipe
        else:
            names[label] = f"{model} {recipe}"
    return names


def _pooling_in(recipe: str) -> str:
    """Return the pooling of a recipe that is named by its fields, see ``recipe_name``."""
    match = re.search(r"(?:^| )pooling=(\S+)", recipe)
    return match[1] if match else Recipe().resolve().pooling


def evaluation_parts(evaluation: Evaluation, *, subsets: bool, intervals: bool) -> ReportParts:
    """Return the tables of graded pairs and of accuracies as in the papers, then all others.

    A blank line separates them.
    """
    parts: ReportParts = []
    for table in _tables(evaluation, subsets=subsets, intervals=intervals):
        if parts:
            parts.append("")
        parts += table
    return parts


def evaluation_records(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return a row for each score, without the comparisons."""
    records = []
    for score in evaluation:
        row = score.to_dict()
        low, high = row["ci95"] or ("", "")
        record = {name: row.get(name, "") for name in _FIELDS}
        record |= {"ci95_low": low, "ci95_high": high, "n": _count(row)}
        record["fingerprint"] = score.fingerprint
        records.append(record)
    return records


def _count(score: Mapping[str, Any]) -> int | str:
    """Return the number of pairs, queries or test examples of a score, if it has one."""
    if "examples" in score:
        sizes = list(score["examples"].values())
        return int(sizes[-1])  # the last split is the one that is tested on
    for name in ("pairs", "queries"):
        if name in score:
            return int(score[name])
    return ""


def _tables(evaluation: Evaluation, *, subsets: bool, intervals: bool) -> list[ReportParts]:
    names = table_names(evaluation.rows)
    columns: ScoresByLabel = {}
    for label, row in evaluation.rows.items():
        columns[label] = {score.column: score for score in row}
    pairs = [task for task in evaluation.tasks if isinstance(task, STSTask)]
    tables: list[ReportParts] = []
    if pairs:
        tables.append(_pairs_table(pairs, evaluation, names, columns, intervals=intervals))
    if subsets:
        for task in pairs:
            if len(task.subsets) > 1:
                tables.append(_subsets_table(task, names, columns, intervals=intervals))
    for kind in dict.fromkeys(type(score) for score in evaluation):
        if kind.averaged_over and kind is not SpearmanScore:
            tables.append(_average_table(kind, evaluation, names, columns, intervals=intervals))
    others = _other_scores(evaluation, names)
    if others:
        tables.append(_other_table(others, intervals=intervals))
    if evaluation.comparisons:
        tables.append(_comparison_table(evaluation.comparisons, names))
    if evaluation.refused:
        tables.append(_refused_lines(evaluation, names))
    return tables


def _pairs_table(
    tasks: Sequence[STSTask],
    evaluation: Evaluation,
    names: Names,
    columns: ScoresByLabel,
    *,
    intervals: bool,
) -> ReportParts:
    """Lay out the scores on graded pairs; a task of another size than printed is starred."""
    labels = any_task_names([*evaluation.missing, *(task.label for task in tasks)])
    heads = [str(name) for name in labels if task_row(name).metric == "spearman"]
    other_sizes = [task for task in tasks if len(task.pairs()) != task.expected_pairs]
    starred = [task.label for task in other_sizes]
    parts = _caption(tasks, intervals=intervals)
    parts += _score_table(
        names, columns, heads, list(map(str, TEST_TASKS)), starred, intervals=intervals
    )
    for task in tasks:
        parts += _two_level_lines(task, names, columns)
    for task in other_sizes:
        parts.append(
            f"* {task.label}: {len(task.pairs())} pairs, not {task.expected_pairs}: not comparable"
            " with printed figures"
        )
    return parts


def _two_level_lines(task: STSTask, names: Names, columns: ScoresByLabel) -> ReportParts:
    """Return what a task with yes-or-no grades can reach, and the areas under its ROC curves."""
    scores: dict[str, SpearmanScore] = {}
    for label, row in columns.items():
        score = row.get(task.label)
        if isinstance(score, SpearmanScore) and score.has_two_levels:
            scores[names[label]] = score
    if not scores:
        return []
    highest = next(iter(scores.values())).highest
    areas = ", ".join(f"{name} {score.auc:.2f}" for name, score in scores.items())
    return [
        f"{task.label}: its grades have two levels, so that the highest possible score is"
        f" {highest:.2f}; area under the ROC curve x 100: {areas}"
    ]


def _subsets_table(
    task: STSTask, names: Names, columns: ScoresByLabel, *, intervals: bool
) -> ReportParts:
    """Lay out the scores on each subset of a task."""
    rows = {}
    for label, row in columns.items():
        rows[label] = getattr(row.get(task.label), "subsets", {})
    counts = ["pairs"]
    counts += [str(len(subset)) for subset in task.subsets.values()]
    lines = [counts, *_score_lines(names, rows, list(task.subsets), intervals=intervals)]
    best = best_cells(lines, range(1, len(counts)), range(1, len(lines)))
    return [f"{task.label} by subset", Grid(["", *task.subsets], lines, best)]


def _average_table(
    kind: type[Score],
    evaluation: Evaluation,
    names: Names,
    columns: ScoresByLabel,
    *,
    intervals: bool,
) -> ReportParts:
    """Lay out scores of which an average is printed, as accuracies of transfer tasks."""
    scores = [score for score in evaluation if isinstance(score, kind)]
    known = {*evaluation.missing, *(score.column for score in scores)}
    heads = [name for name in kind.averaged_over if name in known]
    caption = getattr(scores[0], "caption", scores[0].metric)
    if intervals:
        caption += _HALVES
    table = _score_table(names, columns, heads, list(kind.averaged_over), intervals=intervals)
    return [caption, *table]


def _refused_lines(evaluation: Evaluation, names: Names) -> ReportParts:
    """Return why encoders have no scores, or not all."""
    lines: ReportParts = []
    for label, why in evaluation.refused.items():
        state = "is not complete" if evaluation.rows[label] else "has no figures"
        lines.append(f"{names[label]} {state}: {why}")
    return lines


def _score_table(
    names: Names,
    rows: ScoresByLabel,
    columns: Sequence[str],
    papers: Sequence[str],
    starred: Collection[str] = (),
    *,
    intervals: bool,
) -> ReportParts:
    """Lay out scores by column, and the average of those of the papers' tasks."""
    scored = set().union(*rows.values())
    averaged = [name for name in papers if name in scored]
    heads = [""]
    for column in columns:
        heads.append(f"{column}*" if column in starred else column)
    if averaged:
        heads.append("Avg")
    lines = _score_lines(names, rows, columns, averaged, intervals=intervals)
    best = best_cells(lines, range(1, len(heads)), range(len(lines)))
    parts: ReportParts = [Grid(heads, lines, best)]
    if 0 < len(averaged) < len(papers):
        parts.append(f"Avg: mean of {len(averaged)} of the papers' {len(papers)} tasks")
    return parts


def _score_lines(
    names: Names,
    rows: Mapping[Label, Mapping[str, Any]],
    columns: Sequence[str],
    averaged: Sequence[str] = (),
    *,
    intervals: bool,
) -> list[list[str]]:
    """Return a line of scores for each encoder, and one of half the 95% intervals, if any.

    A missing score is a dash.
    """
    lines = []
    for label, row in rows.items():
        line = [names[label]]
        halves = [""]
        for column in columns:
            score = row.get(column)
            line.append("-" if score is None else f"{score.value:.2f}")
            halves.append(_half(score))
        if averaged:
            line.append(_average(row, averaged))
            halves.append("")
        lines.append(line)
        if intervals and any(halves):
            lines.append(halves)
    return lines


def _half(score: Any) -> str:
    """Return half of a score's 95% interval, empty if it has none."""
    interval = getattr(score, "ci95", None)
    return half_interval(interval) if interval else ""


def _average(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Return the average of the columns; with one of them missing it could not be compared."""
    if any(name not in row for name in columns):
        return "-"
    return f"{average([row[name] for name in columns]):.2f}"


def _other_table(lines: Sequence[Sequence[str]], *, intervals: bool) -> ReportParts:
    """Lay out scores one below the other; the best of a task is that of a metric."""
    heads = ["", "task", "metric", "value"]
    if intervals:
        heads.append("")
    numbers_of: dict[tuple[str, str], list[int]] = {}
    task = ""
    for number, line in enumerate(lines):
        task = line[1] or task  # further metrics are printed below the first
        numbers_of.setdefault((task, line[2]), []).append(number)
    best: set[tuple[int, int]] = set()
    for numbers in numbers_of.values():
        best |= best_cells(lines, [3], numbers)
    return [Grid(heads, [line[: len(heads)] for line in lines], best)]


def _other_scores(evaluation: Evaluation, names: Names) -> list[list[str]]:
    """Return a line for each score that is neither of graded pairs nor an accuracy."""
    lines = []
    for label, row in evaluation.rows.items():
        for score in row:
            if score.averaged_over:
                continue
            value = f"{score.value:.2f}"
            lines.append([names[label], score.task, score.metric, value, _half(score)])
            if isinstance(score, RetrievalScore):
                for depth, recall, highest in (
                    (10, score.recall_at_10, score.highest_recall_at_10),
                    (100, score.recall_at_100, score.highest_recall_at_100),
                ):
                    most = "" if highest > _NEARLY_ALL else f" (at most {highest:.2f})"
                    lines.append(["", "", f"recall@{depth}{most}", f"{recall:.2f}", ""])
    return lines


def _comparison_table(comparisons: Sequence[Comparison], names: Names) -> ReportParts:
    """Lay out differences of two encoders; those beyond chance are starred."""
    compared = {_compared_on(item) for item in comparisons}
    corrected = ["p, Holm"] if len(comparisons) > 1 else []
    if len(compared) == 1:
        heads = ["", "points", "95% interval", "p", *corrected]
        on = compared.pop()
    else:
        heads = ["", "task", "points", "95% interval", "p", *corrected]
        on = "by task"
    lines = []
    for item in comparisons:
        line = [f"{names[item.first]} - {names[item.second]}"]
        if "task" in heads:
            line.append(_compared_on(item))
        star = "*" if item.beyond_chance else ""
        low, high = item.ci95
        line.append(f"{item.difference:+.2f}{star}")
        line.append(f"{low:+.2f} to {high:+.2f}")
        line.append(_p_value(item.p_value))
        if corrected:
            line.append(_p_value(item.p_holm))
        lines.append(line)
    caption = f"differences, {on}: paired bootstrap; * beyond chance of pairs, not of seeds"
    if corrected:
        caption += f", by Holm's p over {len(lines)} comparisons; interval and p are of one alone"
    parts: ReportParts = [caption, Grid(heads, lines)]
    if not any(item.beyond_chance for item in comparisons):
        largest = max(comparisons, key=lambda item: abs(item.difference))
        parts.append(f"no difference is beyond chance{_more_would_show(largest)}")
    return parts


def _p_value(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _more_would_show(comparison: Comparison) -> str:
    """Return how many pairs would show a difference of this size, if that is worth saying.

    The interval narrows with the square root of their number, and must not be wider than twice the
    difference.
    """
    if not comparison.difference:
        return ""
    low, high = comparison.ci95
    needed = comparison.pairs * ((high - low) / 2 / comparison.difference) ** 2
    if not comparison.pairs < needed < _MOST_NEEDED:
        return ""
    rounded = float(f"{needed:.1e}")  # it is an estimate
    noun = _COUNTED.get(comparison.metric, "pairs")
    return f"; about {rounded:,.0f} {noun} would show one of this size"


def _compared_on(comparison: Comparison) -> str:
    tasks = comparison.tasks
    if len(tasks) == 1:
        return tasks[0]
    return f"mean of {len(tasks)} tasks ({comparison.metric})"


def _caption(tasks: Sequence[STSTask], *, intervals: bool) -> ReportParts:
    """Return the protocol, the metric and how the text is treated."""
    metric = "Spearman x 100 over all pairs of a task"
    if intervals:
        metric += _HALVES
    if any(_is_published(task) for task in tasks):
        metric = f"protocol {tasks[0].protocol}; {metric}"
    labels_of: dict[str, list[str]] = {}
    for task in tasks:
        labels_of.setdefault(task.text, []).append(task.label)
    if len(labels_of) == 1:
        return [metric, f"text: {tasks[0].text}"]
    texts = [f"{', '.join(labels)}: {text}" for text, labels in labels_of.items()]
    return [metric, f"text: {'; '.join(texts)}"]


def _is_published(task: STSTask) -> bool:
    """Return whether a task is a published one: the package's pairs and a user's are not."""
    row = task_row(TaskName(task.name, task.split), task.protocol)
    return bool(row.folder)
