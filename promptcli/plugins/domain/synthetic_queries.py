"""Queries made from texts without labels, each with the passages that answer it.

A text says what it is about: a heading the text below it, a title its body, and a first sentence
(or, without the ends of sentences, ten words) the rest (the inverse cloze task: Lee et al., 2019,
"Latent Retrieval for Weakly Supervised Open Domain Question Answering"). The field calls such
queries synthetic. What a query was taken from is removed from its answers: else the words would be
found where they were copied. The same words elsewhere in an answer remain, as they do for a
person's query.

    made = synthetic_queries(["docs"], most=None)
    for query in made.queries:
        positives = [made.passages[row] for row in query.answers]

Split ``made.queries`` by ``query.document`` where parts of a collection must not overlap.
"""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from promptcli import errors, notes
from promptcli.data.tasks import RetrievalTask
from promptcli.errors import UsageError
from promptcli.models import loading
from promptcli.retrieval.files import FileRows, Reader, Reading
from promptcli.retrieval.found_files import find_files as find_named_files

#: What a query was taken from, that which is most like a person's query first.
KINDS = ("heading", "title", "first sentence", "first words")
HEADING, TITLE, FIRST_SENTENCE, FIRST_WORDS = KINDS
_PLURALS = {
    HEADING: "headings",
    TITLE: "titles",
    FIRST_SENTENCE: "first sentences",
    FIRST_WORDS: "texts' first words",
}
#: Fewest queries that can separate models.
FEWEST = 50
#: Columns of a table that hold what a row is about, best first, in the languages of ``mini-multi``.
TITLES = (
    *("question", "query", "title", "subject", "headline"),
    *("betreff", "titel", "objet", "titre", "asunto", "título", "oggetto", "titolo", "onderwerp"),
    *("assunto", "temat", "tytuł", "тема", "заголовок", "标题", "件名"),
)
#: Most passages below a heading that is a query: nDCG@10 looks at ten.
_MOST_ANSWERS = 10
#: Words of a query, and its most characters.
_FEWEST_WORDS, _MOST_WORDS = 2, 40
_LONGEST = 2000
#: Fewest words of an answer: of a body, and of what goes on after its beginning.
_BODY_WORDS, _REST_WORDS = 5, 8
#: Fewest words of a first sentence: fewer are an abbreviation's, or a greeting.
_SENTENCE_WORDS = 4
#: Words that replace the first sentence of a text in which no sentence ends.
_FIRST_WORDS = 10
#: Characters of the headings that an answer keeps.
_LONGEST_HEADING = 120
_SENTENCE_END = re.compile(r"[.!?…][\"'”’»)\]]*(?=\s)|[。！？]")  # noqa: RUF001
#: The model whose window passages fit, whatever models are compared.
_WINDOW_MODEL = "mini"


@dataclass(frozen=True)
class SyntheticQuery:
    """A query that was taken from a text."""

    text: str
    kind: str  #: one of ``KINDS``
    document: str  #: the file of the text, or the row of a table: ``FILE:LINE``
    answers: tuple[int, ...]  #: numbers of the passages that answer it, ascending, at least one


@dataclass(frozen=True)
class SyntheticQueries:
    """q queries and the m passages, all distinct, among which their answers are."""

    queries: tuple[SyntheticQuery, ...]  #: (q,)
    passages: tuple[str, ...]  #: (m,); an answer lacks what its queries were taken from
    documents: tuple[str, ...]  #: of each passage, (m,), see ``SyntheticQuery.document``
    #: number of files, of all their passages, and of all queries that could be made
    files: int
    all_passages: int
    all_queries: int

    @property
    def kinds(self) -> dict[str, int]:
        """The number of queries of each kind that there is."""
        counts = Counter(query.kind for query in self.queries)
        return {kind: counts[kind] for kind in KINDS if counts[kind]}

    @property
    def kinds_in_words(self) -> str:
        """The numbers of queries of each kind: ``12 headings and 3 titles``."""
        kinds = [f"{count:,} {_PLURALS[kind]}" for kind, count in self.kinds.items()]
        return " and ".join(filter(None, [", ".join(kinds[:-1]), kinds[-1]]))

    def task(self, ranking: str = "retrieval") -> RetrievalTask:
        """Return the queries as a task, ranked by vectors, or by words (``lexical``) or both
        (``hybrid``).
        """
        return RetrievalTask(
            "synthetic queries",
            [query.text for query in self.queries],
            list(self.passages),
            [dict.fromkeys(query.answers, 1.0) for query in self.queries],
            ranking,
        )


