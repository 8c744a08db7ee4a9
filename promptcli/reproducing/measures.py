"""How columns are measured: scores on tasks, analyses, settings of promptcli's own tables.

A new kind of column is one entry of ``MEASURES`` and the function that it names.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from promptcli.analysis.anisotropy import Preparation, check_enough, sentence_anisotropy, token_anisotropy
from promptcli.analysis.impact import check_mask, compare_with_tfidf
from promptcli.analysis.mask_tokens import predict_mask_tokens
from promptcli.data.task_table import TEST_TASKS, TRANSFER_TASKS
from promptcli.data.tasks import STSTask, TransferTask, load_transfer
from promptcli.encoder.pooling.ditto import KNOWN_HEADS
from promptcli.errors import UsageError
from promptcli.evaluation import evaluator, statistics
from promptcli.evaluation.classifier import DECAYS, FULL, HELD_OUT, SEED
from promptcli.evaluation.evaluator import evaluate, read_embedded
from promptcli.evaluation.scores import Label
from promptcli.recipe import split_spec
from promptcli.reproducing.measurement_context import MeasureData, MeasurementContext, hash_of
from promptcli.reproducing.published import PublishedRow, Value, published_tables, short_name
from promptcli.reproducing.systems import Systems, ranked_heads
from promptcli.training.methods import find_method

#: Column -> its figure.
Figures = dict[str, dict[str, Any]]

#: Columns that show the extreme of several runs, not their mean.
EXTREMES: Mapping[str, Callable[[Sequence[float]], float]] = {"max": max, "min": min}


def figure(value: Value, ci95: tuple[float, float] | None = None, on: Sequence[str] = ()) -> dict[str, Any]:
    """Return a figure, JSON-ready: its value, 95% interval and the names of its data."""
    return {"value": value, "ci95": None if ci95 is None else list(ci95), "on": list(on)}


def rounded(value: float, ci95: tuple[float, float] | None = None, on: Sequence[str] = ()) -> dict[str, Any]:
    """Return ``figure`` with the four decimals that results keep."""
    return figure(round(value, 4), None if ci95 is None else (round(ci95[0], 4), round(ci95[1], 4)), on)


def over_runs(runs: Sequence[Figures]) -> Figures:
    """Return the mean figures of a row's runs with standard deviations (n - 1), those of a single run unchanged."""
    if len(runs) == 1:
        return runs[0]
    figures: Figures = {}
    for column in runs[0]:
        values = [run[column]["value"] for run in runs]
        common = {"ci95": None, "on": runs[0][column]["on"], "runs": len(runs)}
        mean, std = round(fmean(values), 4), round(stdev(values), 4)
        figures[column] = {"value": mean, "std": std, **common}
        if column == "Avg":
            figures |= {name: {"value": round(of(values), 4), **common} for name, of in EXTREMES.items()}
    return figures


def measure_sts(systems: Systems, data: MeasureData, context: MeasurementContext) -> Iterator[Figures]:
    """Yield each system's figure on every task with data, and their average."""
    tasks: list[STSTask] = data.content
    if systems[0].vectors is not None:  # a group by itself, since it is slow
        scores = evaluator.score_vectors([_read(systems[0].vectors, tasks, systems[0].row)], tasks)
    else:
        scores = evaluate([system.encoder for system in systems], tasks)
    rows = [scores[start : start + len(tasks)] for start in range(0, len(scores), len(tasks))]
    intervals = statistics.average_intervals(
        [np.stack([score.cosines for score in task]) for task in zip(*rows, strict=True)],
        [task.pairs().gold for task in tasks],
    )
    for row, (low, high) in zip(rows, intervals, strict=True):
        figures = {score.column: rounded(score.value, score.ci95, [score.column]) for score in row}
        yield {**figures, "Avg": rounded(evaluator.average(row), (100 * low, 100 * high), list(figures))}


def _read(path: Path, tasks: Sequence[STSTask] | Sequence[TransferTask], row: PublishedRow) -> evaluator.Embedded:
    table = next(table.name for table in published_tables().values() if row in table.rows)
    return read_embedded(path, tasks, f"promptcli reproduce {table} --list-sentences")


