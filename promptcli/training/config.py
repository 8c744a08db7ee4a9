"""The arguments of a training run, and what is read for them before the backbone is opened.

``TrainConfig`` holds all arguments of ``train``, ``Preset`` a method's default settings for a
backbone, and ``TrainingInputs`` the examples, the tasks and the model that the run starts from.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.lora import is_lora
from promptcli.backbones.model_folder import locate
from promptcli.backbones.published_backbones import PUBLISHED, Shape, shape_of
from promptcli.data.input_files import split_columns
from promptcli.data.senteval import tasks_from
from promptcli.data.tasks import AnyTask, DevelopmentTask, PluginTask, load_named_tasks
from promptcli.data.training_data import (
    TrainingData,
    TrainingExamples,
    checkpoint_task,
    is_list_of_sources,
    is_published_set,
    source_name,
    training_examples,
)
from promptcli.encoder.encoder import tuned_weights
from promptcli.errors import UsageError, did_you_mean, look_up
from promptcli.evaluation.evaluator import EvalSettings
from promptcli.extensions import Extension, used_extensions
from promptcli.models.entries import Entry
from promptcli.models.loading import open_registry
from promptcli.recipe import Recipe, last_part
from promptcli.settings import BUILT_IN, PAPER, spell_settings
from promptcli.training.methods import METHODS, find_method, forms_of
from promptcli.training.methods.method import ConfiguredMethod, Method, TrainingSettings
from promptcli.training.objective import Objective
from promptcli.training.objectives import find_objective

#: The source of a preset that was found here, not published.
FOUND_ON_MINI = f"found on {BUILT_IN.backbone}"
OF_METHOD = "the method's own"  #: for a method without published settings

#: Settings that change where and how a run computes, not its result.
_COMPUTATION_SETTINGS = ("seed", "chunk_tokens", "gradient_caching", "compile")


@dataclass(frozen=True)
class Preset:
    """A method's default settings for a backbone, and their source."""

    method: Method
    settings: TrainingSettings
    source: str  #: ``published for BACKBONE``, ``FOUND_ON_MINI`` or ``OF_METHOD``
    backbone: str  #: for which the settings are published or found

    def override(self, given: Mapping[str, Any]) -> TrainingSettings:
        """Return the settings with the given settings in place of their own.

        Raises:
            UsageError: The method has no such setting, or the value is not allowed.
        """
        names = vars(self.settings)
        for name in given:
            if name not in names:
                method = self.method.name
                raise UsageError(
                    f"method {method} has no such setting; `promptcli train {method} --dry-run`"
                    f" lists all{did_you_mean(name, names)}",
                    parameter=name,
                )
        return self.settings.replace(**given)

    def summary(self, given: Mapping[str, Any]) -> str:
        """Return one line: where the settings come from, and the given settings."""
        line = f"settings of {self.method.name}: {self.source}"
        return f"{line}; given: {', '.join(spell_settings(given))}" if given else line


def preset_for(
    method: Method, backbone: str, *, paper: bool = False, shape: Shape | None = None
) -> Preset:
    """Return a method's default settings for a backbone.

    Settings found on ``mini-bert`` apply to backbones of its shape. Any other backbone takes the
    published settings for its name, else for its shape, else for the method's first backbone.
    ``paper`` adds the choices that made the printed figures. ``shape`` is looked up if None.

    Raises:
        NotFoundError: A backbone of the hub that is not downloaded yet.
    """
    if not method.paper:
        return Preset(method, method.mini_bert_settings, OF_METHOD, "")
    published = backbone
    if backbone not in method.paper or Path(backbone).is_dir():  # a folder may hold anything
        shape = shape or shape_of(backbone)
        if has_mini_bert_shape(shape) and not paper:
            return Preset(
                method, method.mini_bert_settings, FOUND_ON_MINI, method.fallback_backbone
            )
        published = _published_like(method, shape)
    settings = method.published(published) if paper else method.paper[published]
    return Preset(method, settings, f"published for {published}", published)


def shape_of_loaded(backbone: Backbone) -> Shape:
    """Return the shape of an opened backbone."""
    return Shape(
        backbone.provenance.family,
        backbone.width,
        backbone.n_layers,
        backbone.n_heads,
        len(backbone.word_embeddings),
    )


def has_mini_bert_shape(shape: Shape) -> bool:
    """Return whether a shape equals that of ``mini-bert``."""
    return shape == shape_of(BUILT_IN.backbone)