@dataclass(frozen=True)
class _Row:
    """A passage, a line or a row of a table."""

    document: str
    path: tuple[str, ...]  # the headings above it
    title: str
    body: str


@dataclass(frozen=True)
class _PossibleQuery:
    """A query that could be asked."""

    text: str
    kind: str
    document: str
    rows: tuple[int, ...]
    titles: tuple[int, ...] = ()  # places in the path of the answers of the headings that it is
    skipped: str = ""  # what stands before it: a first sentence that several texts have


def synthetic_queries(
    files: Sequence[str | Path],
    *,
    title: str | None = None,
    most: int | None = None,
    most_passages: int | None = None,
    fewest: int = FEWEST,
    seed: int = 0,
) -> SyntheticQueries:
    """Return queries made from the texts of files.

    A row gives one query at most by its heading or title; first sentences are queries where these
    are too few. A text that two queries would share is not used: several passages would answer it.

    Args:
        files: Texts, tables (``FILE:COLUMN`` names that of the text), globs and folders.
        title: Column of a table that holds the title of a text; None: one of ``TITLES``.
        most: Most queries; they are drawn at random, each document has one before any has two.
            None: all.
        most_passages: Most passages: the answers, and others drawn at random. None: all.
        fewest: Fewest queries.
        seed: Of the draws.

    Raises:
        UsageError: Fewer than ``fewest`` queries, or a file that cannot be read.
        NotFoundError: No such file.
    """
    draw = random.Random(seed)
    rows, count = _read(files, TITLES if title is None else (title.casefold(),))
    if title is not None and not any(row.title for row in rows):
        raise UsageError(f"no table has a column {title!r} with text", parameter="title")
    possible = _ordered_queries(rows, draw)
    if len(possible) < fewest:
        read = f"{errors.counted(len(rows), 'passage')} of {errors.counted(count, 'file')}"
        raise UsageError(
            f"{len(possible):,} queries can be made from {read}, and telling models apart takes"
            f" {fewest}; give more texts, or texts with headings, titles or several"
            " sentences; what occurs in several places is no query"
        )
    counts = (count, len(rows), len(possible))
    return _collect(rows, possible[:most], most_passages, draw, counts)


def _read(files: Sequence[str | Path], titles: Sequence[str]) -> tuple[list[_Row], int]:
    """Return the rows of files, and the number of files that were read."""
    found = find_named_files([str(name) for name in files])
    encoder = loading.open_encoder(_WINDOW_MODEL)
    reader = Reader(Reading(), lambda: encoder)
    rows = list[_Row]()
    count = 0
    with notes.stage("read", len(found.files)) as advance:
        for file, in_folder in found.files.items():
            read = reader.read_found(file, found, in_folder=in_folder)
            if read is not None:
                rows += _rows_of(file, read, titles)
                count += 1
            advance(1)
    if left_out := found.note(verbose=False):
        notes.note(left_out)
    return rows, count


def _rows_of(file: str, read: FileRows, titles: Sequence[str]) -> Iterator[_Row]:
    """Yield the rows of a file: a text of passages is one document, a line or a row is its own."""
    cells = [
        {name: str(values[row]) for name, values in read.columns.items() if values[row] is not None}
        for row in range(len(read.rows))
    ]
    for passage, columns in zip(read.rows, cells, strict=True):
        if "end_line" in columns:
            path = tuple(title[: _LONGEST + 1] for title in passage.heading.split(" > ") if title)
            yield _Row(file, path, "", passage.body)
            continue
        title = ""
        if columns.get("file") is None:
            title = _title_of(columns, titles)
        yield _Row(f"{file}:{passage.line}", (), title, _after(title, passage.body))


