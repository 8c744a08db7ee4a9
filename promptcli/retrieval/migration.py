"""Another model for an index: all texts are encoded into a second vector file, which then takes the
place of the first.

Each block is one transaction, so the same call continues after a kill. Until the last one, the old
vectors serve searches.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING

from promptcli.errors import UsageError
from promptcli.notes import stage
from promptcli.retrieval.files import unit_rows
from promptcli.retrieval.origin import Origin
from promptcli.retrieval.store import Store
from promptcli.retrieval.vector_file import VectorFile

if TYPE_CHECKING:
    from promptcli.encoder.sentence_encoder import Encoder

_CHANGED = "another process changed the index; migrate it again"


def migrate(store: Store, documents: "Encoder", origin: Origin) -> None:
    """Encode the texts of an index with another model, the encoder ``documents``."""
    with store.changing():
        file, done = _begin(store, documents, origin)
        rows = len(store)
    with stage("migrate", rows) as advance:
        while texts := next(store.text_blocks(done, store.places), None):
            vectors = unit_rows(documents.encode(texts, progress=advance))
            with store.changing():
                _check_unchanged(store, file, done)
                file.write(done, vectors)
                file.sync()
                done += len(texts)
                _keep_progress(store, file, done, origin)
    with store.changing():
        _check_unchanged(store, file, done)
        if store.places != done:
            raise UsageError(_CHANGED)
        store.file = file
        store.delete_leftovers()
        store.write_settings(
            origin=asdict(origin), width=documents.width, vectors=file.name, migrating=None
        )


def _begin(store: Store, documents: "Encoder", origin: Origin) -> tuple[VectorFile, int]:
    """Return the new vector file and the number of vectors in it, also of a killed migration."""
    begun = store.settings.migrating
    if begun is not None and begun["model"] == origin.fingerprint and store.folder is not None:
        file, done = VectorFile(begun["vectors"], store.folder), begun["places"]
        if file.holds(done, documents.width):
            return file, done
    file = VectorFile.new(store.folder, "float32")
    _keep_progress(store, file, 0, origin)
    return file, 0


def _keep_progress(store: Store, file: VectorFile, done: int, origin: Origin) -> None:
    store.write_settings(
        migrating={"model": origin.fingerprint, "vectors": file.name, "places": done}
    )


def _check_unchanged(store: Store, file: VectorFile, done: int) -> None:
    """Refuse to go on if another process has migrated or rewritten the index."""
    begun = store.settings.migrating
    if begun is None or (begun["vectors"], begun["places"]) != (file.name, done):
        raise UsageError(_CHANGED)
