"""An adaptation from top to bottom: the texts are split, ways of learning are tried, and the best
is saved if it is better than the start.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promptcli as pc
from promptcli import errors, notes
from promptcli.data.tasks import RetrievalTask, STSTask
from promptcli.index.found_files import list_of_names
from promptcli.models import loading
from promptcli.models.entries import Entry
from promptcli.notes import note
from promptcli.plugins.domain.adapt_arguments import AdaptArguments
from promptcli.plugins.domain.adapt_collection import FEWEST, Collection, tasks_elsewhere
from promptcli.plugins.domain.adapt_rows import BETTER, BETTER_HERE, Baseline, Row
from promptcli.plugins.domain.adapt_runs import ATTEMPTS, Schedule, Trainings, in_minutes
from promptcli.plugins.domain.synthetic_queries import synthetic_queries
from promptcli.storage import runs

#: Most passages that are read: more than can be learned from in an hour.
_MOST_PASSAGES = 20_000


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
    registry.check_free(job.name, force=job.force or (job.resume and folder.has_begun))
    start = loading.entry_of(job.where)
    if job.where.model:
        start = dataclasses.replace(start, name=job.where.model)
    made = synthetic_queries(
        list_of_names(job.files), fewest=FEWEST, most_passages=_MOST_PASSAGES, seed=job.seed
    )
    collection = Collection.of(made, job.seed)
    trainings = Trainings(job.name, start, job.where, collection, job.seed)
    note(_what_is_learned_from(collection))
    if job.dry_run:
        return Adapted(_plan_document(_schedule(job, trainings)))
    claim = folder.claim(f"the adaptation of {job.name!r}", f"give another {notes.keyword('name')}")
    stopped = f"the same command with {notes.keyword('resume')} goes on from here"
    with claim, errors.if_stopped(stopped, instead=True):
        schedule = _open_folder(job, folder, trainings)
        trained = dict(trainings.run_all(schedule))
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
    if not job.resume or folder.has_begun or job.name not in registry.names():
        return None
    document = registry.card(job.name).provenance.get("adapted")
    if document is None:
        return None
    note(f"done: model {job.name!r} is adapted already; {notes.keyword('force')} begins again")
    return Adapted(document)


def _open_folder(job: AdaptArguments, folder: runs.RunFolder, trainings: Trainings) -> Schedule:
    """Return the schedule of an adaptation that begins, or the one with which it was begun."""
    is_new = job.force or not folder.has_begun
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
        settings=dataclasses.asdict(schedule) if is_new else None,
    )
    return Schedule(**folder.settings)


def _schedule(job: AdaptArguments, trainings: Trainings) -> Schedule:
    """Return the schedule, and say by how much it is longer than the time that was asked for."""
    schedule = trainings.schedule(job.hours)
    beyond = schedule.total - 3600 * job.hours
    if beyond > 0:
        note(
            f"{notes.keyword('hours', job.hours)} is exceeded by about {in_minutes(beyond)}: the"
            " fewest steps of each row, and the scores, take about"
            f" {in_minutes(schedule.total)}"
        )
    return schedule


def _compare(
    job: AdaptArguments, trainings: Trainings, trained: Mapping[str, pc.Trained]
) -> tuple[Adapted, Entry | None]:
    """Score the start and all runs; return the table, and the run to be saved, if one is better."""
    collection = trainings.collection
    start = loading.open_model(trainings.start, device=job.where.device, dtype="float32")
    tasks: list[RetrievalTask | STSTask] = [collection.test_task, *tasks_elsewhere()]
    baseline = Baseline.of(start, trainings.start.name, tasks)
    rows = baseline.compare(trained)
    better = [row for row in rows if row.verdict(job.margin) == BETTER]
    # by the development queries: the test's figures would flatter the highest of several
    chosen = max(better, key=lambda row: row.trained.chosen_by, default=None)
    document = {
        "saved": None,
        "chosen": None,
        "reason": _reason(rows, chosen, baseline.scores[0].value, job.margin),
        "start": trainings.start.name,
        "files": list_of_names(job.files),
        "margin": job.margin,
        "queries": collection.sizes,
        "tasks": [task.label for task in tasks],
        "rows": [baseline.to_dict(), *(row.to_dict(job.margin) for row in rows)],
    }
    if chosen is None:
        return Adapted(document), None
    document |= {"saved": job.name, "chosen": chosen.name}
    return Adapted(document), chosen.trained.entry


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
