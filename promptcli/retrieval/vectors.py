"""The FAISS index of the vectors: chosen by their number, tuned to a recall, kept in a file.

This is the only module that imports FAISS. It finds candidates; their scores are computed from the
vectors themselves, see ``nearest``.
"""

import errno
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import faiss as _faiss
import numpy as np
from numpy.typing import NDArray

from promptcli.data.vectors.formats import Floats
from promptcli.errors import CheckFailedError, PromptcliError, UsageError, one_line
from promptcli.notes import note, stage
from promptcli.retrieval.derived import read_derived, write_derived
from promptcli.retrieval.ranking import EQUAL, Ranking, best, exact_scores
from promptcli.retrieval.store import Keys, Store

faiss: Any = _faiss  # its annotations do not know what it takes from NumPy
if sys.platform == "darwin":  # two OpenMP runtimes that both start threads end the process
    faiss.omp_set_num_threads(1)

EXACT = 100_000  #: up to this number of rows, all are compared
#: Points that k-means needs for each centroid; below, FAISS complains on stderr and clusters badly.
_POINTS = 39
#: Bytes of fast-scan codes, which FAISS cannot memory-map, that may be read when an index is
#: opened.
_IN_MEMORY = 256 << 20
_MAPPED = 1 << 20  # bytes of a file from which it is memory-mapped
#: Rows that are used as queries: at most, at least; the comparisons with all rows decide between
#: them.
_MOST, _FEWEST, _COMPARISONS = 1000, 200, 1_000_000_000
_NEIGHBOURS = 10  # that recall counts
#: Neighbours of a query whose exact scores are kept: any of several equal neighbours is right.
_KNOWN = 100
_MARGIN = 16  # candidates beyond k: FAISS rounds their scores
_MOST_CANDIDATES = 512  # of a graph, when its effort is tuned
_WORTHWHILE = 0.1  # the effort grows while it adds this share of the recall that is missing
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def set_search_threads(count: int) -> None:
    """Let searches of the calling thread use ``count`` processor threads."""
    faiss.omp_set_num_threads(count)


@dataclass(frozen=True)
class Effort:
    """How thoroughly an approximate index is searched; None: FAISS's default."""

    nprobe: int | None = None  #: Lists of an inverted file (IVF) to read.
    ef: int | None = None  #: Candidates that a graph (HNSW) keeps.
    factor: float = 1.0  #: Candidates compared again in finer precision, for each of 10 answers.


