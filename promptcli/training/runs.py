"""A training run: method, backbone and examples to an entry scored next to the untrained encoder; once, or many times.

Several trials (every combination of a sweep, every seed) share a folder; the best by the development set is kept.
"""

import dataclasses
import hashlib
import itertools
import json
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from promptcli import __version__
from promptcli.backbones.backbone import Backbone
from promptcli.data.tasks import STSTask
from promptcli.data.training_examples import TrainingExamples
from promptcli.encoder.encoder import Encoder, build_encoder, tuned_weights
from promptcli.errors import UsageError
from promptcli.evaluation.evaluator import evaluate
from promptcli.evaluation.scores import Label
from promptcli.models.entries import Entry
from promptcli.models.registry import portable
from promptcli.notes import note
from promptcli.storage.documents import convert, shown
from promptcli.storage.files import write_text
from promptcli.storage.runs import RunFolder, read_log
from promptcli.training.learner import Learner
from promptcli.training.methods.method import Method
from promptcli.training.methods.training_settings import TrainingSettings
from promptcli.training.objectives import find_objective
from promptcli.training.processes import Processes
from promptcli.training.trainer import TrainedWeights, Trainer, steps_of

_FILE = "trials.jsonl"


@dataclass(frozen=True)
class Start:
    """The numbers of an entry that a run starts from, as far as the run has a place for them."""

    name: str
    tensors: Mapping[str, Tensor]

    @property
    def sha256(self) -> str:
        """Of names and numbers."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.tensors.items()):
            digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class TrainingRun:
    """What is to be done."""

    method: Method
    settings: TrainingSettings
    examples: TrainingExamples
    source: str  #: names the examples
    development: STSTask  #: what the best numbers are chosen by
    tests: tuple[STSTask, ...] = ()  #: scored at the end, untrained and trained
    start: Start | None = None  #: where it starts; None for the backbone as it was pre-trained
    models: Mapping[str, Encoder] = dataclasses.field(default_factory=dict)  #: that settings name, by setting

    def on(self, backbone: Backbone, settings: TrainingSettings) -> "TrainingRun":
        """Return the run with the settings in force on a backbone, and the examples that it can learn from.

        Raises:
            UsageError: There are none.
        """
        objective = find_objective(self.method)
        return dataclasses.replace(
            self, settings=settings, examples=objective.choose(self.examples, settings, backbone)
        )

    def check(self, trial: "Trial", backbone: Backbone) -> None:
        """Refuse what cannot be trained, or not be read afterwards, before anything is written.

        Raises:
            UsageError: Fewer examples than one batch, or a transfer recipe that is unknown, or must be fitted.
        """
        settings = self.method.changed(self.settings, trial.changes)
        steps_of(settings, self.examples.sizes)
        recipe = self.method.recipe(backbone.name, backbone.provenance.family, settings)
        transfer = self.method.transfer_recipe(recipe, settings)
        if settings.transfer_recipe and transfer is not None:
            build_encoder(transfer, backbone=backbone)

    def identity(self, backbone: Backbone) -> dict[str, Any]:
        """Return what must be the same when the run is resumed; JSON-ready."""
        return {
            "method": self.method.name,
            "supervised": self.examples.supervised,
            **dataclasses.asdict(self.settings),
            "data": self.examples.sha256,
            "development": self.development.sha256(),
            "backbone": backbone.provenance.weights_sha256,
            **({} if self.start is None else {"from": self.start.sha256}),
            **{f"{name}_fingerprint": model.fingerprint for name, model in self.models.items()},
        }

    def train(self, backbone: Backbone, folder: Path, processes: Processes) -> tuple[Encoder, TrainedWeights]:
        """Train; return the encoder of the best numbers, and how the run went.

        Args:
            backbone: Float32; changed where the method tunes it.
            folder: Of the run; there.
            processes: Who takes part, and in which precision.

        Raises:
            UsageError: Too few examples, or parts that do not fit together.
            PromptcliError: The loss is not a number.
        """
        learner = Learner(self.method, self.settings, backbone, self.models)
        if self.start is not None:
            learner.load(self.start.tensors)
        trained = Trainer(learner, processes).train(self.examples, self.development, folder)
        learner.load(trained.tensors)
        learner.eval()
        return learner.encoder(), trained


@dataclass(frozen=True)
class Trial:
    """One run among several."""

    changes: dict[str, Any]  #: what differs from the others, the seed apart
    seed: int

    @property
    def key(self) -> str:
        """A name for its folder."""
        return "-".join([*(f"{name}={value}" for name, value in self.changes.items()), f"seed={self.seed}"])


@dataclass(frozen=True)
class NearestWord:
    """A word of a soft template."""

    word: str
    nearest: list[str]  #: tokens whose embeddings have the highest cosine to its learned vector


@dataclass(frozen=True)
class TrialResult:
    """What came of a trial."""

    changes: dict[str, Any]
    seed: int
    steps: int
    best_step: int  #: whose numbers were kept
    seconds: float  #: in steps
    untrained: dict[str, float]  #: Spearman x 100 by task, the development set first, without anything learned
    values: dict[str, float]  #: the same, trained
    nearest_words: list[NearestWord]  #: of a soft template

    @property
    def chosen_by(self) -> float:
        """The figure on the development set."""
        return next(iter(self.values.values()))

    @property
    def better(self) -> bool:
        """Whether training helped on the development set."""
        return self.chosen_by > next(iter(self.untrained.values()))


@dataclass(frozen=True)
class TrialSummary:
    """One combination over its seeds, for one task: mean, standard deviation (n - 1; 0 for one), min and max."""

    changes: dict[str, Any]
    task: str
    seeds: int
    mean: float
    std: float
    min: float
    max: float


def plan_trials(sweep: Mapping[str, Sequence[Any]], seeds: Sequence[int]) -> list[Trial]:
    """Return every combination of the swept settings with every seed."""
    combinations = itertools.product(*sweep.values())
    return [Trial(dict(zip(sweep, values, strict=True)), seed) for values in combinations for seed in seeds]


def summarise(rows: Sequence[TrialResult]) -> list[TrialSummary]:
    """Return each combination's figures over its seeds, task after task."""
    groups: dict[str, list[TrialResult]] = {}
    for row in rows:
        groups.setdefault(json.dumps(row.changes), []).append(row)
    found = []
    for members in groups.values():
        for task in members[0].values:
            values = [row.values[task] for row in members]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            mean = statistics.fmean(values)
            found.append(TrialSummary(members[0].changes, task, len(values), mean, spread, min(values), max(values)))
    return found


