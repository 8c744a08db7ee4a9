"""Models to score: opening them by name, scoring one group and task after the other."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from promptcli.data.file_arguments import split_columns
from promptcli.data.senteval import senteval_folder
from promptcli.data.task_table import TEST_TASKS, graded_columns
from promptcli.data.tasks import AnyTask, Loaded, OtherTask, any_task_names, load_any
from promptcli.encoder.encoder import TorchEncoder, make_encoder
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.errors import NotFoundError, PromptcliError, UsageError, WrongKindError, counted
from promptcli.evaluation.evaluator import (
    EvalSettings,
    distinct_sentences,
    embed_tasks,
    score_vectors,
)
from promptcli.evaluation.kept_scores import KeptScores
from promptcli.evaluation.scores import Label, Score, SpearmanScore, recipe_name
from promptcli.models import loading
from promptcli.models.entries import Entry
from promptcli.models.loading import Model, entry_of, is_recipe
from promptcli.notes import Advance, note, stage
from promptcli.recipe import Choice, Recipe
from promptcli.settings import BARE

_EQUAL = 1e-6  #: cosines within this width are equal but for rounding


@dataclass(frozen=True)
class Candidate:
    """A model to score."""

    label: Label
    model: Encoder | Entry
    transfer: Recipe | None  #: recipe of transfer tasks, if it differs
    word: str | None  #: the name under which it was given
    choice: Choice  #: device, dtype and backend to open it with

    @classmethod
    def of(cls, model: Model) -> "Candidate":
        """Return a candidate: a named model under its name, a recipe under its backbone's."""
        entry = entry_of(model)
        word = name_given(model)
        registry = loading.open_registry()
        named = word is not None and not is_recipe(registry, word)
        changed = isinstance(model, Choice) and bool(model.changes)
        label = Label(
            str(word) if named else entry.recipe.backbone,
            recipe_name(entry.recipe),
            named,
            entry=not changed and word in registry.names(),
        )
        return cls(
            label,
            # scores are of float32: an encoder in bfloat16 is opened again
            model if isinstance(model, Encoder) and _is_exact(model) else entry,
            entry.transfer,
            word,
            model if isinstance(model, Choice) else Choice(),
        )

    def open(self, peers: Sequence[TorchEncoder]) -> TorchEncoder:
        """Return the encoder; it shares the backbone of a peer, unless that one tuned it."""
        return loading.open_model(
            self.model,
            device=self.choice.device,
            dtype=self.choice.dtype or "stored",
            backend=self.choice.backend,
            peers=peers,
        )


def _is_exact(encoder: Encoder) -> bool:
    return bool(encoder.provenance["dtype"] != "bfloat16")


Opened = tuple[Candidate, TorchEncoder]  #: a candidate and its encoder


def name_given(model: Model) -> str | None:
    """Return the name the model was given by, if any."""
    if isinstance(model, Choice):
        return model.model
    if isinstance(model, Encoder) and model.name in loading.open_registry().names():
        return model.name
    if isinstance(model, str | Path):
        return str(model)
    return None


def load_named_tasks(
    tasks: str | Path | Sequence[str | Path] = (),
    *,
    protocol: str = "senteval",
    skip_missing: bool = False,
) -> Loaded[AnyTask]:
    """Load tasks by their names, see ``evaluate``; what is missing is reported."""
    folder = senteval_folder()
    names = any_task_names(tasks) or any_task_names(
        BARE.tasks if folder is None else list(map(str, TEST_TASKS))
    )
    loaded = load_any(folder, names, protocol)
    reasons = [f"{label} is missing: {why}" for label, why in loaded.missing.items()]
    if reasons and not (skip_missing and loaded.tasks):
        raise NotFoundError(reasons[0] if skip_missing else "; ".join(reasons))
    for reason in reasons:
        note(reason)
    return loaded


