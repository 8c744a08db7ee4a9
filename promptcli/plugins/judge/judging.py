"""``judge``: pooled hits of several models and rankings, their judgements, and the comparison."""

import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from promptcli.data.layouts import ID, TEXT, ColumnChoice
from promptcli.data.rows import open_rows
from promptcli.errors import UsageError, unknown
from promptcli.evaluation import statistics
from promptcli.evaluation.statistics import Doubles, mean_interval
from promptcli.models import loading
from promptcli.models.loading import Model
from promptcli.notes import note
from promptcli.plugins.judge.judgements import Judgements, Pair
from promptcli.retrieval.sentence_index import RANKINGS, SentenceIndex
from promptcli.storage.files import write_text

#: Fewest queries that can decide: five agree by chance in 1 of 16 cases.
FEWEST = 6

RankedDocuments = dict[str, list[str]]  #: query -> documents, best first, each once


@dataclass(frozen=True)
class Standing:
    """The scores of a ranking on the judged queries, and its difference to the best one."""

    way: str
    ndcg: float  #: x 100, mean over queries
    ci95: tuple[float, float]
    to_best: float = 0.0  #: mean difference to the best way
    to_best_ci95: tuple[float, float] = (0.0, 0.0)
    #: about how many more queries would decide whether it differs from the best, if the difference
    #: stays: 0 if it is decided; None: it is the best, or there is no difference so far
    more: int | None = None


@dataclass(frozen=True)
class Judging:
    """Queries, the documents that several rankings found, and grades of these pairs.

    Its folder is a retrieval set in BEIR's form, with the queries whose documents are all judged.
    """

    folder: Path
    queries: dict[str, str]  #: text -> id
    documents: dict[str, str]  #: text -> id
    ranked: Mapping[str, RankedDocuments]  #: by ranking
    pools: Mapping[str, Sequence[str]]  #: query -> documents as they are shown
    judgements: Judgements
    k: int  #: documents per ranking

    @property
    def pairs(self) -> list[Pair]:
        """All queries with their documents, in the order of the questions."""
        return [(query, text) for query, pool in self.pools.items() for text in pool]

    @property
    def open_pairs(self) -> list[Pair]:
        """The pairs that are not judged yet."""
        return [pair for pair in self.pairs if pair not in self.judgements.grades]

    @property
    def judged_queries(self) -> list[str]:
        """The queries whose documents are all judged."""
        left = {query for query, _ in self.open_pairs}
        return [query for query in self.queries if query not in left]

    def standings(self) -> list[Standing]:
        """Return the rankings, best first; none before a query is judged."""
        queries = self.judged_queries
        if not queries:
            return []
        values = {way: 100 * self._ndcg(way, queries) for way in self.ranked}
        best, *others = sorted(values, key=lambda way: -values[way].mean())
        standings = [Standing(best, float(values[best].mean()), mean_interval(values[best]))]
        for way in others:
            differences = values[way] - values[best]
            low, high = mean_interval(differences)
            mean = float(differences.mean())
            more = None
            if mean:
                # an interval shrinks with the square root of the number of queries
                needed = len(queries) * ((high - low) / 2 / mean) ** 2
                more = max(0, math.ceil(needed) - len(queries), FEWEST - len(queries))
                if low <= 0 <= high:
                    more = max(more, 1)
            own = float(values[way].mean()), mean_interval(values[way])
            standings.append(Standing(way, *own, mean, (low, high), more))
        return standings

    def _ndcg(self, way: str, queries: Sequence[str]) -> Doubles:
        """Return nDCG@k of each query; 0 if it has no good document."""
        values = np.zeros(len(queries))
        for number, query in enumerate(queries):
            graded = self._graded(query)
            places = {text: place for place, text in enumerate(graded)}
            grades = {places[text]: float(grade) for text, grade in graded.items() if grade}
            if grades:
                documents = self.ranked[way][query]
                ranked = np.full((1, self.k), -1)
                ranked[0, : len(documents)] = [places[text] for text in documents]
                values[number] = statistics.ndcg(ranked, [grades], self.k)[0]
        return values

    def _graded(self, query: str) -> dict[str, int]:
        """Return all judged documents of a query, also from earlier comparisons."""
        graded = self.judgements.grades.items()
        return {
            text: grade
            for (asked, text), grade in graded
            if asked == query and text in self.documents
        }

    def write(self) -> None:
        """Write the judgements of completed queries."""
        lines = ["query-id\tcorpus-id\tscore\n"]
        for query in self.judged_queries:
            for text, grade in self._graded(query).items():
                lines.append(f"{self.queries[query]}\t{self.documents[text]}\t{grade}\n")
        (self.folder / "qrels").mkdir(exist_ok=True)
        write_text(self.folder / "qrels" / "test.tsv", "".join(lines))


