"""SentenceIndex: sentences, their vectors and their encoder, for search by meaning and by words."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, overload

from promptcli.data.arguments import as_folder, as_ids, as_texts, check_query
from promptcli.data.csv_options import stored_options
from promptcli.data.layouts import ColumnChoice
from promptcli.embedding.passages import AUTO
from promptcli.embedding.splitting import check_whole
from promptcli.errors import PromptcliError, UsageError, unknown_name_error, with_count
from promptcli.models import loading
from promptcli.models.entries import utc_now
from promptcli.recipe import is_chosen
from promptcli.retrieval.array_files import EXACT_FACTORY, FAISS_FILE
from promptcli.retrieval.conditions import Condition
from promptcli.retrieval.files import (
    Reading,
    are_vectors,
    is_list,
    open_sentences,
    open_vectors,
)
from promptcli.retrieval.new_rows import NewRows, encode_rows, prepare_rows, unit_rows
from promptcli.retrieval.origin import Origin, migrate
from promptcli.retrieval.ranking import (
    EXPLAINERS,
    NEAR_COSINE,
    SCORE_ROUNDING,
    Hit,
    RankBy,
    read_hits,
    stale_files,
)
from promptcli.retrieval.snapshot import DerivedFiles, Snapshot
from promptcli.retrieval.store import Store, creating

if TYPE_CHECKING:
    from promptcli.data.vectors.formats import Manifest
    from promptcli.encoder.sentence_encoder import Encoder
    from promptcli.models.loading import Model
    from promptcli.retrieval.pairs import DuplicateGroup, Leaks
    from promptcli.retrieval.sync import SyncResult

RANKINGS = ("both", "meaning", "words")

CancelCheck = Callable[[], None]
SentenceInput = Sequence[str] | str | Path | BinaryIO


@dataclasses.dataclass(frozen=True)
class IndexInfo:
    """A description of an index."""

    rows: int
    dim: int
    texts: bool  #: whether the texts of the rows are stored
    lexical: bool  #: whether the index can be searched by words
    factory: str  #: FAISS's factory string
    recall: dict[str, Any] | None  #: measured recall@10; None: every row is compared
    columns: dict[str, str]  #: further columns and their types
    files: int  #: number of files that the index mirrors
    name: str  #: name of the model
    fingerprint: str
    recipe: dict[str, Any]
    prompt: str | None  #: name and text of the prompt before the rows, for messages
    created: str
    generation: int  #: number of changes so far


class SentenceIndex:
    """n sentences and their vectors, searched by meaning and by words.

    An index is in a folder or in memory. An open index sees every change by other processes.

    Example:
        >>> index = SentenceIndex.build(["A cat sleeps.", "The market opens at nine."])
        >>> index.search("A kitten is asleep.", k=1)[0].text
        'A cat sleeps.'
    """

    def __init__(
        self, store: Store, model: "Model | None" = None, encoder: "Encoder | None" = None
    ) -> None:
        self.store = store  #: the rows
        self.derived_files = DerivedFiles(store)  #: the files for fast search
        self._model = model
        self._encoder = encoder  # None until the first search
        self._snapshot: Snapshot | None = None

    @classmethod
    def build(
        cls,
        sentences: SentenceInput,
        model: "Model | None" = None,
        ids: Sequence[int] | Sequence[str] | None = None,
        *,
        output: str | Path | None = None,
        columns: Any = None,
        rows: str = AUTO,
        text_field: str | None = None,
        id_field: str | None = None,
        split: bool = False,
        lexical: bool = True,
        factory: str | None = None,
        target_recall: float = 0.95,
        force: bool = False,
        csv: Mapping[str, Any] | None = None,
        skip_bad: bool = False,
    ) -> "SentenceIndex":
        """Index sentences, or vectors that ``embed`` wrote; rows without text are left out.

        A text file becomes passages, with their headings and the ids FILE:LINES; a file with one
        sentence per line becomes its lines, with numbers. Its other columns, and the place of a
        passage, are stored for conditions.

        Args:
            sentences: A list of texts; a file of sentences or of vectors; a stream.
            model: An encoder, or an argument of ``load``; None: ``mini-multi``, or the encoder of
                the vectors.
            ids: n ids, one for each text of a list; None: numbers from 0.
            output: Folder of the index; None: in memory.
            columns: Further columns of a list, n values each: a dictionary, or a DataFrame.
            rows: Unit of a text file: ``passages``, ``lines``, or ``auto``, by its layout.
            text_field: Column of the sentence in a table.
            id_field: Column of the id in a table; ``-``: row numbers; None: ``id`` if there is one.
            split: Whether to split rows longer than the model's window; a hit is then the best part
                of a row.
            lexical: Whether to count words as well (BM25).
            factory: FAISS's factory string, e.g. ``HNSW32``; None: chosen by the number of rows.
            target_recall: recall@10 to tune an approximate index for; 1: exact.
            force: Whether to replace an index in the folder.
            csv: How tables are written, see ``embed``.
            skip_bad: Leave out unreadable rows, and say how many and why.

        Raises:
            UsageError: Unreadable data, vectors of another or an unknown encoder, or an existing
                index.
        """
        if not 0 < target_recall <= 1:
            raise UsageError(
                f"must be above 0 and at most 1, got {target_recall}", parameter="target_recall"
            )
        reading = Reading(rows, text_field, id_field, split, stored_options(csv))
        folder = None if output is None else Path(output)
        settings = {"factory": factory, "target_recall": target_recall}
        with creating(folder, force=force) as store, contextlib.ExitStack() as open_files:
            blocks: Iterable[NewRows]
            if are_vectors(sentences):
                path = Path(str(sentences))
                blocks, manifest, width = open_vectors(path)
                index = cls(store)
                origin = index._origin_of_vectors(path, width, manifest, model)
                _write_settings(store, origin, reading, width, settings)
            else:
                file = open_files.enter_context(
                    open_sentences(sentences, ids, columns, reading, skip_bad=skip_bad)
                )
                reading = dataclasses.replace(
                    reading, text_field=file.text_field, id_field=file.id_field
                )
                index = begin_index(store, model, reading, **settings)
                documents = index.open_document_encoder()
                new_rows = prepare_rows(documents, file.blocks(documents), split=split)
                blocks = encode_rows(documents, new_rows)
            if factory is not None:
                from promptcli.retrieval.vectors import make_index, training_size

                make_index(factory, store.settings.width)
            for block in blocks:
                store.append(block)
            if not len(store):
                raise UsageError("every text is blank; an index needs at least one sentence")
            if factory is not None:
                training_size(factory, len(store))
            store.write_settings(lexical=lexical and index.has_texts())
        index.derived_files.update()
        return index

    def _origin_of_vectors(
        self, path: Path, width: int, manifest: "Manifest | None", model: "Model | None"
    ) -> Origin:
        """Return the origin of vectors, from their manifest or the user's ``model``."""
        origin = None if manifest is None else Origin.of_vectors(manifest)
        if model is not None and is_chosen(model):
            encoder = loading.open_encoder(model, dtype="auto")
            documents = encoder.in_role("document")
            if origin is not None and documents.fingerprint != origin.fingerprint:
                documents = encoder
            model_origin = Origin.of(encoder, documents, model)
            if origin is not None:
                origin.check_same(model_origin, str(path))
            if width != encoder.width:
                raise UsageError(
                    f"{path}: the vectors have width {width}, the model's have {encoder.width}"
                )
            self._model, self._encoder, origin = model, encoder, model_origin
        if origin is None:
            raise UsageError(
                f"{path} has no manifest, so its encoder is unknown; name the encoder",
                parameter="model",
            )
        origin.note_missing_prompt(path)
        return origin

    @classmethod
    def open(cls, folder: str | Path, model: "Model | None" = None) -> "SentenceIndex":
        """Open the index of a folder.

        Args:
            folder: Folder given to ``build`` or ``sync``.
            model: The encoder of the index, or an argument of ``load``; None: the recorded
                encoder.

        Raises:
            NotFoundError: No such index.
            CheckFailedError: The database is damaged.
            UsageError: An index of an earlier version.
        """
        return cls(Store.open(as_folder(folder)), model)

    def load_origin(self) -> Origin:
        """Return the record of the encoder."""
        with self.store.reading():
            return Origin.from_dict(self.store.settings.origin)

    def load_reading(self) -> Reading:
        """Return how files become rows."""
        with self.store.reading():
            return Reading(**self.store.settings.reading)

    def open_encoder(self, origin: Origin | None = None) -> "Encoder":
        """Return the encoder of the index, or of an ``origin`` that was read before."""
        if origin is None:
            origin = self.load_origin()
        if self._encoder is None:
            self._encoder = origin.open(self._model)
        elif not origin.is_made_by(self._encoder):  # another process migrated the index
            self._encoder = origin.open()
        return self._encoder

    def open_document_encoder(self, *, report: bool = False) -> "Encoder":
        """Return the encoder for documents; ``report`` notes its prompt."""
        origin = self.load_origin()
        return origin.document_encoder(self.open_encoder(origin), report=report)

    def __len__(self) -> int:
        with self.store.reading():
            return len(self.store)

    def __repr__(self) -> str:
        """Return the folder of the index."""
        return f"SentenceIndex({self.store.folder or 'memory'})"

    def info(self) -> IndexInfo:
        """Return a description of the index."""
        with self.store.reading():
            settings = self.store.settings
            faiss_index = self.derived_files.get(FAISS_FILE)
            origin = self.load_origin()
            prompt = None
            if origin.prompt is not None:
                prompt = f"{origin.prompt!r}: {origin.prompts.texts.get(origin.prompt, '')!r}"
            return IndexInfo(
                rows=len(self.store),
                dim=settings.width,
                texts=self.has_texts(),
                lexical=settings.lexical,
                factory=EXACT_FACTORY if faiss_index is None else faiss_index.factory,
                recall=None if faiss_index is None else faiss_index.recall,
                columns=dict(settings.types),
                files=self.store.scalar("SELECT count(*) FROM files"),
                name=origin.name,
                fingerprint=origin.fingerprint,
                recipe=origin.recipe,
                prompt=prompt,
                created=settings.created,
                generation=settings.generation,
            )

    def has_texts(self) -> bool:
        """Return whether the index has the texts of its rows; true without rows."""
        return not self.store.scalar("SELECT text IS NULL FROM rows LIMIT 1")

    def named_texts(self) -> list[tuple[int | str, Any]]:
        """Return the displayed id and the text of all rows, in order; None for a missing text."""
        with self.store.reading():
            return [(row.displayed_id, row.text) for row in self.store.all_rows()]

    def add(
        self,
        sentences: SentenceInput,
        ids: Sequence[int] | Sequence[str] | None = None,
        *,
        columns: Any = None,
        replace: bool = False,
        allow_duplicates: bool | None = None,
        text_field: str | None = None,
        id_field: str | None = None,
        csv: Mapping[str, Any] | None = None,
        skip_bad: bool = False,
    ) -> int:
        """Add sentences, or vectors of the same encoder.

        Row numbers used as ids continue from the last one.

        Args:
            sentences: See ``build``.
            ids: See ``build``.
            columns: See ``build``.
            replace: Whether new rows replace rows with the same ids.
            allow_duplicates: Whether to add a row whose text the index has under another id; None:
                yes for a list, no for a file.
            text_field: Column of the sentence; None: the index's.
            id_field: Column of the id, or ``-``; None: the index's.
            csv: See ``build``.
            skip_bad: See ``build``.

        Returns:
            The number of rows of the index that were replaced, 0 without ``replace``; ``len`` of
            the index is the number of all its rows.

        Raises:
            UsageError: Vectors of another encoder, an existing id, replacement rows without ids, or
                existing texts.
        """
        if allow_duplicates is None:
            allow_duplicates = is_list(sentences)
        blocks = read_rows(
            self,
            sentences,
            ids,
            columns,
            text_field=text_field,
            id_field=id_field,
            csv=csv,
            skip_bad=skip_bad,
            adding=True,
        )
        self._check_new(blocks, replace=replace, allow_duplicates=allow_duplicates)
        origin = self.load_origin()
        if not are_vectors(sentences):
            documents = origin.document_encoder(self.open_encoder(origin))
            blocks = list(encode_rows(documents, blocks))
        replaced_ids: set[str] = set()
        with self.store.changing():
            if self.store.settings.origin["fingerprint"] != origin.fingerprint:
                raise UsageError("the index now has another model; try again")
            next_number = self.store.settings.numbered
            for rows in blocks:
                if rows.are_numbered:
                    rows.ids = [next_number + int(number) for number in rows.ids]
                if replace:
                    keys = self.store.keys_of(rows.ids)
                    self.store.remove(itertools.chain(*keys.values()))
                    replaced_ids.update(keys)
                self.store.append(rows)
        self.derived_files.update()
        return len(replaced_ids)

    def _check_new(
        self, blocks: Sequence[NewRows], *, replace: bool, allow_duplicates: bool
    ) -> None:
        """Refuse rows that ``add`` does not accept, before they are encoded."""
        ids: list[str] = []
        texts: list[Any] = []
        for rows in blocks:
            if replace and rows.are_numbered:
                raise UsageError(
                    "replacement needs ids; name the column of the new rows' ids",
                    parameter="id_field",
                )
            ids += [""] * len(rows) if rows.are_numbered else map(str, rows.ids)
            texts += rows.texts
        with self.store.reading():
            if len(self.store) and (None in texts) == self.has_texts():
                raise UsageError(
                    "only one of the index and the new rows has texts; build the index again"
                )
            stored_ids = self.store.keys_of(filter(None, ids))
            if stored_ids and not replace:
                raise UsageError(
                    f"the index has the id {next(iter(stored_ids))!r}; replace its row, or give"
                    " another id",
                    parameter="replace",
                )
            if allow_duplicates:
                return
            rows_that_stay = (row for row in self.store.all_rows() if str(row.id) not in stored_ids)
            stored_texts = set(texts).intersection(row.text for row in rows_that_stay)
        repeated_texts = [
            text
            for row_id, text in zip(ids, texts, strict=True)
            if text in stored_texts and row_id not in stored_ids
        ]
        if repeated_texts:
            raise UsageError(
                f"{len(repeated_texts):,} of {with_count(len(texts), 'text')} are in the index"
                f" under other ids, e.g. {repeated_texts[0]!r:.60}; name the column of their ids,"
                " or allow them",
                parameter="allow_duplicates",
            )

    def delete(self, ids: Collection[int | str]) -> int:
        """Delete the sentences with these ids, and return their number.

        Raises:
            UsageError: An id is not in the index; nothing is deleted then.
        """
        unique_ids = list(dict.fromkeys(map(str, as_ids(ids))))
        with self.store.changing():
            keys = self.store.keys_of(filter(None, unique_ids))
            missing_ids = [row_id for row_id in unique_ids if row_id not in keys]
            if missing_ids:
                examples = ", ".join(repr(row_id[:40]) for row_id in missing_ids[:5])
                raise UsageError(
                    f"the index lacks {with_count(len(missing_ids), 'id')}: {examples}; nothing was"
                    " deleted"
                )
            self.store.remove(itertools.chain(*keys.values()))
        self.derived_files.update()
        return len(keys)

    def compact(self, *, lexical: bool | None = None) -> None:
        """Free the space of deleted sentences, and rebuild all derived files.

        Args:
            lexical: Whether to count words from now on; None: unchanged.
        """
        with self.store.changing():
            if lexical and not self.has_texts():
                raise UsageError("the index has no texts to count words in", parameter="lexical")
            if lexical is not None:
                self.store.write_settings(lexical=lexical)
        self.derived_files.update(always=True)
        with self.store.lock:
            self.store.sql.execute("VACUUM")

    def migrate(self, model: "Model") -> None:
        """Re-encode the texts of the index with another model, keeping the ids.

        The old vectors serve searches until the new ones are complete. The same call continues
        after an interruption.
        """
        if not self.has_texts():
            raise UsageError("the index has no texts to encode; build it again from vectors")
        encoder = loading.open_encoder(model, dtype="auto")
        documents = encoder.in_role("document", report=True)
        migrate(self.store, documents, Origin.of(encoder, documents, model))
        self._model, self._encoder = model, encoder
        self.derived_files.update()

    @classmethod
    def sync(cls, folder: str | Path, files: Any = None, **options: Any) -> "SyncResult":
        """Make an index equal to files, see ``promptcli.retrieval.sync.sync``."""
        from promptcli.retrieval.sync import sync

        return sync(folder, files, **options)

    def stale_files(self) -> dict[str, str]:
        """Return the files of the index that have since ``changed`` or are ``gone``."""
        with self.store.reading():
            return stale_files(self.store)

    @overload
    def search(self, query: str, k: int = 10, **options: Any) -> list[Hit]: ...
    @overload
    def search(self, query: list[str], k: int = 10, **options: Any) -> list[list[Hit]]: ...
    def search(  # type: ignore[misc]
        self,
        query: str | list[str],
        k: int = 10,
        *,
        where: str | None = None,
        by: RankBy | None = None,
        min_score: float | None = None,
        explain: bool = False,
    ) -> list[Hit] | list[list[Hit]]:
        """Return the k best sentences, best first; for a list of queries, a list of such lists.

        Each hit has a ``rank`` from 1, the sentence's ``id`` and ``text``, and a ``score``: the
        cosine, from -1 to 1.

        Args:
            query: A sentence, or a list of them.
            k: At least 1.
            where: Condition on the other columns, e.g. ``year > 2020 and lang = "en"``.
            by: Ranking: ``meaning`` by cosine, ``words`` by BM25, which is then the score, or
                ``both`` together. None: both, or meaning in an index without words.
            min_score: Lowest score of a hit.
            explain: Whether each hit keeps its explanation, see ``Hit.explain``.

        Raises:
            UsageError: ``k`` below 1, an invalid condition, or no words in the index.
        """
        texts = as_texts(query)
        for text in texts:
            check_query(text)
        answers = list(
            self.answer(texts, k, where=where, by=by, min_score=min_score, explain=explain)
        )
        return answers[0] if isinstance(query, str) else answers

    def resolve_by(self, by: str | None = None) -> RankBy:
        """Return the ranking to use; refuse a ranking by words that were not counted."""
        if by == "meaning":
            return "meaning"
        with self.store.reading():
            has_words = self.store.settings.lexical and self.has_texts()
        if by is None:
            return "both" if has_words else "meaning"
        if not has_words:
            raise UsageError(
                "the index has no words: `promptcli index compact DIR --lexical` counts them",
                parameter="by",
            )
        return by  # type: ignore[return-value]

    def answer(
        self,
        texts: Sequence[str],
        k: int = 10,
        *,
        vectors: Any = None,
        where: str | None = None,
        by: RankBy | None = None,
        min_score: float | None = None,
        explain: bool = False,
        check_cancelled: CancelCheck = lambda: None,
    ) -> Iterator[list[Hit]]:
        """Yield the k best rows for each of q queries, see ``search``; a blank query has no hits.

        Args:
            texts: The queries.
            k: At least 1.
            vectors: (q, d) of the queries; None: the queries are encoded.
            where: See ``search``.
            by: See ``search``.
            min_score: See ``search``.
            explain: See ``search``.
            check_cancelled: Called at intervals, and may raise to end the work.
        """
        check_search(k, by, where)
        k = int(k)
        condition = None if where is None else Condition(where)
        allowed = None
        with self.store.reading():
            ranking_by = self.resolve_by(by)
            if not texts:
                return
            before = self.snapshot()
            if condition is not None:  # refused before anything is encoded
                allowed = condition.keys(self.store, check_cancelled)
        units = None
        if ranking_by != "words" and vectors is not None:
            units = unit_rows(vectors)
        elif ranking_by != "words":  # encoded outside of a transaction, so that others can write
            queries = self.open_encoder(before.origin).in_role("query")
            units = queries.encode(texts, normalize_embeddings=True)
        check_cancelled()
        with self.store.reading():
            snapshot = self.snapshot()
            if units is not None and snapshot.origin.fingerprint != before.origin.fingerprint:
                raise PromptcliError("another process gave the index another model; search again")
            if condition is not None and snapshot is not before:
                allowed = condition.keys(self.store, check_cancelled)
            split = self.store.settings.reading["split"]
            rank = snapshot.rank_best_parts if split else snapshot.rank
            rankings = rank(texts, units, k, ranking_by, allowed)
            answers = []
            for text, ranking in zip(texts, rankings, strict=True):
                hits = read_hits(self.store, ranking) if text.strip() else []
                if min_score is not None:
                    hits = [hit for hit in hits if hit.score >= min_score - SCORE_ROUNDING]
                if explain:
                    hits = self._explain(text, hits, ranking_by)
                answers.append(hits)
        for hits in answers:
            check_cancelled()
            yield hits

    def _explain(self, query: str, hits: list[Hit], by: RankBy) -> list[Hit]:
        """Return hits with their explanations."""
        by_hit: list[dict[str, Any]] = [{} for _ in hits]
        for name, explain in EXPLAINERS.items():
            explanations = explain(self, query, hits, by)
            for by_explainer, explanation in zip(by_hit, explanations, strict=True):
                if explanation is not None:
                    by_explainer[name] = explanation
        pairs = zip(hits, by_hit, strict=True)
        return [hit._replace(explanation=by_explainer) for hit, by_explainer in pairs]

    def snapshot(self) -> Snapshot:
        """Return a search's view of the present generation; call inside ``store.reading``."""
        if self._snapshot is None or self._snapshot.settings != self.store.settings:
            self._snapshot = Snapshot(self.store, self.derived_files)
        return self._snapshot

    def dups(self, threshold: float = NEAR_COSINE, **options: Any) -> "list[DuplicateGroup]":
        """Return groups of near-duplicates, see ``promptcli.retrieval.pairs.find_dups``."""
        from promptcli.retrieval.pairs import find_dups

        return find_dups(self, threshold, **options)

    def leaks(self, against: Any, threshold: float = NEAR_COSINE, **options: Any) -> "Leaks":
        """Return the rows of another set that also occur in the index, see
        ``promptcli.retrieval.pairs.find_leaks``.
        """
        from promptcli.retrieval.pairs import find_leaks

        return find_leaks(self, against, threshold, **options)


