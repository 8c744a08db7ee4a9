"""The pooled hits of several models and rankings, their grades, and the comparison by nDCG."""

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
from promptcli.errors import UsageError, unknown_name_error
from promptcli.evaluation import statistics
from promptcli.evaluation.statistics import Doubles, mean_interval
from promptcli.models import loading
from promptcli.models.loading import Model
from promptcli.notes import note
from promptcli.plugins.judge.judgements import Judgements, Pair
from promptcli.retrieval.sentence_index import RANKINGS, SentenceIndex
from promptcli.storage.files import write_text

#: Fewer queries cannot decide: five agree by chance in 1 of 16 cases.
_MIN_QUERIES = 6

RankedDocuments = dict[str, list[str]]  #: query -> documents without repeats, best first


@dataclass(frozen=True)
class Standing:
    """The scores of a ranking on the judged queries, and its difference to the best one."""

    way: str  #: name of the ranking
    ndcg: float  #: x 100, mean over queries
    ci95: tuple[float, float]
    to_best: float = 0.0  #: mean difference to the best ranking
    to_best_ci95: tuple[float, float] = (0.0, 0.0)
    #: estimate of the further queries that would decide whether the ranking differs from the best,
    #: if the difference stays; 0: it is decided; None: the best ranking, or no difference so far
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
    pools: Mapping[str, Sequence[str]]  #: query -> documents, in the order of judging
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
        open_queries = {query for query, _ in self.open_pairs}
        return [query for query in self.queries if query not in open_queries]

    def standings(self) -> list[Standing]:
        """Return the standings, best first; none before a query is judged."""
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
                more = max(0, math.ceil(needed) - len(queries), _MIN_QUERIES - len(queries))
                if low <= 0 <= high:
                    more = max(more, 1)
            ndcg, ci95 = float(values[way].mean()), mean_interval(values[way])
            standings.append(Standing(way, ndcg, ci95, mean, (low, high), more))
        return standings

    def _ndcg(self, way: str, queries: Sequence[str]) -> Doubles:
        """Return nDCG@k of each query; 0 if no document of the query has a grade above 0."""
        values = np.zeros(len(queries))
        for number, query in enumerate(queries):
            grades = self._grades_of(query)
            numbers = {text: index for index, text in enumerate(grades)}
            positive = {numbers[text]: float(grade) for text, grade in grades.items() if grade}
            if positive:
                documents = self.ranked[way][query]
                ranked = np.full((1, self.k), -1)
                ranked[0, : len(documents)] = [numbers[text] for text in documents]
                values[number] = statistics.ndcg(ranked, [positive], self.k)[0]
        return values

    def _grades_of(self, query: str) -> dict[str, int]:
        """Return the grades of a query's documents, also from earlier comparisons."""
        grades = {}
        for (graded_query, text), grade in self.judgements.grades.items():
            if graded_query == query and text in self.documents:
                grades[text] = grade
        return grades

    def write(self) -> None:
        """Write the grades of the judged queries."""
        lines = ["query-id\tcorpus-id\tscore\n"]
        for query in self.judged_queries:
            for text, grade in self._grades_of(query).items():
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
    if not index.has_texts():
        raise UsageError("the index has no texts to judge; build it from texts")
    for way in ways:
        if way not in RANKINGS:
            raise unknown_name_error("way", way, RANKINGS)
        index.resolve_by(way)
    names = [*models, *ways]
    if len({*names}) < max(2, len(names)):
        raise UsageError("a comparison needs at least two different models or ways")
    query_ids = _read_queries(queries)
    documents: dict[str, str] = {}
    for row_id, text in index.named_texts():
        documents.setdefault(text, _one_line_id(row_id))
    _check_ids("the index", documents)
    folder.mkdir(parents=True, exist_ok=True)
    ranked = _rank_all(list(query_ids), index, models, ways, k)
    pools = {}
    for query in query_ids:
        pools[query] = sorted({text for ranking in ranked.values() for text in ranking[query]})
        random.Random(f"{seed} {query}").shuffle(pools[query])
    judgements = Judgements(folder / "judgements.jsonl")
    judging = Judging(folder, query_ids, documents, ranked, pools, judgements, k)
    write_text(folder / ".ignore", "*\n")  # searches in a parent folder leave the folder out
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


def _read_queries(file: str) -> dict[str, str]:
    """Return the distinct queries of a file with their ids."""
    queries: dict[str, str] = {}
    with open_rows(file, ColumnChoice()) as source:
        for batch in source:
            for row_id, text in zip(batch[ID], batch[TEXT], strict=True):
                if text.strip():
                    queries.setdefault(text.strip(), _one_line_id(row_id))
    if not queries:
        raise UsageError(f"{file} has no query; write a query on each line")
    _check_ids(file, queries)
    return queries


def _one_line_id(row_id: int | str) -> str:
    """Return an id as a cell of a table without quotes."""
    return re.sub(r"[\t\r\n]", " ", str(row_id))


def _check_ids(source: str, texts: Mapping[str, str]) -> None:
    if len({*texts.values()}) < len(texts):
        raise UsageError(
            f"{source} gives several texts one id (tabs and line ends count as spaces); every"
            " text needs another id"
        )