def transfer_data(context: MeasurementContext) -> MeasureData:
    """Return the tasks of the data folder; ``content`` is the list of those that can be scored."""
    if context.data_dir is None:
        why = "it is read from a folder; give `data_dir` FOLDER, SentEval's `downstream`"
        return MeasureData(missing=dict.fromkeys(TRANSFER_TASKS, why))
    loaded = load_transfer(context.data_dir, TRANSFER_TASKS)
    missing, tasks = dict(loaded.missing), []
    for task in loaded.tasks:
        try:
            evaluator.check_tasks([task], FULL)
            tasks.append(task)
        except UsageError as error:
            missing[task.name] = str(error)
    return MeasureData({task.name: _transfer_facts(task) for task in tasks}, missing, tasks)


def _transfer_facts(task: TransferTask) -> dict[str, Any]:
    text = {split: [part.first, part.second or [], part.labels.tolist()] for split, part in sorted(task.splits.items())}
    return {
        "examples": {split: len(part) for split, part in task.splits.items()},
        "unexpected": {split: list(counts) for split, counts in task.unexpected_counts().items()},
        "sha256": hash_of(text),
        "setting": FULL.caption(SEED),
        "training": {**dataclasses.asdict(FULL), "weight_decays": list(DECAYS), "held_out": HELD_OUT, "seed": SEED},
    }


def measure_transfer(systems: Systems, data: MeasureData, context: MeasurementContext) -> Iterator[Figures]:
    """Yield each system's accuracy on every task with data, and the average; they have no interval.

    One system after the other: their classifiers take longer than their vectors.
    """
    tasks: list[TransferTask] = data.content
    for system in systems:
        if system.vectors is not None:
            embedded = [_read(system.vectors, tasks, system.row)]
        else:
            labels = [Label(context.backbone_name, system.row.label)]
            embedded = evaluator.embed_tasks([system.transfer_encoder], tasks, labels)
        scores = evaluator.score_vectors(embedded, tasks)
        figures = {score.task: rounded(score.value, None, [score.task]) for score in scores}
        yield {**figures, "transfer": rounded(evaluator.average(scores), None, list(figures))}


_CORPUS = ["corpus"]
#: Number of sentences of the corpus for impact matrices.
_FIRST = 1000


def corpus_sentences(preparation: Preparation, described: str) -> Callable[[MeasurementContext], MeasureData]:
    """Return the loader of the prepared sentences of a column of mean cosines; ``content`` is their list."""

    def load(context: MeasurementContext) -> MeasureData:
        sentences = preparation.apply(context.sentences)
        check_enough(len(sentences))
        setting = f"mean cosine over all pairs of {len(sentences):,} sentences {described} of Wikipedia"
        facts = {"sentences": len(sentences), "sha256": hash_of(sentences), "setting": setting}
        return MeasureData({"corpus": facts}, {}, sentences)

    return load


def measure_cosines(
    systems: Systems, data: MeasureData, context: MeasurementContext, *, column: str
) -> Iterator[Figures]:
    """Yield the mean cosine of each system's sentence vectors (PromptBERT, table 1; Ditto, table 5)."""
    for result in sentence_anisotropy([system.encoder for system in systems], data.content):
        yield {column: rounded(result.value, None, _CORPUS)}


def measure_vocabulary(systems: Systems, data: MeasureData, context: MeasurementContext) -> Iterator[Figures]:
    """Yield the mean cosine of all rows of the backbone's word-embedding matrix (PromptBERT, table 2)."""
    value = token_anisotropy(context.backbone).value
    for _ in systems:
        yield {"vocabulary": rounded(value)}


def diagonal_data(context: MeasurementContext) -> MeasureData:
    """Return the development pairs, and which sentences idf is counted on."""
    pairs = context.tasks(["STS-B:dev"])
    return MeasureData({**pairs.facts, "idf": context.corpus_facts} if pairs.facts else {}, pairs.missing)


