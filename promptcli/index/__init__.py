"""The public interface of the index: stored indexes, built, changed and searched by their folders.

It imports nothing heavy, since the command line reads it: its functions import the work. An index
in memory is a ``SentenceIndex``; ``sync`` and ``file_search`` have files of their own. This is the
only package that imports FAISS.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from promptcli.data.dialect import ColumnChoice, names_file
from promptcli.data.given import check_arguments
from promptcli.errors import UsageError, counted
from promptcli.index.options import TARGET, reaches, size_of
from promptcli.notes import note
from promptcli.recipe import Choice

if TYPE_CHECKING:
    from promptcli.index.neighbours import Group
    from promptcli.index.rows import Hit, Rows
    from promptcli.index.stored import IndexManifest
    from promptcli.models.loading import Model


@check_arguments
def build_index(
    file: str | Path | BinaryIO,
    folder: str | Path,
    model: "Model | None" = None,
    *,
    factory: str | None = None,
    target_recall: float = TARGET,
    memory: str | int = "4GB",
    text_field: str | None = None,
    id_field: str | None = None,
    rows: Literal["auto", "passages", "lines"] = "auto",
    split: bool = False,
    lexical: bool = False,
    force: bool = False,
    bad_lines: str | Path | None = None,
) -> "IndexManifest":
    """Index sentences, or vectors that ``embed`` wrote, for search by cosine.

    A text becomes passages, with their headings and the ids FILE:LINES; one with a sentence a line
    becomes its lines, with numbers. Rows with a blank text are left out. The other columns of a
    table are kept, for searches with ``where``.

    Args:
        file: Sentences as for ``embed`` (- for standard input), or vectors that it wrote: a file,
            or a folder of Parquet parts, read block by block.
        folder: Folder of the index.
        model: An encoder, or what ``load`` takes. Default: ``mini``, or the encoder in the manifest
            of the vectors.
        factory: FAISS factory string, e.g. Flat (exact), HNSW32 or IVF256,SQ8. Default: by the
            number of rows.
        target_recall: recall@10 to tune an approximate index for; 1: exact.
        memory: Memory that the process may take, e.g. 4GB or 800MB.
        text_field: Column of the sentence.
        id_field: Column of the id, or - for row numbers. Default: ``id``, else row numbers.
        rows: What a row of a text is: passages (paragraphs, joined or split to a length that is
            found well), lines, or by the look of each text (auto: lines if it has a sentence a
            line). Of a table it is the rows.
        split: Split lines, and rows of tables, that are longer than the model's window at paragraph
            and sentence ends; results show the best part.
        lexical: Also count words (BM25), for hybrid and lexical searches.
        force: Replace an existing index.
        bad_lines: File that gets the rows that cannot be read, as JSON lines with number, reason
            and line; they are left out. Default: the first one is refused.

    Raises:
        UsageError: A file that cannot be read, vectors of another or an unknown encoder, or an
            index that exists.
    """
    from promptcli.data.bad_lines import bad_rows
    from promptcli.evaluation.lexical import load_library
    from promptcli.index import inputs, stored
    from promptcli.index.vector_index import VectorIndex
    from promptcli.models.entries import utc_now

    folder = Path(folder)
    room = size_of(memory)
    files = inputs.RowFiles(file, ColumnChoice(text_field, id_field), folder, split, rows)
    if files.file.is_dir() and not files.are_vectors:
        raise UsageError(
            f"{file} is a folder; `promptcli index sync {folder} {file}` indexes the files in it"
        )
    for option, is_given in (("split", split), ("bad_lines", bad_lines is not None)):
        if is_given and files.are_vectors:
            raise UsageError(
                f"`{option}` is for sentences, and {file} holds vectors; give it to `embed`"
            )
    if lexical:
        load_library()
    stored.check_target(folder, force=force)
    with bad_rows(bad_lines) as bad:
        vectors, origin, reading = inputs.rows_to_build(
            files.with_bad(bad), Choice() if model is None else model
        )
    with stored.create(folder, force=force) as writer:
        index = VectorIndex.build(
            vectors,
            factory,
            target=target_recall,
            memory=room,
            store=writer.segment,
            split=split,
            lexical=lexical,
        )
        return writer.finish(stored.StoredIndex(index, origin, utc_now(), reading=reading))


@check_arguments
def add_to_index(
    folder: str | Path,
    file: str | Path | BinaryIO,
    model: "Model | None" = None,
    *,
    replace: bool = False,
    allow_duplicates: bool = False,
    memory: str | int = "4GB",
    text_field: str | None = None,
    id_field: str | None = None,
    bad_lines: str | Path | None = None,
) -> "IndexManifest":
    """Add sentences, or vectors of the same encoder, to an index.

    Row numbers as ids go on from its last row.

    Args:
        folder: Folder of the index.
        file: Sentences as for ``embed`` (- for standard input), or vectors of the same encoder.
        model: The encoder of the index. Default: made again from what the index remembers.
        replace: Rows replace those with the same ids; others are added.
        allow_duplicates: Add rows, too, whose text the index has under another id.
        memory: Memory that the process may take, e.g. 4GB or 800MB.
        text_field: Column of the sentence. Default: that of the index.
        id_field: Column of the id, or - for row numbers. Default: that of the index.
        bad_lines: See ``build_index``.

    Raises:
        UsageError: Vectors of another encoder, rows without ids to replace by, or texts that the
            index has.
        CheckFailedError: The encoder of the index has changed.
    """
    from promptcli.data.bad_lines import bad_rows
    from promptcli.embedding.passages import LINES
    from promptcli.evaluation.lexical import load_library
    from promptcli.index import inputs, stored
    from promptcli.index.repeats import Repeats

    folder = Path(folder)
    origin = stored.read_manifest(folder)
    if origin.lexical:
        load_library()
    read = origin.reading or stored.Reading(LINES)
    fields = ColumnChoice(
        text_field, id_field, text_before=read.text_field, id_before=read.id_field
    )
    files = inputs.RowFiles(file, fields, folder, origin.split, read.rows)
    repeats = None
    if not allow_duplicates:
        repeats = Repeats(stored.load(folder).index)
    rows: Rows
    if files.are_vectors and bad_lines is not None:
        raise UsageError(
            f"`bad_lines` is for sentences, and {file} holds vectors; give it to `embed`"
        )
    if files.are_vectors:
        rows, _ = files.stored(origin)
        if repeats is not None:
            repeats.check_blocks(rows)
    else:
        with bad_rows(bad_lines) as bad:
            rows, _, _ = files.with_bad(bad).encode(
                lambda: inputs.encoder_of(origin, model),
                plain=origin.prompt is None,
                check=iter if repeats is None else repeats.checked,
            )
    if replace and not any(isinstance(name, str) for block in rows.blocks() for name in block.ids):
        raise UsageError(
            f"{files.file} has no ids to replace rows by; name their column as `id_field`"
        )
    # another process may have changed it in the meantime
    with stored.change(folder, memory=size_of(memory)) as held:
        if held.origin.fingerprint != origin.fingerprint:
            raise UsageError(
                f"{folder} was built again with another model in the meantime; try again"
            )
        if replace:
            replaced = held.index.upsert(rows)
            note(f"{replaced:,} of {counted(rows.shape[0], 'row')} replaced rows of the index")
        else:
            held.index.add(rows)
    return stored.read_manifest(folder)


def delete_from_index(
    folder: str | Path, ids: Sequence[str] = (), *, file: str | Path | None = None
) -> "IndexManifest":
    """Delete rows by their ids: they no longer appear in results.

    Compacting the index frees their space.

    Args:
        folder: Folder of the index.
        ids: Ids of the rows.
        file: File of ids, one a line.
    """
    from promptcli.index import stored

    wanted = list(ids)
    if file is not None:
        wanted += _read_ids(file)
    if not wanted:
        raise UsageError("no ids are given; give some, or a file of them")
    with stored.change(Path(folder)) as held:
        note(f"{counted(held.index.delete(wanted), 'row')} deleted")
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


def index_info(folder: str | Path) -> "IndexManifest":
    """Print what an index holds.

    Args:
        folder: Folder of the index.
    """
    from promptcli.index import inputs, stored

    manifest = stored.read_manifest(Path(folder))
    name = inputs.missing_model(manifest)
    if name is not None:
        search = f"`promptcli index search {folder} QUERY --model MODEL`"
        note(
            f"{name}, the model of the index, was removed or moved; name it to search or add:"
            f" {search}"
        )
    return manifest


@check_arguments
def search_index(
    folder: str | Path,
    query: str | Path | BinaryIO | Sequence[str],
    k: int = 10,
    *,
    model: "Model | None" = None,
    hybrid: bool = False,
    lexical: bool = False,
    min_score: float | None = None,
    where: str | None = None,
    text_field: str | None = None,
) -> Iterator["tuple[str, list[Hit]]"]:
    """Yield each query with the k rows of an index that are nearest to it, best first, with their
    cosine.

    With ``lexical`` the score is that of BM25; with ``hybrid`` 0.6 cosine + 0.4 BM25 / the query's
    best BM25.

    Args:
        folder: Folder of the index.
        query: A sentence, or a list of them; a file of sentences, if one has that name; - for
            standard input.
        k: Results per query.
        model: The encoder of the index. Default: made again from what the index remembers.
        hybrid: Rank by cosine and by words (BM25), joined: for exact names and codes. The index
            must count words, see ``build_index``.
        lexical: Rank by words alone, without a model.
        min_score: Leave out answers below this score, as it is printed: 1 finds exact copies of the
            query.
        where: Condition on the other columns of the indexed table, e.g. 'year > 2020 and lang =
            "en"'; also on id and text. It is SQL: =, !=, <, <=, >, >=, between, in (...), like
            "%part%", is null; and, or, not, parentheses.
        text_field: Column of the sentence in the file.

    Raises:
        NotFoundError: No such index or file.
        UsageError: An index without BM25, a condition that does not fit its columns, or an empty
            query.
    """
    from promptcli.data.given import note_no_file
    from promptcli.encoder.unknown_letters import note_unknown_letters
    from promptcli.index import inputs, stored

    if hybrid and lexical:
        raise UsageError("`hybrid` and `lexical` are two rankings; give one")
    stored.check_searched(Path(folder), query)
    held = stored.load(Path(folder))
    with_words = hybrid or lexical
    if with_words:
        _ = held.index.words  # refused before anything is encoded
    among = held.index.allowed(where)  # this, too
    if isinstance(query, str) and not is_query_file(query):
        note_no_file(query)
        query = [query]
    with inputs.open_queries(query, text_field) as batches:
        encoder = None
        if not lexical:
            encoder = inputs.encoder_of(held.origin, model).in_role("query", report=True)
        for number, texts in enumerate(batches):
            vectors = words = None
            if encoder is not None:
                if number == 0:
                    note_unknown_letters(encoder, texts)
                vectors = encoder.encode(texts)
            if with_words:
                words = texts
            answers = held.index.search(vectors, k, words=words, among=among)
            for text, hits in zip(texts, answers, strict=True):
                if min_score is not None:
                    rounding = held.index.rounding
                    hits = [hit for hit in hits if reaches(hit.score, min_score, rounding)]
                yield text, hits


@check_arguments
def find_dups(
    folder: str | Path,
    threshold: float = 0.95,
    *,
    links: Literal["complete", "chain"] = "complete",
) -> "tuple[list[Group], int]":
    """Print groups of near-duplicates, the largest first, each with the lowest cosine of two of its
    rows.

    Every two rows of a group are near-duplicates (complete links), so that one of them can stand
    for all.

    Args:
        folder: Folder of the index.
        threshold: Cosine from which two rows are near-duplicates; 1: exact copies.
        links: complete: every two rows of a group reach the threshold. chain: each row reaches it
            with another one of its group; two of them may be far apart.
    """
    from promptcli.index import neighbours, stored

    held = stored.load(Path(folder))
    if held.origin.prompt is not None:
        note(f"documents begin with the model's prompt {held.origin.text}")
    return neighbours.dups(held.index, threshold, links), held.index.rows


def is_query_file(query: str) -> bool:
    """Return whether a word is the name of a file of queries, rather than a sentence."""
    return names_file(query)


def _read_ids(path: str | Path) -> list[str]:
    from promptcli.data.rows import open_rows

    with open_rows(path, ColumnChoice(remedy=""), skip_blank=True) as source:
        return list(source.texts())
