"""Trained models compared over their seeds: a test over runs, beside the one over pairs.

The interval of ``eval`` is over pairs: it says whether two encoders differ on other pairs, and
nothing of what another seed would have made of either.
"""

import fnmatch
import itertools
import statistics as plain
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scipy import stats

from promptcli.data.senteval import tasks_from
from promptcli.errors import NotFoundError, PromptcliError, UsageError, did_you_mean
from promptcli.evaluation import evaluate
from promptcli.evaluation.scores import SIGNIFICANT, Comparison, DataScore
from promptcli.evaluation.statistics import holm
from promptcli.extensions import Extension
from promptcli.models.entries import Entry
from promptcli.models.loading import open_registry
from promptcli.models.registry import Registry
from promptcli.notes import note
from promptcli.settings import typed_settings

PAIRED = "paired t"
WELCH = "Welch"
#: Points within which scores have no spread: a t test divides by it.
_EQUAL = 1e-9
#: The fields that a run's record has of its training, with clearer names for some.
_TRACED = {
    "method": "method",
    "supervised": "supervised",
    "source": "data",
    "data": "data_sha256",
    "chosen_by": "development",
    "development": "development_sha256",
    "backbone": "backbone_sha256",
    "settings": "settings",
    "settings_from": "settings_from",
    "differs_from_paper": "differs_from_paper",
    "best_step": "best_step",
    "precision": "precision",
    "command": "command",
    "versions": "versions",
    "extensions": "extensions",
}
#: Settings that may differ between runs of one group: the seed, and how the run is computed.
_OF_RUNS = ("seed", "chunk_tokens", "gradient_caching", "compile")


@dataclass(frozen=True)
class SeedRun:
    """One training: its seed, and its scores x 100 by task."""

    model: str  #: that has its record
    seed: int
    scores: Mapping[str, float]
    development: str  #: the task that chose its checkpoint
    tasks_sha256: Mapping[str, str] = field(default_factory=dict)  #: of the data of each task
    trained: Mapping[str, Any] = field(default_factory=dict)  #: how, from its record; JSON-ready

    def to_dict(self) -> dict[str, Any]:
        scores = {task: _round(value) for task, value in self.scores.items()}
        return {"model": self.model, "seed": self.seed, "scores": scores, **self.trained}


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ in their seed only."""

    name: str
    runs: Sequence[SeedRun]

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]

    @property
    def models(self) -> list[str]:
        """The models whose records have the runs, in order."""
        return list(dict.fromkeys(run.model for run in self.runs))

    @property
    def tasks(self) -> list[str]:
        """The tasks that every run has a score of."""
        first, *others = self.runs
        return [task for task in first.scores if all(task in run.scores for run in others)]

    def values(self, task: str) -> list[float]:
        return [run.scores[task] for run in self.runs]

    def task_sha256(self, task: str) -> str:
        """Return the hash of a task's data; "" if no record has it."""
        return self.runs[0].tasks_sha256.get(task, "")

    def summary(self, task: str) -> dict[str, Any]:
        """Return mean, standard deviation (n - 1; None of one run) and number of runs."""
        values = self.values(task)
        spread = plain.stdev(values) if len(values) > 1 else None
        return {"mean": plain.fmean(values), "std": spread, "runs": len(values)}

    @property
    def best_model(self) -> str:
        """The model of the run that is best on its development task."""
        return max(self.runs, key=lambda run: run.scores[run.development]).model

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "models": self.models,
            "seeds": self.seeds,
            "tasks": [self._task_document(task) for task in self.tasks],
            "runs": [run.to_dict() for run in self.runs],
        }

    def _task_document(self, task: str) -> dict[str, Any]:
        """Return the figures of a task, and the score of each run."""
        return {
            "task": task,
            "data_sha256": self.task_sha256(task),
            **{name: _round(value) for name, value in self.summary(task).items()},
            "scores": [_round(value) for value in self.values(task)],
        }


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
    over_pairs: Comparison | None = None  #: of the best models of both

    @property
    def beyond_seeds(self) -> bool:
        """Whether the difference is beyond what seeds make."""
        return self.p_holm is not None and self.p_holm < SIGNIFICANT

    def to_dict(self) -> dict[str, Any]:
        row = {
            "first": self.first,
            "second": self.second,
            "task": self.task,
            "difference": round(self.difference, 4),
            "test_over_seeds": self.test or None,
            "seeds": self.seeds,
            "p_over_seeds": _round(self.p_value),
            "p_over_seeds_holm": _round(self.p_holm),
            "p_over_pairs": None,
            "pairs": None,
        }
        if self.over_pairs is not None:
            row["p_over_pairs"] = _round(self.over_pairs.p_value)
            row["pairs"] = self.over_pairs.pairs
        return row


