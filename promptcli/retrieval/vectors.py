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
from promptcli.retrieval.derived import VECTORS, read_derived, write_derived
from promptcli.retrieval.store import Keys, Store

faiss: Any = _faiss  # its annotations do not know what it takes from NumPy
if sys.platform == "darwin":  # two OpenMP runtimes that both start threads end the process
    faiss.omp_set_num_threads(1)

EXACT = 100_000  #: up to this number of rows, all are compared
TARGET = 0.95  #: recall@10 that an approximate index is tuned for
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
_EQUAL = 1e-6  # scores that differ by less are equal
_MOST_CANDIDATES = 512  # of a graph, when its effort is tuned
_WORTHWHILE = 0.1  # the effort grows while it adds this share of the recall that is missing
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: Finds, for queries (q, d), up to k rows of each and their scores, by an effort.
Search = Callable[[Floats, int, "Effort"], list[tuple[Keys, Floats]]]


def set_search_threads(count: int) -> None:
    """Let searches of the calling thread use ``count`` processor threads."""
    faiss.omp_set_num_threads(count)


@dataclass(frozen=True)
class Effort:
    """How thoroughly an approximate index is searched; None: FAISS's default."""

    nprobe: int | None = None  #: Lists of an inverted file (IVF) to read.
    ef: int | None = None  #: Candidates that a graph (HNSW) keeps.
    factor: float = 1.0  #: Candidates compared again in finer precision, for each of 10 answers.


@dataclass(frozen=True)
class Recall:
    """Share of the 10 nearest rows that an index finds, over ``queries`` of its ``rows``."""

    at_10: float
    queries: int
    rows: int


@dataclass
class VectorFile:
    """A FAISS index over m rows, and their keys (m,), ascending."""

    index: Any
    keys: Keys
    generation: int
    factory: str
    effort: Effort
    recall: Recall | None  #: None for an exact index

    @property
    def exact(self) -> bool:
        """Whether every vector is compared, in full precision."""
        return is_exact(self.index)

    def candidates(
        self,
        units: Floats,
        k: int,
        allowed: NDArray[np.bool_] | None = None,
        effort: Effort | None = None,
    ) -> list[NDArray[np.int64]]:
        """Return the places of about k rows that may be the nearest of each query.

        Args:
            units: (q, d) of length 1.
            k: Rows of each query.
            allowed: (m,) which rows may be answers; None: all.
            effort: None: the one that was tuned.
        """
        effort = effort or self.effort
        selector = None
        if allowed is not None:
            selector = faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        fetched = k
        if isinstance(self.index, faiss.IndexRefine):
            # the factor is for ten answers; for fewer, as many candidates are compared
            effort = replace(effort, factor=max(effort.factor, 10 * effort.factor / k))
        elif not self.exact:
            fetched = round(max(k, 10) * effort.factor)
        options = _parameters(self.index, effort, selector)
        try:
            _, rows = self.index.search(units, min(fetched, len(self.keys)), params=options)
        except (RuntimeError, MemoryError) as error:
            raise PromptcliError(f"FAISS cannot search so: {_explain(error)}") from None
        return [found[found >= 0] for found in rows]

    def greater_efforts(self) -> Iterator[Effort]:
        """Yield efforts that grow until all rows are searched."""
        return _greater_efforts(self.index, self.effort, len(self.keys))

    def write(self, folder: Path, about: dict[str, Any]) -> "VectorFile":
        """Write the file, and return it as it is read again."""
        recall = None if self.recall is None else asdict(self.recall)
        about |= {"factory": self.factory, "effort": asdict(self.effort), "recall": recall}

        def write(path: Path) -> None:
            try:
                faiss.write_index(self.index, str(path))
            except RuntimeError as error:
                for code in _FULL_DISK:
                    if os.strerror(code) in str(error):
                        raise OSError(code, os.strerror(code), str(path)) from None
                raise PromptcliError(f"{path}: {_explain(error)}") from None

        write_derived(folder / VECTORS, about, {"keys": self.keys}, write)
        return self.read(folder)[0]

    @classmethod
    def read(cls, folder: Path) -> "tuple[VectorFile, dict[str, Any]]":
        """Open the file of a folder, memory-mapped, and return also its description.

        Raises:
            CheckFailedError: The file is damaged.
        """
        path = folder / VECTORS
        about, arrays = read_derived(path)
        # IO_FLAG_MMAP, alone or added to this flag, ends in a crash for some indexes (FAISS 1.15.1)
        flag = faiss.IO_FLAG_MMAP_IFC if path.stat().st_size > _MAPPED else 0
        try:
            index = faiss.read_index(str(path), flag)
        except (RuntimeError, MemoryError) as error:
            raise CheckFailedError(f"{path} is damaged: {_explain(error)}") from None
        if index.ntotal != len(arrays["keys"]):
            raise CheckFailedError(f"{path} is damaged: it has other rows")
        recall = None if about["recall"] is None else Recall(**about["recall"])
        effort = Effort(**about["effort"])
        file = cls(
            _own_class(index), arrays["keys"], about["generation"], about["factory"], effort, recall
        )
        return file, about


