"""Scoring encoders on tasks of every kind: a table of metrics, ``METRICS``."""

import contextlib
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from promptcli.data.tasks import (
    AnyTask,
    DevelopmentTask,
    OtherTask,
    OwnTask,
    RetrievalTask,
    STSTask,
)
from promptcli.data.vectors import read_vectors
from promptcli.data.vectors.precision import unit
from promptcli.encoder.encoder import TorchEncoder, encode_together
from promptcli.errors import UsageError
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
from promptcli.notes import Advance, stage
from promptcli.retrieval.bm25 import Bm25
from promptcli.retrieval.ranking import join_rankings
from promptcli.storage import files

RowOfSentence = Mapping[str, int]  #: sentence -> row of an array of vectors


@dataclass(frozen=True)
class TaskVectors:
    """Vectors of the distinct sentences of some tasks, and the encoder or file they came from."""

    label: Label
    recipe: dict[str, Any]  #: how they were made, JSON-ready
    fingerprint: str
    vectors: NDArray[Any]  #: (n, d), row i is sentence i of ``distinct_sentences``
    encoder: TorchEncoder | None = None  #: None if another program made them

    @property
    def names(self) -> dict[str, Any]:
        """The fields of every score that name its encoder."""
        return {"label": self.label, "recipe": self.recipe, "fingerprint": self.fingerprint}


@dataclass(frozen=True)
class EvalSettings:
    """The choices that tasks of plug-ins leave open."""

    fast: bool = False  #: a faster setting, for development
    seed: int | None = None  #: of classifiers
    mteb_folder: Path = Path("mteb-results")  #: of mteb's result files


#: Scores encoders on a task, by the rows of its sentences.
Metric = Callable[[Sequence[TaskVectors], Any, RowOfSentence, EvalSettings], Sequence[Score]]


def distinct_sentences(tasks: Iterable[AnyTask]) -> list[str]:
    """Return every sentence of the tasks once, in the order of first appearance."""
    distinct: dict[str, None] = {}
    for task in tasks:
        distinct.update(dict.fromkeys(task.sentences()))
    return list(distinct)


def row_of_sentences(tasks: Iterable[AnyTask]) -> RowOfSentence:
    """Return the row of each sentence in vectors of ``distinct_sentences``."""
    return {sentence: row for row, sentence in enumerate(distinct_sentences(tasks))}


def embed_tasks(
    encoders: Sequence[TorchEncoder],
    tasks: Sequence[AnyTask],
    labels: Sequence[Label] | None = None,
    advance: Advance | None = None,
) -> list[TaskVectors]:
    """Encode each distinct sentence of all tasks once.

    ``advance`` is the caller's stage of work.
    """
    sentences = distinct_sentences(tasks)
    if labels is None:
        labels = []
        for encoder in encoders:
            labels.append(Label(encoder.recipe.backbone, recipe_name(encoder.recipe)))
    plain: list[TorchEncoder] = []
    if sentences:
        # the metric of retrieval encodes by roles itself
        by_role = all(isinstance(task, RetrievalTask) for task in tasks)
        plain = [encoder for encoder in encoders if not (by_role and _has_roles(encoder))]
    shown: contextlib.AbstractContextManager[Advance] = stage("encode", len(sentences))
    if advance is not None:
        shown = contextlib.nullcontext(advance)
    vectors_of: dict[TorchEncoder, NDArray[Any]] = {}
    with shown as advance:
        if plain:
            encoded = encode_together(plain, sentences, progress=advance)
            for encoder, result in zip(plain, encoded, strict=True):
                vectors_of[encoder] = result.vectors
            advance(0)
        else:
            advance(len(sentences))
    no_vectors = np.zeros((0, 0), np.float32)
    embedded = []
    for label, encoder in zip(labels, encoders, strict=True):
        vectors = vectors_of.get(encoder, no_vectors)
        recipe = encoder.recipe.to_dict()
        embedded.append(TaskVectors(label, recipe, encoder.fingerprint, vectors, encoder))
    return embedded