def run_trials(
    run: TrainingRun,
    trials: Sequence[Trial],
    load: Callable[[], Backbone],
    *,
    name: str,
    folder: Path,
    resume: bool,
    processes: Processes,
    save: Callable[[Entry], object],
) -> tuple[list[TrialResult], Entry | None]:
    """Run all trials that are not done yet; save the best by the development set whenever there is a new one.

    Args:
        run: With the settings that all share.
        trials: What to run.
        load: Gives a fresh backbone: a method may change it.
        name: Of the entry.
        folder: Of the whole; each trial has one inside while it lasts.
        resume: Resume what is in the folder.
        processes: Who takes part.
        save: Takes the best entry so far.

    Returns:
        The results, in order, and the best entry; None where a run before this one has saved it.
    """
    backbone, best = load(), None
    shared = {**run.identity(backbone), "trials": [trial.key for trial in trials]}
    if processes.is_main:
        _open(folder, shared, resume=resume)
    processes.wait()
    rows, fresh = _done(folder / _FILE, run, trials), True
    for number, trial in enumerate(trials[len(rows) :], len(rows) + 1):
        if len(trials) > 1:
            about = ", ".join(f"{setting.replace('_', '-')} {value}" for setting, value in trial.changes.items())
            note(f"run {number} of {len(trials)}: {about}{', ' if about else ''}seed {trial.seed}")
        mine = dataclasses.replace(run, settings=run.settings.replace(**trial.changes, seed=trial.seed))
        backbone, fresh = backbone if fresh else load(), False
        inside = folder / trial.key
        if processes.is_main:
            _open(inside, mine.identity(backbone), resume=RunFolder(inside).begun)
        processes.wait()
        try:
            row, entry = execute(mine, trial, backbone, name, inside, processes)
        except UsageError:  # what was given cannot be trained: no run to resume, and the name is free for the next try
            if processes.is_main and not (resume or rows):
                RunFolder(folder).remove()
            raise
        if all(row.chosen_by > other.chosen_by for other in rows):
            best = entry
            if processes.is_main:
                save(entry)
        rows.append(row)
        if processes.is_main:
            write_text(folder / _FILE, "".join(json.dumps(dataclasses.asdict(done)) + "\n" for done in rows))
            RunFolder(inside).remove()
    return rows, best


def _open(folder: Path, identity: dict[str, Any], *, resume: bool) -> None:
    RunFolder(folder).open(identity, resume=resume, name=folder, elsewhere="take another `name`")


