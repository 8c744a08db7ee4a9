"""Scoring encoders on tasks of every kind: a table of metrics, ``METRICS``."""

import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from promptcli.data.task_table import TEST_TASKS, TRANSFER_TASKS
from promptcli.data.tasks import (
    AnyTask,
    LabelledExamples,
    MtebTask,
    OwnTask,
    RetrievalTask,
    STSTask,
    TransferTask,
)
from promptcli.data.vectors import read_vectors
from promptcli.data.vectors.precision import unit
from promptcli.encoder.encoder import Encoder
from promptcli.encoder.encoding import encode_together
from promptcli.errors import PromptcliError, UsageError
from promptcli.evaluation import classifier, statistics
from promptcli.evaluation.classifier import FULL, PROTOCOLS, SEED, ClassifierTraining
from promptcli.evaluation.lexical import Lexical, joined
from promptcli.evaluation.mteb_tasks import MtebEncoder, mteb_score
from promptcli.evaluation.scores import (
    AccuracyScore,
    Comparison,
    Label,
    MtebScore,
    RetrievalScore,
    Score,
    SpearmanScore,
    SubsetScore,
    recipe_name,
)
from promptcli.notes import Advance, working
from promptcli.storage import files

Rows = Mapping[str, int]  #: sentence -> row of an array of vectors


@dataclass(frozen=True)
class Embedded:
    """Vectors of the distinct sentences of some tasks, and the encoder or file they came from."""

    label: Label
    recipe: dict[str, Any]  #: how they were made, JSON-ready
    fingerprint: str
    vectors: NDArray[Any]  #: (n, d), row i is sentence i of ``distinct_sentences``
    encoder: Encoder | None = None  #: None if another program made them

    @property
    def names(self) -> dict[str, Any]:
        """The fields of every score that name its encoder."""
        return {"label": self.label, "recipe": self.recipe, "fingerprint": self.fingerprint}


@dataclass(frozen=True)
class EvalSettings:
    """The choices that tasks leave open."""

    training: ClassifierTraining = FULL  #: of the classifiers of transfer tasks
    seed: int = SEED  #: of the classifiers
    mteb_folder: Path = Path("mteb-results")  #: of mteb's result files


#: Scores encoders on a task, by the rows of its sentences.
Metric = Callable[[Sequence[Embedded], Any, Rows, EvalSettings], Sequence[Score]]


def distinct_sentences(tasks: Iterable[AnyTask]) -> list[str]:
    """Return every sentence of the tasks once, in the order of first appearance."""
    return list(dict.fromkeys(sentence for task in tasks for sentence in task.sentences()))


def rows_of(tasks: Iterable[AnyTask]) -> Rows:
    """Return the row of each sentence in vectors of ``distinct_sentences``."""
    return {sentence: row for row, sentence in enumerate(distinct_sentences(tasks))}


def embed_tasks(
    encoders: Sequence[Encoder],
    tasks: Sequence[AnyTask],
    labels: Sequence[Label] | None = None,
    advance: Advance | None = None,
) -> list[Embedded]:
    """Encode each distinct sentence of all tasks once.

    ``advance`` is the caller's stage of work.
    """
    sentences = distinct_sentences(tasks)
    if labels is None:
        labels = [
            Label(encoder.recipe.backbone, recipe_name(encoder.recipe)) for encoder in encoders
        ]
    by_role = all(isinstance(task, RetrievalTask) for task in tasks)  # then their metric encodes
    plain = (
        [encoder for encoder in encoders if not (by_role and _has_roles(encoder))]
        if sentences
        else []
    )
    stage = (
        working("encode", len(sentences)) if advance is None else contextlib.nullcontext(advance)
    )
    with stage as advance:
        encoded = encode_together(plain, sentences, progress=advance) if plain else []
        advance(0 if plain else len(sentences))
    by_encoder = {encoder: each.vectors for encoder, each in zip(plain, encoded, strict=True)}
    vectors = [by_encoder.get(encoder, np.zeros((0, 0), np.float32)) for encoder in encoders]
    if any(isinstance(task, TransferTask) for task in tasks):
        for wrong in (np.flatnonzero(~np.isfinite(rows).all(axis=1)) for rows in vectors):
            if len(wrong):
                raise PromptcliError(
                    f"the vector of {sentences[wrong[0]]!r} is not finite; try `dtype` float32"
                )
    return [
        Embedded(label, encoder.recipe.to_dict(), encoder.fingerprint, rows, encoder)
        for label, encoder, rows in zip(labels, encoders, vectors, strict=True)
    ]


def _has_roles(encoder: Encoder | None) -> bool:
    return encoder is not None and any(
        encoder.in_role(role) is not encoder for role in ("query", "document")
    )


