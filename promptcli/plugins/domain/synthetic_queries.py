"""Queries made from unlabelled texts, each with the passages that answer it.

A text states its topic: a heading states that of the text below it, a title that of its body, and a
first sentence that of the rest (the inverse cloze task: Lee et al., 2019, "Latent Retrieval for
Weakly Supervised Open Domain Question Answering"). The field calls such queries synthetic. The text
of a query is removed from its answers. Otherwise a search would find the words at the place from
which they were copied. If the same words occur elsewhere in an answer, they remain.

    collection = synthetic_queries(["docs"])
    for query in collection.queries:
        positives = [collection.passages[row] for row in query.answers]

If parts of a collection must not overlap, split ``collection.queries`` by ``query.document``.
"""

import dataclasses
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from promptcli import notes
from promptcli.data.retrieval_sets import read_retrieval_folder
from promptcli.data.tasks import RetrievalTask
from promptcli.errors import UsageError, with_count
from promptcli.models import loading
from promptcli.retrieval.files import Reading, read_file
from promptcli.retrieval.found_files import find_files as find_named_files
from promptcli.retrieval.new_rows import NewRows

#: Sources of a query; the first are the most like a person's query.
KINDS = ("judged question", "heading", "title", "first sentence")
JUDGED, HEADING, TITLE, FIRST_SENTENCE = KINDS
MIN_QUERIES = 50  #: fewer queries cannot tell models apart
#: Columns of a table that hold a row's title, in the languages of ``mini-multi``; the first of them
#: that has text is taken.
TITLE_COLUMNS = (
    *("question", "query", "title", "subject", "headline"),
    *("betreff", "titel", "objet", "titre", "asunto", "título", "oggetto", "titolo", "onderwerp"),
    *("assunto", "temat", "tytuł", "тема", "заголовок", "标题", "件名"),
)
_MAX_ANSWERS = 10  # passages below a heading that is a query; nDCG@10 looks at ten
_MIN_QUERY_WORDS = 2
_MAX_QUERY_WORDS = 40
_MAX_QUERY_CHARACTERS = 2000
_MIN_BODY_WORDS = 5  # of a text with a title
_MIN_REST_WORDS = 8  # after a first sentence
_MIN_SENTENCE_WORDS = 4  # fewer words are an abbreviation or a greeting
_SENTENCE_END = re.compile(r"[.!?…][\"'”’»)\]]*(?=\s)|[。！？]")  # noqa: RUF001
#: Texts are cut into passages that this model can read whole, whichever models are compared.
_WINDOW_MODEL = "mini"


@dataclass(frozen=True)
class SyntheticQuery:
    """A query that was taken from a text."""

    text: str
    kind: str  #: one of ``KINDS``
    document: str  #: the file of the text, or the row of a table: ``FILE:LINE``
    answers: tuple[int, ...]  #: rows of the passages that answer it, at least one, ascending
    grades: dict[int, float] = field(default_factory=dict, compare=False)  #: of judged answers
    #: texts that are removed from the answers: the title, or the sentences before the rest
    removed: tuple[str, ...] = ()


@dataclass(frozen=True)
class SyntheticCollection:
    """q queries, and m distinct passages with all their answers."""

    queries: tuple[SyntheticQuery, ...]  #: (q,)
    passages: tuple[str, ...]  #: (m,); an answer lacks the text of its queries
    documents: tuple[str, ...]  #: (m,), of each passage, see ``SyntheticQuery.document``
    files: int  #: number of files
    all_passages: int  #: number of passages in the files
    all_queries: int  #: number of queries that could be made

    @property
    def kinds(self) -> dict[str, int]:
        """The number of queries of each kind that occurs."""
        counts = Counter(query.kind for query in self.queries)
        return {kind: counts[kind] for kind in KINDS if counts[kind]}

    @property
    def kinds_in_words(self) -> str:
        """The numbers of queries of each kind: ``12 headings, 3 titles``."""
        return ", ".join(with_count(count, kind) for kind, count in self.kinds.items())

    def task(self, ranking: str = "retrieval") -> RetrievalTask:
        """Return the queries as a task that ranks passages by vectors, by words (``lexical``) or by
        both (``hybrid``).
        """
        return RetrievalTask(
            "synthetic queries",
            [query.text for query in self.queries],
            list(self.passages),
            [query.grades or dict.fromkeys(query.answers, 1.0) for query in self.queries],
            ranking,
        )


@dataclass(frozen=True)
class _Passage:
    """A passage of a text, or a row of a table."""

    document: str
    kind: str  #: ``HEADING`` or ``TITLE``, the kind of the queries in ``path``
    path: tuple[str, ...]  #: the headings above the passage, or the title of the row
    body: str


