"""Stored indexes of sentences: built, changed and searched by their folders. ``SentenceIndex`` is one in memory."""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from promptcli.errors import CheckFailedError, UsageError
from promptcli.notes import note, note_counts
from promptcli.recipe import Choice

if TYPE_CHECKING:
    from promptcli.data.vectors.formats import Floats
    from promptcli.encoder.encoder import Encoder
    from promptcli.index.inputs import Incoming
    from promptcli.index.neighbours import Pair
    from promptcli.index.rows import Hit
    from promptcli.index.stored import IndexManifest, Origin
    from promptcli.index.vector_index import VectorIndex
    from promptcli.models.loading import Model

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


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
    skip_bad: bool = False,
    split: bool = False,
    lexical: bool = False,
    force: bool = False,
) -> "IndexManifest":
    """Index sentences, or vectors that ``embed`` wrote, for search by cosine.

    The same call again, for the same bytes, leaves the index unchanged. Rows with a blank text are left out.
    The other columns of a table are kept, for searches with ``where``.

    Args:
        file: Sentences as for ``embed`` (- for standard input), or vectors that it wrote: a file, or a folder of
            Parquet parts, read block by block.
        folder: Folder of the index.
        model: An encoder, or what ``load`` takes. Default: ``mini``, or the encoder in the manifest of the vectors.
        factory: FAISS factory string, e.g. Flat (exact), HNSW32 or IVF256,SQ8. Default: by the number of rows.
        target_recall: recall@10 to tune an approximate index for; 1: exact.
        memory: Memory that the process may take, e.g. 4GB or 800MB.
        texts: The sentences that an .npy file of vectors was made from.
        text_field: Column of the sentence.
        id_field: Column of the id, or - for row numbers. Default: ``id``, else row numbers.
        skip_bad: Leave out lines that cannot be read, and count them.
        split: Split texts longer than the model's window at paragraph and sentence ends; results show the best part.
        lexical: Also count words (BM25), for searches with ``hybrid`` or ``lexical``.
        force: Replace an existing index.

    Raises:
        UsageError: A file that cannot be read, vectors of another or an unknown encoder, or an index that exists.
    """
    from promptcli.evaluation.lexical import load_library
    from promptcli.index import inputs, stored
    from promptcli.index.vector_index import VectorIndex
    from promptcli.models import loading as encoders
    from promptcli.models.entries import utc_now

    folder, room, model = Path(folder), size_of(memory), Choice() if model is None else model
    files, named = inputs.RowFiles(file, texts, text_field, id_field, folder, skip_bad, split), inputs.is_named(model)
    opener = functools.cache(lambda: encoders.open_model(model, dtype="auto"))
    source = files.source()
    if source is not None:
        source |= {"factory": factory, "recall": target_recall, "lexical": lexical}
    if not force and source is not None and (folder / stored.MANIFEST).is_file():
        with suppress(CheckFailedError):
            before = stored.read_manifest(folder)
            by_manifest = files.are_vectors and not named
            same = before.source == source
            if same and (by_manifest or inputs.documents_of(before, opener()).fingerprint == before.fingerprint):
                note(f"{folder} exists, unchanged")
                return before
    if split and files.are_vectors:
        raise UsageError(f"`split` is for sentences, and {file} holds vectors; give it to `embed`")
    if lexical:
        load_library()
    stored.check_target(folder, force=force)
    incoming, origin = inputs.rows_to_build(files, opener, named=named, model=inputs.registered(model))
    with stored.create(folder, force=force) as writer:
        index = VectorIndex.build(
            incoming.rows,
            factory,
            target=target_recall,
            memory=room,
            store=writer.segment,
            split=split,
            lexical=lexical,
        )
        manifest = writer.finish(stored.StoredIndex(index, origin, utc_now(), source))
    if not index.exact and index.why:
        note(index.why)
    _note_rows(incoming, index)
    if index.recall is not None and index.recall.at_10 < target_recall:
        note(f"recall@10 is below {target_recall:g}; a finer `factory` reaches more")
    return manifest


