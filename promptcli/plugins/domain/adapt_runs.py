"""The trainings that ``adapt`` tries: their data, their times and their runs."""

import dataclasses
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import promptcli as pc
from promptcli import errors, notes
from promptcli.encoder.encoder import tuned_weights
from promptcli.errors import PromptcliError, UsageError
from promptcli.models import loading
from promptcli.models.entries import Entry
from promptcli.plugins.domain.adapt_collection import CollectionSplit
from promptcli.recipe import ModelChoice
from promptcli.storage import files, runs

#: Tokens in a step of pre-training: fewer than the default, because these runs are short.
BATCH_TOKENS = 1024
#: Backbone -> settings of its pre-training, if its page gives others than the defaults.
_PRETRAINING_SETTINGS: dict[str, dict[str, Any]] = {
    "mini-bert": {"learning_rate": 5e-4, "dropout_from": 0.0},
}


@dataclass(frozen=True)
class Attempt:
    """One way of learning from texts."""

    method: str
    about: str  #: the training data, in words
    epochs: float = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: True: learns from pairs, and the start is teacher and judge; False: learns from sentences
    learns_from_pairs: bool = False
    is_pretrained: bool = False  #: begins with masked language modelling on the texts
    starts_from_base: bool = False  #: begins with the pre-trained backbone instead of the start
    needs_prompt: bool = False  #: learns from sentences inside the prompt of the start

    def examples(self, split: CollectionSplit) -> Sequence[Any]:
        """Return the training examples: pairs of texts, or sentences."""
        return split.pairs if self.learns_from_pairs else split.sentences

    def batch_size(self, split: CollectionSplit) -> int:
        """Return the batch size, with which even a small collection fills two batches."""
        largest = int(self.settings.get("batch_size", 128))
        return max(2, min(largest, len(self.examples(split)) // 2))


_BY_PAIRS = Attempt(
    "distill",
    "queries made from the texts, with their passages",
    epochs=5,
    settings={
        "batch_size": 64,
        "learning_rate": 1e-4,
        "max_length": 96,
        "contrastive_weight": 0.2,
    },
    learns_from_pairs=True,
)
#: Name in the table -> attempt. The papers' methods keep their own settings, except the number of
#: steps.
ATTEMPTS = {
    "pairs": _BY_PAIRS,
    "pretrain": dataclasses.replace(
        _BY_PAIRS, about="the words of the texts, then as pairs", is_pretrained=True
    ),
    "promptbert": Attempt("promptbert", "the sentences alone", needs_prompt=True),
    "simcse": Attempt("simcse", "the sentences alone"),
    "dcpcse": Attempt("dcpcse", "the sentences alone", starts_from_base=True),
}
_PLANNED_SHARE = 0.8  # of the given time; the machine may have other work
_SCORES_PER_RUN = 6  # on the development queries
_PATIENCE = 3  # number of scores in a row without improvement that end a run
_TIMED_STEPS = 2
_TIMED_PASSAGES = 128
_TIMED_QUERIES = 16
_MIN_STEPS = 8
_PRETRAINING_SHARE = 0.15  # of the planned time, at most
_MAX_PRETRAINING_PASSES = 10  # over the texts
_MIN_PRETRAINING_TOKENS = 2 * BATCH_TOKENS
_CHARACTERS_PER_TOKEN = 4  # of English text, roughly
_PRETRAINED = "pretrained"  # run name of the start after pre-training


@dataclass(frozen=True)
class Schedule:
    """The number of steps of each attempt that fit into the time, and their expected duration."""

    steps: dict[str, int]  #: by the name of the attempt
    seconds: dict[str, float]  #: of each attempt, with its scores
    tokens: int = 0  #: of pre-training
    left_out: dict[str, str] = field(default_factory=dict)  #: skipped attempt -> reason

    @property
    def total(self) -> float:
        """Seconds that all attempts are expected to take."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class Trainings:
    """The runs of all attempts on one collection. Each trains a model NAME.ATTEMPT, which is
    removed at the end.
    """

    name: str
    start: Entry
    choice: ModelChoice  #: the device and the precision
    split: CollectionSplit
    seed: int
    attempts: Mapping[str, Attempt]

    def run_name(self, attempt: str) -> str:
        return f"{self.name}.{attempt}"

    def _run_names(self) -> list[str]:
        return [self.run_name(attempt) for attempt in (*ATTEMPTS, _PRETRAINED)]

    def check_free(self, *, force: bool) -> None:
        """Raise UsageError if a model has the name of a run; ``force`` removes the models and
        folders of earlier runs.
        """
        if force:
            self.forget()
        for name in self._run_names():
            loading.open_registry().check_free(name)

    def forget(self) -> None:
        """Remove the models and folders of all runs."""
        registry = loading.open_registry()
        for name in self._run_names():
            if name in registry.names():
                registry.remove(name)
            runs.RunFolder(registry.run_folder(name)).discard()

    def schedule(self, hours: float) -> Schedule:
        """Time the first steps of each attempt, and return the numbers of steps that fit into the
        time. Attempts that the start does not support are left out.
        """
        step_seconds = {}
        token_seconds = 0.0
        left_out = {}
        with notes.stage("time the first steps", len(self.attempts)) as advance:
            for name, attempt in self.attempts.items():
                try:
                    with notes.silent():
                        if attempt.is_pretrained:
                            token_seconds = self._time_token()
                        step_seconds[name] = self._time_step(attempt)
                except UsageError as error:
                    left_out[name] = str(error)
                advance(1)
        if not step_seconds:
            raise UsageError(next(iter(left_out.values())))
        passages = self.split.collection.passages[:_TIMED_PASSAGES]
        encoder = loading.open_torch_encoder(self.start, device=self.choice.device, dtype="float32")
        began = time.perf_counter()
        encoder.encode(passages)
        passage_seconds = (time.perf_counter() - began) / len(passages)
        seconds = 3600 * hours
        schedule = plan_steps(self.split, step_seconds, token_seconds, passage_seconds, seconds)
        if schedule.total > seconds:
            notes.note(
                f"{hours:g} hours are exceeded by about {in_minutes(schedule.total - seconds)}: the"
                " fewest steps of each row, and the scores, take about"
                f" {in_minutes(schedule.total)}"
            )
        return dataclasses.replace(schedule, left_out=left_out)

    def _time_token(self) -> float:
        """Return the seconds that pre-training takes for a token."""
        with tempfile.TemporaryDirectory() as folder:
            return self.pretrain_backbone(Path(folder), _MIN_PRETRAINING_TOKENS)

    def _time_step(self, attempt: Attempt) -> float:
        """Return the seconds of a training step; raise UsageError if the start does not support the
        attempt.
        """
        if attempt.needs_prompt and self.start.recipe.prompt == pc.Recipe().prompt:
            raise UsageError(
                "it learns from sentences inside a prompt, such as mini's, and model"
                f" {self.start.name!r} reads them without one"
            )
        settings = {"steps": _TIMED_STEPS, "eval_steps": _TIMED_STEPS}
        timed = pc.train(
            attempt.method,
            attempt.examples(self.split)[: 2 * attempt.batch_size(self.split)],
            on=self.split.timing_task(_TIMED_QUERIES),
            **self._arguments(attempt, self.start.name, settings),
        )
        return timed.curve[-1].seconds / _TIMED_STEPS

    def run_all(self, schedule: Schedule) -> Iterator[tuple[str, pc.Trained]]:
        """Train all attempts, and yield the name and the run of each successful attempt.

        A finished run is only opened again.
        """
        models = loading.open_registry().names()
        finished = {name for name in schedule.steps if self.run_name(name) in models}
        remaining = sum(schedule.seconds[name] for name in schedule.steps if name not in finished)
        notes.note(f"the trainings take about {in_minutes(remaining)}")
        for number, name in enumerate(schedule.steps, 1):
            message = f"{number} of {len(schedule.steps)}: {name}"
            if name in finished:
                notes.note(f"{message} was done before")
            else:
                notes.note(
                    f"{message}, from {self.attempts[name].about}; about"
                    f" {in_minutes(schedule.seconds[name])}, {in_minutes(remaining)} left in all"
                )
                remaining -= schedule.seconds[name]
            try:
                with notes.silent(name in finished):
                    trained = self._run(name, schedule)
            except UsageError:
                raise
            except PromptcliError as error:  # the loss is not a number, or memory is too small
                notes.note(f"{name} failed and is left out: {error}")
            else:
                yield name, trained

    def _run(self, name: str, schedule: Schedule) -> pc.Trained:
        """Return a trained attempt; a stopped run is resumed."""
        attempt = self.attempts[name]
        steps = schedule.steps[name]
        settings = {
            "steps": steps,
            "eval_steps": max(1, steps // _SCORES_PER_RUN),
            "patience": _PATIENCE,
        }
        start = self.start.name
        if attempt.is_pretrained:
            start = self._pretrained_start(schedule.tokens)
        return pc.train(
            attempt.method,
            attempt.examples(self.split),
            on=self.split.development_task,
            name=self.run_name(name),
            resume=True,
            **self._arguments(attempt, start, settings),
        )

    def _arguments(
        self, attempt: Attempt, start: str, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments of ``train`` for an attempt."""
        models = {"start": start}
        if attempt.starts_from_base:
            models = {"backbone": self.start.recipe.backbone}
        if attempt.learns_from_pairs:
            models |= {"teacher": self.start.name, "mine": self.start.name}
        return {
            **models,
            "device": self.choice.device,
            "dtype": self.choice.dtype,
            **attempt.settings,
            "batch_size": attempt.batch_size(self.split),
            "seed": self.seed,
            **settings,
        }

    def _pretrained_start(self, tokens: int) -> str:
        """Return the name of the pre-trained start, which is made if it does not exist."""
        registry = loading.open_registry()
        name = self.run_name(_PRETRAINED)
        if name not in registry.names():
            folder = registry.run_folder(name)
            self.pretrain_backbone(folder, tokens)
            registry.save(add_change(self.start, folder, name))
        return name

    def pretrain_backbone(self, folder: Path, tokens: int) -> float:
        """Pre-train the backbone of the start further on the texts, or resume the run in the
        folder; return the seconds per token.

        Raises:
            UsageError: The backbone has no masked-LM head, there is too little text, or
                pre-training is not installed.
        """
        corpus = folder / "texts.txt"
        if not corpus.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            lines = [f"{' '.join(text.split())}\n" for text in self.split.training_passages]
            files.write_text(corpus, "".join(lines))
        try:
            pretrain = pc.pretrain
        except ModuleNotFoundError:
            raise UsageError("the plug-in pretrain is not installed") from None
        backbone = self.start.recipe.backbone
        pretrained = pretrain(
            corpus,
            folder / "backbone",
            start=backbone,
            device=self.choice.device,
            resume=True,
            tokens=tokens,
            batch_tokens=BATCH_TOKENS,
            seed=self.seed,
            **_PRETRAINING_SETTINGS.get(backbone, {}),
        )
        speed: Any = pretrained.figures["tokens_per_second"]
        return 1 / (speed or 1)  # None or 0: the run was too short to measure


def plan_steps(
    split: CollectionSplit,
    step_seconds: Mapping[str, float],
    token_seconds: float,
    passage_seconds: float,
    seconds: float,
) -> Schedule:
    """Return the steps of each attempt: all its epochs, or fewer if the total would take too long.

    Args:
        split: Data for training and evaluation.
        step_seconds: Seconds per training step of each attempt.
        token_seconds: Seconds per token of pre-training.
        passage_seconds: Seconds to encode a passage.
        seconds: Time limit for all attempts.
    """
    planned = _PLANNED_SHARE * seconds
    test_passages = len(split.test_task.documents)
    scored = (_SCORES_PER_RUN + 4) * len(split.development_task.documents) + test_passages
    tokens = 0
    fixed_seconds = {}  # of an attempt: everything except its steps
    all_steps = {}  # of an attempt: those of all its epochs
    for name in step_seconds:
        attempt = ATTEMPTS[name]
        count = len(attempt.examples(split))
        all_steps[name] = int(attempt.epochs * count / attempt.batch_size(split))
        # the start encodes both texts of a pair
        encoded = 2 * count if attempt.learns_from_pairs else 0
        fixed_seconds[name] = passage_seconds * (scored + encoded)
        if attempt.is_pretrained:
            characters = sum(map(len, split.training_passages))
            in_time = _PRETRAINING_SHARE * planned / token_seconds
            tokens = int(min(_MAX_PRETRAINING_PASSES * characters / _CHARACTERS_PER_TOKEN, in_time))
            tokens = max(_MIN_PRETRAINING_TOKENS, tokens)
            fixed_seconds[name] += tokens * token_seconds
    remaining = planned - sum(fixed_seconds.values()) - passage_seconds * test_passages
    # every attempt gets the same share of its steps
    share = min(1, remaining / sum(all_steps[name] * step_seconds[name] for name in all_steps))
    steps = {name: max(_MIN_STEPS, int(share * count)) for name, count in all_steps.items()}
    durations = {
        name: fixed_seconds[name] + count * step_seconds[name] for name, count in steps.items()
    }
    return Schedule(steps, durations, tokens)


def in_minutes(seconds: float) -> str:
    """Return a time in words: ``12 minutes``."""
    return errors.with_count(max(1, round(seconds / 60)), "minute")


def add_change(entry: Entry, folder: Path, name: str) -> Entry:
    """Return a model plus the change of its backbone's weights by the pre-training in the folder.

    Masked language modelling needs a head that predicts words, and a sentence model no longer has
    this head. So the model's backbone is pre-trained on the texts, and the change of its weights is
    added to the model (task arithmetic: Ilharco et al., 2023, "Editing Models with Task
    Arithmetic"). The model keeps its knowledge of sentences.
    """
    before = _weights(entry.recipe.backbone)
    after = _weights(str(folder / "backbone"))
    tensors = dict(entry.tensors)
    for key in tensors:
        for own, weight in tuned_weights({key: tensors[key]}).items():
            tensors[key] = weight.float() + after[own] - before[own]
    return dataclasses.replace(entry, name=name, tensors=tensors, scores=[])


def _weights(backbone: str) -> dict[str, Any]:
    """Return the weights of a backbone by its own names."""
    encoder = loading.open_torch_encoder(pc.Recipe(backbone=backbone), dtype="float32")
    return {name: weight.detach() for name, weight in encoder.backbone.model.state_dict().items()}
