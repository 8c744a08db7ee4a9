"""FAISS factory strings: choosing one, making an index of it, and tuning its search to a recall.

The one place where FAISS is imported.
"""

import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import faiss as _faiss
import numpy as np

from promptcli.data.vectors.formats import Floats
from promptcli.errors import UsageError, one_line
from promptcli.index.array_rows import RowNumbers, unit_rows

faiss: Any = _faiss  # its annotations do not know what it takes from NumPy

if sys.platform == "darwin":  # two OpenMP runtimes that both start threads end the process
    faiss.omp_set_num_threads(1)

#: Up to this number of rows, all are compared.
EXACT = 100_000
#: Points that k-means needs for each centroid; below, FAISS complains on stderr and clusters badly.
_POINTS = 39
#: Bytes of fast-scan codes, which FAISS cannot memory-map, that may be read when an index is
#: opened.
_IN_MEMORY = 256 << 20
#: Neighbours that recall counts.
NEIGHBOURS = 10
#: Rows that are used as queries: at most, at least; the comparisons with all rows decide between
#: them.
_MOST = 1000
_FEWEST = 200
_COMPARISONS = 1_000_000_000
#: Neighbours of a query whose exact scores are kept: any of several equal neighbours is right.
_KNOWN = 100
#: Scores that differ by less are equal.
_EQUAL = 1e-6
#: Candidates of a graph at most, when its effort is tuned.
_MOST_CANDIDATES = 512
#: The effort grows while it adds this share of the recall that is missing.
_WORTHWHILE = 0.1


def set_search_threads(count: int) -> None:
    """Let searches of the calling thread use ``count`` processor threads."""
    faiss.omp_set_num_threads(count)


@dataclass(frozen=True)
class Effort:
    """How thoroughly an approximate index is searched; None: FAISS's default."""

    nprobe: int | None = None  #: Lists of an inverted file (IVF) to read.
    ef: int | None = None  #: Candidates that a graph (HNSW) keeps.
    #: Candidates compared again in finer precision, for each of 10 answers.
    factor: float | None = None


@dataclass(frozen=True)
class Recall:
    """Share of the 10 nearest rows that an index finds, over ``queries`` of its ``rows`` at the
    build.
    """

    at_10: float
    queries: int
    rows: int


def choose_factory(rows: int, width: int, target: float) -> tuple[str, str]:
    """Return the factory string for n vectors of d dimensions and a recall@10, and the reason, one
    line.
    """
    if rows < EXACT or target >= 1:
        if rows < EXACT:
            why = f"fewer than {EXACT:,} rows"
        else:
            why = "recall 1"
        return "Flat", f"Flat for {why}: every row is compared"
    lists = 1 << round(math.log2(1.3 * math.sqrt(rows)))
    # fast-scan codes are by far the fastest, but FAISS cannot map them
    fast = width % 2 == 0 and rows * width // 4 <= _IN_MEMORY
    factory = f"IVF{lists},{f'PQ{width // 2}x4fsr' if fast else 'SQ4'},Refine(SQfp16)"
    codes = "two numbers in 4 bits, in memory" if fast else "4 bits a number, memory-mapped"
    return (
        factory,
        (
            f"{factory} for {rows:,} rows of {width} dimensions: {lists:,} lists of codes"
            f" ({codes}), the best candidates compared again in half precision"
        ),
    )


def make_index(factory: str, width: int) -> Any:
    """Return the empty index of a factory string.

    One that FAISS does not make for inner products is refused.
    """
    index = None
    reason = "it holds a number that is too small"
    if "IDMap" in factory:
        reason = "an index has ids already"
    elif not re.search(
        r"(?<!\d)0(?!\d)|(HNSW|NSG)1(?!\d)", factory
    ):  # FAISS crashes on these, or never ends
        try:
            index = faiss.index_factory(width, factory, faiss.METRIC_INNER_PRODUCT)
        except RuntimeError as error:
            reason = explain(error)
        if index is not None and any(
            inner.metric_type != faiss.METRIC_INNER_PRODUCT for inner in _nested_indexes(index)
        ):
            index = None
            reason = "it does not search by inner product"
        if index is not None and not _keeps_cosines(index):
            refined = f"{factory},Refine(SQfp16)"
            raise UsageError(
                f"factory {factory!r} does not keep the cosines; {refined} scores by the vectors"
            )
    if index is None:
        raise UsageError(
            f"factory {factory!r} is not allowed for {width}-wide vectors: {reason};"
            " e.g. Flat, HNSW32, SQ8, IVF256,Flat"
        )
    return index