def _published_like(method: Method, shape: Shape) -> str:
    """Return the method's published backbone of this shape, or the method's first backbone if none
    has it; a backbone with the same vocabulary goes first.
    """
    shapes = {
        name: PUBLISHED[last_part(name)].shape
        for name in method.paper
        if last_part(name) in PUBLISHED
    }
    same_size = [
        name
        for name, published in shapes.items()
        if dataclasses.replace(published, vocabulary=shape.vocabulary) == shape
    ]
    return max(same_size, key=lambda name: shapes[name] == shape, default=method.fallback_backbone)


def differences_from_paper(
    method: Method, settings: TrainingSettings, backbone: str
) -> list[dict[str, Any]]:
    """Return the settings that differ from those of the paper and from those of its program for a
    backbone, as ``setting``, ``value`` and ``paper``.

    Args:
        method: The method, unsupervised or supervised.
        settings: The settings of a run.
        backbone: A name in ``method.paper``; any other name means the method's first.

    Returns:
        The differences in the order of the fields; none if nothing is published.
    """
    if not method.paper:
        return []
    published = backbone if backbone in method.paper else method.fallback_backbone
    paper = vars(method.paper[published])
    published_code = vars(method.published(published))
    return [
        {"setting": field, "value": value, "paper": paper[field]}
        for field, value in vars(settings).items()
        if field not in _COMPUTATION_SETTINGS and value not in (paper[field], published_code[field])
    ]


Setting = str | int | float | bool | tuple[str, ...]  #: a value of a setting

#: Fields that a resumed run takes from the call; all other fields belong to the run.
_CALL_FIELDS = ("name", "device", "resume", "force")
#: Fields that name files; a resumed run finds them from any working folder.
_FILE_FIELDS = ("data", "on", "tests", "data_dir", "backbone")
_IN_MEMORY = {"in_memory": True}  #: in the folder of a run: data that were in no file


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The arguments of ``train``; the folder of a run keeps them, and ``resume`` reads them."""

    method: str = ""
    data: TrainingData | None = None
    backbone: str | None = None
    device: str | None = None
    dtype: str | None = None
    start: str | None = None
    name: str | None = None
    supervised: bool = False
    paper: bool = False
    on: DevelopmentTask | str | Path | None = None
    tests: tuple[str, ...] = ()
    data_dir: str | Path | None = None
    resume: bool = False
    force: bool = False
    report_to: tuple[str, ...] = ()
    csv: Mapping[str, str] | None = None
    skip_bad: bool = False
    settings: Mapping[str, Setting] = dataclasses.field(default_factory=dict)
    threads: int = 0  #: CPU threads with which the run began; 0: a new run
    group: str = ""  #: name of the group of runs, if there are several
    command: str = ""  #: the typed command; "" if a Python program calls the library

    def __post_init__(self) -> None:
        if self.method:
            look_up("method", self.method, METHODS)
        elif not self.resume:
            raise UsageError(f"is missing; methods: {', '.join(METHODS)}", parameter="method")

    def document(self) -> dict[str, Any]:
        """Return the arguments as the folder of a run keeps them, JSON-ready."""
        document = {name: getattr(self, name) for name in _RUN_FIELDS}
        for name in ("data", "on", "data_dir"):
            document[name] = _stored_name(document[name])
        return {**document, "folder": os.getcwd()}

    def resume_from(self, stored: Mapping[str, Any]) -> "TrainConfig":
        """Return the arguments of an unfinished run.

        If the call names a method, its own settings are used; ``Run.identity`` later checks that
        they match the stored run.
        """
        if self.method:
            unchanged = {field: stored[field] for field in ("command", "dtype", "threads")}
            return dataclasses.replace(self, **unchanged)
        self.check_names_a_run()
        arguments = _with_tuples({name: stored[name] for name in _RUN_FIELDS})
        for field in _FILE_FIELDS:
            arguments[field] = _located(arguments[field], Path(stored["folder"]))
        for field, value in arguments.items():
            if value == _IN_MEMORY:
                raise UsageError(
                    "was in memory in this run, not in a file; give it again, with the method"
                    " and all other options",
                    parameter=field,
                )
        arguments["settings"] = _with_tuples(arguments["settings"])
        if isinstance(arguments["data"], tuple):
            arguments["data"] = list(map(Path, arguments["data"]))
        return dataclasses.replace(self, **arguments)

    def check_names_a_run(self) -> None:
        """Refuse arguments other than the name of a run if no method is given; the run has kept its
        own arguments.
        """
        arguments = {**self.settings, **{name: getattr(self, name) for name in _RUN_FIELDS}}
        for field, value in arguments.items():
            if value and field != "command":
                raise UsageError(
                    "a resumed run keeps its settings; leave it out, or also give the method",
                    parameter=field,
                )

    @property
    def provisional_method(self) -> Method:
        """The method before the data are read; their columns may still make it supervised."""
        method = find_method(self.method, supervised=self.supervised)
        if self.paper and not method.paper:
            raise UsageError(
                f"{method.name} has no published settings; leave it out", parameter="paper"
            )
        return method

    def check_settings(self) -> None:
        """Refuse settings that no form of the method has."""
        refusals = []
        for form in forms_of(self.provisional_method.name):
            try:
                Preset(form, form.mini_bert_settings, OF_METHOD, "").override(self.settings)
                return
            except UsageError as error:
                refusals.append(error)
        raise refusals[0]

    def choose_backbone(self, start: Recipe | None) -> str:
        """Return the name of the given backbone, else of the start model's, else a default."""
        if self.backbone:
            return self.backbone
        if start is not None:
            return start.backbone
        if self.paper:
            method = self.provisional_method
            return PAPER.backbone if PAPER.backbone in method.paper else method.fallback_backbone
        return BUILT_IN.backbone

    @property
    def training_data(self) -> TrainingData:
        """The given data, or the default."""
        if self.data is not None:
            return self.data
        if not self.paper:
            return BUILT_IN.corpus
        return "nli_for_simcse" if self.supervised else PAPER.corpus

    @property
    def development(self) -> DevelopmentTask | str | Path:
        """The graded pairs or queries that choose the best checkpoint."""
        if self.on:
            return self.on
        if self.paper or self.data_dir is not None:
            return PAPER.development
        return BUILT_IN.development

    def preset(self, method: Method, start: Recipe | None) -> Preset:
        """Return the default settings of a method; ``start`` is the recipe of the start model."""
        preset = preset_for(method, self.choose_backbone(start), paper=self.paper)
        if start is None or self.paper or not preset.settings.keep_head:
            return preset
        if "projection" in [transform.name for transform in start.parts.transforms]:
            return preset
        # a new head would unlearn what the start knows
        return dataclasses.replace(preset, settings=preset.settings.replace(keep_head=False))