#: What lists the sentences of tasks.
_LISTING = "`promptcli eval --list-sentences` with the same tasks and data (Python: task_sentences)"


def read_embedded(path: Path, tasks: Sequence[AnyTask]) -> Embedded:
    """Read vectors whose row i is sentence i of ``distinct_sentences(tasks)``."""
    read, sentences = read_vectors(path), distinct_sentences(tasks)
    if len(read.matrix) != len(sentences):
        names = ", ".join(task.label if isinstance(task, STSTask) else task.name for task in tasks)
        rows = f"{len(read.matrix):,} rows for the {len(sentences):,} distinct sentences of {names}"
        raise UsageError(f"{path}: {rows}; embed these, in the order of {_LISTING}")
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
    recipe = {"vectors": path.name} if read.manifest is None else read.manifest.recipe
    return Embedded(Label("vectors", path.name), recipe, files.sha256(path), read.matrix)


def evaluate(
    encoders: Sequence[Encoder], tasks: Sequence[STSTask], labels: Sequence[Label] | None = None
) -> list[SpearmanScore]:
    """Score encoders on graded pairs: ``embed_tasks``, then ``score_vectors``."""
    return score_vectors(embed_tasks(encoders, tasks, labels), tasks)


def score_vectors(
    embedded: Sequence[Embedded], tasks: Sequence[AnyTask], settings: EvalSettings = EvalSettings()
) -> list[Any]:
    """Return the scores of each set of vectors, a row per sentence of
    ``distinct_sentences(tasks)``, task by task.
    """
    if not embedded:
        return []
    rows = rows_of(tasks)
    with kept_random_states():
        by_task = [METRICS[type(task)](embedded, task, rows, settings) for task in tasks]
    return [scores[number] for number in range(len(embedded)) for scores in by_task]


@contextlib.contextmanager
def kept_random_states() -> Iterator[None]:
    """Restore Python's, numpy's and torch's global random states afterwards: mteb and training seed
    them all.
    """
    python, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)  # noqa: NPY002


def spearman_on(encoder: Encoder, task: STSTask) -> float:
    """Return Spearman x 100 on a task without the rest of its score: for the many measurements of a
    training run.
    """
    pairs, rows = task.pairs(), rows_of([task])
    vectors = encoder.encode(list(rows))
    first, second = (
        vectors[[rows[sentence] for sentence in side]] for side in (pairs.first, pairs.second)
    )
    return 100 * statistics.spearman(statistics.cosine(first, second), pairs.gold)


def _correlate(
    embedded: Sequence[Embedded], task: STSTask, rows: Rows, settings: EvalSettings
) -> Sequence[SpearmanScore]:
    pairs = task.pairs()
    first, second = (
        np.array([rows[sentence] for sentence in side]) for side in (pairs.first, pairs.second)
    )
    with working(f"score {task.label}", None):
        cosines = np.stack(
            [statistics.cosine(each.vectors[first], each.vectors[second]) for each in embedded]
        )
        intervals = statistics.bootstrap_intervals(cosines, pairs.gold)
    both = np.unique(np.concatenate([first, second]))
    return [
        spearman_score(
            task,
            row,
            interval,
            each.names,
            zero_vectors=int((~each.vectors[both].any(axis=1)).sum()),
        )
        for each, row, interval in zip(embedded, cosines, intervals, strict=True)
    ]


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
    pairs, stops = task.pairs(), np.cumsum([len(subset) for subset in task.subsets.values()])
    subsets = zip(task.subsets.items(), np.split(cosines, stops[:-1]), strict=True)
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
        subsets={
            name: SubsetScore(100 * statistics.spearman(row, subset.gold), len(subset))
            for (name, subset), row in subsets
        },
        cosines=cosines,
        gold=pairs.gold,
        zero_vectors=zero_vectors,
    )


def check_rankable(task: STSTask) -> None:
    """Refuse a development set with fewer than four pairs or one gold score only."""
    gold = task.pairs().gold if task.subsets else np.empty(0)
    if len(gold) < 4:
        raise UsageError(
            f"development set {task.label} has {len(gold)} pairs; ranking takes at least 4: see"
            " `on`"
        )
    if len(np.unique(gold)) < 2:
        raise UsageError(
            f"all gold scores of development set {task.label} are {gold[0]:g}; nothing ranks by"
            " them"
        )


def check_tasks(tasks: Sequence[TransferTask], training: ClassifierTraining) -> None:
    """Refuse tasks that no classifier can be trained on, before anything is encoded."""
    for task in tasks:
        classifier.check_labels(
            task.name, {split: part.labels for split, part in task.splits.items()}, training
        )