def make_vector_file(store: Store, search_of: Callable[[VectorFile], Search]) -> VectorFile:
    """Return FAISS's index of the rows of a store; ``search_of`` returns the search of a file whose
    recall counts.
    """
    with store.reading():
        settings = store.settings
        rows, width, generation = len(store), settings["width"], store.generation
        factory, target = settings["factory"], settings["target_recall"]
        last = store.one("SELECT max(key) FROM vectors") or 0
    why = ""
    chosen = factory
    if chosen is None:
        chosen, why = choose_factory(rows, width, target)
    index = make_index(chosen, width)
    if not index.is_trained:
        index.train(_sample(store, training_size(chosen, rows)))
    truth = None
    if not is_exact(index):
        truth = _Truth(_sample(store, min(rows, max(_FEWEST, min(_MOST, _COMPARISONS // rows)))))
    keys = []
    with stage("index", rows) as advance:
        for block in store.blocks("SELECT key, vector FROM vectors", 0, last):
            units = np.frombuffer(b"".join(vector for _, vector in block), np.float32)
            units = units.reshape(len(block), width)
            keys.append(np.array([key for key, _ in block], np.int64))
            index.add(units)
            if truth is not None:
                truth.add(units, keys[-1])
            advance(len(block))
    file = VectorFile(
        index, np.concatenate([np.empty(0, np.int64), *keys]), generation, chosen, Effort(), None
    )
    if truth is not None:
        if why:
            note(why)
        file.recall, file.effort = _tune(truth, search_of(file), index, target)
        if file.recall.at_10 < target:
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
        known = np.hstack([self._keys, keys[rows]])
        best = np.argsort(-scores, axis=1, kind="stable")[:, : _KNOWN + 1]
        self._scores = np.take_along_axis(scores, best, axis=1)
        self._keys = np.take_along_axis(known, best, axis=1)
        self.rows += len(units)

    def recall(self, search: Search, effort: Effort) -> Recall:
        """Return the recall of a search by an effort; the nearest row of a query is itself."""
        wanted = min(_NEIGHBOURS, self.rows - 1)
        hits = 0
        for known, scores, (keys, _) in zip(
            self._keys, self._scores, search(self.units, wanted + 1, effort), strict=True
        ):
            right = set(known[scores >= scores[wanted] - _EQUAL].tolist())
            hits += min(sum(key in right for key in keys.tolist()), wanted + 1) - 1
        return Recall(hits / max(wanted * len(self.units), 1), len(self.units), self.rows)


def _tune(truth: _Truth, search: Search, index: Any, target: float) -> tuple[Recall, Effort]:
    """Return the recall reached, and the least effort that reaches ``target`` or is worth its cost.

    More lists, or more candidates of a graph, are searched while recall is too low and it helps;
    then as few candidates as possible are compared again.
    """
    is_graph = isinstance(index, faiss.IndexHNSW)
    best = Effort(factor=1.0 if is_graph else 10.0)
    recall = truth.recall(search, best)
    for effort in _greater_efforts(index, best, _MOST_CANDIDATES):
        if recall.at_10 >= target:
            break
        before = recall
        now = truth.recall(search, effort)
        if now.at_10 > before.at_10:
            best, recall = effort, now
        if now.at_10 - before.at_10 < _WORTHWHILE * (1 - max(target, before.at_10)):
            break
    if is_graph:
        return recall, best
    for factor in (2.0, 3.0, 5.0) if recall.at_10 >= target else (20.0, 40.0):
        effort = replace(best, factor=factor)
        now = truth.recall(search, effort)
        if now.at_10 >= target or now.at_10 > recall.at_10:
            best, recall = effort, now
        if now.at_10 >= target:
            break
    return recall, best


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
