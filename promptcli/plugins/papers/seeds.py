"""Comparison of trained models over the seeds of their runs.

The interval of ``eval`` is over pairs: it says whether two encoders differ on other pairs, but not
how their scores change with another seed.
"""

import fnmatch
import itertools
from collections.abc import Mapping, Sequence
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
from promptcli.settings import spell_settings

PAIRED = "paired t"
WELCH = "Welch"
#: A spread in points that counts as zero; a t test divides by the spread.
_ZERO_SPREAD = 1e-9
#: Fields of a training's record that are copied to each run in JSON.
_COPIED_FIELDS = (
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
#: Settings in which the runs of a group may differ; all but the seed only change the computation.
_FREE_SETTINGS = ("seed", "chunk_tokens", "gradient_caching", "compile")


@dataclass(frozen=True)
class SeedRun:
    """A training run."""

    model: str  #: the model whose record has the run
    seed: int
    scores: Mapping[str, float]  #: x 100, by task
    development: str  #: the task that chose its checkpoint
    tasks_sha256: Mapping[str, str] = field(default_factory=dict)  #: hash of each task's data
    trained: Mapping[str, Any] = field(default_factory=dict)  #: fields of its record, JSON-ready
    changes: str = ""  #: the settings, without the seed, that differ among the model's runs
    #: method, data, code and settings, which must be equal in all runs of a group
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
        """The tasks on which every run has a score."""
        first, *others = self.runs
        return [task for task in first.scores if all(task in run.scores for run in others)]

    def values(self, task: str) -> list[float]:
        return [run.scores[task] for run in self.runs]

    def task_sha256(self, task: str) -> str:
        """Return the hash of a task's data, or "" if the record has none."""
        return self.runs[0].tasks_sha256.get(task, "")

    def summary(self, task: str) -> Facts:
        """Return mean, standard deviation (n - 1; None for a single run) and number of runs."""
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


@dataclass(frozen=True, kw_only=True)
class SeedComparison:
    """The difference of two groups' means on a task, and its tests."""

    first: str
    second: str
    task: str
    difference: float  #: of the means, first - second
    test: str  #: over seeds: ``PAIRED``, ``WELCH``, or "" with too few runs
    seeds: int  #: number of pairs of runs, or of the runs of both groups
    p_value: float | None  #: None if the runs are too few or have no spread
    p_holm: float | None = None  #: corrected for all comparisons (Holm, 1979)
    over_pairs: Comparison | None  #: of the groups' best models, by a paired bootstrap

    @property
    def beyond_seeds(self) -> bool:
        """Whether the difference is significant, given the variation over seeds."""
        return self.p_holm is not None and self.p_holm < SIGNIFICANT


@dataclass(frozen=True)
class SeedTable:
    """Groups of runs, and the comparisons of every two groups on their common tasks."""

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
        models: Two or more, each a model of several runs (``train --seeds``), several models joined
            by commas, or a pattern (``simcse-*``), e.g. the models of an array of jobs.
        data_dir: SentEval folder of the tasks.

    Returns:
        The runs of each group, and the difference of every two groups with its tests.

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
    """Return the groups of runs that words name.

    A word is a model, several models joined by commas, or a pattern: ``simcse-*``. The runs of a
    word's models are a group; if they differ in settings that a sweep changed, there is a group for
    each combination of these settings.

    Raises:
        NotFoundError: No model has that name.
        UsageError: A model was not trained, the runs of a group differ in more than their seed, a
            seed has two runs, or the data of a task differ.
    """
    groups = []
    first_with: dict[str, SeedRun] = {}  # task -> the first run with a hash of its data
    for word in words:
        by_changes: dict[str, list[SeedRun]] = {}
        for name in _model_names(registry, word):
            for run in _runs_of(registry.load_manifest(name)):
                by_changes.setdefault(run.changes, []).append(run)
                for task, sha256 in run.tasks_sha256.items():
                    first = first_with.setdefault(task, run)
                    if first.tasks_sha256[task] != sha256:
                        raise UsageError(
                            f"{task} of {first.model} and of {run.model} are different data;"
                            " compare models that were scored on the same"
                        )
        for changes, runs in by_changes.items():
            name = f"{word} ({changes})" if changes else word
            groups.append(SeedGroup(name, _distinct_runs(name, runs)))
    return groups


def _model_names(registry: Registry, word: str) -> list[str]:
    known_names = registry.names()
    names = []
    for pattern in word.split(","):
        matches = fnmatch.filter(known_names, pattern)
        if not matches:
            raise NotFoundError(f"no model {pattern!r}{did_you_mean(pattern, known_names) or ''}")
        names += matches
    return list(dict.fromkeys(names))


def _runs_of(model: Entry) -> list[SeedRun]:
    """Return the runs in a model's record: those of a sweep, or the run that trained the model."""
    record = model.provenance.get("trained", {})
    if "scores" not in record:
        raise UsageError(f"model {model.name!r} has no runs; name those of `promptcli train`")
    model_scores = record["scores"]["trained"]
    hashes = {}
    for task, score in zip(model_scores, model.scores, strict=True):
        if "data_sha256" in score:  # absent for tasks with a user's own metric
            hashes[task] = score["data_sha256"]
    runs = []
    for run in record.get("runs", [{}]):
        scores = model_scores
        if "scores" in run:
            scores = {score["task"]: score["trained"] for score in run["scores"]}
        facts = {**record, **run}
        changes = {
            name: value for name, value in facts.get("changes", {}).items() if name != "seed"
        }
        trained = {name: facts[name] for name in _COPIED_FIELDS if name in facts}
        common = {name: facts[name] for name in ("method", "data", "backbone", "development")}
        common["code"] = "; ".join(code_of(facts))
        settings = facts.get("settings", {})
        common |= {name: value for name, value in settings.items() if name not in _FREE_SETTINGS}
        runs.append(
            SeedRun(
                model.name,
                facts["seed"],
                scores,
                development=next(iter(model_scores)),
                tasks_sha256=hashes,
                trained={**trained, "on": model.provenance["backbone"]},
                changes=", ".join(spell_settings(changes)),
                common=common,
            )
        )
    return runs


def code_of(facts: Mapping[str, Any]) -> list[str]:
    """Return the plug-ins whose code was used in a training."""
    extensions = facts.get("extensions", [])
    return list(dict.fromkeys(str(Extension(**extension)) for extension in extensions))


def _distinct_runs(name: str, runs: Sequence[SeedRun]) -> list[SeedRun]:
    """Return the runs of a group by seed; a run that two models record counts once.

    Runs that differ in more than their seed are refused.
    """
    by_seed: dict[int, SeedRun] = {}
    for run in runs:
        for setting, value in runs[0].common.items():
            if run.common.get(setting) != value:
                raise UsageError(
                    f"the runs of {name!r} differ in {setting.replace('_', '-')}: {value} and"
                    f" {run.common.get(setting)}; name those that differ in their seed only"
                )
        first = by_seed.setdefault(run.seed, run)
        first_scores = [round(value, 2) for value in first.scores.values()]
        if first_scores != [round(value, 2) for value in run.scores.values()]:
            raise UsageError(
                f"{name}: {first.model} and {run.model} have seed {run.seed} both; name one of them"
            )
    return [by_seed[seed] for seed in sorted(by_seed)]


def compare_groups(groups: Sequence[SeedGroup]) -> list[SeedComparison]:
    """Compare every two groups on each common task.

    Runs of the same seeds are paired (Student's t of their differences); other runs are compared by
    Welch's t. Both tests are two-sided.
    """
    comparisons = []
    for first, second in itertools.combinations(groups, 2):
        tasks = [task for task in first.tasks if task in second.tasks]
        over_pairs = _compare_over_pairs(first, second, tasks)
        for task in tasks:
            comparisons.append(_compare_on(task, first, second, over_pairs.get(task)))
    p_values = [row.p_value for row in comparisons if row.p_value is not None]
    corrected = iter(holm(p_values))
    return [
        row if row.p_value is None else replace(row, p_holm=next(corrected)) for row in comparisons
    ]


def _compare_on(
    task: str, first: SeedGroup, second: SeedGroup, over_pairs: Comparison | None
) -> SeedComparison:
    """Return the test over seeds on a task."""
    scores, other_scores = first.values(task), second.values(task)
    test, p_value = "", None
    count = len(scores) + len(other_scores)
    if len(scores) > 1 and first.seeds == second.seeds:
        test, count = PAIRED, len(scores)
        differences = [score - other for score, other in zip(scores, other_scores, strict=True)]
        if stdev(differences) >= _ZERO_SPREAD:
            p_value = float(stats.ttest_rel(scores, other_scores).pvalue)
    elif min(len(scores), len(other_scores)) > 1:
        test = WELCH
        if stdev(scores) + stdev(other_scores) >= _ZERO_SPREAD:
            p_value = float(stats.ttest_ind(scores, other_scores, equal_var=False).pvalue)
    return SeedComparison(
        first=first.name,
        second=second.name,
        task=task,
        difference=fmean(scores) - fmean(other_scores),
        test=test,
        seeds=count,
        p_value=p_value,
        over_pairs=over_pairs,
    )


def _compare_over_pairs(
    first: SeedGroup, second: SeedGroup, tasks: Sequence[str]
) -> dict[str, Comparison]:
    """Return the comparisons of the groups' best models, by task."""
    best, other = first.best_model, second.best_model
    if best == other or not tasks:
        return {}
    try:
        evaluation = evaluate([best], tasks, compare=other, skip_missing=True)
    except PromptcliError as error:
        note(f"no test over pairs of {best} and {other}: {error}")
        return {}
    hashes = {score.column: getattr(score, "data_sha256", None) for score in evaluation}
    comparisons = {}
    for comparison in evaluation.comparisons:
        [task] = comparison.tasks
        if first.task_sha256(task) in ("", hashes.get(task)):
            comparisons[task] = comparison
        else:
            note(f"no test over pairs of {task}: the data here are not those of the runs")
    return comparisons
