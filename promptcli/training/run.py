"""A training run from top to bottom: settings, examples, learner, steps, checkpoints, the saved model and its figures.

Batches and dropout follow from the seed and the step's number, so a run that was killed and resumed ends with the same
weights, bit by bit. Its folder holds ``state.safetensors`` (weights, moments, position), ``best.safetensors`` (the
weights of the best development score) and ``log.jsonl`` (a development score a line).
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from accelerate.utils import set_seed
from accelerate.utils.memory import should_reduce_batch_size
from torch import Tensor, nn

from promptcli import __version__
from promptcli.backbones.backbone import Backbone
from promptcli.backbones.devices import choose_device, choose_dtype
from promptcli.backbones.loading import load_backbone
from promptcli.backbones.lora import ALPHA, is_lora
from promptcli.backbones.pretrained import family_and_width
from promptcli.data.senteval import tasks_from
from promptcli.data.sources import (
    TrainingData,
    TrainingExamples,
    development_task,
    is_fetched,
    source_name,
    training_examples,
)
from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import TUNED, Encoder, build_encoder, tuned_weights
from promptcli.errors import OutOfMemoryError, PromptcliError, UsageError
from promptcli.evaluation.evaluator import evaluate, kept_random_states, spearman_on
from promptcli.evaluation.scores import Label
from promptcli.models.entries import Entry
from promptcli.models.loading import open_registry
from promptcli.models.registry import load_encoder, portable
from promptcli.notes import Advance, describe, note, silent, working
from promptcli.notes import offline as without_network
from promptcli.recipe import Choice
from promptcli.settings import BARE, PAPER
from promptcli.storage.files import atomic_path
from promptcli.storage.runs import Position, RunFolder, read_log, truncate_log
from promptcli.storage.tensors import load_tensors, save_tensors
from promptcli.training.loop import CLIP, Loop
from promptcli.training.methods import METHODS, find_method, forms
from promptcli.training.methods.method import Method, keeps_head
from promptcli.training.methods.training_settings import (
    ContrastiveSettings,
    LoRASettings,
    MaskedLMSettings,
    TrainingSettings,
)
from promptcli.training.mining import check_minable, mined
from promptcli.training.objectives import find_objective
from promptcli.training.optimizers import OPTIMIZERS
from promptcli.training.processes import Processes, start_processes
from promptcli.training.teacher import SentenceVectors, estimate, named_vectors
from promptcli.training.trainable_encoder import TokenizedView, TrainableEncoder

#: A value of a setting.
Setting = str | int | float | bool | tuple[str, ...]
_TRIPLETS = "nli_for_simcse"
_NAMED = 8  # words that a note names of those left out
_NEAREST = 5  # tokens named for each word of a soft template
_PRIME = 1_000_003  # spreads seeds, so that no two runs share a step's dropout
_STRIDE = 7_919  # spreads them over processes
_LEAST_TOKENS = 64  # of a pass, when memory runs out
_EVERY = 100  # steps by which lambda decays by its factor
_SORTED = 32  # batches within which rows are sorted by length
_ORDER, _DRAW = 7, 8  # seed an epoch's order, and the order of a source


@dataclass(frozen=True)
class DevScore:
    """A score on the development set during training."""

    step: int  #: steps done
    loss: float | None  #: mean training loss since the last score; None at the start
    value: float  #: Spearman x 100
    best: bool  #: the best so far
    seconds: float  #: spent in steps
    rate: float | None  #: examples per second since the last score
    diverged: bool  #: near 0, and significantly below the first score


@dataclass(frozen=True)
class Trained:
    """A trained encoder and its figures. ``entry`` is the form that the registry keeps."""

    entry: Entry
    device: str = "auto"
    is_main: bool = True  #: whether this process reports and writes, if several train together
    offline: bool = False  #: whether the encoder is loaded without the network

    @functools.cached_property
    def encoder(self) -> Encoder:
        """The encoder."""
        with without_network(self.offline):
            return load_encoder(self.entry, device=self.device, dtype="stored")

    @property
    def facts(self) -> dict[str, Any]:
        """What the entry's provenance says about the run: settings, data, steps, seconds, ..."""
        return dict(self.entry.provenance["trained"])

    @property
    def curve(self) -> list[DevScore]:
        """Development scores during training."""
        return [DevScore(**score) for score in self.facts["curve"]]

    @property
    def untrained(self) -> dict[str, float]:
        """Spearman x 100 by task of the same recipe without training, the development set first."""
        return self._by_task(self.facts["untrained"])

    @property
    def scores(self) -> dict[str, float]:
        """Spearman x 100 by task of the encoder, the development set first."""
        return self._by_task(self.entry.scores)

    def _by_task(self, scores: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return {task: score["value"] for task, score in zip(self.facts["tasks"], scores, strict=False)}

    @property
    def better(self) -> bool:
        """Whether training helped on the development set."""
        (before, *_), (after, *_) = self.untrained.values(), self.scores.values()
        return after > before

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-ready values."""
        shown = ("seed", "steps", "best_step", "seconds", "nearest_words")
        facts = {name: self.facts[name] for name in shown if self.facts[name] != []}
        scores = [
            {"task": task, "untrained": round(before, 2), "trained": round(self.scores[task], 2)}
            for task, before in self.untrained.items()
        ]
        return {**facts, "better": self.better, "scores": scores}


@dataclass(frozen=True)
class Request:
    """The arguments of ``train`` that decide what is trained on what."""

    method: str
    data: TrainingData | None
    backbone: str | Choice | None
    start: str | None
    supervised: bool
    paper: bool
    on: STSTask | str | Path | None
    data_dir: Path | None
    changes: Mapping[str, Setting]
    skip_bad: bool = False

    @property
    def where(self) -> Choice:
        """The backbone's name, device and dtype."""
        return self.backbone if isinstance(self.backbone, Choice) else Choice(self.backbone)

    def chosen(self) -> tuple[Method, str, TrainingData, STSTask | str | Path]:
        """Return the method, and backbone, data and development set as named or assumed."""
        form = find_method(self.method, supervised=self.supervised)
        base = self.where.model
        if base is None and self.start:
            base = open_registry().card(self.start).recipe.backbone
        if base is None and self.paper and form.paper:
            base = PAPER.backbone if PAPER.backbone in form.paper else next(iter(form.paper))
        base = base or self.where.backbone
        if self.paper and base not in form.paper:
            published = f"only for: {', '.join(form.paper)}" if form.paper else "leave it out"
            raise UsageError(f"`paper`: no settings of {form.name} are published for backbone {base!r}; {published}")
        data, on = self.data, PAPER.development if self.paper or self.data_dir is not None else BARE.development
        if data is None:
            data = (_TRIPLETS if self.supervised else PAPER.corpus) if self.paper else BARE.corpus
        return form, base, data, self.on or on

    def examples(self, data: TrainingData) -> TrainingExamples:
        """Return the examples; their columns decide whether the method is supervised."""
        objectives = [find_objective(form) for form in METHODS[self.method] if form is not None]
        layouts = tuple(dict.fromkeys(layout for objective in objectives for layout in objective.layouts))
        with tasks_from(self.data_dir):
            examples = training_examples(data, layouts=layouts, skip_bad=self.skip_bad)
        if self.supervised and not examples.supervised:
            wanted = find_objective(find_method(self.method, supervised=True)).layouts
            columns = " or ".join(", ".join(layout) for layout in wanted if layout)
            raise UsageError(
                f"`supervised` needs pairs or triplets, columns {columns}; {source_name(data)} has sentences only"
            )
        return examples

    def settings(self, method: Method, backbone: str, width: int | None = None) -> TrainingSettings:
        """Return the settings in force on a backbone of that width, which is looked up if None."""
        if self.paper:
            return method.changed(method.published(backbone), self.changes)
        if width is None:
            width = 0 if backbone in method.paper else family_and_width(backbone)[1]
        return method.changed(method.settings(backbone, width), self.changes)

    def describe(self, *, timed: bool = False) -> dict[str, object]:
        """Return what a run would do, JSON-ready; see ``training_settings``."""
        form, base, data, on = self.chosen()
        if self.data is not None and not is_fetched(self.data):
            form = find_method(self.method, supervised=self.examples(self.data).supervised)
        in_force, family = self.settings(form, base), _family(form, base)
        variant, head = form.variant(family), form.head(family, in_force)
        models = _models(in_force) if timed and not is_fetched(data) else {}
        device = choose_device(self.where.device)
        return {
            "method": form.name,
            "source": form.source,
            "backbone": base,
            "data": source_name(data),
            "chosen_by": str(on),
            "views": list(variant.prompts(in_force)),
            "pooling": form.pooling_of(family, in_force),
            "objective": form.objective,
            "learns": [*form.learns, *(["head"] if head else [])],
            "head": head and f"{head}, {'kept' if keeps_head(in_force) else 'while training only'}",
            "recipe": form.recipe(base, family, in_force).to_dict(),
            **dataclasses.asdict(in_force),
            **{
                f"{field}_vectors": estimate(model, self.examples(data), source_name(data), device)
                for field, model in models.items()
                if model
            },
        }


@kept_random_states()
def carry_out(
    request: Request,
    *,
    name: str | None,
    tests: Sequence[str],
    resume: bool,
    force: bool,
    trackers: Sequence[str],
    offline: bool,
) -> Trained:
    """Train as ``train`` does."""
    registry, saved_as = open_registry(), name or request.method
    if name is not None:
        registry.check_free(name, force=force or resume)
    elif resume:
        raise UsageError("which run is to be resumed? give its `name`")
    form, base, data, on = request.chosen()
    begun = None if request.start is None else _read_start(request.start, request.method, base)
    examples = request.examples(data)
    form = find_method(request.method, supervised=examples.supervised)
    scored: Sequence[STSTask | str | Path] = tests or [on.removesuffix(":dev") if isinstance(on, str) else on]
    with tasks_from(request.data_dir):
        development, *others = [development_task(task) for task in dict.fromkeys([on, *scored])]
    folder = registry.run_folder(saved_as)
    device = choose_device(request.where.device)
    mixed = choose_dtype(request.where.dtype or "auto", device) == torch.bfloat16
    # before the backbone: each process may have its own device
    processes = start_processes(device, mixed=mixed, trackers=trackers, folder=folder.parents[1])
    with contextlib.ExitStack() as stack:
        if name is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="promptcli-")), saved_as)
        stack.enter_context(silent(not processes.is_main))
        loaded = load_backbone(base, device=processes.device, dtype=torch.float32)
        settings = request.settings(form, base, loaded.width)
        examples = find_objective(form).choose(examples, settings, loaded)
        if "mine" in _models(settings):
            check_minable(examples, source_name(data))
        models = {
            field: named_vectors(model, examples, source_name(data), processes.device)
            for field, model in _models(settings).items()
        }
        run = TrainingRun(form, settings, examples, source_name(data), development, tuple(others), begun, models)
        if request.data is None and not request.paper:
            note(
                f"assumed: {base}, {len(examples):,} demo sentences, chosen by {development.label}; the papers'"
                " setting: `paper`"
            )
        run.report()
        run.check(loaded)
        if trackers:
            processes.accelerator.init_trackers(saved_as, config=dataclasses.asdict(settings))
        try:
            entry = run.resumable(loaded, saved_as, folder, processes, resume=resume)
        except KeyboardInterrupt:
            note(f"stopped; `resume` continues the run of {saved_as!r}" if name else "stopped")
            raise
        if processes.is_main and name is not None:
            registry.save(entry, force=True)
            RunFolder(folder).remove()
        processes.wait()
    for tracker in processes.accelerator.trackers:  # `end_training` would also part the processes of a sweep
        tracker.finish()
    return Trained(entry, processes.device, processes.is_main, offline)