def _done(path: Path, run: TrainingRun, trials: Sequence[Trial]) -> list[TrialResult]:
    """Return what came of the trials that are done: the first ones.

    Raises:
        UsageError: The file holds other trials than these, or figures of other tasks.
    """
    rows = read_log(path, TrialResult)
    tasks = list(dict.fromkeys(task.label for task in (run.development, *run.tests)))
    for row, trial in itertools.zip_longest(rows, trials[: len(rows)]):
        if trial is None or (row.changes, row.seed) != (trial.changes, trial.seed):
            raise UsageError(f"{path} holds a trial that this run does not have; delete {path.parent} and start again")
        if not list(row.untrained) == list(row.values) == tasks:
            raise UsageError(
                f"{path} holds figures of {shown([*row.untrained, *row.values])}, this run scores {', '.join(tasks)};"
                f" delete {path.parent} and start again"
            )
    return rows


def _precision(processes: Processes) -> str:
    return "bfloat16" if processes.halves else "float32"


def execute(
    run: TrainingRun, trial: Trial, backbone: Backbone, name: str, folder: Path, processes: Processes
) -> tuple[TrialResult, Entry]:
    """Train, and score the result next to the untrained encoder."""
    method, settings, family = run.method, run.settings, backbone.provenance.family
    tasks = [run.development, *run.tests]
    if run.start is not None:
        backbone.tune(tuned_weights(run.start.tensors))
    plain = build_encoder(method.baseline(backbone.name, family, settings), backbone=backbone)
    untrained = evaluate([plain], tasks, labels=[Label(name, "untrained")])
    encoder, trained = run.train(backbone, folder, processes)
    scores = evaluate([encoder], tasks, labels=[Label(name, method.name)])
    words = [NearestWord(word, near) for word, near in encoder.prompt.nearest_words(5)]
    provenance = {
        **backbone.provenance.to_dict(),
        "width": encoder.width,
        "trained": {
            **run.identity(backbone),
            "source": run.source,
            **({} if run.start is None else {"started_from": run.start.name}),
            "examples": len(run.examples),
            "chosen_by": run.development.label,
            "steps": trained.steps,
            "best_step": trained.best.step,
            "seconds": round(trained.seconds, 1),
            "precision": _precision(processes),
            "processes": processes.number,
            "curve": [dataclasses.asdict(score) for score in trained.dev_scores],
            "untrained": [score.to_dict() for score in untrained],
            "nearest_words": [dataclasses.asdict(word) for word in words],
            "versions": {"promptcli": __version__, "torch": torch.__version__, "python": platform.python_version()},
        },
    }
    recipe = portable(method.recipe(backbone.name, family, settings))
    figures = [score.to_dict() for score in scores]
    entry = Entry(name, recipe, trained.tensors, provenance, figures, method.transfer_recipe(recipe, settings))
    before, after = ({score.column: round(score.value, 4) for score in found} for found in (untrained, scores))
    seconds = round(trained.seconds, 1)
    return TrialResult(
        trial.changes, trial.seed, trained.steps, trained.best.step, seconds, before, after, words
    ), entry


@dataclass(frozen=True)
class _Figure:
    """A figure of an entry, as far as it is needed again."""

    value: float
    data_sha256: str


@dataclass(frozen=True)
class _Outcome:
    """What an entry's provenance tells of how its run went."""

    steps: int
    best_step: int
    seconds: float
    untrained: list[_Figure]
    nearest_words: list[NearestWord]


def result_of(
    entry: Entry, run: TrainingRun, trials: Sequence[Trial], backbone: Backbone, processes: Processes
) -> TrialResult | None:
    """Return what came of a run of one trial where it is the one that made the entry, else None."""
    if len(trials) > 1:
        return None
    told, tasks, seed = entry.provenance["trained"], [run.development, *run.tests], trials[0].seed
    mine = {
        "from": None,
        **run.identity(backbone),
        "seed": seed,
        "steps": steps_of(run.settings, run.examples.sizes),
        "precision": _precision(processes),
        "processes": processes.number,
    }
    if any(told.get(key) != value for key, value in json.loads(json.dumps(mine)).items()):
        return None
    try:  # figures that were added later stand behind the run's own
        outcome, trained = convert(told, _Outcome), convert(entry.scores[: len(tasks)], list[_Figure])
    except ValueError:  # not as a run writes them
        return None
    data = [task.sha256() for task in tasks]
    if any([figure.data_sha256 for figure in figures] != data for figures in (outcome.untrained, trained)):
        return None
    before, after = (
        {task.label: figure.value for task, figure in zip(tasks, figures, strict=True)}
        for figures in (outcome.untrained, trained)
    )
    return TrialResult(
        {}, seed, outcome.steps, outcome.best_step, outcome.seconds, before, after, outcome.nearest_words
    )