def _has_roles(encoder: TorchEncoder | None) -> bool:
    """Whether an encoder embeds queries or documents with their own prompt."""
    if encoder is None:
        return False
    return any(encoder.in_role(role) is not encoder for role in ("query", "document"))


#: What lists the sentences of tasks.
_LISTING = "`promptcli eval --list-sentences` with the same tasks and data (Python: task_sentences)"


def read_embedded(path: Path, tasks: Sequence[AnyTask]) -> TaskVectors:
    """Read vectors whose row i is sentence i of ``distinct_sentences(tasks)``."""
    read = read_vectors(path)
    sentences = distinct_sentences(tasks)
    if len(read.matrix) != len(sentences):
        names = [task.label if isinstance(task, STSTask) else task.name for task in tasks]
        raise UsageError(
            f"{path}: {len(read.matrix):,} rows for the {len(sentences):,} distinct sentences of"
            f" {', '.join(names)}; embed these, in the order of {_LISTING}"
        )
    for row, (text, sentence) in enumerate(zip(read.texts or (), sentences, strict=False), start=1):
        if text != sentence:
            raise UsageError(
                f"{path}: row {row} is the vector of {text!r}, not of {sentence!r}; the order is"
                f" that of {_LISTING}"
            )
    wrong = np.flatnonzero(~np.isfinite(read.matrix).all(axis=1))
    if len(wrong):
        raise UsageError(
            f"{path}: row {wrong[0] + 1} holds a NaN or an infinity; embed {sentences[wrong[0]]!r}"
            " again"
        )
    if read.manifest is None:
        recipe = {"vectors": path.name}
    else:
        recipe = read.manifest.recipe
    return TaskVectors(Label("vectors", path.name), recipe, files.sha256(path), read.matrix)


def score_encoders(
    encoders: Sequence[TorchEncoder],
    tasks: Sequence[AnyTask],
    labels: Sequence[Label] | None = None,
) -> list[Any]:
    """Return the scores of each encoder, task by task."""
    return score_vectors(embed_tasks(encoders, tasks, labels), tasks)


def score_vectors(
    embedded: Sequence[TaskVectors],
    tasks: Sequence[AnyTask],
    settings: EvalSettings = EvalSettings(),
) -> list[Any]:
    """Return the scores of each set of vectors, task by task.

    Vectors have a row for each sentence of ``distinct_sentences(tasks)``.
    """
    if not embedded:
        return []
    rows = row_of_sentences(tasks)
    with keep_random_states():
        by_task: list[Sequence[Any]] = []
        for task in tasks:
            if isinstance(task, OtherTask):
                by_task.append(task.scores(embedded, rows, settings))
            else:
                by_task.append(METRICS[type(task)](embedded, task, rows, settings))
    ordered: list[Any] = []
    for scores_of_one in zip(*by_task, strict=True):
        ordered.extend(scores_of_one)
    return ordered


@contextlib.contextmanager
def keep_random_states() -> Iterator[None]:
    """Restore the global random states afterwards: mteb and training seed them all.

    They are those of Python, NumPy and torch.
    """
    python = random.getstate()
    arrays = np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)  # noqa: NPY002


def spearman_on(encoder: TorchEncoder, task: STSTask) -> float:
    """Return Spearman x 100 on a task without the rest of its score, as a training run needs it."""
    pairs = task.pairs()
    rows = row_of_sentences([task])
    vectors = encoder.encode(list(rows))
    first = vectors[_rows_in(rows, pairs.first)]
    second = vectors[_rows_in(rows, pairs.second)]
    return 100 * statistics.spearman(statistics.cosine(first, second), pairs.gold)


def value_on(encoder: TorchEncoder, task: DevelopmentTask) -> float:
    """Return the figure that a checkpoint is chosen by: Spearman x 100, or nDCG@10 x 100."""
    if isinstance(task, STSTask):
        return spearman_on(encoder, task)
    [score] = score_vectors(embed_tasks([encoder], [task], advance=lambda done: None), [task])
    value: float = score.value
    return value


def _rows_in(rows: RowOfSentence, sentences: Sequence[str]) -> NDArray[np.int64]:
    """Return the row of each sentence, (n,)."""
    return np.fromiter((rows[sentence] for sentence in sentences), np.int64, len(sentences))


