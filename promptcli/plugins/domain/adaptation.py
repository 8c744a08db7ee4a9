"""An adaptation from top to bottom: the texts are split, ways of learning are tried, and the best
is saved if it is better than the start.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promptcli as pc
from promptcli.extending import (
    Entry,
    Label,
    RetrievalTask,
    STSTask,
    TorchEncoder,
    errors,
    evaluator,
    loading,
    note,
    notes,
    runs,
    statistics,
)
from promptcli.plugins.domain.adapt_arguments import AdaptArguments
from promptcli.plugins.domain.adapt_collection import FEWEST, Collection, tasks_elsewhere
from promptcli.plugins.domain.adapt_runs import ATTEMPTS, Schedule, Trainings
from promptcli.plugins.domain.synthetic_queries import synthetic_queries

#: Most passages that are read: more than can be learned from in an hour.
_MOST_PASSAGES = 20_000
AS_IT_IS = "as it is"  #: the row of the start
#: What is said of a row.
BETTER = "better"
BETTER_HERE = "better here, worse elsewhere"
WORSE = "worse"
UNCHANGED = "no real difference"
NOTHING_LEARNED = "nothing learned"


@dataclass(frozen=True)
class Adapted:
    """What came of an adaptation."""

    document: dict[str, Any]  #: all figures, JSON-ready

    @property
    def saved(self) -> str | None:
        """The name of the model; None if nothing is better."""
        saved: str | None = self.document["saved"]
        return saved

    @property
    def reason(self) -> str:
        """Why a model was saved, or none."""
        return str(self.document["reason"])


def adapt_model(job: AdaptArguments) -> Adapted:
    """Adapt a model as a job asks, see ``adapt``."""
    registry = loading.open_registry()
    folder = runs.RunFolder(registry.run_folder(f"{job.name}.adapt"))
    if (ended := _ended(job, folder)) is not None:
        return ended
    registry.check_free(job.name, force=job.force or (job.resume and folder.begun))
    start = loading.entry_of(job.where)
    if job.where.model:
        start = dataclasses.replace(start, name=job.where.model)
    made = synthetic_queries(job.names, fewest=FEWEST, most_passages=_MOST_PASSAGES, seed=job.seed)
    collection = Collection.of(made, job.seed)
    trainings = Trainings(job.name, start, job.where, collection, job.seed)
    note(_what_is_learned_from(collection))
    if job.dry_run:
        return Adapted(_plan_document(_schedule(job, trainings)))
    claim = folder.claim(f"the adaptation of {job.name!r}", f"give another {notes.keyword('name')}")
    stopped = f"the same command with {notes.keyword('resume')} goes on from here"
    with claim, errors.if_stopped(stopped, instead=True):
        schedule = _open_folder(job, folder, trainings)
        trained = dict(_train(trainings, schedule))
        adapted, chosen = _compare(job, trainings, trained)
        adapted.document["left_out"] = schedule.left_out
        if chosen is not None:
            provenance = {**chosen.provenance, "adapted": adapted.document}
            entry = dataclasses.replace(chosen, name=job.name, provenance=provenance)
            registry.save(entry, force=job.force or job.resume)
        trainings.forget()
        folder.discard()
    return adapted


def _ended(job: AdaptArguments, folder: runs.RunFolder) -> Adapted | None:
    """Return what came of an adaptation that is resumed after its end."""
    registry = loading.open_registry()
    if not job.resume or folder.begun or job.name not in registry.names():
        return None
    document = registry.card(job.name).provenance.get("adapted")
    if document is None:
        return None
    note(f"done: model {job.name!r} is adapted already; {notes.keyword('force')} begins again")
    return Adapted(document)


def _open_folder(job: AdaptArguments, folder: runs.RunFolder, trainings: Trainings) -> Schedule:
    """Return the schedule of an adaptation that begins, or the one with which it was begun."""
    is_new = job.force or not folder.begun
    if is_new:
        trainings.check_free(force=job.force)
        schedule = _schedule(job, trainings)
    identity = {
        "texts": trainings.collection.test_task.sha256(),
        "start": trainings.start.name,
        "seed": job.seed,
    }
    folder.open(
        identity,
        resume=job.resume and not is_new,
        name=Path(job.name),
        elsewhere=f"{notes.keyword('force')} begins again, or give another {notes.keyword('name')}",
        force=job.force,
        given=dataclasses.asdict(schedule) if is_new else None,
    )
    return Schedule(**folder.given)


def _schedule(job: AdaptArguments, trainings: Trainings) -> Schedule:
    """Return the schedule, and say by how much it is longer than the time that was asked for."""
    schedule = trainings.schedule(job.hours)
    beyond = schedule.total - 3600 * job.hours
    if beyond > 0:
        note(
            f"{notes.keyword('hours', job.hours)} is exceeded by about {_minutes(beyond)}: the"
            " fewest steps of each row, and the scores, take about"
            f" {_minutes(schedule.total)}"
        )
    return schedule


def _train(trainings: Trainings, schedule: Schedule) -> Iterator[tuple[str, pc.Trained]]:
    """Yield each attempt that did not fail with its run."""
    remaining = [name for name in schedule.steps if not trainings.is_done(name)]
    left = sum(schedule.seconds[name] for name in remaining)
    note(f"all of it takes about {_minutes(left)}")
    for number, name in enumerate(schedule.steps, 1):
        if name in remaining:
            note(
                f"{number} of {len(schedule.steps)}: {name}, from {ATTEMPTS[name].about};"
                f" about {_minutes(schedule.seconds[name])}, {_minutes(left)} left in all"
            )
            trained = trainings.run(name, schedule)
            left -= schedule.seconds[name]
        else:
            note(f"{number} of {len(schedule.steps)}: {name} was done before")
            with notes.silent():
                trained = trainings.run(name, schedule)
        if trained is not None:
            yield name, trained


@dataclass(frozen=True)
class Row:
    """An attempt that was run, beside the start."""

    name: str
    trained: pc.Trained
    scores: Sequence[Any]  #: on the test queries, then elsewhere
    #: of them, against the start; the p-value of the first is corrected for the number of attempts
    changes: list[Any]

    def verdict(self, margin: float) -> str:
        """Return what is said of the row; ``margin``: what it may lose elsewhere, in points."""
        own, *elsewhere = self.changes
        if self.trained.facts["best_step"] == 0 and not ATTEMPTS[self.name].starts_elsewhere:
            return NOTHING_LEARNED
        if not own.beyond_chance:
            return UNCHANGED
        if own.difference < 0:
            return WORSE
        if any(each.difference < -margin for each in elsewhere):
            return BETTER_HERE
        return BETTER

    def to_dict(self, margin: float) -> dict[str, Any]:
        facts = self.trained.facts
        return {
            "row": self.name,
            "method": ATTEMPTS[self.name].method,
            "learns_from": ATTEMPTS[self.name].about,
            **{field: facts[field] for field in ("steps", "best_step", "seconds")},
            "development": round(self.trained.chosen_by, 4),
            "scores": [score.figures() for score in self.scores],
            "changes": [change.to_dict() for change in self.changes],
            "verdict": self.verdict(margin),
        }


def _compare(
    job: AdaptArguments, trainings: Trainings, trained: Mapping[str, pc.Trained]
) -> tuple[Adapted, Entry | None]:
    """Score the start and all runs; return the table, and the run to be saved, if one is better."""
    collection = trainings.collection
    tasks: list[RetrievalTask | STSTask] = [collection.test_task, *tasks_elsewhere()]
    start = loading.open_model(trainings.start, device=job.where.device, dtype="float32")
    before = _score(start, tasks, trainings.start.name)
    rows = _rows(trained, tasks, before)
    better = [row for row in rows if row.verdict(job.margin) == BETTER]
    # by the development queries: the test's figures would flatter the highest of several
    chosen = max(better, key=lambda row: row.trained.chosen_by, default=None)
    parts = {
        "training": collection.training,
        "development": collection.development,
        "test": collection.test,
    }
    document = {
        "saved": None if chosen is None else job.name,
        "chosen": None if chosen is None else chosen.name,
        "reason": _reason(rows, chosen, before[0].value, job.margin),
        "start": trainings.start.name,
        "files": job.names,
        "margin": job.margin,
        "queries": {part: len(queries) for part, queries in parts.items()},
        "tasks": [task.label for task in tasks],
        "rows": [
            {"row": AS_IT_IS, "scores": [score.figures() for score in before], "verdict": ""},
            *(row.to_dict(job.margin) for row in rows),
        ],
    }
    return Adapted(document), None if chosen is None else chosen.trained.entry


def _rows(
    trained: Mapping[str, pc.Trained],
    tasks: Sequence[RetrievalTask | STSTask],
    before: Sequence[Any],
) -> list[Row]:
    rows = []
    for name, run in trained.items():
        scores = _score(run.encoder, tasks, name)
        pairs = zip(scores, before, strict=True)
        changes = [evaluator.compare([score], [earlier]) for score, earlier in pairs]
        rows.append(Row(name, run, scores, changes))
    p_values = statistics.holm([row.changes[0].p_value for row in rows])
    for row, p_value in zip(rows, p_values, strict=True):
        row.changes[0] = dataclasses.replace(row.changes[0], p_holm=p_value)
    return rows


def _score(encoder: TorchEncoder, tasks: Sequence[RetrievalTask | STSTask], name: str) -> list[Any]:
    embedded = evaluator.embed_tasks([encoder], tasks, [Label(name, name)])
    return evaluator.score_vectors(embedded, tasks)


def _reason(rows: Sequence[Row], chosen: Row | None, before: float, margin: float) -> str:
    """Return one sentence on why a model is saved, or none."""
    if chosen is not None:
        low, high = chosen.changes[0].ci95
        return (
            f"{chosen.name} finds more: {chosen.scores[0].value:.1f} instead of {before:.1f} on"
            f" documents that it has not seen, a gain of {low:.1f} to {high:.1f} points, beyond"
            f" chance; on other texts it loses no more than {margin:g} points"
        )
    here = [row.name for row in rows if row.verdict(margin) == BETTER_HERE]
    if here:
        return (
            f"not better: {' and '.join(here)} found more in your texts but lost more than"
            f" {margin:g} points on others, see {notes.keyword('margin')}"
        )
    return "not better: nothing that was tried finds more in documents that it has not seen"


def _what_is_learned_from(collection: Collection) -> str:
    made = collection.made
    held_out = (
        f"{len(collection.development):,} to choose by, {len(collection.test):,} to measure by"
    )
    return (
        f"{errors.counted(made.files, 'file')}, {errors.counted(len(made.passages), 'passage')};"
        f" queries made from {made.kinds_in_words}: {len(collection.training):,} to learn from,"
        f" {held_out}, all on other documents"
    )


def _plan_document(schedule: Schedule) -> dict[str, Any]:
    rows = []
    for name, steps in schedule.steps.items():
        rows.append(
            {
                "row": name,
                "method": ATTEMPTS[name].method,
                "learns_from": ATTEMPTS[name].about,
                "steps": steps,
                "minutes": round(schedule.seconds[name] / 60, 1),
            }
        )
    return {
        "saved": None,
        "reason": "a dry run",
        "hours": round(schedule.total / 3600, 2),
        "rows": rows,
        "left_out": schedule.left_out,
    }


def _minutes(seconds: float) -> str:
    minutes = max(0.0, seconds) / 60
    if minutes < 1:
        return "a minute"
    return errors.counted(round(minutes), "minute")