def begin_index(
    store: Store, model: "Model | None", reading: Reading, **settings: Any
) -> SentenceIndex:
    """Return a new index without rows, for a model's vectors, after its settings were written."""
    model = loading.or_search_model(model)
    encoder = loading.open_encoder(model, dtype="auto")
    documents = encoder.in_role("document", report=True)
    _write_settings(store, Origin.of(encoder, documents, model), reading, documents.width, settings)
    return SentenceIndex(store, model, encoder)


def _write_settings(
    store: Store, origin: Origin, reading: Reading, width: int, settings: Mapping[str, Any]
) -> None:
    store.write_settings(
        **settings,
        origin=dataclasses.asdict(origin),
        reading=dataclasses.asdict(reading),
        width=width,
        created=utc_now(),
    )


def read_rows(
    index: SentenceIndex,
    sentences: SentenceInput,
    ids: Any = None,
    columns: Any = None,
    *,
    text_field: str | None = None,
    id_field: str | None = None,
    csv: Mapping[str, Any] | None,
    skip_bad: bool,
    adding: bool = False,
) -> list[NewRows]:
    """Return the rows that ``add`` would create; only rows of a vector file have vectors yet.

    Files are read like those of the index, unless arguments say otherwise. The arguments are
    those of ``add``; if the rows are only compared (``adding`` is false), they may have any
    ids.
    """
    stored = index.load_reading()
    reading = dataclasses.replace(
        stored, split=stored.split and adding, csv=stored_options(csv) or stored.csv
    )
    if are_vectors(sentences):
        path = Path(str(sentences))
        vectors, manifest, _ = open_vectors(path)
        if manifest is None:
            raise UsageError(f"{path} has no manifest, so its encoder is unknown; embed it again")
        Origin.of_vectors(manifest).check_same(index.load_origin(), str(path))
        blocks = list(vectors)
        if reading.split:
            for block in blocks:
                check_whole(block.ids)
        return blocks
    documents = index.open_document_encoder(report=adding)
    fields = ColumnChoice(
        text_field, id_field, text_before=stored.text_field, id_before=stored.id_field
    )
    with open_sentences(sentences, ids, columns, reading, fields, skip_bad) as file:
        return list(prepare_rows(documents, file.blocks(documents), split=stored.split))


def check_search(k: Any, by: str | None, where: str | None) -> None:
    """Refuse arguments of a search that no index accepts; called before anything is read."""
    if not isinstance(k, Integral) or k < 1:
        raise UsageError(f"must be a whole number from 1, got {k!r}", parameter="k")
    if by is not None and by not in RANKINGS:
        raise unknown_name_error("ranking", by, RANKINGS)
    if where is not None:
        Condition(where)
