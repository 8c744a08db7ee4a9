"""The FAISS index of the vectors: chosen by their number, tuned to a recall, stored in a file.

Only this module imports FAISS. FAISS finds candidates; their scores are computed from the vectors
themselves, see ``nearest``.
"""

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import faiss as _faiss
import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.precision import Floats
from promptcli.errors import CheckFailedError, PromptcliError, UsageError, one_line
from promptcli.notes import note, stage
from promptcli.retrieval.derived import EXACT, Source, read_derived, write_derived
from promptcli.retrieval.ranking import EQUAL, Ranking, exact_scores, nearest_of, top_k

faiss: Any = _faiss  # its annotations lack NumPy arguments
if sys.platform == "darwin":  # two OpenMP runtimes with threads crash the process
    faiss.omp_set_num_threads(1)

#: Points that k-means needs per centroid; with fewer, FAISS warns on stderr and clusters badly.
_POINTS_PER_CENTROID = 39
#: Largest size in bytes of fast-scan codes, which FAISS cannot memory-map: it reads them when an
#: index is opened.
_IN_MEMORY = 256 << 20
_MAPPED = 1 << 20  # size in bytes from which a file is memory-mapped
#: Most and fewest rows used as queries; in between, as many as this number of comparisons allows.
_MOST_QUERIES, _FEWEST_QUERIES, _COMPARISONS = 1000, 200, 1_000_000_000
_NEIGHBOURS = 10  # neighbours that recall counts
#: Neighbours of a query whose exact scores are kept: any of several equal neighbours is right.
_KNOWN = 100
_MARGIN = 16  # candidates beyond k: FAISS rounds their scores
#: Levels of search effort, ascending: the number of candidates that are compared again.
#: A graph (HNSW) searches for that number; an inverted file (IVF) reads half that number of lists.
_EFFORTS = [32 << step for step in range(9)]
_WORTHWHILE = 0.1  # effort grows while it adds this share of the missing recall
_ROWS_AT_ONCE = 8192  # rows added at once


def set_search_threads(count: int) -> None:
    """Set the number of CPU threads for searches of the calling thread."""
    faiss.omp_set_num_threads(count)


@dataclass
class FaissIndex:
    """A FAISS index of the first m vectors of a store's file."""

    index: Any
    source: Source
    factory: str
    effort: int = 0  #: one of ``_EFFORTS``
    recall: dict[str, Any] | None = None  #: measured; None: every row is compared

    @property
    def rows(self) -> int:
        """The number of vectors."""
        return int(self.index.ntotal)

    def nearest(
        self, units: Floats, k: int, vectors: Floats, allowed: NDArray[np.bool_] | None = None
    ) -> list[Ranking]:
        """Return the k nearest rows of each query, scored by their vectors.

        Args:
            units: (q, d) of length 1.
            k: Rows of each query.
            vectors: (n, d) of all rows.
            allowed: (m,) whether each row may be an answer; None: all.
        """
        wanted = min(k, self.rows if allowed is None else int(np.count_nonzero(allowed)))
        answers = []
        candidates = self.candidates(units, k, self.effort, allowed)
        for unit, found in zip(units, candidates, strict=True):
            effort = self.effort
            while len(found) < wanted and effort < 2 * self.rows:
                effort *= 2
                [found] = self.candidates(unit[None], k, effort, allowed)
            answers.append(top_k(found, exact_scores(vectors[found], unit), k))
        return answers

    def candidates(
        self,
        units: Floats,
        k: int,
        effort: int,
        allowed: NDArray[np.bool_] | None = None,
    ) -> list[NDArray[np.int64]]:
        """Return the places of candidates for the k nearest rows of each query.

        ``effort`` is one of ``_EFFORTS``, or more.
        """
        selector = None
        if allowed is not None:
            selector = faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        options = _parameters(self.index, effort, selector)
        count = min(max(k + _MARGIN, effort), self.rows)
        try:
            _, rows = self.index.search(units, count, params=options)
        except (RuntimeError, MemoryError) as error:
            raise PromptcliError(f"FAISS cannot search this index: {one_line(error)}") from None
        return [found[found >= 0] for found in rows]

    def write(self, path: Path) -> None:
        """Write a file."""

        def begin(file: BinaryIO) -> None:
            faiss.write_index(self.index, faiss.PyCallbackIOWriter(file.write))

        about = {"factory": self.factory, "effort": self.effort, "recall": self.recall}
        write_derived(path, self.source, about, {}, begin)

    @classmethod
    def read(cls, path: Path) -> "FaissIndex":
        """Open a file, memory-mapped.

        Raises:
            CheckFailedError: The file is damaged.
        """
        source, about, _ = read_derived(path)
        # IO_FLAG_MMAP, alone or with this flag, crashes for some indexes (FAISS 1.15.1)
        flag = faiss.IO_FLAG_MMAP_IFC if path.stat().st_size > _MAPPED else 0
        try:
            index = faiss.read_index(str(path), flag)
        except (RuntimeError, MemoryError) as error:
            raise CheckFailedError(f"{path} is damaged: {one_line(error)}") from None
        return cls(_own_class(index), source, **about)


