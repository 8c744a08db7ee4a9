"""The public interface of the index: stored indexes, built, changed and searched by their folders.

It imports nothing heavy, since the command line reads it: its functions import the work. An index
in memory is a ``SentenceIndex``; ``sync`` and ``file_search`` have files of their own. This is the
only package that imports FAISS.
"""

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from promptcli.data.column_choice import ColumnChoice
from promptcli.data.file_arguments import names_file
from promptcli.errors import UsageError, counted
from promptcli.index.basics import (
    TARGET,
    Way,
    bad_lines_option,
    chosen_way,
    folder_argument,
    memory_option,
    min_rarity_option,
    min_score_option,
    size_of,
)
from promptcli.jobs import Job, argument, function_of, option
from promptcli.notes import keyword, note
from promptcli.recipe import Choice

if TYPE_CHECKING:
    from promptcli.index.array_rows import Hit, IndexRows
    from promptcli.index.leakage import Leaks, NearRows
    from promptcli.index.neighbours import DuplicateGroup
    from promptcli.index.stored import IndexManifest
    from promptcli.models.loading import Model

#: Cosine of near-duplicates in an index whose rows are too few to tell.
_THRESHOLD = 0.95


@dataclass(frozen=True)
class BuildIndexJob(Job["IndexManifest"]):
    """Index sentences, or vectors that ``embed`` wrote, for search by cosine.

    A text becomes passages, with their headings and the ids FILE:LINES; one with a sentence a line
    becomes its lines, with numbers. Rows with a blank text are left out. The other columns of a
    table, and the place of a passage (file, line, end_line, heading) with its front matter, are
    kept for searches with ``where``.

    Raises:
        UsageError: A file that cannot be read, vectors of another or an unknown encoder, or an
            index that exists.
    """

    file: str | Path | BinaryIO = argument(
        "Sentences as for `embed` (- for standard input), or vectors that it wrote: a file, or a"
        " folder of Parquet parts, read block by block.",
        metavar="FILE",
        typed=str,
        kind="file or stream",
    )
    folder: str | Path = option(
        ...,
        "Folder of the index.",
        names="output o",
        metavar="DIR",
        typed=str,
    )
    model: "Model | None" = option(
        None,
        "An encoder, or what `load` takes. Default: `mini`, or the encoder in the manifest of the"
        " vectors.",
        kind="model",
    )
    _: KW_ONLY
    factory: str | None = option(
        None,
        "FAISS factory string, e.g. Flat (exact), HNSW32 or IVF256,SQ8. Default: by the number of"
        " rows.",
    )
    target_recall: float = option(TARGET, "recall@10 to tune an approximate index for; 1: exact.")
    memory: str | int = memory_option()
    text_field: str | None = option(None, "Column of the sentence.")
    id_field: str | None = option(
        None, "Column of the id, or - for row numbers. Default: `id`, else row numbers."
    )
    rows: Literal["auto", "passages", "lines"] = option(
        "auto",
        "What a row of a text is: passages (paragraphs, joined or split to a length that is found"
        " well), lines, or by the look of each text (auto: lines if it has a sentence a line). Of"
        " a table it is the rows.",
    )
    split: bool = option(
        False,
        "Split lines, and rows of tables, that are longer than the model's window at paragraph"
        " and sentence ends; results show the best part.",
    )
    lexical: bool | None = option(
        None,
        "Also count words (BM25), by which a search finds names and codes. Default: if the rows"
        " have texts.",
    )
    force: bool = option(False, "Replace an existing index.")
    bad_lines: str | Path | None = bad_lines_option()

    def run(self) -> "IndexManifest":
        from promptcli.data.bad_lines import bad_rows
        from promptcli.index import inputs, stored
        from promptcli.index.vector_index import VectorIndex
        from promptcli.models.entries import utc_now

        folder = Path(self.folder)
        room = size_of(self.memory)
        files = inputs.RowFiles(
            self.file,
            ColumnChoice(self.text_field, self.id_field),
            folder,
            self.split,
            self.rows,
        )
        if files.file.is_dir() and not files.are_vectors:
            raise UsageError(
                f"{self.file} is a folder; `promptcli index sync {folder} {self.file}` indexes the"
                " files in it"
            )
        of_sentences = {"split": self.split, "bad_lines": self.bad_lines is not None}
        for field, is_given in of_sentences.items():
            if is_given and files.are_vectors:
                raise UsageError(
                    f"{keyword(field)} is for sentences, and {self.file} holds vectors; give it to"
                    " `embed`"
                )
        stored.check_target(folder, force=self.force)
        with bad_rows(self.bad_lines) as bad:
            vectors, origin, reading = inputs.rows_to_build(
                files.with_bad(bad), Choice() if self.model is None else self.model
            )
        with stored.create(folder, force=self.force) as writer:
            index = VectorIndex.build(
                vectors,
                self.factory,
                target=self.target_recall,
                memory=room,
                store=writer.segment,
                split=self.split,
                lexical=vectors.has_texts if self.lexical is None else self.lexical,
            )
            return writer.finish(stored.StoredIndex(index, origin, utc_now(), reading=reading))


