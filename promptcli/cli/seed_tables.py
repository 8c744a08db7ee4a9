"""Tables of trained models over their seeds."""

from promptcli.cli.grids import Grid, best_cells
from promptcli.cli.result_files import Part, Report
from promptcli.evaluation.over_seeds import SeedComparison, SeedTable


def seed_report(table: SeedTable) -> Report:
    """Return groups with mean and standard deviation of each task, and their differences."""
    return Report(table.to_dict(), _parts(table), _records(table))


def _parts(table: SeedTable) -> list[Part]:
    heads = ["", "runs"]
    for task in table.tasks:
        heads += [task, ""]
    rows = []
    for group in table.groups:
        row = [group.name, str(len(group.runs))]
        for task in table.tasks:
            if task not in group.tasks:
                row += ["-", ""]
                continue
            figures = group.summary(task)
            row += [f"{figures['mean']:.2f}", _spread(figures["std"])]
        rows.append(row)
    best = best_cells(rows, range(2, len(heads), 2), range(len(rows)))
    lines = [_line(comparison) for comparison in table.comparisons]
    tested = sum(comparison.p_value is not None for comparison in table.comparisons)
    return [
        "mean over seeds, ± standard deviation (n - 1)",
        Grid(heads, rows, best),
        f"\ndifferences of the means; p over seeds: two-sided t test, Holm over {tested}, *"
        " beyond what seeds make; p over pairs: paired bootstrap of the best runs alone",
        Grid(["", "task", "points", "test", "n", "p over seeds", "p over pairs"], lines),
    ]


def _spread(std: float | None) -> str:
    return "" if std is None else f"±{std:.2f}"


def _line(comparison: SeedComparison) -> list[str]:
    star = "*" if comparison.beyond_seeds else ""
    pairs = comparison.over_pairs
    return [
        f"{comparison.first} - {comparison.second}",
        comparison.task,
        f"{comparison.difference:+.2f}{star}",
        comparison.test or "-",
        str(comparison.seeds),
        _p(comparison.p_holm),
        "-" if pairs is None else _p(pairs.p_value),
    ]


def _p(value: float | None) -> str:
    if value is None:
        return "-"
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _records(table: SeedTable) -> list[dict[str, object]]:
    """Return a row for each score of a run, then for each difference."""
    rows: list[dict[str, object]] = []
    for group in table.groups:
        for task in group.tasks:
            figures = group.summary(task)
            seeds = " ".join(map(str, group.seeds))
            rows.append({"name": group.name, "against": "", "task": task, **figures})
            rows[-1] |= {"seeds": seeds, "test": "", "p_over_seeds": "", "p_over_pairs": ""}
    for row in table.comparisons:
        document = row.to_dict()
        rows.append({"name": row.first, "against": row.second, "task": row.task})
        rows[-1] |= {"mean": document["difference"], "std": "", "runs": row.seeds, "seeds": ""}
        rows[-1] |= {"test": row.test, "p_over_seeds": document["p_over_seeds_holm"]}
        rows[-1] |= {"p_over_pairs": document["p_over_pairs"]}
    return rows
