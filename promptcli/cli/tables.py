"""Tables of scores and of the papers' results as lines of text, at most 100 columns wide where labels allow."""

import itertools
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from promptcli.cli.console import as_typed, half_interval, out, result
from promptcli.data.task_table import TEST_TASKS, TRANSFER_TASKS, TaskName, task_row
from promptcli.data.tasks import STSTask
from promptcli.evaluation.evaluator import average
from promptcli.evaluation.scores import AccuracyScore, Comparison, Label, SpearmanScore

if TYPE_CHECKING:
    from promptcli.reproducing.planning import TableOverview


#: Label, cells, style.
Row = tuple[str, Sequence[str], str]


def table_names(labels: Collection[Label]) -> dict[Label, str]:
    """Return what to call each encoder in a table: its recipe, with its model too where they have several.

    A model whose recipe is a long template without a name is called by its own.
    """
    counts = Counter(label.model for label in labels)
    one = len(counts) == 1
    names = {label: label.recipe if one else f"{label.model} {label.recipe}" for label in labels}
    alone = [label for label in names if label.recipe.startswith("prompt=") and counts[label.model] == 1]
    return names | {label: label.model for label in alone}


def score_table(
    rows: dict[Label, list[SpearmanScore]],
    names: dict[Label, str],
    wanted: Sequence[TaskName],
    tasks: Sequence[STSTask],
) -> list[Text]:
    """Lay out one row of figures per encoder, half of each 95% interval below, and what was scored above.

    The columns are the tasks ``wanted``; those that are not among ``tasks``, which are there, are dashes.
    """
    columns = [str(name) for name in wanted]
    in_average = {str(name) for name in TEST_TASKS} & {task.label for task in tasks}
    short = {task.label for task in tasks if len(task.pairs()) != task.expected_pairs}
    heads = [column + "*" * (column in short) for column in columns]
    if in_average:
        heads.append(_average_head(len(in_average), len(TEST_TASKS)))
    lines = [Text(line) for line in _caption(tasks)]
    body: list[Row] = []
    for label, scores in rows.items():
        by_column = {score.column: score for score in scores}
        found = [by_column.get(column) for column in columns]
        values = ["-" if score is None else f"{score.value:.2f}" for score in found]
        halves = ["" if score is None else half_interval(score.ci95) for score in found]
        if in_average:
            values.append(f"{average(score for score in scores if score.column in in_average):.2f}")
            halves.append("")
        body += [(names[label], values, ""), ("", halves, "dim")]
    lines += grid(heads, body)
    return lines + [
        Text(
            f"* {task.label}: {len(task.pairs())} pairs, not {task.expected_pairs}: not comparable with printed figures"
        )
        for task in tasks
        if task.label in short
    ]


def subset_table(rows: dict[Label, list[SpearmanScore]], names: dict[Label, str], task: STSTask) -> list[Text]:
    """Lay out each encoder's figures on the subsets of one task."""
    body: list[Row] = [("pairs", [str(len(part)) for part in task.subsets.values()], "")]
    for label, scores in rows.items():
        score = next(score for score in scores if score.column == task.label)
        body.append((names[label], [f"{part.value:.2f}" for part in score.subsets.values()], ""))
    return [Text(f"{task.label} by subset"), *grid(list(task.subsets), body)]


def comparison_table(comparisons: Sequence[Comparison], first: str, second: str) -> list[Text]:
    """Lay out one encoder's differences from another, task by task."""
    lines = [Text(f"{first} - {second}, paired bootstrap over the pairs of each task")]
    heads = ["difference", "95% interval", "p", "pairs"]
    body: list[Row] = []
    for item in comparisons:
        low, high = item.ci95
        cells = [f"{item.difference:+.2f}", f"{low:+.2f} to {high:+.2f}", f"{item.p_value:.3f}", str(item.pairs)]
        body.append((str(TaskName(item.task, item.split)), cells, ""))
    return lines + grid(heads, body)


def score_tables(
    rows: dict[Label, list[SpearmanScore]],
    comparisons: Sequence[Comparison],
    wanted: Sequence[TaskName],
    tasks: Sequence[STSTask],
    *,
    subsets: bool,
) -> list[list[Text]]:
    """Lay out all that ``eval`` shows: the scores, those of subsets on request, and comparisons."""
    names = table_names(rows)
    tables = [score_table(rows, names, wanted, tasks)]
    if subsets:
        tables += [subset_table(rows, names, task) for task in tasks if len(task.subsets) > 1]
    for first, group in itertools.groupby(comparisons, key=lambda comparison: comparison.first):
        block = list(group)
        tables.append(comparison_table(block, names[first], names[block[0].second]))
    return tables


def accuracy_table(rows: dict[Label, list[AccuracyScore]], wanted: Sequence[str]) -> list[Text]:
    """Lay out one row of accuracies per encoder; tasks that are not there are dashes."""
    names = table_names(rows)
    body: list[Row] = []
    for label, scores in rows.items():
        by_task = {score.task: f"{score.value:.2f}" for score in scores}
        body.append((names[label], [*(by_task.get(name, "-") for name in wanted), f"{average(scores):.2f}"], ""))
    return grid([*wanted, _average_head(len(by_task), len(TRANSFER_TASKS))], body)


