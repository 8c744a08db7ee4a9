"""``promptcli compare``: compares trained models over the seeds of their runs."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import typer

from promptcli.cli.console import print_json, print_line, print_table
from promptcli.cli.options import DataDir, Json, data_folder
from promptcli.cli.tables import p_text
from promptcli.errors import with_count
from promptcli.plugins.papers.seeds import (
    SeedComparison,
    SeedGroup,
    code_of,
    compare_over_seeds,
)
from promptcli.settings import spell_settings
from promptcli.training.methods.method import ContrastiveSettings

_LIBRARIES = ("promptcli", "torch", "transformers")  #: whose versions are named below a table
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(ContrastiveSettings)}
_HASH_DIGITS = 12  #: in a table; the JSON has all digits


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
        print_json(table)
        return
    headers = ["", "runs"]
    for task in table.tasks:
        headers += [task, ""]
    print_line("mean over seeds, ± standard deviation (n - 1)")
    print_table(headers, [_mean_row(group, table.tasks) for group in table.groups])
    test_count = sum(comparison.p_value is not None for comparison in table.comparisons)
    print_line("")
    over_seeds = "none"
    if test_count:
        over_seeds = f"two-sided t test, Holm over {with_count(test_count, 'test')}, * significant"
    print_line(
        f"differences of the means; p over seeds: {over_seeds}; p over pairs: paired bootstrap of"
        " each group's best run"
    )
    headers = ["", "task", "points", "test", "n", "p over seeds", "p over pairs"]
    print_table(headers, list(map(_comparison_row, table.comparisons)))
    if test_count < len(table.comparisons):
        print_line(
            "no p over seeds: every seed gave the same difference, or there are too few runs"
        )
    print_line("")
    hashes = {task: group.task_sha256(task) for group in table.groups for task in group.tasks}
    for group in table.groups:
        print_line(f"{group.name}: {_source_of(group)}")
    for task, sha256 in hashes.items():
        if sha256:
            print_line(f"task {task}: data {sha256[:_HASH_DIGITS]}")


def _mean_row(group: SeedGroup, tasks: Sequence[str]) -> list[object]:
    row: list[object] = [group.name, len(group.runs)]
    for task in tasks:
        if task in group.tasks:
            summary = group.summary(task)
            spread = "" if summary["std"] is None else f"±{summary['std']:.2f}"
            row += [f"{summary['mean']:.2f}", spread]
        else:
            row += ["-", ""]
    return row


def _source_of(group: SeedGroup) -> str:
    """Return where a group's scores come from: seeds, settings, data, hashes and versions."""
    trained = group.runs[0].trained
    settings = {}
    for name, value in trained.get("settings", {}).items():
        is_default = name in _DEFAULTS and value == _DEFAULTS[name]
        if name != "seed" and not is_default:
            settings[name] = value
    code = code_of(trained)
    for run in group.runs:
        versions = run.trained.get("versions", {})
        code += [f"{name} {versions[name]}" for name in _LIBRARIES if name in versions]
    sources = [
        f"{trained['method']} on {trained['on']} {trained['backbone'][:_HASH_DIGITS]}",
        f"data {trained['source']} {trained['data'][:_HASH_DIGITS]}",
        f"chosen on {trained['chosen_by']} {trained['development'][:_HASH_DIGITS]}",
        f"seeds {' '.join(map(str, group.seeds))}",
        ", ".join([*spell_settings(settings), "all others as promptcli has them"]),
        ", ".join(dict.fromkeys(code)),
    ]
    return "; ".join(sources)


def _comparison_row(comparison: SeedComparison) -> list[object]:
    star = "*" if comparison.beyond_seeds else ""
    pairs = comparison.over_pairs
    return [
        f"{comparison.first} - {comparison.second}",
        comparison.task,
        f"{comparison.difference:+.2f}{star}",
        comparison.test or "-",
        comparison.seeds,
        p_text(comparison.p_holm),
        p_text(pairs.p_value if pairs else None),
    ]