def _family(method: Method, backbone: str) -> str:
    """Return a backbone's family: that of a published one by its name, so that no network is needed."""
    if backbone in method.paper:
        for family in ("roberta", "bert", "opt", "llama", "mistral"):
            if family in backbone.lower():
                return family
    return family_and_width(backbone)[0]


def _read_start(start: str, method: str, backbone: str) -> Entry:
    """Return the entry whose tuned backbone a run starts from."""
    tuning = {form.name: "adapter" in form.learns for form in forms() if {"backbone", "adapter"} & set(form.learns)}
    if method not in tuning:
        raise UsageError(
            f"`start` starts from a trained backbone, and {method} does not train it; methods that do:"
            f" {', '.join(tuning)}"
        )
    entry = open_registry().load(start)
    of_entry, tuned = entry.recipe.backbone, tuned_weights(entry.tensors)
    if not tuned:
        raise UsageError(f"model {start!r} has no trained backbone to start from; give `backbone` {of_entry}")
    if tuning[method] and not is_lora(tuned):
        raise UsageError(f"{method} learns an adapter, and model {start!r} has none; start from one of prompteol")
    if backbone != of_entry:
        raise UsageError(f"model {start!r} is on backbone {of_entry!r}, not {backbone!r}; leave out `backbone`")
    return entry


