"""What a training reads before its backbone: the examples, the tasks, and the model it starts
from.
"""

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import Any

from promptcli.backbones.lora import is_lora
from promptcli.data.senteval import tasks_from
from promptcli.data.tasks import AnyTask, DevelopmentTask, OtherTask, load_named_tasks
from promptcli.data.training_data import (
    TrainingExamples,
    checkpoint_task,
    is_fetched,
    source_name,
    training_examples,
)
from promptcli.encoder.encoder import tuned_weights
from promptcli.errors import NotFoundError, UsageError
from promptcli.evaluation.evaluator import EvalSettings
from promptcli.extensions import Extension, used_extensions
from promptcli.models.entries import Entry
from promptcli.models.loading import open_registry
from promptcli.training.config import TrainConfig, family_of_name
from promptcli.training.methods import METHODS, find_method
from promptcli.training.methods.method import Method
from promptcli.training.objectives import find_objective
from promptcli.training.trainable_encoder import Objective


@dataclass(frozen=True)
class Inputs:
    """What a training reads before its backbone: the examples, the tasks and the start model."""

    config: TrainConfig
    method: Method
    objective: type[Objective[Any]]
    examples: TrainingExamples
    start: Entry | None  #: None: the backbone as pre-trained
    development: DevelopmentTask
    tests: list[AnyTask]  #: scored at the end
    extensions: list[Extension]  #: code of method and objective from other packages

    def identify(self) -> dict[str, Any]:
        """Return what identifies the run before the backbone is opened, JSON-ready."""
        return {
            "method": self.method.name,
            "supervised": self.examples.supervised,
            **vars(self.config.settings_for(self.method)),
            "data": self.examples.sha256,
            "development": self.development.sha256(),
            "code": "; ".join(dict.fromkeys(map(str, self.extensions))),
        }


def read_inputs(config: TrainConfig) -> Inputs:
    """Read the data and the tasks of a training; the columns decide the form of the method."""
    start = _read_start(config)
    examples = read_examples(config)
    with used_extensions() as extensions:
        method = find_method(config.method, supervised=examples.supervised)
        objective = find_objective(method)
    with contextlib.suppress(NotFoundError):  # a backbone of the hub that is not downloaded yet
        config.settings_for(method).total_steps(len(examples))
    with tasks_from(config.data_dir):
        development: DevelopmentTask = checkpoint_task(config.development)
        tests = _read_tests(config)
    for task in (development, *tests):
        if isinstance(task, OtherTask):
            task.check(EvalSettings())
    return Inputs(
        config, method, objective, examples, start, development, tests, sorted(extensions)
    )


def read_examples(config: TrainConfig) -> TrainingExamples:
    """Return the examples; their columns decide whether the method is supervised."""
    form = config.provisional_method
    layouts: dict[tuple[str, ...], None] = {}  # in order
    for each in filter(None, METHODS[form.name]):
        layouts |= dict.fromkeys(find_objective(each).layouts)
    with tasks_from(config.data_dir):
        examples = training_examples(
            config.training_data, layouts=tuple(layouts), csv=config.csv, skip_bad=config.skip_bad
        )
    if config.supervised and not examples.supervised:
        columns = " or ".join(
            ", ".join(layout) for layout in find_objective(form).layouts if layout
        )
        raise UsageError(
            f"needs pairs or triplets ({columns}); {source_name(config.training_data)} has none",
            parameter="supervised",
        )
    return examples


def plan_training(config: TrainConfig) -> dict[str, Any]:
    """Return the settings, the recipe and the data of a training before it begins, JSON-ready.

    Local data are read; weights and the network are not.
    """
    method = config.provisional_method
    examples = None
    if config.data is not None and not is_fetched(config.data):
        examples = read_examples(config)
        method = find_method(config.method, supervised=examples.supervised)
    preset = config.preset(method)
    settings = preset.override(config.settings)
    samples = {}
    if examples is not None:
        settings.total_steps(len(examples))  # refuses too few
        samples = find_objective(method).samples(examples)
    backbone = config.choose_backbone()
    configured = config.configure(method, settings, backbone, family_of_name(backbone, method))
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
    method = config.provisional_method.name
    learns = {part for form in METHODS[method] if form for part in form.learns}
    entry = open_registry().load(config.start)
    tuned = tuned_weights(entry.tensors)
    needed = "backbone" in learns or ("adapter" in learns and is_lora(tuned))
    backbone = config.choose_backbone()
    problem = ""
    if not (tuned and needed):
        problem = f"has nothing for {method} to train"
    elif backbone != entry.recipe.backbone:
        problem = f"is on backbone {entry.recipe.backbone!r}, not {backbone!r}; leave out backbone"
    if problem:
        raise UsageError(f"model {config.start!r} {problem}", parameter="start")
    return entry
