"""Scoring models on tasks."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from promptcli.api.encoders import entry_of, load
from promptcli.data.task_table import TEST_TASKS
from promptcli.data.tasks import AnyTask, TransferTask, any_task_names, load_any
from promptcli.encoder.encoder import Encoder
from promptcli.errors import NotFoundError
from promptcli.evaluation.classifier import FAST, FULL
from promptcli.evaluation.evaluator import (
    EvalSettings,
    check_tasks,
    distinct_sentences,
    embed_tasks,
    read_embedded,
    score_vectors,
)
from promptcli.evaluation.scores import Label, Score, recipe_name
from promptcli.notes import note, working
from promptcli.recipe import Recipe
from promptcli.settings import BARE

#: An encoder, or what ``load`` takes.
Model = Encoder | Recipe | str | Path


def evaluate(
    models: Model | Sequence[Model] = (),
    tasks: str | Path | Sequence[str | Path] = (),
    *,
    data_dir: str | Path | None = None,
    protocol: str = "senteval",
    labels: Sequence[Label] | None = None,
    vectors: Sequence[str | Path] = (),
    fast: bool = False,
    seed: int | None = None,
    output: str | Path = "mteb-results",
    skip_missing: bool = False,
) -> list[Score]:
    """Score models on tasks of any kind. Global random numbers stay as they are.

    Args:
        models: One or several: an encoder, or what ``load`` takes. A model that is named and holds another recipe for
            transfer tasks is read by that one there.
        tasks: See ``load_named_tasks``.
        data_dir: SentEval's ``downstream`` folder; without it STS tasks are fetched from the hub.
        protocol: ``senteval``, or ``mteb``: SICK-R with all its pairs, raw text.
        labels: What the models are called; by default their names or backbones, and their recipes.
        vectors: Files of vectors that other programs made of ``task_sentences(tasks)``.
        fast: SentEval's 5-fold setting of transfer tasks: for development, not for print.
        seed: Of the classifiers (by default SentEval's 1111), and of the masked tokens of a perplexity (0).
        output: Folder of mteb's result files.
        skip_missing: Say which tasks are not there, and score the others.

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
    found = load_named_tasks(tasks, data_dir=data_dir, protocol=protocol, skip_missing=skip_missing)
    settings = EvalSettings(FAST if fast else FULL, seed, output=Path(output))
    check_tasks([task for task in found if isinstance(task, TransferTask)], settings.training)
    named = ", ".join(str(task) for task in ([tasks] if isinstance(tasks, str | Path) else tasks))
    external = [read_embedded(Path(path), found, f"promptcli.task_sentences of {named}") for path in vectors]
    given = [models] if isinstance(models, Encoder | Recipe | str | Path) else list(models)
    opened = [model if isinstance(model, Encoder) else load(model) for model in given]
    called = labels or [_label(*pair) for pair in zip(given, opened, strict=True)]
    recipes = [None if isinstance(model, Encoder) else entry_of(model).transfer for model in given]
    scores = score_models(opened, called, recipes, found, settings)
    return [*scores, *score_vectors(external, found, settings)]


def score_models(
    encoders: Sequence[Encoder],
    labels: Sequence[Label],
    recipes: Sequence[Recipe | None],
    tasks: Sequence[AnyTask],
    settings: EvalSettings,
) -> list[Score]:
    """Score encoders on tasks; one pass over the sentences serves all recipes of one model input.

    Args:
        encoders: With what.
        labels: What each is called.
        recipes: By which each one's transfer tasks are read, where that is another one.
        tasks: On what.
        settings: What the tasks leave open.

    Returns:
        One encoder after the other, each with its tasks in the order given.
    """
    transfer = [task for task in tasks if isinstance(task, TransferTask)]
    others = [task for task in tasks if not isinstance(task, TransferTask)]
    for label, recipe in zip(labels, recipes, strict=True):
        if transfer and recipe is not None:
            note(f"{label.model}: transfer tasks read vectors before head and denoising, as its method says")
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
    tasks: str | Path | Sequence[str | Path] = (),
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
    folder = None if data_dir is None else Path(data_dir)
    names = any_task_names(tasks) or any_task_names(BARE.tasks if folder is None else list(map(str, TEST_TASKS)))
    loaded = load_any(folder, names, protocol)
    reasons = [f"task {label} is not there: {why}" for label, why in loaded.missing.items()]
    if reasons and not (skip_missing and loaded.tasks):
        raise NotFoundError("; ".join(reasons))
    for reason in reasons:
        note(reason)
    return loaded.tasks


def task_sentences(
    tasks: str | Path | Sequence[str | Path] = (), *, data_dir: str | Path | None = None, protocol: str = "senteval"
) -> list[str]:
    """Return every sentence of tasks once, in order, for another program to embed: see ``vectors`` of ``evaluate``."""
    return distinct_sentences(load_named_tasks(tasks, data_dir=data_dir, protocol=protocol))


def _label(model: Model, encoder: Encoder) -> Label:
    recipe = recipe_name(encoder.recipe)
    saved = isinstance(model, str) and entry_of(model).name not in ("", recipe, "recipe")
    return Label(str(model) if saved else encoder.recipe.backbone, recipe)


def _scores(
    tasks: Sequence[AnyTask], encoders: Sequence[Encoder], labels: Sequence[Label], settings: EvalSettings
) -> list[Score]:
    if not tasks or not encoders:
        return []
    with working("encode", len(distinct_sentences(tasks))) as advance:
        embedded = embed_tasks(encoders, tasks, labels=labels, progress=advance)
    with working("score", len(tasks) * len(encoders)) as advance:
        return score_vectors(embedded, tasks, dataclasses.replace(settings, progress=advance))