def candidates_of(models: Sequence[Model]) -> list[tuple[Label, Candidate | PromptcliError]]:
    """Return the label and candidate of each model, or the reason why it has none.

    Two words for one recipe have two labels.
    """
    rows: dict[Label, Candidate | PromptcliError] = {}
    labels = []
    for model in models:
        word = name_given(model)
        try:
            row: Candidate | PromptcliError = Candidate.of(model)
        except NotFoundError as error:
            if word is not None and os.path.isfile(split_columns(word)[0]):
                raise _is_data(word, models) from None
            row = error
        except PromptcliError as error:
            row = error
        if isinstance(row, Candidate):
            label = row.label
        else:
            label = Label(word or str(model), "")
        twin = rows.get(label)
        if isinstance(row, Candidate) and isinstance(twin, Candidate) and _differ(row, twin):
            label = replace(label, recipe=f"{label.recipe} ({word or len(rows) + 1})")
            note(
                f"{word or label.recipe}: the same recipe as {twin.word or twin.label.recipe}, so"
                " equal figures"
            )
            row = replace(row, label=label)
        rows.setdefault(label, row)
        labels.append(label)
    return [(label, rows[label]) for label in labels]


def _is_data(word: str, models: Sequence[Model]) -> UsageError:
    """Return the error for a file of data among the models: it was meant for another option."""
    if graded_columns(word) is None:
        return UsageError(
            f"{word} is a file, not a model; give a model's name, a folder, or a hub id, and files"
            " of graded pairs as tasks"
        )
    others = [name_given(model) for model in models]
    names = [name for name in others if name and name != word] or ["MODEL"]
    return UsageError(
        f"{word} is a file of pairs, a task: `promptcli eval {' '.join(names)} --task {word}`"
    )


def _differ(one: Candidate, other: Candidate) -> bool:
    """Return whether two candidates are neither one object nor named by one word."""
    return one.model is not other.model and (one.word is None or one.word != other.word)


def open_candidates(
    rows: Mapping[Label, Candidate | PromptcliError],
) -> tuple[dict[Label, Opened], dict[Label, PromptcliError]]:
    """Return the candidates with their encoders, and why others have none.

    Candidates of one backbone share it.
    """
    opened: dict[Label, Opened] = {}
    refused: dict[Label, PromptcliError] = {}
    for label, row in rows.items():
        try:
            if isinstance(row, PromptcliError):
                raise row
            opened[label] = row, row.open([encoder for _, encoder in opened.values()])
        except PromptcliError as error:
            refused[label] = error
            if not isinstance(error, WrongKindError) and len(rows) > 1:
                note(f"{label.recipe or label.model} is left out: {error}")
    return opened, refused


@dataclass(frozen=True)
class _Scorer:
    row: Label  #: of the candidate
    label: Label  #: of the scores: transfer tasks may have another recipe
    encoder: TorchEncoder
    is_named: bool  #: opened by its name: the weights of an encoder in memory may have changed


def score_models(
    opened: Mapping[Label, Opened],
    tasks: Sequence[AnyTask],
    settings: EvalSettings,
    kept: KeptScores,
    *,
    strict: bool,
) -> tuple[dict[Label, list[Score]], dict[Label, PromptcliError]]:
    """Return each encoder's scores, and why others lack some, or raise it.

    What an earlier evaluation measured is taken from ``kept``; what is measured is put there as
    each task ends.
    """
    scores: dict[Label, dict[int, Score]] = {label: {} for label in opened}
    refused: dict[Label, PromptcliError] = {}
    groups = _groups(opened, tasks)
    to_measure: list[tuple[int, list[_Scorer]]] = []
    for number, readers in groups:
        without_score = []
        for reader in readers:
            score = None
            if reader.is_named:
                score = kept.get(reader.encoder, reader.label, tasks[number])
            if score is None:
                without_score.append(reader)
            else:
                scores[reader.row][number] = score
        if without_score:
            to_measure.append((number, without_score))
    _note_kept(sum(map(len, scores.values())), sum(len(readers) for _, readers in groups))
    sentences = sum(len(distinct_sentences([tasks[number]])) for number, _ in to_measure)
    with stage("encode", sentences) as advance:
        for number, readers in to_measure:
            task = tasks[number]
            outcomes = _score_together(readers, task, settings, advance, strict=strict)
            for reader in readers:
                outcome = outcomes[reader.row]
                if isinstance(outcome, PromptcliError):
                    refused.setdefault(reader.row, outcome)
                    continue
                scores[reader.row][number] = outcome
                if reader.is_named:
                    kept.put(reader.encoder, task, outcome)
                if len(groups) > 1:  # else the table follows at once
                    _note_figure(outcome)
    return {
        label: [row[number] for number in sorted(row)] for label, row in scores.items()
    }, refused


