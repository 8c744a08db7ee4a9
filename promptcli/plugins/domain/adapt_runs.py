"""The trainings that ``adapt`` tries: what each learns from, how long it may take, and its run."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import promptcli as pc
from promptcli import PromptcliError, UsageError
from promptcli.extending import Choice, Entry, loading, notes, runs, tuned_weights
from promptcli.plugins.domain.adapt_collection import Collection

PAIRS, SENTENCES = "pairs", "sentences"


@dataclass(frozen=True)
class Trial:
    """One way of learning from texts."""

    method: str
    about: str  #: what it learns from, in words
    learns_from: str  #: ``PAIRS`` or ``SENTENCES``
    epochs: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 1.0  #: its share of the time, beside those of the others
    #: whether it begins at the pre-trained backbone, which it does not change, not at the start
    is_frozen: bool = False
    #: settings that name the start, whose vectors and judgement it learns by
    taught_by_start: Sequence[str] = ()


#: By the name in the table. The papers' methods keep their own settings, but for the number of
#: steps. That of pairs reads as much of a passage as fits the time.
TRIALS = {
    PAIRS: Trial(
        "distill",
        "queries made from the texts, with their passages",
        PAIRS,
        epochs=5,
        weight=3.0,
        settings={
            "batch_size": 64,
            "learning_rate": 1e-4,
            "max_length": 96,
            "contrastive_weight": 0.2,
        },
        taught_by_start=("teacher", "mine"),
    ),
    "promptbert": Trial("promptbert", "the sentences alone", SENTENCES, epochs=1),
    "simcse": Trial("simcse", "the sentences alone", SENTENCES, epochs=1),
    "dcpcse": Trial("dcpcse", "the sentences alone", SENTENCES, epochs=1, is_frozen=True),
}
#: Share of the time given that is planned: a machine has other work, too.
_PLANNED = 0.8
_SCORES = 6  #: development scores of a run
_PATIENCE = 3  #: scores in a row without a better one that end a run
_TIMED_STEPS = 2
_TIMED_PASSAGES = 128
_TIMED_QUERIES = 16
_FEWEST_STEPS = 8


@dataclass(frozen=True)
class Schedule:
    """How many steps of each trial fit into the time, and how long all is expected to take."""

    steps: dict[str, int]
    seconds: dict[str, float]  #: of each trial, its scores included

    @property
    def total(self) -> float:
        """Seconds that all trials are expected to take."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class Trainings:
    """The runs of all trials on one collection, each a model called NAME.TRIAL until the end."""

    name: str
    start: Entry
    where: Choice  #: the device
    collection: Collection
    seed: int

    def __post_init__(self) -> None:
        if not tuned_weights(self.start.tensors):
            raise UsageError(
                f"model {self.start.name!r} has no trained backbone to go on from; give"
                f" {notes.keyword('start')} mini, or a model that `promptcli train` made"
            )

    def run_name(self, trial: str) -> str:
        return f"{self.name}.{trial}"

    def check_free(self, *, force: bool) -> None:
        """Refuse models with the names of runs; with ``force`` remove what earlier runs left."""
        if force:
            self.forget()
        for trial in TRIALS:
            loading.open_registry().check_free(self.run_name(trial))

    def schedule(self, hours: float) -> Schedule:
        """Time the first steps of each trial, and return how many fit.

        A trial that the start cannot take, such as one of templates that a start without a template
        has not, is left out.
        """
        step_seconds = {}
        refusals = []
        with notes.stage("time the first steps", len(TRIALS)) as advance:
            for name, trial in TRIALS.items():
                try:
                    step_seconds[name] = self._seconds_of_a_step(trial)
                except UsageError as error:
                    refusals.append(error)
                    notes.note(f"{name} is left out: {error}")
                advance(1)
        if not step_seconds:
            raise refusals[0]
        encoding = self._seconds_of_a_passage()
        return plan_steps(self.collection, step_seconds, encoding, 3600 * hours)

    def _seconds_of_a_step(self, trial: Trial) -> float:
        batch_size = _batch_size(self.collection, trial)
        few = _examples(self.collection, trial)[: 2 * batch_size]
        with notes.silent():
            timed = pc.train(
                trial.method,
                few,
                on=self.collection.timing_task(_TIMED_QUERIES),
                **self._arguments(trial, steps=_TIMED_STEPS, eval_steps=_TIMED_STEPS),
            )
        return timed.curve[-1].seconds / _TIMED_STEPS

    def _seconds_of_a_passage(self) -> float:
        passages = self.collection.made.passages[:_TIMED_PASSAGES]
        encoder = loading.open_model(self.start, device=self.where.device, dtype="float32")
        began = time.perf_counter()
        encoder.encode(passages)
        return (time.perf_counter() - began) / len(passages)

    def run(self, trial: str, steps: int) -> pc.Trained | None:
        """Return a trained trial, which goes on where it was stopped; None if it failed."""
        described = TRIALS[trial]
        settings = {
            "steps": steps,
            "eval_steps": max(1, steps // _SCORES),
            "patience": _PATIENCE,
        }
        try:
            return pc.train(
                described.method,
                _examples(self.collection, described),
                on=self.collection.development_task,
                name=self.run_name(trial),
                resume=True,
                **self._arguments(described, **settings),
            )
        except UsageError:
            raise
        except PromptcliError as error:  # its loss is not a number, or memory does not hold it
            notes.note(f"{trial} failed and is left out: {error}")
            return None

    def _arguments(self, trial: Trial, **settings: Any) -> dict[str, Any]:
        """Return what ``train`` takes for a trial: where it begins, and its settings."""
        changes = {**trial.settings, **dict.fromkeys(trial.taught_by_start, self.start.name)}
        changes |= {"batch_size": _batch_size(self.collection, trial), "seed": self.seed}
        begins = {"start": self.start.name, "backbone": dataclasses.replace(self.where, model=None)}
        if trial.is_frozen:
            backbone = self.start.recipe.backbone
            begins = {"backbone": dataclasses.replace(self.where, model=backbone)}
        return {**begins, "changes": {**changes, **settings}}

    def forget(self) -> None:
        """Remove the models and folders of all runs."""
        registry = loading.open_registry()
        for trial in TRIALS:
            name = self.run_name(trial)
            if name in registry.names():
                registry.remove(name)
            runs.RunFolder(registry.run_folder(name)).discard()


def _examples(collection: Collection, trial: Trial) -> Sequence[Any]:
    return collection.pairs if trial.learns_from == PAIRS else collection.sentences


def _batch_size(collection: Collection, trial: Trial) -> int:
    """Return the batch size of a trial, which a few examples fill twice at least."""
    usual = int(trial.settings.get("batch_size", 128))
    return max(2, min(usual, len(_examples(collection, trial)) // 2))


def plan_steps(
    collection: Collection,
    step_seconds: Mapping[str, float],
    passage_seconds: float,
    seconds: float,
) -> Schedule:
    """Return the steps of each trial: its epochs, or fewer if all trials would take too long.

    Args:
        collection: What is learned from and measured on.
        step_seconds: Of a training step of each trial that is run.
        passage_seconds: Of encoding a passage.
        seconds: That all may take.
    """
    test = len(collection.test_task.documents)
    scored = (_SCORES + 4) * len(collection.development_task.documents) + test
    fixed = {}
    wanted = {}
    for name in step_seconds:
        trial = TRIALS[name]
        examples = _examples(collection, trial)
        taught = 2 * len(examples) if trial.taught_by_start else 0
        fixed[name] = passage_seconds * (scored + taught)
        wanted[name] = int(trial.epochs * len(examples) / _batch_size(collection, trial))
    left = _PLANNED * seconds - sum(fixed.values()) - passage_seconds * test
    steps = {}
    # the shortest first, so that what it leaves is the others'
    weights = {name: TRIALS[name].weight for name in step_seconds}
    for name in sorted(weights, key=lambda name: wanted[name] * step_seconds[name] / weights[name]):
        share = left * weights[name] / sum(weights.values())
        del weights[name]
        steps[name] = max(_FEWEST_STEPS, min(wanted[name], int(share / step_seconds[name])))
        left -= steps[name] * step_seconds[name]
    expected = {name: fixed[name] + steps[name] * step_seconds[name] for name in step_seconds}
    return Schedule({name: steps[name] for name in step_seconds}, expected)
