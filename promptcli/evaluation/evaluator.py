"""Scores of encoders on tasks of every kind, and comparisons of scores."""

import contextlib
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from promptcli.data.tasks import (
    AnyTask,
    CustomMetricTask,
    DevelopmentTask,
    Pairs,
    PluginTask,
    RetrievalTask,
    STSTask,
)
from promptcli.data.vectors.formats import read_vectors
from promptcli.data.vectors.precision import unit
from promptcli.encoder.encoder import TorchEncoder, encode_together
from promptcli.errors import UsageError, with_count
from promptcli.evaluation import statistics
from promptcli.evaluation.scores import (
    Comparison,
    DataScore,
    ExampleScore,
    Label,
    RetrievalScore,
    Score,
    SpearmanScore,
    SubsetScore,
    recipe_name,
)
from promptcli.notes import Advance, showing_stages, stage
from promptcli.retrieval.bm25 import Bm25
from promptcli.retrieval.ranking import Ranking
from promptcli.storage import files

RowOfSentence = Mapping[str, int]  #: sentence -> row of an array of vectors

#: BM25 of a task's documents; it is the same for all models and all steps of a training run.
_BM25_OF_TASK = WeakKeyDictionary[RetrievalTask, Bm25]()


@dataclass(frozen=True)
class TaskVectors:
    """The vectors of the distinct sentences of some tasks, by an encoder or from a file."""

    label: Label
    recipe: dict[str, Any]  #: of the encoder, JSON-ready
    fingerprint: str
    vectors: NDArray[Any]  #: (n, d); (0, 0) if the metric encodes by roles
    row_of: RowOfSentence  #: see ``row_of_sentences``
    encoder: TorchEncoder | None = None  #: None for vectors of another program

    def of(self, sentences: Sequence[str]) -> NDArray[Any]:
        """Return the vectors of sentences, (n, d)."""
        rows = (self.row_of[sentence] for sentence in sentences)
        return self.vectors[np.fromiter(rows, np.int64, len(sentences))]

    @property
    def names(self) -> dict[str, Any]:
        """The fields of a score that name its encoder."""
        return {"label": self.label, "recipe": self.recipe, "fingerprint": self.fingerprint}


@dataclass(frozen=True)
class EvalSettings:
    """Options of tasks of plug-ins."""

    fast: bool = False  #: a faster setting, for development
    mteb_folder: Path = Path("mteb-results")  #: of mteb's result files


def distinct_sentences(tasks: Iterable[AnyTask]) -> list[str]:
    """Return every sentence of the tasks once, in the order of first appearance."""
    return list(dict.fromkeys(sentence for task in tasks for sentence in task.sentences()))


def row_of_sentences(tasks: Iterable[AnyTask]) -> RowOfSentence:
    """Return the row of each sentence in the vectors of ``distinct_sentences``."""
    return {sentence: row for row, sentence in enumerate(distinct_sentences(tasks))}


def embed_tasks(
    encoders: Sequence[TorchEncoder],
    tasks: Sequence[AnyTask],
    labels: Sequence[Label],
    advance: Advance,
) -> list[TaskVectors]:
    """Encode each distinct sentence of all tasks once; report their number to ``advance``."""
    row_of = row_of_sentences(tasks)
    sentences = list(row_of)
    # _encode_role embeds the texts of retrieval for an encoder with roles
    only_retrieval = all(isinstance(task, RetrievalTask) for task in tasks)
    encoding = [encoder for encoder in encoders if not (only_retrieval and _has_roles(encoder))]
    vectors_of: dict[TorchEncoder, NDArray[Any]] = {}
    if encoding and sentences:
        embeddings = encode_together(encoding, sentences, progress=advance)
        for encoder, embedded in zip(encoding, embeddings, strict=True):
            vectors_of[encoder] = embedded.vectors
    else:
        advance(len(sentences))
    no_vectors = np.zeros((0, 0), np.float32)
    return [
        TaskVectors(
            label,
            encoder.recipe.to_dict(),
            encoder.fingerprint,
            vectors_of.get(encoder, no_vectors),
            row_of,
            encoder,
        )
        for label, encoder in zip(labels, encoders, strict=True)
    ]


def _has_roles(encoder: TorchEncoder) -> bool:
    """Return whether an encoder has a prompt for queries or for documents."""
    return any(encoder.in_role(role) is not encoder for role in ("query", "document"))


#: How to list the sentences of tasks.
_LISTING = "`promptcli eval --list-sentences` with the same tasks and data (Python: task_sentences)"


