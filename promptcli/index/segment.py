"""A segment: rows of an index that stand together in one FAISS index, in memory or memory-mapped. Numbered from 0."""

import errno
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.formats import BLOCK, Floats
from promptcli.errors import PromptcliError, UsageError
from promptcli.index.factory import Effort, faiss, parameters, reason
from promptcli.index.labels import RowLabels
from promptcli.index.rows import RowNumbers
from promptcli.storage.parts import SMALL

Mask = NDArray[np.bool_]

#: Candidates fetched beyond k from an exact index: FAISS breaks ties at the end of its list as it likes.
_MARGIN = 16
#: Two float32 scores of one pair of unit vectors, computed in different batches, differ by less.
_ROUNDING = 2e-6


@dataclass
class Segment:
    """m unit vectors of width d under FAISS, with their ids and texts."""

    index: Any
    labels: RowLabels
    files: dict[str, str] = field(default_factory=dict)  #: The parts of a folder that it was read from, by what is in.

    def __post_init__(self) -> None:
        self._parameters = functools.cache(lambda effort: parameters(self.index, effort, None))

    def __len__(self) -> int:
        return int(self.index.ntotal)

    @property
    def exact(self) -> bool:
        """Whether every vector is compared, in full precision."""
        return type(faiss.downcast_index(self.index)) in (faiss.IndexFlat, faiss.IndexFlatIP)

    def search(self, units: Floats, k: int, allowed: Mask | None, effort: Effort) -> list[tuple[RowNumbers, Floats]]:
        """Return for each of q queries its k best rows and their scores, best first.

        Args:
            units: (q, d).
            k: At least 1; fewer rows come back where there are not as many, or an approximate index finds fewer.
            allowed: (m,) the rows that may be answers; None: all.
            effort: Of an approximate index.

        Raises:
            PromptcliError: FAISS cannot.
        """
        there = len(self) if allowed is None else int(allowed.sum())
        k = min(k, there)
        if k == 0:
            return [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in units]
        if effort.factor is not None:  # it is for ten answers; for fewer, as many candidates are compared
            effort = Effort(effort.nprobe, effort.ef, max(effort.factor, 10 * effort.factor / k))
        selector = None if allowed is None else faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        given = self._parameters(effort) if selector is None else parameters(self.index, effort, selector)
        try:
            if self.exact:
                return self._exactly(units, k, there, given)
            found = self.index.search(units, k, params=given)
        except (RuntimeError, MemoryError) as error:
            raise PromptcliError(f"FAISS cannot search so: {reason(error)}") from None
        scores, rows = found
        if (scores[:, 1:] >= scores[:, :-1]).any():  # equal scores stand in the order of the rows
            order = np.arange(len(rows))[:, None], np.lexsort((rows, -scores), axis=1)
            scores, rows = scores[order], rows[order]
        scores, counts = np.minimum(scores, 1), (rows >= 0).sum(axis=1).tolist()  # codes may be a little too long
        return [(rows[one, :count], scores[one, :count]) for one, count in enumerate(counts)]  # -1 is "no hit"

    def _exactly(self, units: Floats, k: int, there: int, given: Any) -> list[tuple[RowNumbers, Floats]]:
        """Fetch some more than k, score them again in a way that does not depend on the batch, and cut at k."""
        found = []
        fetched = self.index.search(units, min(there, k + _MARGIN), params=given)
        for query, scores, rows in zip(units, *fetched, strict=True):
            while len(rows) < there and scores[k - 1] - scores[-1] < _ROUNDING:  # ties go beyond what was fetched
                again = self.index.search(query[None], min(there, 2 * len(rows)), params=given)
                scores, rows = again[0][0], again[1][0]
            vectors = self.index.reconstruct_batch(rows).astype(np.float64)
            again = (vectors * query.astype(np.float64)).sum(axis=1).astype(np.float32)
            order = np.lexsort((rows, -again))[:k]
            found.append((rows[order], again[order]))
        return found

    def vectors(self, rows: RowNumbers) -> Floats:
        """Return the unit vectors (r, d) of r rows, as exactly as FAISS keeps them.

        Raises:
            UsageError: it keeps them in a way that does not give them back.
        """
        index = faiss.downcast_index(self.index)
        lists = None if isinstance(index, faiss.IndexRefine) else faiss.try_extract_index_ivf(index)
        try:
            if lists is not None:
                if isinstance(faiss.downcast_index(lists), faiss.IndexIVFFastScan):  # once read, it crashes (1.15.1)
                    raise RuntimeError("fast-scan codes without Refine")
                lists.make_direct_map()
            found: Floats = index.reconstruct_batch(rows)
        except RuntimeError as error:
            raise UsageError(f"an index of this factory gives no vectors back: {reason(error)}") from None
        return found

    def blocks(self, allowed: Mask | None) -> Iterator[tuple[Floats, RowLabels]]:
        """Yield the allowed rows block by block: vectors and labels.

        Raises:
            UsageError: see ``vectors``.
        """
        for start in range(0, len(self), BLOCK):
            stop = min(start + BLOCK, len(self))
            kept = np.ones(stop - start, bool) if allowed is None else allowed[start:stop]
            if kept.any():
                yield self.vectors(start + np.flatnonzero(kept)), self.labels.part(start, kept)

    def write_index(self, path: Path) -> None:
        """Write FAISS's file; ids and texts are written by ``labels``."""
        try:
            faiss.write_index(self.index, str(path))
        except RuntimeError as error:
            for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                if os.strerror(code) in str(error):
                    raise OSError(code, os.strerror(code), str(path)) from None
            raise PromptcliError(f"{path} could not be written: {reason(error)}") from None


def of_vectors(vectors: Floats) -> Segment:
    """Return an exact segment of unit vectors (m, d), without labels of meaning."""
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return Segment(index, RowLabels.of(range(len(vectors)), None))


def read_index(path: Path, *, mapped: bool = True) -> Any:
    """Open FAISS's file: a large one memory-mapped where FAISS can, a small one read, which no content of it crashes.

    Raises:
        ValueError: it is none, whatever its checksum.
    """
    try:
        # IO_FLAG_MMAP, alone or added to this one, ends in a crash for some indexes (FAISS 1.15.1)
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if mapped and path.stat().st_size > SMALL else 0)
    except (RuntimeError, MemoryError, OSError) as error:
        raise ValueError(f"FAISS cannot read it: {reason(error)}") from None