#: Fields of the run, which its folder keeps.
_RUN_FIELDS = [
    item.name for item in dataclasses.fields(TrainConfig) if item.name not in _CALL_FIELDS
]


def _stored_name(data: Any) -> Any:
    """Return the name of data, JSON-ready."""
    if is_list_of_sources(data):
        names = list(map(_stored_name, data))
        return _IN_MEMORY if _IN_MEMORY in names else names
    if isinstance(data, str | Path):
        return str(data)
    return None if data is None else _IN_MEMORY


def _located(name: Any, folder: Path) -> Any:
    """Return the path of a file that is in the working folder or in ``folder``, else the name."""
    if isinstance(name, tuple):
        return tuple(_located(of_many, folder) for of_many in name)
    if not isinstance(name, str) or os.path.exists(split_columns(name)[0]):
        return name
    in_folder = str(folder / name)
    return in_folder if os.path.exists(split_columns(in_folder)[0]) else name


def _with_tuples(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON values with a tuple in place of each list, as a config has them."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()
    }


@dataclass(frozen=True)
class TrainingInputs:
    """What a training reads before its backbone: the examples, the tasks and the start model."""

    config: TrainConfig
    method: Method
    objective: type[Objective[Any]]
    examples: TrainingExamples
    start: Entry | None  #: None: the backbone as pre-trained
    backbone: str  #: its name
    preset: Preset  #: the default settings
    development: DevelopmentTask
    tests: list[AnyTask]  #: scored at the end
    extensions: list[Extension]  #: code of method and objective from other packages

    @functools.cached_property
    def settings(self) -> TrainingSettings:
        """The settings in force: the preset, and the given settings in its place."""
        return self.preset.override(self.config.settings)

    def identify(self) -> dict[str, Any]:
        """Return what identifies the run before the backbone is opened, JSON-ready."""
        return {
            "method": self.method.name,
            "supervised": self.examples.supervised,
            **vars(self.settings),
            "data": self.examples.sha256,
            "development": self.development.sha256(),
            "code": "; ".join(dict.fromkeys(map(str, self.extensions))),
        }