def _title_of(columns: dict[str, str], titles: Sequence[str]) -> str:
    by_name = {name.casefold(): cell for name, cell in columns.items()}
    cell = next((by_name[name] for name in titles if by_name.get(name)), "")
    return cell[: _LONGEST + 1].strip()  # of one that is too long for a query, enough to tell


def _after(query: str, body: str) -> str:
    """Return a body without the query with which it begins; spaces and case do not count."""
    if not query or len(query) > _LONGEST:
        return body
    words = query.split()
    pattern = r"\s*" + r"\s+".join(map(re.escape, words)) + r"(?!\w)[\s:.,;!?-]*"
    start = re.match(pattern, body, re.IGNORECASE)
    if start is None:
        return body
    return body[start.end() :]


def _by_headings(rows: Sequence[_Row]) -> Iterator[_PossibleQuery]:
    """Yield the headings that are queries.

    A heading of one word, or one above several texts, follows the headings above it.
    """
    below = defaultdict[tuple[str, tuple[str, ...]], list[int]](list)
    direct = dict[tuple[str, tuple[str, ...]], None]()
    for number, row in enumerate(rows):
        if row.path:
            direct[row.document, row.path] = None
        for depth in range(1, len(row.path) + 1):
            below[row.document, row.path[:depth]].append(number)
    used = Counter[str]()
    for _, path in below:
        used.update({_key(path[start:]) for start in range(len(path))})
    for document, path in direct:
        answers = below[document, path]
        if len(answers) > _MOST_ANSWERS or not any(
            _has_words(rows[row].body, _BODY_WORDS) for row in answers
        ):
            continue
        for start in reversed(range(len(path))):
            words = sum(len(title.split()) for title in path[start:])
            if words > _MOST_WORDS or len(" ".join(path[start:])) > _LONGEST:
                break
            if words >= _FEWEST_WORDS and used[_key(path[start:])] == 1:
                text = " ".join(path[start:])
                places = tuple(range(start, len(path)))
                yield _PossibleQuery(text, HEADING, document, tuple(answers), places)
                break


def _by_titles(rows: Sequence[_Row]) -> Iterator[_PossibleQuery]:
    used = Counter(_key([row.title]) for row in rows)
    for number, row in enumerate(rows):
        words = len(row.title.split())
        fits = _FEWEST_WORDS <= words <= _MOST_WORDS and len(row.title) <= _LONGEST
        if fits and used[_key([row.title])] == 1 and _has_words(row.body, _BODY_WORDS):
            yield _PossibleQuery(row.title, TITLE, row.document, (number,))


def _by_beginnings(rows: Sequence[_Row]) -> Iterator[_PossibleQuery]:
    """Yield the beginnings that are queries; of a text that begins as others do, what is next."""
    beginnings = [("", *_beginning(row.body)) for row in rows]
    used = Counter(_key([text]) for _, text, _ in beginnings)
    for number, (_, text, kind) in enumerate(beginnings):
        if text and kind == FIRST_SENTENCE and used[_key([text])] > 1:
            beginnings[number] = (text, *_beginning(_after(text, rows[number].body)))
            used[_key([beginnings[number][1]])] += 1
    for number, (skipped, text, kind) in enumerate(beginnings):
        if text and used[_key([text])] == 1:
            yield _PossibleQuery(text, kind, rows[number].document, (number,), skipped=skipped)


def _beginning(body: str) -> tuple[str, str]:
    """Return the first sentence of a text that goes on after it, or the first words of one without
    the ends of sentences, and which of them it is; an empty text if neither is a query.
    """
    for end in _SENTENCE_END.finditer(body, 0, _LONGEST):
        rest = body[end.end() : end.end() + _LONGEST].lstrip()
        if rest[:1].islower():  # an abbreviation
            continue
        sentence = " ".join(body[: end.end()].split())
        words = len(sentence.split())
        if words > _MOST_WORDS or not _has_words(rest, _REST_WORDS):
            return "", FIRST_SENTENCE
        if words >= _SENTENCE_WORDS:
            return sentence, FIRST_SENTENCE
    if _SENTENCE_END.search(body, _LONGEST):  # a sentence that is too long for a query
        return "", FIRST_SENTENCE
    first_words = body.split(maxsplit=_FIRST_WORDS + _REST_WORDS)[: _FIRST_WORDS + _REST_WORDS]
    query = " ".join(first_words[:_FIRST_WORDS])
    if len(first_words) < _FIRST_WORDS + _REST_WORDS or len(query) > _LONGEST:
        return "", FIRST_WORDS
    return query, FIRST_WORDS