def judged_queries(folder: Path) -> SyntheticCollection:
    """Return the queries of a retrieval folder, which people judged, and its documents."""
    tables = read_retrieval_folder(folder)
    task = RetrievalTask.of(
        str(folder), tables["all"], missing=tables["missing"], own=tables["own"]
    )
    queries = [
        SyntheticQuery(text, JUDGED, str(folder), tuple(grades), grades)
        for text, grades in zip(task.queries, task.grades, strict=True)
    ]
    count = len(task.documents)
    documents = (str(folder),) * count
    return SyntheticCollection(
        tuple(queries), tuple(task.documents), documents, 1, count, len(queries)
    )


def synthetic_queries(
    files: Sequence[str | Path],
    *,
    title: str | None = None,
    min_queries: int = MIN_QUERIES,
    max_queries: int | None = None,
    max_passages: int | None = None,
    seed: int = 0,
) -> SyntheticCollection:
    """Return queries made from the texts of files.

    Headings and titles are taken first; first sentences are taken if there are too few of them. A
    text that occurs in two places is not used, because other passages would also answer it.

    Args:
        files: Texts, tables (``FILE:COLUMN`` names the column of the text), globs and folders.
        title: Column of a table with the title of a text. None: one of ``TITLE_COLUMNS``.
        min_queries: Fewer queries raise UsageError.
        max_queries: Maximum number of queries, which are drawn at random. None: all.
        max_passages: Maximum number of passages: the answers, and other passages drawn at random.
            None: all.
        seed: Random seed of the draws.

    Raises:
        UsageError: Fewer than ``min_queries`` queries, or a file that cannot be read.
        NotFoundError: No such file.
    """
    draw = random.Random(seed)
    titles = TITLE_COLUMNS if title is None else (title.casefold(),)
    passages, file_count = _read(files, titles)
    if title is not None and not any(
        passage.kind == TITLE and passage.path for passage in passages
    ):
        raise UsageError(f"no table has a column {title!r} with text", parameter="title")
    possible = _possible_queries(passages, draw)
    if len(possible) < min_queries:
        source = f"{with_count(len(passages), 'passage')} of {with_count(file_count, 'file')}"
        raise UsageError(
            f"only {with_count(len(possible), 'query', 'queries')} can be made from {source};"
            f" {min_queries} are needed. Give more texts, or texts with headings, titles or several"
            " sentences (a text that occurs in several places is not used as a query)"
        )
    chosen = possible[:max_queries]

    removed = defaultdict[int, list[str]](list)  # by answer
    for query in chosen:
        for answer in query.answers:
            removed[answer] += query.removed
    others = [number for number in range(len(passages)) if number not in removed]
    if max_passages is not None:
        room = max(0, max_passages - len(removed))
        others = draw.sample(others, min(room, len(others)))
    text_of = dict[int, str]()
    document_of = dict[str, str]()
    for number in sorted([*removed, *others]):
        text = _text_without(passages[number], removed[number])
        if text:
            text_of[number] = text
            document_of.setdefault(text, passages[number].document)
    row_of = {text: row for row, text in enumerate(document_of)}
    queries = []
    for query in chosen:
        rows = {row_of[text_of[answer]] for answer in query.answers if answer in text_of}
        queries.append(dataclasses.replace(query, answers=tuple(sorted(rows))))
    return SyntheticCollection(
        tuple(queries),
        tuple(document_of),
        tuple(document_of.values()),
        files=file_count,
        all_passages=len(passages),
        all_queries=len(possible),
    )


def _read(files: Sequence[str | Path], titles: Sequence[str]) -> tuple[list[_Passage], int]:
    """Return the passages of files, and the number of files that were read."""
    named = find_named_files([str(name) for name in files])
    encoder = loading.open_encoder(_WINDOW_MODEL)
    passages = list[_Passage]()
    file_count = 0
    with notes.stage("read", len(named.files)) as advance:
        for file in named.files:
            with named.reading(file):
                for rows in read_file(file, Reading(), encoder):
                    passages += _passages_of(file, rows, titles)
                file_count += 1
            advance(1)
    if left_out := named.summarize_left_out(verbose=False):
        notes.note(left_out)
    return passages, file_count


