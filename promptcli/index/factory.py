"""FAISS factory strings: making an index of one, and how many vectors its training needs. The door to FAISS."""

import re
import sys
from collections.abc import Iterator
from typing import Any

import faiss

from promptcli.errors import UsageError

__all__ = ["check_training", "faiss", "make", "reason"]

if sys.platform == "darwin":  # there two OpenMPs that both start threads end the process
    faiss.omp_set_num_threads(1)

#: Points that k-means wants for each centroid; below, FAISS complains on stderr and clusters badly.
_POINTS_A_CENTROID = 39
_EXAMPLES = "e.g. Flat, HNSW32, SQ8, IVF256,Flat"


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
    return max([0, *products, *sums])


def _parts(index: Any) -> list[Any]:
    """Return views of an index and of the indexes inside it; they live as long as ``index`` does."""
    index = faiss.downcast_index(index)
    inner = (getattr(index, name, None) for name in ("index", "base_index", "storage"))
    return [index, *(part for one in inner if isinstance(one, faiss.Index) for part in _parts(one))]


def reason(error: Exception) -> str:
    """Return what FAISS complains of, without the C++ around it."""
    text = " ".join(str(error).split())
    text = re.sub(r"^Error in .*? at \S+\.(?:cpp|h):\d+: ", "", text)
    return re.sub(r"^Error: '.*?' failed: (?=.)|^Error: ", "", text)[:200]
