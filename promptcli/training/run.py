"""A complete training: read the data, open the backbone, train, score the result next to the
references, and save it.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.model_folder import SHIPPED_BACKBONES
from promptcli.backbones.published_backbones import published_name
from promptcli.data.layouts import TRIPLETS
from promptcli.data.task_table import TASKS
from promptcli.data.tasks import AnyTask, DevelopmentTask
from promptcli.data.training_data import TrainingExamples, source_name
from promptcli.encoder.encoder import TorchEncoder, build_encoder, tuned_weights
from promptcli.errors import UsageError, if_stopped, with_count
from promptcli.evaluation.candidates import is_for_transfer
from promptcli.evaluation.evaluator import keep_random_states, score_encoders, value_on
from promptcli.evaluation.scores import Label, Score
from promptcli.extensions import used_extensions
from promptcli.models.entries import Entry, portable
from promptcli.models.loading import open_registry, open_torch_encoder
from promptcli.notes import note, silent, warn, without_network
from promptcli.settings import BUILT_IN, DEFAULT_MODEL
from promptcli.storage.cache import library_versions
from promptcli.storage.files import temporary_folder
from promptcli.storage.runs import RunFolder, check_same
from promptcli.storage.tensors import checksum
from promptcli.storage.typed_documents import convert
from promptcli.training.config import (
    TrainConfig,
    TrainingInputs,
    differences_from_paper,
    read_inputs,
)
from promptcli.training.methods.method import ConfiguredMethod
from promptcli.training.step import Processes, start_processes
from promptcli.training.teacher import SentenceVectors, mine_negatives, open_vectors
from promptcli.training.trainable_encoder import TrainableEncoder
from promptcli.training.trainer import Trainer
from promptcli.training.watching import DevScore, WatchedRun, Watcher, make_trackers

_WORDS_IN_NOTE = 8  # left-out words that a note names
_NEAREST_COUNT = 5  # tokens named for each word of a soft template
_REPORTED_FIELDS = (
    *("seed", "steps", "best_step", "seconds", "nearest_words", "settings", "differs_from_paper"),
    *("data", "development", "backbone", "command", "versions", "extensions"),
)
UNTRAINED_START = "begun"  #: its name in the records of models
#: The scored encoders: the untrained recipe, the method's own start, the default model, the result.
COLUMNS = ("untrained", UNTRAINED_START, "default", "trained")


@dataclass(frozen=True)
class Trained:
    """A trained encoder and its scores."""

    entry: Entry  #: in the registry, if the model has a name
    device: str = "auto"
    is_main: bool = True  #: whether this process reports and writes, if several train together
    offline: bool = False  #: whether the encoder is loaded without the network

    @functools.cached_property
    def encoder(self) -> TorchEncoder:
        with without_network(self.offline):
            return open_torch_encoder(self.entry, device=self.device, dtype="stored")

    @property
    def facts(self) -> dict[str, Any]:
        """The run in the entry's provenance: settings, data, steps, seconds, ..."""
        return dict(self.entry.provenance["trained"])

    @property
    def curve(self) -> list[DevScore]:
        return [convert(score, DevScore) for score in self.facts["curve"]]

    @property
    def scores(self) -> dict[str, float]:
        """The encoder's Spearman x 100 by task, the development set first."""
        return self._column("trained")

    @property
    def untrained_scores(self) -> dict[str, float]:
        """The untrained recipe's Spearman x 100 by task."""
        return self._column("untrained")

    @property
    def untrained_start_scores(self) -> dict[str, float]:
        """Spearman x 100 of the method's own start, whose learned tensors are as drawn.

        Empty if it equals ``untrained``.
        """
        return self._column(UNTRAINED_START)

    @property
    def default_model_scores(self) -> dict[str, float]:
        """The default model's Spearman x 100 on the development set.

        Empty if the run started from that model.
        """
        return self._column("default")

    def _column(self, name: str) -> dict[str, float]:
        return dict(self.facts["scores"][name])

    @property
    def untrained_references(self) -> dict[str, dict[str, float]]:
        """The scores by task of the encoders before training, by their names in the printed
        table.
        """
        references = {self.facts.get("started_from", "untrained"): self.untrained_scores}
        if self.untrained_start_scores:
            references["untrained start"] = self.untrained_start_scores
        return references

    @property
    def references(self) -> dict[str, dict[str, float]]:
        """The scores by task of the reference encoders, by their names in the printed table."""
        references = self.untrained_references
        if self.default_model_scores:
            references[DEFAULT_MODEL] = self.default_model_scores
        return references

    @property
    def development_score(self) -> float:
        """The score on the development set."""
        return next(iter(self.scores.values()))

    @property
    def better_references(self) -> dict[str, float]:
        """The references with a better development score, and their scores."""
        development = next(iter(self.scores))
        values = {name: scores[development] for name, scores in self.references.items()}
        return {name: value for name, value in values.items() if value > self.development_score}

    def to_dict(self) -> dict[str, Any]:
        """Return the scores and their sources, JSON-ready."""
        facts = self.facts
        columns = facts["scores"]
        rows = []
        for task in self.scores:
            values = {
                name: round(columns[name][task], 2) for name in COLUMNS if task in columns[name]
            }
            rows.append({"task": task, **values})
        return {
            **{name: facts[name] for name in _REPORTED_FIELDS if facts.get(name, []) != []},
            "better": self.development_score > next(iter(self.untrained_scores.values())),
            "below": list(self.better_references),
            "scores": rows,
        }


