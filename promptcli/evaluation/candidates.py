"""Scoring models on tasks, both by name: opening them, skipping unfit ones, comparing and storing scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from promptcli.data.senteval import senteval_folder
from promptcli.data.task_table import TEST_TASKS
from promptcli.data.tasks import AnyTask, Loaded, TransferTask, any_task_names, load_any
from promptcli.encoder.encoder import Encoder
from promptcli.errors import NotFoundError, UsageError, WrongKindError
from promptcli.evaluation.evaluator import (
    EvalSettings,
    check_tasks,
    compare,
    embed_tasks,
    read_embedded,
    score_vectors,
)
from promptcli.evaluation.scores import Comparison, Label, Score, SpearmanScore, recipe_name
from promptcli.models import loading
from promptcli.models.entries import Entry
from promptcli.models.loading import Model, entry_of, is_recipe
from promptcli.notes import note
from promptcli.recipe import Choice, Recipe
from promptcli.settings import BARE


@dataclass(frozen=True)
class Evaluation:
    """The scores of some models."""

    scores: dict[Label, list[Score]]  #: of each set of vectors, then of each model, by task
    comparisons: list[Comparison]  #: of each with the baseline, task by task


@dataclass(frozen=True)
class Candidate:
    """A model to score."""

    label: Label
    model: Encoder | Entry
    transfer: Recipe | None  #: recipe of transfer tasks, if it differs
    saved_as: str | None  #: its name in the registry
    choice: Choice  #: device, dtype and backend to open it with

    @classmethod
    def of(cls, model: Model) -> "Candidate":
        """Return a candidate: a named model under its name, a recipe under its backbone's."""
        entry = entry_of(model)
        word = model.model if isinstance(model, Choice) else str(model) if isinstance(model, str | Path) else None
        named = word is not None and not is_recipe(loading.open_registry(), word)
        return cls(
            Label(str(word) if named else entry.recipe.backbone, recipe_name(entry.recipe)),
            model if isinstance(model, Encoder) else entry,
            entry.transfer,
            entry.name if named else None,
            model if isinstance(model, Choice) else Choice(),
        )


def evaluate_all(
    models: Sequence[Model],
    tasks: Sequence[AnyTask],
    settings: EvalSettings,
    *,
    against: Model | None = None,
    save: bool = False,
    skip_unfit: bool = False,
    vectors: Sequence[str | Path] = (),
    listing: str | None = None,
) -> Evaluation:
    """Score models, each once, and compare them with ``against``, task by task.

    ``save`` stores the scores on graded pairs with the registry's models; ``skip_unfit`` leaves out models that do not
    fit their backbone; ``listing`` is the command that lists the tasks' sentences, for messages about vectors.
    """
    candidates = candidates_of(models)
    baseline = None if against is None else Candidate.of(against)
    if baseline is not None and baseline.label not in [candidate.label for candidate in candidates]:
        candidates.append(baseline)
    if save:
        _check_savable(candidates)
    transfer = [task for task in tasks if isinstance(task, TransferTask)]
    _note_examples(transfer)
    check_tasks(transfer, settings.training)
    listing = listing or f"promptcli.task_sentences of {', '.join(task.name for task in tasks)}"
    external = [read_embedded(Path(path), tasks, listing) for path in dict.fromkeys(vectors)]
    scores = {each.label: score_vectors([each], tasks, settings) for each in external}
    opened = open_candidates(candidates, skip_unfit=skip_unfit)
    scores |= _score_models(opened, tasks, settings)
    graded = {label: [score for score in row if isinstance(score, SpearmanScore)] for label, row in scores.items()}
    for score in (score for row in graded.values() for score in row if score.zero_vectors):
        zeros = f"{score.zero_vectors:,} sentences of {score.column} have a zero vector, so their cosines are 0"
        note(f"{score.label.model} {score.label.recipe}: {zeros}")
    if baseline is not None and not any(graded.values()):
        note("`compare`: only scores on graded pairs are compared")
    comparisons = [] if baseline is None else _compare(graded, baseline.label)
    for candidate, _ in opened if save else []:
        if candidate.saved_as is not None:
            rows = [score.to_dict() for score in graded[candidate.label]]
            loading.open_registry().add_scores(candidate.saved_as, rows)
    return Evaluation(scores, comparisons)


