"""Scoring models on tasks."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcli.data.task_table import TEST_TASKS, TaskName
from promptcli.data.tasks import AnyTask, Loaded, TransferTask, any_task_names, load_any
from promptcli.encoder.encoder import Encoder
from promptcli.errors import NotFoundError, UsageError, WrongKindError
from promptcli.evaluation.classifier import FAST, FULL
from promptcli.evaluation.evaluator import (
    EvalSettings,
    check_tasks,
    compare,
    distinct_sentences,
    embed_tasks,
    read_embedded,
    score_vectors,
)
from promptcli.evaluation.scores import Comparison, Label, Score, SpearmanScore, recipe_name
from promptcli.models import loading as encoders
from promptcli.models.entries import Entry
from promptcli.models.loading import Model, entry_of
from promptcli.models.resolving import is_recipe
from promptcli.notes import note, working
from promptcli.recipe import Choice, Recipe
from promptcli.settings import BARE

#: Tasks by their names, see ``evaluate``.
Tasks = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found."""

    scores: dict[Label, list[Score]]  #: of each model, then of the vectors, by task
    comparisons: list[Comparison]  #: of each with the one it is compared with, task by task
    wanted: list[TaskName]  #: the tasks that were named
    tasks: list[AnyTask]  #: those that are there, in the order of the scores
    missing: dict[str, str]  #: task that is not there -> why
    settings: EvalSettings  #: what the tasks leave open


@dataclass(frozen=True)
class Candidate:
    """A model that is scored."""

    label: Label
    model: Encoder | Entry
    transfer: Recipe | None  #: by which its transfer tasks are read, where that is another one
    saved_as: str | None  #: the registry's entry that it was given as

    @classmethod
    def of(cls, model: Model) -> "Candidate":
        """Return a model as it is scored: a named one under its name, a recipe under its backbone's."""
        entry = entry_of(model)
        word = model.model if isinstance(model, Choice) else str(model) if isinstance(model, str | Path) else None
        named = word is not None and not is_recipe(encoders.open_registry(), word)
        label = Label(str(word) if named else entry.recipe.backbone, recipe_name(entry.recipe))
        return cls(label, model if isinstance(model, Encoder) else entry, entry.transfer, entry.name if named else None)


def evaluate(
    models: Model | Sequence[Model] = (),
    tasks: Tasks = (),
    *,
    data_dir: str | Path | None = None,
    protocol: str = "senteval",
    vectors: Sequence[str | Path] = (),
    fast: bool = False,
    seed: int | None = None,
    output: str | Path = "mteb-results",
    skip_missing: bool = False,
    device: str = "auto",
    dtype: str = "stored",
) -> list[Score]:
    """Score models on tasks of any kind. Global random numbers stay as they are.

    Args:
        models: One or several: an encoder, or what ``load`` takes. A model that is named and holds another recipe for
            transfer tasks is read by that one there.
        tasks: See ``load_named_tasks``.
        data_dir: SentEval's ``downstream`` folder; without it STS tasks are fetched from the hub.
        protocol: ``senteval``, or ``mteb``: SICK-R with all its pairs, raw text.
        vectors: Files of vectors that other programs made of ``task_sentences(tasks)``.
        fast: SentEval's 5-fold setting of transfer tasks: for development, not for print.
        seed: Of the classifiers (by default SentEval's 1111), and of the masked tokens of a perplexity (0).
        output: Folder of mteb's result files.
        skip_missing: Say which tasks are not there, and score the others.
        device: See ``load``.
        dtype: See ``load``.

    Returns:
        One model after the other, then the vectors, each with its tasks in the order of the papers' tables:
        ``SpearmanScore``, ``AccuracyScore``, ``RetrievalScore``, ``PerplexityScore``, ``MtebScore``, each a ``Score``.

    Raises:
        UsageError: What is no task, or a task that a model cannot be scored on.
        NotFoundError: A task's data are not there.

    Example:
        >>> import promptcli as pc
        >>> score = pc.evaluate("mini", tasks=["demo"])[0]
        >>> score.ci95[0] < score.value < score.ci95[1]
        True
    """
    given = [models] if isinstance(models, Encoder | Entry | Recipe | Choice | str | Path) else list(models)
    options: dict[str, Any] = {"vectors": vectors, "fast": fast, "seed": seed, "output": output}
    options |= {"data_dir": data_dir, "protocol": protocol, "skip_missing": skip_missing}
    found = evaluate_all(given, tasks, **options, device=device, dtype=dtype)
    return [score for scores in found.scores.values() for score in scores]