def _correlate(
    embedded: Sequence[TaskVectors], task: STSTask, rows: RowOfSentence, settings: EvalSettings
) -> Sequence[SpearmanScore]:
    pairs = task.pairs()
    first = _rows_in(rows, pairs.first)
    second = _rows_in(rows, pairs.second)
    with stage(f"score {task.label}", None):
        by_encoder = []
        for each in embedded:
            by_encoder.append(statistics.cosine(each.vectors[first], each.vectors[second]))
        cosines = np.stack(by_encoder)
        intervals = statistics.bootstrap_intervals(cosines, pairs.gold)
    distinct_rows = np.unique(np.concatenate([first, second]))
    scores = []
    for each, row, interval in zip(embedded, cosines, intervals, strict=True):
        is_zero = ~each.vectors[distinct_rows].any(axis=1)
        scores.append(spearman_score(task, row, interval, each.names, int(is_zero.sum())))
    return scores


def spearman_score(
    task: STSTask,
    cosines: NDArray[np.float64],
    interval: tuple[float, float],
    names: dict[str, Any],
    zero_vectors: int = 0,
) -> SpearmanScore:
    """Return the score of cosines (pairs,) and of each subset.

    ``interval`` is -1 to 1, ``names`` names the encoder.
    """
    pairs = task.pairs()
    subsets = {}
    start = 0
    for name, subset in task.subsets.items():
        of_subset = cosines[start : start + len(subset)]
        start += len(subset)
        value = 100 * statistics.spearman(of_subset, subset.gold)
        subsets[name] = SubsetScore(value, len(subset))
    return SpearmanScore(
        **names,
        task=task.name,
        value=100 * statistics.spearman(cosines, pairs.gold),
        split=task.split,
        protocol=task.protocol,
        text=task.text,
        data_sha256=task.sha256(),
        expected_pairs=task.expected_pairs,
        ci95=(100 * interval[0], 100 * interval[1]),
        pairs=len(pairs),
        subsets=subsets,
        cosines=cosines,
        gold=pairs.gold,
        zero_vectors=zero_vectors,
    )


def check_rankable(task: STSTask) -> None:
    """Refuse a development set with fewer than four pairs or one gold score only."""
    if task.subsets:
        gold = task.pairs().gold
    else:
        gold = np.empty(0)
    if len(gold) < 4:
        raise UsageError(
            f"development set {task.label} has {len(gold)} pairs; ranking takes at least 4",
            parameter="on",
        )
    if len(np.unique(gold)) < 2:
        raise UsageError(
            f"all gold scores of development set {task.label} are {gold[0]:g}; nothing ranks by"
            " them"
        )


def _is_comparable(task: AnyTask) -> bool:
    if isinstance(task, OtherTask):
        return task.kept_as is not None and issubclass(task.kept_as, DataScore)
    return not isinstance(task, OwnTask)


def check_comparable(
    labels: Sequence[Label], tasks: Sequence[AnyTask], vectors: Sequence[object]
) -> None:
    """Refuse a comparison without a suitable task or a second model."""
    if not any(_is_comparable(task) for task in tasks):
        raise UsageError(
            "takes graded pairs, transfer tasks or retrieval; name one, or leave it out",
            parameter="compare",
        )
    if not vectors and len(labels) == 1:
        raise UsageError(
            f"{labels[0].recipe} is the only encoder; name a second one", parameter="compare"
        )


def _one_by_one(score: Callable[[TaskVectors, Any, RowOfSentence, EvalSettings], Score]) -> Metric:
    """Return the metric that scores one encoder after the other."""

    def metric(
        embedded: Sequence[TaskVectors], task: Any, rows: RowOfSentence, settings: EvalSettings
    ) -> Sequence[Score]:
        return [score(each, task, rows, settings) for each in embedded]

    return metric


