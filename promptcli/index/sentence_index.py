"""SentenceIndex: sentences, their vectors and the encoder that made them, for search by meaning from Python."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

from promptcli.errors import UsageError
from promptcli.index.origins import check_same, origin_of, rebuild_encoder
from promptcli.index.rows import Hit
from promptcli.index.stored import StoredIndex, load, save
from promptcli.index.vector_index import VectorIndex
from promptcli.registry.entries import Entry, utc_now
from promptcli.registry.registry import Registry, load_encoder

if TYPE_CHECKING:
    from promptcli.encoder.encoder import Encoder


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
        factory: str = "Flat",
    ) -> "SentenceIndex":
        """Encode and index sentences.

        Args:
            sentences: n, at least one.
            encoder: Makes their vectors, and those of the queries.
            ids: n, one for each sentence; None: their numbers from 0.
            factory: FAISS factory string, e.g. ``HNSW32``; ``Flat`` is exact.

        Raises:
            UsageError: no sentences, not equally many ids, or a factory that cannot be.
        """
        texts = _texts(sentences)
        vectors = encoder.encode(texts)
        made = VectorIndex.build(vectors, range(len(texts)) if ids is None else ids, texts, factory)
        return cls(StoredIndex(made, origin_of(encoder), utc_now()), encoder)

    def __len__(self) -> int:
        return self._stored.index.rows

    def add(self, sentences: Sequence[str], ids: Sequence[int] | Sequence[str] | None = None) -> None:
        """Append sentences; without ids their numbers go on from the last row."""
        texts = _texts(sentences)
        self._stored.index.add(self.encoder.encode(texts), range(len(texts)) if ids is None else ids, texts)

    @overload
    def search(self, query: str, k: int = 10) -> list[Hit]: ...
    @overload
    def search(self, query: list[str], k: int = 10) -> list[list[Hit]]: ...
    def search(self, query: str | list[str], k: int = 10) -> list[Hit] | list[list[Hit]]:
        """Return the k nearest sentences, best first; for a list of queries one such list each.

        Each hit has a ``rank`` from 1, the sentence's ``id`` and ``text``, and its ``score``, the cosine, -1 to 1.

        Raises:
            UsageError: ``k`` below 1.
        """
        if isinstance(query, str):
            return self.search([query], k)[0]
        return self._stored.index.search(self.encoder.encode(_texts(query)), k) if query else []

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
            encoder = rebuild_encoder(stored.origin, registry, _make)
        return cls(stored, encoder)


def _make(entry: Entry, dtype: str) -> "Encoder":
    return load_encoder(entry, dtype=dtype)


def _texts(sentences: Sequence[str]) -> list[str]:
    if isinstance(sentences, str):
        raise UsageError("a single text is given where a list of sentences is needed; give [text]")
    texts = list(sentences)
    if not texts:
        raise UsageError("there are no sentences; give at least one")
    return texts