def add_to_index(
    folder: str | Path,
    file: str | Path | BinaryIO,
    model: "Model | None" = None,
    *,
    replace: bool = False,
    memory: str | int = "4GB",
    texts: str | Path | None = None,
    text_field: str | None = None,
    id_field: str | None = None,
) -> "IndexManifest":
    """Add sentences, or vectors of the same encoder, to an index. Row numbers as ids go on from its last row.

    Args:
        folder: Folder of the index.
        file: Sentences as for ``embed`` (- for standard input), or vectors of the same encoder.
        model: The encoder of the index. Default: made again from what the index remembers.
        replace: Rows replace those with the same ids; others are added.
        memory: Memory that the process may take, e.g. 4GB or 800MB.
        texts: The sentences that an .npy file of vectors was made from.
        text_field: Column of the sentence.
        id_field: Column of the id, or - for row numbers. Default: ``id``, else row numbers.

    Raises:
        UsageError: Vectors of another encoder, or rows without ids to replace by.
        CheckFailedError: The encoder of the index has changed.
    """
    from promptcli.evaluation.lexical import load_library
    from promptcli.index import inputs, stored

    folder = Path(folder)
    origin = stored.read_manifest(folder)
    if origin.lexical:
        load_library()
    files = inputs.RowFiles(file, texts, text_field, id_field, folder, split=origin.split)
    if files.are_vectors:
        incoming = files.stored(origin)
    else:
        incoming = files.encode(lambda: inputs.encoder_of(origin, model), plain=origin.prompt is None)
    if replace and not any(isinstance(name, str) for block in incoming.rows.blocks() for name in block.ids):
        raise UsageError(f"{files.file} has no ids to replace rows by; name their column as `id_field`")
    with stored.change(folder, memory=size_of(memory)) as held:  # another process may have changed it in the meantime
        inputs.check_same(held.origin.fingerprint, origin.fingerprint, str(folder))
        if replace:
            note(f"{held.index.upsert(incoming.rows):,} of {incoming.rows.shape[0]:,} rows replace others")
        else:
            held.index.add(incoming.rows)
    _note_rows(incoming, held.index)
    return stored.read_manifest(folder)


def delete_from_index(
    folder: str | Path, ids: Sequence[str] = (), *, file: str | Path | None = None
) -> "IndexManifest":
    """Delete rows by their ids: they no longer appear in results; compacting the index frees their space.

    Args:
        folder: Folder of the index.
        ids: Ids of the rows.
        file: File of ids, one a line.
    """
    from promptcli.index import stored

    wanted = [*ids, *(_read_ids(file) or ())]
    if not wanted:
        raise UsageError("no ids are given; give some, or a file of them")
    with stored.change(Path(folder)) as held:
        note(f"{held.index.delete(wanted):,} rows deleted")
    return stored.read_manifest(Path(folder))


def compact_index(folder: str | Path, *, memory: str | int = "4GB") -> "IndexManifest":
    """Rewrite an index without its deleted rows, in as few segments as the memory allows.

    Args:
        folder: Folder of the index.
        memory: Memory that the process may take, e.g. 4GB or 800MB.
    """
    from promptcli.index import stored

    with stored.change(Path(folder), memory=size_of(memory)) as held:
        held.index.compact()
    return stored.read_manifest(Path(folder))


def check_index(folder: str | Path) -> "IndexManifest":
    """Compare the sizes of an index's files with its manifest, and open it.

    Args:
        folder: Folder of the index.

    Raises:
        CheckFailedError: A file is damaged.
    """
    from promptcli.index import stored

    stored.load(Path(folder))
    manifest = index_info(folder)
    note(f"{len(manifest.files):,} files, {sum(file.size for file in manifest.files.values()):,} bytes: complete")
    return manifest


def index_info(folder: str | Path) -> "IndexManifest":
    """Print what an index holds.

    Args:
        folder: Folder of the index.
    """
    from promptcli.index import inputs, stored

    manifest = stored.read_manifest(Path(folder))
    if (name := inputs.missing_model(manifest)) is not None:
        search = f"`promptcli index search {folder} QUERY --model MODEL`"
        note(f"{name}, the model of the index, was removed or moved; name it to search or add: {search}")
    return manifest


def search_index(
    folder: str | Path,
    query: str | Path | BinaryIO | Sequence[str],
    k: int = 10,
    *,
    model: "Model | None" = None,
    hybrid: bool = False,
    lexical: bool = False,
    min_score: float | None = None,
    nprobe: int | None = None,
    ef: int | None = None,
    allow: str | Path | None = None,
    deny: str | Path | None = None,
    where: str | None = None,
    text_field: str | None = None,
) -> "Iterator[tuple[str, list[Hit]]]":
    """Yield each query with the k rows of an index that are nearest to it, best first, with their cosine.

    With ``lexical`` the score is that of BM25; with ``hybrid`` 0.6 cosine + 0.4 BM25 / the query's best BM25.

    Args:
        folder: Folder of the index.
        query: A sentence, or a list of them; a file of sentences or of vectors that ``embed`` wrote, if one has that
            name; - for standard input.
        k: Results per query.
        model: The encoder of the index. Default: made again from what the index remembers.
        hybrid: Rank by cosine and by words (BM25), joined: for exact names and codes. The index needs ``lexical``.
        lexical: Rank by words alone, without a model.
        min_score: Leave out answers below this score.
        nprobe: Lists of an IVF index to read. Default: as measured at the build.
        ef: Candidates of an HNSW index. Default: as measured at the build.
        allow: File of ids, one a line: only these may be answers.
        deny: File of ids, one a line: these may not.
        where: Condition on the other columns of the indexed table, e.g. 'year > 2020 and lang = "en"'; also on id and
            text. =, !=, <, <=, >, >=, in (...), like "%part%", is null; and, or, not, parentheses.
        text_field: Column of the sentence in the file.

    Raises:
        NotFoundError: No such index or file.
        UsageError: An effort that the index does not have, an index without BM25, a condition that does not fit
            its columns, or an empty query.
    """
    from promptcli.index import inputs, stored

    held = stored.load(Path(folder))
    if hybrid and lexical:
        raise UsageError("`hybrid` and `lexical` are two rankings; give one")
    if hybrid or lexical:
        _ = held.index.words  # refused before anything is encoded
    among = held.index.allowed(_read_ids(allow), _read_ids(deny), where)  # refused before anything is encoded

    def opener() -> "Encoder":
        return inputs.encoder_of(held.origin, model)

    batches = _queries(query, text_field, held.origin, None if lexical else opener, with_words=hybrid or lexical)
    for texts, vectors in batches:
        words = texts if hybrid or lexical else None
        answers = held.index.search(vectors, k, words=words, nprobe=nprobe, ef=ef, among=among)
        for text, hits in zip(texts, answers, strict=True):
            yield text, [hit for hit in hits if min_score is None or hit.score >= min_score]