def evaluate_all(
    models: Sequence[Model],
    tasks: Tasks = (),
    *,
    against: Model | None = None,
    save: bool = False,
    skip_unfit: bool = False,
    vectors: Sequence[str | Path] = (),
    listing: str | None = None,
    fast: bool = False,
    seed: int | None = None,
    output: str | Path = "mteb-results",
    data_dir: str | Path | None = None,
    protocol: str = "senteval",
    skip_missing: bool = False,
    device: str = "auto",
    dtype: str = "stored",
) -> Evaluation:
    """Score models, each once, as ``evaluate`` does, and compare them with ``against``, task by task.

    With ``save`` the scores on graded pairs are stored with the registry's models; with ``skip_unfit`` models that
    cannot be made on their backbone are named and left out. ``listing`` is the command that lists the sentences of the
    tasks, for messages on the vectors.

    Raises:
        UsageError: See ``evaluate``; scores to save of what is no model of the registry; nothing to compare.
        NotFoundError: See ``evaluate``.
    """
    candidates = candidates_of(models)
    baseline = None if against is None else Candidate.of(against)
    if baseline is not None and baseline.label not in [one.label for one in candidates]:
        candidates.append(baseline)
    if save:
        _check_savable(candidates)
    wanted, loaded = _load(tasks, data_dir, protocol, skip_missing=skip_missing)
    settings = EvalSettings(FAST if fast else FULL, seed, output=Path(output))
    transfer = [task for task in loaded.tasks if isinstance(task, TransferTask)]
    _say_examples(transfer)
    check_tasks(transfer, settings.training)
    listing = listing or f"promptcli.task_sentences of {', '.join(task.name for task in loaded.tasks)}"
    external = [read_embedded(Path(path), loaded.tasks, listing) for path in dict.fromkeys(vectors)]
    opened, candidates = open_candidates(candidates, device, dtype, skip_unfit=skip_unfit)
    labels, recipes = [one.label for one in candidates], [one.transfer for one in candidates]
    found = iter(score_models(opened, labels, recipes, loaded.tasks, settings))
    scores = {one.label: score_vectors([one], loaded.tasks, settings) for one in external}
    scores |= {label: [next(found) for _ in loaded.tasks] for label in labels}
    graded = {label: [one for one in row if isinstance(one, SpearmanScore)] for label, row in scores.items()}
    _say_zeros(graded)
    comparisons = [] if baseline is None else _compare(graded, baseline.label)
    for one in candidates if save else []:
        if one.saved_as is not None:
            rows = [score.to_dict() for score in graded[one.label]]
            encoders.open_registry().add_scores(one.saved_as, rows)
    return Evaluation(scores, comparisons, wanted, loaded.tasks, loaded.missing, settings)


def candidates_of(models: Sequence[Model]) -> list[Candidate]:
    """Return models as they are scored, each once."""
    return list({one.label: one for one in map(Candidate.of, models)}.values())


def open_candidates(
    candidates: list[Candidate], device: str, dtype: str, *, skip_unfit: bool
) -> tuple[list[Encoder], list[Candidate]]:
    """Return the encoders and whose they are."""
    left_out: dict[int, UsageError] = {}
    models = [one.model for one in candidates]
    refused = left_out.__setitem__ if skip_unfit else None
    opened = encoders.open_models(models, device=device, dtype=dtype, refused=refused)
    if candidates and not opened:
        raise next(iter(left_out.values()))
    for place, error in left_out.items():
        if not isinstance(error, WrongKindError):
            note(f"{candidates[place].label.recipe} is left out: {error}")
    return opened, [one for place, one in enumerate(candidates) if place not in left_out]


def _check_savable(candidates: Sequence[Candidate]) -> None:
    """Refuse before anything is scored what could not be stored afterwards."""
    registry = encoders.open_registry()
    if all(one.saved_as is None for one in candidates):
        raise UsageError("`save` stores scores with a model of the registry; name one")
    for one in candidates:
        if one.saved_as is not None and one.saved_as not in registry.names():
            raise UsageError(
                f"`save`: {one.label.model} with changed fields is no model of the registry; leave out one"
            )
        if one.saved_as is not None:
            registry.add_scores(one.saved_as, [])


def _compare(rows: dict[Label, list[SpearmanScore]], baseline: Label) -> list[Comparison]:
    others = [scores for label, scores in rows.items() if label != baseline]
    if not others:
        raise UsageError(f"`compare`: {baseline.recipe} is the only encoder; name another one, too")
    return [compare(*pair) for scores in others for pair in zip(scores, rows[baseline], strict=True)]


def _say_examples(tasks: Sequence[TransferTask]) -> None:
    """Say what is not as in the printed data sets."""
    for item in tasks:
        for split, (found, printed) in item.unexpected_counts().items():
            note(f"{item.name}: {found:,} examples in {split}, not {printed:,}: not comparable with printed figures")
        blank = sum(not sentence for sentence in item.sentences())
        if blank:
            note(f"{item.name}: {blank} empty sentences are classified, too, as in SentEval")


