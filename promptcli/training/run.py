"""A complete training: open data and backbone, train, score beside the references, and save."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.by_name import load_backbone, shape_of
from promptcli.backbones.locating import SHIPPED
from promptcli.backbones.lora import is_lora
from promptcli.backbones.published_backbones import PUBLISHED, published_name
from promptcli.data.senteval import tasks_from
from promptcli.data.sources import (
    TrainingExamples,
    checkpoint_task,
    is_fetched,
    source_name,
    training_examples,
)
from promptcli.data.task_table import TASKS
from promptcli.data.tasks import AnyTask, DevelopmentTask, OtherTask
from promptcli.encoder.encoder import TorchEncoder, build_encoder, tuned_weights
from promptcli.errors import (
    NotFoundError,
    UsageError,
    counted,
    if_stopped,
)
from promptcli.evaluation.candidates import is_for_transfer, load_named_tasks
from promptcli.evaluation.evaluator import (
    EvalSettings,
    keep_random_states,
    score_encoders,
    value_on,
)
from promptcli.evaluation.scores import Label, Score
from promptcli.extensions import used_extensions
from promptcli.models.entries import Entry, portable
from promptcli.models.loading import DEFAULT_MODEL, open_model, open_registry
from promptcli.notes import note, silent, warn
from promptcli.recipe import last_part
from promptcli.settings import BARE
from promptcli.storage.cache import library_versions
from promptcli.storage.files import temporary_folder
from promptcli.storage.runs import RunFolder, check_same
from promptcli.storage.tensors import checksum
from promptcli.training.batches import steps_of
from promptcli.training.config import TrainConfig
from promptcli.training.methods import METHODS, find_method
from promptcli.training.methods.method import ConfiguredMethod, Method, TrainingSettings
from promptcli.training.objectives import find_objective
from promptcli.training.processes import Processes, start_processes
from promptcli.training.teacher import (
    SentenceVectors,
    check_negatives,
    mine_negatives,
    named_vectors,
)
from promptcli.training.trainable_encoder import TrainableEncoder
from promptcli.training.trained import COLUMNS, UNTRAINED_START, Trained
from promptcli.training.trainer import Trainer
from promptcli.training.watching import WatchedRun, Watcher, make_trackers

_WORDS_SHOWN = 8  # left-out words that a note names
_NEAREST = 5  # tokens named for each word of a soft template


@keep_random_states()
def train(
    config: TrainConfig,
    processes: Processes | None = None,
    watchers: Sequence[Watcher] = (),
    folder: Path | None = None,
) -> Trained:
    """Train in the processes of this launch; save the model if it has a name.

    With ``resume`` an unfinished run continues, and a finished run's result is returned. With
    ``folder`` the run is one of several: it stays in that folder, and no model is saved.
    """
    registry = open_registry()
    if config.resume:
        if config.name is None:
            raise UsageError("give the name of the run to resume", parameter="name")
        stored = RunFolder(folder or registry.run_folder(config.name)).settings
        finished = None if stored else find_finished(config.name)
        if stored:
            config = config.resumed(stored)
        elif finished is not None:
            return _done(config, finished)
        elif not config.method:
            raise UsageError(
                f"{config.name!r} has no unfinished run; leave it out to start one",
                parameter="resume",
            )
    if not config.method:
        raise UsageError("missing; give one, e.g. simcse", parameter="method")
    name = config.name if folder is None else None
    if name is not None:
        config.check_settings()  # an unknown setting is reported before a name that is taken
        registry.check_free(name, force=config.force or config.resume)
    run = Run(config)
    replaces = config.force or name in registry.names()
    watchers = [*make_trackers(config.report_to), *watchers]
    threads = torch.get_num_threads()
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_num_threads, threads)
        torch.set_num_threads(config.threads or threads)
        # before the backbone: each process may have its own device
        processes = processes or start_processes(config.device, config.dtype)
        if name is not None:
            folder = registry.run_folder(name)
            if processes.is_main:
                claimed = RunFolder(folder).claim(f"the training of {name!r}", "give another name")
                stack.enter_context(claimed)
        elif folder is None:
            folder = stack.enter_context(temporary_folder()) / config.method
        stack.enter_context(silent(not processes.is_main))
        run.open(processes)
        if processes.is_main:
            run.begin_watching(watchers, folder, stack)
        if config.name:
            continues = f"`promptcli train --resume {config.name}` continues the run"
            stack.enter_context(if_stopped(f"{continues}, force=True starts over"))
        entry = run.train_in_folder(folder)
        if processes.is_main and name is not None:
            if not replaces and name in registry.names():
                raise UsageError(
                    f"model {name!r} was created during the training; the run is kept: resume=True"
                    " replaces that model"
                )
            registry.save(entry, force=replaces)
            RunFolder(folder).discard()
        processes.wait()
        trained = Trained(entry, processes.device, processes.is_main)
        warn_if_worse(trained)
    return trained


def find_finished(name: str) -> Entry | None:
    """Return the finished model of a run by its name; None if it does not exist."""
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


def check_finished(entry: Entry, wanted: Mapping[str, Any]) -> None:
    """Refuse arguments that differ from the model's training; else note that it is finished."""
    facts = entry.provenance["trained"]
    stored = {**facts, **facts["settings"]}
    check_same(
        {field: stored.get(field) for field in wanted},
        wanted,
        f"model {entry.name!r} was trained with",
        "another name, or force=True to train again",
    )
    note(f"done: model {entry.name!r} is already trained; force=True trains it again")