@dataclass(frozen=True)
class SeedTable:
    """Groups of runs, and the comparisons of every two on each task that both have."""

    groups: Sequence[SeedGroup]
    comparisons: Sequence[SeedComparison] = field(default_factory=list)

    @property
    def tasks(self) -> list[str]:
        """All tasks, in order of appearance."""
        return list(dict.fromkeys(task for group in self.groups for task in group.tasks))

    def to_dict(self) -> dict[str, Any]:
        return {
            "groups": [group.to_dict() for group in self.groups],
            "comparisons": [comparison.to_dict() for comparison in self.comparisons],
        }


def _round(value: float | None) -> float | None:
    return value if value is None or isinstance(value, int) else round(value, 6)


def compare_over_seeds(models: Sequence[str], *, data_dir: str | Path | None = None) -> SeedTable:
    """Compare trained models over the seeds of their runs, task by task.

    Besides the test over seeds there is one over pairs, a paired bootstrap of the runs that are
    best on their development pairs, for tasks whose data are present.

    Args:
        models: Two or more: a model of several runs (``train --seeds``), several models with commas
            between, or a pattern (``simcse-*``), e.g. those of an array of jobs.
        data_dir: SentEval folder of the tasks.

    Returns:
        Mean and standard deviation of each group, and the difference of every two with its tests.

    Raises:
        NotFoundError: A model is missing.
        UsageError: A model is not of a training, or runs of one group differ in more than their
            seed.

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
        return SeedTable(groups, compare_groups(groups, _over_pairs(groups)))


def _over_pairs(groups: Sequence[SeedGroup]) -> dict[tuple[str, str, str], Comparison]:
    """Return the comparisons of the best models of every two groups, by both names and task."""
    comparisons = {}
    for first, second in itertools.combinations(groups, 2):
        best = (first.best_model, second.best_model)
        tasks = [task for task in first.tasks if task in second.tasks]
        if best[0] == best[1] or not tasks:
            continue
        try:
            evaluation = evaluate([best[0]], tasks, compare=best[1], skip_missing=True)
        except PromptcliError as error:
            note(f"no test over pairs of {best[0]} and {best[1]}: {error}")
            continue
        here = {
            score.column: score.data_sha256 for score in evaluation if isinstance(score, DataScore)
        }
        for comparison in evaluation.comparisons:
            task = ", ".join(comparison.tasks)
            if first.task_sha256(task) not in ("", here.get(task)):
                note(f"no test over pairs of {task}: the data here are not those of the runs")
                continue
            comparisons[first.name, second.name, task] = comparison
    return comparisons


def read_groups(registry: Registry, words: Sequence[str]) -> list[SeedGroup]:
    """Return the runs of models: of a word's own sweep, or of all models that it names.

    A word is a model, several with commas between, or a pattern: ``simcse-*``. A model of several
    runs has them all in its record, one group for each combination of its other settings.

    Raises:
        NotFoundError: No model has that name.
        UsageError: A model is not of a training, runs of a word differ in more than their seed,
            one seed has two runs, or tasks of one name have other data.
    """
    groups = []
    for word in words:
        runs: dict[str, list[SeedRun]] = {}
        settings: dict[str, dict[str, Any]] = {}
        for name in _names(registry, word):
            for changed, run, of_run in _runs_of(registry.card(name)):
                runs.setdefault(changed, []).append(run)
                _check_alike(word, settings.setdefault(changed, of_run), of_run)
        for changed, members in runs.items():
            name = f"{word} ({changed})" if changed else word
            groups.append(SeedGroup(name, _distinct_runs(name, members)))
    _check_tasks(groups)
    return groups


def _check_tasks(groups: Sequence[SeedGroup]) -> None:
    """Refuse runs that were scored on other data under the same name of a task."""
    known: dict[str, tuple[str, str]] = {}
    for run in (run for group in groups for run in group.runs):
        for task, sha256 in run.tasks_sha256.items():
            model, other = known.setdefault(task, (run.model, sha256))
            if other != sha256:
                raise UsageError(
                    f"{task} of {model} and of {run.model} are different data, SHA-256"
                    f" {other[:12]} and {sha256[:12]}; compare models that were scored on the same"
                )


def _names(registry: Registry, word: str) -> list[str]:
    known = registry.names()
    names = []
    for part in word.split(","):
        matches = [name for name in known if fnmatch.fnmatchcase(name, part)]
        if not matches:
            raise NotFoundError(f"no model {part!r}{did_you_mean(part, known) or ''}")
        names += matches
    return list(dict.fromkeys(names))


def _runs_of(card: Entry) -> list[tuple[str, SeedRun, dict[str, Any]]]:
    """Return the runs of a model's record: changes but the seed, scores, and settings."""
    facts = card.provenance.get("trained")
    if facts is None:
        raise UsageError(
            f"model {card.name!r} is not of a training; name those of `promptcli train`"
        )
    development = facts["tasks"][0]
    backbone = card.provenance.get("backbone")
    hashes = {}
    for task, score in zip(facts["tasks"], facts.get("untrained", []), strict=False):
        if "data_sha256" in score:  # data that are read here have one
            hashes[task] = score["data_sha256"]
    if "runs" not in facts:
        values = [score["value"] for score in card.scores]
        scores = dict(zip(facts["tasks"], values, strict=True))
        trained = _training_record(facts, backbone)
        run = SeedRun(card.name, facts["seed"], scores, development, hashes, trained)
        return [("", run, _settings(facts))]
    rows = []
    for record in facts["runs"]:
        changes = {name: value for name, value in record["changes"].items() if name != "seed"}
        scores = {score["task"]: score["trained"] for score in record["scores"]}
        of_run = {**facts, **record}
        trained = _training_record(of_run, backbone)
        run = SeedRun(card.name, record["seed"], scores, development, hashes, trained)
        rows.append((", ".join(typed_settings(changes)), run, _settings(of_run)))
    return rows