def _note_kept(kept: int, total: int) -> None:
    """Tell how many scores are not measured now."""
    if kept == 0:
        return
    which = f"{kept} of {counted(total, 'score')}"
    if kept == total:
        which = "all scores" if total > 1 else "the score"
    verb = "is" if total == 1 else "are"
    note(f"{which} {verb} kept from an earlier evaluation; force measures again")


def _note_figure(score: Score) -> None:
    """Report a score at once: the others may take long."""
    interval = ""
    if score.ci95 is not None:
        low, high = score.ci95
        interval = f" ±{(high - low) / 2:.2f}"
    note(f"{score.column}: {score.label} {score.value:.2f}{interval}")


def is_for_transfer(task: AnyTask) -> bool:
    """Return whether models are read by their recipe for transfer tasks, if they have one."""
    return isinstance(task, OtherTask) and task.for_transfer


def _groups(
    opened: Mapping[Label, Opened], tasks: Sequence[AnyTask]
) -> list[tuple[int, list[_Scorer]]]:
    """Return the number of each task with the encoders that have the same model input for it."""
    groups: dict[tuple[int, tuple[object, ...]], list[_Scorer]] = {}
    has_transfer = any(map(is_for_transfer, tasks))
    for label, (candidate, encoder) in opened.items():
        scorer = _Scorer(label, label, encoder, not isinstance(candidate.model, Encoder))
        scorer_of_transfer = scorer
        if candidate.transfer is not None and has_transfer:
            scorer_of_transfer = _with_recipe(scorer, candidate.transfer)
            name = scorer_of_transfer.label.recipe
            note(f"{label.model}: transfer tasks use its recipe for them, {name}")
        for number, task in enumerate(tasks):
            suited = scorer_of_transfer if is_for_transfer(task) else scorer
            inputs = tuple(part.input_key for part in suited.encoder.parts)
            groups.setdefault((number, inputs), []).append(suited)
    return [(number, scorers) for (number, _), scorers in groups.items()]


def _with_recipe(scorer: _Scorer, recipe: Recipe) -> _Scorer:
    """Return a scorer whose encoder has another recipe."""
    encoder = make_encoder(recipe, scorer.encoder.backbone, scorer.encoder.tensors())
    label = replace(scorer.label, recipe=recipe_name(recipe))
    return replace(scorer, label=label, encoder=encoder)


def _score_together(
    readers: Sequence[_Scorer],
    task: AnyTask,
    settings: EvalSettings,
    advance: Advance,
    *,
    strict: bool,
) -> dict[Label, Score | PromptcliError]:
    """Return the scores of encoders with the same model input.

    If one fails, they are scored one by one, and the error is returned for each that fails.
    """
    encoders = [reader.encoder for reader in readers]
    labels = [reader.label for reader in readers]
    try:
        embedded = embed_tasks(encoders, [task], labels, advance)
        scores = score_vectors(embedded, [task], settings)
        return {reader.row: score for reader, score in zip(readers, scores, strict=True)}
    except PromptcliError as error:
        if strict:
            raise
        if len(readers) == 1:
            return {readers[0].row: error}
    alone = [_score_together([each], task, settings, advance, strict=False) for each in readers]
    return {row: outcome for outcomes in alone for row, outcome in outcomes.items()}


def note_cosines(scores: Sequence[Score]) -> None:
    """Report figures on graded pairs that say little: of sentences without a vector, of equal
    cosines.
    """
    for score in (score for score in scores if isinstance(score, SpearmanScore)):
        if score.zero_vectors:
            zeros = (
                f"{score.zero_vectors:,} sentences of {score.column} have a zero vector, so their"
                " cosines are 0"
            )
            note(f"{score.label}: {zeros}")
        if np.ptp(score.cosines) <= _EQUAL:
            note(
                f"{score.label}: all cosines on {score.column} are {score.cosines[0]:.4f}; equal"
                " ones rank nothing"
            )
