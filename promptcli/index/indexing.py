"""Stored indexes of sentences: made, changed and searched by their folders. ``SentenceIndex`` is one in memory.

The input is checked before FAISS and torch are loaded.
"""

import functools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from promptcli.data.dialect import Fields
from promptcli.data.files import STANDARD, open_file, read_lines
from promptcli.errors import UsageError
from promptcli.index.inputs import (
    RowFiles,
    check_same,
    origin_of,
    read_queries,
    rebuild_encoder,
    rows_to_add,
    rows_to_build,
)
from promptcli.index.stored import (
    IndexManifest,
    Origin,
    StoredIndex,
    built_before,
    change,
    check,
    create,
    load,
    read_manifest,
)
from promptcli.models.entries import utc_now
from promptcli.notes import note, note_counts, working
from promptcli.recipe import Choice
from promptcli.storage.files import real_path

if TYPE_CHECKING:
    from promptcli.embedding.writing import EmbedReport
    from promptcli.encoder.encoder import Encoder
    from promptcli.index.neighbours import Cluster, Pair
    from promptcli.index.rows import Hit
    from promptcli.index.vector_index import VectorIndex
    from promptcli.models.loading import Model

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
#: A query and its answers, best first.
Answer = tuple[str, "list[Hit]"]


def build_index(
    file: str | Path | BinaryIO,
    folder: str | Path,
    model: "Model | None" = None,
    *,
    factory: str | None = None,
    target_recall: float = 0.95,
    memory: str | int = "4GB",
    texts: str | Path | None = None,
    text_field: str | None = None,
    id_field: str | None = None,
    force: bool = False,
    device: str = "auto",
    dtype: str = "auto",
) -> IndexManifest:
    """Index the sentences of a file, or vectors that ``embed`` wrote, in a folder.

    Where the same call has built that index before, from the same bytes, it is left as it is.

    Args:
        file: Sentences as for ``embed``; or vectors, a file or a folder of parts, read block by block.
        folder: Of the index.
        model: An encoder, or what ``load`` takes; by default ``mini``, or what the vectors' manifest says.
        factory: FAISS factory string; by default chosen by the number of rows.
        target_recall: recall@10 that an approximate index is searched for; 1: exact.
        memory: Bytes that the process may take, or a size such as ``4GB``.
        texts: The sentences that a file of vectors was made from.
        text_field: Column of the sentence.
        id_field: Column of the id.
        force: Replace an index that is there.
        device: See ``load``.
        dtype: See ``load``.

    Raises:
        UsageError: A file that cannot be read, vectors of another or an unknown encoder, or an index that is there.
    """
    folder, room = Path(folder), size_of(memory)
    files = _files(file, texts, Fields(text_field, id_field), near=folder)
    named = not (model is None or (isinstance(model, Choice) and model.model is None and not model.changes))
    opener = functools.cache(lambda: _open(Choice() if model is None else model, device, dtype))
    source = None if (digests := files.digests()) is None else {**digests, "factory": factory, "recall": target_recall}
    if source is not None and not force and (before := built_before(folder, source)) is not None:
        made_by = before.origin if files.are_vectors and not named else origin_of(opener(), _saved(model))
        if made_by == before.origin:
            note(f"{folder} is already there, unchanged")
            return before
    check(folder, force=force)
    incoming, origin = rows_to_build(files, opener, named=named, model=_saved(model))
    from promptcli.index.vector_index import VectorIndex  # after the input is known to be right: it loads FAISS

    with create(folder, force=force) as store:
        index = VectorIndex.build(incoming.rows, factory, target=target_recall, memory=room, store=store.segment)
        manifest = store.commit(StoredIndex(index, origin, utc_now(), source))
    if not index.exact and index.why:
        note(index.why)
    _say_rows(incoming.report, index)
    if index.recall is not None and index.recall.at_10 < target_recall:
        note(f"recall@10 is below {target_recall:g}; a finer `factory` reaches more")
    return manifest


