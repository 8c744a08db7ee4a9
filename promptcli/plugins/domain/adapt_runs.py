"""The trainings that ``adapt`` tries: their data, their time, and their runs."""

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
from promptcli.recipe import Choice
from promptcli.storage import files, runs

#: Tokens per step: fewer than for a new model, whose runs are longer.
BATCH_TOKENS = 1024
#: Backbone -> settings of its pre-training other than the command's own: those that its page gives.
_SETTINGS: dict[str, dict[str, Any]] = {
    "mini-bert": {"learning_rate": 5e-4, "dropout_from": 0.0},
}


@dataclass(frozen=True)
class Attempt:
    """One way of learning from texts."""

    method: str
    about: str  #: the training data, in words
    epochs: float = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: whether it learns from pairs, with the start as teacher and judge; else from sentences
    learns_from_pairs: bool = False
    is_pretrained: bool = False  #: whether masked language modelling on the texts comes first
    #: whether it begins at the frozen pre-trained backbone instead of the start
    starts_from_base: bool = False
    puts_in_prompt: bool = False  #: whether the start's prompt is put around its sentences

    def examples(self, split: CollectionSplit) -> Sequence[Any]:
        """Return the training examples: pairs of texts, or sentences."""
        return split.pairs if self.learns_from_pairs else split.sentences

    def batch_size(self, split: CollectionSplit) -> int:
        """Return the batch size; even a small collection fills at least two batches."""
        largest = int(self.settings.get("batch_size", 128))
        return max(2, min(largest, len(self.examples(split)) // 2))


#: Learning from pairs; it reads as much of a passage as fits the time.
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
#: By the name in the table. The papers' methods keep their own settings, except the number of
#: steps.
ATTEMPTS = {
    "pairs": _BY_PAIRS,
    "pretrain": dataclasses.replace(
        _BY_PAIRS, about="the words of the texts, then as pairs", is_pretrained=True
    ),
    "promptbert": Attempt("promptbert", "the sentences alone", puts_in_prompt=True),
    "simcse": Attempt("simcse", "the sentences alone"),
    "dcpcse": Attempt("dcpcse", "the sentences alone", starts_from_base=True),
}
#: Planned share of the given time: a machine also has other work.
_PLANNED = 0.8
_SCORES = 6  #: development scores of a run
_PATIENCE = 3  #: scores in a row without improvement that end a run
_TIMED_STEPS = 2
_TIMED_PASSAGES = 128
_TIMED_QUERIES = 16
_FEWEST_STEPS = 8
#: Limits of pre-training: its share of the time, its passes over the texts, its fewest tokens.
_PRETRAINING_SHARE = 0.15
_PASSES = 10
_FEWEST_TOKENS = 2 * BATCH_TOKENS
_CHARACTERS_OF_TOKEN = 4  #: of English, about
_PRETRAINED = "pretrained"  #: run name of the start after pre-training


@dataclass(frozen=True)
class Schedule:
    """The number of steps of each attempt that fit into the time, and the expected duration."""

    steps: dict[str, int]
    seconds: dict[str, float]  #: seconds of each attempt, scores included
    tokens: int = 0  #: tokens of pre-training
    left_out: dict[str, str] = field(default_factory=dict)  #: skipped attempt -> reason

    @property
    def total(self) -> float:
        """Seconds that all attempts are expected to take."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class Trainings:
    """The runs of all attempts on one collection, each a model NAME.ATTEMPT until the end."""

    name: str
    start: Entry
    choice: Choice  #: the device and the precision
    split: CollectionSplit
    seed: int
    attempts: Mapping[str, Attempt]  #: those to try

    def run_name(self, attempt: str) -> str:
        return f"{self.name}.{attempt}"

    def _run_names(self) -> list[str]:
        return [self.run_name(attempt) for attempt in (*ATTEMPTS, _PRETRAINED)]

    def check_free(self, *, force: bool) -> None:
        """Refuse existing models with the names of runs; ``force`` removes those of earlier
        runs.
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
        """Time the first steps of each attempt, and return the numbers of steps that fit.

        Attempts that the start does not support are left out.
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
        passage_seconds = self._time_passage()
        schedule = plan_steps(
            self.split, step_seconds, token_seconds, passage_seconds, 3600 * hours
        )
        return dataclasses.replace(schedule, left_out=left_out)

    def _time_passage(self) -> float:
        """Return the seconds to encode a passage."""
        passages = self.split.collection.passages[:_TIMED_PASSAGES]
        encoder = loading.open_model(self.start, device=self.choice.device, dtype="float32")
        began = time.perf_counter()
        encoder.encode(passages)
        return (time.perf_counter() - began) / len(passages)

    def _time_token(self) -> float:
        """Return the seconds to pre-train on a token."""
        with tempfile.TemporaryDirectory() as folder:
            return self.pretrain_backbone(Path(folder), _FEWEST_TOKENS)

    def _time_step(self, attempt: Attempt) -> float:
        """Return the seconds of a training step."""
        if attempt.puts_in_prompt and self.start.recipe.prompt == pc.Recipe().prompt:
            raise UsageError(
                "it learns from sentences inside a prompt, such as mini's, and model"
                f" {self.start.name!r} reads them without one"
            )
        few = attempt.examples(self.split)[: 2 * attempt.batch_size(self.split)]
        settings = {"steps": _TIMED_STEPS, "eval_steps": _TIMED_STEPS}
        timed = pc.train(
            attempt.method,
            few,
            on=self.split.timing_task(_TIMED_QUERIES),
            **self._arguments(attempt, self.start.name, settings),
        )
        return timed.curve[-1].seconds / _TIMED_STEPS

    def run_all(self, schedule: Schedule) -> Iterator[tuple[str, pc.Trained]]:
        """Train all attempts, and yield the name and run of each successful one.

        A finished run is only opened again.
        """
        models = loading.open_registry().names()
        done = {name for name in schedule.steps if self.run_name(name) in models}
        left = sum(schedule.seconds[name] for name in schedule.steps if name not in done)
        notes.note(f"the trainings take about {in_minutes(left)}")
        for number, name in enumerate(schedule.steps, 1):
            place = f"{number} of {len(schedule.steps)}"
            if name in done:
                notes.note(f"{place}: {name} was done before")
            else:
                seconds = schedule.seconds[name]
                notes.note(
                    f"{place}: {name}, from {self.attempts[name].about}; about"
                    f" {in_minutes(seconds)}, {in_minutes(left)} left in all"
                )
                left -= seconds
            with notes.silent(name in done):
                trained = self.run(name, schedule)
            if trained is not None:
                yield name, trained

    def run(self, name: str, schedule: Schedule) -> pc.Trained | None:
        """Return a trained attempt, resumed if it was stopped; None if it failed."""
        attempt = self.attempts[name]
        steps = schedule.steps[name]
        settings = {
            "steps": steps,
            "eval_steps": max(1, steps // _SCORES),
            "patience": _PATIENCE,
        }
        try:
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
        except UsageError:
            raise
        except PromptcliError as error:  # the loss is not a number, or memory is too small
            notes.note(f"{name} failed and is left out: {error}")
            return None

    def _arguments(
        self, attempt: Attempt, start: str, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments of ``train`` for an attempt."""
        begins = {"start": start}
        if attempt.starts_from_base:
            begins = {"backbone": self.start.recipe.backbone}
        if attempt.learns_from_pairs:
            begins |= {"teacher": self.start.name, "mine": self.start.name}
        return {
            **begins,
            "device": self.choice.device,
            "dtype": self.choice.dtype,
            **attempt.settings,
            "batch_size": attempt.batch_size(self.split),
            "seed": self.seed,
            **settings,
        }

    def _pretrained_start(self, tokens: int) -> str:
        """Return the name of the pre-trained start; the first call makes it."""
        registry = loading.open_registry()
        name = self.run_name(_PRETRAINED)
        if name not in registry.names():
            folder = registry.run_folder(name)
            self.pretrain_backbone(folder, tokens)
            registry.save(add_change(self.start, folder, name))
        return name

    def pretrain_backbone(self, folder: Path, tokens: int) -> float:
        """Pre-train the start's backbone further on the texts, or resume that in the folder; return
        the seconds per token.

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
            _backbone_in(folder),
            start=backbone,
            device=self.choice.device,
            resume=True,
            tokens=tokens,
            batch_tokens=BATCH_TOKENS,
            seed=self.seed,
            **_SETTINGS.get(backbone, {}),
        )
        speed: Any = pretrained.figures["tokens_per_second"]
        return 1 / (speed or 1)  # None or 0: too few seconds were measured


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
    planned = _PLANNED * seconds
    test_passages = len(split.test_task.documents)
    scored = (_SCORES + 4) * len(split.development_task.documents) + test_passages
    tokens = 0
    fixed = {}  # seconds of an attempt besides those of its steps
    wanted = {}  # steps of its epochs
    for name in step_seconds:
        attempt = ATTEMPTS[name]
        count = len(attempt.examples(split))
        wanted[name] = int(attempt.epochs * count / attempt.batch_size(split))
        both_texts = 2 * count if attempt.learns_from_pairs else 0  # which the start encodes
        fixed[name] = passage_seconds * (scored + both_texts)
        if attempt.is_pretrained:
            # some passes over the texts, or what its time holds
            characters = sum(map(len, split.training_passages))
            in_time = _PRETRAINING_SHARE * planned / token_seconds
            tokens = int(min(_PASSES * characters / _CHARACTERS_OF_TOKEN, in_time))
            tokens = max(_FEWEST_TOKENS, tokens)
            fixed[name] += tokens * token_seconds
    left = planned - sum(fixed.values()) - passage_seconds * test_passages
    # the same share of each attempt's steps
    share = left / sum(wanted[name] * step_seconds[name] for name in wanted)
    steps = {name: max(_FEWEST_STEPS, int(min(1, share) * count)) for name, count in wanted.items()}
    expected = {name: fixed[name] + steps[name] * step_seconds[name] for name in step_seconds}
    return Schedule(steps, expected, tokens)


def in_minutes(seconds: float) -> str:
    """Return a time in words: ``12 minutes``."""
    return errors.with_count(max(1, round(seconds / 60)), "minute")


def add_change(entry: Entry, folder: Path, name: str) -> Entry:
    """Return a model to whose weights a backbone's change in the folder is added.

    Masked language modelling needs a head that predicts words, which a sentence model no longer
    has. So its backbone is pre-trained on the texts, and the change of its weights is added to the
    model (task arithmetic: Ilharco et al., 2023, "Editing Models with Task Arithmetic"). The model
    keeps its knowledge of sentences.
    """
    before = _weights(entry.recipe.backbone)
    after = _weights(str(_backbone_in(folder)))
    tensors = dict(entry.tensors)
    for key in tensors:
        for own, weight in tuned_weights({key: tensors[key]}).items():
            tensors[key] = weight.float() + after[own] - before[own]
    return dataclasses.replace(entry, name=name, tensors=tensors, scores=[])


def _backbone_in(folder: Path) -> Path:
    return folder / "backbone"


def _weights(backbone: str) -> dict[str, Any]:
    """Return the weights of a backbone by its own names."""
    encoder = loading.open_model(pc.Recipe(backbone=backbone), dtype="float32")
    return {name: weight.detach() for name, weight in encoder.backbone.model.state_dict().items()}