build_index = function_of(BuildIndexJob, "build_index")


@dataclass(frozen=True)
class AddToIndexJob(Job["IndexManifest"]):
    """Add sentences, or vectors of the same encoder, to an index.

    Row numbers as ids go on from its last row.

    Raises:
        UsageError: Vectors of another encoder, rows without ids to replace by, or texts that the
            index has.
        CheckFailedError: The encoder of the index has changed.
    """

    folder: str | Path = folder_argument()
    file: str | Path | BinaryIO = argument(
        "Sentences as for `embed` (- for standard input), or vectors of the same encoder.",
        metavar="FILE",
        typed=str,
        kind="file or stream",
    )
    model: "Model | None" = option(
        None,
        "The encoder of the index. Default: made again from what the index remembers.",
        names="model m",
        typed=str,
        kind="named model",
    )
    _: KW_ONLY
    replace: bool = option(False, "Rows replace those with the same ids; others are added.")
    allow_duplicates: bool = option(
        False, "Add rows, too, whose text the index has under another id."
    )
    memory: str | int = memory_option()
    text_field: str | None = option(None, "Column of the sentence. Default: that of the index.")
    id_field: str | None = option(
        None, "Column of the id, or - for row numbers. Default: that of the index."
    )
    bad_lines: str | Path | None = bad_lines_option()

    def run(self) -> "IndexManifest":
        from promptcli.data.bad_lines import bad_rows
        from promptcli.index import inputs, stored
        from promptcli.index.repeats import Repeats

        folder = Path(self.folder)
        origin = stored.read_manifest(folder)
        read = origin.reading
        fields = ColumnChoice(
            self.text_field, self.id_field, text_before=read.text_field, id_before=read.id_field
        )
        files = inputs.RowFiles(self.file, fields, folder, origin.split, read.rows)
        repeats = None
        if not self.allow_duplicates:
            repeats = Repeats(stored.load(folder, words=False).index)
        rows: IndexRows
        if files.are_vectors and self.bad_lines is not None:
            raise UsageError(
                f"{keyword('bad_lines')} is for sentences, and {self.file} holds vectors; give it"
                " to `embed`"
            )
        if files.are_vectors:
            rows, _ = files.open_stored(origin)
            if repeats is not None:
                repeats.check_blocks(rows)
        else:
            with bad_rows(self.bad_lines) as bad:
                rows, _, _ = files.with_bad(bad).encode(
                    lambda texts: (inputs.encoder_of(origin, self.model), None),
                    plain=origin.prompt is None,
                    check=iter if repeats is None else repeats.check,
                )
        if self.replace and not any(
            isinstance(name, str) for block in rows.blocks() for name in block.ids
        ):
            raise UsageError(
                f"{files.file} has no ids to replace rows by; name their column as"
                f" {keyword('id_field')}"
            )
        # another process may have changed it in the meantime
        with stored.change(folder, memory=size_of(self.memory)) as stored_index:
            if stored_index.origin.fingerprint != origin.fingerprint:
                raise UsageError(
                    f"{folder} was built again with another model in the meantime; try again"
                )
            if self.replace:
                replaced = stored_index.index.upsert(rows)
                note(f"{replaced:,} of {counted(rows.shape[0], 'row')} replaced rows of the index")
            else:
                stored_index.index.add(rows)
        return stored.read_manifest(folder)


add_to_index = function_of(AddToIndexJob, "add_to_index")


@dataclass(frozen=True)
class DeleteFromIndexJob(Job["IndexManifest"]):
    """Delete rows by their ids: they no longer appear in results.

    Compacting the index frees their space.
    """

    folder: str | Path = folder_argument()
    ids: Sequence[str] = argument(
        "Ids of the rows.",
        (),
        metavar="[ID]...",
    )
    _: KW_ONLY
    file: str | Path | None = option(
        None,
        "File of ids, one a line.",
        names="ids",
        metavar="FILE",
        typed=str,
    )

    def run(self) -> "IndexManifest":
        from promptcli.index import stored

        wanted = list(self.ids)
        if self.file is not None:
            wanted += _read_ids(self.file)
        if not wanted:
            raise UsageError("no ids are given; give some, or a file of them")
        with stored.change(Path(self.folder)) as stored_index:
            note(f"{counted(stored_index.index.delete(wanted), 'row')} deleted")
        return stored.read_manifest(Path(self.folder))


