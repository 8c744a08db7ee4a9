"""Texts to learn from and to be measured on: parts of a collection without a common document."""

import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from promptcli.data import sources
from promptcli.data.tasks import RetrievalTask, STSTask
from promptcli.errors import UsageError
from promptcli.plugins.domain.synthetic_queries import SyntheticQueries, SyntheticQuery

#: The parts of a collection.
TRAINING, DEVELOPMENT, TEST = "training", "development", "test"
#: Shares of the queries, and most queries and passages, of the parts that are measured on.
_SHARES = {TEST: 0.2, DEVELOPMENT: 0.1}
_MOST_QUERIES = {TEST: 500, DEVELOPMENT: 200}
_MOST_PASSAGES = {TEST: 5000, DEVELOPMENT: 500}
#: Fewest queries of the whole: a tenth of them chooses the checkpoint.
FEWEST = 150
#: Fewest words of a sentence that is learned from.
_SENTENCE_WORDS = 4
_QUESTIONS = Path(__file__).with_name("questions.jsonl")


@dataclass(frozen=True)
class Collection:
    """Queries made from texts, in three parts by the document that each was taken from."""

    made: SyntheticQueries
    training: Sequence[SyntheticQuery]
    development: Sequence[SyntheticQuery]  #: choose the checkpoint, and which training is best
    test: Sequence[SyntheticQuery]  #: decide whether it is better
    seed: int

    @classmethod
    def of(cls, made: SyntheticQueries, seed: int) -> "Collection":
        """Return queries split at random by document.

        Raises:
            UsageError: A part gets none, since nearly all are of one document.
        """
        count = Counter(query.document for query in made.queries)
        documents = random.Random(seed).sample(list(count), len(count))
        part_of = dict[str, str]()
        for part, share in _SHARES.items():
            room = min(share * len(made.queries), _MOST_QUERIES[part])
            while documents and room > 0:
                document = documents.pop()
                part_of[document] = part
                room -= count[document]
        parts: dict[str, list[SyntheticQuery]] = {TRAINING: [], DEVELOPMENT: [], TEST: []}
        for query in made.queries:
            parts[part_of.get(query.document, TRAINING)].append(query)
        if not all(parts.values()):
            raise UsageError(
                f"the texts are of {len(count)} documents, and learning and measuring take three"
                " that share none; give the texts in more files, or a table with a text a row"
            )
        return cls(made, parts[TRAINING], parts[DEVELOPMENT], parts[TEST], seed)

    @property
    def sizes(self) -> dict[str, int]:
        """The number of queries of each part."""
        return {
            TRAINING: len(self.training),
            DEVELOPMENT: len(self.development),
            TEST: len(self.test),
        }

    @cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """Each training query with each passage that answers it."""
        held_out = _answers([*self.development, *self.test])
        pairs = list[tuple[str, str]]()
        for query in self.training:
            for row in query.answers:
                if row not in held_out:
                    pairs.append((query.text, self.made.passages[row]))
        return pairs

    @cached_property
    def training_passages(self) -> list[str]:
        """The passages of documents that are not held out, in their order."""
        held_out = {query.document for query in (*self.development, *self.test)}
        passages = zip(self.made.passages, self.made.documents, strict=True)
        return [passage for passage, document in passages if document not in held_out]

    @cached_property
    def sentences(self) -> list[str]:
        """The distinct sentences of these passages, in a random order."""
        sentences = dict[str, None]()
        for passage in self.training_passages:
            for sentence in re.split(r"(?<=[.!?])\s+|\n", passage):
                if len(sentence.split()) >= _SENTENCE_WORDS:
                    sentences[sentence.strip()] = None
        return random.Random(self.seed).sample(list(sentences), len(sentences))

    @cached_property
    def development_task(self) -> RetrievalTask:
        """The queries that choose, among their answers and other passages."""
        return self._task("your texts:development", self.development, DEVELOPMENT)

    @cached_property
    def test_task(self) -> RetrievalTask:
        """The queries that decide, among their answers and other passages."""
        return self._task("your texts", self.test, TEST)

    def _task(self, name: str, queries: Sequence[SyntheticQuery], part: str) -> RetrievalTask:
        passages = self.made.passages
        answers = _answers(queries)
        others = [row for row in range(len(passages)) if row not in answers]
        room = max(0, _MOST_PASSAGES[part] - len(answers))
        drawn = random.Random(self.seed).sample(others, min(room, len(others)))
        rows = sorted(answers.union(drawn))
        document_of_row = {row: document for document, row in enumerate(rows)}
        grades = dict[str, dict[int, float]]()
        for query in queries:
            right = [document_of_row[row] for row in query.answers]
            grades[query.text] = dict.fromkeys(right, 1.0)
        return RetrievalTask(
            name, list(grades), [passages[row] for row in rows], list(grades.values())
        )

    def timing_task(self, queries: int) -> RetrievalTask:
        """Return a task of a few development queries, which is scored at once."""
        rows = list[tuple[str, str, float]]()
        for query in self.development[:queries]:
            for row in query.answers:
                rows.append((query.text, self.made.passages[row], 1.0))
        return RetrievalTask.of("timing", rows)


def _answers(queries: Sequence[SyntheticQuery]) -> set[int]:
    """Return the rows of all passages that answer one of the queries."""
    return set(itertools.chain.from_iterable(query.answers for query in queries))


def tasks_elsewhere() -> tuple[STSTask, RetrievalTask]:
    """Return what tells whether a model still knows other texts: the demo's graded pairs, and
    questions about promptcli's own guides.
    """
    lines = _QUESTIONS.read_text(encoding="utf-8").splitlines()
    rows = [(row["query"], row["document"], float(row["grade"])) for row in map(json.loads, lines)]
    return sources.development_task("demo:dev"), RetrievalTask.of("promptcli's guides", rows)
