"""The measures of columns, each an entry of ``MEASURES``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from promptcli.data.preparation import Preparation
from promptcli.data.task_table import TaskName
from promptcli.data.tasks import STSTask, load_tasks
from promptcli.encoder.encoder import TorchEncoder
from promptcli.errors import PromptcliError
from promptcli.evaluation import evaluator, statistics
from promptcli.evaluation.scores import Label, Score
from promptcli.notes import note
from promptcli.plugins.papers.classifier import FULL
from promptcli.plugins.papers.contexts import (
    MeasureData,
    MeasurementContext,
    analyze_each,
    check_analyze,
    note_missing,
)
from promptcli.plugins.papers.pictures import draw_picture
from promptcli.plugins.papers.published import Facts, Value
from promptcli.plugins.papers.systems import (
    MeasuredSystem,
    Systems,
    hash_of,
    ranked_heads,
    system_of,
)
from promptcli.plugins.papers.transfer import NAMES, TransferTask
from promptcli.recipe import RECIPES

Cells = dict[str, Facts]  #: column -> its measured value from ``cell``, JSON-ready

#: Columns that show the extreme of several runs, not their mean.
EXTREMES: Mapping[str, Callable[[Sequence[float]], float]] = {"max": max, "min": min}


def cell(value: Value, on: Sequence[str] = (), ci95: tuple[float, float] | None = None) -> Facts:
    """Return a measured value, the names of its data and its 95% interval, JSON-ready."""
    interval = None if ci95 is None else [round(end, 4) for end in ci95]
    return {"value": value, "ci95": interval, "on": list(on)}


def over_runs(runs: Sequence[Cells]) -> Cells:
    """Return the means and standard deviations (n - 1) of several runs, a single run unchanged."""
    if len(runs) == 1:
        return runs[0]
    cells: Cells = {}
    for column, first in runs[0].items():
        values = [run[column]["value"] for run in runs]
        common = {"ci95": None, "on": first["on"], "runs": len(runs)}
        mean = {"value": round(fmean(values), 4), "std": round(stdev(values), 4)}
        cells[column] = mean | common
        if column == "Avg":
            for name, extreme in EXTREMES.items():
                cells[name] = {"value": round(extreme(values), 4), **common}
    return cells


def measure_sts(
    systems: Systems, data: MeasureData, context: MeasurementContext
) -> Iterator[Cells]:
    """Yield each system's score on every available task, and their average."""
    tasks: list[STSTask] = data.content
    scores = evaluator.score_encoders([system.encoder for system in systems], tasks)
    by_system = [scores[start : start + len(tasks)] for start in range(0, len(scores), len(tasks))]
    cosines = []
    for of_task in zip(*by_system, strict=True):
        cosines.append(np.stack([score.cosines for score in of_task]))
    intervals = statistics.average_intervals(cosines, [task.pairs().gold for task in tasks])
    for system, of_system, interval in zip(systems, by_system, intervals, strict=True):
        context.scores[_key_of(system, data)] = of_system
        yield _with_average("Avg", of_system, interval)


def _key_of(system: MeasuredSystem, data: MeasureData) -> tuple[str, ...]:
    return (system.id, *data.facts)


def _with_average(column: str, scores: Sequence[Score], interval: tuple[float, float]) -> Cells:
    """Return the cells of scores, and of their average with its interval, 0 to 1."""
    cells = {}
    for score in scores:
        cells[score.column] = cell(round(score.value, 4), [score.column], score.ci95)
    low, high = interval
    average = round(evaluator.average(scores), 4)
    cells[column] = cell(average, list(cells), (100 * low, 100 * high))
    return cells


