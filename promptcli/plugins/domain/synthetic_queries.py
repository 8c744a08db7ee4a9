"""Queries made from unlabelled texts, each with the passages that answer it.

A text states its topic: a heading for the text below it, a title for its body, and a first sentence
for the rest (the inverse cloze task: Lee et al., 2019, "Latent Retrieval for Weakly Supervised Open
Domain Question Answering"). The field calls such queries synthetic. The text of a query is removed
from its answers; otherwise its words would be found where they were copied. The same words
elsewhere in an answer remain, as they do for a person's query.

    collection = synthetic_queries(["docs"], most=None)
    for query in collection.queries:
        positives = [collection.passages[row] for row in query.answers]

Split ``collection.queries`` by ``query.document`` if parts of a collection must not overlap.
"""

import dataclasses
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from promptcli import errors, notes
from promptcli.data.retrieval_sets import read_retrieval_folder
from promptcli.data.tasks import RetrievalTask
from promptcli.errors import UsageError
from promptcli.models import loading
from promptcli.retrieval.files import Reading, read_file
from promptcli.retrieval.found_files import find_files as find_named_files
from promptcli.retrieval.store import NewRows

#: Sources of a query, the most like a person's query first.
KINDS = ("judged question", "heading", "title", "first sentence")
JUDGED, HEADING, TITLE, FIRST_SENTENCE = KINDS
#: Fewest queries that can separate models.
FEWEST = 50
#: Columns of a table that hold a row's title, best first, in the languages of ``mini-multi``.
TITLES = (
    *("question", "query", "title", "subject", "headline"),
    *("betreff", "titel", "objet", "titre", "asunto", "título", "oggetto", "titolo", "onderwerp"),
    *("assunto", "temat", "tytuł", "тема", "заголовок", "标题", "件名"),
)
#: Most passages below a heading that is a query: nDCG@10 looks at ten.
_MOST_ANSWERS = 10
#: Limits of a query in words, and in characters.
_FEWEST_WORDS, _MOST_WORDS = 2, 40
_LONGEST_TEXT = 2000
#: Fewest words of an answer: of a body, and of the rest after a first sentence.
_BODY_WORDS, _REST_WORDS = 5, 8
#: Fewest words of a first sentence: fewer are an abbreviation or a greeting.
_SENTENCE_WORDS = 4
_SENTENCE_END = re.compile(r"[.!?…][\"'”’»)\]]*(?=\s)|[。！？]")  # noqa: RUF001
#: Passages fit this model's window, whichever models are compared.
_WINDOW_MODEL = "mini"


@dataclass(frozen=True)
class SyntheticQuery:
    """A query that was taken from a text."""

    text: str
    kind: str  #: one of ``KINDS``
    document: str  #: the file of the text, or the row of a table: ``FILE:LINE``
    answers: tuple[int, ...]  #: rows of the passages that answer it, ascending, at least one
    grades: dict[int, float] = field(default_factory=dict, compare=False)  #: of judged answers
    #: text that its answers lack: the title, or the sentences at which they begin
    removed: tuple[str, ...] = ()