@dataclass
class VectorFile:
    """A FAISS index over m rows, and their keys (m,), ascending."""

    index: Any
    keys: Keys
    about: dict[str, Any]  #: factory, effort, recall, and what it was made of
    vectors_of: Callable[[Keys], Floats]  #: returns the vectors of rows

    @property
    def exact(self) -> bool:
        """Whether every vector is compared, in full precision."""
        return is_exact(self.index)

    def nearest(
        self,
        units: Floats,
        k: int,
        allowed: NDArray[np.bool_] | None = None,
        effort: Effort | None = None,
    ) -> list[Ranking]:
        """Return the k nearest rows of each query, scored by their vectors.

        Args:
            units: (q, d) of length 1.
            k: Rows of each query.
            allowed: (m,) which rows may be answers; None: all.
            effort: Of the search; None: the one that was tuned, and more if it finds too few rows.
        """
        available = len(self.keys) if allowed is None else int(np.count_nonzero(allowed))
        wanted = min(k, available)
        if not wanted:
            return [(self.keys[:0], np.empty(0, np.float32))] * len(units)
        tuned = Effort(**self.about["effort"])
        fetched = min(available, k + _MARGIN)
        places = self.candidates(units, fetched, effort or tuned, allowed)
        if effort is None and not self.exact:
            for greater in _greater_efforts(self.index, tuned, len(self.keys)):
                short = [query for query, found in enumerate(places) if len(found) < wanted]
                if not short:
                    break
                further = self.candidates(units[short], fetched, greater, allowed)
                for query, found in zip(short, further, strict=True):
                    places[query] = found
        answers = []
        for unit, found in zip(units, places, strict=True):
            while True:
                keys = self.keys[found]
                keys, scores = best(keys, exact_scores(self.vectors_of(keys), unit), len(keys))
                # ties may go beyond the fetched rows
                is_whole = not self.exact or len(found) >= available
                if is_whole or scores[k - 1] - scores[-1] >= EQUAL:
                    break
                fetched = min(available, 2 * len(found))
                [found] = self.candidates(unit[None], fetched, tuned, allowed)
            answers.append((keys[:k], scores[:k]))
        return answers

    def candidates(
        self, units: Floats, k: int, effort: Effort, allowed: NDArray[np.bool_] | None = None
    ) -> list[NDArray[np.int64]]:
        """Return the places of about k rows that may be the nearest of each query."""
        selector = None
        if allowed is not None:
            selector = faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        if isinstance(self.index, faiss.IndexRefine):
            # the factor is for ten answers; for fewer, as many candidates are compared
            effort = replace(effort, factor=max(effort.factor, 10 * effort.factor / k))
        elif not self.exact:
            k = round(max(k, 10) * effort.factor)
        options = _parameters(self.index, effort, selector)
        try:
            _, rows = self.index.search(units, min(k, len(self.keys)), params=options)
        except (RuntimeError, MemoryError) as error:
            raise PromptcliError(f"FAISS cannot search so: {_explain(error)}") from None
        return [found[found >= 0] for found in rows]

    def write(self, path: Path) -> "VectorFile":
        """Write the file, and return it as it is read again."""

        def write(path: Path) -> None:
            try:
                faiss.write_index(self.index, str(path))
            except RuntimeError as error:
                for code in _FULL_DISK:
                    if os.strerror(code) in str(error):
                        raise OSError(code, os.strerror(code), str(path)) from None
                raise PromptcliError(f"{path}: {_explain(error)}") from None

        write_derived(path, self.about, {"keys": self.keys}, write)
        return self.read(path, self.vectors_of)

    @classmethod
    def read(cls, path: Path, vectors_of: Callable[[Keys], Floats]) -> "VectorFile":
        """Open a file, memory-mapped.

        Raises:
            CheckFailedError: The file is damaged.
        """
        about, arrays = read_derived(path)
        # IO_FLAG_MMAP, alone or added to this flag, ends in a crash for some indexes (FAISS 1.15.1)
        flag = faiss.IO_FLAG_MMAP_IFC if path.stat().st_size > _MAPPED else 0
        try:
            index = faiss.read_index(str(path), flag)
        except (RuntimeError, MemoryError) as error:
            raise CheckFailedError(f"{path} is damaged: {_explain(error)}") from None
        if index.ntotal != len(arrays["keys"]):
            raise CheckFailedError(f"{path} is damaged: it has other rows")
        return cls(_own_class(index), arrays["keys"], about, vectors_of)