def _queries(
    query: str | Path | BinaryIO | Sequence[str],
    text_field: str | None,
    origin: "Origin",
    opener: "Callable[[], Encoder] | None",
    *,
    with_words: bool,
) -> "Iterator[tuple[list[str], Floats | None]]":
    """Yield queries and, with an ``opener``, their vectors."""
    from promptcli.data.given import check_encodable, note_no_file
    from promptcli.index import inputs

    if isinstance(query, str) and not is_query_file(query):
        note_no_file(query)
        query = [query]
    if isinstance(query, Sequence) and not isinstance(query, str):
        for sentence in query:
            if not sentence.strip():
                raise UsageError("the query is empty; give a sentence, or a file of them")
            check_encodable(sentence)
        vectors = None if opener is None else opener().in_role("query", report=True).encode(list(query))
        yield list(query), vectors
        return
    files = inputs.RowFiles(query, text_field=text_field)
    if with_words and files.are_vectors:
        raise UsageError(f"{files.file} holds vectors; `hybrid` and `lexical` need the sentences")
    yield from inputs.read_queries(files, origin, opener)


def find_dups(folder: str | Path, threshold: float | None = None) -> "tuple[list[list[Hit]], int]":
    """Print groups of near-duplicates, the largest first: rows linked by a cosine of at least the threshold.

    Args:
        folder: Folder of the index.
        threshold: Cosine from which two rows are linked. Default: 0.95; for pairs none.
    """
    from promptcli.index import neighbours

    index = _documents(folder)
    return neighbours.dups(index, 0.95 if threshold is None else threshold), index.rows


def find_pairs(folder: str | Path, k: int = 10, threshold: float | None = None) -> "list[Pair]":
    """Return the k nearest pairs of different rows, of at least a cosine, best first."""
    from promptcli.index import neighbours

    return neighbours.pairs(_documents(folder), k, threshold)


def _documents(folder: str | Path) -> "VectorIndex":
    """Return the rows of an index, after the prompt of its model that they begin with was reported."""
    from promptcli.index import stored

    held = stored.load(Path(folder))
    if held.origin.prompt is not None:
        note(f"documents begin with the model's prompt {held.origin.text}")
    return held.index


def is_query_file(query: str) -> bool:
    """Return whether a word is the name of a file of queries, rather than a sentence."""
    with suppress(OSError, ValueError):  # it is too long, or holds a null character
        return Path(query).exists() and not Path(query).is_dir()
    return False


def size_of(text: str | int) -> int:
    """Return the bytes of a size such as 4GB."""
    size = re.fullmatch(r"(\d{1,18}(?:\.\d+)?) ?([kmgt]?)i?b?", str(text).strip(), re.IGNORECASE)
    if size is None:
        raise UsageError(f"`memory` {text} is not a size; give a number and a unit, e.g. 4GB or 800MB")
    return int(float(size[1]) * _UNITS[size[2].upper()])


def _read_ids(path: str | Path | None) -> list[str] | None:
    from promptcli.data.dialect import Fields
    from promptcli.data.rows import open_rows

    if path is None:
        return None
    with open_rows(path, Fields(remedy="")) as source:
        ids = [name for batch in source for name in batch.column("text").to_pylist() if name.strip()]
    if not ids:
        raise UsageError(f"{path} holds no ids; give one a line")
    return ids


def _note_rows(incoming: "Incoming", index: "VectorIndex") -> None:
    from promptcli.index.rows import named_rows

    if index.blank:
        note(f"{index.blank:,} of {incoming.rows.shape[0]:,} rows are blank and were left out")
    if incoming.report is not None:
        note_counts(incoming.report.rows, blank=0, truncated=incoming.report.truncated)
    if index.zero_rows:
        note(f"{named_rows(index.zero_rows)}: the vector is zero, so its score is always 0")
