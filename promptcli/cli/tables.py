"""Tables of scores."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from promptcli.cli.console import Grid, half_interval
from promptcli.cli.result_files import TablesAndLines, best_cells
from promptcli.data.task_table import TaskName, task_row
from promptcli.data.tasks import STSTask, task_names
from promptcli.errors import with_count
from promptcli.evaluation.evaluator import mean_of_rounded
from promptcli.evaluation.scores import (
    Comparison,
    Evaluation,
    Label,
    RetrievalScore,
    Score,
    SpearmanScore,
)
from promptcli.recipe import Recipe


def table_names(labels: Collection[Label]) -> dict[Label, str]:
    """Return a short name of each encoder, or its full name if the short one is not unique.

    Several recipes of one model are named without the model.
    """
    is_one_model = len(labels) > 1 and len({label.model for label in labels}) == 1
    names = {label: _short_name(label, with_model=not is_one_model) for label in labels}
    counts = Counter(names.values())
    for label, name in names.items():
        if counts[name] > 1:
            names[label] = f"{label.model} {label.recipe}".rstrip()
    return names


def _short_name(label: Label, *, with_model: bool) -> str:
    """Return the end of a model's path with its recipe; a saved model is named without a recipe.

    Of a recipe without a name, only the pooling is shown.
    """
    if label.entry or not label.recipe:
        return label.short_model
    recipe = label.recipe
    if "=" in recipe:
        match = re.search(r"(?:^| )pooling=(\S+)", recipe)
        recipe = match[1] if match else Recipe().pooling
    return f"{label.short_model} {recipe}" if with_model else recipe


def evaluation_tables(evaluation: Evaluation, *, subsets: bool, intervals: bool) -> TablesAndLines:
    """Return the tables of graded pairs and of accuracies, laid out as in the papers, and below
    them those of all other tasks, the comparisons, and the reasons for missing scores.

    A blank line separates them.
    """
    tables = _EvaluationTables(evaluation, intervals)
    tasks = [task for task in evaluation.tasks if isinstance(task, STSTask)]
    sections = [tables.graded_pairs(tasks)]
    if subsets:
        sections += [tables.subsets(task) for task in tasks if len(task.subsets) > 1]
    for kind in dict.fromkeys(type(score) for score in evaluation):
        if kind.averaged_over and kind is not SpearmanScore:
            sections.append(tables.averages(kind))
    sections.append(tables.other_tasks())
    sections.append(comparison_table(evaluation.comparisons, tables.names))
    sections.append(tables.refusals())
    tables_and_lines: TablesAndLines = []
    for section in filter(None, sections):
        if tables_and_lines:
            tables_and_lines.append("")
        tables_and_lines += section
    return tables_and_lines


def evaluation_records(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return one record for each score, without comparisons."""
    records = []
    for score in evaluation:
        row = score.to_dict()
        row["ci95_low"], row["ci95_high"] = row.pop("ci95") or ("", "")
        records.append(
            {name: figure for name, figure in row.items() if not isinstance(figure, dict)}
        )
    return records


