"""``choose``: which model and which ranking find most in one's own texts, without labels."""

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from promptcli import notes
from promptcli.data.tasks import RetrievalTask
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.errors import UsageError, counted
from promptcli.evaluation import evaluator, statistics
from promptcli.evaluation.scores import Label
from promptcli.models import language_choice, loading
from promptcli.models.loading import Model
from promptcli.plugins.domain.endpoint import PREFIX, Endpoint
from promptcli.plugins.domain.synthetic_queries import (
    FEWEST,
    SyntheticQueries,
    synthetic_queries,
)
from promptcli.recipe import Choice
from promptcli.retrieval.found_files import list_of_names

#: The shipped models, which are always compared.
SHIPPED = ("mini", "mini-static")
#: Most passages that are ranked: more make the figures lower and the work longer, and hardly change
#: the order.
MOST_PASSAGES = 5000
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
    sentences_per_second: float | None = None  #: None: nothing is encoded
    megabytes: float | None = None  #: of the weights in memory; None: no model, or elsewhere
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
class Chosen:
    """Ways of ranking, compared on queries made from texts."""

    ways: Sequence[Way]  #: words alone and two of each model, best first
    queries: SyntheticQueries

    @property
    def best(self) -> Way:
        """The way with the highest nDCG@10."""
        return self.ways[0]

    @property
    def best_here(self) -> Way:
        """The best one with which promptcli searches, which an endpoint's is not."""
        return next(way for way in self.ways if not way.is_elsewhere)


def choose(
    files: str | Path | Sequence[str | Path],
    *,
    models: Model | Sequence[Model] = (),
    title: str | None = None,
    queries: int = 500,
    seed: int = 0,
    key: str | None = None,
    computed: Choice | None = None,
) -> Chosen:
    """Compare models and rankings on your own texts, without labels.

    Queries are made from the texts: a heading asks for the text below it, a title for its body,
    a first sentence for the rest. Each way of ranking is scored by how far up it puts the passage
    that a query was taken from (nDCG@10).

    Args:
        files: Texts, tables (``FILE:COLUMN`` names that of the text), globs, and folders.
        models: Further models, or ``openai:URL#NAME``, those of endpoints of OpenAI's form.
            ``mini`` and ``mini-static`` are compared anyway.
        title: Column of a table that holds the title of a text. Default: one that is called
            ``title``, ``subject`` or the like.
        queries: Most queries to make, drawn at random; at least 50.
        seed: Of the draws.
        key: Key of the endpoints; it is not kept.
        computed: Device, precision and backend of the models that are named.

    Returns:
        The ways with their figures, the difference to the best, and the queries.

    Raises:
        UsageError: The texts give too few queries, or a model cannot be opened.
        NotFoundError: No such file or model.

    Example:
        >>> import promptcli as pc
        >>> chosen = pc.choose(["docs"])  # doctest: +SKIP
        >>> chosen.best.model, chosen.best.by  # doctest: +SKIP
        ('mini', 'both')
    """
    if queries < FEWEST:
        raise UsageError(f"must be at least {FEWEST}, got {queries}", parameter="queries")
    computed = computed or Choice()
    further = dict[str, Model | Endpoint]()
    for model in loading.as_list(models):
        if not isinstance(model, str):
            further[loading.entry_of(model).name] = model
        elif model.startswith(PREFIX):
            endpoint = Endpoint(model, key)
            endpoint.check()
            further[model] = endpoint
        else:
            named = dataclasses.replace(computed, model=model)
            loading.entry_of(named)  # refused before the work
            further[model] = named
    made = synthetic_queries(
        list_of_names(files), title=title, most=queries, most_passages=MOST_PASSAGES, seed=seed
    )
    notes.note(_what_was_made(made))
    shipped = [*SHIPPED]
    if language_choice.language_of(made.passages):
        shipped.append(loading.MULTILINGUAL)
    compared: dict[str, Model | Endpoint] = {
        name: dataclasses.replace(computed, model=name) for name in shipped
    }
    ways = [_way(None, "words", made.task("lexical"), None)]
    for name, either in (compared | further).items():
        encoded = _encode(name, either, made.task())
        for by, ranking in _RANKINGS.items():
            ways.append(_way(name, by, made.task(ranking), encoded))
    return Chosen(with_differences(ways), made)