def measure_gains(
    systems: Systems, data: MeasureData, context: MeasurementContext
) -> Iterator[Cells]:
    """Yield each system's average minus that of the plain mean of the last layer, with the 95%
    interval of the differences on the same resampled pairs.

    Nothing is yielded for the mean itself, and for word vectors, which have no layer.
    """

    def scores_of(system: MeasuredSystem) -> Sequence[Score]:
        key = _key_of(system, data)
        if key not in context.scores:
            context.scores[key] = evaluator.score_encoders([system.encoder], data.content)
        return context.scores[key]

    if context.backbone.words_only:
        yield from ({} for _ in systems)
        return
    plain = system_of(RECIPES["last-avg"], systems[0].row, context)
    for system in systems:
        if system.id == plain.id:
            yield {}
        else:
            gain = evaluator.compare(scores_of(system), scores_of(plain))
            yield {"gain": cell(round(gain.difference, 4), gain.tasks, gain.ci95)}


def transfer_data(context: MeasurementContext) -> MeasureData:
    """Return the tasks of the data folder; ``content`` lists those that can be scored."""
    if context.data_dir is None:
        note("transfer tasks are read from a folder; give data_dir, SentEval's `downstream`")
        return MeasureData(missing=dict.fromkeys(NAMES, ""))
    loaded = load_tasks(context.data_dir, [TaskName(name) for name in NAMES])
    data = MeasureData({}, dict(loaded.missing), [])
    for task in loaded.tasks:
        assert isinstance(task, TransferTask)
        try:
            task.check(evaluator.EvalSettings())
        except PromptcliError as error:
            data.missing[task.name] = str(error)
            continue
        data.content.append(task)
        data.facts[task.name] = {
            "examples": {split: len(rows) for split, rows in task.splits.items()},
            "sha256": task.sha256(),
            "setting": FULL.caption(),
            "training": FULL.facts(),
        }
    note_missing(data.missing)
    return data


def measure_transfer(
    systems: Systems, data: MeasureData, context: MeasurementContext
) -> Iterator[Cells]:
    """Yield each system's accuracy on every available task, and the average.

    The systems are encoded and scored one after the other.
    """
    for system in systems:
        encoder = system.encoder
        if system.transfer is not None:
            encoder = TorchEncoder(system.transfer, encoder.backbone, encoder.tensors())
        label = Label(context.backbone_name, system.row.label)
        scores = evaluator.score_encoders([encoder], data.content, [label])
        draws = statistics.resampled_mean_of_means([score.by_example for score in scores])
        yield _with_average("transfer", scores, statistics.interval(draws))


_CORPUS = ["corpus"]
_FIRST = 1000  #: number of sentences of the corpus for impact matrices


def measure_pictures(
    systems: Systems, data: MeasureData, context: MeasurementContext
) -> Iterator[Cells]:
    """Draw each system's picture and yield the name of its file."""
    for system in systems:
        yield {"picture": cell(draw_picture(system.row.argument, context))}


def measure_vocabulary(
    systems: Systems, data: MeasureData, context: MeasurementContext
) -> Iterator[Cells]:
    """Yield the mean cosine of all rows of the word-embedding matrix (PromptBERT, table 2)."""
    value = round(context.analyze("vocabulary").value, 4)
    yield from ({"vocabulary": cell(value)} for _ in systems)


def diagonal_data(context: MeasurementContext) -> MeasureData:
    """Return the development pairs, and the source of the sentences for idf."""
    pairs = context.tasks(["STS-B:dev"])
    idf = {"idf": context.corpus_facts} if pairs.facts else {}
    return MeasureData(pairs.facts | idf, pairs.missing)


def measure_diagonals(
    systems: Systems, data: MeasureData, context: MeasurementContext
) -> Iterator[Cells]:
    """Yield the correlation of each head's diagonal with TF-IDF, x 100 (Ditto, table 4)."""
    tfidf = {head["head"]: head["tfidf"] for head in ranked_heads(context)}
    for system in systems:
        assert system.recipe is not None
        head = tfidf[str(system.recipe.parts.pooling.head)]
        yield _correlations("diagonal", head["pearson"], head["spearman"], ["STS-B:dev", "corpus"])


