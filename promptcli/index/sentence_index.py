"""SentenceIndex: sentences, their vectors and the encoder that made them, for search by meaning
from Python.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import numpy as np

from promptcli.data.cells import cells_of_columns
from promptcli.data.given import check_arguments, check_ids, check_texts
from promptcli.embedding.passages import AUTO
from promptcli.errors import UsageError, counted
from promptcli.index.array_rows import ArrayRows, Hit
from promptcli.index.basics import TARGET, Way, chosen_way
from promptcli.index.inputs import documents_of, encoder_of, origin_of
from promptcli.index.neighbours import DuplicateGroup, dups
from promptcli.index.stored import Reading, Stamp, StoredIndex, load, save, stamp_of
from promptcli.index.vector_index import VectorIndex
from promptcli.models import loading as encoders
from promptcli.models.entries import utc_now
from promptcli.notes import note

if TYPE_CHECKING:
    from promptcli.data.sources import ExampleTable
    from promptcli.encoder.sentence_encoder import Encoder
    from promptcli.models.loading import Model

    Columns: TypeAlias = Mapping[str, Sequence[object]] | ExampleTable


class SentenceIndex:
    """n sentences and their vectors, searched by cosine.

    Example:
        >>> index = SentenceIndex.build(["A cat sleeps.", "The market opens at nine."], encoder)
        >>> index.search("A kitten is asleep.", k=1)[0].text
        'A cat sleeps.'
    """

    def __init__(self, stored: StoredIndex, encoder: "Encoder") -> None:
        self._stored = stored
        self.encoder = encoder
        self.vectors = stored.index  #: searched by vectors, without the encoder
        self._documents = documents_of(stored.origin, encoder)
        self.queries = encoder.in_role("query")

    @classmethod
    @check_arguments
    def build(
        cls,
        sentences: Sequence[str],
        encoder: "Model",
        ids: Sequence[int] | Sequence[str] | None = None,
        *,
        columns: "Columns | None" = None,
        factory: str | None = None,
        target_recall: float = TARGET,
        lexical: bool = True,
    ) -> "SentenceIndex":
        """Encode and index sentences; blank ones are left out.

        Args:
            sentences: n, at least one.
            encoder: Makes their vectors, and those of the queries, with its prompts for documents
                and queries if it has them; an encoder, or what ``load`` takes.
            ids: n, one for each sentence; None: their numbers from 0.
            columns: Further columns for conditions, n values each by their name: a dictionary, or a
                DataFrame such as ``frame[["year", "lang"]]``.
            factory: FAISS factory string, e.g. ``HNSW32``; ``Flat`` is exact. None: chosen from n,
                d and the recall.
            target_recall: recall@10 to tune an approximate index for.
            lexical: Whether words are counted, too (BM25), when they are first searched or saved.

        Raises:
            UsageError: No sentences, another number of ids, or a factory that is not allowed.
        """
        opened = encoders.open_encoder(encoder, dtype="auto")
        documents = opened.in_role("document", report=True)
        index = VectorIndex.build(
            _rows(sentences, documents, ids, columns),
            factory,
            target=target_recall,
            lexical=lexical,
        )
        origin = origin_of(opened, documents, encoder)
        return cls(StoredIndex(index, origin, utc_now(), reading=Reading(AUTO)), opened)

    def __len__(self) -> int:
        return self.vectors.rows

    def __repr__(self) -> str:
        """Return the number of rows, the factory and the encoder."""
        return f"SentenceIndex({counted(len(self), 'row')}, {self.vectors.factory}, {self.encoder})"

    @check_arguments
    def add(
        self,
        sentences: Sequence[str],
        ids: Sequence[int] | Sequence[str] | None = None,
        *,
        columns: "Columns | None" = None,
    ) -> None:
        """Append sentences; without ids their numbers go on from the last row."""
        self.vectors.add(_rows(sentences, self._documents, ids, columns))

    @check_arguments
    def upsert(
        self,
        sentences: Sequence[str],
        ids: Sequence[int] | Sequence[str],
        *,
        columns: "Columns | None" = None,
    ) -> int:
        """Replace the sentences that have these ids, append those whose id is new.

        Return how many were replaced.

        Raises:
            UsageError: Another number of ids, or an id given twice.
        """
        return self.vectors.upsert(_rows(sentences, self._documents, ids, columns))

    def delete(self, ids: Collection[int | str]) -> int:
        """Delete the sentences with these ids and return how many they were.

        Raises:
            UsageError: An id that is not in the index; then nothing is deleted.
        """
        return self.vectors.delete(ids)

    def compact(self) -> None:
        """Free the space of deleted sentences."""
        self.vectors.compact()

    @overload
    def search(self, query: str, k: int = 10, **options: Any) -> list[Hit]: ...
    @overload
    def search(self, query: list[str], k: int = 10, **options: Any) -> list[list[Hit]]: ...
    @check_arguments  # type: ignore[misc]
    def search(
        self,
        query: str | list[str],
        k: int = 10,
        *,
        where: str | None = None,
        by: Way | None = None,
    ) -> list[Hit] | list[list[Hit]]:
        """Return the k best sentences, best first; for a list of queries one such list each.

        Each hit has a ``rank`` from 1, the sentence's ``id`` and ``text``, and its ``score``, the
        cosine, -1 to 1.

        Args:
            query: A sentence, or a list of them.
            k: At least 1.
            where: Condition on the further columns, e.g. ``year > 2020 and lang = "en"``.
            by: How sentences are ranked: ``meaning`` by cosine, ``words`` by BM25, which is then
                the score, or ``both`` together, as the commands do. None: by meaning.

        Raises:
            UsageError: ``k`` below 1, a condition that does not fit, or no words in the index.
        """
        texts = check_texts(query)
        way = chosen_way(by, hybrid=False, lexical=False) or "meaning"
        queries = words = None
        if way != "meaning":
            _ = self.vectors.words  # refused before anything is encoded
            words = texts
        if way != "words":
            queries = np.empty((0, self.vectors.width), np.float32)
            if texts:
                queries = self.queries.encode(texts)
        answers = self.vectors.search(queries, k, words=words, where=where)
        if isinstance(query, str):
            return answers[0]
        return answers

    @check_arguments
    def dups(
        self, threshold: float = 0.95, links: Literal["complete", "chain"] = "complete"
    ) -> list[DuplicateGroup]:
        """Return groups of near-duplicates, each a list of hits with its ``lowest`` cosine.

        See ``promptcli.index.neighbours.dups``.
        """
        return dups(self.vectors, threshold, links)

    def save(self, folder: str | Path, *, force: bool = False) -> None:
        """Write the index into a folder, for ``load`` and the ``index`` commands.

        Raises:
            UsageError: The folder holds an index, unless ``force``, or other files.
        """
        save(Path(folder), self._stored, force=force)

    def replaced_by(self) -> Stamp | None:
        """Return the stamp of the index that has taken this one's place in its folder.

        None: none has.
        """
        if self._stored.folder is None:
            return None
        stamp = stamp_of(self._stored.folder)
        return None if stamp == self._stored.stamp else stamp

    def read_again(self) -> "SentenceIndex":
        """Return the index that is in the folder now, with the same encoder.

        Raises:
            CheckFailedError: A file is damaged.
            UsageError: Another model has built it.
        """
        assert self._stored.folder is not None
        stored = load(self._stored.folder)
        if documents_of(stored.origin, self.encoder).fingerprint != stored.origin.fingerprint:
            raise UsageError(f"another model has built {stored.folder}; start the server again")
        return SentenceIndex(stored, self.encoder)

    @classmethod
    def load(cls, folder: str | Path, encoder: "Model | None" = None) -> "SentenceIndex":
        """Read an index.

        Args:
            folder: An index of ``save`` or ``promptcli index build``.
            encoder: The one that made it, or what ``load`` takes; None: made again from what the
                index remembers.

        Raises:
            NotFoundError: No such index, or its model or backbone is missing.
            CheckFailedError: A file is damaged, or the model has changed.
            UsageError: ``encoder`` is not the one that made the index.
        """
        stored = load(Path(folder))
        return cls(stored, encoder_of(stored.origin, encoder))


def open_index(
    folder: str | Path, encoders: "Iterable[Encoder]", model: "Model | None" = None
) -> SentenceIndex:
    """Read an index with the first of some encoders that is the one that made it.

    If none is, it is made again, ``model`` says where.

    Raises:
        NotFoundError: No such index, or its model or backbone is missing.
        CheckFailedError: A file is damaged, or the model has changed.
    """
    stored = load(Path(folder))
    origin = stored.origin
    same = (
        each for each in encoders if documents_of(origin, each).fingerprint == origin.fingerprint
    )
    return SentenceIndex(stored, next(same, None) or encoder_of(origin, model))


def _rows(sentences: Sequence[str], encoder: "Encoder", ids: Any, columns: Any = None) -> ArrayRows:
    if isinstance(sentences, str):
        raise UsageError("a single text is given, not a list of sentences; give [text]")
    texts = check_texts(sentences)
    if not texts:
        raise UsageError("no sentences are given; give at least one")
    numbers: Sequence[Any] = range(len(texts))
    if ids is not None:
        numbers = list(check_ids(ids))
    cells = None
    if columns is not None:
        cells, forms = cells_of_columns(columns, len(texts))
        for doubt in forms.doubts.values():
            note(doubt)
    return ArrayRows(encoder.encode(texts), numbers, texts, cells)