@dataclass(frozen=True)
class SyntheticCollection:
    """q queries and the m distinct passages that contain their answers."""

    queries: tuple[SyntheticQuery, ...]  #: (q,)
    passages: tuple[str, ...]  #: (m,); an answer lacks the text of its queries
    documents: tuple[str, ...]  #: of each passage, (m,), see ``SyntheticQuery.document``
    #: number of files, of all their passages, and of all queries that could be made
    files: int
    all_passages: int
    all_queries: int

    @property
    def kinds(self) -> dict[str, int]:
        """The number of queries of each existing kind."""
        counts = Counter(query.kind for query in self.queries)
        return {kind: counts[kind] for kind in KINDS if counts[kind]}

    @property
    def kinds_in_words(self) -> str:
        """The numbers of queries of each kind: ``12 headings, 3 titles``."""
        return ", ".join(errors.with_count(count, kind) for kind, count in self.kinds.items())

    def task(self, ranking: str = "retrieval") -> RetrievalTask:
        """Return the queries as a task, ranked by vectors, by words (``lexical``) or by both
        (``hybrid``).
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
    """A passage of a text, a line or a row of a table."""

    document: str
    kind: str  #: of the queries that its titles are: ``HEADING`` or ``TITLE``
    path: tuple[str, ...]  #: the headings above it, or the title of a row
    body: str


def judged_queries(folder: Path) -> SyntheticCollection:
    """Return the queries of a retrieval folder, as judged by people, and its documents."""
    parts = read_retrieval_folder(folder)
    task = RetrievalTask.of(str(folder), parts["all"], missing=parts["missing"], own=parts["own"])
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
    most: int | None = None,
    most_passages: int | None = None,
    fewest: int = FEWEST,
    seed: int = 0,
) -> SyntheticCollection:
    """Return queries made from the texts of files.

    A row gives at most one query by its heading or title; first sentences are used if these are too
    few. A text shared by two queries is not used: several passages would answer it.

    Args:
        files: Texts, tables (``FILE:COLUMN`` names that of the text), globs and folders.
        title: Column of a table with the title of a text; None: one of ``TITLES``.
        most: Most queries; they are drawn at random. None: all.
        most_passages: Most passages: the answers, and others drawn at random. None: all.
        fewest: Fewest queries.
        seed: Of the draws.

    Raises:
        UsageError: Fewer than ``fewest`` queries, or a file that cannot be read.
        NotFoundError: No such file.
    """
    draw = random.Random(seed)
    rows, count = _read(files, TITLES if title is None else (title.casefold(),))
    if title is not None and not any(row.kind == TITLE and row.path for row in rows):
        raise UsageError(f"no table has a column {title!r} with text", parameter="title")
    possible = _possible_queries(rows, draw)
    if len(possible) < fewest:
        read = f"{errors.with_count(len(rows), 'passage')} of {errors.with_count(count, 'file')}"
        raise UsageError(
            f"{len(possible):,} queries can be made from {read}, but telling models apart takes"
            f" {fewest}; give more texts, or texts with headings, titles or several"
            " sentences; a text that occurs in several places is not used as a query"
        )
    chosen = possible[:most]

    removed = defaultdict[int, list[str]](list)  # by answer
    for query in chosen:
        for row in query.answers:
            removed[row] += query.removed
    others = [row for row in range(len(rows)) if row not in removed]
    if most_passages is not None:
        room = max(0, most_passages - len(removed))
        others = draw.sample(others, min(room, len(others)))
    text_of = {row: _text_without(rows[row], removed[row]) for row in sorted([*removed, *others])}
    document_of = dict[str, str]()
    for row, text in text_of.items():
        if text:
            document_of.setdefault(text, rows[row].document)
    place_of = {text: place for place, text in enumerate(document_of)}
    queries = []
    for query in chosen:
        places = {place_of[text_of[row]] for row in query.answers if text_of[row]}
        queries.append(dataclasses.replace(query, answers=tuple(sorted(places))))
    return SyntheticCollection(
        tuple(queries),
        tuple(document_of),
        tuple(document_of.values()),
        files=count,
        all_passages=len(rows),
        all_queries=len(possible),
    )


def _read(files: Sequence[str | Path], titles: Sequence[str]) -> tuple[list[_Passage], int]:
    """Return the passages of files, and the number of files that were read."""
    found = find_named_files([str(name) for name in files])
    encoder = loading.open_encoder(_WINDOW_MODEL)
    rows = list[_Passage]()
    count = 0
    with notes.stage("read", len(found.files)) as advance:
        for file in found.files:
            with found.reading(file):
                read = read_file(file, Reading(), encoder)
                rows += [row for each in read for row in _passages_of(file, each, titles)]
                count += 1
            advance(1)
    if left_out := found.note(verbose=False):
        notes.note(left_out)
    return rows, count


def _passages_of(file: str, read: NewRows, titles: Sequence[str]) -> Iterator[_Passage]:
    """Yield the rows of a file: a text of passages is one document, a line or a row is its own."""
    for number, text in enumerate(read.texts):
        cells = {name.casefold(): values[number] for name, values in read.columns.items()}
        if cells.get("end_line") is not None:
            heading = cells["heading"] or ""
            path = tuple(title[: _LONGEST_TEXT + 1] for title in heading.split(" > ") if title)
            body = text.partition("\n")[2] if heading else text
            yield _Passage(file, HEADING, path, body)
            continue
        title = ""
        if cells.get("file") is None:
            cell = next((cells[name] for name in titles if cells.get(name)), "")
            title = str(cell)[: _LONGEST_TEXT + 1].strip()  # enough of a longer title
        yield _Passage(
            document=str(read.ids[number]),
            kind=TITLE,
            path=(title,) if title else (),
            body=_after(title, text),
        )


def _possible_queries(rows: Sequence[_Passage], draw: random.Random) -> list[SyntheticQuery]:
    """Return all usable queries in random order, those by first sentences last."""
    titles = list(_queries_by_title(rows))
    answers = {row for query in titles for row in query.answers}
    sentences = [
        query for query in _queries_by_first_sentence(rows) if query.answers[0] not in answers
    ]
    return [*draw.sample(titles, len(titles)), *draw.sample(sentences, len(sentences))]


def _after(query: str, body: str) -> str:
    """Return a body without a query at its start; spaces and case do not matter."""
    if not query or len(query) > _LONGEST_TEXT:
        return body
    words = r"\s+".join(map(re.escape, query.split()))
    return re.sub(rf"\A\s*{words}(?!\w)[\s:.,;!?-]*", "", body, flags=re.IGNORECASE)


def _queries_by_title(rows: Sequence[_Passage]) -> Iterator[SyntheticQuery]:
    """Yield the usable headings and titles as queries: several words, and unique."""
    below = defaultdict[tuple[str, tuple[str, ...]], list[int]](list)
    for number, row in enumerate(rows):
        for depth in range(1, len(row.path) + 1):
            below[row.document, row.path[:depth]].append(number)
    used = Counter(_key(path[-1]) for _, path in below)
    for (document, path), answers in below.items():
        text = path[-1]
        if (
            _FEWEST_WORDS <= len(text.split()) <= _MOST_WORDS
            and len(text) <= _LONGEST_TEXT
            and used[_key(text)] == 1
            and len(answers) <= _MOST_ANSWERS
            and any(_has_words(rows[row].body, _BODY_WORDS) for row in answers)
        ):
            kind = rows[answers[0]].kind
            yield SyntheticQuery(text, kind, document, tuple(answers), removed=(text,))


def _queries_by_first_sentence(rows: Sequence[_Passage]) -> Iterator[SyntheticQuery]:
    """Yield the usable first sentences as queries, or the next one if several texts share it."""
    first = [_first_sentence(row.body) for row in rows]
    counts = Counter(map(_key, first))
    shared = {key for key, count in counts.items() if count > 1}
    skipped = [text if _key(text) in shared else "" for text in first]
    queries = list(first)
    for number, text in enumerate(skipped):
        if text:
            queries[number] = _first_sentence(_after(text, rows[number].body))
    used = Counter(map(_key, queries))
    for number, text in enumerate(queries):
        if text and used[_key(text)] == 1 and _key(text) not in shared:
            document = rows[number].document
            removed = (skipped[number], text)
            yield SyntheticQuery(text, FIRST_SENTENCE, document, (number,), removed=removed)


def _first_sentence(body: str) -> str:
    """Return the first sentence of a text with more after it; "" if it is not usable as a query."""
    for end in _SENTENCE_END.finditer(body, 0, _LONGEST_TEXT):
        sentence = body[: end.end()].split()
        rest = body[end.end() : end.end() + _LONGEST_TEXT].lstrip()
        if rest[:1].islower() or len(sentence) < _SENTENCE_WORDS:  # an abbreviation
            continue
        fits = len(sentence) <= _MOST_WORDS and _has_words(rest, _REST_WORDS)
        return " ".join(sentence) if fits else ""
    return ""


def _key(text: str) -> str:
    """Return a key that is equal for texts that a reader would consider the same."""
    return " ".join(text.casefold().split())


def _has_words(text: str, fewest: int) -> bool:
    return len(text.split(maxsplit=fewest)) >= fewest


def _text_without(row: _Passage, removed: Sequence[str]) -> str:
    """Return the text of a row without the text of its queries."""
    body = row.body
    for text in removed:
        body = _after(text, body)
    heading = " > ".join(title for title in row.path if title not in removed)
    return f"{heading}\n{body}".strip()
