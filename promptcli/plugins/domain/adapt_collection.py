"""Texts for training and evaluation: parts of a collection that share no document."""

import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from promptcli.data import training_data
from promptcli.data.tasks import RetrievalTask, STSTask
from promptcli.errors import UsageError, with_count
from promptcli.plugins.domain.synthetic_queries import SyntheticCollection, SyntheticQuery

#: Share of the queries, most queries, and most passages of the test part.
_TEST = (0.2, 500, 5000)
#: The same of the development part.
_DEVELOPMENT = (0.1, 200, 500)
#: Fewest queries of a collection: a tenth of them chooses the checkpoint.
FEWEST = 150
#: Fewest words of a training sentence.
_SENTENCE_WORDS = 4
_QUESTIONS = Path(__file__).with_name("questions.jsonl")


@dataclass(frozen=True)
class CollectionSplit:
    """The queries of a collection in three parts by source document."""

    collection: SyntheticCollection
    training: Sequence[SyntheticQuery]
    development: Sequence[SyntheticQuery]  #: choose the checkpoint and the best training
    test: Sequence[SyntheticQuery]  #: decide whether that training is better than the start
    seed: int

    @classmethod
    def of(cls, collection: SyntheticCollection, seed: int) -> "CollectionSplit":
        """Split a collection at random by document.

        Raises:
            UsageError: A part gets no query, since nearly all come from one document.
        """
        queries_of = Counter(query.document for query in collection.queries)
        documents = random.Random(seed).sample(list(queries_of), len(queries_of))
        held_out = []
        for share, most, _ in (_TEST, _DEVELOPMENT):
            part = set[str]()
            room = min(share * len(collection.queries), most)
            while documents and room > 0:
                part.add(documents[-1])
                room -= queries_of[documents.pop()]
            held_out.append(part)
        test, development, training = (
            [query for query in collection.queries if query.document in part]
            for part in (*held_out, set(documents))
        )
        if not (test and development and training):
            raise UsageError(
                f"the texts come from {with_count(len(queries_of), 'document')}, but training and"
                " testing need at least three; give the texts in more files, or a table with one"
                " text a row"
            )
        return cls(collection, training, development, test, seed)

    @property
    def sizes(self) -> dict[str, int]:
        """The number of queries of each part."""
        parts = ("training", "development", "test")
        return {part: len(getattr(self, part)) for part in parts}

    @cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """Each training query with each passage that answers it."""
        held_out = _answers([*self.development, *self.test])
        return [
            (query.text, self.collection.passages[row])
            for query in self.training
            for row in query.answers
            if row not in held_out
        ]

    @cached_property
    def training_passages(self) -> list[str]:
        """The passages of documents that are not held out, in their order."""
        held_out = {query.document for query in (*self.development, *self.test)}
        passages = zip(self.collection.passages, self.collection.documents, strict=True)
        return [passage for passage, document in passages if document not in held_out]

    @cached_property
    def sentences(self) -> list[str]:
        """The distinct sentences of the training passages, in random order."""
        sentences = dict[str, None]()
        for passage in self.training_passages:
            for sentence in re.split(r"(?<=[.!?])\s+|\n", passage):
                if len(sentence.split()) >= _SENTENCE_WORDS:
                    sentences[sentence.strip()] = None
        return random.Random(self.seed).sample(list(sentences), len(sentences))

    @cached_property
    def development_task(self) -> RetrievalTask:
        """The development queries, with their answers and other passages."""
        return self._task("your texts:development", self.development, _DEVELOPMENT[-1])

    @cached_property
    def test_task(self) -> RetrievalTask:
        """The test queries, with their answers and other passages."""
        return self._task("your texts", self.test, _TEST[-1])

    def timing_task(self, queries: int) -> RetrievalTask:
        """Return a quickly scored task of a few development queries."""
        return self._task("timing", self.development[:queries], 0)

    def _task(
        self, name: str, queries: Sequence[SyntheticQuery], most_passages: int
    ) -> RetrievalTask:
        """Return a task that ranks the answers of the queries among passages drawn at random."""
        passages = self.collection.passages
        answers = _answers(queries)
        others = [row for row in range(len(passages)) if row not in answers]
        room = max(0, most_passages - len(answers))
        drawn = random.Random(self.seed).sample(others, min(room, len(others)))
        ranked = [("", passages[row], 0.0) for row in sorted(answers.union(drawn))]
        judged = [(query.text, passages[row], 1.0) for query in queries for row in query.answers]
        return RetrievalTask.of(name, [*ranked, *judged])


def _answers(queries: Sequence[SyntheticQuery]) -> set[int]:
    """Return the rows of all passages that answer one of the queries."""
    return set(itertools.chain.from_iterable(query.answers for query in queries))


def tasks_elsewhere() -> tuple[STSTask, RetrievalTask]:
    """Return the tasks that check for forgetting: the demo's graded pairs, and questions about
    promptcli's own guides.
    """
    lines = _QUESTIONS.read_text(encoding="utf-8").splitlines()
    rows = [(row["query"], row["document"], float(row["grade"])) for row in map(json.loads, lines)]
    return training_data.development_task("demo:dev"), RetrievalTask.of("promptcli's guides", rows)