delete_from_index = function_of(DeleteFromIndexJob, "delete_from_index")


@dataclass(frozen=True)
class CompactIndexJob(Job["IndexManifest"]):
    """Rewrite an index without its deleted rows, in as few segments as the memory allows."""

    folder: str | Path = folder_argument()
    _: KW_ONLY
    memory: str | int = memory_option()
    lexical: bool | None = option(
        None, "Count words (BM25), or keep none. Default: as in the index."
    )

    def run(self) -> "IndexManifest":
        from promptcli.index import stored

        with stored.change(Path(self.folder), memory=size_of(self.memory)) as stored_index:
            if self.lexical is not None:
                stored_index.index.set_lexical(self.lexical)
            stored_index.index.compact()
        return stored.read_manifest(Path(self.folder))


compact_index = function_of(CompactIndexJob, "compact_index")


@dataclass(frozen=True)
class IndexInfoJob(Job["IndexManifest"]):
    """Print what an index holds."""

    folder: str | Path = folder_argument()

    def run(self) -> "IndexManifest":
        from promptcli.index import inputs, stored

        manifest = stored.read_manifest(Path(self.folder))
        name = inputs.missing_model(manifest)
        if name is not None:
            search = f"`promptcli index search {self.folder} QUERY --model MODEL`"
            note(
                f"{name}, the model of the index, was removed or moved; name it to search or add:"
                f" {search}"
            )
        return manifest


index_info = function_of(IndexInfoJob, "index_info")


@dataclass(frozen=True)
class SearchIndexJob(Job[Iterator["tuple[str, list[Hit]]"]]):
    """Yield each query with the k rows of an index that are nearest to it, best first, with their
    cosine.

    By both, cosine and words (BM25) rank together, see ``join_rankings``; the score is the cosine
    all the same. By words alone it is BM25.

    Raises:
        NotFoundError: No such index or file.
        UsageError: An index without words, a condition that does not fit its columns, or an empty
            query.
    """

    folder: str | Path = folder_argument()
    query: str | Path | BinaryIO | Sequence[str] = argument(
        "A sentence, or a list of them; a file of sentences, if one has that name; - for standard"
        " input.",
        metavar="QUERY",
        typed=str,
        kind="file or stream",
    )
    k: int = option(10, "Results per query.", names="k", min=1)
    _: KW_ONLY
    model: "Model | None" = option(
        None,
        "The encoder of the index. Default: made again from what the index remembers.",
        names="model m",
        typed=str,
        kind="named model",
    )
    by: Way | None = option(
        None,
        "How rows are ranked: both (by cosine and by words, BM25, together), meaning (by cosine) or"
        " words (without a model). Default: both; meaning for an index without words.",
    )
    hybrid: bool = option(False, "The same as `by` both.")
    lexical: bool = option(False, "The same as `by` words.")
    min_score: float | None = min_score_option()
    min_rarity: float | None = min_rarity_option()
    where: str | None = option(
        None,
        "Condition on the other columns of the indexed table, or on the place of a passage, e.g."
        " 'year > 2020 and lang = \"en\"'; also on id and text. It is SQL: =, !=, <, <=,"
        ' >, >=, between, in (...), like "%part%", is null; and, or, not, parentheses.',
    )
    text_field: str | None = option(None, "Column of the sentence in the file.")

    def run(self) -> Iterator["tuple[str, list[Hit]]"]:
        from promptcli.data.given import note_no_file
        from promptcli.index import inputs, stored
        from promptcli.index.kept_rarity import check_rarity
        from promptcli.models.language_choice import note_unread

        by = chosen_way(self.by, hybrid=self.hybrid, lexical=self.lexical)
        query = self.query
        stored.check_searched(Path(self.folder), query)
        stored_index = stored.load(Path(self.folder), words=by != "meaning")
        if by is None:
            by = stored.best_way(stored_index, self.folder)
        if by != "meaning":
            _ = stored_index.index.words  # refused before anything is encoded
        among = stored.allowed_rows(stored_index, self.where)  # this, too
        remedy = check_rarity(stored_index.index.rarity, self.min_rarity, by, self.folder)
        if isinstance(query, str) and not is_query_file(query):
            note_no_file(query)
            query = [query]
        with inputs.open_queries(query, self.text_field) as batches:
            encoder = None
            if by != "words":
                encoder = inputs.encoder_of(stored_index.origin, self.model).in_role(
                    "query", report=True
                )
            if remedy is not None:
                note(remedy)
            for number, texts in enumerate(batches):
                vectors = words = None
                if encoder is not None:
                    if number == 0:
                        note_unread(encoder, texts)
                    vectors = encoder.encode(texts)
                if by != "meaning":
                    words = texts
                answers = stored_index.index.search(vectors, self.k, words=words, among=among)
                for text, hits in zip(texts, answers, strict=True):
                    kept = [
                        hit
                        for hit in hits
                        if stored_index.index.is_answer(hit, self.min_score, self.min_rarity)
                    ]
                    yield text, kept


