"""A run that has ended already: the result of a command that is repeated."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from promptcli.errors import UsageError, counted, shorten
from promptcli.models.entries import Entry
from promptcli.models.loading import open_registry
from promptcli.models.registry import Registry
from promptcli.notes import keyword, note
from promptcli.storage.runs import RunFolder
from promptcli.storage.typed_documents import to_json
from promptcli.training.trained import Trained


def find_ended(name: str | None, *, resume: bool) -> Trained | None:
    """Return the result of a run, or of several, that is resumed after its end."""
    if not resume or name is None:
        return None
    entry = find_finished(open_registry(), name)
    if entry is None:
        return None
    note_done(entry)
    return Trained(entry)


def find_finished(registry: Registry, name: str) -> Entry | None:
    """Return the model that a run of that name has become; None if none has, or one is unfinished.

    Raises:
        UsageError: A model has the name that was not trained here.
    """
    folders = [registry.run_folder(folder) for folder in (name, f"{name}.sweep")]
    unfinished = any(RunFolder(folder).has_begun for folder in folders)
    if unfinished or name not in registry.names():
        return None
    entry = registry.load(name)
    if "trained" not in entry.provenance:
        raise UsageError(f"model {name!r} is not of a training; {_otherwise()}")
    return entry


def note_done(entry: Entry) -> None:
    """Say that there is nothing to do."""
    note(f"done: model {entry.name!r} is trained already; {keyword('force')} trains it again")


def check_same(
    entry: Entry, wanted: Mapping[str, Any], settings: Mapping[str, Any] | None = None
) -> None:
    """Refuse a run that differs from the one that made a model, by the name of what differs.

    What the model's record does not have is not compared. ``settings`` are those of one of several
    runs; None: the model's own.
    """
    facts = entry.provenance["trained"]
    if settings is None:
        settings = facts.get("settings", {})
    stored = {**facts, **settings}
    if not settings:
        stored.pop("steps", None)  # an old record has those that were done
    asked: dict[str, Any] = json.loads(to_json(wanted))
    for field in asked:
        if field in stored and stored[field] != asked[field]:
            was = f"{field.replace('_', '-')} {shorten(stored[field])}"
            raise UsageError(
                f"model {entry.name!r} was trained with {was}, not {shorten(asked[field])}; give"
                f" that, {_otherwise()}"
            )


def check_same_runs(
    entry: Entry, trials: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]
) -> None:
    """Refuse several runs that are not those of a model: their changes, then all that is wanted of
    each.
    """
    runs = entry.provenance["trained"].get("runs", [])
    had = [run["changes"] for run in runs]
    asked = json.loads(to_json(list(trials)))
    if had != asked:
        raise UsageError(
            f"model {entry.name!r} is of {counted(len(had) or 1, 'run')}, {shorten(had)}, not of"
            f" {shorten(asked)}; {_otherwise()}"
        )
    for run, of_run in zip(runs, wanted, strict=True):
        check_same(entry, of_run, run.get("settings"))


def _otherwise() -> str:
    """Return the advice of a message if a model has the name of the run."""
    return f"give another {keyword('name')}, or {keyword('force')} trains it again"