def print_tables(tables: Iterable[Sequence[Text]]) -> None:
    """Print tables with a blank line between them."""
    for number, table in enumerate(tables):
        if number:
            result("")
        print_lines(table)


def print_lines(lines: Iterable[Text]) -> None:
    """Print the lines of a table."""
    for line in lines:
        out.print(line)


def _average_head(there: int, all_of_them: int) -> str:
    return "Avg" if there == all_of_them else f"Avg ({there} of {all_of_them})"


def _caption(tasks: Sequence[STSTask]) -> list[str]:
    texts: dict[str, list[str]] = {}
    for task in tasks:
        texts.setdefault(task.text, []).append(task.label)
    treated = "; ".join(f"{', '.join(labels)}: {text}" for text, labels in texts.items())
    if len(texts) == 1:
        treated = next(iter(texts))
    published = any(task_row(TaskName(task.name, task.split), task.protocol).folder for task in tasks)
    protocol = f"protocol {tasks[0].protocol}; " if published else ""  # the package's pairs and a user's have none
    return [
        f"{protocol}Spearman x 100 over all pairs of a task; ± half of the 95% bootstrap interval",
        f"text: {treated}",
    ]


def grid(heads: Sequence[str], body: Sequence[Row | Text], *, label: int = 24) -> list[Text]:
    """Align rows under their heads.

    Args:
        heads: Of the columns of figures.
        body: Rows, and lines that stand among them as they are.
        label: Characters of a label; a longer one gets a line of its own.
    """
    rows = [row for row in body if not isinstance(row, Text)]
    width = max([6, *(len(name) for name, _, _ in rows if len(name) <= label)])
    columns = zip(heads, *(values for _, values, _ in rows), strict=True)
    widths = [max(7, *map(len, column)) for column in columns]

    def aligned(name: str, values: Sequence[str]) -> str:
        padded = (value.rjust(size) for value, size in zip(values, widths, strict=True))
        return f"{name:<{width}} {' '.join(padded)}".rstrip()

    lines = [Text(aligned("", heads)), Text("-" * (width + sum(widths) + len(widths)))]
    for row in body:
        if isinstance(row, Text):
            lines.append(row)
            continue
        name, values, style = row
        if len(name) > width:
            lines.append(Text(name, style))
            name = ""
        lines.append(Text(aligned(name, values), style))
    return lines


#: How each kind of line looks: what was published for another model is grey.
_STYLES = {
    "measured": "bold",
    "interval": "dim",
    "published": "",
    "other": "bright_black",
    "difference": "cyan",
    "reason": "dim",
}


def result_lines(document: Mapping[str, Any]) -> Iterator[Text]:
    """Lay out a result document: what was measured on what, every row's lines under the heads, remarks."""
    from promptcli.reproducing.report import caption, heads, notes, reasons, table_lines

    yield Text(f"{document['table']}: {document['title']}", "bold")
    for about in caption(document):
        yield from _folded(about)
    body: list[Row | Text] = []
    for line in table_lines(document):
        style = _STYLES[line.kind]
        if line.kind == "reason":
            body += [Text(line.label), *_folded(as_typed(f"not measured: {line.cells[0]}"), indent=4, style=style)]
        else:
            body.append((line.label if line.kind == "measured" else f"  {line.label}", line.cells, style))
    yield from grid(heads(document), body, label=26)
    for remark in [*reasons(document), *notes(document)]:
        yield from _folded(as_typed(remark), style="dim")


def list_lines(overviews: "Sequence[TableOverview]", backbone: str) -> Iterator[Text]:
    """Lay out what every table needs and how many of its figures can be measured now."""
    yield Text(f"figures that can be measured now on {backbone}, of those published")
    for look in overviews:
        style = "bold" if look.now else ""
        yield Text(f"{look.table:<24} {look.now:>4} of {look.figures:<4} {look.title}", style)
        needs = [f"on {', '.join(look.backbones)}", *look.data, " / ".join(look.time)]
        yield from _folded("; ".join(part for part in needs if part), indent=4, style="dim")
        for why, count in look.lacks.items():
            yield from _folded(as_typed(f"{count} not now: {why}"), indent=4, style="dim")
    yield from _folded(
        "data: --data-dir FOLDER (SentEval's `downstream`), or none, then a run asks the Hugging Face hub; weights:"
        " --backbone NAME fetches them from there once; --paper takes every row's own"
    )


def _folded(text: str, *, indent: int = 0, style: str = "") -> Iterator[Text]:
    lead = " " * indent
    for line in textwrap.wrap(
        text, out.width if out.is_terminal else 98, initial_indent=lead, subsequent_indent=lead + "  "
    ):
        yield Text(line, style)
