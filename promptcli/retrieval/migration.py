"""Another model for an index: all texts are encoded into a second vector file, which then takes the
place of the first.

Each block is one transaction, so the same call continues after a kill. Until the last one, the old
vectors serve searches.
"""

from dataclasses import asdict, dataclass, replace
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


@dataclass(frozen=True)
class _Progress:
    """How far a migration is."""

    model: str  #: fingerprint of the new encoder
    vectors: str  #: name of the new vector file
    places: int = 0  #: vectors in it


def migrate(store: Store, documents: "Encoder", origin: Origin) -> None:
    """Encode the texts of an index with another model, the encoder ``documents``."""
    with store.changing():
        file, progress = _begin(store, documents, origin)
        rows = len(store)
    with stage("migrate", rows) as advance:
        while texts := next(store.text_blocks(progress.places, store.places), None):
            vectors = unit_rows(documents.encode(texts, progress=advance))
            with store.changing():
                _check_unchanged(store, progress)
                file.write(progress.places, vectors)
                file.sync()
                progress = replace(progress, places=progress.places + len(texts))
                store.write_settings(migrating=asdict(progress))
    with store.changing():
        _check_unchanged(store, progress)
        if store.places != progress.places:
            raise UsageError(_CHANGED)
        store.file = file
        store.delete_leftovers()
        store.write_settings(
            origin=asdict(origin), width=documents.width, vectors=file.name, migrating=None
        )


def _begin(store: Store, documents: "Encoder", origin: Origin) -> tuple[VectorFile, _Progress]:
    """Return the new vector file and the progress, also of a killed migration.

    It begins again if the half-written vectors are of another model, or were deleted.
    """
    if store.settings.migrating is not None and store.folder is not None:
        progress = _Progress(**store.settings.migrating)
        file = VectorFile(progress.vectors, store.folder)
        if progress.model == origin.fingerprint and file.holds(progress.places, documents.width):
            return file, progress
    file = VectorFile.new(store.folder, "float32")
    progress = _Progress(origin.fingerprint, file.name)
    store.write_settings(migrating=asdict(progress))
    return file, progress


def _check_unchanged(store: Store, progress: _Progress) -> None:
    """Refuse to go on if another process has migrated or rewritten the index."""
    if store.settings.migrating != asdict(progress):
        raise UsageError(_CHANGED)