def add_to_index(
    folder: str | Path,
    file: str | Path | BinaryIO,
    *,
    replace: bool = False,
    memory: str | int = "4GB",
    texts: str | Path | None = None,
    text_field: str | None = None,
    id_field: str | None = None,
    device: str = "auto",
) -> IndexManifest:
    """Add sentences, or vectors of the same encoder; row numbers as ids go on from the last row.

    Args:
        folder: Of the index.
        file: See ``build_index``.
        replace: Rows take the place of those with the same ids; others are added.
        memory: See ``build_index``.
        texts: See ``build_index``.
        text_field: See ``build_index``.
        id_field: See ``build_index``.
        device: See ``load``.

    Raises:
        UsageError: Vectors of another encoder, or rows without ids to replace by.
        CheckFailedError: The encoder of the index cannot be made again.
    """
    folder = Path(folder)
    files, origin = _files(file, texts, Fields(text_field, id_field), near=folder), read_manifest(folder).origin
    incoming = rows_to_add(files, origin, lambda: encoder_of(origin, device))
    if replace and not any(isinstance(name, str) for block in incoming.rows.blocks() for name in block.ids):
        raise UsageError(f"{files.file} has row numbers for ids; name the column of its ids by `id_field`")
    with change(folder, memory=size_of(memory)) as stored:  # another process may have changed it meanwhile
        check_same(stored.origin.fingerprint, origin.fingerprint, str(folder))
        if replace:
            replaced = stored.index.upsert(incoming.rows)
            note(f"{replaced:,} of {incoming.rows.shape[0]:,} rows replace others")
        else:
            stored.index.add(incoming.rows)
    _say_rows(incoming.report, stored.index)
    return read_manifest(folder)


def delete_from_index(folder: str | Path, ids: Sequence[str] = (), *, file: str | Path | None = None) -> IndexManifest:
    """Delete rows by their ids, given or one a line of a file; ``compact_index`` frees their room.

    Raises:
        UsageError: No ids, or one that is not there; then nothing is deleted.
    """
    wanted = [*ids, *(read_ids(file) or ())]
    if not wanted:
        raise UsageError("no ids are given; give some, or a file of them by `ids`")
    with change(Path(folder)) as stored:
        note(f"{stored.index.delete(wanted):,} rows deleted")
    return read_manifest(Path(folder))


def compact_index(folder: str | Path, *, memory: str | int = "4GB") -> IndexManifest:
    """Write an index again without its deleted rows, in as few segments as the memory allows."""
    with change(Path(folder), memory=size_of(memory)) as stored:
        stored.index.compact()
    return read_manifest(Path(folder))


def check_index(folder: str | Path) -> IndexManifest:
    """Read every file of an index whole, compare its checksum, and open it.

    Raises:
        CheckFailedError: A file is damaged.
    """
    load(Path(folder), whole=True)
    manifest = read_manifest(Path(folder))
    total = sum((Path(folder) / name).stat().st_size for name in manifest.sha256)
    note(f"{len(manifest.sha256):,} files, {total:,} bytes: all as they were written")
    return manifest


def search_index(
    folder: str | Path,
    query: str | Path | BinaryIO | Sequence[str],
    k: int = 10,
    *,
    min_score: float | None = None,
    nprobe: int | None = None,
    ef: int | None = None,
    allow: str | Path | None = None,
    deny: str | Path | None = None,
    text_field: str | None = None,
    device: str = "auto",
) -> Iterator[Answer]:
    """Yield each query with the k rows that are nearest to it, best first.

    Args:
        folder: Of the index.
        query: Sentences in a list; or a file of sentences or of vectors that ``embed`` wrote.
        k: Results per query.
        min_score: Leave out answers below this cosine.
        nprobe: Lists of an IVF index to read; by default as measured at the build.
        ef: Candidates of an HNSW index; by default as measured at the build.
        allow: File of ids, one a line: only these may be answers.
        deny: File of ids, one a line: these may not.
        text_field: Column of the sentence in the file.
        device: See ``load``.

    Raises:
        NotFoundError: No such index or file.
        UsageError: An effort that the index does not have, or a query that is no sentence.
    """
    stored = load(Path(folder))
    only, without = read_ids(allow), read_ids(deny)
    if isinstance(query, Sequence) and not isinstance(query, str):
        _check_queries(query)
        found = iter([(list(query), encoder_of(stored.origin, device).encode(list(query)))])
    else:
        files = _files(query, None, Fields(text_field))
        found = read_queries(files, stored.origin, lambda: encoder_of(stored.origin, device))
    for names, vectors in found:
        answers = stored.index.search(vectors, k, nprobe=nprobe, ef=ef, allow=only, deny=without)
        for line, hits in zip(names, answers, strict=True):
            yield line, [hit for hit in hits if min_score is None or hit.score >= min_score]


