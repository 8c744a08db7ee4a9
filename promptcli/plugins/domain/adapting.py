"""``adapt``: split the texts, try several trainings, and save the best model if it is better than
the start.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promptcli as pc
from promptcli import errors
from promptcli.data.tasks import RetrievalTask, STSTask
from promptcli.encoder.encoder import TorchEncoder, tuned_weights
from promptcli.errors import UsageError, with_count
from promptcli.evaluation import evaluator, statistics
from promptcli.evaluation.scores import Label
from promptcli.models import loading
from promptcli.models.entries import Entry
from promptcli.models.language import ENGLISH, main_language
from promptcli.notes import note
from promptcli.plugins.domain.adapt_collection import MIN_QUERIES, CollectionSplit, tasks_elsewhere
from promptcli.plugins.domain.adapt_runs import ATTEMPTS, Schedule, Trainings
from promptcli.plugins.domain.synthetic_queries import synthetic_queries
from promptcli.recipe import ModelChoice
from promptcli.settings import DEFAULT_MODEL, list_of_names
from promptcli.storage import runs

_MAX_PASSAGES = 20_000  # more than an hour of training can use
AS_IT_IS = "as it is"  #: the row of the start
#: The verdicts on a row.
BETTER = "better"
BETTER_HERE = "better here, worse elsewhere"
WORSE = "worse"
UNCHANGED = "no real difference"
NOTHING_LEARNED = "nothing learned"


@dataclass(frozen=True)
class ComparedAttempt:
    """A finished attempt, with its differences to the start."""

    name: str
    trained: pc.Trained
    scores: Sequence[Any]  #: on the test queries, then on other texts
    #: differences to the start; the first p-value is corrected for the number of attempts
    changes: list[Any]

    def verdict(self, margin: float) -> str:
        """Return the verdict; ``margin``: number of points that may be lost on other texts."""
        own, *elsewhere = self.changes
        attempt = ATTEMPTS[self.name]
        starts_elsewhere = attempt.starts_from_base or attempt.is_pretrained
        if self.trained.facts["best_step"] == 0 and not starts_elsewhere:
            return NOTHING_LEARNED
        if not own.beyond_chance:
            return UNCHANGED
        if own.difference < 0:
            return WORSE
        if any(change.difference < -margin for change in elsewhere):
            return BETTER_HERE
        return BETTER

    def to_dict(self, margin: float) -> dict[str, Any]:
        attempt = ATTEMPTS[self.name]
        facts = self.trained.facts
        return {
            "row": self.name,
            "method": attempt.method,
            "learns_from": attempt.about,
            **{field: facts[field] for field in ("steps", "best_step", "seconds")},
            "development": round(self.trained.development_score, 4),
            "scores": [score.figures() for score in self.scores],
            "changes": [change.to_dict() for change in self.changes],
            "verdict": self.verdict(margin),
        }


def compare(
    trained: Mapping[str, pc.Trained],
    start: Sequence[Any],
    tasks: Sequence[RetrievalTask | STSTask],
) -> list[ComparedAttempt]:
    """Return each finished attempt, compared with the scores of the start.

    The p-values on the first task are corrected for the number of attempts (Holm).
    """
    rows = []
    for name, run in trained.items():
        scores = score_model(run.encoder, name, tasks)
        pairs = zip(scores, start, strict=True)
        changes = [evaluator.compare([after], [before]) for after, before in pairs]
        rows.append(ComparedAttempt(name, run, scores, changes))
    p_values = statistics.holm([row.changes[0].p_value for row in rows])
    for row, p_value in zip(rows, p_values, strict=True):
        row.changes[0] = dataclasses.replace(row.changes[0], p_holm=p_value)
    return rows


def score_model(
    encoder: TorchEncoder, name: str, tasks: Sequence[RetrievalTask | STSTask]
) -> list[Any]:
    """Return the score of a model on each task."""
    return evaluator.score_encoders([encoder], tasks, [Label(name, name)])


@dataclass(frozen=True)
class Adapted:
    """The result of an adaptation."""

    document: dict[str, Any]  #: all results, JSON-ready

    @property
    def saved(self) -> str | None:
        """The name of the saved model; None if no model is better."""
        saved: str | None = self.document["saved"]
        return saved

    @property
    def reason(self) -> str:
        """The reason why a model was saved, or none was."""
        return str(self.document["reason"])


def adapt(
    files: str | Path | Sequence[str | Path],
    *,
    name: str,
    start: str | ModelChoice = DEFAULT_MODEL,
    title: str | None = None,
    rows: Sequence[str] = (),
    hours: float = 1.0,
    margin: float = 2.0,
    seed: int = 0,
    resume: bool = False,
    force: bool = False,
    dry_run: bool = False,
) -> Adapted:
    """Train a model on your own texts, without labels, and keep it if it finds more in them.

    Queries are made from the texts: a heading, a title or a first sentence, each with the passage
    that it was taken from. Some documents are held out. Several trainings are tried on the others:
    on the queries with their passages, and with the papers' methods on the sentences alone. The
    best model is saved if it finds more of the held-out passages than the start, beyond chance, and
    is about as good as the start on other texts.

    Args:
        files: Texts, tables (``FILE:COLUMN`` names that of the text), globs, and folders.
        name: Name of the model to save.
        start: Model to start from: ``mini``, or one that ``train`` made.
        title: Column of a table that holds the title of a text.
        rows: The trainings to try, see ``ATTEMPTS``; if empty, all are tried.
        hours: Time limit, which sets the number of steps.
        margin: Most points that a saved model may lose on other texts: Spearman x 100 on the demo's
            pairs, and nDCG@10 x 100 on questions about promptcli's own guides.
        seed: Random seed of the split and of the trainings.
        resume: Continue the stopped run of that name.
        force: Replace a model of that name, and begin again.
        dry_run: Return only the plan and its duration, from a few timed steps.

    Returns:
        The table of all trainings, and whether a model was saved.

    Raises:
        UsageError: Too few texts, a taken name, or a model that cannot be trained further.
        NotFoundError: No such file or model.

    Example:
        >>> import promptcli as pc
        >>> adapted = pc.adapt(["docs"], name="mine")  # doctest: +SKIP
        >>> adapted.saved, adapted.reason  # doctest: +SKIP
    """
    if not 0 < hours <= 1000:
        raise UsageError(f"must be above 0 and at most 1000, got {hours}", parameter="hours")
    attempts = {row: errors.look_up("row", row, ATTEMPTS) for row in rows} or ATTEMPTS
    names = list_of_names(files)
    registry = loading.open_registry()
    folder = runs.RunFolder(registry.run_folder(f"{name}.adapt"))
    if resume and not force and not folder.has_begun and name in registry.names():
        ended = registry.load_manifest(name).provenance.get("adapted")
        if ended is not None:
            note(f"done: model {name!r} is already adapted; force=True starts over")
            return Adapted(ended)
    registry.check_free(name, force=force or (resume and folder.has_begun))
    choice = start if isinstance(start, ModelChoice) else ModelChoice(start)
    entry = _entry_of(choice)
    split = _split_texts(names, title, entry.name, seed)
    trainings = Trainings(name, entry, choice, split, seed, attempts)
    if dry_run:
        return Adapted(_plan(trainings.schedule(hours), trainings))
    claim = folder.claim(f"the adaptation of {name!r}", "give another name")
    stopped = "the same command with resume=True continues from here"
    with claim, errors.if_stopped(stopped, instead=True):
        schedule = _open_run(folder, trainings, hours, resume=resume, force=force)
        best, figures = _train_and_compare(trainings, schedule, margin)
        document = {
            "saved": name if best else None,
            "chosen": best.name if best else None,
            "start": entry.name,
            "files": names,
            "margin": margin,
            "queries": split.sizes,
            **figures,
        }
        if best is not None:
            trained = best.trained.entry
            provenance = {**trained.provenance, "adapted": document}
            saved = dataclasses.replace(trained, name=name, provenance=provenance)
            registry.save(saved, force=force or resume)
        trainings.forget()
        folder.discard()
    return Adapted(document)


def _split_texts(files: list[str], title: str | None, start: str, seed: int) -> CollectionSplit:
    """Return the queries made from files; raise UsageError if the shipped start has not learned the
    language of the texts.
    """
    collection = synthetic_queries(
        files, title=title, min_queries=MIN_QUERIES, max_passages=_MAX_PASSAGES, seed=seed
    )
    language = main_language(collection.passages)
    if language != ENGLISH and start in loading.LANGUAGES:
        raise UsageError(
            f"{loading.with_language(start)} has not learned {language}, which seems to be the"
            " language of the texts; give a model that has, made by `promptcli train`",
            parameter="start",
        )
    split = CollectionSplit.of(collection, seed)
    training, development, test = split.sizes.values()
    note(
        f"{with_count(collection.files, 'file')},"
        f" {with_count(len(collection.passages), 'passage')}; queries made from"
        f" {collection.kinds_in_words}: {training:,} to learn from,"
        f" {development:,} to choose by, {test:,} to measure by, all about different documents"
    )
    return split


def _open_run(
    folder: runs.RunFolder, trainings: Trainings, hours: float, *, resume: bool, force: bool
) -> Schedule:
    """Begin the run in a folder, or continue it; return its schedule."""
    is_new = force or not folder.has_begun
    settings = {}
    if is_new:
        trainings.check_free(force=force)
        settings = dataclasses.asdict(trainings.schedule(hours))
    identity = {
        "texts": trainings.split.test_task.sha256(),
        "start": trainings.start.name,
        "rows": list(trainings.attempts),
        "seed": trainings.seed,
    }
    folder.open(
        identity,
        resume=resume and not is_new,
        name=Path(trainings.name),
        elsewhere="force=True to start over, or another name",
        force=force,
        settings=settings,
    )
    return Schedule(**folder.read_settings())


def _entry_of(start: ModelChoice) -> Entry:
    """Return the model to start from; raise UsageError if it cannot be trained further."""
    entry = loading.resolve_entry(start)
    if start.model:
        entry = dataclasses.replace(entry, name=start.model)
    is_static = entry.recipe.pooling.startswith("static")
    if is_static or not tuned_weights(entry.tensors):
        why = "is static" if is_static else "has no trained backbone"
        raise UsageError(
            f"model {entry.name!r} {why}; give mini, or a model that `promptcli train` made",
            parameter="start",
        )
    return entry


def _train_and_compare(
    trainings: Trainings, schedule: Schedule, margin: float
) -> tuple[ComparedAttempt | None, dict[str, Any]]:
    """Return the best attempt (None if no attempt is better than the start), and the figures of
    all attempts.
    """
    trained = dict(trainings.run_all(schedule))
    tasks: list[RetrievalTask | STSTask] = [trainings.split.test_task, *tasks_elsewhere()]
    start = trainings.start
    encoder = loading.open_torch_encoder(start, device=trainings.choice.device, dtype="float32")
    before = score_model(encoder, start.name, tasks)
    rows = compare(trained, before, tasks)
    better = [row for row in rows if row.verdict(margin) == BETTER]
    # the development queries choose: a choice by the test scores would inflate the best of them
    best = max(better, key=lambda row: row.trained.development_score, default=None)
    scores = [score.figures() for score in before]
    unchanged = {"row": AS_IT_IS, "scores": scores, "verdict": ""}
    figures = {
        "reason": _reason(rows, best, before[0].value, margin),
        "tasks": [task.label for task in tasks],
        "rows": [unchanged, *(row.to_dict(margin) for row in rows)],
        "left_out": schedule.left_out,
    }
    return best, figures


def _reason(
    rows: Sequence[ComparedAttempt], best: ComparedAttempt | None, before: float, margin: float
) -> str:
    """Return one sentence that says why a model is saved, or why no model is saved."""
    if best is not None:
        low, high = best.changes[0].ci95
        return (
            f"{best.name} finds more: {best.scores[0].value:.1f} instead of {before:.1f} on"
            f" documents that it has not seen, a gain of {low:.1f} to {high:.1f} points, beyond"
            f" chance; on other texts it loses no more than {margin:g} points"
        )
    better_here = [row.name for row in rows if row.verdict(margin) == BETTER_HERE]
    if better_here:
        return (
            f"not better: {' and '.join(better_here)} found more in your texts but lost more than"
            f" the margin of {margin:g} points on others"
        )
    return "not better: no training finds more in documents that it has not seen"


def _plan(schedule: Schedule, trainings: Trainings) -> dict[str, Any]:
    """Return the plan of a dry run."""
    rows = [
        {
            "row": name,
            "method": trainings.attempts[name].method,
            "learns_from": trainings.attempts[name].about,
            "steps": steps,
            "minutes": round(schedule.seconds[name] / 60, 1),
        }
        for name, steps in schedule.steps.items()
    ]
    return {
        "saved": None,
        "reason": "a dry run",
        "hours": round(schedule.total / 3600, 2),
        "rows": rows,
        "left_out": schedule.left_out,
    }