def _training_record(facts: Mapping[str, Any], backbone: str | None) -> dict[str, Any]:
    """Return how a run was trained, as its record says it."""
    traced = {name: facts[field] for field, name in _TRACED.items() if field in facts}
    return {"backbone": backbone, **traced}


def _settings(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the runs of a group share: method, its code, data and settings."""
    shared = {"method": facts["method"], "data": facts["data"], "backbone": facts["backbone"]}
    shared["development"] = facts["development"]
    if facts.get("extensions"):
        code = (str(Extension(**each)) for each in facts["extensions"])
        shared["code"] = "; ".join(dict.fromkeys(code))
    for name, value in facts.get("settings", {}).items():
        if name not in _OF_RUNS:
            shared[name] = value
    return shared


def _check_alike(word: str, first: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    for name, value in first.items():
        if other.get(name) != value:
            raise UsageError(
                f"the runs of {word!r} differ in {name.replace('_', '-')}: {value} and"
                f" {other.get(name)}; name those that differ in their seed only"
            )


def _distinct_runs(name: str, runs: Sequence[SeedRun]) -> list[SeedRun]:
    """Return a group's runs by seed; a run that two models record counts once."""
    by_seed: dict[int, SeedRun] = {}
    for run in runs:
        known = by_seed.setdefault(run.seed, run)
        same = [round(value, 2) for value in known.scores.values()]
        if same != [round(value, 2) for value in run.scores.values()]:
            raise UsageError(
                f"{name}: {known.model} and {run.model} have seed {run.seed} both; name one of them"
            )
    return [by_seed[seed] for seed in sorted(by_seed)]


def compare_groups(
    groups: Sequence[SeedGroup], over_pairs: Mapping[tuple[str, str, str], Comparison]
) -> list[SeedComparison]:
    """Compare every two groups on each task of both.

    Runs of the same seeds are paired (Student's t of their differences), others compared by Welch's
    t; both two-sided. ``over_pairs``: names of both groups and task -> the comparison of their best
    models.
    """
    found = []
    for first, second in itertools.combinations(groups, 2):
        for task in first.tasks:
            if task not in second.tasks:
                continue
            test, count, p_value = _test_over_seeds(first, second, task)
            difference = plain.fmean(first.values(task)) - plain.fmean(second.values(task))
            pairs = over_pairs.get((first.name, second.name, task))
            found.append(
                SeedComparison(
                    first.name, second.name, task, difference, test, count, p_value, None, pairs
                )
            )
    return _correct_p_values(found)


def _test_over_seeds(
    first: SeedGroup, second: SeedGroup, task: str
) -> tuple[str, int, float | None]:
    """Return the test over seeds, the number of pairs or runs, and its p-value.

    None without a spread between the runs.
    """
    one, other = first.values(task), second.values(task)
    runs = len(one) + len(other)
    if first.seeds == second.seeds and len(one) > 1:
        differences = [a - b for a, b in zip(one, other, strict=True)]
        if plain.stdev(differences) < _EQUAL:
            return PAIRED, len(one), None
        return PAIRED, len(one), float(stats.ttest_rel(one, other).pvalue)
    if min(len(one), len(other)) > 1:
        if plain.stdev(one) + plain.stdev(other) < _EQUAL:
            return WELCH, runs, None
        return WELCH, runs, float(stats.ttest_ind(one, other, equal_var=False).pvalue)
    return "", runs, None


def _correct_p_values(comparisons: Sequence[SeedComparison]) -> list[SeedComparison]:
    tested = [row.p_value for row in comparisons if row.p_value is not None]
    corrected = iter(holm(tested))
    rows = []
    for row in comparisons:
        p_holm = None if row.p_value is None else next(corrected)
        rows.append(replace(row, p_holm=p_holm))
    return rows
