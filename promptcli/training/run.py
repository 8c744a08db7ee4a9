"""A training run from top to bottom: settings, examples, start, steps, the saved model and its
figures.
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.devices import choose_device, choose_dtype
from promptcli.backbones.locating import SHIPPED
from promptcli.backbones.lora import is_lora
from promptcli.backbones.pretrained import shape_of
from promptcli.backbones.published_backbones import published_name
from promptcli.data.bad_lines import IGNORED, BadRows, bad_rows, refusal_with_hint
from promptcli.data.file_arguments import split_columns
from promptcli.data.layouts import GRADED_PAIRS, PAIRS
from promptcli.data.senteval import tasks_from
from promptcli.data.sources import (
    TrainingData,
    TrainingExamples,
    development_task,
    is_fetched,
    is_sources,
    source_name,
    training_examples,
)
from promptcli.data.task_table import TASKS, graded_columns
from promptcli.data.tasks import AnyTask, STSTask, TransferTask
from promptcli.encoder.encoder import TorchEncoder, build_encoder, make_encoder, tuned_weights
from promptcli.errors import NoColumnError, NotFoundError, UsageError, counted, if_stopped
from promptcli.evaluation.candidates import load_named_tasks
from promptcli.evaluation.classifier import FULL
from promptcli.evaluation.evaluator import (
    check_tasks,
    embed_tasks,
    evaluate,
    keep_random_states,
    score_vectors,
    spearman_on,
)
from promptcli.evaluation.scores import Label, Score, SpearmanScore
from promptcli.extensions import Extension, used_extensions
from promptcli.jobs import fields_of
from promptcli.models.entries import Entry
from promptcli.models.loading import DEFAULT_MODEL, open_model, open_registry
from promptcli.models.registry import Registry, portable
from promptcli.notes import keyword, note, silent, typed_command, warn, without_network
from promptcli.recipe import Choice, Recipe
from promptcli.settings import BARE, PAPER, home_folder
from promptcli.storage.cache import library_versions
from promptcli.storage.files import temporary_folder
from promptcli.storage.runs import RunFolder, read_log
from promptcli.training.batches import check_sizes, source_shares, steps_of
from promptcli.training.finished import check_same, finished_model, note_done
from promptcli.training.methods import METHODS, find_method, forms
from promptcli.training.methods.method import Method, keeps_head
from promptcli.training.methods.training_settings import ContrastiveSettings, TrainingSettings
from promptcli.training.objectives import find_objective
from promptcli.training.presets import SettingsInForce, in_force, preset_for
from promptcli.training.processes import Processes, start_processes
from promptcli.training.teacher import (
    SentenceVectors,
    check_minable,
    check_negatives,
    mine_negatives,
    named_vectors,
)
from promptcli.training.trackers import TrackedRun, check_trackers, started_trackers
from promptcli.training.train_arguments import Setting, TrainArguments
from promptcli.training.trainer import Learner, TrainedWeights, Trainer
from promptcli.training.watching import DevScore, Watcher

_TRIPLETS = "nli_for_simcse"
_NAMED = 8  # words that a note names of those left out
_NEAREST = 5  # tokens named for each word of a soft template


@dataclass(frozen=True)
class Trained:
    """A trained encoder and its figures. ``entry`` is the form that the registry keeps."""

    entry: Entry
    device: str = "auto"
    is_main: bool = True  #: whether this process reports and writes, if several train together
    offline: bool = False  #: whether the encoder is loaded without the network

    @functools.cached_property
    def encoder(self) -> TorchEncoder:
        with without_network(self.offline):
            return open_model(self.entry, device=self.device, dtype="stored")

    @property
    def facts(self) -> dict[str, Any]:
        """What the entry's provenance says about the run: settings, data, steps, seconds, ..."""
        return dict(self.entry.provenance["trained"])

    @property
    def curve(self) -> list[DevScore]:
        return [DevScore(**score) for score in self.facts["curve"]]

    @property
    def untrained(self) -> dict[str, float]:
        """Spearman x 100 by task of the same recipe without training, the development set first."""
        return self._by_task(self.facts["untrained"])

    @property
    def scores(self) -> dict[str, float]:
        """Spearman x 100 by task of the encoder, the development set first."""
        return self._by_task(self.entry.scores)

    @property
    def begun(self) -> dict[str, float]:
        """The same of the method's own start: the tensors that it learns, as drawn.

        Empty if that is ``untrained``.
        """
        return self._by_task(self.facts.get("begun", []))

    @property
    def default(self) -> dict[str, float]:
        """The same of the default model, on the development set only.

        Empty if the run started from that model.
        """
        return self._by_task(self.facts.get("default", []))

    def _by_task(self, scores: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return {
            task: score["value"] for task, score in zip(self.facts["tasks"], scores, strict=False)
        }

    @property
    def references(self) -> dict[str, dict[str, float]]:
        """What the encoder is measured against, by the names of the table's columns: scores by
        task.
        """
        if self.begun:
            plain = "plain encoder"
        else:
            plain = self.facts.get("started_from", "untrained")
        references = {plain: self.untrained}
        if self.begun:
            references["untrained start"] = self.begun
        if self.default:
            references[DEFAULT_MODEL] = self.default
        return references

    @property
    def chosen_by(self) -> float:
        """The score on the development set."""
        return next(iter(self.scores.values()))

    @property
    def better(self) -> bool:
        before, *_ = self.untrained.values()
        after, *_ = self.scores.values()
        return after > before

    @property
    def below(self) -> dict[str, float]:
        """The references that are better on the development set, with their scores there."""
        development, *_ = self.scores
        value = self.scores[development]
        values = {name: scores[development] for name, scores in self.references.items()}
        return {name: other for name, other in values.items() if other > value}

    def to_dict(self) -> dict[str, Any]:
        shown = ("seed", "steps", "best_step", "seconds", "nearest_words")
        facts = {name: self.facts[name] for name in shown if self.facts[name] != []}
        traced = (
            *("settings", "settings_from", "differs_from_paper", "data", "development"),
            *("backbone", "command", "versions", "extensions"),
        )
        facts |= {name: self.facts[name] for name in traced if name in self.facts}
        columns = {
            "untrained": self.untrained,
            "begun": self.begun,
            "default": self.default,
            "trained": self.scores,
        }
        scores = []
        for task in self.scores:
            row = {
                name: round(values[task], 2) for name, values in columns.items() if task in values
            }
            scores.append({"task": task, **row})
        return {**facts, "better": self.better, "below": list(self.below), "scores": scores}


def ended_run(name: str | None, *, resume: bool) -> Trained | None:
    """Return the result of a run, or of several, that is resumed after its end."""
    if not resume or name is None:
        return None
    entry = finished_model(open_registry(), name)
    if entry is None:
        return None
    note_done(entry)
    return Trained(entry)


@dataclass(frozen=True, kw_only=True)
class TrainingPlan(TrainArguments):
    """A job with what the run of several, or a search, adds to it."""

    #: of the trackers' group; None: the run is a group by itself
    group: str | None = None
    watchers: Sequence[Watcher] = ()
    command: str = ""  #: with which a run that is resumed was begun

    @classmethod
    def of(cls, job: TrainArguments) -> Self:
        return cls(**vars(job))

    @property
    def where(self) -> Choice:
        if isinstance(self.backbone, Choice):
            return self.backbone
        return Choice(self.backbone)

    @functools.cached_property
    def start_reads(self) -> Recipe | None:
        """How the model that the run starts from reads sentences."""
        return open_registry().card(self.start).recipe if self.start else None

    def resolve(self) -> tuple[Method, str, TrainingData, STSTask | str | Path]:
        """Return the method, the backbone, the data and the development task: those given, or their
        defaults.
        """
        method = find_method(self.method, supervised=self.supervised)
        backbone = self._backbone(method)
        if self.paper and not method.paper:
            raise UsageError(
                f"{keyword('paper')}: no settings of {method.name} are published; leave it out"
            )
        return method, backbone, self._data(), self._development()

    def _backbone(self, method: Method) -> str:
        if self.where.model is not None:
            return self.where.model
        if self.start_reads is not None:
            return self.start_reads.backbone
        if self.paper and PAPER.backbone in method.paper:
            return PAPER.backbone
        if self.paper and method.paper:
            return next(iter(method.paper))
        return self.where.backbone

    def _data(self) -> TrainingData:
        if self.data is not None:
            return self.data
        if not self.paper:
            return BARE.corpus
        return _TRIPLETS if self.supervised else PAPER.corpus

    def _development(self) -> STSTask | str | Path:
        if self.on:
            return self.on
        if self.paper or self.data_dir is not None:
            return PAPER.development
        return BARE.development

    def examples(self, data: TrainingData, bad: BadRows | None = None) -> TrainingExamples:
        """Return the examples; their columns decide whether the method is supervised.

        ``bad`` gets the rows that cannot be read. Without it they are left out without a word if
        the run leaves them out, or has begun: its data are those that it began with.
        """
        if bad is None and (self.resume or self.bad_lines is not None):
            bad = IGNORED
        layouts: dict[tuple[str, ...], None] = {}  # in order
        for form in METHODS[self.method]:
            if form is not None:
                layouts |= dict.fromkeys(find_objective(form).layouts)
        try:
            with tasks_from(self.data_dir):
                examples = training_examples(
                    data, layouts=tuple(layouts), bad=bad or refusal_with_hint()
                )
        except NoColumnError as error:
            raise self._not_graded(error, layouts) from None
        if self.supervised and not examples.supervised:
            wanted = find_objective(find_method(self.method, supervised=True)).layouts
            columns = " or ".join(", ".join(layout) for layout in wanted if layout)
            raise UsageError(
                f"{keyword('supervised')} needs pairs or triplets ({columns}); {source_name(data)}"
                " has none"
            )
        return examples

    def _not_graded(self, error: NoColumnError, layouts: Container[tuple[str, ...]]) -> UsageError:
        """Return the error for a file without the method's columns; of graded pairs, who reads
        them.
        """
        columns = graded_columns(error.file)
        if columns is None:
            return error
        readers = list[str]()
        for method in forms():
            if GRADED_PAIRS in find_objective(method).layouts and method.name not in readers:
                readers.append(method.name)
        remedy = f"use {' or '.join(readers)}"
        first, second, _ = columns.values()
        if PAIRS in layouts:
            remedy = f"{remedy}, or {error.file}:{first},{second}"
        return UsageError(
            f"{error.file} has graded pairs, which {self.method} does not read: {remedy}"
        )

    def settings(self, method: Method, backbone: str) -> SettingsInForce:
        """Return the settings in force on a backbone."""
        preset = preset_for(method, backbone, paper=self.paper)
        of_start: dict[str, Any] = {}
        if (
            self.start_reads is not None
            and not self.paper
            and keeps_head(preset.settings)
            and not _has_head(self.start_reads)
        ):
            of_start["keep_head"] = False  # a new head would unlearn what the start knows
        return in_force(method, backbone, self.changes, paper=self.paper, of_start=of_start)

    def wanted(self, trials: Sequence[Mapping[str, Setting]]) -> list[dict[str, Any]]:
        """Return what the record of each of several runs would say: method, settings, data."""
        inputs = self._inputs()
        examples = inputs.examples
        method = find_method(self.method, supervised=examples.supervised)
        data = {"data": examples.sha256, "development": inputs.development.sha256()}
        rows = []
        for changes in trials:
            job = dataclasses.replace(self, changes={**self.changes, **changes})
            settings = job.settings(method, inputs.backbone).settings
            rows.append({"method": method.name, **dataclasses.asdict(settings), **data})
        return rows

    def started(self, method: Method, settings: TrainingSettings, family: str) -> Method:
        """Return the method as it reads sentences, which is as its start does, unless the papers'
        way is asked for.
        """
        if self.start_reads is None or self.paper:
            return method
        return method.starting_as(self.start_reads, settings, family)

    def given(self) -> dict[str, Any]:
        """Return the job as ``resumed`` takes it, JSON-ready.

        Values in memory are left out.
        """
        where = self.where
        document: dict[str, Any] = {
            "command": self.command or typed_command(),
            "folder": os.getcwd(),
            "in_memory": [],
        }
        for item in _fields_of_run():
            value = getattr(self, item.name)
            document[item.name] = _sources_in(value) if item.name == "data" else _names_in(value)
            if document[item.name] is None and value is not None:
                document["in_memory"].append(item.name)
        document |= {"model": where.model, "backbone": where.backbone}
        return document | {"dtype": where.dtype, "threads": where.threads}

    def _asked_for(self) -> dict[str, Any]:
        """Return the command and the arguments of the run, for the record of its model."""
        given = self.given()
        del given["folder"]  # of this machine
        command = given.pop("command")
        dtype = given["dtype"] or "auto"
        asked = {"dtype": dtype, "command": command or None, "arguments": given}
        if self.group is not None:
            asked["group"] = self.group
        return asked

    def begun(self) -> Self:
        """Return the plan of a run that is resumed with all that the run was begun with."""
        plan = self
        if self.resume and self.name is not None:
            plan = self._resumed(open_registry().run_folder(self.name))
        if plan.method:
            return plan
        if self.resume and self.name is not None:
            raise UsageError(
                f"no unfinished run of {self.name.removesuffix('.sweep')!r}; leave out"
                f" {keyword('resume')} to start one"
            )
        raise UsageError(
            "give a method, e.g. `promptcli train simcse`; only a run that is resumed needs none"
        )

    def _resumed(self, folder: Path) -> Self:
        """Return the plan, completed by the job that the run in ``folder`` began with."""
        stored = RunFolder(folder).given
        if not stored:
            return self
        for field in stored["in_memory"]:
            if not getattr(self, field):
                raise UsageError(
                    f"the {keyword(field)} of this run were in memory, not in files; give them"
                    " again"
                )
        begun = Path(stored["folder"])
        where = dataclasses.replace(
            self.where,
            dtype=self.where.dtype or stored["dtype"],
            threads=self.where.threads or stored["threads"],
        )
        if where.model is None:
            model = stored["model"] and _located(stored["model"], begun)
            where = dataclasses.replace(
                where, model=model, backbone=_located(stored["backbone"], begun)
            )
        completed: dict[str, Any] = {"backbone": where, "command": stored["command"]}
        for item in _fields_of_run():
            value = getattr(self, item.name)
            if item.name == "changes":
                before = {name: _setting(kept) for name, kept in stored["changes"].items()}
                completed["changes"] = {**before, **value}
            elif not value:
                completed[item.name] = _restored(item, stored[item.name], begun)
        return dataclasses.replace(self, **completed)

    def describe(self) -> dict[str, Any]:
        form, base, data, on = self.resolve()
        examples = None
        if self.data is not None and not is_fetched(data):
            examples = self.examples(data)
            form = find_method(self.method, supervised=examples.supervised)
            check_sizes(self.settings(form, base).settings, examples.sizes)
        objective = find_objective(form)
        samples = {}
        if not is_fetched(data):
            samples = objective.samples(
                lambda: examples or training_examples(data, layouts=objective.layouts)
            )
        begun_with = self.settings(form, base)
        settings = begun_with.settings
        family = _family(form, base)
        form = self.started(form, settings, family)
        variant = form.variant(family)
        head = form.head(family, settings)
        return {
            "method": form.name,
            "source": form.source,
            "backbone": base,
            "data": source_name(data),
            "chosen_by": str(on),
            "views": list(variant.prompts(settings)),
            "pooling": form.pooling_of(family, settings),
            "objective": form.objective,
            "learns": [*form.learns, *(["head"] if head else [])],
            "head": head and f"{head}, {'kept' if keeps_head(settings) else 'while training only'}",
            "recipe": form.recipe(base, family, settings).to_dict(),
            "dtype": self.where.dtype or "auto",
            "preset": begun_with.whose(),
            **dataclasses.asdict(settings),
            **samples,
        }

    def start_processes(self) -> Processes:
        device = choose_device(self.where.device)
        mixed = choose_dtype(self.where.dtype or "auto", device) == torch.bfloat16
        return start_processes(device, mixed=mixed)

    @keep_random_states()
    def carry_out(self, processes: Processes | None = None) -> Trained:
        """Train in these processes, or in those of this launch."""
        registry = open_registry()
        name = self.name
        saved_as = self.name or self.method
        check_trackers(self.report_to)
        if name is not None:
            registry.check_free(name, force=self.force or self.resume)
        elif self.resume:
            raise UsageError(f"which run should be resumed? give its {keyword('name')}")
        inputs = self._inputs()
        folder = registry.run_folder(saved_as)
        finished = None
        if self.resume and name is not None:
            finished = finished_model(registry, name)
        replaces = self.force or (name is not None and name in registry.names())
        # before the backbone: each may have its own device
        processes = processes or self.start_processes()
        with contextlib.ExitStack() as stack:
            stack.enter_context(_computing_with(self.where.threads))
            if name is None:
                folder = stack.enter_context(temporary_folder()) / saved_as
            elif processes.is_main:
                stack.enter_context(
                    RunFolder(folder).claim(
                        f"the training of {name!r}", f"give another {keyword('name')}"
                    )
                )
            stack.enter_context(silent(not processes.is_main))
            is_said = self._note_settings(inputs)
            self._note_defaults(inputs.backbone)
            inputs.note_learned()
            backbone = load_backbone(inputs.backbone, device=processes.device, dtype=torch.float32)
            if not is_said:
                self._note_settings(inputs)
            run = self._prepare(inputs, backbone, processes)
            if finished is not None:
                check_same(finished, run.identity(backbone))
                note_done(finished)
                return Trained(finished, processes.device, processes.is_main, self.offline)
            watchers = [*self.watchers]
            if processes.is_main and self.report_to:
                tracked = self._tracked(saved_as, folder)
                facts = {**run.identity(backbone), "source": run.source, "backbone": backbone.name}
                facts["chosen_by"] = run.development.label
                trackers = started_trackers(self.report_to, tracked, facts)
                watchers.append(stack.enter_context(trackers))
            run = dataclasses.replace(run, watchers=watchers)
            entry = self._run_in_folder(run, backbone, saved_as, folder, processes)
            if processes.is_main and name is not None:
                self._keep(registry, entry, folder, replaces=replaces)
            processes.wait()
            trained = Trained(entry, processes.device, processes.is_main, self.offline)
            _warn_if_below(trained)
        return trained

    def _tracked(self, name: str, folder: Path) -> TrackedRun:
        """Return the run as trackers name it."""
        logged: list[DevScore] = []
        if self.resume:
            logged = read_log(folder / "log.jsonl", DevScore)
        begins_at = logged[-1].step if logged else 0
        return TrackedRun(self.group or name, name, home_folder() / "trackers", begins_at)

    def _inputs(self) -> "_Inputs":
        """Read the examples, the tasks and the start, before anything is computed."""
        _, backbone, data, on = self.resolve()
        begun = None
        if self.start is not None:
            begun = _read_start(self.start, self.method, backbone)
        if self.bad_lines is None:
            examples = self.examples(data)
        else:
            with bad_rows(self.bad_lines) as bad:
                examples = self.examples(data, bad)
        self._check_sizes(backbone, examples)
        tests: Sequence[STSTask | str | Path] = self.tests
        if not tests and isinstance(on, str):
            tests = [on.removesuffix(":dev")]
        with tasks_from(self.data_dir):
            development = development_task(on)
            others: list[AnyTask] = []
            for task in dict.fromkeys(tests):
                if task != on:
                    others += [task] if isinstance(task, STSTask) else load_named_tasks(task).tasks
        check_tasks([task for task in others if isinstance(task, TransferTask)], FULL)
        return _Inputs(backbone, source_name(data), examples, development, tuple(others), begun)

    def _check_sizes(self, backbone: str, examples: TrainingExamples) -> None:
        """Refuse examples that do not fill a batch, if the settings can be known by now."""
        method = find_method(self.method, supervised=examples.supervised)
        try:
            settings = self.settings(method, backbone).settings
        except NotFoundError:  # a backbone of the hub that is not here yet
            return
        check_sizes(settings, examples.sizes)

    def _note_settings(self, inputs: "_Inputs") -> bool:
        """Say whose settings are in force.

        Return whether they are known by now: those of a backbone of the hub only once it is here.
        """
        method = find_method(self.method, supervised=inputs.examples.supervised)
        try:
            note(self.settings(method, inputs.backbone).said())
        except NotFoundError:
            return False
        return True

    def _note_defaults(self, backbone: str) -> None:
        """Say which backbone, data and development pairs the run takes, of those not given."""
        if self.paper:
            return
        parts = []
        if self.where.model is None and self.start is None:
            parts.append(f"backbone {backbone} ({keyword('backbone')})")
        if self.data is None:
            parts.append(f"the demo sentences are the data ({keyword('data')})")
        if not self.on:
            on = self._development()
            where = "the demo pairs" if on == BARE.development else on
            parts.append(f"checkpoints are chosen on {where} ({keyword('on')})")
        if self.data is None:
            parts.append(f"{keyword('paper')} takes the papers' backbone and data")
        if parts:
            note("; ".join(parts))

    def _prepare(
        self, inputs: "_Inputs", backbone: Backbone, processes: Processes
    ) -> "TrainingRun":
        """Return the run: the method, its settings on this backbone, and the examples it takes."""
        source = inputs.source
        with used_extensions() as code:
            method = find_method(self.method, supervised=inputs.examples.supervised)
            objective = find_objective(method)
        begun_with = self.settings(method, inputs.backbone)
        settings = begun_with.settings
        method = self.started(method, settings, backbone.provenance.family)
        examples = objective.choose(inputs.examples, settings, backbone)
        if "mine" in _models(settings):
            check_minable(examples, source)
        if isinstance(settings, ContrastiveSettings):
            check_negatives(settings, examples, source)
        models = {}
        columns = objective.columns_of_models(settings)
        for field, model in _models(settings).items():
            models[field] = named_vectors(model, examples, source, processes.device, columns)
        run = TrainingRun(
            method,
            settings,
            examples,
            source,
            inputs.development,
            inputs.tests,
            inputs.start,
            models,
            code=sorted(code),
            record={**begun_with.record(), **self._asked_for()},
        )
        run.report()
        steps_of(settings, examples.sizes)  # refuses fewer examples than a batch
        return run

    def _keep(self, registry: Registry, entry: Entry, folder: Path, *, replaces: bool) -> None:
        """Save the trained model, and remove the folder of its run."""
        if not replaces and entry.name in registry.names():
            raise UsageError(
                f"model {entry.name!r} appeared during the training, whose run is kept:"
                f" {keyword('resume')} replaces that model"
            )
        with if_stopped(_continued(entry.name)):
            registry.save(entry, force=replaces)
        RunFolder(folder).discard()

    def _run_in_folder(
        self, run: "TrainingRun", backbone: Backbone, name: str, folder: Path, processes: Processes
    ) -> Entry:
        """Return the entry; the run's folder is kept for ``resume`` if the run is stopped."""
        run_folder = RunFolder(folder)
        processes.wait()  # until all have found the name free
        if processes.is_main:
            identity = run.identity(backbone)
            elsewhere = f"{keyword('force')} starts it again, or take another {keyword('name')}"
            run_folder.open(
                identity,
                resume=self.resume and run_folder.begun,
                name=folder,
                elsewhere=elsewhere,
                force=self.force,
                given=self.given(),
            )
        processes.wait()
        kept: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self.name:
            kept = if_stopped(_continued(name))
        try:
            with kept:
                return run.train_and_score(backbone, name, folder, processes)
        except UsageError:  # the run cannot begin: its name is free for the next try
            if processes.is_main and not self.resume:
                run_folder.discard()
            raise


def _continued(name: str) -> str:
    """Return how a run that was stopped goes on."""
    return (
        f"`promptcli train --resume {name}` continues the run, {keyword('force')} starts it again"
    )


@contextlib.contextmanager
def _computing_with(threads: int | None) -> Iterator[None]:
    """Compute with so many threads in the block; None: as it is."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _fields_of_run() -> "list[dataclasses.Field[Any]]":
    """Return the fields of a job that a run is made of, but for the backbone, which is where the
    work is done, too.
    """
    fields = fields_of(TrainArguments)
    return [
        item for item in fields if item.metadata.get("of_run", True) and item.name != "backbone"
    ]


def _names_in(value: Any) -> Any:
    """Return a value as JSON keeps it, paths as text; None: it is in memory."""
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple) and all(isinstance(item, str | Path) for item in value):
        return [str(item) for item in value]
    return None


def _sources_in(data: TrainingData | None) -> list[str] | None:
    """Return the names of a run's data; None: its sentences are in memory."""
    if isinstance(data, str | Path):
        return [str(data)]
    names: list[str] | None = None
    if is_sources(data):
        names = _names_in(data)
    return names


def _restored(item: "dataclasses.Field[Any]", stored: Any, folder: Path) -> Any:
    """Return a field's value as a run in a folder had it; files are found from here, too."""
    if stored is None or "locates" not in item.metadata:
        return stored
    if isinstance(stored, str):
        return _located(stored, folder)
    names = [_located(name, folder) for name in stored]
    if item.name != "data":
        return names
    return names[0] if len(names) == 1 else [Path(name) for name in names]


def _setting(value: Any) -> Setting:
    """Return a setting as JSON keeps it: a list was a tuple."""
    setting: Setting = value
    if isinstance(value, list):
        setting = tuple(value)
    return setting


def _located(name: str, folder: Path) -> str:
    """Return the name of a file that ``folder`` has and the current one has not as a path, another
    as it is.
    """
    there = str(folder / name)
    here = os.path.exists(split_columns(name)[0])
    return there if not here and os.path.exists(split_columns(there)[0]) else name


def _family(method: Method, backbone: str) -> str:
    """Return a backbone's family: that of a published one by its name, so that no network is
    needed.
    """
    if backbone in method.paper and not os.path.isdir(backbone):
        for family in ("roberta", "bert", "opt", "llama", "mistral"):
            if family in backbone.lower():
                return family
    return shape_of(backbone).family


def _read_start(start: str, method: str, backbone: str) -> Entry:
    tuning = {
        form.name: "adapter" in form.learns
        for form in forms()
        if {"backbone", "adapter"} & set(form.learns)
    }
    if method not in tuning:
        raise UsageError(
            f"{keyword('start')} starts from a trained backbone, and {method} does not train it:"
            f" {', '.join(tuning)}"
        )
    entry = open_registry().load(start)
    of_entry = entry.recipe.backbone
    tuned = tuned_weights(entry.tensors)
    if not tuned:
        raise UsageError(
            f"model {start!r} has no trained backbone to start from; give {keyword('backbone')}"
            f" {of_entry}"
        )
    if tuning[method] and not is_lora(tuned):
        raise UsageError(
            f"{method} learns an adapter, and model {start!r} has none; start from one of prompteol"
        )
    if backbone != of_entry:
        raise UsageError(
            f"model {start!r} is on backbone {of_entry!r}, not {backbone!r}; leave out"
            f" {keyword('backbone')}"
        )
    return entry


def _has_head(recipe: Recipe) -> bool:
    return any(transform.name == "projection" for transform in recipe.parts.transforms)


def _warn_if_below(trained: Trained) -> None:
    """Warn of a result that is worse than the encoder without anything learned."""
    plain, *_ = trained.references
    if plain in trained.below:
        development, value = next(iter(trained.scores.items()))
        than = f"{plain} has {trained.below[plain]:.2f}"
        warn(
            f"{trained.entry.name} is worse than without training: {value:.2f} on {development},"
            f" {than}"
        )


def _hash_of(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _models(settings: TrainingSettings) -> dict[str, str]:
    """Return the models that settings name, e.g. a teacher, by setting.

    "" if one is needed and not named.
    """
    fields = {
        item.name: item.metadata
        for item in dataclasses.fields(settings)
        if "model" in item.metadata
    }
    named = {field: getattr(settings, field) for field in fields}
    return {
        field: model for field, model in named.items() if model or "optional" not in fields[field]
    }


@dataclass(frozen=True)
class _Inputs:
    """The examples that a run learns from, and the tasks that it is measured on."""

    backbone: str
    source: str  #: names the examples
    examples: TrainingExamples
    development: STSTask
    tests: tuple[AnyTask, ...]
    start: Entry | None

    def note_learned(self) -> None:
        """Say of which tasks the data hold pairs: a score on them is no measure of others."""
        if not self.examples.supervised:
            return
        first, second, *_ = self.examples.columns
        learned = set(zip(first, second, strict=True))
        for task in (self.development, *self.tests):
            if not isinstance(task, STSTask):
                continue
            pairs = task.pairs()
            of_task = list(zip(pairs.first, pairs.second, strict=True))
            count = sum(pair in learned for pair in of_task)
            if count:
                shared = f"{count:,} of {counted(len(of_task), 'pair')}"
                note(
                    f"{task.label}: {shared} are in the data, so its score is on pairs that were"
                    " learned"
                )


@dataclass(frozen=True)
class TrainingRun:
    """A method, its settings and its data."""

    method: Method
    settings: TrainingSettings
    examples: TrainingExamples
    source: str  #: names the examples
    development: STSTask  #: chooses the best checkpoint
    tests: tuple[AnyTask, ...] = ()  #: scored at the end, untrained and trained
    start: Entry | None = None  #: None: the backbone as pre-trained
    #: The vectors of the models that settings name, by setting.
    models: Mapping[str, SentenceVectors] = dataclasses.field(default_factory=dict)
    #: What other packages bring of the method and its objective.
    code: Sequence[Extension] = ()
    watchers: Sequence[Watcher] = ()
    #: What the saved model's record says of the settings, and how the run was asked for.
    record: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def report(self) -> None:
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
            shown = ", ".join(words[:_NAMED]) + (", ..." if len(words) > _NAMED else "")
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
        if isinstance(self.settings, ContrastiveSettings) and "mine" in self.models:
            vectors = self.models["mine"]
            guide = self.models.get("mine_guide", self.models["mine"])
            examples = mine_negatives(examples, vectors, guide, self.settings.mine_margin)
        trained = Trainer(learner, processes, self.watchers).fit(examples, self.development, folder)
        learner.load(trained.tensors)
        learner.eval()
        return learner.encoder(), trained

    def _score_of_the_default(self, plain: TorchEncoder) -> list[SpearmanScore]:
        """Return the default model's score on the development set.

        Empty if the plain encoder is that model, or if the backbone is not shipped: whoever brings
        another one does not ask for the default model.
        """
        if published_name(plain.backbone) not in SHIPPED:
            return []
        entry = open_registry().load(DEFAULT_MODEL)
        if (
            self.start is not None
            and self.start.name == DEFAULT_MODEL
            and plain.recipe == entry.recipe.resolve()
        ):
            return []
        encoder = open_model(entry, device=str(plain.device), dtype="float32")
        return evaluate([encoder], [self.development], labels=[Label(DEFAULT_MODEL, DEFAULT_MODEL)])

    def train_and_score(
        self, backbone: Backbone, name: str, folder: Path, processes: Processes
    ) -> Entry:
        """Train in a run's folder, and score the result next to the untrained encoder."""
        method, settings, family = self.method, self.settings, backbone.provenance.family
        recipe = method.recipe(backbone.name, family, settings)
        tasks = [self.development, *self.tests]
        before: Mapping[str, Tensor] = {}
        if self.start is not None:
            before = self.start.tensors
        if before and "backbone" in method.learns:
            backbone.tune(tuned_weights(before))
            before = {}
        # an adapter continues to learn: the encoder that it starts from has another copy of the
        # backbone
        baseline = method.baseline(backbone.name, family, settings)
        plain = build_encoder(
            baseline, backbone=backbone, tensors=before, device=processes.device, dtype="float32"
        )
        untrained = _scores_of(plain, tasks, Label(name, "untrained"))
        default = self._score_of_the_default(plain)
        learner = self.begin(backbone, folder, processes)
        first = learner.encoder()
        begun: list[Score] = []
        if first.recipe.replace(dims=()) != plain.recipe or first.tensors().keys() - before.keys():
            begun = _scores_of(first, tasks, Label(name, "untrained start"), method)
        encoder, trained = self.train(learner, folder, processes)
        scores = _scores_of(encoder, tasks, Label(name, method.name), method)
        by_dim = self._scores_by_dim(encoder, recipe)
        facts = {**self.identity(backbone), "source": self.source}
        if self.start is not None:
            facts["started_from"] = self.start.name
        facts["examples"] = len(self.examples)
        facts["chosen_by"] = self.development.label
        facts |= _facts_of_steps(trained, processes)
        facts["tasks"] = [score.column for score in scores]
        if by_dim:
            facts["by_dim"] = by_dim
        facts["untrained"] = _documents(untrained)
        if begun:
            facts["begun"] = _documents(begun)
        if default:
            facts["default"] = _documents(default)
        facts["nearest_words"] = _nearest_words(encoder)
        facts |= self.record
        facts["versions"] = library_versions()
        facts["extensions"] = self._extensions(encoder)
        provenance = {**vars(backbone.provenance), "width": encoder.width, "trained": facts}
        return Entry(
            name,
            portable(recipe),
            trained.tensors,
            provenance,
            _documents(scores),
            method.transfer_recipe(recipe),
        )

    def _extensions(self, encoder: TorchEncoder) -> list[dict[str, Any]]:
        """Return what other packages brought to the run, JSON-ready."""
        used = {*self.code, *encoder.extensions}
        with used_extensions() as of_tasks:
            for task in (self.development, *self.tests):
                TASKS.get(task.name)
        return [vars(extension) for extension in sorted(used | of_tasks)]

    def _scores_by_dim(self, encoder: TorchEncoder, recipe: Recipe) -> dict[str, float]:
        """Return the development score of the vectors cut to each width that was trained."""
        by_dim = {}
        for dim in recipe.dims:
            shorter = make_encoder(
                encoder.recipe.truncate(dim), encoder.backbone, encoder.tensors()
            )
            by_dim[str(dim)] = spearman_on(shorter, self.development)
        if by_dim:
            said = ", ".join(f"{dim} {value:.2f}" for dim, value in by_dim.items())
            note(f"{self.development.label} by dim: {said}")
        return by_dim


def _facts_of_steps(trained: TrainedWeights, processes: Processes) -> dict[str, Any]:
    """Return how the run went, JSON-ready."""
    return {
        "steps": trained.steps,
        "best_step": trained.best.step,
        **_learned_temperature(trained),
        "seconds": round(trained.seconds, 1),
        "precision": "bfloat16" if processes.mixed else "float32",
        "processes": processes.number,
        "curve": [dataclasses.asdict(score) for score in trained.dev_scores],
    }


def _learned_temperature(trained: TrainedWeights) -> dict[str, float]:
    """Return the temperature at the best step, if it learns."""
    if trained.best.temperature is None:
        return {}
    return {"temperature": round(trained.best.temperature, 6)}


def _scores_of(
    encoder: TorchEncoder, tasks: Sequence[AnyTask], label: Label, method: Method | None = None
) -> list[Score]:
    """Return an encoder's scores on tasks of any kind, in their order.

    On transfer tasks it is read as the method reads it there.
    """
    other = None
    if method is not None:
        other = method.transfer_recipe(encoder.recipe)
    scores: list[Score] = []
    for task in tasks:
        reader = encoder
        if other is not None and isinstance(task, TransferTask):
            reader = make_encoder(other, encoder.backbone, encoder.tensors())
        scores += score_vectors(embed_tasks([reader], [task], [label]), [task])
    return scores


def _documents(scores: Sequence[Score]) -> list[dict[str, Any]]:
    return [score.to_dict() for score in scores]


def _nearest_words(encoder: TorchEncoder) -> list[dict[str, Any]]:
    """Return the tokens that are nearest to each learned vector of a soft template."""
    words = []
    for word, nearest in encoder.prompt.nearest_words(_NEAREST):
        words.append({"word": word, "nearest": nearest})
    return words
