"""A training run on an opened backbone: the method begins, learns, and is scored beside the plain
encoder.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.data.sources import TrainingExamples
from promptcli.data.task_table import TASKS
from promptcli.data.tasks import AnyTask, DevelopmentTask
from promptcli.encoder.encoder import TorchEncoder, build_encoder, tuned_weights
from promptcli.errors import counted
from promptcli.evaluation.scores import Label, Score
from promptcli.extensions import Extension, used_extensions
from promptcli.models.entries import Entry
from promptcli.models.registry import portable
from promptcli.notes import note
from promptcli.storage.cache import library_versions
from promptcli.training.batches import source_shares
from promptcli.training.methods.method import Method
from promptcli.training.methods.training_settings import MiningSettings, TrainingSettings
from promptcli.training.objectives import find_objective
from promptcli.training.processes import Processes, start_processes
from promptcli.training.scoring import (
    RunScores,
    documents_of,
    nearest_words,
    score_by_dim,
    score_default_model,
    score_tasks,
)
from promptcli.training.teacher import SentenceVectors, mine_negatives
from promptcli.training.trainer import Learner, TrainedWeights, Trainer
from promptcli.training.watching import Watcher

_SHOWN = 8  # words that a note names of those left out


@dataclass(frozen=True)
class TrainingRun:
    """A method, its settings and its data."""

    method: Method
    settings: TrainingSettings
    examples: TrainingExamples
    source: str  #: names the examples
    development: DevelopmentTask  #: chooses the best checkpoint
    tests: tuple[AnyTask, ...] = ()  #: scored at the end, untrained and trained
    start: Entry | None = None  #: None: the backbone as pre-trained
    #: The vectors of the models that settings name, by setting.
    models: Mapping[str, SentenceVectors] = dataclasses.field(default_factory=dict)
    #: What other packages bring of the method and its objective.
    code: Sequence[Extension] = ()
    watchers: Sequence[Watcher] = ()
    #: The settings as the saved model's record has them, and the arguments of the run.
    request: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def note_examples(self) -> None:
        """Say what was left out of the examples, and how several sources are mixed."""
        examples = self.examples
        for count, noun, what in (
            (examples.blank, "row", "with an empty sentence left out"),
            (examples.unlabelled, "row", "without a label left out"),
            (len(examples.without_negative), "pair", "without a hard negative"),
            (examples.repeated, "row", "equal to an earlier one, kept"),
        ):
            if count:
                note(f"{self.source}: {counted(count, noun)} {what}")
        if len(examples.sizes) > 1:
            shares = source_shares(examples.sizes, self.settings.data_temperature)
            mix = ", ".join(
                f"{share:,} of {size:,}" for share, size in zip(shares, examples.sizes, strict=True)
            )
            note(f"{self.source}: rows an epoch: {mix}")
        if words := examples.untokenised:
            shown = ", ".join(words[:_SHOWN]) + (", ..." if len(words) > _SHOWN else "")
            note(
                f"{self.source}: {len(words):,} words that are not a single token left out: {shown}"
            )

    def identity(self, backbone: Backbone) -> dict[str, Any]:
        """Return what must be the same when the run is resumed; JSON-ready."""
        identity = {
            "method": self.method.name,
            "supervised": self.examples.supervised,
            **dataclasses.asdict(self.settings),
            "data": self.examples.sha256,
            "development": self.development.sha256(),
            "backbone": backbone.provenance.weights_sha256,
        }
        if self.start is not None:
            identity["from"] = _hash_of(self.start.tensors)
        for name, model in self.models.items():
            identity[f"{name}_fingerprint"] = model.fingerprint
        if self.code:
            identity["code"] = "; ".join(dict.fromkeys(map(str, self.code)))
        return identity

    def begin(self, backbone: Backbone, folder: Path, processes: Processes) -> Learner:
        """Return the method at work on a backbone, before its first step."""
        for writes in (True, False):  # the others map what the main process has made
            if writes is processes.is_main:
                for field, model in self.models.items():
                    model.make(folder / field, writes=writes)
            processes.wait()
        learner = Learner(self.method, self.settings, backbone, self.models)
        if self.start is not None:
            learner.load(self.start.tensors)
        return learner

    def train(
        self, learner: Learner, folder: Path, processes: Processes
    ) -> "tuple[TorchEncoder, TrainedWeights]":
        """Return the encoder of the best checkpoint, and how the run went.

        A tuned backbone is changed.
        """
        examples = self.examples
        if isinstance(self.settings, MiningSettings) and "mine" in self.models:
            vectors = self.models["mine"]
            guide = self.models.get("mine_guide", self.models["mine"])
            examples = mine_negatives(examples, vectors, guide, self.settings.mine_margin)
        trained = Trainer(learner, processes, self.watchers).fit(examples, self.development, folder)
        learner.load(trained.tensors)
        learner.eval()
        return learner.encoder(), trained

    def train_and_score(
        self, backbone: Backbone, name: str, folder: Path, processes: Processes
    ) -> Entry:
        """Train in a run's folder, and score the result next to the untrained encoder."""
        method = self.method
        tasks = [self.development, *self.tests]
        before = self._tensors_of_start(backbone)
        plain = self._plain_encoder(backbone, before, processes.device)
        untrained = score_tasks(plain, tasks, Label(name, "untrained"))
        default = score_default_model(plain, self.development, self.start)
        learner = self.begin(backbone, folder, processes)
        first = learner.encoder()
        start: list[Score] = []
        drawn = first.tensors().keys() - before.keys()
        if drawn or first.recipe.replace(dims=()) != plain.recipe:
            start = score_tasks(first, tasks, Label(name, "untrained start"), method)
        encoder, weights = self.train(learner, folder, processes)
        trained = score_tasks(encoder, tasks, Label(name, method.name), method)
        by_dim = score_by_dim(encoder, self.development)
        scores = RunScores(trained, untrained, start, default, by_dim)
        record = {
            **self._record_of_data(backbone),
            **_record_of_steps(weights, processes),
            **scores.record(),
            "nearest_words": nearest_words(encoder),
            **self.request,
            "versions": library_versions(),
            "extensions": self._extensions(encoder),
        }
        recipe = method.recipe(backbone.name, backbone.provenance.family, self.settings)
        provenance = {**vars(backbone.provenance), "width": encoder.width, "trained": record}
        return Entry(
            name,
            portable(recipe),
            weights.tensors,
            provenance,
            documents_of(trained),
            method.transfer_recipe(recipe),
        )

    def _tensors_of_start(self, backbone: Backbone) -> Mapping[str, Tensor]:
        """Return what the plain encoder has of the model that the run starts from.

        A backbone that is tuned becomes that model's. An adapter continues to learn, so the plain
        encoder has another copy of it.
        """
        if self.start is None:
            return {}
        if "backbone" not in self.method.learns:
            return self.start.tensors
        backbone.tune(tuned_weights(self.start.tensors))
        return {}

    def _plain_encoder(
        self, backbone: Backbone, tensors: Mapping[str, Tensor], device: str
    ) -> TorchEncoder:
        """Return the encoder without anything learned, or as the start has it."""
        baseline = self.method.baseline(backbone.name, backbone.provenance.family, self.settings)
        return build_encoder(
            baseline, backbone=backbone, tensors=tensors, device=device, dtype="float32"
        )

    def _record_of_data(self, backbone: Backbone) -> dict[str, Any]:
        """Return what was learned from, and by which settings, JSON-ready."""
        record = {**self.identity(backbone), "source": self.source}
        if self.start is not None:
            record["started_from"] = self.start.name
        record["examples"] = len(self.examples)
        record["chosen_by"] = self.development.label
        return record

    def _extensions(self, encoder: TorchEncoder) -> list[dict[str, Any]]:
        """Return what other packages brought to the run, JSON-ready."""
        used = {*self.code, *encoder.extensions}
        with used_extensions() as of_tasks:
            for task in (self.development, *self.tests):
                TASKS.get(task.name)
        return [vars(extension) for extension in sorted(used | of_tasks)]


