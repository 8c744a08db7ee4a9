"""SentenceIndex: sentences, their vectors and the encoder that made them, for search by meaning from Python."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from promptcli.data.dialect import Fields
from promptcli.data.given import check_ids, check_texts
from promptcli.errors import UsageError
from promptcli.index.inputs import RowFiles, check_same, origin_of, rebuild_encoder, rows_to_build
from promptcli.index.neighbours import Cluster, Pair, dups, pairs
from promptcli.index.rows import ArrayRows, Hit
from promptcli.index.stored import StoredIndex, create, load, save
from promptcli.index.vector_index import TARGET, VectorIndex
from promptcli.models.entries import utc_now
from promptcli.models.registry import Registry, load_encoder

if TYPE_CHECKING:
    from promptcli.encoder.encoder import Encoder


#: Of a search: an effort, or ids.
Filter = int | Collection[int | str] | None


class SentenceIndex:
    """n sentences and their vectors, searched by cosine.

    Example:
        >>> index = SentenceIndex.build(["A cat sleeps.", "The market opens at nine."], encoder)
        >>> index.search("A kitten is asleep.", k=1)[0].text
        'A cat sleeps.'
    """

    def __init__(self, stored: StoredIndex, encoder: "Encoder") -> None:
        self._stored, self.encoder = stored, encoder

    @classmethod
    def build(
        cls,
        sentences: Sequence[str],
        encoder: "Encoder",
        ids: Sequence[int] | Sequence[str] | None = None,
        *,
        factory: str | None = None,
        target_recall: float = TARGET,
    ) -> "SentenceIndex":
        """Encode and index sentences.

        Args:
            sentences: n, at least one.
            encoder: Makes their vectors, and those of the queries.
            ids: n, one for each sentence; None: their numbers from 0.
            factory: FAISS factory string, e.g. ``HNSW32``; ``Flat`` is exact. None: chosen from n, d and the recall.
            target_recall: recall@10 that an approximate index is searched for.

        Raises:
            UsageError: no sentences, not equally many ids, or a factory that cannot be.
        """
        texts = _texts(sentences)
        vectors = encoder.encode(texts)
        numbers = range(len(texts)) if ids is None else check_ids(ids)
        made = VectorIndex.build(ArrayRows(vectors, numbers, texts), factory, target=target_recall)
        return cls(StoredIndex(made, origin_of(encoder), utc_now()), encoder)

    @classmethod
    def build_from(
        cls,
        vectors: str | Path,
        folder: str | Path,
        encoder: "Encoder | None" = None,
        *,
        factory: str | None = None,
        target_recall: float = TARGET,
        memory: int | None = None,
        force: bool = False,
        registry: Registry | None = None,
    ) -> "SentenceIndex":
        """Index stored vectors, block by block, into a folder: as many as the disk holds, not the memory.

        Args:
            vectors: What ``embed`` wrote: a folder of parts, or a file.
            folder: Of the index, as for ``save``.
            encoder: The one that made them; None: their manifest says it.
            factory: As for ``build``.
            target_recall: As for ``build``.
            memory: Bytes that the process may take; None: what it takes.
            force: Replace an index that is there.
            registry: As for ``load``.

        Raises:
            NotFoundError, UsageError, CheckFailedError: see ``rows_to_build``, ``save``, ``load``.
        """

        def given() -> "Encoder":
            if encoder is None:
                raise UsageError(f"{vectors} has no manifest, so its encoder is unknown; give encoder=...")
            return encoder

        files = RowFiles(Path(vectors), None, Fields())
        incoming, origin = rows_to_build(files, given, named=encoder is not None, model=None)
        with create(Path(folder), force=force) as store:
            made = VectorIndex.build(incoming.rows, factory, target=target_recall, memory=memory, store=store.segment)
            store.commit(StoredIndex(made, origin, utc_now()))
        return cls.load(folder, encoder, registry=registry)

    def __len__(self) -> int:
        return self._stored.index.rows

    def add(self, sentences: Sequence[str], ids: Sequence[int] | Sequence[str] | None = None) -> None:
        """Append sentences; without ids their numbers go on from the last row."""
        texts = _texts(sentences)
        numbers = range(len(texts)) if ids is None else check_ids(ids)
        self._stored.index.add(ArrayRows(self.encoder.encode(texts), numbers, texts))

    def upsert(self, sentences: Sequence[str], ids: Sequence[int] | Sequence[str]) -> int:
        """Put sentences in the place of those with their ids, append those whose id is new; return how many were there.

        Raises:
            UsageError: not equally many ids, or one twice.
        """
        texts = _texts(sentences)
        return self._stored.index.upsert(ArrayRows(self.encoder.encode(texts), check_ids(ids), texts))

    def delete(self, ids: Collection[int | str]) -> int:
        """Delete the sentences with these ids and return how many they were.

        Raises:
            UsageError: an id that is not there; then nothing is deleted.
        """
        return self._stored.index.delete(ids)

    def compact(self) -> None:
        """Free the room of deleted sentences."""
        self._stored.index.compact()

    @overload
    def search(self, query: str, k: int = 10, **filters: Filter) -> list[Hit]: ...
    @overload
    def search(self, query: list[str], k: int = 10, **filters: Filter) -> list[list[Hit]]: ...
    def search(self, query: str | list[str], k: int = 10, **filters: Filter) -> list[Hit] | list[list[Hit]]:
        """Return the k nearest sentences, best first; for a list of queries one such list each.

        Each hit has a ``rank`` from 1, the sentence's ``id`` and ``text``, and its ``score``, the cosine, -1 to 1.

        Args:
            query: A sentence, or a list of them.
            k: At least 1.
            **filters: ``nprobe``, ``ef``, ``allow``, ``deny`` of ``VectorIndex.search``.

        Raises:
            UsageError: ``k`` below 1, or an effort that the index does not have.
        """
        if isinstance(query, str):
            return self.search([query], k, **filters)[0]
        texts, how = check_texts(query), dict[str, Any](filters)
        return self._stored.index.search(self.encoder.encode(texts), k, **how) if texts else []

    def dups(self, threshold: float = 0.95) -> list[Cluster]:
        """Return groups of near-duplicates; see ``promptcli.index.neighbours.dups``."""
        return dups(self._stored.index, threshold)

    def pairs(self, k: int = 100, threshold: float | None = None) -> list[Pair]:
        """Return the k nearest pairs; see ``promptcli.index.neighbours.pairs``."""
        return pairs(self._stored.index, k, threshold)

    def save(self, folder: str | Path, *, force: bool = False) -> None:
        """Write the index into a folder, for ``load`` and the ``index`` commands.

        Raises:
            UsageError: an index is there, unless ``force``; or other files are.
        """
        save(Path(folder), self._stored, force=force)

    @classmethod
    def load(
        cls, folder: str | Path, encoder: "Encoder | None" = None, *, registry: Registry | None = None
    ) -> "SentenceIndex":
        """Read an index.

        Args:
            folder: Of ``save`` or ``promptcli index build``.
            encoder: The one that made it; None: it is made again from what the index remembers.
            registry: Where a model with fitted numbers is looked up then.

        Raises:
            NotFoundError: there is no index, or its backbone or model is not there.
            CheckFailedError: a file is damaged, or the encoder made again is another one.
            UsageError: ``encoder`` is another one.
        """
        stored = load(Path(folder))
        if encoder is not None:
            check_same(encoder.fingerprint, stored.origin.fingerprint, "the encoder", "the index")
        else:
            encoder = rebuild_encoder(stored.origin, registry, lambda entry, dtype: load_encoder(entry, dtype=dtype))
        return cls(stored, encoder)


def _texts(sentences: Sequence[str]) -> list[str]:
    if isinstance(sentences, str):
        raise UsageError("a single text is given where a list of sentences is needed; give [text]")
    texts = check_texts(sentences)
    if not texts:
        raise UsageError("there are no sentences; give at least one")
    return texts