def _hash_of(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _models(settings: TrainingSettings) -> dict[str, str]:
    """Return the models that settings name, e.g. a teacher, by setting; "" if one is needed and not named."""
    named = {
        item.name: getattr(settings, item.name) for item in dataclasses.fields(settings) if "model" in item.metadata
    }
    optional = {item.name for item in dataclasses.fields(settings) if "optional" in item.metadata}
    return {field: model for field, model in named.items() if model or field not in optional}


@dataclass(frozen=True)
class TrainingRun:
    """A method, its settings and its data."""

    method: Method
    settings: TrainingSettings
    examples: TrainingExamples
    source: str  #: names the examples
    development: STSTask  #: chooses the best checkpoint
    tests: tuple[STSTask, ...] = ()  #: scored at the end, untrained and trained
    start: Entry | None = None  #: None: the backbone as pre-trained
    #: Of the models that settings name, by setting.
    models: Mapping[str, SentenceVectors] = dataclasses.field(default_factory=dict)

    def report(self) -> None:
        """Note what the data lack or repeat."""
        examples = self.examples
        hard = examples.columns[2] if len(examples.columns) > 2 else []
        for count, what in (
            (examples.blank, "rows with an empty sentence left out"),
            (examples.unlabelled, "rows without a label left out"),
            (hard.count(""), "pairs without a hard negative"),
            (examples.repeated, "rows repeat an earlier row; they are kept"),
        ):
            if count:
                note(f"{self.source}: {count:,} {what}")
        if len(examples.sizes) > 1:
            shares = source_shares(examples.sizes, self.settings.data_temperature)
            mix = ", ".join(f"{share:,} of {size:,}" for share, size in zip(shares, examples.sizes, strict=True))
            note(f"{self.source}: rows an epoch: {mix}")
        if words := examples.untokenised:
            shown = ", ".join(words[:_NAMED]) + (", ..." if len(words) > _NAMED else "")
            note(f"{self.source}: {len(words):,} words that are not a single token left out: {shown}")

    def check(self, backbone: Backbone) -> None:
        """Refuse what cannot be trained, or not be read afterwards, before anything is written."""
        steps_of(self.settings, self.examples.sizes)
        recipe = self.method.recipe(backbone.name, backbone.provenance.family, self.settings)
        transfer = self.method.transfer_recipe(recipe, self.settings)
        if self.settings.transfer_recipe and transfer is not None:
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
            **({} if self.start is None else {"from": _hash_of(self.start.tensors)}),
            **{f"{name}_fingerprint": model.fingerprint for name, model in self.models.items()},
        }

    def train(self, backbone: Backbone, folder: Path, processes: Processes) -> "tuple[Encoder, TrainedWeights]":
        """Return the encoder of the best checkpoint, and how the run went; a tuned backbone is changed."""
        for writes in (True, False):  # the others map what the main process has made
            if writes is processes.is_main:
                for field, model in self.models.items():
                    model.make(folder / field, writes=writes)
            processes.wait()
        examples = self.examples
        if isinstance(self.settings, ContrastiveSettings) and "mine" in self.models:
            vectors, guide = self.models["mine"], self.models.get("mine_guide", self.models["mine"])
            examples = mined(examples, vectors, guide, self.settings.mine_margin)
        learner = Learner(self.method, self.settings, backbone, self.models)
        if self.start is not None:
            learner.load(self.start.tensors)
        trained = Trainer(learner, processes).train(examples, self.development, folder)
        learner.load(trained.tensors)
        learner.eval()
        return learner.encoder(), trained

    def resumable(self, backbone: Backbone, name: str, folder: Path, processes: Processes, *, resume: bool) -> Entry:
        """Return the entry; the run's folder is kept for ``resume`` if the run is stopped."""
        run_folder = RunFolder(folder)
        processes.wait()  # until all have found the name free
        if processes.is_main:
            run_folder.open(self.identity(backbone), resume=resume, name=folder, elsewhere="take another `name`")
        processes.wait()
        try:
            return self.entry(backbone, name, folder, processes)
        except UsageError:  # the run cannot begin: its name is free for the next try
            if processes.is_main and not resume:
                run_folder.remove()
            raise

    def entry(self, backbone: Backbone, name: str, folder: Path, processes: Processes) -> Entry:
        """Train in a run's folder, and score the result next to the untrained encoder."""
        method, settings, family = self.method, self.settings, backbone.provenance.family
        recipe = method.recipe(backbone.name, family, settings)
        tasks = [self.development, *self.tests]
        before = {} if self.start is None else self.start.tensors
        if before and "backbone" in method.learns:
            backbone.tune(tuned_weights(before))
            before = {}
        # an adapter goes on learning: the encoder that it starts from has a backbone of its own
        baseline = method.baseline(backbone.name, family, settings)
        plain = build_encoder(baseline, backbone=backbone, tensors=before, device=processes.device, dtype="float32")
        untrained = evaluate([plain], tasks, labels=[Label(name, "untrained")])
        encoder, trained = self.train(backbone, folder, processes)
        scores = evaluate([encoder], tasks, labels=[Label(name, method.name)])
        cut = {dim: Encoder(encoder.recipe.first(dim), encoder.backbone, encoder.tensors()) for dim in recipe.dims}
        by_dim = {str(dim): spearman_on(shorter, self.development) for dim, shorter in cut.items()}
        if by_dim:
            note(f"{self.development.label} by dim: {', '.join(f'{dim} {value:.2f}' for dim, value in by_dim.items())}")
        facts = {
            **self.identity(backbone),
            "source": self.source,
            **({} if self.start is None else {"started_from": self.start.name}),
            "examples": len(self.examples),
            "chosen_by": self.development.label,
            "steps": trained.steps,
            "best_step": trained.best.step,
            "seconds": round(trained.seconds, 1),
            "precision": "bfloat16" if processes.mixed else "float32",
            "processes": processes.number,
            "curve": [dataclasses.asdict(score) for score in trained.dev_scores],
            "tasks": [score.column for score in scores],
            **({"by_dim": by_dim} if by_dim else {}),
            "untrained": [score.to_dict() for score in untrained],
            "nearest_words": [
                {"word": word, "nearest": nearest} for word, nearest in encoder.prompt.nearest_words(_NEAREST)
            ],
            "versions": {"promptcli": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }
        return Entry(
            name,
            portable(recipe),
            trained.tensors,
            {**backbone.provenance.to_dict(), "width": encoder.width, "trained": facts},
            [score.to_dict() for score in scores],
            method.transfer_recipe(recipe, settings),
        )


class Learner(TrainableEncoder):
    """A method at work on a backbone: an encoder in training and the method's objective."""

    def __init__(
        self,
        method: Method,
        settings: TrainingSettings,
        backbone: Backbone,
        models: Mapping[str, SentenceVectors] = MappingProxyType({}),
    ) -> None:
        objective = find_objective(method)
        generator = torch.Generator().manual_seed(settings.seed)
        super().__init__(method, settings, backbone, generator, models)
        self.objective = objective(settings, self, generator)

    def tokenize(self, columns: Sequence[Sequence[str]]) -> list[TokenizedView]:
        """Return the rows of n examples, given as texts by column; computes nothing on a device."""
        return self.tokenize_sides(self.objective.sides(columns))

    def forward(
        self, columns: Sequence[Sequence[str]], sides: Sequence[TokenizedView] | None = None
    ) -> tuple[Tensor, ...]:
        """Return the objective's views of n examples, given as texts by column; ``sides``: already tokenised.

        For ``contrastive`` these are z1, z2 and, with hard negatives, z3, each (n, d) float32.
        """
        self.mlm_sums = torch.zeros(2, device=self.backbone.device)
        return self.objective.views(self, self.tokenize(columns) if sides is None else sides, columns)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the tensors that learn, by the names they are stored under."""
        modules: dict[str, nn.Module | None] = {
            "projection": self.head,
            "objective": self.objective,
            "mlm": self.mlm_head,
            TUNED.rstrip("."): self.model if {"backbone", "adapter"} & set(self.method.learns) else None,
        }
        trainable = self.learned()
        for prefix, module in modules.items():
            for name, parameter in () if module is None else module.named_parameters():
                if parameter.requires_grad:
                    trainable[f"{prefix}.{name}"] = parameter
        return trainable

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of an entry's tensors: prompt, kept head, and the tuned or added weights of the backbone."""
        fixed = {name for name, parameter in self.model.named_parameters() if not parameter.requires_grad}
        model = self.model.state_dict() if "backbone" in self.method.learns else {}
        model = {name: tensor for name, tensor in model.items() if name not in fixed}
        if isinstance(self.settings, LoRASettings):
            learned = {name: tensor for name, tensor in self.model.named_parameters() if tensor.requires_grad}
            model = {**learned, ALPHA: torch.tensor(float(self.settings.lora_alpha))}
        tensors = self._outside() | {f"{TUNED}{name}": tensor for name, tensor in model.items()}
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the parameters whose names and shapes match."""
        with torch.no_grad():
            for name, parameter in self.trainable().items():
                if name in tensors and tensors[name].shape == parameter.shape:
                    parameter.copy_(tensors[name])

    def _outside(self) -> dict[str, Tensor]:
        """Return the tensors that are learned outside the backbone and kept at test time."""
        head = self.head.named_parameters() if keeps_head(self.settings) else ()
        tensors = self.learned() | {f"projection.{name}": parameter for name, parameter in head}
        return {name: parameter.detach() for name, parameter in tensors.items()}

    def encoder(self, *, selecting: bool = False) -> Encoder:
        """Return the current encoder, on the same backbone; ``selecting``: as the development score reads it."""
        family = self.backbone.provenance.family
        recipe = self.method.recipe(self.backbone.name, family, self.settings)
        if selecting:
            recipe = self.method.selecting(recipe, self.settings, family)
        return Encoder(recipe, self.backbone, self._outside())


@dataclass(frozen=True)
class TrainedWeights:
    """The result of a run's steps."""

    tensors: dict[str, Tensor]  #: of the best development score, by name
    dev_scores: list[DevScore]  #: all of the run, in order; the first is the start
    steps: int
    seconds: float  #: spent in steps

    @property
    def best(self) -> DevScore:
        """The development score whose weights are kept."""
        return [score for score in self.dev_scores if score.best][-1]


class Trainer(Loop[tuple[int, np.ndarray]]):
    """Trains a new learner, alone or as one of several processes. A step's item is its number and its rows."""

    def __init__(self, learner: Learner, processes: Processes) -> None:
        self.learner, self.processes = learner, processes
        self.settings: TrainingSettings = learner.settings
        self.parameters = learner.trainable()
        self.optimizer = OPTIMIZERS[self.settings.optimizer](
            self.parameters, self.settings.learning_rate, self.settings.weight_decay
        )
        self.dev_scores: list[DevScore] = []
        self._losses: list[float] = []  # since the last score
        self._scored_at = 0  # examples seen at the last score
        self._advance: Advance = lambda done: None

    def train(self, examples: TrainingExamples, development: STSTask, folder: Path) -> TrainedWeights:
        """Train to the end of the settings, from the state in ``folder`` if there is one."""
        self.processes.check(batch_lengths(self.settings, examples.sizes))
        self.examples, self.development, self.folder = examples, development, folder
        self.steps = steps_of(self.settings, examples.sizes)
        position = self._resumed()
        with working(f"train {self.learner.method.name}", self.steps) as self._advance:
            self._advance(position.step)
            position = self.run(position, folder / "state.safetensors")
        self.processes.wait()
        best = load_tensors(folder / "best.safetensors", hint=f"delete {folder} and start again", error=UsageError)
        return TrainedWeights(best, self.dev_scores, position.step, position.seconds)

    def _resumed(self) -> Position:
        """Return the position to start from; a new run begins with the score of the start."""
        state, log = self.folder / "state.safetensors", self.folder / "log.jsonl"
        self.dev_scores, self._scored_at = [], 0
        begun = state.is_file()
        self.processes.wait()  # before the main process writes anything
        if not begun:
            if self.processes.is_main:
                log.unlink(missing_ok=True)
            if self.settings.scored == "also-ends":
                self._score(Position())
            return Position()
        position = self.load(state)
        self.dev_scores, self._scored_at = read_log(log, DevScore, until=position.step), position.seen
        self.processes.wait()  # until all have read it
        if self.processes.is_main:
            truncate_log(log, position.step)
        return position

    def items(self, position: Position) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the number of each remaining step, from 0, and the rows of its batch."""
        return itertools.islice(
            enumerate(batches(self.settings, self.examples.sizes, self.examples.lengths)), position.step, self.steps
        )

    def read(self, item: tuple[int, np.ndarray]) -> tuple[list[list[str]], list[TokenizedView]]:
        """Return a batch's texts by column, and its views of this process, tokenised."""
        columns = [[column[row] for row in item[1]] for column in self.examples.columns]
        return columns, self.learner.tokenize(self.processes.share(columns))

    def rate(self, item: tuple[int, np.ndarray]) -> float:
        """Return the learning rate of a step."""
        return learning_rate(self.settings, item[0], self.steps)

    def size(self, item: tuple[int, np.ndarray]) -> int:
        """Return the examples of a step."""
        return len(item[1])

    def stopped(self) -> bool:
        """Return whether the scores have not improved for too long."""
        return stalled(self.dev_scores, self.settings.patience)

    def compute(self, item: tuple[int, np.ndarray], inputs: Any) -> Tensor:
        """Put the gradients of a step in place; return its loss."""
        return self.gradients(item[0], *inputs)

    def took(self, figures: Any, item: tuple[int, np.ndarray]) -> None:
        """Record the loss of a step; a loss that is not a number ends the run."""
        loss, step = float(figures), item[0] + 1
        if not math.isfinite(loss):
            raise PromptcliError(
                f"the loss at step {step} is not a number; the best checkpoint so far is kept in {self.folder}: try a"
                " lower `learning_rate`"
            )
        self._losses.append(loss)
        self._advance(1)
        best = [score.value for score in self.dev_scores if score.best][-1:]
        describe(self._advance, f"loss {loss:.4f}" + "".join(f"  best {value:.2f}" for value in best))
        self.processes.accelerator.log({"loss": loss, "learning_rate": self.rate(item)}, step=step)

    def gradients(
        self, number: int, columns: Sequence[Sequence[str]], sides: Sequence[TokenizedView] | None = None
    ) -> Tensor:
        """Put the gradients of step ``number`` (from 0) in place and return the loss, still on the device.

        If memory runs out the step is done again, with gradient caching and passes half as large. ``columns``: the
        texts of the complete batch of all processes; ``sides``: the views of this process, if tokenised already.
        """
        learner = self.learner
        while True:
            try:
                return self._gradients(number, columns, sides)
            except Exception as error:
                if not should_reduce_batch_size(error):
                    raise
                tokens = learner.chunk_tokens // 2
                if self.processes.number > 1:  # the others wait for this one's vectors
                    raise OutOfMemoryError(
                        f"out of memory at step {number + 1} in process {self.processes.index}; give all of them"
                        f" `gradient_caching` and `chunk_tokens` {tokens}, or a smaller `batch_size`"
                    ) from None
                if tokens < _LEAST_TOKENS:
                    raise OutOfMemoryError(
                        f"out of memory at step {number + 1} even with {learner.chunk_tokens} tokens a pass; take a"
                        " smaller `batch_size` or `max_length`"
                    ) from None
            learner.caching, learner.chunk_tokens = True, tokens
            note(
                f"out of memory at step {number + 1}: gradient caching from now on, {tokens} tokens a pass; the batch"
                " and its negatives stay"
            )

    def _gradients(
        self, number: int, columns: Sequence[Sequence[str]], sides: Sequence[TokenizedView] | None
    ) -> Tensor:
        learner, processes, settings = self.learner, self.processes, self.settings
        set_seed((settings.seed * _PRIME + number + _STRIDE * processes.index) % 2**32)
        learner.train()
        learner.zero_grad(set_to_none=True)
        with processes.autocast():
            views = learner(processes.share(columns), sides)
        joined = [processes.join(view, len(columns[0])) for view in views]
        loss = learner.objective.loss(joined, columns)
        value = loss.detach()
        if isinstance(settings, MaskedLMSettings) and settings.mlm_weight:
            weight = settings.mlm_weight * learner.method.mlm_decay ** (number / _EVERY)
            total, count = learner.mlm_sums
            predicted = processes.total(count).clamp(min=1)
            loss = loss + weight * total / predicted
            value = value + weight * processes.total(total) / predicted
        processes.accelerator.backward(loss)
        processes.add_gradients(self.parameters.values())
        return value

    def move(self) -> None:
        """Take the optimiser's step."""
        try:
            self.processes.accelerator.clip_grad_norm_(self.parameters.values(), CLIP)
            self.optimizer.step()
        except Exception as error:
            if not should_reduce_batch_size(error):
                raise
            count = sum(parameter.numel() for parameter in self.parameters.values())
            raise OutOfMemoryError(
                f"out of memory: {count:,} parameters learn, and with gradients and moments they take"
                f" {16 * count / 1e9:.1f} GB; take a smaller `backbone`, or a method that learns less, such as dcpcse"
            ) from None

    def pauses(self, step: int) -> bool:
        """Return whether the development set is scored after a step."""
        last = step == self.steps and (self.settings.scored == "also-ends" or not self.dev_scores)
        return last or step % self.settings.eval_steps == 0

    def pause(self, position: Position) -> bool:
        """Score the learner; the main process keeps the state."""
        self._score(position)
        return self.processes.is_main

    def _score(self, position: Position) -> None:
        """Score the learner; keep its weights if they are the best so far (strictly: ties keep the earlier)."""
        self.learner.eval()
        value = spearman_on(self.learner.encoder(selecting=True), self.development)
        if not math.isfinite(value):
            value = 0.0  # equal vectors for all sentences rank nothing
        before = self.dev_scores[-1].seconds if self.dev_scores else 0.0
        samples, elapsed = position.seen - self._scored_at, position.seconds - before
        score = DevScore(
            step=position.step,
            loss=float(np.mean(self._losses)) if self._losses else None,
            value=value,
            best=all(value > score.value for score in self.dev_scores),
            seconds=position.seconds,
            rate=samples / elapsed if elapsed > 0 else None,
            diverged=has_diverged(value, self.dev_scores[:1], len(self.development.pairs())),
        )
        self.dev_scores.append(score)
        self._scored_at, self._losses = position.seen, []
        self.processes.accelerator.log({f"spearman/{self.development.label}": value}, step=position.step)
        if not self.processes.is_main:
            return
        if score.best:
            with atomic_path(self.folder / "best.safetensors") as temporary:
                save_tensors(self.learner.tensors(), temporary)
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(dataclasses.asdict(score)) + "\n")
        shown = [f"step {score.step}/{self.steps}", "" if score.loss is None else f"loss {score.loss:.4f}"]
        shown += [f"{self.development.label} {score.value:.2f}{' *' if score.best else ''}"]
        shown += ["" if score.rate is None else f"{score.rate:.0f} examples/s"]
        note("  ".join(filter(None, shown)))
        if score.diverged:
            note(f"the run has diverged; try a `learning_rate` below {self.settings.learning_rate:g}")