def train_and_save(config: TrainConfig) -> Trained:
    """Train in the processes of this launch; save the model if it has a name.

    With ``resume`` an unfinished run continues, and a finished run's result is returned.
    """
    if config.resume:
        resumed = _resume(config)
        if isinstance(resumed, Trained):
            return resumed
        config = resumed
    registry = open_registry()
    name = config.name
    config.check_settings()  # reported before the data are read
    inputs = read_inputs(config)
    if name is not None:  # errors in the other arguments are reported first
        registry.check_free(name, force=config.force or config.resume)
    replaces = config.force or name in registry.names()
    trackers = make_trackers(config.report_to)
    # before the backbone: each process may have its own device
    processes = start_processes(config.device, config.dtype)
    with contextlib.ExitStack() as stack:
        if name is None:
            folder = stack.enter_context(temporary_folder()) / config.method
        else:
            folder = registry.run_folder(name)
            if processes.is_main:
                claim = RunFolder(folder).claim(f"the training of {name!r}", "give another name")
                stack.enter_context(claim)
            continues = f"`promptcli train --resume {name}` continues the run"
            stack.enter_context(if_stopped(f"{continues}, force=True starts over"))
        stack.enter_context(silent(not processes.is_main))
        trained = train_in_folder(inputs, processes, trackers, folder)
        if processes.is_main and name is not None:
            if not replaces and name in registry.names():
                raise UsageError(
                    f"model {name!r} was created during the training; the run is kept: resume=True"
                    " replaces that model"
                )
            registry.save(trained.entry, force=replaces)
            RunFolder(folder).discard()
        processes.wait()
        warn_if_worse(trained)
    return trained


def _resume(config: TrainConfig) -> TrainConfig | Trained:
    """Return the arguments of the unfinished run, or the result of the finished run.

    If there is neither, the given arguments are those of a new run.
    """
    name = config.name
    if name is None:
        raise UsageError("give the name of the run to resume", parameter="name")
    stored = RunFolder(open_registry().run_folder(name)).read_settings()
    if stored:
        return config.resume_from(stored)
    finished = None if config.force else find_finished(name)
    if finished is not None:
        if config.method:
            check_finished(finished, read_inputs(config).identify())
        else:
            config.check_names_a_run()
            check_finished(finished, {})
        return Trained(finished)
    if not config.method:
        raise UsageError(
            f"no unfinished run is named {name!r}; to start a run, leave out resume=True, or add"
            " the method and its options",
            parameter="resume",
        )
    return config