def measure_diagonals(systems: Systems, data: MeasureData, context: MeasurementContext) -> Iterator[Figures]:
    """Yield the correlation of each head's diagonal with TF-IDF, x 100 over the development sentences (Ditto, table 4).

    The correlations have no interval: the tokens of a sentence are not independent.
    """
    tfidf = {head["head"]: head["tfidf"] for head in ranked_heads(context)}
    for system in systems:
        assert system.recipe is not None
        head = tfidf[split_spec(system.recipe.pooling)[1] or ""]
        yield _correlations("diagonal", head["pearson"], head["spearman"], ["STS-B:dev", "corpus"])


def impact_data(context: MeasurementContext) -> MeasureData:
    """Return the corpus: impacts are of its first sentences, idf is counted on all."""
    check_mask(context.backbone)
    sentences = [sentence for sentence in context.sentences if sentence.strip()][:_FIRST]
    setting = f"impact matrices of {len(sentences):,} sentences from the start, idf of all; the paper's: 1,000 of PUD"
    facts = {"sentences": len(sentences), "sha256": context.corpus_facts["sha256"], "setting": setting}
    return MeasureData({"corpus": facts}, {}, sentences)


def measure_impact(systems: Systems, data: MeasureData, context: MeasurementContext) -> Iterator[Figures]:
    """Yield the correlation of tokens' impacts with their TF-IDF, x 100 over all sentences (Ditto, table 3).

    It depends on the backbone only and has no interval: a sentence's tokens are not independent.
    """
    study = compare_with_tfidf(context.backbone, data.content, context.sentences).correlation
    for _ in systems:
        yield _correlations("impact", study.pearson, study.spearman, _CORPUS)


def measure_tokens(systems: Systems, data: MeasureData, context: MeasurementContext) -> Iterator[Figures]:
    """Yield the five most probable tokens at each sentence's mask, plain and denoised (PromptBERT, table 7)."""
    recipe = systems[0].recipe
    assert recipe is not None
    for guesses in predict_mask_tokens(context.backbone, recipe, [system.row.argument for system in systems]):
        lists = {"tokens": guesses.plain, "tokens-denoised": guesses.denoised}
        yield {name: figure([guess.token for guess in best]) for name, best in lists.items()}


def measure_settings(systems: Systems, data: MeasureData, context: MeasurementContext) -> Iterator[Figures]:
    """Yield the settings in promptcli's own tables for each row's columns, as far as they have them."""
    for system in systems:
        yield {name: figure(value) for name, value in _settings(system.row).items() if name in system.row.published}


def _settings(row: PublishedRow) -> dict[str, Any]:
    if row.argument == "ditto":
        return {"head": {short_name(name): head for name, head in KNOWN_HEADS.items()}[short_name(row.backbone)]}
    method = find_method(row.argument, supervised=row.setting == "sup")
    views = method.variant("roberta" if row.backbone.startswith("roberta") else "bert").views
    settings = vars(method.paper[row.backbone])
    return {**settings, "masked_lm": settings.get("mlm_weight", 0) > 0, "view-1": views[0], "view-2": views[1]}


#: Data of a picture.
_DRAWN_ON = {"token-bias": _CORPUS, "token-bias-output": _CORPUS, "uniformity": ["STS-B"]}


def measure_pictures(systems: Systems, data: MeasureData, context: MeasurementContext) -> Iterator[Figures]:
    """Draw each system's picture and yield the name of its file."""
    assert context.draw is not None
    for system in systems:
        name = system.row.argument
        yield {"picture": figure(context.draw(name, context), on=_DRAWN_ON.get(name, []))}


def _correlations(what: str, pearson: float, spearman: float, on: Sequence[str]) -> Figures:
    return {f"{what}-pearson": rounded(100 * pearson, None, on), f"{what}-spearman": rounded(100 * spearman, None, on)}


@dataclass(frozen=True)
class Column:
    """The format of a column."""

    head: str
    decimals: int | None = 2  #: of a number; None: printed unchanged
    mean_of: tuple[str, ...] = ()  #: columns averaged (missing data are skipped)


