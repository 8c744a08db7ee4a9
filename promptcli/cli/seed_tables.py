"""Tables of trained models over their seeds."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from promptcli.cli.grids import Grid, best_cells
from promptcli.cli.result_files import Part, Report
from promptcli.evaluation.over_seeds import SeedComparison, SeedGroup, SeedTable
from promptcli.extensions import Extension
from promptcli.settings import typed_settings
from promptcli.training.methods.training_settings import ContrastiveSettings

_VERSIONS = ("promptcli", "torch", "transformers")  #: those that a table names
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(ContrastiveSettings)}
_NO_DEFAULT = object()  # of a method's own setting, which is always named
_HASH = 12  # digits of a hash in a table; the JSON has all


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
    untested = [
        "",
        "no p over seeds: every seed gave the same difference, or there are too few runs",
    ]
    traces = ["", *map(_trace, table.groups), *_tasks(table)]
    return [
        "mean over seeds, ± standard deviation (n - 1)",
        Grid(heads, rows, best),
        "",
        f"differences of the means; p over seeds: two-sided t test, Holm over {tested}, *"
        " beyond what seeds make; p over pairs: paired bootstrap of the best runs alone",
        Grid(["", "task", "points", "test", "n", "p over seeds", "p over pairs"], lines),
        *(untested if tested < len(lines) else []),
        *traces,
    ]


def _trace(group: SeedGroup) -> str:
    """Return what a group's figures follow from: seeds, settings, data, hashes and versions."""
    trained = group.runs[0].trained
    settings = {}
    for name, value in trained.get("settings", {}).items():
        if name != "seed" and _DEFAULTS.get(name, _NO_DEFAULT) != value:
            settings[name] = value
    code = [str(Extension(**each)) for each in trained.get("extensions", [])]
    for run in group.runs:
        versions = run.trained.get("versions", {})
        code += [f"{name} {versions[name]}" for name in _VERSIONS if name in versions]
    parts = [
        f"{trained.get('method')} on {_with_hash(trained, 'backbone')}",
        f"data {_with_hash(trained, 'data')}",
        f"chosen on {_with_hash(trained, 'development')}",
        f"seeds {' '.join(map(str, group.seeds))}",
        ", ".join([*typed_settings(settings), "all others as promptcli has them"]),
        ", ".join(dict.fromkeys(code)),
    ]
    return f"{group.name}: {'; '.join(parts)}"


def _with_hash(trained: Mapping[str, Any], name: str) -> str:
    return f"{trained.get(name)} {str(trained.get(f'{name}_sha256'))[:_HASH]}"


def _tasks(table: SeedTable) -> list[str]:
    """Return the hash of each task's data."""
    hashes = {}
    for group in table.groups:
        for task in group.tasks:
            hashes[task] = group.task_sha256(task)[:_HASH]
    return [f"task {task}: data {sha256}" for task, sha256 in hashes.items() if sha256]


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
            rows.append(
                {
                    "name": group.name,
                    "against": "",
                    "task": task,
                    **group.summary(task),
                    "seeds": " ".join(map(str, group.seeds)),
                    "test": "",
                    "p_over_seeds": "",
                    "p_over_pairs": "",
                    "task_sha256": group.task_sha256(task),
                    "trained": _trace(group),
                }
            )
    for comparison in table.comparisons:
        document = comparison.to_dict()
        rows.append(
            {
                "name": comparison.first,
                "against": comparison.second,
                "task": comparison.task,
                "mean": document["difference"],
                "std": "",
                "runs": comparison.seeds,
                "seeds": "",
                "test": comparison.test,
                "p_over_seeds": document["p_over_seeds_holm"],
                "p_over_pairs": document["p_over_pairs"],
                "task_sha256": "",
                "trained": "",
            }
        )
    return rows
