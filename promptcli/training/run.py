"""A whole training run: method, backbone and examples to a registry entry, scored next to the untrained encoder."""

import dataclasses
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from promptcli import __version__
from promptcli.backbones.backbone import Backbone
from promptcli.data.tasks import STSTask
from promptcli.data.training_examples import TrainingExamples
from promptcli.encoder.encoder import Encoder, build_encoder, tuned_weights
from promptcli.evaluation.evaluator import evaluate
from promptcli.evaluation.scores import Label, SpearmanScore
from promptcli.registry.entries import Entry
from promptcli.registry.registry import portable
from promptcli.storage.runs import RunFolder
from promptcli.training.learner import Learner
from promptcli.training.methods.method import Method
from promptcli.training.methods.training_settings import TrainingSettings
from promptcli.training.objectives import find_objective
from promptcli.training.processes import Processes
from promptcli.training.starting import Start
from promptcli.training.training_loop import TrainedWeights, TrainingCallbacks, train


@dataclass(frozen=True)
class TrainingRun:
    """What is to be done."""

    method: Method
    settings: TrainingSettings
    examples: TrainingExamples
    source: str  #: names the examples
    development: STSTask  #: what the best numbers are chosen by
    tests: tuple[STSTask, ...]  #: scored at the end, untrained and trained
    start: Start | None = None  #: what it goes on from; None for the backbone as it was pre-trained

    def on(self, backbone: Backbone, settings: TrainingSettings) -> "TrainingRun":
        """Return the run with the settings in force on a backbone, and the examples that it can learn from.

        Raises:
            UsageError: There are none.
        """
        objective = find_objective(self.method)
        return dataclasses.replace(
            self, settings=settings, examples=objective.choose(self.examples, settings, backbone)
        )

    def identity(self, backbone: Backbone) -> dict[str, Any]:
        """Return what a resumed run must have in common with the one it goes on with; JSON-ready."""
        return {
            "method": self.method.name,
            "supervised": self.examples.supervised,
            **dataclasses.asdict(self.settings),
            "data": self.examples.sha256,
            "development": self.development.sha256(),
            "backbone": backbone.provenance.weights_sha256,
            **({} if self.start is None else {"from": self.start.sha256}),
        }


@dataclass(frozen=True)
class TrainingResult:
    """What came of it."""

    entry: Entry
    trained: TrainedWeights
    untrained: list[SpearmanScore]  #: of the same recipe without anything learned, development set first
    scores: list[SpearmanScore]  #: of the trained encoder, on the same tasks
    nearest_words: list[dict[str, Any]]  #: of a soft template: each word and the tokens nearest to its learned vector


def open_run(folder: Path, identity: dict[str, Any], *, resume: bool) -> RunFolder:
    """Begin a run in a folder, or check that the one in it is the one to go on with; see ``RunFolder.open``."""
    run = RunFolder(folder)
    run.open(identity, resume=resume, name=folder, elsewhere="take another --name")
    return run


def execute(
    run: TrainingRun,
    backbone: Backbone,
    *,
    name: str,
    folder: Path,
    processes: Processes,
    callbacks: TrainingCallbacks = TrainingCallbacks(),  # noqa: B008
) -> TrainingResult:
    """Train, and score the result next to the untrained encoder.

    Args:
        run: What is to be done.
        backbone: Float32; changed where the method tunes it.
        name: Of the entry.
        folder: Of the run, prepared.
        processes: Who takes part, and in which precision.
        callbacks: Called while it goes on.

    Raises:
        UsageError: Too few examples, or parts that do not fit together.
        PromptcliError: The loss is not a number.
    """
    family = backbone.provenance.family
    tasks = [run.development, *run.tests]
    if run.start is not None:
        backbone.tune(tuned_weights(run.start.tensors))
    plain = build_encoder(run.method.baseline(backbone.name, family, run.settings), backbone=backbone)
    untrained = evaluate([plain], tasks, labels=[Label(name, "untrained")])
    encoder, trained = train_encoder(run, backbone, folder=folder, processes=processes, callbacks=callbacks)
    scores = evaluate([encoder], tasks, labels=[Label(name, run.method.name)])
    words = [{"word": word, "nearest": near} for word, near in encoder.prompt.nearest_words(5)]
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
            "precision": "bfloat16" if processes.halves else "float32",
            "processes": processes.number,
            "curve": [dataclasses.asdict(score) for score in trained.dev_scores],
            "untrained": [score.to_dict() for score in untrained],
            "nearest_words": words,
            "versions": {"promptcli": __version__, "torch": torch.__version__, "python": platform.python_version()},
        },
    }
    recipe = portable(run.method.recipe(backbone.name, family, run.settings))
    kept = [score.to_dict() for score in scores]
    entry = Entry(name, recipe, trained.tensors, provenance, kept, run.method.transfer_recipe(recipe))
    return TrainingResult(entry, trained, untrained, scores, words)


def train_encoder(
    run: TrainingRun,
    backbone: Backbone,
    *,
    folder: Path,
    processes: Processes,
    callbacks: TrainingCallbacks = TrainingCallbacks(),  # noqa: B008
) -> tuple[Encoder, TrainedWeights]:
    """Train; return the encoder of the best numbers, and how the run went. See ``execute``."""
    learner = Learner(run.method, run.settings, backbone)
    if run.start is not None:
        learner.load(run.start.tensors)
    trained = train(learner, run.examples, run.development, folder=folder, processes=processes, callbacks=callbacks)
    learner.load(trained.tensors)
    learner.eval()
    return learner.encoder(), trained
