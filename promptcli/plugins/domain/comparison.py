"""Ways of ranking compared on queries made from texts: by words, and by vectors and both of each
model.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from promptcli import notes
from promptcli.data.tasks import RetrievalTask
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.evaluation import evaluator, statistics
from promptcli.evaluation.scores import Label
from promptcli.models import loading
from promptcli.models.loading import Model
from promptcli.plugins.domain.endpoint import PREFIX, Endpoint

#: As in ``promptcli search --by``; those of a model -> the family of the task that is ranked so.
By = Literal["both", "meaning", "words"]
_RANKINGS: dict[By, str] = {"meaning": "retrieval", "both": "hybrid"}
Array = NDArray[Any]


@dataclass(frozen=True)
class PairedDifference:
    """How far a way is from the best one: the mean over queries of nDCG@10 x 100."""

    value: float
    ci95: tuple[float, float]

    @property
    def is_chance(self) -> bool:
        """Whether the 95% interval holds 0."""
        return self.ci95[0] <= 0 <= self.ci95[1]


@dataclass(frozen=True)
class Way:
    """A way of ranking, with its figures."""

    model: str | None  #: its name on the command line; None: words alone
    by: By  #: as in ``promptcli search --by``
    ndcg: float  #: nDCG@10 x 100
    ci95: tuple[float, float]
    by_query: Array  #: nDCG@10 of each query, (q,)
    sentences_per_second: float | None  #: that the model encodes; None: nothing is encoded
    megabytes: float | None  #: of the model's weights in memory; None: no model, or elsewhere
    to_best: PairedDifference | None = None  #: None: it is the best

    @property
    def is_elsewhere(self) -> bool:
        """Whether an endpoint computes it, with which promptcli does not search."""
        return self.model is not None and self.model.startswith(PREFIX)

    @property
    def speed(self) -> float:
        """Sentences that are encoded in a second; infinite by words, which need no vectors."""
        return self.sentences_per_second or math.inf

    @property
    def is_as_good(self) -> bool:
        """Whether no more than chance is between it and the best."""
        return self.to_best is None or self.to_best.is_chance


@dataclass(frozen=True)
class _Vectors:
    """What a model made of a task, and how fast."""

    queries: Array
    passages: Array
    sentences_per_second: float
    megabytes: float | None


def compare_ways(
    task_of: Callable[[str], RetrievalTask], models: Mapping[str, Model | Endpoint]
) -> list[Way]:
    """Return words alone and two ways of each model, best first, with differences to the best.

    Args:
        task_of: Returns the task of a ranking: ``lexical``, ``retrieval`` or ``hybrid``.
        models: By their names.
    """
    ways = [_way(None, "words", _gains(task_of("lexical"), None), None)]
    for name, model in models.items():
        tasks = {by: task_of(ranking) for by, ranking in _RANKINGS.items()}
        vectors = _encode(name, model, tasks["meaning"])
        for by, task in tasks.items():
            ways.append(_way(name, by, _gains(task, vectors), vectors))
    return with_differences(ways)


def with_differences(ways: Sequence[Way]) -> list[Way]:
    """Return ways, best first, with their paired differences to the best."""
    ordered = sorted(ways, key=lambda way: -way.ndcg)
    best = ordered[0]
    compared = list[Way]()
    for way in ordered:
        difference = None
        if way is not best:
            by_query = 100 * (way.by_query - best.by_query)
            interval = statistics.interval(statistics.resampled_mean(by_query))
            difference = PairedDifference(float(by_query.mean()), interval)
        compared.append(replace(way, to_best=difference))
    return compared


def _way(model: str | None, by: By, gains: Array, vectors: _Vectors | None) -> Way:
    low, high = statistics.interval(statistics.resampled_mean(100 * gains))
    speed = None if vectors is None else vectors.sentences_per_second
    size = None if vectors is None else vectors.megabytes
    return Way(model, by, 100 * float(gains.mean()), (low, high), gains, speed, size)


def _gains(task: RetrievalTask, vectors: _Vectors | None) -> Array:
    """Return nDCG@10 of each query, by the ranking of the task."""
    matrix = np.zeros((0, 0), np.float32)
    if vectors is not None:
        rows = evaluator.row_of_sentences([task])
        matrix = np.zeros((len(rows), vectors.passages.shape[1]), np.float32)
        matrix[_places(rows, task.documents)] = vectors.passages
        matrix[_places(rows, task.queries)] = vectors.queries
    embedded = evaluator.TaskVectors(Label("", ""), {}, "", matrix)
    [score] = evaluator.score_vectors([embedded], [task])
    gains: Array = score.by_example
    return gains


def _places(rows: Mapping[str, int], texts: Iterable[str]) -> list[int]:
    return [rows[text] for text in texts]


def _encode(name: str, model: Model | Endpoint, task: RetrievalTask) -> _Vectors:
    """Return the vectors of a task, passages and queries in their roles."""
    count = len(task.documents) + len(task.queries)
    with notes.stage(f"encode {name}", count) as advance:
        if isinstance(model, Endpoint):
            begin = time.perf_counter()
            passages = model.encode(task.documents, advance)
            seconds = time.perf_counter() - begin
            queries = model.encode(task.queries, advance)
            return _Vectors(queries, passages, len(task.documents) / seconds, None)
        encoder = loading.open_encoder(model, dtype="auto", rows=count)
        documents = encoder.in_role("document", report=True)
        begin = time.perf_counter()
        passages = documents.encode(task.documents, progress=advance)
        seconds = time.perf_counter() - begin
        asking = encoder.in_role("query", report=True)
        queries = asking.encode(task.queries, progress=advance)
        speed = len(task.documents) / seconds
        return _Vectors(queries, passages, speed, megabytes_of(encoder))


def megabytes_of(encoder: Encoder) -> float:
    """Return the size of a model's weights in memory: of a static one, of its table of words."""
    on_torch = loading.open_model(encoder)
    if on_torch.recipe.pooling.startswith("static/avg"):
        weights = [on_torch.backbone.token_rows]
    else:
        weights = list(on_torch.backbone.model.parameters())
    return sum(each.numel() * each.element_size() for each in weights) / 1e6