class _EvaluationTables:
    """The tables of one evaluation, with their captions and notes."""

    def __init__(self, evaluation: Evaluation, intervals: bool) -> None:
        self.evaluation = evaluation
        self.names = table_names(evaluation.rows)
        self._intervals = intervals
        #: end of a caption
        self._plus_minus = "; ± half of the 95% bootstrap interval" if intervals else ""
        #: scores of each encoder, by column
        self._rows = {
            label: {score.column: score for score in row} for label, row in evaluation.rows.items()
        }

    def graded_pairs(self, tasks: Sequence[STSTask]) -> TablesAndLines:
        """Lay out the scores on graded pairs.

        A task whose number of pairs is not the published one has a star.
        """
        if not tasks:
            return []
        labels = task_names([*self.evaluation.missing, *(task.label for task in tasks)])
        columns = [str(name) for name in labels if task_row(name).metric == "spearman"]
        notes_by_star = {}
        for task in tasks:
            if len(task.pairs()) != task.expected_pairs:
                notes_by_star[task.label] = (
                    f"* {task.label}: {len(task.pairs())} pairs, not {task.expected_pairs}: not"
                    " comparable with printed figures"
                )
        headers = [f"{column}*" if column in notes_by_star else column for column in columns]
        section = self._caption(tasks)
        section += self._scores(self._rows, columns, headers, SpearmanScore.averaged_over)
        for task in tasks:
            section += self._two_levels(task)
        return [*section, *notes_by_star.values()]

    def _caption(self, tasks: Sequence[STSTask]) -> TablesAndLines:
        """Return the protocol, the metric and how the text is treated."""
        metric = f"Spearman x 100 over all pairs of a task{self._plus_minus}"
        published = [task_row(TaskName(task.name, task.split), task.protocol) for task in tasks]
        if any(row.folder for row in published):  # the shipped pairs and a user's have no folder
            metric = f"protocol {tasks[0].protocol}; {metric}"
        text = tasks[0].text
        if any(task.text != text for task in tasks):
            text = "; ".join(f"{task.label}: {task.text}" for task in tasks)
        return [metric, f"text: {text}"]

    def _two_levels(self, task: STSTask) -> TablesAndLines:
        """Return the highest possible score and the areas under the ROC curves, if the grades of a
        task say only yes or no.
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

    def subsets(self, task: STSTask) -> TablesAndLines:
        """Lay out the scores on each subset of a task."""
        rows = {
            label: getattr(row.get(task.label), "subsets", {}) for label, row in self._rows.items()
        }
        counts = ["pairs", *(str(len(subset)) for subset in task.subsets.values())]
        table = self._scores(rows, list(task.subsets), first_row=counts)
        return [f"{task.label} by subset", *table]

    def averages(self, kind: type[Score]) -> TablesAndLines:
        """Lay out scores that have an average, such as accuracies of transfer tasks."""
        scores = [score for score in self.evaluation if isinstance(score, kind)]
        tasks = {*self.evaluation.missing, *(score.column for score in scores)}
        columns = [name for name in kind.averaged_over if name in tasks]
        caption = getattr(scores[0], "caption", scores[0].metric)
        table = self._scores(self._rows, columns, averaged_over=kind.averaged_over)
        return [f"{caption}{self._plus_minus}", *table]

    def _scores(
        self,
        rows: Mapping[Label, Mapping[str, Any]],
        columns: Sequence[str],
        headers: Sequence[str] = (),
        averaged_over: Sequence[str] = (),
        first_row: Sequence[str] = (),
    ) -> TablesAndLines:
        """Lay out a row of scores for each encoder, and a row of half 95% intervals, if any.

        A dash is a missing score, or an average that lacks one of the papers' tasks.
        """
        averaged = [name for name in averaged_over if any(name in row for row in rows.values())]
        cells = [list(first_row)] if first_row else []
        for label, row in rows.items():
            scores = [row.get(column) for column in columns]
            values = [f"{score.value:.2f}" if score else "-" for score in scores]
            halves = list(map(self._half_interval, scores))
            if averaged:
                values.append("-")
                halves.append("")
                if all(name in row for name in averaged):
                    values[-1] = f"{mean_of_rounded([row[name] for name in averaged]):.2f}"
            cells.append([self.names[label], *values])
            if any(halves):
                cells.append(["", *halves])
        all_headers = ["", *(headers or columns), *(["Avg"] if averaged else [])]
        rows_of_scores = range(bool(first_row), len(cells))
        best = best_cells(cells, range(1, len(all_headers)), rows_of_scores)
        section: TablesAndLines = [Grid(all_headers, cells, best)]
        if 0 < len(averaged) < len(averaged_over):
            section.append(
                f"Avg: mean of {len(averaged)} of the papers' {len(averaged_over)} tasks"
            )
        return section

    def _half_interval(self, score: Any) -> str:
        """Return half of a score's 95% interval; "" if it has none or intervals are left out."""
        interval = getattr(score, "ci95", None)
        return half_interval(interval) if interval and self._intervals else ""

    def other_tasks(self) -> TablesAndLines:
        """Lay out the scores that have no average, in a table for each task."""
        by_task: dict[str, dict[Label, dict[str, Any]]] = {}
        for label, row in self.evaluation.rows.items():
            for score in row:
                if score.averaged_over:
                    continue
                figures = by_task.setdefault(score.task, {}).setdefault(label, {})
                figures[score.metric] = score
                if isinstance(score, RetrievalScore):
                    for header, recall, highest in (
                        ("recall@10", score.recall_at_10, score.highest_recall_at_10),
                        ("recall@100", score.recall_at_100, score.highest_recall_at_100),
                    ):
                        limit = f"{highest:.2f}"
                        if limit != "100.00":
                            header += f" (at most {limit})"
                        figures[header] = SimpleNamespace(value=recall)
        section: TablesAndLines = []
        for task, rows in by_task.items():
            if section:
                section.append("")
            columns = dict.fromkeys(metric for row in rows.values() for metric in row)
            section += [task, *self._scores(rows, list(columns))]
        return section

    def refusals(self) -> TablesAndLines:
        """Return why encoders have no scores, or not all."""
        lines: TablesAndLines = []
        for label, reason in self.evaluation.refused.items():
            state = "is not complete" if self.evaluation.rows[label] else "has no figures"
            lines.append(f"{self.names[label]} {state}: {reason}")
        return lines


def comparison_table(
    comparisons: Sequence[Comparison], names: Mapping[Label, str]
) -> TablesAndLines:
    """Lay out differences of two encoders; a star marks those beyond chance."""
    if not comparisons:
        return []
    caption = (
        "Differences by paired bootstrap over the pairs, not over training seeds. *: significant"
        f" (Holm's p < 0.05 over {with_count(len(comparisons), 'comparison')}); the interval and p"
        " are those of a single comparison."
    )
    rows = []
    for item in comparisons:
        low, high = item.ci95
        tasks = item.tasks[0]
        if len(item.tasks) > 1:
            tasks = f"mean of {len(item.tasks)} tasks ({item.metric})"
        rows.append(
            [
                f"{names[item.first]} - {names[item.second]}",
                tasks,
                f"{item.difference:+.2f}{'*' if item.beyond_chance else ''}",
                f"{low:+.2f} to {high:+.2f}",
                p_text(item.p_value),
                p_text(item.p_holm),
            ]
        )
    headers = ["", "task", "points", "95% interval", "p", "p, Holm"]
    section: TablesAndLines = [caption, Grid(headers, rows)]
    if not any(item.beyond_chance for item in comparisons):
        section.append("no difference is beyond chance")
    return section


def p_text(p: float | None) -> str:
    """Return a p-value as tables show it; a dash for None."""
    if p is None:
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"
