"""Comparison of trained models over their seeds: a test over runs, beside the test over pairs.

The interval of ``eval`` is over pairs: it says whether two encoders differ on other pairs, but not
how another seed would change either.
"""

import fnmatch
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy import stats

from promptcli.data.senteval import tasks_from
from promptcli.errors import NotFoundError, PromptcliError, UsageError, did_you_mean
from promptcli.evaluation import evaluate
from promptcli.evaluation.scores import SIGNIFICANT, Comparison
from promptcli.evaluation.statistics import holm
from promptcli.extensions import Extension
from promptcli.models.entries import Entry, Registry
from promptcli.models.loading import open_registry
from promptcli.notes import note
from promptcli.plugins.papers.published import Facts
from promptcli.settings import typed_settings

PAIRED = "paired t"
WELCH = "Welch"
#: Spread in points that counts as zero: a t test divides by the spread.
_ROUNDING = 1e-9
#: Fields of a training's record that JSON repeats with each run.
_TRACED = (
    "method",
    "supervised",
    "source",
    "data",
    "chosen_by",
    "development",
    "backbone",
    "settings",
    "differs_from_paper",
    "best_step",
    "precision",
    "command",
    "versions",
    "extensions",
)
#: Settings that may differ within a group: the seed, and settings of computation.
_OF_RUNS = ("seed", "chunk_tokens", "gradient_caching", "compile")


@dataclass(frozen=True)
class SeedRun:
    """One training: its seed, and its scores x 100 by task."""

    model: str  #: model whose record has the run
    seed: int
    scores: Mapping[str, float]
    development: str  #: the task that chose its checkpoint
    tasks_sha256: Mapping[str, str] = field(default_factory=dict)  #: hash of each task's data
    trained: Mapping[str, Any] = field(default_factory=dict)  #: from its record; JSON-ready
    changes: str = ""  #: the settings that tell it from other runs of its model, without the seed
    #: what the runs of a group have in common: method, data, code, settings
    common: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ only in their seed."""

    name: str
    runs: Sequence[SeedRun]

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]

    @property
    def tasks(self) -> list[str]:
        """The tasks that every run has a score for."""
        first, *others = self.runs
        return [task for task in first.scores if all(task in run.scores for run in others)]

    def values(self, task: str) -> list[float]:
        return [run.scores[task] for run in self.runs]

    def task_sha256(self, task: str) -> str:
        """Return the hash of a task's data; "" if no record has it."""
        return self.runs[0].tasks_sha256.get(task, "")

    def summary(self, task: str) -> Facts:
        """Return mean, standard deviation (n - 1; None of one run) and number of runs."""
        values = self.values(task)
        spread = stdev(values) if len(values) > 1 else None
        return {"mean": fmean(values), "std": spread, "runs": len(values)}

    @property
    def best_model(self) -> str:
        """The model of the run that is best on its development task."""
        return max(self.runs, key=lambda run: run.scores[run.development]).model

    def to_dict(self) -> Facts:
        tasks = [
            {
                "task": task,
                "data_sha256": self.task_sha256(task),
                **self.summary(task),
                "scores": self.values(task),
            }
            for task in self.tasks
        ]
        runs = [
            {"model": run.model, "seed": run.seed, "scores": run.scores, **run.trained}
            for run in self.runs
        ]
        return {"name": self.name, "seeds": self.seeds, "tasks": tasks, "runs": runs}


@dataclass(frozen=True)
class SeedComparison:
    """The difference of two groups' means on a task, and its tests."""

    first: str
    second: str
    task: str
    difference: float  #: of the means, first - second
    test: str  #: over seeds: ``PAIRED``, ``WELCH``, or "" with too few runs
    seeds: int  #: pairs of runs, or runs of both
    p_value: float | None
    p_holm: float | None = None  #: corrected for all comparisons (Holm, 1979)
    over_pairs: Comparison | None = None  #: comparison of the best models of both

    @property
    def beyond_seeds(self) -> bool:
        """Whether the difference is larger than the variation over seeds explains."""
        return self.p_holm is not None and self.p_holm < SIGNIFICANT


@dataclass(frozen=True)
class SeedTable:
    """Groups of runs, and the comparisons of every two on each task that both have."""

    groups: Sequence[SeedGroup]
    comparisons: Sequence[SeedComparison]

    @property
    def tasks(self) -> list[str]:
        """All tasks, in order of appearance."""
        return list(dict.fromkeys(task for group in self.groups for task in group.tasks))


