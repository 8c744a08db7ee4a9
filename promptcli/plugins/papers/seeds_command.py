"""``promptcli compare``: compares trained models over the seeds of their runs."""

import dataclasses
from typing import Annotated

import typer

from promptcli.cli.console import result, result_json, result_table
from promptcli.cli.options import DataDir, Json, data_folder
from promptcli.cli.tables import p_text
from promptcli.plugins.papers.seeds import (
    SeedComparison,
    SeedGroup,
    SeedTable,
    code_of,
    compare_over_seeds,
)
from promptcli.settings import typed_settings
from promptcli.training.methods.method import ContrastiveSettings

_VERSIONS = ("promptcli", "torch", "transformers")  #: versions named below a table
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(ContrastiveSettings)}
_NO_DEFAULT = object()  # of a method's own setting, which is always named
_HASH = 12  # digits of a hash in a table; the JSON has all


def compare(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="Two or more, each a model of several runs, several models joined by commas, or"
            " a pattern ('simcse-*'), e.g. the models of a job array.",
        ),
    ],
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Compare trained models over the seeds of their runs: mean, spread, and tests."""
    table = compare_over_seeds(models, data_dir=data_folder(data_dir))
    if json:
        result_json(table)
    else:
        _print_table(table)


def _print_table(table: SeedTable) -> None:
    headers = ["", "runs"]
    for task in table.tasks:
        headers += [task, ""]
    rows = []
    for group in table.groups:
        row = [group.name, str(len(group.runs))]
        for task in table.tasks:
            if task in group.tasks:
                figures = group.summary(task)
                spread = "" if figures["std"] is None else f"±{figures['std']:.2f}"
                row += [f"{figures['mean']:.2f}", spread]
            else:
                row += ["-", ""]
        rows.append(row)
    result("mean over seeds, ± standard deviation (n - 1)")
    result_table(headers, rows)
    tested = sum(comparison.p_value is not None for comparison in table.comparisons)
    result("")
    result(
        f"differences of the means; p over seeds: two-sided t test, Holm over {tested}, *"
        " beyond what seeds make; p over pairs: paired bootstrap of the best runs alone"
    )
    headers = ["", "task", "points", "test", "n", "p over seeds", "p over pairs"]
    result_table(headers, list(map(_line, table.comparisons)))
    if tested < len(table.comparisons):
        result("no p over seeds: every seed gave the same difference, or there are too few runs")
    result("")
    hashes = {task: group.task_sha256(task) for group in table.groups for task in group.tasks}
    for group in table.groups:
        result(_trace(group))
    for task, sha256 in hashes.items():
        if sha256:
            result(f"task {task}: data {sha256[:_HASH]}")


def _trace(group: SeedGroup) -> str:
    """Return the source of a group's scores: seeds, settings, data, hashes and versions."""
    trained = group.runs[0].trained
    settings = {}
    for name, value in trained.get("settings", {}).items():
        if name != "seed" and _DEFAULTS.get(name, _NO_DEFAULT) != value:
            settings[name] = value
    code = code_of(trained)
    for run in group.runs:
        versions = run.trained.get("versions", {})
        code += [f"{name} {versions[name]}" for name in _VERSIONS if name in versions]
    parts = [
        f"{trained['method']} on {trained['on']} {trained['backbone'][:_HASH]}",
        f"data {trained['source']} {trained['data'][:_HASH]}",
        f"chosen on {trained['chosen_by']} {trained['development'][:_HASH]}",
        f"seeds {' '.join(map(str, group.seeds))}",
        ", ".join([*typed_settings(settings), "all others as promptcli has them"]),
        ", ".join(dict.fromkeys(code)),
    ]
    return f"{group.name}: {'; '.join(parts)}"


def _line(comparison: SeedComparison) -> list[str]:
    star = "*" if comparison.beyond_seeds else ""
    pairs = comparison.over_pairs
    return [
        f"{comparison.first} - {comparison.second}",
        comparison.task,
        f"{comparison.difference:+.2f}{star}",
        comparison.test or "-",
        str(comparison.seeds),
        p_text(comparison.p_holm),
        p_text(pairs.p_value if pairs else None),
    ]