def read_embedded(path: Path, tasks: Sequence[AnyTask]) -> TaskVectors:
    """Read vectors whose row i is sentence i of ``distinct_sentences(tasks)``."""
    read = read_vectors(path)
    row_of = row_of_sentences(tasks)
    sentences = list(row_of)
    if len(read.matrix) != len(sentences):
        labels = ", ".join(task.label for task in tasks)
        raise UsageError(
            f"{path} has {len(read.matrix):,} rows, but {labels} have {len(sentences):,} distinct"
            f" sentences; embed these, in the order of {_LISTING}"
        )
    for row, (text, sentence) in enumerate(zip(read.texts or (), sentences, strict=False), start=1):
        if text != sentence:
            raise UsageError(
                f"{path}: row {row} is the vector of {text!r}, not of {sentence!r}; the order is"
                f" that of {_LISTING}"
            )
    not_finite = np.flatnonzero(~np.isfinite(read.matrix).all(axis=1))
    if len(not_finite):
        row = not_finite[0]
        raise UsageError(
            f"{path}: row {row + 1} holds a NaN or an infinity; embed {sentences[row]!r} again"
        )
    recipe = read.manifest.recipe if read.manifest else {"vectors": path.name}
    label = Label("vectors", path.name)
    return TaskVectors(label, recipe, files.sha256(path), read.matrix, row_of)


def score_encoders(
    encoders: Sequence[TorchEncoder],
    tasks: Sequence[AnyTask],
    labels: Sequence[Label] | None = None,
) -> list[Any]:
    """Return the scores of each encoder, task by task."""
    if labels is None:
        recipes = [encoder.recipe for encoder in encoders]
        labels = [Label(recipe.backbone, recipe_name(recipe)) for recipe in recipes]
    with stage("encode", len(distinct_sentences(tasks))) as advance:
        embedded = embed_tasks(encoders, tasks, labels, advance)
    return score_vectors(embedded, tasks)


def score_vectors(
    embedded: Sequence[TaskVectors],
    tasks: Sequence[AnyTask],
    settings: EvalSettings = EvalSettings(),
) -> list[Any]:
    """Return the scores of each set of vectors, task by task."""
    if not embedded:
        return []
    with keep_random_states():
        by_task: list[Sequence[Any]] = []
        for task in tasks:
            match task:
                case STSTask():
                    by_task.append(_correlate(embedded, task))
                case RetrievalTask():
                    by_task.append([_retrieve(encoded, task) for encoded in embedded])
                case CustomMetricTask():
                    by_task.append([_measure(encoded, task) for encoded in embedded])
                case PluginTask():
                    by_task.append(task.scores(embedded, settings))
    return list(itertools.chain.from_iterable(zip(*by_task, strict=True)))


@contextlib.contextmanager
def keep_random_states() -> Iterator[None]:
    """Restore the random states of Python, NumPy and torch: mteb and training seed them."""
    python = random.getstate()
    arrays = np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)  # noqa: NPY002


def value_on(encoder: TorchEncoder, task: DevelopmentTask) -> float:
    """Return the score that chooses a checkpoint: Spearman x 100, or nDCG@10 x 100."""
    if isinstance(task, STSTask):  # without the interval, which takes longer
        row_of = row_of_sentences([task])
        vectors = encoder.encode(list(row_of))
        encoded = TaskVectors(Label("", ""), {}, "", vectors, row_of)
        pairs = task.pairs()
        return 100 * statistics.spearman(_cosines(encoded, pairs), pairs.gold)
    with showing_stages(None):
        [score] = score_encoders([encoder], [task])
    value: float = score.value
    return value


def _cosines(encoded: TaskVectors, pairs: Pairs) -> NDArray[np.float64]:
    """Return the cosine of each pair, (n,)."""
    return statistics.cosine(encoded.of(pairs.first), encoded.of(pairs.second))


def _correlate(embedded: Sequence[TaskVectors], task: STSTask) -> Sequence[SpearmanScore]:
    pairs = task.pairs()
    with stage(f"score {task.label}", None):
        cosines = np.stack([_cosines(encoded, pairs) for encoded in embedded])
        intervals = statistics.bootstrap_intervals(cosines, pairs.gold)
    return [
        SpearmanScore(
            **encoded.names,
            task=task.name,
            value=100 * statistics.spearman(row, pairs.gold),
            split=task.split,
            protocol=task.protocol,
            text=task.text,
            data_sha256=task.sha256(),
            expected_pairs=task.expected_pairs,
            ci95=(100 * low, 100 * high),
            pairs=len(pairs),
            subsets=_subset_scores(task, row),
            cosines=row,
            gold=pairs.gold,
        )
        for encoded, row, (low, high) in zip(embedded, cosines, intervals, strict=True)
    ]