def make_vector_file(store: Store, **about: Any) -> VectorFile:
    """Return FAISS's index of the rows of a store, and what it was made of with it."""
    with store.reading():
        settings, rows = store.settings, len(store)
        last = store.one("SELECT max(key) FROM vectors") or 0
    width, target, why = settings["width"], settings["target_recall"], ""
    factory = settings["factory"]
    if factory is None:
        factory, why = choose_factory(rows, width, target)
    index = make_index(factory, width)
    if not index.is_trained:
        index.train(_sample(store, training_size(factory, rows)))
    truth = None
    if not is_exact(index):
        truth = _Truth(_sample(store, min(rows, max(_FEWEST, min(_MOST, _COMPARISONS // rows)))))
    keys = [np.empty(0, np.int64)]
    with stage("index", rows) as advance:
        for block in store.blocks("SELECT key, vector FROM vectors", 0, last):
            units = store.matrix(vector for _, vector in block)
            keys.append(np.array([key for key, _ in block], np.int64))
            index.add(units)
            if truth is not None:
                truth.add(units, keys[-1])
            advance(len(block))
    about |= {"factory": factory, "effort": asdict(Effort()), "recall": None}
    file = VectorFile(index, np.concatenate(keys), about, store.vectors)
    if truth is not None:
        if why:
            note(why)
        recall, effort = _tune(truth, file, target)
        about |= {"effort": asdict(effort), "recall": recall}
        if recall["at_10"] < target:
            note(f"recall@10 is below {target:g}; another factory reaches more")
    return file


def _sample(store: Store, count: int) -> Floats:
    """Return the vectors of some rows, the same in each call."""
    with store.reading():
        keys = np.array([key for (key,) in store.sql.execute("SELECT key FROM vectors")], np.int64)
        count = min(count, len(keys))
        return store.vectors(np.sort(np.random.default_rng(0).choice(keys, count, replace=False)))


def choose_factory(rows: int, width: int, target: float) -> tuple[str, str]:
    """Return the factory string for n vectors of d dimensions and a recall@10, and the reason."""
    if rows < EXACT or target >= 1:
        return "Flat", ""
    lists = 1 << round(math.log2(1.3 * math.sqrt(rows)))
    # fast-scan codes are by far the fastest, but FAISS cannot map them
    if width % 2 == 0 and rows * width // 4 <= _IN_MEMORY:
        factory = f"IVF{lists},PQ{width // 2}x4fsr,Refine(SQfp16)"
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
        reason = "it has ids of its own, or a number that is too small"
    else:
        try:
            index = _own_class(faiss.index_factory(width, factory, faiss.METRIC_INNER_PRODUCT))
            if index.metric_type == faiss.METRIC_INNER_PRODUCT:
                return index
        except RuntimeError as error:
            reason = _explain(error)
    raise UsageError(
        f"{factory!r} is not allowed for {width}-wide vectors: {reason}; e.g. Flat, HNSW32, SQ8,"
        " IVF256,Flat",
        parameter="factory",
    )


def training_size(factory: str, rows: int) -> int:
    """Return the number of vectors to train an index on.

    Fewer are refused before FAISS warns on stderr.
    """
    # bits, by default 8
    codes = re.findall(r"(?:PQ|RQ|LSQ)\d+(?:x\d+)*?(?:x(\d+))?(?![x\d])", factory)
    lists = map(int, re.findall(r"IVF(\d+)", factory))
    centroids = max([*lists, *(1 << int(bits or 8) for bits in codes)], default=0)
    if rows < _POINTS * centroids:
        raise UsageError(
            f"{factory!r} needs {_POINTS * centroids} vectors to train on, {_POINTS} for each of"
            f" {centroids} centroids; there are {rows}: take a smaller one, or Flat",
            parameter="factory",
        )
    return max(256, _POINTS * centroids)


def is_exact(index: Any) -> bool:
    """Return whether every vector is compared, in full precision."""
    return type(index) in (faiss.IndexFlat, faiss.IndexFlatIP)


def _own_class(index: Any) -> Any:
    """Return an index as an object of its own class, which keeps it alive."""
    own = faiss.downcast_index(index)
    own.referenced_objects = [index]
    return own


def _parameters(index: Any, effort: Effort, selector: Any = None) -> Any:
    """Return FAISS's parameters of a search for an index and the indexes inside it."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexRefine):
        inner = _parameters(index.base_index, effort, selector)
        return faiss.IndexRefineSearchParameters(k_factor=effort.factor, base_index_params=inner)
    if isinstance(index, faiss.IndexPreTransform):
        inner = _parameters(index.index, effort, selector)
        return faiss.SearchParametersPreTransform(index_params=inner)
    options = {} if selector is None else {"sel": selector}
    if isinstance(index, faiss.IndexIVF):
        nprobe = min(effort.nprobe or index.nprobe, index.nlist)
        return faiss.SearchParametersIVF(nprobe=nprobe, **options)
    if isinstance(index, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(efSearch=effort.ef or index.hnsw.efSearch, **options)
    return faiss.SearchParameters(**options) if options else None


def _explain(error: Exception) -> str:
    """Return FAISS's complaint without the C++ around it."""
    text = re.sub(r"^Error in .* at \S+\.(?:cpp|h):\d+: ", "", one_line(error))
    text = re.sub(r"^Error: '.*?' failed: (?=.)|^Error: ", "", text)
    text = text.replace("could not parse index string", "no index")
    return "FAISS has none" if re.search(r"C\+\+|failed", text) else text[:200]


# Recall, and the effort that reaches it. The queries are rows of the index, and their own row does
# not count.


class _Truth:
    """The exact nearest rows of q queries, which are compared block by block as they pass."""

    def __init__(self, units: Floats) -> None:
        self.units = units  #: (q, d)
        self.rows = 0
        self._scores = np.empty((len(units), 0), np.float32)
        self._keys = np.empty((len(units), 0), np.int64)

    def add(self, units: Floats, keys: Keys) -> None:
        """Compare with the next rows; of equal scores the earlier row is nearer."""
        fetched = min(len(units), _KNOWN + 1)
        scores, rows = faiss.knn(self.units, units, fetched, metric=faiss.METRIC_INNER_PRODUCT)
        scores = np.hstack([self._scores, scores])
        best = np.argsort(-scores, axis=1, kind="stable")[:, : _KNOWN + 1]
        self._scores = np.take_along_axis(scores, best, axis=1)
        self._keys = np.take_along_axis(np.hstack([self._keys, keys[rows]]), best, axis=1)
        self.rows += len(units)

    def recall(self, file: VectorFile, effort: Effort) -> float:
        """Return the recall@10 of a file by an effort; the nearest row of a query is itself."""
        wanted = min(_NEIGHBOURS, self.rows - 1)
        hits = 0
        found = file.nearest(self.units, wanted + 1, effort=effort)
        for known, scores, (keys, _) in zip(self._keys, self._scores, found, strict=True):
            right = known[scores >= scores[wanted] - EQUAL]
            hits += min(np.isin(keys, right).sum(), wanted + 1) - 1
        return float(hits / max(wanted * len(self.units), 1))


def _tune(truth: _Truth, file: VectorFile, target: float) -> tuple[dict[str, Any], Effort]:
    """Return the recall reached, and the least effort that reaches ``target`` or is worth its cost.

    More lists, or more candidates of a graph, are searched while recall is too low and it helps;
    then as few candidates as possible are compared again.
    """
    is_graph = isinstance(file.index, faiss.IndexHNSW)
    best = Effort(factor=1.0 if is_graph else 10.0)
    reached = truth.recall(file, best)
    for effort in _greater_efforts(file.index, best, _MOST_CANDIDATES):
        if reached >= target:
            break
        before, now = reached, truth.recall(file, effort)
        if now > before:
            best, reached = effort, now
        if now - before < _WORTHWHILE * (1 - max(target, before)):
            break
    factors = (2.0, 3.0, 5.0) if reached >= target else (20.0, 40.0)
    for factor in () if is_graph else factors:
        effort = replace(best, factor=factor)
        now = truth.recall(file, effort)
        if now >= target or now > reached:
            best, reached = effort, now
        if now >= target:
            break
    return {"at_10": reached, "queries": len(truth.units), "rows": truth.rows}, best


def _greater_efforts(index: Any, start: Effort, most_candidates: int) -> Iterator[Effort]:
    """Yield efforts that grow by the factor two: to all lists of an inverted file, or candidates of
    a graph.
    """
    lists = faiss.try_extract_index_ivf(index)
    if lists is not None:
        nprobe = start.nprobe or lists.nprobe
        while nprobe < lists.nlist:
            nprobe = min(lists.nlist, 2 * nprobe)
            yield replace(start, nprobe=nprobe)
    elif isinstance(index, faiss.IndexHNSW):
        ef = start.ef or index.hnsw.efSearch
        while ef < most_candidates:
            ef = min(most_candidates, 2 * ef)
            yield replace(start, ef=ef)
