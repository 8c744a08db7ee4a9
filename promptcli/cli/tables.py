"""Tables of scores."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from promptcli.cli.console import as_typed, half_interval, show, table
from promptcli.data.task_table import TEST_TASKS, TRANSFER_TASKS, TaskName, task_row
from promptcli.data.tasks import STSTask, any_task_names
from promptcli.evaluation.evaluator import EvalSettings, average
from promptcli.evaluation.scores import (
    AccuracyScore,
    Comparison,
    Evaluation,
    Label,
    RetrievalScore,
    Score,
    SpearmanScore,
)

#: Tables and lines that are shown one below the other.
Parts = list[RenderableType]
#: Encoders with their scores.
Rows = Mapping[Label, Sequence[Score]]
#: Longest name in a table: seven tasks and their average have room next to it in 80 columns.
_LONGEST = 22


def table_names(labels: Collection[Label], longest: int = _LONGEST) -> dict[Label, str]:
    """Return a short name of each encoder that no other one has: its model, its recipe, or both if they differ.

    Of a model's path only the last part is shown, and of a long name the beginning.
    """
    rows, ends = Counter(label.model for label in labels), dict[str, set[str]]()
    for label in labels:
        ends.setdefault(label.end, set()).add(label.model)
    names: dict[Label, str] = {}
    for label in labels:
        model = label.end if len(ends[label.end]) == 1 else label.model
        recipe = label.recipe.removeprefix("pooling=")
        alone = rows[label.model] == 1 and (label.named or "=" in label.recipe or not label.recipe)
        name = model if alone else recipe if len(rows) == 1 else f"{model} {recipe}"
        names[label] = name if len(name) <= longest else f"{name[: longest - 1]}…"
    taken = Counter(names.values())
    return {
        label: name if taken[name] == 1 else f"{name} #{number}"
        for number, (label, name) in enumerate(names.items(), 1)
    }


def print_evaluation(evaluation: Evaluation, settings: EvalSettings, *, subsets: bool) -> None:
    """Print the tables of graded pairs and of accuracies as in the papers, other figures one below the other."""
    rows, missing = evaluation.rows, evaluation.missing
    names = table_names(rows)
    pairs = [task for task in evaluation.tasks if isinstance(task, STSTask)]
    tables = list[Parts]()
    if pairs:
        columns = any_task_names([*missing, *(task.label for task in pairs)])
        wanted = [str(name) for name in columns if str(name) not in TRANSFER_TASKS]
        tables.append(score_table(rows, names, wanted, pairs))
    if subsets:
        tables += [subset_table(rows, names, task) for task in pairs if len(task.subsets) > 1]
    if any(isinstance(score, AccuracyScore) for score in evaluation):
        scored = {*missing, *(task.name for task in evaluation.tasks)}
        caption = settings.training.caption(settings.classifier_seed)
        tables.append([caption, *accuracy_table(rows, names, [name for name in TRANSFER_TASKS if name in scored])])
    if others := _other_figures(evaluation, names):
        tables.append([table(("", "task", "metric", "value", ""), others)])
    if evaluation.comparisons:
        tables.append(comparison_table(evaluation.comparisons, names))
    lacks = {label: "is not complete" if rows[label] else "has no figures" for label in evaluation.refused}
    remarks = [as_typed(f"{names[label]} {lacks[label]}: {why}") for label, why in evaluation.refused.items()]
    remarks += [f"{name}: {label.model} {label.recipe}" for label, name in names.items() if "…" in name or "#" in name]
    for number, parts in enumerate([*tables, *([list[RenderableType](remarks)] if remarks else [])]):
        show(*([""] if number else []), *parts)


def _other_figures(evaluation: Evaluation, names: dict[Label, str]) -> list[list[str]]:
    cells = []
    for label, row in evaluation.rows.items():
        for score in (score for score in row if not isinstance(score, SpearmanScore | AccuracyScore)):
            half = "" if score.ci95 is None else half_interval(score.ci95)
            cells.append([names[label], score.task, score.metric, f"{score.value:.2f}", half])
            if isinstance(score, RetrievalScore):
                recalls = {"recall@10": score.recall_at_10, "recall@100": score.recall_at_100}
                cells += [["", "", name, f"{recall:.2f}", ""] for name, recall in recalls.items()]
    return cells


def score_table(rows: Rows, names: dict[Label, str], columns: Sequence[str], tasks: Sequence[STSTask]) -> Parts:
    """Lay out one row of figures per encoder, half of each 95% interval below, and a caption above.

    Columns that are missing from ``tasks`` are dashes; the best figure of a column is bold.
    """
    in_average = {str(name) for name in TEST_TASKS} & {task.label for task in tasks}
    short = {task.label for task in tasks if len(task.pairs()) != task.expected_pairs}
    graded = {label: {score.column: score for score in row} for label, row in rows.items()}
    heads = ["", *(column + "*" * (column in short) for column in columns)]
    values, halves = _figures(graded, columns), list[list[str]]()
    for number, by_column in enumerate(graded.values()):
        intervals = [by_column[name].ci95 if name in by_column else None for name in columns]
        halves.append(["", *("" if interval is None else half_interval(interval) for interval in intervals)])
        if in_average:
            of_papers = [score for name, score in by_column.items() if name in in_average]
            values[number].append(f"{average(of_papers):.2f}" if of_papers else "-")
            halves[number].append("")
    remarks = [
        f"* {task.label}: {len(task.pairs())} pairs, not {task.expected_pairs}: not comparable with printed figures"
        for task in tasks
        if task.label in short
    ]
    if in_average:
        heads.append("Avg")
        if len(in_average) < len(TEST_TASKS):
            remarks.insert(0, f"Avg: mean of {len(in_average)} of the papers' {len(TEST_TASKS)} tasks")
    cells = _best_bold(names, values)
    both = [line for pair in zip(cells, halves, strict=True) for line in pair if any(line)]
    styles = ["" if line[0] else "dim" for line in both]
    return [*_caption(tasks), table(heads, both, styles), *remarks]


def subset_table(rows: Rows, names: dict[Label, str], task: STSTask) -> Parts:
    """Lay out each encoder's figures on the subsets of one task."""
    of_task = {label: [score for score in row if score.column == task.label] for label, row in rows.items()}
    subsets = {label: row[0].subsets if row else {} for label, row in of_task.items()}  # type: ignore[attr-defined]
    values = _figures(subsets, list(task.subsets))
    cells = _best_bold(names, values)
    pairs = ["pairs", *(str(len(pairs)) for pairs in task.subsets.values())]
    return [f"{task.label} by subset", table(["", *task.subsets], [pairs, *cells])]


