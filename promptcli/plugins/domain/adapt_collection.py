"""The texts for training, for development and for testing: their documents differ."""

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

#: Share of the queries, maximum number of queries, and maximum number of passages for testing.
_TEST = (0.2, 500, 5000)
_DEVELOPMENT = (0.1, 200, 500)  # the same for development
MIN_QUERIES = 150  #: of a collection; a tenth of them chooses the checkpoint
_MIN_SENTENCE_WORDS = 4  # of a training sentence
_QUESTIONS = Path(__file__).with_name("questions.jsonl")


@dataclass(frozen=True)
class CollectionSplit:
    """The queries of a collection, split by their documents."""

    collection: SyntheticCollection
    training: Sequence[SyntheticQuery]
    development: Sequence[SyntheticQuery]  #: choose the checkpoint and the best training
    test: Sequence[SyntheticQuery]  #: decide whether the best training is better than the start
    seed: int

    @classmethod
    def of(cls, collection: SyntheticCollection, seed: int) -> "CollectionSplit":
        """Split a collection at random by document.

        Raises:
            UsageError: A split gets no query, because nearly all queries come from one document.
        """
        queries_of = Counter(query.document for query in collection.queries)
        documents = random.Random(seed).sample(list(queries_of), len(queries_of))
        splits = []
        for share, max_queries, _ in (_TEST, _DEVELOPMENT):
            held_out = set[str]()
            room = min(share * len(collection.queries), max_queries)
            while documents and room > 0:
                held_out.add(documents[-1])
                room -= queries_of[documents.pop()]
            splits.append(held_out)
        test, development, training = (
            [query for query in collection.queries if query.document in split]
            for split in (*splits, set(documents))
        )
        if not (test and development and training):
            raise UsageError(
                f"the texts come from {with_count(len(queries_of), 'document')}, but training and"
                " testing need at least three; give the texts in more files, or a table with one"
                " text in each row"
            )
        return cls(collection, training, development, test, seed)

    @property
    def sizes(self) -> dict[str, int]:
        """The number of queries of each split."""
        return {
            "training": len(self.training),
            "development": len(self.development),
            "test": len(self.test),
        }

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
        """The passages of the documents that are not held out, in their order."""
        held_out = {query.document for query in (*self.development, *self.test)}
        passages = zip(self.collection.passages, self.collection.documents, strict=True)
        return [passage for passage, document in passages if document not in held_out]

    @cached_property
    def sentences(self) -> list[str]:
        """The distinct sentences of the training passages, in random order."""
        sentences = dict[str, None]()
        for passage in self.training_passages:
            for sentence in re.split(r"(?<=[.!?])\s+|\n", passage):
                if len(sentence.split()) >= _MIN_SENTENCE_WORDS:
                    sentences[sentence.strip()] = None
        return random.Random(self.seed).sample(list(sentences), len(sentences))

    @cached_property
    def development_task(self) -> RetrievalTask:
        """The development queries, their answers and other passages."""
        return self._task("your texts:development", self.development, _DEVELOPMENT[-1])

    @cached_property
    def test_task(self) -> RetrievalTask:
        """The test queries, their answers and other passages."""
        return self._task("your texts", self.test, _TEST[-1])

    def timing_task(self, queries: int) -> RetrievalTask:
        """Return a task of a few development queries and their answers, which is quickly scored."""
        return self._task("timing", self.development[:queries], 0)

    def _task(
        self, name: str, queries: Sequence[SyntheticQuery], max_passages: int
    ) -> RetrievalTask:
        """Return a task that ranks the answers of the queries among passages drawn at random."""
        passages = self.collection.passages
        answers = _answers(queries)
        others = [row for row in range(len(passages)) if row not in answers]
        room = max(0, max_passages - len(answers))
        drawn = random.Random(self.seed).sample(others, min(room, len(others)))
        ranked = [("", passages[row], 0.0) for row in sorted(answers.union(drawn))]
        judged = [(query.text, passages[row], 1.0) for query in queries for row in query.answers]
        return RetrievalTask.of(name, [*ranked, *judged])


def _answers(queries: Sequence[SyntheticQuery]) -> set[int]:
    """Return the rows of all passages that answer one of the queries."""
    return set(itertools.chain.from_iterable(query.answers for query in queries))


def tasks_elsewhere() -> tuple[STSTask, RetrievalTask]:
    """Return the tasks that tell whether a model has forgotten: the demo's graded pairs, and
    questions about promptcli's own guides.
    """
    lines = _QUESTIONS.read_text(encoding="utf-8").splitlines()
    rows = [(row["query"], row["document"], float(row["grade"])) for row in map(json.loads, lines)]
    return training_data.development_task("demo:dev"), RetrievalTask.of("promptcli's guides", rows)
