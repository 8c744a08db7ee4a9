"""Models to score: they are opened by name, and scored task by task."""

import functools
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from promptcli.data.input_files import split_columns
from promptcli.data.tasks import AnyTask, PluginTask
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
from promptcli.models.loading import Model, resolve_entry
from promptcli.notes import Advance, note, stage
from promptcli.recipe import ModelChoice, Recipe


@dataclass(frozen=True)
class Candidate:
    """A model to score."""

    label: Label  #: of its scores
    encoder: TorchEncoder
    transfer: Recipe | None  #: recipe of transfer tasks, if it differs
    keeps_scores: bool  #: False for an encoder in memory, whose weights may have changed

    @functools.cached_property
    def for_transfer(self) -> "Candidate":
        """The candidate as transfer tasks read it."""
        if self.transfer is None:
            return self
        name = recipe_name(self.transfer)
        note(f"{self.label.model}: transfer tasks use its recipe for them, {name}")
        encoder = TorchEncoder(self.transfer, self.encoder.backbone, self.encoder.tensors())
        return replace(self, label=replace(self.label, recipe=name), encoder=encoder)


def open_candidates(
    models: Sequence[Model],
) -> tuple[list[Label], dict[Label, Candidate], dict[Label, PromptcliError]]:
    """Return the label of each model, the candidates, and the reasons for refused models.

    Two names of one recipe have two labels. Candidates of one backbone share it.
    """
    saved = set(loading.open_registry().names())
    labels: list[Label] = []
    opened: dict[Label, Candidate] = {}
    identities: dict[Label, str | int] = {}  # the name of a candidate's model, or its id
    refused: dict[Label, PromptcliError] = {}
    for model in models:
        name = _name_of(model, saved)
        label = Label(name or str(model), "")
        identity = name or id(model)
        try:
            entry = resolve_entry(model)
            label = _label(model, name, entry, is_saved=name in saved)
            if identities.setdefault(label, identity) != identity:
                label = replace(label, recipe=f"{label.recipe} ({name or len(labels) + 1})")
            if label not in opened:
                backbone_donors = [candidate.encoder for candidate in opened.values()]
                opened[label] = _open(model, entry, label, backbone_donors)
        except PromptcliError as error:
            is_file = name is not None and os.path.isfile(split_columns(name)[0])
            if is_file and isinstance(error, NotFoundError):
                raise UsageError(
                    f"{name} is a file, not a model; graded pairs are a task:"
                    f" `promptcli eval MODEL --task {name}`"
                ) from None
            if not isinstance(error, WrongKindError) and len(models) > 1 and label not in refused:
                note(f"{label.recipe or label.model} is left out: {error}")
            refused.setdefault(label, error)
        labels.append(label)
    return labels, opened, refused


def _name_of(model: Model, saved: Collection[str]) -> str | None:
    """Return the name of a model that was given by name, or None."""
    if isinstance(model, ModelChoice):
        model = model.model
    if isinstance(model, Encoder) and model.name in saved:
        return model.name
    if isinstance(model, str | Path):
        return str(model)
    return None


def _label(model: Model, name: str | None, entry: Entry, *, is_saved: bool) -> Label:
    """Return a model's label in results: its name, or for a recipe the name of its backbone."""
    has_own_name = is_saved or (name is not None and bool(entry.provenance))
    is_changed = isinstance(model, ModelChoice) and bool(model.changes)
    return Label(
        str(name) if has_own_name else entry.recipe.backbone,
        recipe_name(entry.recipe),
        entry=is_saved and not is_changed,
    )


def _open(
    model: Model, entry: Entry, label: Label, backbone_donors: Sequence[TorchEncoder]
) -> Candidate:
    # an encoder in bfloat16 is opened again, because scores are computed in float32
    if isinstance(model, Encoder) and model.provenance["dtype"] != "bfloat16":
        return Candidate(
            label, loading.open_torch_encoder(model), entry.transfer, keeps_scores=False
        )
    choice = model if isinstance(model, ModelChoice) else ModelChoice()
    chosen = replace(choice, model=entry, changes={}, dim=None)
    encoder = loading.open_torch_encoder(chosen, dtype="stored", backbone_donors=backbone_donors)
    return Candidate(label, encoder, entry.transfer, keeps_scores=True)