def comparison_table(comparisons: Sequence[Comparison], names: dict[Label, str]) -> Parts:
    """Lay out differences of two encoders; those beyond chance are starred."""
    single = len({tuple(comparison.tasks) for comparison in comparisons}) == 1
    cells = []
    for item in comparisons:
        difference = f"{item.difference:+.2f}" + "*" * item.beyond_chance
        interval = "{:+.2f} to {:+.2f}".format(*item.ci95)
        p_value = "<0.001" if item.p_holm < 0.001 else f"{item.p_holm:.3f}"
        task = [] if single else [", ".join(item.tasks)]
        cells.append([f"{names[item.first]} - {names[item.second]}", *task, difference, interval, p_value])
    tasks = comparisons[0].tasks
    on = "each task" if not single else tasks[0] if len(tasks) == 1 else f"mean of {len(tasks)} tasks"
    caption = f"differences, {on}: paired bootstrap, Holm over {len(cells)}; * beyond chance"
    return [caption, table(["", *([] if single else ["task"]), "points", "95% interval", "p"], cells)]


def accuracy_table(rows: Rows, names: dict[Label, str], wanted: Sequence[str]) -> Parts:
    """Lay out one row of accuracies per encoder; missing tasks are dashes."""
    by_task = {
        label: {score.task: score for score in row if isinstance(score, AccuracyScore)} for label, row in rows.items()
    }
    values = _figures(by_task, wanted)
    for row, scores in zip(values, by_task.values(), strict=True):
        row.append(f"{average(scores.values()):.2f}" if scores else "-")
    count, total = max(map(len, by_task.values())), len(TRANSFER_TASKS)
    cells = _best_bold(names, values)
    remark = [] if count == total else [f"Avg: mean of {count} of the papers' {total} tasks"]
    return [table(["", *wanted, "Avg"], cells), *remark]


def _figures(rows: Mapping[Label, Mapping[str, Any]], columns: Sequence[str]) -> list[list[str]]:
    return [[f"{row[column].value:.2f}" if column in row else "-" for column in columns] for row in rows.values()]


def _best_bold(names: Mapping[Label, str], rows: Sequence[Sequence[str]]) -> list[list[str | Text]]:
    """Return rows behind their names, of several the highest figure of every column in bold."""
    best = [max((float(cell) for cell in column if cell != "-"), default=None) for column in zip(*rows, strict=True)]
    return [
        [
            name,
            *(
                Text(cell, "bold" if len(rows) > 1 and cell != "-" and float(cell) == high else "")
                for cell, high in zip(row, best, strict=True)
            ),
        ]
        for name, row in zip(names.values(), rows, strict=True)
    ]


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
