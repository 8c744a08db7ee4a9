"""A segment: rows in one FAISS index, in memory or memory-mapped, with their ids and texts as an
Arrow table.
"""

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from promptcli.data.layouts import CELLS
from promptcli.data.vectors.formats import Floats
from promptcli.errors import PromptcliError, UsageError
from promptcli.index.array_rows import Ids, RowMask, RowNumbers
from promptcli.index.factory import Effort, explain, faiss, is_exact, parameters

#: FAISS's file of a segment, and its labels.
SUFFIXES = (".faiss", ".arrow")
#: Files of a segment up to this size are read; larger ones are memory-mapped.
_MAPPED = 32 << 20
#: Rows of a table that are written as one batch: opening a file reads a page for each.
_BATCH = 1 << 20
#: Candidates fetched beyond k from an exact index: FAISS breaks ties at the end of its list
#: arbitrarily.
_MARGIN = 16
#: Two float32 scores of the same pair of unit vectors, computed in different batches, differ by
#: less.
_ROUNDING = 2e-6


@dataclass
class Segment:
    """m unit vectors of width d under FAISS, with their labels."""

    index: Any
    #: Columns ``id`` (numbers or texts), ``text`` and ``cells``, if there are any.
    labels: pa.Table
    path: Path | None = None  #: Where it was read from; its files have suffixes added.

    def __len__(self) -> int:
        return int(self.index.ntotal)

    def search(
        self, units: Floats, k: int, allowed: RowMask | None, effort: Effort
    ) -> list[tuple[RowNumbers, Floats]]:
        """Return for each of q queries its k best rows and their scores, best first, among those
        ``allowed`` (m,).
        """
        if allowed is None:
            available = len(self)
        else:
            available = int(allowed.sum())
        k = min(k, available)
        if k == 0:
            return [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in units]
        # it is for ten answers; for fewer, the same number of candidates is compared
        if effort.factor is not None:
            effort = Effort(effort.nprobe, effort.ef, max(effort.factor, 10 * effort.factor / k))
        selector = None
        if allowed is not None:
            selector = faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        options = parameters(self.index, effort, selector)
        try:
            if is_exact(self.index):
                return self._search_exactly(units, k, available, options)
            scores, rows = self.index.search(units, k, params=options)
        except (RuntimeError, MemoryError) as error:
            raise PromptcliError(f"FAISS cannot search so: {explain(error)}") from None
        if (scores[:, 1:] >= scores[:, :-1]).any():  # equal scores are ordered by row
            order = np.arange(len(rows))[:, None], np.lexsort((rows, -scores), axis=1)
            scores = scores[order]
            rows = rows[order]
        # codes may be a little too long
        scores = np.minimum(scores, 1)
        counts = (rows >= 0).sum(axis=1).tolist()
        # -1 is "no hit"
        return [(rows[query, :count], scores[query, :count]) for query, count in enumerate(counts)]

    def _search_exactly(
        self, units: Floats, k: int, available: int, options: Any
    ) -> list[tuple[RowNumbers, Floats]]:
        """Fetch some more than k, score them again in a way that does not depend on the batch, and
        cut at k.
        """
        answers = []
        fetched = self.index.search(units, min(available, k + _MARGIN), params=options)
        for query, scores, rows in zip(units, *fetched, strict=True):
            # ties go beyond the fetched rows
            while len(rows) < available and scores[k - 1] - scores[-1] < _ROUNDING:
                more = self.index.search(query[None], min(available, 2 * len(rows)), params=options)
                scores = more[0][0]
                rows = more[1][0]
            vectors = self.index.reconstruct_batch(rows).astype(np.float64)
            exact = (vectors * query.astype(np.float64)).sum(axis=1).astype(np.float32)
            order = np.lexsort((rows, -exact))[:k]
            answers.append((rows[order], exact[order]))
        return answers

    def vectors(self, rows: RowNumbers) -> Floats:
        """Return the unit vectors (r, d) of r rows, in the precision that FAISS keeps."""
        index = faiss.downcast_index(self.index)
        lists = None
        if not isinstance(index, faiss.IndexRefine):
            lists = faiss.try_extract_index_ivf(index)
        try:
            if lists is not None:
                # once read, it crashes (1.15.1)
                if isinstance(faiss.downcast_index(lists), faiss.IndexIVFFastScan):
                    raise RuntimeError("fast-scan codes without Refine")
                lists.make_direct_map()
            vectors: Floats = index.reconstruct_batch(rows)
        except RuntimeError as error:
            raise UsageError(
                f"an index of this factory gives no vectors back: {explain(error)}"
            ) from None
        return vectors

    def write(self, path: Path) -> "Segment":
        """Write the files of the segment and return it as read from them."""
        write_faiss(self.index, path.with_suffix(".faiss"))
        file = pa.OSFile(str(path.with_suffix(".arrow")), "wb")
        with file, pa.ipc.new_file(file, self.labels.schema) as writer:
            # its rows come in many small chunks
            for start in range(0, self.labels.num_rows, _BATCH):
                writer.write_table(self.labels.slice(start, _BATCH).combine_chunks())
        return Segment.read(path)

    @classmethod
    def read(cls, path: Path) -> "Segment":
        """Open the files of a segment; the labels, and a large FAISS index, are memory-mapped."""
        labels = pa.ipc.open_file(pa.memory_map(str(path.with_suffix(".arrow")))).read_all()
        file = path.with_suffix(".faiss")
        # IO_FLAG_MMAP, alone or added to this flag, ends in a crash for some indexes (FAISS 1.15.1)
        flag = faiss.IO_FLAG_MMAP_IFC if file.stat().st_size > _MAPPED else 0
        return cls(faiss.read_index(str(file), flag), labels, path)


def label_table(ids: Ids, texts: Sequence[str] | None, first: int, cells: Any = None) -> pa.Table:
    """Return ids, texts and cells as columns; a range of row numbers counts on from ``first``."""
    if isinstance(ids, range):
        column = pa.array(np.arange(first + ids.start, first + ids.stop))
    elif any(isinstance(name, str) for name in ids):
        column = pa.array(list(map(str, ids)), pa.large_string())
    else:
        column = pa.array(ids, pa.int64())
    if texts is None:
        columns = {"id": column}
    else:
        columns = {"id": column, "text": pa.array(texts, pa.large_string())}
    if cells is not None and len(cells.keys):
        columns[CELLS] = cells
    return pa.table(columns)


def join_labels(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all tables.

    Numbers next to texts as ids become texts, and texts that some lack are left out.

    Cells that some lack are null there. Memory-mapped columns stay so.
    """
    if any(table.schema.field("id").type == pa.large_string() for table in tables):
        tables = [
            table.set_column(0, "id", table.column("id").cast(pa.large_string()))
            for table in tables
        ]
    if all("text" in table.column_names for table in tables):
        columns = ["id", "text", CELLS]
    else:
        columns = ["id", CELLS]
    tables = [
        table.select([name for name in columns if name in table.column_names]) for table in tables
    ]
    return pa.concat_tables(tables, promote_options="default")


def write_faiss(index: Any, path: Path) -> None:
    """Write a FAISS index; a full disk is an ``OSError``."""
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:
        for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            if os.strerror(code) in str(error):
                raise OSError(code, os.strerror(code), str(path)) from None
        raise PromptcliError(f"{path} could not be written: {explain(error)}") from None
