"""Tables of scores."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from promptcli.cli.console import Grid, half_interval
from promptcli.cli.result_files import best_cells
from promptcli.data.task_table import TaskName, task_row
from promptcli.data.tasks import STSTask, task_names
from promptcli.errors import with_count
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

#: Tables and lines, shown one below another.
ReportParts = list[str | Grid]
Names = Mapping[Label, str]
#: The end of a caption.
_HALVES = "; ± half of the 95% bootstrap interval"
_NEARLY_ALL = 99.995  #: of a share x 100, rounded as printed


def table_names(labels: Collection[Label]) -> dict[Label, str]:
    """Return a short name of each encoder, or its full name if the short one is not unique.

    Several recipes of one model are named without the model.
    """
    is_one_model = len(labels) > 1 and len({label.model for label in labels}) == 1
    names = {label: _short_name(label, with_model=not is_one_model) for label in labels}
    often = Counter(names.values())
    for label, name in names.items():
        if often[name] > 1:
            names[label] = f"{label.model} {label.recipe}".rstrip()
    return names


def _short_name(label: Label, *, with_model: bool) -> str:
    """Return the name of a saved model, else the end of its path with its recipe; of a list of
    fields only the pooling is kept.
    """
    if label.entry or not label.recipe:
        return label.end
    recipe = label.recipe
    if "=" in recipe:
        match = re.search(r"(?:^| )pooling=(\S+)", recipe)
        recipe = match[1] if match else Recipe().pooling
    return f"{label.end} {recipe}" if with_model else recipe


def evaluation_parts(evaluation: Evaluation, *, subsets: bool, intervals: bool) -> ReportParts:
    """Return the tables of graded pairs and of accuracies, laid out as in the papers, then all
    others.

    A blank line separates them.
    """
    tables = _Tables(evaluation, intervals)
    pairs = [task for task in evaluation.tasks if isinstance(task, STSTask)]
    shown = [tables.pairs(pairs)]
    if subsets:
        shown += [tables.subsets(task) for task in pairs if len(task.subsets) > 1]
    for kind in dict.fromkeys(type(score) for score in evaluation):
        if kind.averaged_over and kind is not SpearmanScore:
            shown.append(tables.averages(kind))
    shown += [tables.others(), comparison_table(evaluation.comparisons, tables.names)]
    shown.append(tables.refused())
    parts: ReportParts = []
    for table in filter(None, shown):
        parts += ["", *table] if parts else table
    return parts


def evaluation_records(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return a row of figures for each score, without comparisons."""
    records = []
    for score in evaluation:
        row = score.to_dict()
        row["ci95_low"], row["ci95_high"] = row.pop("ci95") or ("", "")
        records.append(
            {name: figure for name, figure in row.items() if not isinstance(figure, dict)}
        )
    return records


