"""Models to score: opening them by name, scoring one group and task after the other."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from promptcli.data.input_files import split_columns
from promptcli.data.senteval import senteval_folder
from promptcli.data.task_table import TEST_TASKS
from promptcli.data.tasks import AnyTask, Loaded, OtherTask, any_task_names, load_any
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.errors import NotFoundError, PromptcliError, UsageError, WrongKindError
from promptcli.evaluation.evaluator import (
    EvalSettings,
    distinct_sentences,
    embed_tasks,
    score_vectors,
)
from promptcli.evaluation.kept_scores import KeptScores
from promptcli.evaluation.scores import Label, Score, recipe_name
from promptcli.models import loading
from promptcli.models.entries import Entry
from promptcli.models.loading import Model, entry_of
from promptcli.notes import Advance, note, stage
from promptcli.recipe import Choice, Recipe
from promptcli.settings import BARE


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
        is_saved = word in loading.open_registry().names()
        named = is_saved or (word is not None and bool(entry.provenance))
        choice = model if isinstance(model, Choice) else Choice()
        label = Label(
            str(word) if named else entry.recipe.backbone,
            recipe_name(entry.recipe),
            entry=not choice.changes and is_saved,
        )
        if isinstance(model, Encoder) and model.provenance["dtype"] != "bfloat16":
            return cls(label, model, entry.transfer, word, choice)
        # scores are of float32: an encoder in bfloat16 is opened again
        return cls(label, entry, entry.transfer, word, choice)


Opened = tuple[Candidate, TorchEncoder]  #: a candidate and its encoder


def name_given(model: Model) -> str | None:
    """Return the name the model was given by, if any."""
    if isinstance(model, Choice):
        model = model.model
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
        BARE.corpus if folder is None else list(map(str, TEST_TASKS))
    )
    loaded = load_any(folder, names, protocol)
    reasons = [f"{label} is missing: {why}" for label, why in loaded.missing.items()]
    if reasons and not (skip_missing and loaded.tasks):
        raise NotFoundError(reasons[0] if skip_missing else "; ".join(reasons))
    for reason in reasons:
        note(reason)
    return loaded


def _differ(one: Candidate, other: Candidate) -> bool:
    """Return whether two candidates are neither one object nor named by one word."""
    return one.model is not other.model and (one.word is None or one.word != other.word)


def open_candidates(
    models: Sequence[Model],
) -> tuple[list[Label], dict[Label, Opened], dict[Label, PromptcliError]]:
    """Return the label of each model, the candidates with their encoders, and why others have none.

    Two words for one recipe have two labels. Candidates of one backbone share it.
    """
    labels: list[Label] = []
    opened: dict[Label, Opened] = {}
    refused: dict[Label, PromptcliError] = {}
    for model in models:
        word = name_given(model)
        label = Label(word or str(model), "")
        try:
            candidate = Candidate.of(model)
            label = candidate.label
            if label in opened and _differ(candidate, opened[label][0]):
                label = replace(label, recipe=f"{label.recipe} ({word or len(labels) + 1})")
                candidate = replace(candidate, label=label)
            if label not in opened:
                encoder = loading.open_model(
                    candidate.model,
                    device=candidate.choice.device,
                    dtype=candidate.choice.dtype or "stored",
                    backend=candidate.choice.backend,
                    peers=[encoder for _, encoder in opened.values()],
                )
                opened[label] = candidate, encoder
        except PromptcliError as error:
            is_missing = isinstance(error, NotFoundError)
            if is_missing and word is not None and os.path.isfile(split_columns(word)[0]):
                raise UsageError(
                    f"{word} is a file, not a model; graded pairs are a task:"
                    f" `promptcli eval MODEL --task {word}`"
                ) from None
            if not isinstance(error, WrongKindError) and len(models) > 1 and label not in refused:
                note(f"{label.recipe or label.model} is left out: {error}")
            refused.setdefault(label, error)
        labels.append(label)
    return labels, opened, refused


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
    for number, scorers in groups:
        for scorer in scorers:
            if scorer.is_named:
                score = kept.get(scorer.encoder, scorer.label, tasks[number])
                if score is not None:
                    scores[scorer.row][number] = score
    known = sum(map(len, scores.values()))
    total = sum(len(scorers) for _, scorers in groups)
    if known:
        which = "all" if known == total else f"{known} of {total}"
        note(f"{which} scores are kept from an earlier evaluation; force measures again")
    missing = []
    for number, scorers in groups:
        left = [scorer for scorer in scorers if number not in scores[scorer.row]]
        if left:
            missing.append((tasks[number], number, left))
    sentences = sum(len(distinct_sentences([task])) for task, _, _ in missing)
    with stage("encode", sentences) as advance:
        for task, number, scorers in missing:
            outcomes = _score_together(scorers, task, settings, advance, strict=strict)
            for scorer, outcome in zip(scorers, outcomes, strict=True):
                if isinstance(outcome, PromptcliError):
                    refused.setdefault(scorer.row, outcome)
                    continue
                scores[scorer.row][number] = outcome
                if scorer.is_named:
                    kept.put(scorer.encoder, task, outcome)
                if len(groups) > 1:  # else the table follows at once
                    _note_figure(outcome)
    return {
        label: [row[number] for number in sorted(row)] for label, row in scores.items()
    }, refused


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
    for label, (candidate, encoder) in opened.items():
        scorer = scorer_of_transfer = _Scorer(
            label, label, encoder, not isinstance(candidate.model, Encoder)
        )
        if candidate.transfer is not None and any(map(is_for_transfer, tasks)):
            name = recipe_name(candidate.transfer)
            note(f"{label.model}: transfer tasks use its recipe for them, {name}")
            scorer_of_transfer = replace(
                scorer,
                label=replace(label, recipe=name),
                encoder=TorchEncoder(candidate.transfer, encoder.backbone, encoder.tensors()),
            )
        for number, task in enumerate(tasks):
            suited = scorer_of_transfer if is_for_transfer(task) else scorer
            inputs = tuple(part.input_key for part in suited.encoder.parts)
            groups.setdefault((number, inputs), []).append(suited)
    return [(number, scorers) for (number, _), scorers in groups.items()]


def _score_together(
    scorers: Sequence[_Scorer],
    task: AnyTask,
    settings: EvalSettings,
    advance: Advance,
    *,
    strict: bool,
) -> list[Score | PromptcliError]:
    """Return the score of each of some encoders with the same model input.

    If one fails, they are scored one by one, and the error is returned for each that fails.
    """
    encoders = [scorer.encoder for scorer in scorers]
    labels = [scorer.label for scorer in scorers]
    try:
        return score_vectors(embed_tasks(encoders, [task], labels, advance), [task], settings)
    except PromptcliError as error:
        if strict:
            raise
        if len(scorers) == 1:
            return [error]
    outcomes = []
    for scorer in scorers:
        outcomes += _score_together([scorer], task, settings, advance, strict=False)
    return outcomes