def find_dups(folder: str | Path, threshold: float = 0.95) -> "tuple[list[Cluster], int]":
    """Return groups of near-duplicates, the largest first, and the number of rows; a cosine of it links two rows."""
    from promptcli.index.neighbours import dups

    index = load(Path(folder)).index
    with working("dups", index.rows) as advance:
        return dups(index, threshold, advance), index.rows


def find_pairs(folder: str | Path, k: int = 10, threshold: float | None = None) -> "list[Pair]":
    """Return the k nearest pairs of different rows, best first, with at least a cosine."""
    from promptcli.index.neighbours import pairs

    index = load(Path(folder)).index
    with working("pairs", index.rows) as advance:
        return pairs(index, k, threshold, advance)


def encoder_of(origin: Origin, device: str = "auto") -> "Encoder":
    """Return the encoder that made an index.

    Raises:
        CheckFailedError: What its recipe makes now is another one.
        NotFoundError: Its model or backbone is not there.
    """
    from promptcli.models import loading as encoders

    return rebuild_encoder(origin, encoders.open_registry(), lambda entry, dtype: _open(entry, device, dtype))


def size_of(text: str | int) -> int:
    """Return the bytes of a size such as 4GB."""
    found = re.fullmatch(r"(\d{1,18}(?:\.\d+)?) ?([kmgt]?)i?b?", str(text).strip(), re.IGNORECASE)
    if found is None:
        raise UsageError(f"`memory` {text} is no size; give a number and a unit, e.g. 4GB or 800MB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def read_ids(path: str | Path | None) -> list[str] | None:
    """Return the ids of a file, one a line; None without a file."""
    if path is None:
        return None
    with open_file(Path(path)) as raw:
        ids = [name for line in read_lines(raw, str(path)) if (name := line.rstrip("\r\n"))]
    if not ids:
        raise UsageError(f"{path} holds no ids; give one a line")
    return ids


def _open(model: "Model", device: str, dtype: str) -> "Encoder":
    from promptcli.models import loading as encoders

    return encoders.open_model(model, device=device, dtype=dtype)


def _saved(model: "Model | None") -> str | None:
    """Return the name of the registry's model that holds the fitted numbers, if one is named."""
    word = model.model if isinstance(model, Choice) else model
    if not isinstance(word, str):
        return None
    from promptcli.models import loading as encoders

    registry = encoders.open_registry()
    found = registry.aliases().get(word, word)
    return found if found in registry.names() else None


def _files(
    file: str | Path | BinaryIO, texts: str | Path | None, fields: Fields, *, near: Path | None = None
) -> RowFiles:
    """Return where rows come from; they wait on the disk of ``near``, an index."""
    above = real_path(near).parents if near else ()
    disk = next((folder for folder in above if folder.is_dir()), None)
    path, stream = (Path(file), None) if isinstance(file, str | Path) else (STANDARD, file)
    return RowFiles(path, None if texts is None else Path(texts), fields, stream, disk)


def _say_rows(report: "EmbedReport | None", index: "VectorIndex") -> None:
    from promptcli.index.rows import named_rows

    if report is not None:
        note_counts(report.rows, blank=report.blank, truncated=report.truncated)
    if index.zero_rows:
        note(f"{named_rows(index.zero_rows)}: the vector is zero, so its score is always 0")


def _check_queries(queries: Sequence[str]) -> None:
    from promptcli.data.given import check_encodable

    for sentence in queries:
        if not sentence.strip():
            raise UsageError("the query is empty; give a sentence, a file, or - for standard input")
        check_encodable(sentence)


def is_query_file(query: str) -> bool:
    """Return whether a word is a file of queries rather than a sentence."""
    return os.path.exists(query) and not os.path.isdir(query)