def _done(config: TrainConfig, finished: Entry) -> Trained:
    """Return the result of a finished run, if its training had the same arguments."""
    if not config.method:
        config.check_names_a_run()
    check_finished(finished, Run(config).facts if config.method else {})
    return Trained(finished)


class Run:
    """The inputs of a training: data and tasks are read at once, the backbone when it is opened."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.name = config.name or config.method
        self.watchers: Sequence[Watcher] = ()
        self.source = source_name(config.source)
        self.start = _read_start(config)  #: None: the backbone as pre-trained
        self.examples = read_examples(config)
        with used_extensions() as code:
            self.method = find_method(config.method, supervised=self.examples.supervised)
            self.objective = find_objective(self.method)
        self.code = sorted(code)  #: code of method and objective from other packages
        with contextlib.suppress(NotFoundError):  # a backbone of the hub that is not downloaded yet
            steps_of(config.in_force(self.method).settings, len(self.examples))
        with tasks_from(config.data_dir):
            self.development: DevelopmentTask = checkpoint_task(config.development)
            self.tasks: list[AnyTask] = [self.development, *_read_tests(config)]
        for task in self.tasks:
            if isinstance(task, OtherTask):
                task.check(EvalSettings())

    @property
    def facts(self) -> dict[str, Any]:
        """What identifies the run before the backbone is opened, JSON-ready."""
        return {
            "method": self.method.name,
            "supervised": self.examples.supervised,
            **vars(self.config.in_force(self.method).settings),
            "data": self.examples.sha256,
            "development": self.development.sha256(),
            "code": "; ".join(dict.fromkeys(map(str, self.code))),
        }

    def open(self, processes: Processes) -> None:
        """Note the initial settings, open the backbone, and choose the examples for it."""
        config = self.config
        self.processes = processes
        self.backbone = backbone = load_backbone(
            config.backbone_name, device=processes.device, dtype=torch.float32
        )
        self.in_force = config.in_force(self.method)
        note(self.in_force.summary())
        _note_defaults(config)
        self.settings: TrainingSettings = self.in_force.settings
        self.configured = config.configured_method(
            self.in_force, backbone.name, backbone.provenance.family
        )
        self.examples = self.objective.choose(self.examples, self.settings, backbone)
        check_negatives(self.settings, self.examples, self.source)
        columns = self.objective.columns_of_models(self.settings)
        #: Vectors of the models named by settings, e.g. a teacher's, by setting.
        self.models: dict[str, SentenceVectors] = {}
        for field, model in self.settings.named_models().items():
            self.models[field] = named_vectors(
                model, self.examples, self.source, processes.device, columns
            )
        self._note_examples()
        steps_of(self.settings, len(self.examples))  # refuses fewer examples than a batch

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that must be unchanged when the run is resumed, JSON-ready."""
        identity = {**self.facts, "backbone": self.backbone.provenance.weights_sha256}
        if self.start is not None:
            tensors = self.start.tensors
            identity["from"] = checksum(sorted(tensors), tensors.__getitem__)
        for name, model in self.models.items():
            identity[f"{name}_fingerprint"] = model.fingerprint
        return identity

    def begin_watching(
        self, watchers: Sequence[Watcher], folder: Path, stack: contextlib.ExitStack
    ) -> None:
        """Tell watchers that the run begins, and when the stack closes, that it has ended."""
        config = self.config
        self.watchers = watchers
        resumed = config.resume and RunFolder(folder).has_begun
        watched = WatchedRun(config.group or self.name, self.name, resumed)
        facts = {
            **self.identity,
            "source": self.source,
            "backbone": self.backbone.name,
            "chosen_by": self.development.label,
        }
        for watcher in watchers:
            stack.callback(watcher.end)
            watcher.begin(watched, facts)

    def train_in_folder(self, folder: Path) -> Entry:
        """Train, and return the entry; if the run is stopped, its folder is kept for ``resume``."""
        config = self.config
        processes = self.processes
        run_folder = RunFolder(folder)
        processes.wait()  # until all processes have seen that the name is free
        if processes.is_main:
            threads = config.threads or torch.get_num_threads()
            run_folder.open(
                self.identity,
                resume=config.resume and run_folder.has_begun,
                name=folder,
                elsewhere="force=True to start over, or another name",
                force=config.force,
                settings=dataclasses.replace(config, threads=threads).document(),
            )
        processes.wait()
        try:
            return self.train_and_score(folder)
        except UsageError:  # the run cannot begin: its name is free for the next try
            if processes.is_main and not config.resume:
                run_folder.discard()
            raise

    def train_and_score(self, folder: Path) -> Entry:
        """Train, and score the result next to the untrained encoder."""
        configured = self.configured
        method = configured.method
        backbone = self.backbone
        before = self._tensors_of_start()
        plain = build_encoder(
            configured.untrained_recipe,
            backbone=backbone,
            tensors=before,
            device=self.processes.device,
            dtype="float32",
        )
        columns = {column: list[Score]() for column in COLUMNS}
        columns["untrained"] = self._score(plain, "untrained", self.tasks)
        columns["default"] = self._score_default_model(plain)
        self._make_models(folder)
        learner = TrainableEncoder(configured, backbone, self.objective, self.models)
        if self.start is not None:
            learner.load(self.start.tensors)
        first = learner.as_encoder()
        drawn = first.tensors().keys() - before.keys()
        if drawn or first.recipe.replace(dims=()) != plain.recipe:
            columns[UNTRAINED_START] = self._score(first, "untrained start", self.tasks)
        examples = self.examples
        if "mine" in self.models:
            vectors = self.models["mine"]
            guide = self.models.get("mine_guide", vectors)
            examples = mine_negatives(examples, vectors, guide, self.settings.mine_margin)
        trainer = Trainer(learner, self.processes, self.watchers)
        tensors = trainer.fit(examples, self.development, folder)
        encoder = learner.trained(tensors)
        columns["trained"] = scores = self._score(encoder, method.name, self.tasks)
        figures: dict[str, Any] = {
            "scores": {column: _by_task(each) for column, each in columns.items()}
        }
        if encoder.recipe.dims:
            figures["by_dim"] = _score_by_dim(encoder, self.development)
        provenance = {
            **vars(backbone.provenance),
            "width": encoder.width,
            "trained": self._record(trainer, figures, encoder),
        }
        documents = [score.to_dict() for score in scores]
        recipe = configured.recipe
        transfer = method.transfer_recipe(recipe)
        return Entry(self.name, portable(recipe), tensors, provenance, documents, transfer)

    def _score(self, encoder: TorchEncoder, label: str, tasks: Sequence[AnyTask]) -> list[Score]:
        """Return an encoder's scores on tasks of any kind, in their order.

        Transfer tasks use the method's recipe for transfer.
        """
        other = self.configured.method.transfer_recipe(encoder.recipe)
        scores: list[Score] = []
        for task in tasks:
            reader = encoder
            if other is not None and is_for_transfer(task):
                reader = TorchEncoder(other, encoder.backbone, encoder.tensors())
            scores += score_encoders([reader], [task], [Label(self.name, label)])
        return scores

    def _score_default_model(self, plain: TorchEncoder) -> list[Score]:
        """Return the default model's score on the development set.

        Empty if the plain encoder is that model, or if the backbone is not shipped: whoever brings
        other runs do not ask for the default model.
        """
        if published_name(plain.backbone) not in SHIPPED:
            return []
        entry = open_registry().load(DEFAULT_MODEL)
        if self.config.start == DEFAULT_MODEL and plain.recipe == entry.recipe.resolve():
            return []
        encoder = open_model(entry, device=str(plain.device), dtype="float32")
        return self._score(encoder, DEFAULT_MODEL, [self.development])

    def _make_models(self, folder: Path) -> None:
        """Compute the models' vectors in the main process; the other processes map its files."""
        for writes in (True, False):
            if writes is self.processes.is_main:
                for field, model in self.models.items():
                    model.make(folder / field, writes=writes)
            self.processes.wait()

    def _tensors_of_start(self) -> Mapping[str, Tensor]:
        """Return the tensors that the plain encoder takes from the model that the run starts from.

        A tuned backbone becomes that model's. An adapter continues to learn, so the plain encoder
        gets its own copy.
        """
        if self.start is None:
            return {}
        if "backbone" not in self.method.learns:
            return self.start.tensors
        self.backbone.tune(tuned_weights(self.start.tensors))
        return {}

    def _record(
        self, trainer: Trainer, figures: Mapping[str, Any], encoder: TorchEncoder
    ) -> dict[str, Any]:
        """Return the history of the run and everything needed to repeat it, JSON-ready."""
        config = self.config
        best = trainer.best
        with used_extensions() as of_tasks:
            for task in self.tasks:
                TASKS.get(task.name)
        record: dict[str, Any] = {**self.identity, "source": self.source}
        if self.start is not None:
            record["started_from"] = self.start.name
        if config.group:
            record["group"] = config.group
        return {
            **record,
            "examples": len(self.examples),
            "chosen_by": self.development.label,
            "steps": trainer.position.step,
            "best_step": best.step,
            "seconds": round(trainer.position.seconds, 1),
            "precision": "bfloat16" if self.processes.mixed else "float32",
            "processes": self.processes.number,
            "curve": [dataclasses.asdict(score) for score in trainer.dev_scores],
            **figures,
            "nearest_words": [
                {"word": word, "nearest": nearest}
                for word, nearest in encoder.prompt.nearest_words(_NEAREST)
            ],
            **self.in_force.record(),
            "dtype": config.dtype or "auto",
            "command": config.command or None,
            "versions": library_versions(),
            "extensions": [
                vars(each) for each in sorted({*self.code, *encoder.extensions, *of_tasks})
            ],
        }

    def _note_examples(self) -> None:
        """Note which examples were left out, and how several sources are mixed."""
        examples = self.examples
        words = examples.untokenised
        lines = []
        for count, noun, what in (
            (examples.blank, "row", "with an empty sentence left out"),
            (examples.unlabelled, "row", "without a label left out"),
            (len(examples.without_negative), "pair", "without a hard negative"),
            (examples.repeated, "row", "equal to an earlier one, kept"),
        ):
            if count:
                lines.append(f"{counted(count, noun)} {what}")
        if words:
            shown = ", ".join(words[:_WORDS_SHOWN])
            lines.append(f"{len(words):,} words left out, not a single token each: {shown}")
        for line in lines:
            note(f"{self.source}: {line}")


