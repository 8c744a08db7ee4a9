"""``choose``: the model and the ranking that find most in your own texts, without labels."""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from promptcli import notes
from promptcli.data.tasks import RetrievalTask
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.errors import UsageError, with_count
from promptcli.evaluation import evaluator, statistics
from promptcli.evaluation.scores import ExampleScore, Label
from promptcli.models import loading
from promptcli.models.loading import Model
from promptcli.plugins.domain.endpoint import PREFIX, Endpoint
from promptcli.plugins.domain.synthetic_queries import (
    MIN_QUERIES,
    SyntheticCollection,
    judged_queries,
    synthetic_queries,
)
from promptcli.recipe import ModelChoice
from promptcli.settings import list_of_names

SHIPPED = tuple(loading.LANGUAGES)  #: the shipped models, which are always compared
#: More passages would lower the scores and take longer, and hardly change the order.
MAX_PASSAGES = 5000
By = Literal["both", "meaning", "words"]  #: as in ``promptcli search --by``
_RANKINGS: dict[By, str] = {"meaning": "retrieval", "both": "hybrid"}  # of a task
Array = NDArray[Any]


@dataclass(frozen=True)
class ScoredRanking:
    """A way to rank, with its scores."""

    model: str | None  #: the name on the command line; None: ranks by words alone
    by: By
    ndcg: float  #: nDCG@10 x 100
    ci95: tuple[float, float]
    by_query: Array  #: nDCG@10 of each query, (q,)
    sentences_per_second: float | None = None  #: None without a model
    megabytes: float | None = None  #: of weights in memory; None without a model, or of an endpoint
    #: mean difference to the best ranking, with its interval; None for the best ranking
    to_best: float | None = None
    to_best_ci95: tuple[float, float] | None = None

    @property
    def is_endpoint(self) -> bool:
        """Whether an endpoint computes the vectors; promptcli does not search with endpoints."""
        return self.model is not None and self.model.startswith(PREFIX)

    @property
    def is_as_good(self) -> bool:
        """Whether the difference to the best is within chance."""
        return self.to_best_ci95 is None or self.to_best_ci95[0] <= 0 <= self.to_best_ci95[1]


@dataclass(frozen=True)
class ChoiceReport:
    """Ways of ranking, compared on queries made from texts."""

    #: words alone, and two rankings by each model; the best is first
    rankings: Sequence[ScoredRanking]
    queries: SyntheticCollection

    @property
    def best(self) -> ScoredRanking:
        """The ranking with the highest nDCG@10."""
        return self.rankings[0]

    @property
    def best_here(self) -> ScoredRanking:
        """The best ranking with which promptcli can search."""
        return next(ranking for ranking in self.rankings if not ranking.is_endpoint)


def choose(
    files: str | Path | Sequence[str | Path],
    *,
    models: Model | Sequence[Model] = (),
    title: str | None = None,
    queries: int = 500,
    seed: int = 0,
    key: str | None = None,
    runtime: ModelChoice | None = None,
) -> ChoiceReport:
    """Compare models and rankings on your own texts, without labels.

    Queries are made from the texts: a heading asks for the text below it, a title for its body, a
    first sentence for the rest. Each model and ranking is scored by how high it ranks the passage
    that a query was taken from (nDCG@10).

    Args:
        files: Texts, tables (``FILE:COLUMN`` names the column of the text), globs, and folders; or
            one retrieval folder in BEIR's form, with its own queries.
        models: Further models, or ``openai:URL#NAME`` for OpenAI-compatible endpoints. The shipped
            models are always compared.
        title: Column of a table that holds the title of a text. Default: a column called
            ``title``, ``subject`` or the like.
        queries: Maximum number of queries, drawn at random; at least 50.
        seed: Random seed of the draws.
        key: Key of the endpoints; it is not stored.
        runtime: Device, precision and backend of the models that are named.

    Returns:
        The rankings with their scores, the difference to the best, and the queries.

    Raises:
        UsageError: The texts give too few queries, or a model cannot be opened.
        NotFoundError: No such file or model.

    Example:
        >>> import promptcli as pc
        >>> chosen = pc.choose(["docs"])  # doctest: +SKIP
        >>> chosen.best.model, chosen.best.by  # doctest: +SKIP
        ('mini', 'both')
    """
    if queries < MIN_QUERIES:
        raise UsageError(f"must be at least {MIN_QUERIES}, got {queries}", parameter="queries")
    compared: dict[str, Model | Endpoint] = {}
    for model in [*SHIPPED, *loading.as_list(models)]:  # refuse unreadable models before the work
        if not isinstance(model, str):
            compared[loading.resolve_entry(model).name] = model
        elif model.startswith(PREFIX):
            endpoint = Endpoint(model, key)
            endpoint.check()
            compared[model] = endpoint
        else:
            choice = dataclasses.replace(runtime or ModelChoice(), model=model)
            loading.resolve_entry(choice)
            compared[model] = choice
    names = list_of_names(files)
    if len(names) == 1 and (Path(names[0]) / "qrels").is_dir():
        collection = judged_queries(Path(names[0]))
    else:
        collection = synthetic_queries(
            names, title=title, max_queries=queries, max_passages=MAX_PASSAGES, seed=seed
        )
    notes.note(_describe(collection))
    words = _score(collection.task("lexical"), np.zeros((0, 0), np.float32))
    rankings = [ScoredRanking(None, "words", words.value, words.ci95, words.by_example)]
    for name, compared_model in compared.items():
        rankings += _rank_by_model(name, compared_model, collection)
    return ChoiceReport(with_differences(rankings), collection)