def _passages_of(file: str, rows: NewRows, titles: Sequence[str]) -> Iterator[_Passage]:
    """Yield the passages of a file. A text is one document; in a table each row is a document."""
    for number, text in enumerate(rows.texts):
        cells = {name.casefold(): values[number] for name, values in rows.columns.items()}
        if cells.get("end_line") is not None:
            heading = cells["heading"] or ""
            titles_above = filter(None, heading.split(" > "))
            path = tuple(title[: _MAX_QUERY_CHARACTERS + 1] for title in titles_above)
            body = text.partition("\n")[2] if heading else text
            yield _Passage(file, HEADING, path, body)
            continue
        title = ""
        if cells.get("file") is None:
            cell = next((cells[name] for name in titles if cells.get(name)), "")
            title = str(cell)[: _MAX_QUERY_CHARACTERS + 1].strip()
        yield _Passage(
            document=str(rows.ids[number]),
            kind=TITLE,
            path=(title,) if title else (),
            body=_without_start(title, text),
        )


def _possible_queries(passages: Sequence[_Passage], draw: random.Random) -> list[SyntheticQuery]:
    """Return all usable queries in random order, first sentences last."""
    titles = list(_queries_by_title(passages))
    answers = {answer for query in titles for answer in query.answers}
    sentences = [
        query for query in _queries_by_first_sentence(passages) if query.answers[0] not in answers
    ]
    return [*draw.sample(titles, len(titles)), *draw.sample(sentences, len(sentences))]


def _without_start(query: str, body: str) -> str:
    """Return a body without a query at its start, whatever their spaces and case."""
    if not query or len(query) > _MAX_QUERY_CHARACTERS:
        return body
    words = r"\s+".join(map(re.escape, query.split()))
    return re.sub(rf"\A\s*{words}(?!\w)[\s:.,;!?-]*", "", body, flags=re.IGNORECASE)


def _queries_by_title(passages: Sequence[_Passage]) -> Iterator[SyntheticQuery]:
    """Yield the usable headings and titles as queries: several words that occur once."""
    below = defaultdict[tuple[str, tuple[str, ...]], list[int]](list)
    for number, passage in enumerate(passages):
        for depth in range(1, len(passage.path) + 1):
            below[passage.document, passage.path[:depth]].append(number)
    counts = Counter(_normalise(path[-1]) for _, path in below)
    for (document, path), answers in below.items():
        text = path[-1]
        if (
            _MIN_QUERY_WORDS <= len(text.split()) <= _MAX_QUERY_WORDS
            and len(text) <= _MAX_QUERY_CHARACTERS
            and counts[_normalise(text)] == 1
            and len(answers) <= _MAX_ANSWERS
            and any(_has_words(passages[answer].body, _MIN_BODY_WORDS) for answer in answers)
        ):
            kind = passages[answers[0]].kind
            yield SyntheticQuery(text, kind, document, tuple(answers), removed=(text,))


def _queries_by_first_sentence(passages: Sequence[_Passage]) -> Iterator[SyntheticQuery]:
    """Yield the usable first sentences as queries; if several texts begin with the same sentence,
    their second sentences.
    """
    first_sentences = [_first_sentence(passage.body) for passage in passages]
    counts = Counter(map(_normalise, first_sentences))
    shared = {text for text, count in counts.items() if count > 1}
    skipped = [text if _normalise(text) in shared else "" for text in first_sentences]
    queries = list(first_sentences)
    for number, text in enumerate(skipped):
        if text:
            queries[number] = _first_sentence(_without_start(text, passages[number].body))
    counts = Counter(map(_normalise, queries))
    for number, text in enumerate(queries):
        if text and counts[_normalise(text)] == 1 and _normalise(text) not in shared:
            document = passages[number].document
            removed = (skipped[number], text)
            yield SyntheticQuery(text, FIRST_SENTENCE, document, (number,), removed=removed)


def _first_sentence(body: str) -> str:
    """Return the first sentence of a text; "" if it is not usable as a query, or if too little
    follows it.
    """
    for end in _SENTENCE_END.finditer(body, 0, _MAX_QUERY_CHARACTERS):
        sentence = body[: end.end()].split()
        rest = body[end.end() : end.end() + _MAX_QUERY_CHARACTERS].lstrip()
        if rest[:1].islower() or len(sentence) < _MIN_SENTENCE_WORDS:  # an abbreviation
            continue
        fits = len(sentence) <= _MAX_QUERY_WORDS and _has_words(rest, _MIN_REST_WORDS)
        return " ".join(sentence) if fits else ""
    return ""


def _normalise(text: str) -> str:
    """Return a text without differences of case and spaces."""
    return " ".join(text.casefold().split())


def _has_words(text: str, count: int) -> bool:
    return len(text.split(maxsplit=count)) >= count


def _text_without(passage: _Passage, removed: Sequence[str]) -> str:
    """Return the text of a passage, with its headings, without the texts of its queries."""
    body = passage.body
    for text in removed:
        body = _without_start(text, body)
    heading = " > ".join(title for title in passage.path if title not in removed)
    return f"{heading}\n{body}".strip()