def make_faiss_index(
    vectors: Floats, factory: str | None, target: float, source: Source
) -> FaissIndex:
    """Return FAISS's index of unit vectors (n, d); empty if they are too few for the factory.

    Args:
        vectors: (n, d).
        factory: FAISS's factory string; None: chosen by the number of vectors.
        target: recall@10 to reach.
        source: The rows of the vectors.
    """
    rows, width = vectors.shape
    why = ""
    if factory is None:
        factory, why = choose_factory(rows, width)
    index = make_index(factory, width)
    try:
        if not index.is_trained:
            index.train(_sample(vectors, training_size(factory, rows)))
        with stage("index", rows) as advance:
            for start in range(0, rows, _ROWS_AT_ONCE):
                block = vectors[start : start + _ROWS_AT_ONCE]
                index.add(block)
                advance(len(block))
    except (UsageError, RuntimeError):
        note(f"{factory} does not fit {rows:,} rows: every row is compared")
        return FaissIndex(make_index(EXACT, width), source, EXACT)
    faiss_index = FaissIndex(index, source, factory)
    if why:
        note(why)
    faiss_index.recall = _tune(faiss_index, vectors, target)
    if faiss_index.recall["at_10"] < target:
        note(f"recall@10 is below {target:g}; another factory reaches more")
    return faiss_index


def _sample(vectors: Floats, count: int) -> Floats:
    """Return a sample of vectors, the same in each call."""
    rows = len(vectors)
    chosen = np.random.default_rng(0).choice(rows, min(count, rows), replace=False)
    return vectors[np.sort(chosen)].astype(np.float32)


def choose_factory(rows: int, width: int) -> tuple[str, str]:
    """Return the factory string for n vectors of d dimensions, and the reason."""
    lists = 1 << round(math.log2(1.3 * math.sqrt(rows)))
    # fast-scan codes are by far the fastest, but FAISS cannot map them
    if width % 2 == 0 and rows * width // 4 <= _IN_MEMORY:
        factory = f"IVF{lists},PQ{width // 2}x4fsr"
        codes = "two numbers in 4 bits"
    else:
        factory = f"IVF{lists},SQ4"
        codes = "4 bits a number, memory-mapped"
    return factory, (
        f"{factory} for {rows:,} rows of {width} dimensions: {lists:,} lists of codes ({codes}),"
        " the best candidates compared again"
    )