def _keeps_cosines(index: Any) -> bool:
    """Return whether scores are the cosines of the vectors, up to the rounding of their numbers.

    A shorter vector, one around another centre, and codes of several numbers at once have others.
    """
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexRefine):
        return _keeps_cosines(index.refine_index)
    if isinstance(index, faiss.IndexPreTransform):
        kept = (
            faiss.RandomRotationMatrix,
            faiss.OPQMatrix,
            faiss.RemapDimensionsTransform,
            faiss.NormalizationTransform,
        )
        chain = [
            faiss.downcast_VectorTransform(index.chain.at(place))
            for place in range(index.chain.size())
        ]
        keeps = all(isinstance(each, kept) and each.d_out >= each.d_in for each in chain)
        return keeps and _keeps_cosines(index.index)
    numbers = (
        faiss.IndexFlat,
        faiss.IndexScalarQuantizer,
        faiss.IndexIVFFlat,
        faiss.IndexIVFScalarQuantizer,
    )
    storage = getattr(index, "storage", None)
    if storage is None:
        return isinstance(index, numbers)
    return _keeps_cosines(storage)


def training_size(factory: str, rows: int) -> int:
    """Return the number of vectors to train an index on.

    Fewer are refused before FAISS warns on stderr.
    """
    # bits, by default 8
    codes = re.findall(r"(?:PQ|RQ|LSQ)\d+(?:x\d+)*?(?:x(\d+))?(?![x\d])", factory)
    centroids = max(
        [*map(int, re.findall(r"IVF(\d+)", factory)), *(1 << int(bits or 8) for bits in codes)],
        default=0,
    )
    if rows < _POINTS * centroids:
        needed = (
            f"needs {_POINTS * centroids} vectors to train on, {_POINTS} for each of {centroids}"
            " centroids"
        )
        raise UsageError(
            f"factory {factory!r} {needed}; there are {rows}: take a smaller one, or Flat"
        )
    return max(256, _POINTS * centroids)


def copy(index: Any) -> Any:
    """Return a copy; FAISS clones nearly all kinds, and a clone is the only complete copy of
    fast-scan lists.
    """
    try:
        return faiss.clone_index(index)
    except RuntimeError:
        return faiss.deserialize_index(faiss.serialize_index(index))


def row_bytes(index: Any) -> int:
    """Return about how many bytes a row takes in an index."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexRefine):
        return row_bytes(index.base_index) + row_bytes(index.refine_index)
    if isinstance(index, faiss.IndexPreTransform):
        return row_bytes(index.index)
    if isinstance(index, faiss.IndexHNSW):
        return row_bytes(index.storage) + 10 * int(index.hnsw.nb_neighbors(0))
    return int(getattr(index, "code_size", 4 * index.d)) + (
        8 if isinstance(index, faiss.IndexIVF) else 0
    )


def is_exact(index: Any) -> bool:
    """Return whether every vector is compared, in full precision."""
    return type(faiss.downcast_index(index)) in (faiss.IndexFlat, faiss.IndexFlatIP)


def parameters(index: Any, effort: Effort, selector: Any = None) -> Any:
    """Return FAISS's parameters of a search for an index and the indexes inside it.

    None: its defaults.

    ``selector`` is FAISS's IDSelector of the rows that may be answers; None: all.
    """
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexRefine):
        inner = parameters(index.base_index, effort, selector)
        return faiss.IndexRefineSearchParameters(
            k_factor=effort.factor or index.k_factor, base_index_params=inner
        )
    if isinstance(index, faiss.IndexPreTransform):
        return faiss.SearchParametersPreTransform(
            index_params=parameters(index.index, effort, selector)
        )
    if selector is None:
        options = {}
    else:
        options = {"sel": selector}
    if isinstance(index, faiss.IndexIVF):
        return faiss.SearchParametersIVF(
            nprobe=min(effort.nprobe or index.nprobe, index.nlist), **options
        )
    if isinstance(index, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(efSearch=effort.ef or index.hnsw.efSearch, **options)
    if options:
        return faiss.SearchParameters(**options)
    return None


def explain(error: Exception) -> str:
    """Return FAISS's complaint without the C++ around it."""
    text = re.sub(r"^Error in .* at \S+\.(?:cpp|h):\d+: ", "", one_line(error))
    text = re.sub(r"^Error: '.*?' failed: (?=.)|^Error: ", "", text).replace(
        "could not parse index string", "no index"
    )
    if re.search(r"C\+\+|failed", text):
        return "FAISS has none"
    return text[:200]


def _nested_indexes(index: Any) -> list[Any]:
    """Return an index and the indexes inside it, each by its own class.

    They live only while ``index`` does.
    """
    index = faiss.downcast_index(index)
    indexes = [index]
    for name in ("index", "base_index", "refine_index", "storage"):
        inner = getattr(index, name, None)
        if isinstance(inner, faiss.Index):
            indexes.extend(_nested_indexes(inner))
    return indexes


# Recall, and the effort that reaches it. The queries are rows of the index, and their own row does
# not count.