def impact_data(context: MeasurementContext) -> MeasureData:
    """Return the corpus: impacts use its first sentences, idf uses all."""
    check_analyze(context)
    sentences = [sentence for sentence in context.sentences if sentence.strip()][:_FIRST]
    setting = (
        f"impact matrices of {len(sentences):,} sentences from the start, idf of all; the paper's:"
        " 1,000 of PUD"
    )
    facts = {
        "sentences": len(sentences),
        "sha256": context.corpus_facts["sha256"],
        "setting": setting,
    }
    return MeasureData({"corpus": facts}, {}, sentences)


def measure_impact(
    systems: Systems, data: MeasureData, context: MeasurementContext
) -> Iterator[Cells]:
    """Yield the correlation of tokens' impacts with their TF-IDF, x 100 (Ditto, table 3)."""
    settings = {"corpus": context.sentences, "first": _FIRST}
    study = context.analyze("impact-tfidf", data.content, **settings).correlation
    for _ in systems:
        yield _correlations("impact", study.pearson, study.spearman, _CORPUS)


def measure_tokens(
    systems: Systems, data: MeasureData, context: MeasurementContext
) -> Iterator[Cells]:
    """Yield the five most probable tokens at each mask, plain and denoised (PromptBERT, table
    7).
    """
    recipe = systems[0].recipe
    assert recipe is not None
    encoder = TorchEncoder(recipe, context.backbone, {})
    sentences = [system.row.argument for system in systems]
    [guesses_of_all] = analyze_each("mask-tokens", [encoder], sentences)
    for guesses in guesses_of_all:
        yield {
            "tokens": cell([guess.token for guess in guesses.plain]),
            "tokens-denoised": cell([guess.token for guess in guesses.denoised]),
        }


def _correlations(what: str, pearson: float, spearman: float, on: Sequence[str]) -> Cells:
    return {
        f"{what}-pearson": cell(round(100 * pearson, 4), on),
        f"{what}-spearman": cell(round(100 * spearman, 4), on),
    }


@dataclass(frozen=True)
class ColumnFormat:
    """The format of a column."""

    header: str
    decimals: int | None = 2  #: decimals of a number; None: printed unchanged
    mean_of: tuple[str, ...] = ()  #: the columns averaged; those without data are skipped
    is_score: bool = True  #: whether higher is better


@dataclass(frozen=True)
class Measure:
    """One way of measuring some columns."""

    columns: Mapping[str, ColumnFormat]  #: by their names in tables
    takes: str = ""  #: its data, as named in the list of tables
    #: Takes systems that share a model input, the data and the context; yields the cells of each
    #: system in order. None: these columns are not measured.
    run: Callable[[Systems, MeasureData, MeasurementContext], Iterator[Cells]] | None = None
    load: Callable[[MeasurementContext], MeasureData] = lambda context: MeasureData()
    cached: bool = True


def _mean_cosines(
    column: str, head: str, decimals: int, preparation: Preparation, described: str
) -> Measure:
    """Return a measure of sentences' mean cosine (PromptBERT, table 1; Ditto, table 5)."""

    def load(context: MeasurementContext) -> MeasureData:
        check_analyze(context)
        sentences = preparation.apply(context.sentences)
        setting = (
            f"mean cosine over all pairs of {len(sentences):,} sentences {described} of Wikipedia"
        )
        facts = {"sentences": len(sentences), "sha256": hash_of(sentences), "setting": setting}
        return MeasureData({"corpus": facts}, {}, sentences)

    def run(systems: Systems, data: MeasureData, context: MeasurementContext) -> Iterator[Cells]:
        encoders = [system.encoder for system in systems]
        as_they_are = {"first": len(data.content), "lower": False, "words": 0}
        for result in analyze_each("anisotropy", encoders, data.content, **as_they_are):
            yield {column: cell(round(result.value, 4), _CORPUS)}

    return Measure({column: ColumnFormat(head, decimals, is_score=False)}, "corpus", run, load)