def has_diverged(value: float, first: Sequence[DevScore], pairs: int) -> bool:
    """Return whether a score (Spearman x 100) is noise and fell significantly since the first one.

    Noise: within two standard errors of 0, 1 / sqrt(n). A significant fall: more than two standard errors of the
    difference of two correlations, sqrt(2 / n).
    """
    noise, fall = 2 / math.sqrt(pairs), 2 * math.sqrt(2 / pairs)
    return any(abs(value) / 100 < noise and (score.value - value) / 100 > fall for score in first)


def stalled(scores: Sequence[DevScore], patience: int) -> bool:
    """Return whether none of the last ``patience`` scores is the best so far; never if it is 0."""
    return 0 < patience < len(scores) and not any(score.best for score in scores[-patience:])


def learning_rate(settings: TrainingSettings, step: int, steps: int) -> float:
    """Return the learning rate of step ``step`` (from 0) of ``steps``: a linear rise from 0, then ``schedule``."""
    warm = min(settings.warmup_steps or math.ceil(settings.warmup * steps), steps)
    if step < warm:
        return settings.learning_rate * step / warm
    decay = 0.0 if settings.schedule == "constant" else (step - warm) / max(1, steps - warm)
    return settings.learning_rate * (1 - decay)


def steps_of(settings: TrainingSettings, sizes: Sequence[int]) -> int:
    """Return the number of steps of a run on sources of those sizes."""
    lengths = batch_lengths(settings, sizes)
    if not lengths or sum(sizes) < settings.batch_size:
        raise UsageError(
            f"{sum(sizes)} examples are less than one batch of {settings.batch_size}; give more, or `batch_size`"
        )
    return settings.steps or max(1, round(settings.epochs * len(lengths)))