#: Finds, for queries (q, d), up to k rows and scores of each by an effort.
SearchFunction = Callable[[Floats, int, Effort], list[tuple[RowNumbers, Floats]]]


def queries_for(rows: int) -> int:
    """Return the number of queries by which the recall of n rows is measured."""
    return min(rows, max(_FEWEST, min(_MOST, _COMPARISONS // rows)))


class Truth:
    """The exact nearest rows of q queries among n rows, which are compared block by block as they
    pass.
    """

    def __init__(self, query_rows: RowNumbers, vectors: Floats) -> None:
        self.units = unit_rows(vectors)  #: (q, d)
        self.rows = 0
        self._asked = query_rows
        self._own = np.full(len(query_rows), -1)
        self._scores = np.empty((len(query_rows), 0), np.float32)
        self._numbers = np.empty((len(query_rows), 0), np.int64)

    def add(self, units: Floats, source: RowNumbers) -> None:
        """Compare with the next rows, whose numbers in the source of the queries are ``source``,
        ascending.
        """
        is_among_them = np.isin(self._asked, source)
        places = np.searchsorted(source, self._asked[is_among_them])
        self._own[is_among_them] = self.rows + places
        fetched = min(len(units), _KNOWN + 1)
        scores, rows = faiss.knn(self.units, units, fetched, metric=faiss.METRIC_INNER_PRODUCT)
        self._keep_nearest(scores, self.rows + rows)
        self.rows += len(units)

    def _keep_nearest(self, scores: Floats, numbers: RowNumbers) -> None:
        """Keep the best of the rows known so far and of further ones, both (q, k); of equal scores
        the earlier row.
        """
        scores = np.hstack([self._scores, scores])
        numbers = np.hstack([self._numbers, numbers])
        order = np.argsort(-scores, axis=1, kind="stable")
        best = order[:, : _KNOWN + 1]
        self._scores = np.take_along_axis(scores, best, axis=1)
        self._numbers = np.take_along_axis(numbers, best, axis=1)

    def recall(self, search: SearchFunction, effort: Effort) -> Recall:
        """Return the recall of a search by an effort."""
        wanted = min(NEIGHBOURS, self.rows - 1)
        if wanted <= 0:
            return Recall(1.0, len(self.units), self.rows)
        answers = search(self.units, wanted + 1, effort)
        hits = 0
        for own, known, scores, (rows, _) in zip(
            self._own, self._numbers, self._scores, answers, strict=True
        ):
            others = known != own
            known = known[others]
            scores = scores[others]
            right = set(known[scores >= scores[wanted - 1] - _EQUAL].tolist())
            hits += sum(row in right for row in rows[rows != own][:wanted].tolist())
        return Recall(hits / (wanted * len(self.units)), len(self.units), self.rows)


def tune(truth: Truth, search: SearchFunction, index: Any, target: float) -> tuple[Recall, Effort]:
    """Return the recall reached, and the least effort that reaches ``target`` or is worth its cost.

    More lists, or more candidates of a graph, are searched while recall is too low and it helps;
    then as few candidates as possible are compared again.
    """
    if isinstance(index, faiss.IndexRefine):
        best = Effort(factor=10.0)
    else:
        best = Effort()
    recall = truth.recall(search, best)
    for effort in greater_efforts(index, best, _MOST_CANDIDATES):
        if recall.at_10 >= target:
            break
        before = recall
        now = truth.recall(search, effort)
        if now.at_10 > before.at_10:
            best = effort
            recall = now
        if now.at_10 - before.at_10 < _WORTHWHILE * (1 - max(target, before.at_10)):
            break
    if best.factor is None:
        return recall, best
    for factor in (2.0, 3.0, 5.0) if recall.at_10 >= target else (20.0, 40.0):
        effort = replace(best, factor=factor)
        now = truth.recall(search, effort)
        if now.at_10 >= target or now.at_10 > recall.at_10:
            best = effort
            recall = now
        if now.at_10 >= target:
            break
    return recall, best


def greater_efforts(index: Any, start: Effort, most_candidates: int) -> Iterator[Effort]:
    """Yield efforts that grow by the factor two: to all lists of an inverted file, or candidates of
    a graph.
    """
    lists = faiss.try_extract_index_ivf(index)
    graph = faiss.downcast_index(index)
    if lists is not None:
        nprobe = start.nprobe or lists.nprobe
        while nprobe < lists.nlist:
            nprobe = min(lists.nlist, 2 * nprobe)
            yield replace(start, nprobe=nprobe)
    elif isinstance(graph, faiss.IndexHNSW):
        ef = start.ef or graph.hnsw.efSearch
        while ef < most_candidates:
            ef = min(most_candidates, 2 * ef)
            yield replace(start, ef=ef)