def make_index(factory: str, width: int) -> Any:
    """Return the empty index of a factory string, for inner products."""
    reason = "it does not search by inner product"
    # FAISS crashes on these, or never ends
    if "IDMap" in factory or re.search(r"(?<!\d)0(?!\d)|(HNSW|NSG)1(?!\d)", factory):
        reason = "it has its own ids, or a number that is too small"
    else:
        try:
            index = _own_class(faiss.index_factory(width, factory, faiss.METRIC_INNER_PRODUCT))
            if isinstance(index, faiss.IndexRefine):  # the stored vectors do the refinement
                index = _own_class(index.base_index)
            if index.metric_type == faiss.METRIC_INNER_PRODUCT:
                return index
        except RuntimeError as error:
            reason = one_line(error)
    raise UsageError(
        f"{factory!r} is not allowed for {width}-wide vectors: {reason}; e.g. Flat, HNSW32, SQ8,"
        " IVF256,Flat",
        parameter="factory",
    )


def training_size(factory: str, rows: int) -> int:
    """Return the number of vectors to train an index on.

    Too few are refused before FAISS warns on stderr.
    """
    # bits, by default 8
    codes = re.findall(r"(?:PQ|RQ|LSQ)\d+(?:x\d+)*?(?:x(\d+))?(?![x\d])", factory)
    lists = map(int, re.findall(r"IVF(\d+)", factory))
    centroids = max([*lists, *(1 << int(bits or 8) for bits in codes)], default=0)
    needed = _POINTS_PER_CENTROID * centroids
    if rows < needed:
        raise UsageError(
            f"{factory!r} needs {needed} vectors to train on, {_POINTS_PER_CENTROID} for each of"
            f" {centroids} centroids; there are {rows}: use a smaller factory, or Flat",
            parameter="factory",
        )
    return max(256, needed)


def _own_class(index: Any) -> Any:
    """Return an index cast to its real class; the cast keeps the original alive."""
    own = faiss.downcast_index(index)
    own.referenced_objects = [index]
    return own


def _parameters(index: Any, effort: int, selector: Any) -> Any:
    """Return FAISS's parameters of a search for an index and the indexes inside it."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        inner = _parameters(index.index, effort, selector)
        return faiss.SearchParametersPreTransform(index_params=inner)
    options = {} if selector is None else {"sel": selector}
    if isinstance(index, faiss.IndexIVF):
        return faiss.SearchParametersIVF(nprobe=min(effort // 2, index.nlist), **options)
    if isinstance(index, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(efSearch=effort, **options)
    return faiss.SearchParameters(**options) if options else None


# Recall, and the effort that reaches it. The queries are rows of the index; a query's own row does
# not count.


def _tune(faiss_index: FaissIndex, vectors: Floats, target: float) -> dict[str, Any]:
    """Set the least effort that reaches a recall or is worth its cost; return the recall reached.

    Args:
        faiss_index: The index.
        vectors: (n, d) of its rows.
        target: The recall.
    """
    rows = len(vectors)
    queries = _sample(vectors, max(_FEWEST_QUERIES, min(_MOST_QUERIES, _COMPARISONS // rows)))
    nearest = nearest_of(vectors, queries, _KNOWN + 1)
    recalls: list[float] = []
    for effort in _EFFORTS:
        faiss_index.effort = effort
        recalls.append(_recall(faiss_index, vectors, queries, nearest))
        missing = 1 - max([target, *recalls[:-1]])
        gained = recalls[-1] - max(recalls[:-1], default=-1)
        if recalls[-1] >= target or gained < _WORTHWHILE * missing:
            break
    place = int(np.argmax(recalls))
    faiss_index.effort = _EFFORTS[place]
    return {
        "at_10": recalls[place],
        "queries": len(queries),
        "rows": rows,
        "effort": _EFFORTS[place],
    }


def _recall(
    faiss_index: FaissIndex, vectors: Floats, queries: Floats, nearest: Sequence[Ranking]
) -> float:
    """Return recall@10; the nearest row of a query is itself."""
    wanted = min(_NEIGHBOURS, len(vectors) - 1)
    hits = 0
    found = faiss_index.nearest(queries, wanted + 1, vectors)
    for (known, scores), (keys, _) in zip(nearest, found, strict=True):
        right = known[scores >= scores[wanted] - EQUAL]
        hits += min(np.isin(keys, right).sum(), wanted + 1) - 1
    return float(hits / max(wanted * len(queries), 1))
