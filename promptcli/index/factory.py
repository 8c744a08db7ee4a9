"""FAISS factory strings: choosing one, making an index of it, what its training needs, how it is searched.

The one place where FAISS is imported from.
"""

import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import faiss as _faiss

from promptcli.errors import UsageError, one_line

faiss: Any = _faiss  # its annotations know little of what it takes from NumPy

if sys.platform == "darwin":  # there two OpenMPs that both start threads end the process
    faiss.omp_set_num_threads(1)

#: Points that k-means wants for each centroid; below, FAISS complains on stderr and clusters badly.
_POINTS_A_CENTROID = 39
#: Bytes of short codes that are read into memory when an index is opened; more are memory-mapped.
_OPENED = 256 << 20
_EXAMPLES = "e.g. Flat, HNSW32, SQ8, IVF256,Flat"
#: Fewer rows than this are compared one by one.
EXACT = 100_000


@dataclass(frozen=True)
class Effort:
    """How thoroughly an approximate index is searched; None: FAISS's own, or nothing of the kind is in the index."""

    nprobe: int | None = None  #: Lists of an inverted file that are read.
    ef: int | None = None  #: Candidates that a graph (HNSW) keeps.
    factor: float | None = None  #: Candidates for each answer that are compared again with finer vectors.


def choose(rows: int, width: int, target: float) -> tuple[str, str]:
    """Return the factory string for n rows of d numbers where the user names none, and why, in one line.

    ``target`` is the recall@10 to be reached; 1 asks for an exact index.
    """
    if rows < EXACT or target >= 1:
        why = f"fewer than {EXACT:,} rows" if rows < EXACT else "recall 1"
        return "Flat", f"Flat for {why}: every row is compared"
    lists = 1 << round(math.log2(1.3 * math.sqrt(rows)))
    # fast-scan codes are by far the fastest, but FAISS cannot map them
    fast = width % 2 == 0 and rows * width // 4 <= _OPENED
    factory = f"IVF{lists},{f'PQ{width // 2}x4fsr' if fast else 'SQ4'},Refine(SQfp16)"
    codes = "two numbers in 4 bits, in memory" if fast else "4 bits a number, memory-mapped"
    return factory, (
        f"{factory} for {rows:,} rows of {width} numbers: {lists:,} lists of codes ({codes}), the best candidates"
        " compared again in half precision"
    )


def make(factory: str, width: int) -> Any:
    """Return the empty index of a factory string.

    Raises:
        UsageError: FAISS does not know it, or does not make it for inner products.
    """
    index, refusal = None, "it holds a number that is too small"
    if not re.search(r"(?<!\d)0(?!\d)|(HNSW|NSG)1(?!\d)", factory):  # FAISS crashes on these, or never ends
        try:
            index = faiss.index_factory(width, factory, faiss.METRIC_INNER_PRODUCT)
        except RuntimeError as error:
            refusal = reason(error)
        if index is not None and any(part.metric_type != faiss.METRIC_INNER_PRODUCT for part in _parts(index)):
            index, refusal = None, "it does not search by inner product"
    if index is None:
        raise UsageError(f"factory {factory!r} is not allowed for {width}-wide vectors: {refusal}; {_EXAMPLES}")
    return index


def check_training(index: Any, rows: int, factory: str) -> None:
    """Refuse too few vectors before FAISS warns on stderr.

    Raises:
        UsageError: with the number that is needed.
    """
    rotation = [(256, rows)] if re.search(r"(^|,)OPQ", factory) else []  # trained with a product quantizer of 8 bits
    for centroids, there in [*rotation, *_needs(index, rows)]:
        if there < _POINTS_A_CENTROID * centroids:
            raise UsageError(
                f"factory {factory!r} needs {_POINTS_A_CENTROID * centroids} vectors to train on ({_POINTS_A_CENTROID}"
                f" for each of {centroids} centroids) and there are {there}; take a smaller one, or Flat"
            )


def copy(index: Any) -> Any:
    """Return a copy of an index; FAISS clones nearly all kinds, and fast-scan lists are whole only then."""
    try:
        return faiss.clone_index(index)
    except RuntimeError:
        return faiss.deserialize_index(faiss.serialize_index(index))


