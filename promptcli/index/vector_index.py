"""VectorIndex: cosine search over unit vectors under FAISS. Knows nothing of encoders or of an index's folder."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptcli.errors import PromptcliError, UsageError
from promptcli.index.factory import check_training, faiss, make, reason
from promptcli.index.recall import NEIGHBOURS, Recall, recall, sample
from promptcli.index.rows import Floats, Hit, Ids, RowLabels, check_counts, unit_rows

RowNumbers = NDArray[np.int64]

#: Candidates fetched beyond k from an exact index: FAISS breaks ties at the end of its list as it likes.
_MARGIN = 16
#: Two float32 scores of one pair of unit vectors, computed in different batches, differ by less.
_ROUNDING = 2e-6
#: More lists of an inverted file are searched until recall@10 is this high, or grows by less than ``_WORTHWHILE``.
_RECALL_WANTED, _WORTHWHILE = 0.95, 0.005


def set_threads(threads: int) -> None:
    """Let FAISS use that many processor threads."""
    faiss.omp_set_num_threads(threads)


class VectorIndex:
    """n vectors of width d with their ids and texts."""

    def __init__(self, index: Any, labels: RowLabels, factory: str, recall: Recall | None) -> None:
        self._index, self.labels = index, labels
        self.factory = factory  #: FAISS's description of the index.
        self.recall = recall  #: recall@10 as measured at the build; None for an exact index.
        #: Rows of the last ``build`` or ``add`` whose vector is zero; their score is 0 for every query.
        self.zero_rows: list[int] = []

    @classmethod
    def build(cls, vectors: Floats, ids: Ids, texts: Sequence[str] | None, factory: str = "Flat") -> "VectorIndex":
        """Index vectors; an approximate index is trained on them and its recall@10 measured.

        Args:
            vectors: (n, d); scaled to length 1 here.
            ids: n, row numbers or texts.
            texts: n, or None.
            factory: FAISS factory string; ``Flat`` is exact.

        Raises:
            UsageError: a factory that FAISS does not make for inner products, too few vectors to train it, or a
                vector that is not finite.
        """
        check_counts(vectors, ids, texts)
        units, zeros = unit_rows(vectors)
        index = make(factory, units.shape[1])
        check_training(index, len(units), factory)
        try:
            if not index.is_trained:
                index.train(units)
            index.add(units)
            made = cls(index, RowLabels.of(ids, texts), factory, None)
            if not made.exact:
                made.recall = made._tune(units)
        except (RuntimeError, MemoryError) as error:
            raise UsageError(f"factory {factory!r} does not index {units.shape} vectors: {reason(error)}") from None
        made.zero_rows = zeros
        return made

    @property
    def rows(self) -> int:
        """Number of vectors, n."""
        return int(self._index.ntotal)

    @property
    def width(self) -> int:
        """Numbers in a vector, d."""
        return int(self._index.d)

    @property
    def has_texts(self) -> bool:
        """Whether the rows have texts."""
        return self.labels.has_texts

    @property
    def exact(self) -> bool:
        """Whether every vector is compared, in full precision."""
        return type(faiss.downcast_index(self._index)) in (faiss.IndexFlat, faiss.IndexFlatIP)

    def add(self, vectors: Floats, ids: Ids, texts: Sequence[str] | None) -> None:
        """Append m vectors; row numbers as ids go on from the last row.

        Args:
            vectors: (m, d).
            ids: m, row numbers from 0 or texts.
            texts: m; None exactly where the index has none.

        Raises:
            UsageError: another width, texts on one side only, or a vector that is not finite.
        """
        check_counts(vectors, ids, texts)
        if vectors.shape[1] != self.width:
            raise UsageError(f"vectors of width {vectors.shape[1]} do not go into an index of width {self.width}")
        rows = self.labels.extended(ids, texts)
        units, zeros = unit_rows(vectors)
        before = self.rows
        try:
            self._index.add(units)
        except RuntimeError as error:
            raise UsageError(f"an index of factory {self.factory!r} takes no more rows: {reason(error)}") from None
        self.labels = rows
        self.zero_rows = [before + row for row in zeros]

    def search(self, queries: Floats, k: int = 10) -> list[list[Hit]]:
        """Return the k nearest rows of each of q queries, best first; all n where k is larger, never a non-row.

        Equal scores stand in the order of the rows, whatever the batch. An approximate index may return fewer.

        Args:
            queries: (q, d); scaled to length 1 here.
            k: At least 1.

        Raises:
            UsageError: another width, k below 1, or a query that is not finite.
        """
        if k < 1:
            raise UsageError(f"k is {k}; give at least 1")
        if queries.ndim != 2 or queries.shape[1] != self.width:
            raise UsageError(f"queries of shape {queries.shape} do not fit an index of width {self.width}")
        units, _ = unit_rows(queries, "query")
        k = min(k, self.rows)
        try:
            found = self._search_exactly(units, k) if self.exact else self._search_roughly(units, k)
        except (RuntimeError, MemoryError) as error:
            raise PromptcliError(f"FAISS cannot search an index of factory {self.factory!r}: {reason(error)}") from None
        return [self.labels.hits(rows, scores) for rows, scores in found]

    def vectors(self, rows: RowNumbers) -> Floats:
        """Return the unit vectors (m, d) of m rows, as exactly as the index keeps them.

        Raises:
            UsageError: it keeps them in a way that does not give them back.
        """
        lists = faiss.try_extract_index_ivf(self._index)
        try:
            if lists is not None:
                lists.make_direct_map()
            found: Floats = self._index.reconstruct_batch(rows)
        except RuntimeError as error:
            raise UsageError(f"an index of factory {self.factory!r} gives no vectors back: {reason(error)}") from None
        return found

    def write(self, path: Path) -> None:
        """Write FAISS's file; ids and texts are written by ``labels``."""
        try:
            faiss.write_index(self._index, str(path))
        except RuntimeError as error:
            for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                if os.strerror(code) in str(error):
                    raise OSError(code, os.strerror(code), str(path)) from None
            raise PromptcliError(f"{path} could not be written: {reason(error)}") from None

    @classmethod
    def read(cls, index: Path, ids: Path, texts: Path | None, factory: str, recall: Recall | None) -> "VectorIndex":
        """Read what ``write`` and ``labels`` wrote.

        Raises:
            ValueError: a file is none of theirs, whatever its checksum, or they do not belong together.
        """
        labels = RowLabels.read(ids, texts)
        try:
            made = cls(faiss.read_index(str(index)), labels, factory, recall)
        except (RuntimeError, MemoryError) as error:
            raise ValueError(f"FAISS cannot read it: {reason(error)}") from None
        if len(labels) != made.rows:
            raise ValueError(f"it holds {made.rows} vectors for {len(labels)} ids")
        return made

    def _search_roughly(self, units: Floats, k: int) -> list[tuple[RowNumbers, Floats]]:
        found = []
        for scores, rows in zip(*self._index.search(units, k), strict=True):
            order = np.lexsort((rows, -scores))
            order = order[rows[order] >= 0]  # -1 is FAISS's "no hit"
            found.append((rows[order], scores[order]))
        return found

    def _search_exactly(self, units: Floats, k: int) -> list[tuple[RowNumbers, Floats]]:
        """Fetch some more than k, score them anew in a way that does not depend on the batch, and cut at k."""
        found = []
        for query, scores, rows in zip(units, *self._index.search(units, min(self.rows, k + _MARGIN)), strict=True):
            while len(rows) < self.rows and scores[k - 1] - scores[-1] < _ROUNDING:  # ties go beyond what was fetched
                scores, rows = (part[0] for part in self._index.search(query[None], min(self.rows, 2 * len(rows))))
            vectors = self._index.reconstruct_batch(rows).astype(np.float64)
            anew = (vectors * query.astype(np.float64)).sum(axis=1).astype(np.float32)
            order = np.lexsort((rows, -anew))[:k]
            found.append((rows[order], anew[order]))
        return found

    def _tune(self, units: Floats) -> Recall:
        """Measure recall@10; search more lists of an inverted file while that is low and it helps."""
        asked = sample(len(units))
        fetched = min(len(units), NEIGHBOURS + 1)
        _, exact = faiss.knn(units[asked], units, fetched, metric=faiss.METRIC_INNER_PRODUCT)

        def measured() -> Recall:
            return recall(units, asked, list(exact), [rows for rows, _ in self._search_roughly(units[asked], fetched)])

        now = measured()
        lists = faiss.try_extract_index_ivf(self._index)
        while lists is not None and now.at_10 < _RECALL_WANTED and lists.nprobe < lists.nlist:
            before = now
            lists.nprobe = min(lists.nlist, 2 * lists.nprobe)
            now = measured()
            if now.at_10 - before.at_10 < _WORTHWHILE:
                break
        return now