def _score_by_dim(encoder: TorchEncoder, development: DevelopmentTask) -> dict[str, float]:
    """Return the development score of the vectors cut to each trained width."""
    recipe = encoder.recipe
    by_dim = {}
    for dim in recipe.dims:
        shorter = TorchEncoder(recipe.truncate(dim), encoder.backbone, encoder.tensors())
        by_dim[str(dim)] = value_on(shorter, development)
    shown = ", ".join(f"{dim} {value:.2f}" for dim, value in by_dim.items())
    note(f"{development.label} by dim: {shown}")
    return by_dim


def _by_task(scores: Sequence[Score]) -> dict[str, float]:
    return {score.column: score.to_dict()["value"] for score in scores}


def read_examples(config: TrainConfig) -> TrainingExamples:
    """Return the examples; their columns decide whether the method is supervised."""
    form = config.form
    layouts: dict[tuple[str, ...], None] = {}  # in order
    for each in filter(None, METHODS[form.name]):
        layouts |= dict.fromkeys(find_objective(each).layouts)
    with tasks_from(config.data_dir):
        examples = training_examples(
            config.source, layouts=tuple(layouts), csv=config.csv, skip_bad=config.skip_bad
        )
    if config.supervised and not examples.supervised:
        columns = " or ".join(
            ", ".join(layout) for layout in find_objective(form).layouts if layout
        )
        raise UsageError(
            f"needs pairs or triplets ({columns}); {source_name(config.source)} has none",
            parameter="supervised",
        )
    return examples