def compare_over_seeds(models: Sequence[str], *, data_dir: str | Path | None = None) -> SeedTable:
    """Compare trained models over the seeds of their runs, task by task.

    A second test is over pairs: a paired bootstrap of the runs that are best on their development
    pairs, for tasks whose data are present.

    Args:
        models: Two or more: a model of several runs (``train --seeds``), several models with commas
            between, or a pattern (``simcse-*``), e.g. those of an array of jobs.
        data_dir: SentEval folder of the tasks.

    Returns:
        Mean and standard deviation of each group, and the difference of every two with its tests.

    Raises:
        NotFoundError: A model is missing.
        UsageError: A model was not trained, runs of one group differ in more than their seed, or
            no two groups were scored on the same task.

    Example:
        >>> import promptcli as pc
        >>> table = pc.compare_over_seeds(["simcse-*", "promptbert-*"])  # doctest: +SKIP
        >>> table.comparisons[0].p_value  # doctest: +SKIP
        0.03
    """
    groups = read_groups(open_registry(), models)
    if len(groups) < 2:
        raise UsageError(f"{len(groups)} group of runs; name a second one to compare it with")
    with tasks_from(data_dir):
        comparisons = compare_groups(groups)
    if not comparisons:
        scored = "; ".join(f"{group.name}: {', '.join(group.tasks)}" for group in groups)
        raise UsageError(f"these models were scored on no common task ({scored}); name others")
    return SeedTable(groups, comparisons)


def read_groups(registry: Registry, words: Sequence[str]) -> list[SeedGroup]:
    """Return the runs of models: those of a word's own sweep, or of all models that it names.

    A word is a model, several joined by commas, or a pattern: ``simcse-*``. A model of several runs
    has them all in its record, one group for each combination of its other settings.

    Raises:
        NotFoundError: No model has that name.
        UsageError: A model was not trained, runs of a word differ in more than their seed,
            one seed has two runs, or tasks of one name have other data.
    """
    groups = []
    for word in words:
        by_changes: dict[str, list[SeedRun]] = {}
        for name in _names(registry, word):
            for run in _runs_of(registry.card(name)):
                by_changes.setdefault(run.changes, []).append(run)
        for changes, runs in by_changes.items():
            name = f"{word} ({changes})" if changes else word
            groups.append(SeedGroup(name, _distinct_runs(name, runs)))
    _check_data(run for group in groups for run in group.runs)
    return groups


def _names(registry: Registry, word: str) -> list[str]:
    known = registry.names()
    names = []
    for part in word.split(","):
        matches = fnmatch.filter(known, part)
        if not matches:
            raise NotFoundError(f"no model {part!r}{did_you_mean(part, known) or ''}")
        names += matches
    return list(dict.fromkeys(names))


def _runs_of(card: Entry) -> list[SeedRun]:
    """Return the runs in a model's record: those of a sweep, or the one that trained it."""
    facts = card.provenance.get("trained", {})
    if "scores" not in facts:
        raise UsageError(f"model {card.name!r} has no runs; name those of `promptcli train`")
    own_scores = facts["scores"]["trained"]
    hashes = {}
    for task, score in zip(own_scores, card.scores, strict=True):
        if "data_sha256" in score:  # data that are read here have one
            hashes[task] = score["data_sha256"]
    runs = []
    for record in facts.get("runs", [{}]):
        of_run = {**facts, **record}
        scores = own_scores
        if "scores" in record:
            scores = {score["task"]: score["trained"] for score in record["scores"]}
        changes = {**of_run.get("changes", {})}
        changes.pop("seed", None)
        trained = {name: of_run[name] for name in _TRACED if name in of_run}
        common = {name: of_run[name] for name in ("method", "data", "backbone", "development")}
        common["code"] = "; ".join(code_of(of_run))
        settings = of_run.get("settings", {})
        common |= {name: value for name, value in settings.items() if name not in _OF_RUNS}
        runs.append(
            SeedRun(
                card.name,
                of_run["seed"],
                scores,
                development=next(iter(own_scores)),
                tasks_sha256=hashes,
                trained={**trained, "on": card.provenance["backbone"]},
                changes=", ".join(typed_settings(changes)),
                common=common,
            )
        )
    return runs