def _retrieve(
    each: TaskVectors, task: RetrievalTask, rows: RowOfSentence, settings: EvalSettings
) -> RetrievalScore:
    ranked = _rank_documents(each, task, rows, 100)
    gains = statistics.ndcg(ranked, task.grades)
    low, high = statistics.interval(statistics.resampled_mean(gains))
    return RetrievalScore(
        **each.names,
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


def _rank_documents(
    each: TaskVectors, task: RetrievalTask, rows: RowOfSentence, depth: int
) -> NDArray[np.int64]:
    """Return the positions of the best documents for each query, best first; -1: no further one.

    A query's own document is left out, as BEIR does.
    """
    reached = depth + bool(task.left_out)  # one more, in place of the document that is left out
    ranked = np.full((len(task.queries), depth), -1)

    def put(number: int, found: NDArray[np.int64]) -> None:
        kept = found[found != task.left_out.get(number, -1)][:depth]
        ranked[number, : len(kept)] = kept

    if task.ranking != "retrieval":
        words = Bm25.of_texts(task.documents)
    if task.ranking == "lexical":
        for number, query in enumerate(task.queries):
            put(number, words.ask(query).rank(reached)[0])
        return ranked
    queries = _in_role(each, "query", task.queries, rows)
    documents = _in_role(each, "document", task.documents, rows)
    nearest = statistics.nearest(queries, documents, reached)
    if task.ranking == "retrieval":
        for number, close in enumerate(nearest):
            put(number, close)
        return ranked
    unit_queries = unit(queries)
    unit_documents = unit(documents)
    for number, (query, close) in enumerate(zip(unit_queries, nearest, strict=True)):
        asked = words.ask(task.queries[number])
        found_words = asked.rank(reached)
        joined = join_rankings(
            (close, unit_documents[close] @ query),
            found_words,
            reached,
            asked.match(found_words),
            lambda rows, query=query: unit_documents[rows] @ query,  # type: ignore[misc]
            asked.scores_of,
        )
        put(number, joined.keys)
    return ranked


def _in_role(each: TaskVectors, role: str, texts: list[str], rows: RowOfSentence) -> NDArray[Any]:
    """Return the vectors of queries or documents, encoded in that role if the encoder has roles."""
    if each.encoder is None or not _has_roles(each.encoder):
        return each.vectors[_rows_in(rows, texts)]
    with stage(f"encode {role}", len(texts)) as advance:
        return each.encoder.in_role(role, report=True).encode(texts, progress=advance)


def _measure(
    each: TaskVectors, task: OwnTask, rows: RowOfSentence, settings: EvalSettings
) -> Score:
    parts = {}
    for name, examples in task.parts.items():
        first, second, gold = zip(*examples, strict=True)
        first_vectors = each.vectors[_rows_in(rows, first)]
        second_vectors = None
        if None not in second:
            second_vectors = each.vectors[_rows_in(rows, second)]
        parts[name] = (first_vectors, second_vectors, np.array(gold, dtype=np.float64))
    name = getattr(task.metric, "__name__", "own")
    return Score(**each.names, task=task.name, metric=name, value=float(task.metric(parts)))


#: Kind of task -> how encoders are scored on it.
METRICS: dict[type, Metric] = {
    STSTask: _correlate,
    RetrievalTask: _one_by_one(_retrieve),
    OwnTask: _one_by_one(_measure),
}


def average(scores: Iterable[Score]) -> float:
    """Return the mean of the scores, each rounded to 2 decimals first, as in the papers' tables."""
    return float(np.mean([round(score.value, 2) for score in scores]))


COMPARED = (SpearmanScore, ExampleScore)  #: scores of which two can be compared


def scores_of_average(scores: Iterable[Score], kind: type[Score]) -> list[Score]:
    """Return the scores of a kind that are averaged: those of the papers' tasks, or else all."""
    of_kind = [score for score in scores if isinstance(score, kind)]
    of_papers = [score for score in of_kind if score.column in kind.averaged_over]
    return of_papers or of_kind


def compare(first: Sequence[Score], second: Sequence[Score]) -> Comparison:
    """Compare two encoders on the same tasks of one kind, or their means if several.

    Paired bootstrap.
    """
    for scores in (first, second):
        if isinstance(scores, Score):
            raise UsageError("takes two lists of scores; put a single score in a list")
    pairs = list(zip(first, second, strict=True))
    for one, other in cast(list[tuple[DataScore, DataScore]], pairs):
        if (one.column, one.data_sha256) != (other.column, other.data_sha256):
            raise UsageError(
                f"{one.column} and {other.column} do not have the same data; compare one task"
            )
    if all(isinstance(score, SpearmanScore) for score in [*first, *second]):
        draws, number = _correlation_draws(cast(list[tuple[SpearmanScore, SpearmanScore]], pairs))
    else:
        draws, number = _example_draws(cast(list[tuple[ExampleScore, ExampleScore]], pairs))
    low, high = statistics.interval(draws)
    p_value = statistics.two_sided(draws)
    return Comparison(
        first=first[0].label,
        second=second[0].label,
        tasks=[score.column for score in first],
        metric=first[0].metric,
        difference=float(np.mean([one.value - other.value for one, other in pairs])),
        ci95=(100 * low, 100 * high),
        p_value=p_value,
        pairs=number,
        p_holm=p_value,  # of this comparison alone
    )


#: The difference in each resample, (resamples,), and how many pairs or examples it is over.
_Draws = tuple[NDArray[np.float64], int]


def _correlation_draws(pairs: Sequence[tuple[SpearmanScore, SpearmanScore]]) -> _Draws:
    cosines = []
    golds = []
    number = 0
    for one, other in pairs:
        cosines.append(np.stack([one.cosines, other.cosines]))
        golds.append(one.gold)
        number += one.pairs
    first, second = statistics.resampled_averages(cosines, golds)
    return first - second, number


def _example_draws(pairs: Sequence[tuple[ExampleScore, ExampleScore]]) -> _Draws:
    differences = [one.by_example - other.by_example for one, other in pairs]
    number = sum(len(of_task) for of_task in differences)
    return statistics.resampled_mean_of_means(differences), number


MOST_COMPARED = 6  #: most models of which every two are compared without being asked


def compare_rows(rows: Mapping[Label, Sequence[Score]], baseline: Label | None) -> list[Comparison]:
    """Compare each row with the baseline, task by task, or every two of up to six on averages.

    Rows that lack a score of others are left out. P-values are corrected by Holm.
    """
    most = max(map(len, rows.values()), default=0)
    complete = {label: row for label, row in rows.items() if len(row) == most}
    found: list[Comparison] = []
    if baseline is not None and baseline in complete:
        found.extend(_with_baseline(complete, baseline))
    else:
        kinds = dict.fromkeys(type(score) for row in complete.values() for score in row)
        for kind in kinds:
            if kind.averaged_over:
                found.extend(_every_two(complete, kind))
    corrected = statistics.holm([comparison.p_value for comparison in found])
    comparisons = []
    for comparison, p_holm in zip(found, corrected, strict=True):
        comparisons.append(replace(comparison, p_holm=p_holm))
    return comparisons


def _with_baseline(rows: Mapping[Label, Sequence[Score]], baseline: Label) -> list[Comparison]:
    """Compare every other row with the baseline, task by task."""
    comparisons = []
    for label, row in rows.items():
        if label == baseline:
            continue
        for score, of_baseline in zip(row, rows[baseline], strict=True):
            if isinstance(score, COMPARED):
                comparisons.append(compare([score], [of_baseline]))
    return comparisons


def _every_two(rows: Mapping[Label, Sequence[Score]], kind: type[Score]) -> list[Comparison]:
    """Compare every two of up to six encoders on the average of one kind of task."""
    if len(rows) > MOST_COMPARED:
        return []
    distinct: dict[str, list[Score]] = {}
    for row in rows.values():
        scores = scores_of_average(row, kind)
        if scores:
            distinct.setdefault(scores[0].fingerprint, scores)

    def mean(row: Sequence[Score]) -> float:
        return float(np.mean([score.value for score in row]))

    best_first = sorted(distinct.values(), key=mean, reverse=True)
    return [compare(one, other) for one, other in itertools.combinations(best_first, 2)]