def _read_tests(config: TrainConfig) -> list[AnyTask]:
    """Return the tasks to score at the end; default: the test split of the development task."""
    on = config.development
    names = config.tests
    if not names and isinstance(on, str):
        names = (on.removesuffix(":dev"),)
    tests: list[AnyTask] = []
    for name in dict.fromkeys(names):
        if name != on:
            tests += load_named_tasks(name).tasks
    return tests


def _read_start(config: TrainConfig) -> Entry | None:
    """Return the model that a run starts from; refuse a backbone that the method cannot train."""
    if config.start is None:
        return None
    method = config.form.name
    learns = {part for form in METHODS[method] if form for part in form.learns}
    entry = open_registry().load(config.start)
    tuned = tuned_weights(entry.tensors)
    needed = "backbone" in learns or ("adapter" in learns and is_lora(tuned))
    of_entry = entry.recipe.backbone
    problem = ""
    if not (tuned and needed):
        problem = f"has nothing for {method} to train"
    elif config.backbone_name != of_entry:
        problem = f"is on backbone {of_entry!r}, not {config.backbone_name!r}; leave out backbone"
    if problem:
        raise UsageError(f"model {config.start!r} {problem}", parameter="start")
    return entry


def _note_defaults(config: TrainConfig) -> None:
    """Note the default backbone, data and development pairs that the run uses."""
    if config.paper:
        return
    on = config.development
    parts = []
    if not (config.backbone or config.start):
        parts.append(f"backbone {config.backbone_name}")
    if config.data is None:
        parts.append("the demo sentences are the data")
    if not config.on:
        where = "the demo pairs" if on == BARE.development else on
        parts.append(f"checkpoints are chosen on {where}")
    if parts:
        note("; ".join(parts))