def _say_zeros(rows: dict[Label, list[SpearmanScore]]) -> None:
    for score in (score for scores in rows.values() for score in scores if score.zero_vectors):
        zeros = f"{score.zero_vectors:,} sentences of {score.column} have a zero vector, so their cosines are 0"
        note(f"{score.label.model} {score.label.recipe}: {zeros}")


def score_models(
    encoders: Sequence[Encoder],
    labels: Sequence[Label],
    recipes: Sequence[Recipe | None],
    tasks: Sequence[AnyTask],
    settings: EvalSettings,
) -> list[Score]:
    """Return the scores of one encoder after the other, each on its tasks in the order given.

    One pass over the sentences serves all recipes of one model input. ``recipes``: by which each encoder's transfer
    tasks are read, where that is another one than its own.
    """
    transfer = [task for task in tasks if isinstance(task, TransferTask)]
    others = [task for task in tasks if not isinstance(task, TransferTask)]
    for label, recipe in zip(labels, recipes, strict=True):
        if transfer and recipe is not None:
            note(f"{label.model}: transfer tasks use its recipe for them, {recipe_name(recipe)}")
    readers = [
        made if recipe is None else Encoder(recipe, made.backbone, made.tensors())
        for made, recipe in zip(encoders, recipes, strict=True)
    ]
    read_as = [
        label if reader is own else Label(label.model, recipe_name(reader.recipe))
        for label, own, reader in zip(labels, encoders, readers, strict=True)
    ]
    rows = [iter(_scores(others, encoders, labels, settings)), iter(_scores(transfer, readers, read_as, settings))]
    return [next(rows[isinstance(task, TransferTask)]) for _ in encoders for task in tasks]


def load_named_tasks(
    tasks: Tasks = (),
    *,
    data_dir: str | Path | None = None,
    protocol: str = "senteval",
    skip_missing: bool = False,
) -> list[AnyTask]:
    """Return tasks by their names.

    Args:
        tasks: ``STS12`` to ``STS16``, ``STS-B``, ``SICK-R`` (``sts``: all), ``STS-B:dev``, ``demo``, ``demo:dev`` and
            files of graded pairs (Spearman x 100); ``MR``, ``CR``, ``SUBJ``, ``MPQA``, ``SST-2``, ``TREC``, ``MRPC``
            (``transfer``: all; accuracy x 100 of SentEval's classifier); ``retrieval:FILE`` with columns query,
            document, grade (nDCG@10 x 100, recall); ``perplexity:FILE`` of held-out lines; ``mteb:NAME``, run by mteb.
            By default all seven STS tasks where there is a ``data_dir``, else ``demo``.
        data_dir: SentEval's ``downstream`` folder; without it STS tasks are fetched from the hub.
        protocol: ``senteval`` or ``mteb``.
        skip_missing: Say which tasks are not there, and return the others.

    Raises:
        UsageError: What is no task.
        NotFoundError: A task's data are not there; with ``skip_missing``, none's are.
    """
    return _load(tasks, data_dir, protocol, skip_missing=skip_missing)[1].tasks


def _load(
    tasks: Tasks, data_dir: str | Path | None, protocol: str, *, skip_missing: bool
) -> tuple[list[TaskName], Loaded[AnyTask]]:
    """Return what is named, and of it what is there."""
    folder = None if data_dir is None else Path(data_dir)
    names = any_task_names(tasks) or any_task_names(BARE.tasks if folder is None else list(map(str, TEST_TASKS)))
    loaded = load_any(folder, names, protocol)
    reasons = [f"{label} is missing: {why}" for label, why in loaded.missing.items()]
    if reasons and not (skip_missing and loaded.tasks):
        raise NotFoundError(reasons[0] if skip_missing else "; ".join(reasons))
    for reason in reasons:
        note(reason)
    return names, loaded


def task_sentences(tasks: Tasks = (), *, data_dir: str | Path | None = None, protocol: str = "senteval") -> list[str]:
    """Return every sentence of tasks once, in order, for another program to embed: see ``vectors`` of ``evaluate``."""
    return distinct_sentences(load_named_tasks(tasks, data_dir=data_dir, protocol=protocol))


def _scores(
    tasks: Sequence[AnyTask], encoders: Sequence[Encoder], labels: Sequence[Label], settings: EvalSettings
) -> list[Score]:
    if not tasks or not encoders:
        return []
    with working("encode", len(distinct_sentences(tasks))) as advance:
        embedded = embed_tasks(encoders, tasks, labels=labels, progress=advance)
    with working("score", len(tasks) * len(encoders)) as advance:
        return score_vectors(embedded, tasks, dataclasses.replace(settings, progress=advance))