def features(vectors: NDArray[Any], part: LabelledExamples, rows: Rows) -> NDArray[Any]:
    """Return the classifier's input: the vectors of sentences (n, d), the features of pairs (n,
    2d).
    """
    sides = [part.first] if part.second is None else [part.first, part.second]
    looked_up = [
        vectors[np.fromiter((rows[sentence] for sentence in side), np.int64, len(side))]
        for side in sides
    ]
    return looked_up[0] if len(looked_up) == 1 else classifier.pair_features(*looked_up)


def _one_by_one(score: Callable[[Embedded, Any, Rows, EvalSettings], Score]) -> Metric:
    return lambda embedded, task, rows, settings: [
        score(each, task, rows, settings) for each in embedded
    ]


def _classify(
    each: Embedded, task: TransferTask, rows: Rows, settings: EvalSettings
) -> AccuracyScore:
    start = time.perf_counter()
    splits = {
        split: (features(each.vectors, part, rows), part.labels)
        for split, part in task.splits.items()
    }
    classes = 1 + max(int(labels.max()) for _, labels in splits.values())
    device = "cpu" if each.encoder is None else str(each.encoder.device)
    setting = classifier.ClassifierSetting(
        settings.training, classes, settings.seed, device, task.name
    )
    outcome = PROTOCOLS[frozenset(splits)](splits, setting)
    low, high = statistics.interval(statistics.resampled_mean(outcome.right))
    return AccuracyScore(
        **each.names,
        task=task.name,
        value=outcome.test,
        dev=outcome.dev,
        decays=outcome.decays,
        examples={split: len(part) for split, part in task.splits.items()},
        seconds=time.perf_counter() - start,
        ci95=(100 * low, 100 * high),
        by_example=outcome.right,
    )


def _retrieve(
    each: Embedded, task: RetrievalTask, rows: Rows, settings: EvalSettings
) -> RetrievalScore:
    ranked = _ranked(each, task, rows, 100)
    gains = statistics.ndcg(ranked, task.grades)
    low, high = statistics.interval(statistics.resampled_mean(gains))
    return RetrievalScore(
        **each.names,
        task=task.name,
        value=100 * float(gains.mean()),
        ci95=(100 * low, 100 * high),
        recall_at_10=100 * float(statistics.recall(ranked, task.grades, 10).mean()),
        recall_at_100=100 * float(statistics.recall(ranked, task.grades, 100).mean()),
        queries=len(task.queries),
        documents=len(task.documents),
        by_example=gains,
    )


def _ranked(each: Embedded, task: RetrievalTask, rows: Rows, depth: int) -> NDArray[np.int64]:
    """Return the numbers of the best documents for each query, best first; -1: no further one."""

    def side(role: str, texts: list[str]) -> NDArray[Any]:
        if each.encoder is None or not _has_roles(each.encoder):
            return each.vectors[[rows[text] for text in texts]]
        with working(f"encode {role}", len(texts)) as advance:
            return each.encoder.in_role(role, report=True).encode(texts, progress=advance)

    rankings = []
    if task.ranking != "retrieval":
        words = Lexical.build(task.documents, np.arange(len(task.documents)))
        rankings = [words.rank(query, depth, None) for query in task.queries]
    if task.ranking != "lexical":
        queries, documents = side("query", task.queries), side("document", task.documents)
        ranked = statistics.nearest(queries, documents, depth)
        if task.ranking == "retrieval":
            return ranked
        queries, documents = unit(queries), unit(documents)
        nearest = [
            (near, documents[near] @ query) for near, query in zip(ranked, queries, strict=True)
        ]
        rankings = [joined(*both, depth) for both in zip(nearest, rankings, strict=True)]
    ranked = np.full((len(rankings), depth), -1)
    for row, (numbers, _) in zip(ranked, rankings, strict=True):
        row[: len(numbers)] = numbers
    return ranked


def _run_mteb(each: Embedded, task: MtebTask, rows: Rows, settings: EvalSettings) -> MtebScore:
    if each.encoder is None:
        raise UsageError(
            f"{task.name} takes a model, and {each.label.recipe} holds vectors only; leave one of"
            " them out"
        )
    model = MtebEncoder(each.encoder, each.fingerprint, each.label)
    return mteb_score(model, task, settings.mteb_folder, each.names)


def _measure(each: Embedded, task: OwnTask, rows: Rows, settings: EvalSettings) -> Score:
    parts = {}
    for name, examples in task.parts.items():
        first, second, gold = zip(*examples, strict=True)
        sides = [
            None if None in side else each.vectors[[rows[text] for text in side]]
            for side in (first, second)
        ]
        parts[name] = (*sides, np.array(gold, dtype=np.float64))
    name = getattr(task.metric, "__name__", "own")
    return Score(**each.names, task=task.name, metric=name, value=float(task.metric(parts)))