def _check_data(runs: Iterable[SeedRun]) -> None:
    """Refuse runs whose tasks of one name have other data."""
    first_with: dict[str, SeedRun] = {}
    for run in runs:
        for task, sha256 in run.tasks_sha256.items():
            first = first_with.setdefault(task, run)
            if first.tasks_sha256[task] != sha256:
                raise UsageError(
                    f"{task} of {first.model} and of {run.model} are different data; compare"
                    " models that were scored on the same"
                )


def code_of(facts: Mapping[str, Any]) -> list[str]:
    """Return the plug-ins' code used in a training."""
    return list(dict.fromkeys(str(Extension(**each)) for each in facts.get("extensions", [])))


def _distinct_runs(name: str, runs: Sequence[SeedRun]) -> list[SeedRun]:
    """Return a group's runs by seed; a run recorded by two models counts once.

    Refuse runs that differ in more than their seed.
    """
    by_seed: dict[int, SeedRun] = {}
    for run in runs:
        for setting, value in runs[0].common.items():
            if run.common.get(setting) != value:
                raise UsageError(
                    f"the runs of {name!r} differ in {setting.replace('_', '-')}: {value} and"
                    f" {run.common.get(setting)}; name those that differ in their seed only"
                )
        known = by_seed.setdefault(run.seed, run)
        same = [round(value, 2) for value in known.scores.values()]
        if same != [round(value, 2) for value in run.scores.values()]:
            raise UsageError(
                f"{name}: {known.model} and {run.model} have seed {run.seed} both; name one of them"
            )
    return [by_seed[seed] for seed in sorted(by_seed)]


def compare_groups(groups: Sequence[SeedGroup]) -> list[SeedComparison]:
    """Compare every two groups on each common task.

    Runs of the same seeds are paired (Student's t of their differences), others compared by Welch's
    t; both are two-sided.
    """
    comparisons = []
    for first, second in itertools.combinations(groups, 2):
        tasks = [task for task in first.tasks if task in second.tasks]
        over_pairs = _over_pairs(first, second, tasks)
        for task in tasks:
            compared = _compare_on(task, first, second)
            comparisons.append(replace(compared, over_pairs=over_pairs.get(task)))
    p_values = [row.p_value for row in comparisons if row.p_value is not None]
    corrected = iter(holm(p_values))
    return [
        row if row.p_value is None else replace(row, p_holm=next(corrected)) for row in comparisons
    ]


def _compare_on(task: str, first: SeedGroup, second: SeedGroup) -> SeedComparison:
    """Return the test over seeds on a task; it has no p-value if the runs have no spread."""
    one, other = first.values(task), second.values(task)
    test, count, p_value = "", len(one) + len(other), None
    if min(len(one), len(other)) < 2:
        pass  # too few runs for a test
    elif first.seeds == second.seeds:
        test, count = PAIRED, len(one)
        if stdev([a - b for a, b in zip(one, other, strict=True)]) >= _ROUNDING:
            p_value = float(stats.ttest_rel(one, other).pvalue)
    else:
        test = WELCH
        if stdev(one) + stdev(other) >= _ROUNDING:
            p_value = float(stats.ttest_ind(one, other, equal_var=False).pvalue)
    difference = fmean(one) - fmean(other)
    return SeedComparison(first.name, second.name, task, difference, test, count, p_value)


def _over_pairs(first: SeedGroup, second: SeedGroup, tasks: Sequence[str]) -> dict[str, Comparison]:
    """Return the comparisons of both groups' best models, by task."""
    best, other = first.best_model, second.best_model
    if best == other or not tasks:
        return {}
    try:
        evaluation = evaluate([best], tasks, compare=other, skip_missing=True)
    except PromptcliError as error:
        note(f"no test over pairs of {best} and {other}: {error}")
        return {}
    here = {score.column: getattr(score, "data_sha256", None) for score in evaluation}
    comparisons = {}
    for comparison in evaluation.comparisons:
        [task] = comparison.tasks
        if first.task_sha256(task) in ("", here.get(task)):
            comparisons[task] = comparison
        else:
            note(f"no test over pairs of {task}: the data here are not those of the runs")
    return comparisons