search_index = function_of(SearchIndexJob, "search_index")


@dataclass(frozen=True)
class FindDupsJob(Job["tuple[list[DuplicateGroup], int]"]):
    """Print groups of near-duplicates, the largest first, each with the lowest cosine of two of its
    rows.

    Every two rows of a group are near-duplicates (complete links), so that one of them can
    represent all.
    """

    folder: str | Path = folder_argument()
    threshold: float | None = option(
        None,
        "Cosine from which two rows are near-duplicates; 1: exact copies. Default: the value from"
        " which at most 5 of 100 links are expected to be false; a note shows it.",
        above=0,
        max=1,
    )
    _: KW_ONLY
    links: Literal["complete", "chain"] = option(
        "complete",
        "complete: every two rows of a group reach the threshold. chain: each row reaches it with"
        " another row of its group; two rows of a group may be far apart.",
    )

    def run(self) -> "tuple[list[DuplicateGroup], int]":
        from promptcli.index import neighbours, stored

        stored_index = stored.load(Path(self.folder), words=False)
        if stored_index.origin.prompt is not None:
            note(f"documents begin with the model's prompt {stored_index.origin.text}")
        threshold = self.threshold
        if threshold is None:
            from promptcli.index.false_links import propose_threshold

            proposed = propose_threshold(stored_index.index)
            threshold = _say_threshold(proposed, "links are expected to be false")
        groups = neighbours.dups(stored_index.index, threshold, self.links)
        return groups, stored_index.index.rows


find_dups = function_of(FindDupsJob, "find_dups")


def _say_threshold(proposed: float | None, expected: str) -> float:
    """Return the threshold of near-duplicates that is taken if none is given, and say it, with what
    is expected of a few rows.
    """
    from promptcli.index.false_links import FALSE_SHARE

    if proposed is None:
        note(f"too few rows to propose a {keyword('threshold')}: {_THRESHOLD}")
        return _THRESHOLD
    note(
        f"{keyword('threshold')} {proposed:g}: from there on, at most {100 * FALSE_SHARE:g} of 100"
        f" {expected}, or one in all"
    )
    return proposed


@dataclass(frozen=True)
class _LeaksJob(Job["Leaks"]):
    """What every search for leaks is asked: from where on a row is near one of the other set."""

    _: KW_ONLY
    threshold: float | None = option(
        None,
        "Cosine from which a row is near one of the other set; 1: texts alone are compared,"
        " without a model. Default: the value from which at most 5 of 100 near rows are expected to"
        " be near by chance; a note shows it.",
        above=0,
        max=1,
    )
    min_rarity: float | None = option(
        None,
        "Compared with another set, rows are near if their cosine exceeds that of at least this"
        " share of random pairs of that set, in percent, e.g. 99.99.",
    )
    bad_lines: str | Path | None = bad_lines_option()

    def check_options(self) -> None:
        """Refuse a rarity that no cosine has."""
        from promptcli.evaluation.rarity import check_least

        if self.min_rarity is not None:
            check_least(self.min_rarity, "meaning")

    def add_near(self, rows: "NearRows") -> float | None:
        """Add the rows that are near one of the other set; return the cosine from which they
        are.
        """
        threshold = self.threshold
        if self.min_rarity is not None:
            rows.check_rarity(self.min_rarity)
            if threshold is None:
                _note_rows_by_chance(self.min_rarity, rows.source_rows)
        elif threshold is None:
            expected = "near rows are expected to be so by chance"
            threshold = _say_threshold(rows.propose_threshold(), expected)
        rows.add(threshold, self.min_rarity)
        return threshold