def _subset_scores(task: STSTask, cosines: NDArray[np.float64]) -> dict[str, SubsetScore]:
    """Return the score of each subset; ``cosines`` are those of all subsets, in order."""
    scores = {}
    start = 0
    for name, subset in task.subsets.items():
        end = start + len(subset)
        value = 100 * statistics.spearman(cosines[start:end], subset.gold)
        scores[name] = SubsetScore(value, len(subset))
        start = end
    return scores


def check_rankable(task: STSTask) -> None:
    """Refuse a development set with fewer than four pairs, or with equal gold scores."""
    gold = task.pairs().gold if task.subsets else np.empty(0)
    if len(gold) < 4 or not np.ptp(gold):
        raise UsageError(
            f"development set {task.label} has {with_count(len(gold), 'pair')}; ranking needs at"
            " least 4, with two different gold scores",
            parameter="on",
        )


def _retrieve(encoded: TaskVectors, task: RetrievalTask) -> RetrievalScore:
    ranked = _rank_documents(encoded, task, 100)
    gains = statistics.ndcg(ranked, task.grades)
    low, high = statistics.mean_interval(gains)
    return RetrievalScore(
        **encoded.names,
        task=task.name,
        value=100 * float(gains.mean()),
        ci95=(100 * low, 100 * high),
        recall_at_10=100 * float(statistics.recall(ranked, task.grades, 10).mean()),
        recall_at_100=100 * float(statistics.recall(ranked, task.grades, 100).mean()),
        highest_recall_at_10=100 * statistics.highest_recall(task.grades, 10),
        highest_recall_at_100=100 * statistics.highest_recall(task.grades, 100),
        data_sha256=task.sha256(),
        queries=len(task.queries),
        documents=len(task.documents),
        by_example=gains,
    )


def _rank_documents(encoded: TaskVectors, task: RetrievalTask, depth: int) -> NDArray[np.int64]:
    """Return the positions of the best documents for each query (n, depth), best first; -1 fills a
    shorter ranking.

    A query's own document is left out, as BEIR does.
    """
    # one document more, in place of the query's own
    ranked_count = depth + bool(task.left_out)
    if task.ranking == "lexical":
        words = _bm25_of(task)
        rankings = [words.ask(query).rank(ranked_count).keys for query in task.queries]
    else:
        queries = _encode_role(encoded, "query", task.queries)
        documents = _encode_role(encoded, "document", task.documents)
        rankings = list(statistics.nearest(queries, documents, ranked_count))
        if task.ranking == "hybrid":
            queries, documents = unit(queries), unit(documents)
            rankings = _join_with_words(rankings, task, queries, documents, ranked_count)
    positions = np.full((len(task.queries), depth), -1)
    for number, ranking in enumerate(rankings):
        own_document = task.left_out.get(number, -1)
        ranking = ranking[ranking != own_document][:depth]
        positions[number, : len(ranking)] = ranking
    return positions


def _encode_role(encoded: TaskVectors, role: str, texts: list[str]) -> NDArray[Any]:
    """Return the vectors of queries or documents, encoded in that role if the encoder has roles."""
    if encoded.encoder is None or not _has_roles(encoded.encoder):
        return encoded.of(texts)
    with stage(f"encode {role}", len(texts)) as advance:
        return encoded.encoder.in_role(role, report=True).encode(texts, progress=advance)


def _bm25_of(task: RetrievalTask) -> Bm25:
    if task not in _BM25_OF_TASK:
        _BM25_OF_TASK[task] = Bm25.of_texts(task.documents)
    return _BM25_OF_TASK[task]


def _join_with_words(
    rankings: Sequence[NDArray[np.int64]],
    task: RetrievalTask,
    queries: NDArray[np.float32],
    documents: NDArray[np.float32],
    depth: int,
) -> list[NDArray[np.int64]]:
    """Return the rankings by vectors of length 1, each joined with the ranking by words."""
    words = _bm25_of(task)
    joined = []
    for text, query, by_meaning in zip(task.queries, queries, rankings, strict=True):
        ranking = words.ask(text).join(
            Ranking(by_meaning, documents[by_meaning] @ query),
            depth,
            depth,
            lambda rows, query=query: documents[rows] @ query,  # type: ignore[misc]
        )
        joined.append(ranking.keys)
    return joined


def _measure(encoded: TaskVectors, task: CustomMetricTask) -> Score:
    parts = {}
    for name, rows in task.gold_rows.items():
        first, second, gold = zip(*rows, strict=True)
        second_vectors = None if None in second else encoded.of(second)
        parts[name] = (encoded.of(first), second_vectors, np.array(gold, dtype=np.float64))
    return Score(
        **encoded.names,
        task=task.name,
        metric=getattr(task.metric, "__name__", "own"),
        value=float(task.metric(parts)),
    )


