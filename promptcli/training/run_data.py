"""What a run learns from and is measured on: its examples, its tasks, and the model that it starts
from.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from promptcli.backbones.lora import is_lora
from promptcli.data.bad_lines import IGNORED, BadRows, bad_rows, refusal_with_hint
from promptcli.data.layouts import GRADED_PAIRS, PAIRS
from promptcli.data.senteval import tasks_from
from promptcli.data.sources import (
    TrainingExamples,
    checkpoint_task,
    source_name,
    training_examples,
)
from promptcli.data.task_table import graded_columns
from promptcli.data.tasks import AnyTask, DevelopmentTask, OtherTask, STSTask
from promptcli.encoder.encoder import tuned_weights
from promptcli.errors import NoColumnError, NotFoundError, UsageError, counted
from promptcli.evaluation.candidates import load_named_tasks
from promptcli.evaluation.evaluator import EvalSettings
from promptcli.models.entries import Entry
from promptcli.models.loading import open_registry
from promptcli.notes import keyword, note
from promptcli.training.batches import check_sizes
from promptcli.training.methods import METHODS, find_method, forms
from promptcli.training.methods.method import Method
from promptcli.training.objectives import find_objective
from promptcli.training.plan import TrainingPlan


@dataclass(frozen=True)
class RunData:
    """The examples that a run learns from, and the tasks that it is measured on."""

    method: Method  #: in the form that reads the examples
    source: str  #: names the examples
    examples: TrainingExamples
    development: DevelopmentTask  #: chooses the best checkpoint
    tests: tuple[AnyTask, ...]  #: scored at the end
    start: Entry | None  #: None: the backbone as pre-trained

    def note_learned_pairs(self) -> None:
        """Say of which tasks the data hold pairs: a score on them does not measure others."""
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


def read_run_data(plan: TrainingPlan) -> RunData:
    """Read the examples, the tasks and the start of a plan, before anything is computed."""
    plan.check()
    start = None
    if plan.job.start is not None:
        start = _read_start(plan.job.start, plan.job.method, plan.backbone)
    if plan.job.bad_lines is None:
        examples = read_examples(plan)
    else:
        with bad_rows(plan.job.bad_lines) as bad:
            examples = read_examples(plan, bad)
    method = find_method(plan.job.method, supervised=examples.supervised)
    _check_sizes(plan, method, examples)
    with tasks_from(plan.job.data_dir):
        development = checkpoint_task(plan.development)
        tests = _read_tests(plan)
    for task in tests:
        if isinstance(task, OtherTask):
            task.check(EvalSettings())
    return RunData(method, source_name(plan.data), examples, development, tuple(tests), start)


def read_examples(plan: TrainingPlan, bad: BadRows | None = None) -> TrainingExamples:
    """Return the examples of a plan; their columns decide whether the method is supervised.

    ``bad`` gets the rows that cannot be read. Without it they are left out without a word if the
    run leaves them out, or has begun: its data are those that it began with.
    """
    job = plan.job
    if bad is None and (job.resume or job.bad_lines is not None):
        bad = IGNORED
    layouts: dict[tuple[str, ...], None] = {}  # in order
    for form in METHODS[job.method]:
        if form is not None:
            layouts |= dict.fromkeys(find_objective(form).layouts)
    try:
        with tasks_from(job.data_dir):
            examples = training_examples(
                plan.data, layouts=tuple(layouts), bad=bad or refusal_with_hint()
            )
    except NoColumnError as error:
        raise _not_graded(error, job.method, layouts) from None
    if job.supervised and not examples.supervised:
        needed = find_objective(find_method(job.method, supervised=True)).layouts
        columns = " or ".join(", ".join(layout) for layout in needed if layout)
        raise UsageError(
            f"{keyword('supervised')} needs pairs or triplets ({columns});"
            f" {source_name(plan.data)} has none"
        )
    return examples


def _not_graded(
    error: NoColumnError, method: str, layouts: Container[tuple[str, ...]]
) -> UsageError:
    """Return the error for a file without the method's columns; of graded pairs, who reads them."""
    columns = graded_columns(error.file)
    if columns is None:
        return error
    readers = list[str]()
    for form in forms():
        if GRADED_PAIRS in find_objective(form).layouts and form.name not in readers:
            readers.append(form.name)
    remedy = f"use {' or '.join(readers)}"
    first, second, _ = columns.values()
    if PAIRS in layouts:
        remedy = f"{remedy}, or {error.file}:{first},{second}"
    return UsageError(f"{error.file} has graded pairs, which {method} does not read: {remedy}")


def _check_sizes(plan: TrainingPlan, method: Method, examples: TrainingExamples) -> None:
    """Refuse examples that do not fill a batch, if the settings can be known by now."""
    try:
        settings = plan.settings(method).settings
    except NotFoundError:  # a backbone of the hub that is not here yet
        return
    check_sizes(settings, examples.sizes)


def _read_tests(plan: TrainingPlan) -> list[AnyTask]:
    """Return the tasks that are scored at the end: by default the test split of the development
    task.
    """
    on = plan.development
    names: Sequence[STSTask | str | Path] = plan.job.tests
    if not names and isinstance(on, str):
        names = [on.removesuffix(":dev")]
    tests: list[AnyTask] = []
    for name in dict.fromkeys(names):
        if name == on:
            continue
        tests += [name] if isinstance(name, STSTask) else load_named_tasks(name).tasks
    return tests


def _read_start(start: str, method: str, backbone: str) -> Entry:
    """Return the model that a run starts from; refuse one whose backbone it cannot train."""
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
            f"model {start!r} has no trained backbone to start from; give"
            f" {keyword('backbone')} {of_entry}"
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