def with_differences(rankings: Sequence[ScoredRanking]) -> list[ScoredRanking]:
    """Return the rankings from the best to the worst, with their paired differences to the best."""
    best, *others = sorted(rankings, key=lambda ranking: -ranking.ndcg)
    compared = [best]
    for ranking in others:
        by_query = 100 * (ranking.by_query - best.by_query)
        interval = statistics.mean_interval(by_query)
        mean = float(by_query.mean())
        compared.append(dataclasses.replace(ranking, to_best=mean, to_best_ci95=interval))
    return compared


def _rank_by_model(
    name: str, model: Model | Endpoint, collection: SyntheticCollection
) -> Iterator[ScoredRanking]:
    """Yield the rankings by a model, which encodes passages and queries in their roles."""
    task = collection.task()
    rows = len(task.documents) + len(task.queries)
    query_encoder: Encoder | Endpoint
    passage_encoder: Encoder | Endpoint
    megabytes = None
    with notes.stage(f"encode {name}", rows) as advance:
        if isinstance(model, Endpoint):
            query_encoder = passage_encoder = model
        else:
            encoder = loading.open_encoder(model, dtype="auto", rows=rows)
            megabytes = megabytes_of(encoder)
            query_encoder = encoder.in_role("query", report=True)
            passage_encoder = encoder.in_role("document", report=True)
        began = time.perf_counter()
        passages = passage_encoder.encode(task.documents, progress=advance)
        speed = len(passages) / (time.perf_counter() - began)
        queries = query_encoder.encode(task.queries, progress=advance)
    row_of = evaluator.row_of_sentences([task])
    vectors = np.zeros((len(row_of), passages.shape[1]), np.float32)
    vectors[[row_of[text] for text in task.documents]] = passages
    vectors[[row_of[text] for text in task.queries]] = queries
    for by, kind in _RANKINGS.items():
        score = _score(collection.task(kind), vectors)
        yield ScoredRanking(name, by, score.value, score.ci95, score.by_example, speed, megabytes)


def _score(task: RetrievalTask, vectors: Array) -> ExampleScore:
    """Return the nDCG@10 of a task's ranking; ``vectors``: of its sentences, (n, d)."""
    row_of = evaluator.row_of_sentences([task])
    embedded = evaluator.TaskVectors(Label("", ""), {}, "", vectors, row_of)
    [score] = evaluator.score_vectors([embedded], [task])
    assert isinstance(score, ExampleScore)
    return score


def megabytes_of(encoder: Encoder) -> float:
    """Return the size of a model's weights in memory; for a static model, of its word table."""
    on_torch = loading.open_torch_encoder(encoder)
    if on_torch.recipe.pooling.startswith("static/avg"):
        weights = [on_torch.backbone.word_embeddings]
    else:
        weights = list(on_torch.backbone.model.parameters())
    return sum(weight.numel() * weight.element_size() for weight in weights) / 1e6


def _describe(collection: SyntheticCollection) -> str:
    """Say how many queries of each kind there are, and how many could be drawn."""
    queries = with_count(len(collection.queries), "query", "queries")
    drawn = ""
    if len(collection.queries) < collection.all_queries:
        drawn = f", drawn from {collection.all_queries:,}"
    passages = with_count(len(collection.passages), "passage")
    if len(collection.passages) < collection.all_passages:
        all_passages = with_count(collection.all_passages, "passage")
        passages = f"{len(collection.passages):,} of {all_passages}"
    return (
        f"{queries} made from {collection.kinds_in_words}{drawn}; answers are looked for among"
        f" {passages} of {with_count(collection.files, 'file')}"
    )