def score_models(
    opened: Mapping[Label, Candidate],
    tasks: Sequence[AnyTask],
    settings: EvalSettings,
    kept: KeptScores,
    *,
    strict: bool,
) -> tuple[dict[Label, list[Score]], dict[Label, PromptcliError]]:
    """Return each candidate's scores, and the reasons for missing ones; if ``strict``, raise the
    first reason.

    Scores of an earlier evaluation are taken from ``kept``, and new ones are put there as each task
    ends. Candidates with the same model input are scored together.
    """
    scores: dict[Label, dict[int, Score]] = {label: {} for label in opened}
    refused: dict[Label, PromptcliError] = {}
    #: number of a task and model input -> the candidates to score
    missing: dict[tuple[int, tuple[object, ...]], dict[Label, Candidate]] = {}
    for label, candidate in opened.items():
        for number, task in enumerate(tasks):
            reader = candidate.for_transfer if is_for_transfer(task) else candidate
            score = kept.get(reader.encoder, reader.label, task) if reader.keeps_scores else None
            if score is not None:
                scores[label][number] = score
            else:
                inputs = tuple(part.input_key for part in reader.encoder.prompt_encoders)
                missing.setdefault((number, inputs), {})[label] = reader
    if kept_count := sum(map(len, scores.values())):
        total = len(opened) * len(tasks)
        share = "all" if kept_count == total else f"{kept_count} of {total}"
        note(f"{share} scores are kept from an earlier evaluation; force=True measures again")
    sentences = sum(len(distinct_sentences([tasks[number]])) for number, _ in missing)
    with stage("encode", sentences) as advance:
        for (number, _), readers in missing.items():
            task = tasks[number]
            outcomes = _score_together([*readers.values()], task, settings, advance, strict=strict)
            for (label, reader), outcome in zip(readers.items(), outcomes, strict=True):
                if isinstance(outcome, PromptcliError):
                    refused.setdefault(label, outcome)
                    continue
                scores[label][number] = outcome
                if reader.keeps_scores:
                    kept.put(reader.encoder, task, outcome)
                if len(missing) > 1:  # else the table follows at once
                    _note_score(outcome)
    in_order = {}
    for label, score_of_task in scores.items():
        in_order[label] = [score_of_task[number] for number in sorted(score_of_task)]
    return in_order, refused


def _note_score(score: Score) -> None:
    """Report a score at once, because the next one may take long."""
    interval = ""
    if score.ci95 is not None:
        low, high = score.ci95
        interval = f" ±{(high - low) / 2:.2f}"
    note(f"{score.column}: {score.label} {score.value:.2f}{interval}")


def is_for_transfer(task: AnyTask) -> bool:
    """Return whether a task uses a model's separate recipe for transfer tasks."""
    return isinstance(task, PluginTask) and task.for_transfer


def _score_together(
    candidates: Sequence[Candidate],
    task: AnyTask,
    settings: EvalSettings,
    advance: Advance,
    *,
    strict: bool,
) -> list[Score | PromptcliError]:
    """Return the scores of candidates with the same model input.

    If scoring fails, each candidate is scored alone, and an error takes the place of its score.
    """
    encoders = [candidate.encoder for candidate in candidates]
    labels = [candidate.label for candidate in candidates]
    try:
        return score_vectors(embed_tasks(encoders, [task], labels, advance), [task], settings)
    except PromptcliError as error:
        if strict:
            raise
        if len(candidates) == 1:
            return [error]
    scores = []
    for candidate in candidates:
        scores += _score_together([candidate], task, settings, advance, strict=False)
    return scores