_TESTS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
_SETTINGS = {
    "batch_size": "batch",
    "learning_rate": "rate",
    "epochs": "epochs",
    "eval_steps": "eval",
    "max_length": "tokens",
    "prefix_length": "prefix",
    "masked_lm": "MLM",
    "temperature": "tau",
    "hinge_weight": "hinge",
    "hinge_margin": "margin",
    "soft_weight": "lambda",
    "soft_alpha": "alpha",
    "soft_beta": "beta",
    "view-1": "view 1",
    "view-2": "view 2",
    "head": "head",
}
_FROM_THE_START = "from the start, lower-cased, cut to 32 words; the paper's: 100,000"
_AT_RANDOM = "at random, seed 0, as they are; the paper's: 1,000"

#: By name; together they cover every column of the published tables.
MEASURES: dict[str, Measure] = {
    "sts": Measure(
        {
            **{name: ColumnFormat(name) for name in _TESTS},
            **{name: ColumnFormat(name, mean_of=_TESTS) for name in ("Avg", *EXTREMES)},
        },
        "STS12-16, STS-B, SICK-R",
        measure_sts,
        lambda context: context.tasks(_TESTS),
    ),
    "gains": Measure(
        {"gain": ColumnFormat("- last-avg", mean_of=_TESTS)},
        "STS12-16, STS-B, SICK-R",
        measure_gains,
        lambda context: context.tasks(_TESTS),
    ),
    "development": Measure(
        {"STS-B:dev": ColumnFormat("STS-B dev")},
        "STS-B",
        measure_sts,
        lambda context: context.tasks(["STS-B:dev"]),
    ),
    "transfer": Measure(
        {
            **{name: ColumnFormat(name) for name in NAMES},
            "transfer": ColumnFormat("Avg", mean_of=NAMES),
        },
        "transfer tasks",
        measure_transfer,
        transfer_data,
    ),
    "anisotropy": _mean_cosines("anisotropy", "anisotropy", 4, Preparation(), _FROM_THE_START),
    "mean-cosine": _mean_cosines(
        "mean-cosine", "cosine", 3, Preparation(sample=1000, lower=False, words=0), _AT_RANDOM
    ),
    "vocabulary": Measure(
        {"vocabulary": ColumnFormat("cosine", 4, is_score=False)},
        "",
        measure_vocabulary,
        check_analyze,
    ),
    "diagonals": Measure(
        {
            "diagonal-pearson": ColumnFormat("Pearson"),
            "diagonal-spearman": ColumnFormat("Spearman"),
        },
        "STS-B",
        measure_diagonals,
        diagonal_data,
    ),
    "impact": Measure(
        {"impact-pearson": ColumnFormat("Pearson"), "impact-spearman": ColumnFormat("Spearman")},
        "corpus",
        measure_impact,
        impact_data,
    ),
    "tokens": Measure(
        {
            "tokens": ColumnFormat("plain", None, is_score=False),
            "tokens-denoised": ColumnFormat("denoised", None, is_score=False),
        },
        "",
        measure_tokens,
        check_analyze,
    ),
    "settings": Measure(
        {name: ColumnFormat(head, None, is_score=False) for name, head in _SETTINGS.items()}
    ),
    "picture": Measure(
        {"picture": ColumnFormat("picture", None, is_score=False)},
        "",
        measure_pictures,
        check_analyze,
        cached=False,
    ),
    "list": Measure({"list": ColumnFormat("list", None, is_score=False)}),
}

#: Column -> the name of its measure.
MEASURE_OF = {column: name for name, each in MEASURES.items() for column in each.columns}
#: Column -> its format.
COLUMNS = {name: column for each in MEASURES.values() for name, column in each.columns.items()}


def data_of(measure: str, context: MeasurementContext) -> MeasureData:
    """Return the data of a measure, loaded the first time."""
    return context.once(measure, lambda: MEASURES[measure].load(context))