def warn_if_worse(trained: Trained) -> None:
    """Warn if the result is not better than the encoder before training."""
    plain, *_ = trained.references
    development, value = next(iter(trained.scores.items()))
    before = trained.untrained[development]
    if value > before and trained.facts["best_step"]:
        return
    warn(
        f"{trained.entry.name} is not better than before training: {value:.2f} on {development},"
        f" {plain} has {before:.2f}; more data or epochs, or another learning rate may help"
    )


def train_encoder(
    method: Method,
    settings: TrainingSettings,
    examples: TrainingExamples,
    development: DevelopmentTask,
    backbone: Backbone,
    folder: Path,
    *,
    dtype: str = "float32",
) -> tuple[TorchEncoder, dict[str, Tensor]]:
    """Train a method on an opened backbone; a method that tunes the backbone changes it in place.

    Args:
        method: The method, unsupervised or supervised.
        settings: Its settings.
        examples: The training examples; those that its objective cannot read are left out.
        development: Pairs or queries that choose the best checkpoint.
        backbone: The backbone, on the device of the training.
        folder: Keeps the state; a stopped training continues from it.
        dtype: Precision of matrix products.

    Returns:
        The encoder of the best checkpoint, and its tensors.
    """
    objective = find_objective(method)
    chosen = objective.choose(examples, settings, backbone)
    processes = start_processes(str(backbone.device), dtype)
    configured = ConfiguredMethod(method, settings, backbone.name, backbone.provenance.family)
    learner = TrainableEncoder(configured, backbone, objective)
    tensors = Trainer(learner, processes).fit(chosen, development, folder)
    return learner.trained(tensors), tensors


def describe(config: TrainConfig) -> dict[str, Any]:
    """Return the settings in force, the recipe and the data, JSON-ready, without reading weights or
    using the network.

    Local data are read: their columns decide whether the method is supervised.
    """
    method = config.form
    backbone = config.backbone_name
    data = config.source
    samples = {}
    if config.data is not None and not is_fetched(data):
        examples = read_examples(config)
        method = find_method(config.method, supervised=examples.supervised)
        steps_of(config.in_force(method).settings, len(examples))  # refuses too few
        samples = find_objective(method).samples(examples)
    found = config.in_force(method)
    settings = found.settings
    configured = config.configured_method(found, backbone, _family_of(backbone, method))
    method = configured.method
    head = configured.head
    kept = "kept" if settings.keep_head else "in training only"
    return {
        "method": method.name,
        "source": method.source,
        "backbone": backbone,
        "data": source_name(data),
        "chosen_by": str(config.development),
        "views": list(configured.prompts()),
        "pooling": configured.pooling,
        "objective": method.objective,
        "learns": [*method.learns, *(["head"] if head else [])],
        "head": f"{head}, {kept}" if head else None,
        "recipe": configured.recipe.to_dict(),
        "dtype": config.dtype or "auto",
        "preset": found.source,
        **dataclasses.asdict(settings),
        **samples,
    }


def _family_of(backbone: str, method: Method) -> str:
    """Return a backbone's family; a published backbone's follows from its name, without the
    network.
    """
    known = PUBLISHED.get(last_part(backbone))
    if known is not None and backbone in method.paper and not Path(backbone).is_dir():
        return known.shape.family
    return shape_of(backbone).family