def batch_lengths(settings: TrainingSettings, sizes: Sequence[int]) -> list[int]:
    """Return the number of examples of each batch of an epoch, before the batches are put in order."""
    shares = source_shares(sizes, settings.data_temperature)
    groups = shares if settings.batches == "one-source" else [sum(shares)]
    size = settings.batch_size
    lengths = [min(size, group - start) for group in groups for start in range(0, group, size)]
    return [length for length in lengths if length == size or not settings.drop_last]


def source_shares(sizes: Sequence[int], temperature: float) -> list[int]:
    """Return the number of rows of each source in an epoch: n^(1/T) / sum n^(1/T) of all rows.

    Rounded so that they add up: the largest remainders up, the others down.
    """
    total = sum(sizes)
    weights = np.asarray(sizes, np.float64) ** (1 / temperature)
    exact = total * weights / weights.sum()
    shares = np.floor(exact).astype(int)
    shares[np.argsort(shares - exact, kind="stable")[: total - shares.sum()]] += 1
    return [int(share) for share in shares]


def batches(
    settings: TrainingSettings, sizes: Sequence[int], lengths: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Yield the rows of each batch without end; a batch that ends an epoch, or its source, may be short.

    A source whose share is more than its rows begins again within the epoch; a source whose share is less continues in
    the next epoch; each pass over a source has a new order. ``lengths``: of all rows, for batches of similar lengths.
    """
    size = settings.batch_size
    shares = source_shares(sizes, settings.data_temperature)
    for epoch in itertools.count():
        order = np.random.default_rng([settings.seed, _ORDER, epoch])
        drawn = [
            first + _draw(settings.seed, source, rows, epoch * share, share)
            for source, (first, rows, share) in enumerate(zip(np.cumsum([0, *sizes]), sizes, shares, strict=False))
        ]
        if settings.batches == "one-source":
            cut = [rows[start : start + size] for rows in drawn for start in range(0, len(rows), size)]
        else:
            rows = order.permutation(sum(sizes))
            if shares != list(sizes):
                rows = np.concatenate(drawn)[rows]
            if settings.batches == "similar-lengths":
                assert lengths is not None
                windows = np.split(rows, range(_SORTED * size, len(rows), _SORTED * size))
                rows = np.concatenate([window[np.argsort(lengths[window], kind="stable")] for window in windows])
            cut = [rows[start : start + size] for start in range(0, len(rows), size)]
        if settings.batches != "mixed":
            cut = [cut[number] for number in order.permutation(len(cut))]
        yield from (batch for batch in cut if len(batch) == size or not settings.drop_last)


def _draw(seed: int, source: int, rows: int, start: int, count: int) -> np.ndarray:
    """Return rows ``start`` to ``start + count`` of a source that is read again and again, each time in a new order."""
    passes = range(start // rows, math.ceil((start + count) / rows))
    orders = [np.random.default_rng([seed, _DRAW, source, number]).permutation(rows) for number in passes]
    first = start - passes.start * rows
    return np.concatenate(orders)[first : first + count]