def _key(titles: Iterable[str]) -> str:
    return " ".join(" ".join(titles).casefold().split())


def _has_words(text: str, fewest: int) -> bool:
    return len(text.split()) >= fewest


def _ordered_queries(rows: Sequence[_Row], draw: random.Random) -> list[_PossibleQuery]:
    """Return all queries: headings and titles, then the beginnings of rows that answer none.

    Each kind is in a random order.
    """
    queries = _spread([*_by_headings(rows), *_by_titles(rows)], draw)
    answers = {row for query in queries for row in query.rows}
    beginnings = [each for each in _by_beginnings(rows) if each.rows[0] not in answers]
    for kind in (FIRST_SENTENCE, FIRST_WORDS):
        queries += _spread([each for each in beginnings if each.kind == kind], draw)
    return queries


def _spread(candidates: Sequence[_PossibleQuery], draw: random.Random) -> list[_PossibleQuery]:
    """Return candidates in a random order in which each document has one before any has two."""
    shuffled = draw.sample(candidates, len(candidates))
    earlier = Counter[str]()
    turns = list[int]()
    for candidate in shuffled:
        turns.append(earlier[candidate.document])
        earlier[candidate.document] += 1
    order = sorted(range(len(shuffled)), key=turns.__getitem__)
    return [shuffled[place] for place in order]


def _collect(
    rows: Sequence[_Row],
    chosen: Sequence[_PossibleQuery],
    most_passages: int | None,
    draw: random.Random,
    counts: tuple[int, int, int],
) -> SyntheticQueries:
    """Return the queries with their answers and other passages."""
    removed = defaultdict[int, list[_PossibleQuery]](list)
    for candidate in chosen:
        for row in candidate.rows:
            removed[row].append(candidate)
    others = [number for number in range(len(rows)) if number not in removed]
    if most_passages is not None:
        room = max(0, most_passages - len(removed))
        others = draw.sample(others, min(room, len(others)))
    passages = dict[str, int]()
    documents = list[str]()
    places = dict[int, int]()
    for number in sorted([*removed, *others]):
        text = _text_without(rows[number], removed[number])
        if not text.strip():
            continue
        places[number] = passages.setdefault(text, len(passages))
        if len(documents) < len(passages):
            documents.append(rows[number].document)
    queries = list[SyntheticQuery]()
    for each in chosen:
        answers = sorted({places[row] for row in each.rows if row in places})
        queries.append(SyntheticQuery(each.text, each.kind, each.document, tuple(answers)))
    return SyntheticQueries(tuple(queries), tuple(passages), tuple(documents), *counts)


def _text_without(row: _Row, queries: Sequence[_PossibleQuery]) -> str:
    """Return the text of a row without what queries were taken from."""
    removed = {place for query in queries for place in query.titles}
    titles = [title for place, title in enumerate(row.path) if place not in removed]
    while titles[1:] and len(" > ".join(titles)) > _LONGEST_HEADING:
        del titles[0]
    body = row.body
    kinds = {query.kind for query in queries}
    for place in sorted(removed & set(range(len(row.path)))):
        body = _after(row.path[place], body)
    for query in queries:
        if query.kind in (FIRST_SENTENCE, FIRST_WORDS):
            body = _after(query.text, _after(query.skipped, body))
    if row.title and TITLE not in kinds:
        titles = [row.title]
    heading = " > ".join(titles)[:_LONGEST_HEADING]
    return f"{heading}\n{body}".strip()