def load_named_tasks(
    tasks: str | Path | Sequence[str | Path] = (), *, protocol: str = "senteval", skip_missing: bool = False
) -> Loaded[AnyTask]:
    """Load tasks by their names, see ``evaluate``; what is missing is reported."""
    folder = senteval_folder()
    names = any_task_names(tasks) or any_task_names(BARE.tasks if folder is None else list(map(str, TEST_TASKS)))
    loaded = load_any(folder, names, protocol)
    reasons = [f"{label} is missing: {why}" for label, why in loaded.missing.items()]
    if reasons and not (skip_missing and loaded.tasks):
        raise NotFoundError(reasons[0] if skip_missing else "; ".join(reasons))
    for reason in reasons:
        note(reason)
    return loaded


def candidates_of(models: Sequence[Model]) -> list[Candidate]:
    """Return models as candidates, each once."""
    return list({candidate.label: candidate for candidate in map(Candidate.of, models)}.values())


def open_candidates(candidates: Sequence[Candidate], *, skip_unfit: bool) -> list[tuple[Candidate, Encoder]]:
    """Return the candidates with their encoders; those of one backbone share it, unless they tuned it."""
    opened: list[tuple[Candidate, Encoder]] = []
    refused: list[tuple[Candidate, UsageError]] = []
    for candidate in candidates:
        choice = candidate.choice
        backbone = loading.shared_backbone((encoder for _, encoder in opened), candidate.model.recipe.backbone)
        try:
            encoder = loading.open_model(
                candidate.model,
                device=choice.device,
                dtype=choice.dtype or "stored",
                backend=choice.backend,
                backbone=backbone,
            )
        except UsageError as error:
            if not skip_unfit:
                raise
            refused.append((candidate, error))
        else:
            opened.append((candidate, encoder))
    if refused and not opened:
        raise refused[0][1]
    for candidate, why in refused:
        if not isinstance(why, WrongKindError):
            note(f"{candidate.label.recipe} is left out: {why}")
    return opened


def _score_models(
    opened: Sequence[tuple[Candidate, Encoder]], tasks: Sequence[AnyTask], settings: EvalSettings
) -> dict[Label, list[Score]]:
    """Return each encoder's scores; transfer tasks are read by the candidate's recipe for them."""
    if not opened:
        return {}
    transfer = [task for task in tasks if isinstance(task, TransferTask)]
    others = [task for task in tasks if not isinstance(task, TransferTask)]
    labels, encoders = [candidate.label for candidate, _ in opened], [encoder for _, encoder in opened]
    graded = iter(score_vectors(embed_tasks(encoders, others, labels), others, settings) if others else [])
    for number, (candidate, encoder) in enumerate(opened):
        if transfer and candidate.transfer is not None:
            name = recipe_name(candidate.transfer)
            note(f"{candidate.label.model}: transfer tasks use its recipe for them, {name}")
            labels[number] = Label(candidate.label.model, name)
            encoders[number] = Encoder(candidate.transfer, encoder.backbone, encoder.tensors())
    accuracies = iter(score_vectors(embed_tasks(encoders, transfer, labels), transfer, settings) if transfer else [])
    return {
        candidate.label: [next(accuracies if isinstance(task, TransferTask) else graded) for task in tasks]
        for candidate, _ in opened
    }


def _check_savable(candidates: Sequence[Candidate]) -> None:
    """Refuse, before anything is scored, models whose scores could not be stored."""
    registry = loading.open_registry()
    named = [candidate for candidate in candidates if candidate.saved_as is not None]
    if not named:
        raise UsageError("`save` stores scores with a model of the registry; name one")
    for candidate in named:
        assert candidate.saved_as is not None
        if candidate.saved_as not in registry.names():
            raise UsageError(f"`save`: {candidate.label.model} with changed fields is not a saved model; leave out one")
        registry.add_scores(candidate.saved_as, [])


def _compare(rows: dict[Label, list[SpearmanScore]], baseline: Label) -> list[Comparison]:
    others = [scores for label, scores in rows.items() if label != baseline]
    if not others:
        raise UsageError(f"`compare`: {baseline.recipe} is the only encoder; name another one, too")
    return [compare(*pair) for scores in others for pair in zip(scores, rows[baseline], strict=True)]


def _note_examples(tasks: Sequence[TransferTask]) -> None:
    """Report data sets that differ from the printed ones."""
    for task in tasks:
        for split, (count, printed) in task.unexpected_counts().items():
            note(f"{task.name}: {count:,} examples in {split}, not {printed:,}: not comparable with printed figures")
        empty = sum(not sentence for sentence in task.sentences())
        if empty:
            note(f"{task.name}: {empty} empty sentences are classified, too, as in SentEval")