def open_judging(
    queries: str,
    index: SentenceIndex,
    folder: Path,
    models: Mapping[str, Model],
    ways: Sequence[str],
    *,
    k: int = 5,
    seed: int = 0,
) -> Judging:
    """Rank documents for queries, and begin or continue the judgements of a folder.

    Args:
        queries: File of the queries.
        index: Index of the documents.
        folder: Folder of the judgements.
        models: Models by name; each ranks by meaning.
        ways: Rankings by the index itself.
        k: Documents per ranking.
        seed: Seed of the order of documents.
    """
    _check_rankings(index, models, ways)
    query_ids = _read_queries(queries)
    documents = _read_documents(index)
    folder.mkdir(parents=True, exist_ok=True)
    ranked = _rank_all(list(query_ids), index, models, ways, k)
    pools = {}
    for query in query_ids:
        pools[query] = sorted({text for ranking in ranked.values() for text in ranking[query]})
        random.Random(f"{seed} {query}").shuffle(pools[query])
    judgements = Judgements(folder / "judgements.jsonl")
    judging = Judging(folder, query_ids, documents, ranked, pools, judgements, k)
    write_text(folder / ".ignore", "*\n")  # keeps it out of searches in a parent folder
    for name, texts in (("corpus.jsonl", documents), ("queries.jsonl", query_ids)):
        rows = [json.dumps({"_id": number, "text": text}) for text, number in texts.items()]
        write_text(folder / name, "\n".join(rows) + "\n")
    judging.write()
    return judging


def _rank_all(
    queries: list[str],
    index: SentenceIndex,
    models: Mapping[str, Model],
    ways: Sequence[str],
    k: int,
) -> dict[str, RankedDocuments]:
    """Return the documents of each query, for each ranking."""

    def rank(searched: SentenceIndex, by: Any) -> RankedDocuments:
        answers = searched.search(queries, k, by=by)
        texts = [list(dict.fromkeys(str(hit.text) for hit in hits)) for hits in answers]
        return dict(zip(queries, texts, strict=True))

    ranked = {}
    for name, model in models.items():
        encoder = loading.open_encoder(model, dtype="auto")
        searched = index
        if not index.load_origin().is_made_by(encoder):
            note(f"the texts of the index are encoded by {name}")
            texts = [text for _, text in index.named_texts()]
            searched = SentenceIndex.build(texts, encoder, lexical=False)
        ranked[name] = rank(searched, "meaning")
    for way in ways:
        ranked[way] = rank(index, way)
    return ranked


def _check_rankings(index: SentenceIndex, models: Mapping[str, Model], ways: Sequence[str]) -> None:
    if not index.has_texts():
        raise UsageError("the index has no texts to judge; build it from texts")
    for way in ways:
        if way not in RANKINGS:
            raise unknown("way", way, RANKINGS)
        index.resolve_by(way)
    names = [*models, *ways]
    if len({*names}) < max(2, len(names)):
        raise UsageError("give two different models or ways, or more")


def _read_documents(index: SentenceIndex) -> dict[str, str]:
    """Return the distinct texts of an index with their ids; equal texts have the first one's."""
    documents: dict[str, str] = {}
    for name, text in index.named_texts():
        documents.setdefault(text, _one_line_id(name))
    _check_ids("the index", documents)
    return documents


def _read_queries(file: str) -> dict[str, str]:
    """Return the distinct queries of a file with their ids."""
    queries: dict[str, str] = {}
    with open_rows(file, ColumnChoice()) as source:
        for batch in source:
            for number, text in zip(batch[ID], batch[TEXT], strict=True):
                if text.strip():
                    queries.setdefault(text.strip(), _one_line_id(number))
    if not queries:
        raise UsageError(f"{file} has no query; write one per line")
    _check_ids(file, queries)
    return queries


def _one_line_id(name: int | str) -> str:
    """Return an id as a cell of a table without quotes."""
    return re.sub(r"[\t\r\n]", " ", str(name))


def _check_ids(source: str, texts: Mapping[str, str]) -> None:
    if len({*texts.values()}) < len(texts):
        raise UsageError(
            f"{source} gives several texts one id (tabs and line ends count as spaces); give each"
            " its own"
        )