@keep_random_states()
def train_in_folder(
    inputs: TrainingInputs, processes: Processes, watchers: Sequence[Watcher], folder: Path
) -> Trained:
    """Train in a folder, which keeps the run if it is stopped; no model is saved."""
    config = inputs.config
    run_folder = RunFolder(folder)
    threads = torch.get_num_threads()
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_num_threads, threads)
        torch.set_num_threads(config.threads or threads)
        run = Run(inputs, processes)
        processes.wait()  # until all processes have seen that the name is free
        if processes.is_main:
            resumed = config.resume and run_folder.has_begun
            watched = WatchedRun(config.group or run.name, run.name, resumed)
            facts = {
                **run.identity,
                "source": run.data_name,
                "backbone": run.backbone.name,
                "chosen_by": inputs.development.label,
            }
            for watcher in watchers:
                stack.callback(watcher.end)
                watcher.begin(watched, facts)
            run_folder.open(
                run.identity,
                resume=config.resume,
                name=folder,
                elsewhere="force=True to start over, or another name",
                force=config.force,
                settings=dataclasses.replace(config, threads=torch.get_num_threads()).document(),
            )
        processes.wait()
        try:
            entry = run.train_and_score(folder, watchers)
        except UsageError:  # the run cannot begin: its name is free for the next try
            if processes.is_main and not config.resume:
                run_folder.discard()
            raise
    return Trained(entry, processes.device, processes.is_main)


def find_finished(name: str) -> Entry | None:
    """Return the model of a finished run; None if it does not exist."""
    registry = open_registry()
    if name not in registry.names():
        return None
    entry = registry.load(name)
    if "trained" not in entry.provenance:
        raise UsageError(
            f"model {name!r} was not trained; give another name, or force=True to replace it",
            parameter="name",
        )
    return entry


def check_finished(entry: Entry, identity: Mapping[str, Any]) -> None:
    """Refuse arguments that differ from those of the model's training; note that the training is
    finished.
    """
    facts = entry.provenance["trained"]
    stored = {**facts, **facts["settings"]}
    check_same(
        {field: stored.get(field) for field in identity},
        identity,
        f"model {entry.name!r} was trained with",
        "another name, or force=True to train again",
    )
    note(f"done: model {entry.name!r} is already trained; force=True trains it again")