def train_encoder(
    method: Method,
    settings: TrainingSettings,
    examples: TrainingExamples,
    development: DevelopmentTask,
    backbone: Backbone,
    folder: Path,
    *,
    mixed: bool = False,
) -> tuple[TorchEncoder, TrainedWeights]:
    """Train a method on an opened backbone, which is changed if the method tunes it.

    Args:
        method: The method, unsupervised or supervised.
        settings: Its settings.
        examples: What it learns from; those that its objective cannot read are left out.
        development: Pairs or queries that choose the best checkpoint.
        backbone: The backbone, on the device of the training.
        folder: Keeps the state, from which a training that was stopped goes on.
        mixed: Whether products are computed in bfloat16.

    Returns:
        The encoder of the best checkpoint, and its tensors with how the training went.
    """
    chosen = find_objective(method).choose(examples, settings, backbone)
    run = TrainingRun(method, settings, chosen, "examples", development)
    processes = start_processes(str(backbone.device), mixed=mixed)
    learner = run.begin(backbone, folder, processes)
    return run.train(learner, folder, processes)


def _record_of_steps(weights: TrainedWeights, processes: Processes) -> dict[str, Any]:
    """Return how the run went, JSON-ready."""
    record: dict[str, Any] = {"steps": weights.steps, "best_step": weights.best.step}
    if weights.best.learned:
        learned = weights.best.learned
        record["learned"] = {name: round(value, 6) for name, value in learned.items()}
    return record | {
        "seconds": round(weights.seconds, 1),
        "precision": "bfloat16" if processes.mixed else "float32",
        "processes": processes.number,
        "curve": [dataclasses.asdict(score) for score in weights.dev_scores],
    }


def _hash_of(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