def _note_rows_by_chance(min_rarity: float, source_rows: int) -> None:
    """Note how many unrelated rows are near a row of the set at this rarity."""
    percent = 100 * (1 - (min_rarity / 100) ** source_rows)
    rounded = f"{percent:.0f}" if percent >= 1 else f"{percent:.2g}"
    note(
        f"{keyword('min_rarity')} {min_rarity:g}: about {rounded} of 100 unrelated rows are as"
        f" near to one of {counted(source_rows, 'row')} by chance"
    )


@dataclass(frozen=True)
class FindLeaksJob(_LeaksJob):
    """Find the rows of a file that also occur in another one, such as those of a test set in
    the training data: with the same text, the same but for case, spaces and forms of characters, or
    near it by cosine.

    Every sentence of pairs and triplets is a row, with the id ROW:COLUMN; rows are counted from 0.

    Raises:
        NotFoundError: No such file.
        UsageError: A file without sentences, or a threshold that is not allowed.
    """

    file: str | Path | BinaryIO = argument(
        "Sentences, pairs or triplets, e.g. the training data; also FILE:COLUMN, or - for standard"
        " input.",
        metavar="FILE",
        typed=str,
        kind="file or stream",
    )
    against: str | Path | BinaryIO = option(
        ...,
        "The file whose rows are looked for in FILE, e.g. the test set.",
        metavar="FILE",
        typed=str,
        kind="file or stream",
    )
    model: "Model | None" = option(
        None,
        "Encoder. Default: mini-static (English); mini-multi for texts in its other languages.",
        names="model m",
        typed=str,
        kind="named model",
    )

    def run(self) -> "Leaks":
        from promptcli.data.bad_lines import bad_rows
        from promptcli.index import compared_files
        from promptcli.index.leakage import NearRows

        self.check_options()
        compared_files.note_if_same(self.file, self.against)
        with bad_rows(self.bad_lines) as bad:
            source = compared_files.read_set(self.file, bad)
            compared, rest = compared_files.compare_texts(self.against, source, bad)
        near = None
        if rest and len(source) and self.threshold != 1:
            index, vectors = compared_files.encode_both(self.model, source, rest)
            near_rows = NearRows(compared, index, vectors, source.distinct)
            near = self.add_near(near_rows)
        return compared.result(len(source), near)


find_leaks = function_of(FindLeaksJob, "find_leaks")


@dataclass(frozen=True)
class FindIndexLeaksJob(_LeaksJob):
    """Find the rows of a file, of vectors or of another index that also occur in an index: with the
    same text, the same but for case, spaces and forms of characters, or near it by cosine.

    A file becomes rows as it does when it is added to the index.

    Raises:
        NotFoundError: No such index or file.
        UsageError: Vectors of another encoder, or a threshold that is not allowed.
    """

    folder: str | Path = folder_argument()
    against: str | Path | BinaryIO = option(
        ...,
        "Find the rows of this file, or index, that also occur in the index, e.g. those of a test"
        " set in the training data.",
        metavar="FILE",
        typed=str,
        kind="file or stream",
    )
    model: "Model | None" = option(
        None,
        "With `against`: the encoder of the index. Default: made again from what the index"
        " remembers.",
        names="model m",
        typed=str,
        kind="named model",
    )

    def run(self) -> "Leaks":
        from promptcli.data.bad_lines import bad_rows
        from promptcli.index import compared_indexes, stored
        from promptcli.index.leakage import ComparedRows, NearRows

        self.check_options()
        stored_index = stored.load(Path(self.folder), words=False)
        index = stored_index.index
        texts_alone = self.threshold == 1 and index.has_texts
        compared = ComparedRows(compared_indexes.texts_of(index), texts_alone=texts_alone)
        with bad_rows(self.bad_lines) as bad:
            other = compared_indexes.OtherRows(self.against, Path(self.folder), self.model, bad)
            vectors = other.compare(stored_index, compared)
        near = None
        if vectors and not texts_alone:
            near_rows = NearRows(compared, index, vectors)
            near = self.add_near(near_rows)
        return compared.result(index.rows, near)


find_index_leaks = function_of(FindIndexLeaksJob, "find_index_leaks")


def is_query_file(query: str) -> bool:
    """Return whether a word is the name of a file of queries, rather than a sentence."""
    return names_file(query)


def _read_ids(path: str | Path) -> list[str]:
    from promptcli.data.rows import open_rows

    with open_rows(path, ColumnChoice(remedy=""), skip_blank=True) as source:
        return list(source.texts())
