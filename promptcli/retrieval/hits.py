"""Rows of an index as hits, with their columns and the state of their files."""

import itertools
import json
from collections.abc import Collection
from pathlib import Path

from promptcli.data.input_files import split_columns
from promptcli.retrieval.ranking import Hit, JoinedRanking, Ranking
from promptcli.retrieval.store import Store, row_name
from promptcli.storage.files import sha256


def read_hits(store: Store, ranking: Ranking | JoinedRanking) -> list[Hit]:
    """Return the ranked rows as hits; call inside ``store.reading``."""
    keys, scores = ranking.keys, ranking.scores.tolist()
    records = store.records(keys)
    columns = store.columns(keys) if store.types else itertools.repeat(None)
    stale = stale_files(store, {source for *_, source in records if source})
    hits = []
    rows = zip(records, scores, columns, ranking.ways(), strict=False)
    for rank, ((_, name, part, text, file), score, cells, way) in enumerate(rows, 1):
        shown = row_name(name, part)
        hits.append(Hit(rank, shown, text, score, cells, file=file, stale=stale.get(file), **way))
    return hits


def stale_files(store: Store, names: Collection[str] | None = None) -> dict[str, str]:
    """Return the files of an index that have since ``changed`` or ``gone``.

    Args:
        store: The index; call inside ``store.reading``.
        names: Files to check; None: all.
    """
    synced = store.settings.synced
    if not synced:
        return {}
    query, values = "SELECT * FROM files", []
    if names is not None:
        query += " WHERE name IN (SELECT value FROM json_each(?))"
        values = [json.dumps(list(names))]
    records = store.sql.execute(query, values).fetchall()
    states = {record[0]: _state(Path(synced["root"]), *record) for record in records}
    return {name: state for name, state in states.items() if state is not None}


def _state(root: Path, name: str, size: int, changed: int, before: str) -> str | None:
    """Return ``gone`` or ``changed`` for a file that differs from its last reading."""
    path = root / split_columns(name)[0]
    try:
        state = path.stat()
    except OSError:
        return "gone"
    if (state.st_size, state.st_mtime_ns) == (size, changed):
        return None
    if state.st_size == size and sha256(path) == before:
        return None
    return "changed"