def with_differences(ways: Sequence[Way]) -> list[Way]:
    """Return ways, best first, with their paired differences to the best."""
    ordered = sorted(ways, key=lambda way: -way.ndcg)
    compared = [ordered[0]]
    for way in ordered[1:]:
        by_query = 100 * (way.by_query - ordered[0].by_query)
        interval = statistics.interval(statistics.resampled_mean(by_query))
        difference = PairedDifference(float(by_query.mean()), interval)
        compared.append(dataclasses.replace(way, to_best=difference))
    return compared


@dataclass(frozen=True)
class _Encoded:
    """What a model made of a task, and how fast."""

    queries: Array
    passages: Array
    sentences_per_second: float
    megabytes: float | None


def _way(model: str | None, by: By, task: RetrievalTask, encoded: _Encoded | None) -> Way:
    """Return a way with nDCG@10 by the ranking of the task."""
    matrix = np.zeros((0, 0), np.float32)
    speed = size = None
    if encoded is not None:
        rows = evaluator.row_of_sentences([task])
        matrix = np.zeros((len(rows), encoded.passages.shape[1]), np.float32)
        matrix[[rows[text] for text in task.documents]] = encoded.passages
        matrix[[rows[text] for text in task.queries]] = encoded.queries
        speed = encoded.sentences_per_second
        size = encoded.megabytes
    embedded = evaluator.TaskVectors(Label("", ""), {}, "", matrix)
    [score] = evaluator.score_vectors([embedded], [task])
    gains = score.by_example
    interval = statistics.interval(statistics.resampled_mean(100 * gains))
    return Way(model, by, 100 * float(gains.mean()), interval, gains, speed, size)


def _encode(name: str, model: Model | Endpoint, task: RetrievalTask) -> _Encoded:
    """Return the vectors of a task, passages and queries in their roles."""
    count = len(task.documents) + len(task.queries)
    with notes.stage(f"encode {name}", count) as advance:
        if isinstance(model, Endpoint):
            begin = time.perf_counter()
            passages = model.encode(task.documents, advance)
            seconds = time.perf_counter() - begin
            queries = model.encode(task.queries, advance)
            return _Encoded(queries, passages, len(task.documents) / seconds, None)
        encoder = loading.open_encoder(model, dtype="auto", rows=count)
        documents = encoder.in_role("document", report=True)
        begin = time.perf_counter()
        passages = documents.encode(task.documents, progress=advance)
        seconds = time.perf_counter() - begin
        asking = encoder.in_role("query", report=True)
        queries = asking.encode(task.queries, progress=advance)
        return _Encoded(queries, passages, len(task.documents) / seconds, megabytes_of(encoder))


def megabytes_of(encoder: Encoder) -> float:
    """Return the size of a model's weights in memory: of a static one, of its table of words."""
    on_torch = loading.open_model(encoder)
    if on_torch.recipe.pooling.startswith("static/avg"):
        weights = [on_torch.backbone.token_rows]
    else:
        weights = list(on_torch.backbone.model.parameters())
    return sum(each.numel() * each.element_size() for each in weights) / 1e6


def _what_was_made(made: SyntheticQueries) -> str:
    """Return how many queries of each kind were made, and how many were drawn."""
    number = counted(len(made.queries), "query", "queries")
    made_of = f"{number} made from {made.kinds_in_words}"
    if len(made.queries) < made.all_queries:
        made_of += f", drawn from {made.all_queries:,}"
    among = counted(len(made.passages), "passage")
    if len(made.passages) < made.all_passages:
        among = f"{len(made.passages):,} of {counted(made.all_passages, 'passage')}"
    return f"{made_of}; answers are looked for among {among} of {counted(made.files, 'file')}"