#: Kind of task -> how encoders are scored on it.
METRICS: dict[type, Metric] = {
    STSTask: _correlate,
    TransferTask: _one_by_one(_classify),
    RetrievalTask: _one_by_one(_retrieve),
    MtebTask: _one_by_one(_run_mteb),
    OwnTask: _one_by_one(_measure),
}


def average(scores: Iterable[Score]) -> float:
    """Return the mean of the figures after each was rounded to 2 decimals, as the papers' tables
    do.
    """
    return float(np.mean([round(score.value, 2) for score in scores]))


_ByExample = AccuracyScore | RetrievalScore
COMPARED = (SpearmanScore, AccuracyScore, RetrievalScore)  #: scores of which two can be compared

#: Kind of score -> the papers' tasks of it: an average, and a difference of averages, are over
#: these.
PAPERS: dict[type[Score], tuple[str, ...]] = {
    SpearmanScore: tuple(map(str, TEST_TASKS)),
    AccuracyScore: tuple(TRANSFER_TASKS),
}


def averaged(scores: Iterable[Score], kind: type[Score]) -> list[Score]:
    """Return the scores of a kind that are averaged: those of the papers' tasks, or all if none of
    these is there.
    """
    of_kind = [score for score in scores if isinstance(score, kind)]
    return [score for score in of_kind if score.column in PAPERS[kind]] or of_kind


def compare(first: Sequence[Score], second: Sequence[Score]) -> Comparison:
    """Compare two encoders on the same tasks of one kind, or their means if several.

    Paired bootstrap.
    """
    pairs = list(zip(first, second, strict=True))
    if all(isinstance(each, SpearmanScore) for pair in pairs for each in pair):
        both = cast(list[tuple[SpearmanScore, SpearmanScore]], pairs)
        for one, other in both:
            if (one.column, one.data_sha256) != (other.column, other.data_sha256):
                raise UsageError(
                    f"{one.column} and {other.column} do not have the same pairs; compare one task"
                )
        cosines = [np.stack([one.cosines, other.cosines]) for one, other in both]
        draws = np.subtract(*statistics.resampled_averages(cosines, [one.gold for one, _ in both]))
        number = sum(one.pairs for one, _ in both)
    else:
        of_examples = cast(list[tuple[_ByExample, _ByExample]], pairs)
        differences = [one.by_example - other.by_example for one, other in of_examples]
        draws = statistics.resampled_mean_of_means(differences)
        number = sum(map(len, differences))
    low, high = statistics.interval(draws)
    return Comparison(
        first=first[0].label,
        second=second[0].label,
        tasks=[score.column for score in first],
        metric=first[0].metric,
        difference=float(np.mean([one.value - other.value for one, other in pairs])),
        ci95=(100 * low, 100 * high),
        p_value=statistics.two_sided(draws),
        pairs=number,
    )


MOST_COMPARED = 6  #: most models of which every two are compared without being asked


def compare_rows(rows: Mapping[Label, Sequence[Score]], baseline: Label | None) -> list[Comparison]:
    """Compare each row with the baseline, task by task, or every two of up to six on averages.

    P-values by Holm.
    """
    most = max(map(len, rows.values()), default=0)
    # the others are not complete
    rows = {label: row for label, row in rows.items() if len(row) == most}
    if baseline is not None and baseline in rows:
        others = [row for label, row in rows.items() if label != baseline and row]
        pairs = [pair for row in others for pair in zip(row, rows[baseline], strict=True)]
        found = [compare([one], [other]) for one, other in pairs if isinstance(one, COMPARED)]
    else:
        found = [comparison for kind in PAPERS for comparison in _every_two(rows, kind)]
    corrected = statistics.holm([comparison.p_value for comparison in found])
    return [replace(each, p_holm=p_value) for each, p_value in zip(found, corrected, strict=True)]


def _every_two(rows: Mapping[Label, Sequence[Score]], kind: type[Score]) -> list[Comparison]:
    """Compare every two of up to six encoders on the average of one kind of task."""
    if len(rows) > MOST_COMPARED:
        return []
    distinct: dict[str, list[Score]] = {}
    for row in rows.values():
        scores = averaged(row, kind)
        if scores:
            distinct.setdefault(scores[0].fingerprint, scores)
    best_first = sorted(
        distinct.values(), key=lambda row: -float(np.mean([score.value for score in row]))
    )
    return [compare(one, other) for one, other in itertools.combinations(best_first, 2)]