def read_inputs(config: TrainConfig) -> TrainingInputs:
    """Read the start model, the data and the tasks of a training, and fetch its backbone."""
    start = None if config.start is None else open_registry().load(config.start)
    recipe = None if start is None else start.recipe
    backbone = config.choose_backbone(recipe)
    if start is not None:
        _check_start(config, start, backbone)
    examples = _read_examples(config)
    with used_extensions() as extensions:
        method = find_method(config.method, supervised=examples.supervised)
        objective = find_objective(method)
    with tasks_from(config.data_dir):
        development: DevelopmentTask = checkpoint_task(config.development)
        tests = _read_tests(config)
    for task in (development, *tests):
        if isinstance(task, PluginTask):
            task.check(EvalSettings())
    locate(backbone)  # fetched from the hub if necessary: its shape may decide the settings
    inputs = TrainingInputs(
        config=config,
        method=method,
        objective=objective,
        examples=examples,
        start=start,
        backbone=backbone,
        preset=config.preset(method, recipe),
        development=development,
        tests=tests,
        extensions=sorted(extensions),
    )
    inputs.settings.total_steps(len(examples))  # refuses too few
    return inputs


def plan_training(config: TrainConfig) -> dict[str, Any]:
    """Return the settings, the recipe and the data of a training before it begins, JSON-ready.

    Local data are read; weights and the network are not.
    """
    method = config.provisional_method
    examples = None
    if config.data is not None and not is_published_set(config.data):
        examples = _read_examples(config)
        method = find_method(config.method, supervised=examples.supervised)
    start = None if config.start is None else open_registry().load_manifest(config.start).recipe
    preset = config.preset(method, start)
    settings = preset.override(config.settings)
    samples = {}
    if examples is not None:
        settings.total_steps(len(examples))  # refuses too few
        samples = find_objective(method).samples(examples)
    backbone = config.choose_backbone(start)
    published = PUBLISHED.get(last_part(backbone))
    if published is not None and backbone in method.paper and not Path(backbone).is_dir():
        family = published.shape.family  # known without the network
    else:
        family = shape_of(backbone).family
    configured = ConfiguredMethod(method, settings, backbone, family)
    if start is not None and not config.paper:
        configured = configured.like(start)
    head = configured.head
    use = "kept" if settings.keep_head else "in training only"
    return {
        "method": method.name,
        "source": method.source,
        "backbone": backbone,
        "data": source_name(config.training_data),
        "chosen_by": str(config.development),
        "views": list(configured.prompts()),
        "pooling": configured.pooling,
        "objective": method.objective,
        "learns": [*method.learns, *(["head"] if head else [])],
        "head": f"{head}, {use}" if head else None,
        "recipe": configured.recipe.to_dict(),
        "dtype": config.dtype or "auto",
        "preset": preset.source,
        **dataclasses.asdict(settings),
        **samples,
    }


def _read_examples(config: TrainConfig) -> TrainingExamples:
    """Return the examples; their columns decide whether the method is supervised."""
    method = config.provisional_method
    layouts: dict[tuple[str, ...], None] = {}  # in order
    for form in forms_of(config.method):
        layouts |= dict.fromkeys(find_objective(form).layouts)
    with tasks_from(config.data_dir):
        examples = training_examples(
            config.training_data, layouts=tuple(layouts), csv=config.csv, skip_bad=config.skip_bad
        )
    if config.supervised and not examples.supervised:
        columns = " or ".join(
            ", ".join(layout) for layout in find_objective(method).layouts if layout
        )
        raise UsageError(
            f"needs pairs or triplets ({columns}); {source_name(config.training_data)} has none",
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


def _check_start(config: TrainConfig, start: Entry, backbone: str) -> None:
    """Refuse a start model that the method cannot train further, or that has another backbone."""
    learns = {part for form in forms_of(config.method) for part in form.learns}
    tuned = tuned_weights(start.tensors)
    needed = "backbone" in learns or ("adapter" in learns and is_lora(tuned))
    problem = ""
    if not (tuned and needed):
        problem = f"has nothing for {config.method} to train"
    elif backbone != start.recipe.backbone:
        problem = (
            f"is on backbone {start.recipe.backbone!r}, not {backbone!r}; leave out backbone=NAME"
        )
    if problem:
        raise UsageError(f"model {config.start!r} {problem}", parameter="start")