class Run:
    """A training on its opened backbone, in the processes of this launch."""

    def __init__(self, inputs: TrainingInputs, processes: Processes) -> None:
        config = inputs.config
        self.inputs = inputs
        self.config = config
        self.processes = processes
        self.name = config.name or config.method
        self.data_name = source_name(config.training_data)
        self.tasks: list[AnyTask] = [inputs.development, *inputs.tests]
        self.backbone = load_backbone(inputs.backbone, device=processes.device, dtype=torch.float32)
        note(inputs.preset.summary(config.settings))
        _note_defaults(inputs)
        self.settings = inputs.settings
        self.configured = ConfiguredMethod(
            inputs.method, self.settings, self.backbone.name, self.backbone.provenance.family
        )
        if inputs.start is not None and not config.paper:
            self.configured = self.configured.like(inputs.start.recipe)
        #: The examples that the objective can read on this backbone.
        self.examples = inputs.objective.choose(inputs.examples, self.settings, self.backbone)
        layout = self.examples.layout
        has_negatives = layout == TRIPLETS and any(map(any, self.examples.columns[2:]))
        self.settings.check_layout(layout, has_negatives=has_negatives, source=self.data_name)
        columns = inputs.objective.columns_of_models(self.settings)
        #: Setting that names a model, e.g. a teacher -> the vectors of that model.
        self.model_vectors: dict[str, SentenceVectors] = {}
        for field, model in self.settings.named_models().items():
            self.model_vectors[field] = open_vectors(
                model, self.examples, self.data_name, processes.device, columns
            )
        _note_examples(self.examples, self.data_name)
        self.settings.total_steps(len(self.examples))  # refuses fewer examples than a batch
        #: What must be the same when the run is resumed, JSON-ready.
        self.identity = {**inputs.identify(), "backbone": self.backbone.provenance.weights_sha256}
        if inputs.start is not None:
            tensors = inputs.start.tensors
            self.identity["from"] = checksum(sorted(tensors), tensors.__getitem__)
        for name, vectors in self.model_vectors.items():
            self.identity[f"{name}_fingerprint"] = vectors.fingerprint

    def train_and_score(self, folder: Path, watchers: Sequence[Watcher]) -> Entry:
        """Train, score the result next to the untrained encoder, and return the entry."""
        start = self.inputs.start
        development = self.inputs.development
        tensors_before = self._start_backbone()
        plain = build_encoder(
            self.configured.untrained_recipe,
            backbone=self.backbone,
            tensors=tensors_before,
            device=self.processes.device,
            dtype="float32",
        )
        scores = {column: list[Score]() for column in COLUMNS}
        scores["untrained"] = self._score(plain, "untrained", self.tasks)
        scores["default"] = self._score_default_model(plain)
        self._compute_model_vectors(folder)
        encoder = TrainableEncoder(
            self.configured, self.backbone, self.inputs.objective, self.model_vectors
        )
        if start is not None:
            encoder.load(start.tensors)
        untrained = encoder.as_encoder()
        newly_drawn = untrained.tensors().keys() - tensors_before.keys()
        if newly_drawn or untrained.recipe.replace(dims=()) != plain.recipe:
            scores[UNTRAINED_START] = self._score(untrained, "untrained start", self.tasks)
        examples = self.examples
        if "mine" in self.model_vectors:
            vectors = self.model_vectors["mine"]
            guide = self.model_vectors.get("mine_guide", vectors)
            examples = mine_negatives(examples, vectors, guide, self.settings.mine_margin)
        trainer = Trainer(encoder, self.processes, examples, development, folder, watchers)
        tensors = trainer.fit()
        trained = encoder.load_encoder(tensors)
        scores["trained"] = self._score(trained, self.inputs.method.name, self.tasks)
        recipe = self.configured.recipe
        provenance = {
            **vars(self.backbone.provenance),
            "width": trained.width,
            "trained": self._record(trainer, scores, trained),
        }
        return Entry(
            self.name,
            portable(recipe),
            tensors,
            provenance,
            [score.to_dict() for score in scores["trained"]],
            self.configured.method.transfer_recipe(recipe),
        )

    def _start_backbone(self) -> Mapping[str, Tensor]:
        """Give a backbone that is tuned the weights of the start model. If an adapter is trained
        instead, return the start model's tensors, of which the plain encoder needs a copy.
        """
        start = self.inputs.start
        if start is None:
            return {}
        if "backbone" not in self.inputs.method.learns:
            return start.tensors
        self.backbone.tune(tuned_weights(start.tensors))
        return {}

    def _score(self, encoder: TorchEncoder, label: str, tasks: Sequence[AnyTask]) -> list[Score]:
        """Return an encoder's scores on tasks of any kind, in their order.

        Transfer tasks use the method's recipe for transfer.
        """
        transfer_recipe = self.configured.method.transfer_recipe(encoder.recipe)
        scores: list[Score] = []
        for task in tasks:
            task_encoder = encoder
            if transfer_recipe is not None and is_for_transfer(task):
                task_encoder = TorchEncoder(transfer_recipe, encoder.backbone, encoder.tensors())
            scores += score_encoders([task_encoder], [task], [Label(self.name, label)])
        return scores

    def _score_default_model(self, plain: TorchEncoder) -> list[Score]:
        """Return the default model's score on the development set.

        Empty if the plain encoder is that model, or if the backbone is not shipped: users of other
        backbones do not ask for the default model.
        """
        if published_name(plain.backbone) not in SHIPPED_BACKBONES:
            return []
        entry = open_registry().load(DEFAULT_MODEL)
        if self.config.start == DEFAULT_MODEL and plain.recipe == entry.recipe.resolve():
            return []
        encoder = open_torch_encoder(entry, device=str(plain.device), dtype="float32")
        return self._score(encoder, DEFAULT_MODEL, [self.inputs.development])

    def _compute_model_vectors(self, folder: Path) -> None:
        """Compute the models' vectors in the main process; the other processes map its files."""
        if not self.processes.is_main:
            self.processes.wait()
        for field, model in self.model_vectors.items():
            model.make(folder / field)
        if self.processes.is_main:
            self.processes.wait()

    def _record(
        self, trainer: Trainer, scores: Mapping[str, Sequence[Score]], encoder: TorchEncoder
    ) -> dict[str, Any]:
        """Return the history of the run and all that is needed to repeat it, JSON-ready."""
        config = self.config
        development = self.inputs.development
        with used_extensions() as of_tasks:
            for task in self.tasks:
                TASKS.get(task.name)
        optional: dict[str, Any] = {}
        if self.inputs.start is not None:
            optional["started_from"] = self.inputs.start.name
        if config.group:
            optional["group"] = config.group
        if encoder.recipe.dims:
            optional["by_dim"] = _score_by_dim(encoder, development)
        preset = self.inputs.preset
        extensions = {*self.inputs.extensions, *encoder.extensions, *of_tasks}
        return {
            **self.identity,
            "source": self.data_name,
            **optional,
            "examples": len(self.examples),
            "chosen_by": development.label,
            "steps": trainer.progress.step,
            "best_step": trainer.best.step,
            "seconds": round(trainer.progress.seconds, 1),
            "precision": "bfloat16" if self.processes.mixed else "float32",
            "processes": self.processes.world_size,
            "curve": [dataclasses.asdict(score) for score in trainer.dev_scores],
            "scores": {
                column: {score.column: score.to_dict()["value"] for score in of_column}
                for column, of_column in scores.items()
            },
            "nearest_words": [
                {"word": word, "nearest": nearest}
                for word, nearest in encoder.prompt.nearest_words(_NEAREST_COUNT)
            ],
            "settings": dataclasses.asdict(self.settings),
            "preset": {"source": preset.source, "backbone": preset.backbone},
            "differs_from_paper": differences_from_paper(
                preset.method, self.settings, preset.backbone
            ),
            "dtype": config.dtype or "auto",
            "command": config.command or None,
            "versions": library_versions(),
            "extensions": [vars(extension) for extension in sorted(extensions)],
        }