@dataclass(frozen=True)
class Measure:
    """One way of measuring some columns."""

    columns: Mapping[str, Column]  #: by their names in tables
    takes: str = ""  #: its data, for the list of tables
    #: Systems that share a model input, the data, the context -> each one's figures, in order; None: not measured.
    run: Callable[[Systems, MeasureData, MeasurementContext], Iterator[Figures]] | None = None
    load: Callable[[MeasurementContext], MeasureData] = lambda context: MeasureData()
    cached: bool = True


_TESTS = tuple(str(name) for name in TEST_TASKS)
_SETTINGS = {
    "batch_size": "batch",
    "learning_rate": "rate",
    "epochs": "epochs",
    "eval_steps": "eval",
    "max_length": "tokens",
    "prefix_length": "prefix",
    "masked_lm": "MLM",
    "temperature": "tau",
    "view-1": "view 1",
    "view-2": "view 2",
    "head": "head",
}
_FROM_THE_START = "from the start, lower-cased, cut to 32 words; the paper's: 100,000"
_AT_RANDOM = "at random, seed 0, as they are; the paper's: 1,000"

#: By name; every column of the published tables is in one of them.
MEASURES: dict[str, Measure] = {
    "sts": Measure(
        {
            **{name: Column(name) for name in _TESTS},
            **{name: Column(name, mean_of=_TESTS) for name in ("Avg", *EXTREMES)},
        },
        "STS12-16, STS-B, SICK-R",
        measure_sts,
        lambda context: context.tasks(_TESTS),
    ),
    "development": Measure(
        {"STS-B:dev": Column("STS-B dev")}, "STS-B", measure_sts, lambda context: context.tasks(["STS-B:dev"])
    ),
    "transfer": Measure(
        {**{name: Column(name) for name in TRANSFER_TASKS}, "transfer": Column("Avg", mean_of=TRANSFER_TASKS)},
        "transfer tasks",
        measure_transfer,
        transfer_data,
    ),
    "anisotropy": Measure(
        {"anisotropy": Column("anisotropy", 4)},
        "corpus",
        functools.partial(measure_cosines, column="anisotropy"),
        corpus_sentences(Preparation(), _FROM_THE_START),
    ),
    "mean-cosine": Measure(
        {"mean-cosine": Column("cosine", 3)},
        "corpus",
        functools.partial(measure_cosines, column="mean-cosine"),
        corpus_sentences(Preparation(sample=1000, lower=False, words=None), _AT_RANDOM),
    ),
    "vocabulary": Measure({"vocabulary": Column("cosine", 4)}, "", measure_vocabulary),
    "diagonals": Measure(
        {"diagonal-pearson": Column("Pearson"), "diagonal-spearman": Column("Spearman")},
        "STS-B",
        measure_diagonals,
        diagonal_data,
    ),
    "impact": Measure(
        {"impact-pearson": Column("Pearson"), "impact-spearman": Column("Spearman")},
        "corpus",
        measure_impact,
        impact_data,
    ),
    "tokens": Measure(
        {"tokens": Column("plain", None), "tokens-denoised": Column("denoised", None)}, "", measure_tokens
    ),
    "settings": Measure(
        {name: Column(head, None) for name, head in _SETTINGS.items()}, "", measure_settings, cached=False
    ),
    "picture": Measure({"picture": Column("picture", None)}, "", measure_pictures, cached=False),
    "list": Measure({"list": Column("list", None)}),
}

#: Every column's measure, by the column's name.
MEASURE_OF: dict[str, str] = {column: name for name, measure in MEASURES.items() for column in measure.columns}


def column_named(name: str) -> Column:
    """Return the format of a column."""
    return MEASURES[MEASURE_OF[name]].columns[name]


def data_of(measure: str, context: MeasurementContext) -> MeasureData:
    """Return the data of a measure, loaded the first time."""
    return context.once(measure, lambda: MEASURES[measure].load(context))
