"""The FAISS index of the vectors: chosen by their number, tuned to a recall, stored in a file.

Only this module imports FAISS. FAISS finds candidates; their scores are computed from the vectors,
see ``FaissIndex.nearest``.
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

from promptcli.data.vectors.precision import Floats
from promptcli.errors import CheckFailedError, PromptcliError, UsageError, join_lines
from promptcli.notes import note, stage
from promptcli.retrieval.array_files import EXACT_FACTORY, Source, read_derived, write_derived
from promptcli.retrieval.ranking import (
    SCORE_TOLERANCE,
    Ranking,
    exact_scores,
    nearest_of,
    top_k,
)
from promptcli.retrieval.store import Keys, Mask

faiss: Any = _faiss  # FAISS's annotations lack NumPy arguments
if sys.platform == "darwin":  # the threads of two OpenMP runtimes crash the process
    faiss.omp_set_num_threads(1)

#: Points that k-means needs per centroid; with fewer, FAISS warns on stderr and clusters badly.
_POINTS_PER_CENTROID = 39
#: Maximum size of fast-scan codes. FAISS cannot memory-map them: it reads them when it opens an
#: index.
_MAX_FAST_SCAN_BYTES = 256 << 20
_MIN_MAPPED_BYTES = 1 << 20  # a smaller file is read instead of memory-mapped
#: Recall is measured with as many rows as queries as this number of comparisons allows, within
#: these bounds.
_RECALL_COMPARISONS, _MIN_QUERIES, _MAX_QUERIES = 1_000_000_000, 200, 1000
_RECALL_DEPTH = 10  # neighbours that recall counts
#: Exact neighbours to compute for each query. They are more than recall counts, because a neighbour
#: that scores the same as the last counted neighbour is right, too.
_EXACT_NEIGHBOURS = 100
_EXTRA_CANDIDATES = 16  # beyond k, because FAISS rounds their scores
#: Levels of search effort, ascending. The effort is the number of candidates whose exact scores are
#: computed. A graph (HNSW) searches for as many; an inverted file (IVF) reads half as many lists.
_EFFORTS = [32 << step for step in range(9)]
_MIN_GAIN_SHARE = 0.1  # the effort grows while it adds this share of the missing recall
_ROWS_PER_BLOCK = 8192
_PLACE_IN_FAISS = re.compile(r"Error in .*:\d+: (Error: )?")  # begins the message of an error


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
    recall: dict[str, Any] | None = None  #: the measured recall; None: every row is compared

    @property
    def rows(self) -> int:
        """The number of vectors."""
        return int(self.index.ntotal)

    def nearest(
        self, units: Floats, k: int, vectors: Floats, allowed: Mask | None = None
    ) -> list[Ranking]:
        """Return the k nearest rows of each query, scored by their vectors.

        Args:
            units: (q, d) of length 1.
            k: Rows of each query.
            vectors: (n, d) of all rows.
            allowed: (m,) whether each row may be an answer; None: all.
        """
        possible_answers = self.rows if allowed is None else int(np.count_nonzero(allowed))
        rankings = []
        candidates = self.candidates(units, k, self.effort, allowed)
        for unit, keys in zip(units, candidates, strict=True):
            effort = self.effort
            while len(keys) < min(k, possible_answers) and effort < 2 * self.rows:
                effort *= 2
                [keys] = self.candidates(unit[None], k, effort, allowed)
            rankings.append(top_k(keys, exact_scores(vectors[keys], unit), k))
        return rankings

    def candidates(
        self,
        units: Floats,
        k: int,
        effort: int,
        allowed: Mask | None = None,
    ) -> list[Keys]:
        """Return the keys of candidates for the k nearest rows of each query.

        ``effort`` is one of ``_EFFORTS``, or higher.
        """
        selector = None
        if allowed is not None:
            selector = faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        options = _parameters(self.index, effort, selector)
        count = min(max(k + _EXTRA_CANDIDATES, effort), self.rows)
        try:
            _, keys = self.index.search(units, count, params=options)
        except (RuntimeError, MemoryError) as error:
            raise PromptcliError(f"FAISS cannot search this index: {join_lines(error)}") from None
        return [query_keys[query_keys >= 0] for query_keys in keys]  # -1 fills a short answer

    def write(self, path: Path) -> None:
        """Write a file."""

        def write_index(file: BinaryIO) -> None:
            faiss.write_index(self.index, faiss.PyCallbackIOWriter(file.write))

        description = {"factory": self.factory, "effort": self.effort, "recall": self.recall}
        write_derived(path, self.source, description, {}, write_index)

    @classmethod
    def read(cls, path: Path) -> "FaissIndex":
        """Open a file, memory-mapped.

        Raises:
            CheckFailedError: The file is damaged.
        """
        source, description, _ = read_derived(path)
        # IO_FLAG_MMAP, with or without this flag, crashes for some indexes (FAISS 1.15.1)
        flag = faiss.IO_FLAG_MMAP_IFC if path.stat().st_size > _MIN_MAPPED_BYTES else 0
        try:
            index = faiss.read_index(str(path), flag)
        except (RuntimeError, MemoryError) as error:
            raise CheckFailedError(f"{path} is damaged: {join_lines(error)}") from None
        return cls(_downcast(index), source, **description)


def make_faiss_index(
    vectors: Floats, factory: str | None, target: float, source: Source
) -> FaissIndex:
    """Return FAISS's index of unit vectors (n, d); it is empty if they are too few for the factory.

    Args:
        vectors: (n, d).
        factory: FAISS's factory string; None: chosen by the number of vectors.
        target: recall@10 to reach.
        source: The rows of the vectors.
    """
    rows, width = vectors.shape
    reason = ""
    if factory is None:
        factory, reason = choose_factory(rows, width)
    index = make_index(factory, width)
    try:
        if not index.is_trained:
            index.train(_sample(vectors, training_size(factory, rows)))
        with stage("index", rows) as advance:
            for start in range(0, rows, _ROWS_PER_BLOCK):
                block = vectors[start : start + _ROWS_PER_BLOCK]
                index.add(block)
                advance(len(block))
    except (UsageError, RuntimeError):
        note(f"{factory} does not fit {rows:,} rows: every row is compared")
        return FaissIndex(make_index(EXACT_FACTORY, width), source, EXACT_FACTORY)
    faiss_index = FaissIndex(index, source, factory)
    if reason:
        note(reason)
    faiss_index.recall = _tune(faiss_index, vectors, target)
    if faiss_index.recall["at_10"] < target:
        note(f"recall@10 is below {target:g}; another factory reaches more")
    return faiss_index


def _sample(vectors: Floats, count: int) -> Floats:
    """Return a sample of vectors, the same in each call."""
    rows = len(vectors)
    keys = np.random.default_rng(0).choice(rows, min(count, rows), replace=False)
    return vectors[np.sort(keys)].astype(np.float32)


def choose_factory(rows: int, width: int) -> tuple[str, str]:
    """Return the factory string for n vectors of d dimensions, and the reason."""
    lists = 1 << round(math.log2(1.3 * math.sqrt(rows)))
    # fast-scan codes are by far the fastest, but FAISS cannot memory-map them
    if width % 2 == 0 and rows * width // 4 <= _MAX_FAST_SCAN_BYTES:
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
    # with these, FAISS crashes or never ends
    if "IDMap" in factory or re.search(r"(?<!\d)0(?!\d)|(HNSW|NSG)1(?!\d)", factory):
        reason = "it has its own ids, or a number that is too small"
    else:
        try:
            index = _downcast(faiss.index_factory(width, factory, faiss.METRIC_INNER_PRODUCT))
            if isinstance(index, faiss.IndexRefine):  # we refine by the stored vectors
                index = _downcast(index.base_index)
            if index.metric_type == faiss.METRIC_INNER_PRODUCT:
                return index
        except RuntimeError as error:
            reason = "FAISS says: " + _PLACE_IN_FAISS.sub("", join_lines(error))
    raise UsageError(
        f"{factory!r} is not allowed for {width}-wide vectors: {reason}; e.g. Flat, HNSW32, SQ8,"
        " IVF256,Flat",
        parameter="factory",
    )


def training_size(factory: str, rows: int) -> int:
    """Return the number of vectors to train an index on; refuse too few vectors.

    FAISS would only warn of too few vectors on stderr.
    """
    lists = map(int, re.findall(r"IVF(\d+)", factory))
    code_bits = re.findall(r"(?:PQ|RQ|LSQ)\d+(?:x\d+)*?(?:x(\d+))?(?![x\d])", factory)
    codes = [1 << int(bits or 8) for bits in code_bits]
    centroids = max([*lists, *codes], default=0)
    min_rows = _POINTS_PER_CENTROID * centroids
    if rows < min_rows:
        raise UsageError(
            f"{factory!r} needs {min_rows} vectors to train on, {_POINTS_PER_CENTROID} for each of"
            f" {centroids} centroids; there are {rows}: use a smaller factory, or Flat",
            parameter="factory",
        )
    return max(256, min_rows)


def _downcast(index: Any) -> Any:
    """Return an index cast to its real class; the cast index keeps the original alive."""
    downcast_index = faiss.downcast_index(index)
    downcast_index.referenced_objects = [index]
    return downcast_index


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


def _tune(faiss_index: FaissIndex, vectors: Floats, target: float) -> dict[str, Any]:
    """Set the lowest effort that reaches a recall, or after which more effort adds little; return
    the recall.

    The queries are rows of the index.

    Args:
        faiss_index: The index.
        vectors: (n, d) of its rows.
        target: The recall.
    """
    rows = len(vectors)
    query_count = max(_MIN_QUERIES, min(_MAX_QUERIES, _RECALL_COMPARISONS // rows))
    queries = _sample(vectors, query_count)
    nearest = nearest_of(vectors, queries, _EXACT_NEIGHBOURS + 1)
    recalls: list[float] = []
    for effort in _EFFORTS:
        faiss_index.effort = effort
        recalls.append(_recall(faiss_index, vectors, queries, nearest))
        missing_recall = 1 - max([target, *recalls[:-1]])
        gain = recalls[-1] - max(recalls[:-1], default=-1)
        if recalls[-1] >= target or gain < _MIN_GAIN_SHARE * missing_recall:
            break
    best = int(np.argmax(recalls))
    faiss_index.effort = _EFFORTS[best]
    return {
        "at_10": recalls[best],
        "queries": len(queries),
        "rows": rows,
        "effort": _EFFORTS[best],
    }


def _recall(
    faiss_index: FaissIndex, vectors: Floats, queries: Floats, nearest: Sequence[Ranking]
) -> float:
    """Return recall@10 of queries that are rows themselves; a query's own row does not count."""
    depth = min(_RECALL_DEPTH, len(vectors) - 1)
    hits = 0
    rankings = faiss_index.nearest(queries, depth + 1, vectors)
    for (exact_keys, scores), (keys, _) in zip(nearest, rankings, strict=True):
        right_keys = exact_keys[scores >= scores[depth] - SCORE_TOLERANCE]
        hits += min(np.isin(keys, right_keys).sum(), depth + 1) - 1
    return float(hits / max(depth * len(queries), 1))