def needed(index: Any) -> int:
    """Return how many vectors an index is trained on at least; 0 where it is not trained."""
    if index.is_trained:
        return 0
    return max(256, _POINTS_A_CENTROID * max((centroids for centroids, _ in _needs(index, 0)), default=0))


def row_bytes(index: Any) -> int:
    """Return about how many bytes a row takes in an index."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexRefine):
        return row_bytes(index.base_index) + row_bytes(index.refine_index)
    if isinstance(index, faiss.IndexPreTransform):
        return row_bytes(index.index)
    if isinstance(index, faiss.IndexHNSW):
        return row_bytes(index.storage) + 10 * int(index.hnsw.nb_neighbors(0))
    return int(getattr(index, "code_size", 4 * index.d)) + (8 if isinstance(index, faiss.IndexIVF) else 0)


def adjusted(effort: Effort, index: Any, factory: str, *, nprobe: int | None, ef: int | None) -> Effort:
    """Return an effort with what a user says instead.

    Raises:
        UsageError: the index has nothing of the kind, or the number is below 1.
    """
    if nprobe is None and ef is None:
        return effort
    lists = faiss.try_extract_index_ivf(index)
    there = {"nprobe": ("IVF", lists is not None), "ef": ("HNSW", isinstance(index, faiss.IndexHNSW))}
    given = {name: value for name, value in (("nprobe", nprobe), ("ef", ef)) if value is not None}
    for name, value in given.items():
        kind, has = there[name]
        if not has:
            raise UsageError(f"{name} is for indexes with {kind} in their factory; this one's is {factory}")
        if value < 1:
            raise UsageError(f"{name} is {value}; give at least 1")
    return replace(effort, **given)


def parameters(index: Any, effort: Effort, selector: Any) -> Any:
    """Return FAISS's parameters of one search, for an index and the indexes inside it; None where all is as usual.

    ``selector`` is FAISS's IDSelector of the rows that may be answers; None: all.
    """
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexRefine):
        inner = parameters(index.base_index, effort, selector)
        return faiss.IndexRefineSearchParameters(k_factor=effort.factor or index.k_factor, base_index_params=inner)
    if isinstance(index, faiss.IndexPreTransform):
        return faiss.SearchParametersPreTransform(index_params=parameters(index.index, effort, selector))
    given = {} if selector is None else {"sel": selector}
    if isinstance(index, faiss.IndexIVF):
        return faiss.SearchParametersIVF(nprobe=min(effort.nprobe or index.nprobe, index.nlist), **given)
    if isinstance(index, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(efSearch=effort.ef or index.hnsw.efSearch, **given)
    return faiss.SearchParameters(**given) if given else None


def _needs(index: Any, rows: int) -> Iterator[tuple[int, int]]:
    """Yield numbers of centroids to be trained, and of the points they are trained on."""
    for part in _parts(index):
        yield _codes(part), rows
        if isinstance(part, faiss.IndexIVF):
            yield part.nlist, rows
            yield from _needs(part.quantizer, part.nlist)  # trained on the centroids


def _codes(index: Any) -> int:
    """Return the number of centroids that a quantizer of an index is trained for; 0 where it has none."""
    found = [getattr(index, name, None) for name in ("pq", "rq", "lsq", "prq", "plsq")]
    products = [one.ksub for one in found if isinstance(one, faiss.ProductQuantizer)]
    sums = [
        1 << int(faiss.vector_to_array(one.nbits).max()) for one in found if isinstance(one, faiss.AdditiveQuantizer)
    ]
    return int(max([0, *products, *sums]))


def _parts(index: Any) -> list[Any]:
    """Return views of an index and of the indexes inside it; they live as long as ``index`` does."""
    index = faiss.downcast_index(index)
    inner = (getattr(index, name, None) for name in ("index", "base_index", "refine_index", "storage"))
    return [index, *(part for one in inner if isinstance(one, faiss.Index) for part in _parts(one))]


def reason(error: Exception) -> str:
    """Return what FAISS complains of, without the C++ around it."""
    text = one_line(error)
    text = re.sub(r"^Error in .*? at \S+\.(?:cpp|h):\d+: ", "", text)
    return re.sub(r"^Error: '.*?' failed: (?=.)|^Error: ", "", text)[:200]