def mean_of_rounded(scores: Iterable[Score]) -> float:
    """Return the mean of the scores, each rounded to 2 decimals first, as in the papers' tables."""
    return float(np.mean([round(score.value, 2) for score in scores]))


def scores_of_average(scores: Iterable[Score], kind: type[Score]) -> list[Score]:
    """Return the scores of a kind whose mean is compared: those on the papers' tasks, else all."""
    candidates = [score for score in scores if isinstance(score, kind)]
    on_papers_tasks = [score for score in candidates if score.column in kind.averaged_over]
    return on_papers_tasks or candidates


def compare(first: Sequence[Score], second: Sequence[Score]) -> Comparison:
    """Compare two encoders on the same task, or on the mean of several tasks of one kind.

    The interval and the p-value come from a paired bootstrap.
    """
    are_lists = not isinstance(first, Score) and not isinstance(second, Score)
    if not are_lists or not first or len(first) != len(second):
        raise UsageError(
            "compare takes two lists of scores, not empty and of the same length; for two scores"
            " write compare([a], [b])"
        )
    pairs = list(zip(first, second, strict=True))
    for a, b in cast(list[tuple[DataScore, DataScore]], pairs):
        if (a.column, a.data_sha256) != (b.column, b.data_sha256):
            raise UsageError(
                f"{a.column} and {b.column} were scored on different data; compare scores of the"
                " same task"
            )
    if isinstance(first[0], SpearmanScore):
        correlations = cast(list[tuple[SpearmanScore, SpearmanScore]], pairs)
        cosines = [np.stack([a.cosines, b.cosines]) for a, b in correlations]
        averages = statistics.resampled_averages(cosines, [a.gold for a, _ in correlations])
        draws = averages[0] - averages[1]
        pair_count = sum(a.pairs for a, _ in correlations)
    else:
        example_scores = cast(list[tuple[ExampleScore, ExampleScore]], pairs)
        differences = [a.by_example - b.by_example for a, b in example_scores]
        draws = statistics.resampled_mean_of_means(differences)
        pair_count = sum(map(len, differences))
    low, high = statistics.percentile_interval(draws)
    p_value = statistics.two_sided_p_value(draws)
    return Comparison(
        first=first[0].label,
        second=second[0].label,
        tasks=[score.column for score in first],
        metric=first[0].metric,
        difference=float(np.mean([a.value - b.value for a, b in pairs])),
        ci95=(100 * low, 100 * high),
        p_value=p_value,
        pairs=pair_count,
        p_holm=p_value,  # for this comparison alone
    )


_MAX_COMPARED = 6  # models of which every two are compared by default


def compare_encoders(
    rows: Mapping[Label, Sequence[Score]], baseline: Label | None
) -> list[Comparison]:
    """Compare each row of scores with the baseline's, task by task; without a baseline every two of
    up to six, on averages.

    Rows without all scores are left out. P-values are corrected by Holm.
    """
    width = max(map(len, rows.values()), default=0)
    complete = {label: row for label, row in rows.items() if len(row) == width}
    comparisons: list[Comparison] = []
    if baseline is not None:
        baseline_scores = complete.pop(baseline)
        for row in complete.values():
            for score, baseline_score in zip(row, baseline_scores, strict=True):
                if isinstance(score, SpearmanScore | ExampleScore):
                    comparisons.append(compare([score], [baseline_score]))
    elif len(complete) <= _MAX_COMPARED:
        for kind in dict.fromkeys(type(score) for row in complete.values() for score in row):
            if kind.averaged_over:
                comparisons += _compare_averages(kind, complete.values())
    corrected = statistics.holm([comparison.p_value for comparison in comparisons])
    return [
        replace(comparison, p_holm=p_holm)
        for comparison, p_holm in zip(comparisons, corrected, strict=True)
    ]


def _compare_averages(kind: type[Score], rows: Iterable[Sequence[Score]]) -> Iterator[Comparison]:
    """Yield the comparison of every two distinct encoders on their average of a kind of scores, the
    better one first.
    """
    distinct: dict[str, list[Score]] = {}
    for row in rows:
        scores = scores_of_average(row, kind)
        if scores:
            distinct.setdefault(scores[0].fingerprint, scores)
    best_first = sorted(
        distinct.values(),
        key=lambda scores: float(np.mean([score.value for score in scores])),
        reverse=True,
    )
    for first, second in itertools.combinations(best_first, 2):
        yield compare(first, second)