class _Tables:
    """The tables of one evaluation, with their captions and notes."""

    def __init__(self, evaluation: Evaluation, intervals: bool) -> None:
        self.evaluation = evaluation
        self.names = table_names(evaluation.rows)
        self._halves = _HALVES if intervals else ""
        #: by encoder, its scores by column
        self._rows = {
            label: {score.column: score for score in row} for label, row in evaluation.rows.items()
        }

    def pairs(self, tasks: Sequence[STSTask]) -> ReportParts:
        """Lay out the scores on graded pairs; a task of another size than printed is starred."""
        if not tasks:
            return []
        labels = task_names([*self.evaluation.missing, *(task.label for task in tasks)])
        columns = [str(name) for name in labels if task_row(name).metric == "spearman"]
        parts = self._caption(tasks)
        stars = {}
        for task in tasks:
            if len(task.pairs()) != task.expected_pairs:
                stars[task.label] = (
                    f"* {task.label}: {len(task.pairs())} pairs, not {task.expected_pairs}: not"
                    " comparable with printed figures"
                )
        heads = [f"{column}*" if column in stars else column for column in columns]
        parts += self._scores(self._rows, columns, heads, SpearmanScore.averaged_over)
        for task in tasks:
            parts += self._two_levels(task)
        return [*parts, *stars.values()]

    def _caption(self, tasks: Sequence[STSTask]) -> ReportParts:
        """Return the protocol, the metric and how the text is treated."""
        metric = f"Spearman x 100 over all pairs of a task{self._halves}"
        published = [task_row(TaskName(task.name, task.split), task.protocol) for task in tasks]
        if any(row.folder for row in published):  # the package's pairs and a user's have none
            metric = f"protocol {tasks[0].protocol}; {metric}"
        texts = dict.fromkeys(task.text for task in tasks)
        if len(texts) == 1:
            return [metric, f"text: {tasks[0].text}"]
        by_task = "; ".join(f"{task.label}: {task.text}" for task in tasks)
        return [metric, f"text: {by_task}"]

    def _two_levels(self, task: STSTask) -> ReportParts:
        """Return the highest score that yes-or-no grades allow, and the areas under the ROC
        curves.
        """
        areas = []
        highest = 0.0
        for label, row in self._rows.items():
            score = row.get(task.label)
            if isinstance(score, SpearmanScore) and score.has_two_levels:
                highest = score.highest
                areas.append(f"{self.names[label]} {score.auc:.2f}")
        if not areas:
            return []
        return [
            f"{task.label}: its grades have two levels, so that the highest possible score is"
            f" {highest:.2f}; area under the ROC curve x 100: {', '.join(areas)}"
        ]

    def subsets(self, task: STSTask) -> ReportParts:
        """Lay out the scores on each subset of a task."""
        rows = {
            label: getattr(row.get(task.label), "subsets", {}) for label, row in self._rows.items()
        }
        counts = ["pairs", *(str(len(subset)) for subset in task.subsets.values())]
        return [f"{task.label} by subset", *self._scores(rows, list(task.subsets), first=counts)]

    def averages(self, kind: type[Score]) -> ReportParts:
        """Lay out scores that have an average, such as accuracies of transfer tasks."""
        scores = [score for score in self.evaluation if isinstance(score, kind)]
        known = {*self.evaluation.missing, *(score.column for score in scores)}
        columns = [name for name in kind.averaged_over if name in known]
        caption = getattr(scores[0], "caption", scores[0].metric)
        table = self._scores(self._rows, columns, averaged_over=kind.averaged_over)
        return [f"{caption}{self._halves}", *table]

    def _scores(
        self,
        rows: Mapping[Label, Mapping[str, Any]],
        columns: Sequence[str],
        heads: Sequence[str] = (),
        averaged_over: Sequence[str] = (),
        first: Sequence[str] = (),
    ) -> ReportParts:
        """Lay out a row of scores for each encoder, and a row of half 95% intervals, if any.

        A missing score is a dash, and so is an average that lacks one of the papers' tasks.
        """
        averaged = [name for name in averaged_over if any(name in row for row in rows.values())]
        lines = [list(first)] if first else []
        for label, row in rows.items():
            scores = [row.get(column) for column in columns]
            values = [f"{score.value:.2f}" if score else "-" for score in scores]
            halves = list(map(self._half, scores))
            if averaged:
                whole = all(name in row for name in averaged)
                mean = average([row[name] for name in averaged]) if whole else None
                values.append("-" if mean is None else f"{mean:.2f}")
                halves.append("")
            lines.append([self.names[label], *values])
            if any(halves):
                lines.append(["", *halves])
        all_heads = ["", *(heads or columns), *(["Avg"] if averaged else [])]
        best = best_cells(lines, range(1, len(all_heads)), range(bool(first), len(lines)))
        parts: ReportParts = [Grid(all_heads, lines, best)]
        if 0 < len(averaged) < len(averaged_over):
            parts.append(f"Avg: mean of {len(averaged)} of the papers' {len(averaged_over)} tasks")
        return parts

    def _half(self, score: Any) -> str:
        """Return half of a score's 95% interval; empty if it has none or intervals are hidden."""
        interval = getattr(score, "ci95", None)
        return half_interval(interval) if interval and self._halves else ""

    def others(self) -> ReportParts:
        """Lay out all other scores (not graded pairs, not accuracies), a table for each task."""
        by_task: dict[str, dict[Label, dict[str, Any]]] = {}
        for label, row in self.evaluation.rows.items():
            for score in row:
                if not score.averaged_over:
                    rows = by_task.setdefault(score.task, {})
                    rows.setdefault(label, {}).update(_by_metric(score))
        parts: ReportParts = []
        for task, rows in by_task.items():
            columns = dict.fromkeys(metric for row in rows.values() for metric in row)
            parts += ["", task] if parts else [task]
            parts += self._scores(rows, list(columns))
        return parts

    def refused(self) -> ReportParts:
        """Return why encoders have no scores, or not all."""
        lines: ReportParts = []
        for label, why in self.evaluation.refused.items():
            state = "is not complete" if self.evaluation.rows[label] else "has no figures"
            lines.append(f"{self.names[label]} {state}: {why}")
        return lines


def _by_metric(score: Score) -> dict[str, Any]:
    """Return the figures of a score by column header."""
    figures: dict[str, Any] = {score.metric: score}
    if isinstance(score, RetrievalScore):
        for metric, recall, highest in (
            ("recall@10", score.recall_at_10, score.highest_recall_at_10),
            ("recall@100", score.recall_at_100, score.highest_recall_at_100),
        ):
            most = "" if highest > _NEARLY_ALL else f" (at most {highest:.2f})"
            figures[f"{metric}{most}"] = SimpleNamespace(value=recall)
    return figures


def comparison_table(comparisons: Sequence[Comparison], names: Names) -> ReportParts:
    """Lay out differences of two encoders; a star marks those beyond chance."""
    if not comparisons:
        return []
    caption = (
        "differences: paired bootstrap; * beyond chance of pairs, not of seeds, by Holm's p over"
        f" {with_count(len(comparisons), 'comparison')}; interval and p are for a single comparison"
    )
    rows = []
    for item in comparisons:
        low, high = item.ci95
        rows.append(
            [
                f"{names[item.first]} - {names[item.second]}",
                _compared_on(item),
                f"{item.difference:+.2f}{'*' if item.beyond_chance else ''}",
                f"{low:+.2f} to {high:+.2f}",
                p_text(item.p_value),
                p_text(item.p_holm),
            ]
        )
    heads = ["", "task", "points", "95% interval", "p", "p, Holm"]
    parts: ReportParts = [caption, Grid(heads, rows)]
    if not any(item.beyond_chance for item in comparisons):
        parts.append("no difference is beyond chance")
    return parts


def p_text(p: float | None) -> str:
    """Return a p-value as tables show it; a dash for None."""
    if p is None:
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _compared_on(comparison: Comparison) -> str:
    tasks = comparison.tasks
    if len(tasks) == 1:
        return tasks[0]
    return f"mean of {len(tasks)} tasks ({comparison.metric})"