def _note_examples(examples: TrainingExamples, data_name: str) -> None:
    """Note how many examples were left out, lack a hard negative or are repeated."""
    lines = []
    for count, noun, what in (
        (examples.blank_count, "row", "with an empty sentence left out"),
        (examples.unlabelled_count, "row", "without a label left out"),
        (len(examples.rows_without_negative), "pair", "without a hard negative"),
        (examples.repeat_count, "row", "equal to an earlier one, kept"),
    ):
        if count:
            lines.append(f"{with_count(count, noun)} {what}")
    words = examples.untokenised_words
    if words:
        first_words = ", ".join(words[:_WORDS_IN_NOTE])
        lines.append(
            f"{with_count(len(words), 'word')} left out, because a word must be a single token:"
            f" {first_words}"
        )
    for line in lines:
        note(f"{data_name}: {line}")


def _score_by_dim(encoder: TorchEncoder, development: DevelopmentTask) -> dict[str, float]:
    """Return the development score of the vectors cut to each trained width."""
    recipe = encoder.recipe
    by_dim = {}
    for dim in recipe.dims:
        shorter = TorchEncoder(recipe.truncate(dim), encoder.backbone, encoder.tensors())
        by_dim[str(dim)] = value_on(shorter, development)
    values = ", ".join(f"{dim} {value:.2f}" for dim, value in by_dim.items())
    note(f"{development.label} by dim: {values}")
    return by_dim


def _note_defaults(inputs: TrainingInputs) -> None:
    """Note the default backbone, data and development pairs that the run uses."""
    config = inputs.config
    if config.paper:
        return
    on = config.development
    parts = []
    if not (config.backbone or config.start):
        parts.append(f"backbone {inputs.backbone}")
    if config.data is None:
        parts.append("the demo sentences are the data")
    if not config.on:
        where = "the demo pairs" if on == BUILT_IN.development else on
        parts.append(f"checkpoints are chosen on {where}")
    if parts:
        note("; ".join(parts))


def warn_if_worse(trained: Trained) -> None:
    """Warn if the result is not better than the encoder before training."""
    development, value = next(iter(trained.scores.items()))
    before = {name: scores[development] for name, scores in trained.untrained_references.items()}
    best = max(before, key=before.__getitem__)
    if value > before[best] and trained.facts["best_step"]:
        return
    warn(
        f"{trained.entry.name} is not better than before training: {value:.2f} on {development},"
        f" {best} has {before[best]:.2f}; more data or epochs, or another learning rate may help"
    )
