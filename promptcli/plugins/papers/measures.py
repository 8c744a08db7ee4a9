"""How the columns of the tables are measured: the entries of ``MEASURES``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from promptcli.data.preparation import Preparation
from promptcli.data.task_table import TaskName
from promptcli.data.tasks import STSTask, load_tasks
from promptcli.encoder.encoder import TorchEncoder
from promptcli.errors import PromptcliError, UsageError
from promptcli.evaluation import evaluator, statistics
from promptcli.evaluation.scores import Score
from promptcli.notes import note
from promptcli.plugins.papers.classifier import FULL
from promptcli.plugins.papers.contexts import (
    MeasureData,
    MeasurementContext,
    analyze_each,
    note_missing,
)
from promptcli.plugins.papers.pictures import draw_picture
from promptcli.plugins.papers.published import Facts, Value
from promptcli.plugins.papers.systems import MeasuredSystem, hash_of, ranked_heads, system_of
from promptcli.plugins.papers.transfer import NAMES, TransferTask
from promptcli.recipe import RECIPES

Systems = Sequence[MeasuredSystem]
Cells = dict[str, Facts]  #: column -> its measured value, as ``cell`` returns it

#: Columns of the extreme average of several runs.
EXTREMES: Mapping[str, Callable[[Sequence[float]], float]] = {"max": max, "min": min}


def cell(value: Value, on: Sequence[str] = (), ci95: tuple[float, float] | None = None) -> Facts:
    """Return a measured value, the names of its data and its 95% interval, JSON-ready."""
    interval = None if ci95 is None else [round(bound, 4) for bound in ci95]
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
    """Yield each system's score on every task that has data, and the average."""
    tasks: list[STSTask] = data.content
    scores = evaluator.score_encoders([system.encoder for system in systems], tasks)
    by_system = [scores[start : start + len(tasks)] for start in range(0, len(scores), len(tasks))]
    cosines = []
    for task_scores in zip(*by_system, strict=True):
        cosines.append(np.stack([score.cosines for score in task_scores]))
    intervals = statistics.average_intervals(cosines, [task.pairs().gold for task in tasks])
    for system, system_scores, interval in zip(systems, by_system, intervals, strict=True):
        context.scores[_key_of(system, data)] = system_scores
        yield _with_average("Avg", system_scores, interval)


def _key_of(system: MeasuredSystem, data: MeasureData) -> tuple[str, ...]:
    return (system.id, *data.facts)


def _with_average(column: str, scores: Sequence[Score], interval: tuple[float, float]) -> Cells:
    """Return the cells of scores, and in a further column their average.

    ``interval`` is that of the average, as shares of 1.
    """
    cells = {}
    for score in scores:
        cells[score.column] = cell(round(score.value, 4), [score.column], score.ci95)
    low, high = interval
    average = round(evaluator.mean_of_rounded(scores), 4)
    cells[column] = cell(average, list(cells), (100 * low, 100 * high))
    return cells


def measure_gains(
    systems: Systems, data: MeasureData, context: MeasurementContext
) -> Iterator[Cells]:
    """Yield the gain of each system over the plain mean of the last layer: the difference of the
    averages, with the 95% interval on the same resampled pairs.

    The mean itself has no gain, and neither have word vectors, which have no layers.
    """

    def scores_of(system: MeasuredSystem) -> Sequence[Score]:
        key = _key_of(system, data)
        if key not in context.scores:
            context.scores[key] = evaluator.score_encoders([system.encoder], data.content)
        return context.scores[key]

    if context.backbone.is_word_table:
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
    """Return the transfer tasks; ``content`` is the list of those that can be scored."""
    if context.data_dir is None:
        note("transfer tasks are read from a folder; data_dir=FOLDER names SentEval's `downstream`")
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
    """Yield each system's accuracy on every task that has data, and the average."""
    for system in systems:
        encoder = system.encoder
        if system.transfer is not None:
            encoder = TorchEncoder(system.transfer, encoder.backbone, encoder.tensors())
        scores = evaluator.score_encoders([encoder], data.content)
        means = statistics.resampled_mean_of_means([score.by_example for score in scores])
        yield _with_average("transfer", scores, statistics.percentile_interval(means))


_CORPUS = ["corpus"]  #: names the data of cells
_IMPACT_SENTENCES = 1000  #: number of sentences of the corpus that get impact matrices


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
    """Return the development pairs, and the corpus on which idf is counted."""
    pairs = context.tasks(["STS-B:dev"])
    idf = {"idf": context.corpus_facts} if pairs.facts else {}
    return MeasureData(pairs.facts | idf, pairs.missing)


def measure_diagonals(
    systems: Systems, data: MeasureData, context: MeasurementContext
) -> Iterator[Cells]:
    """Yield the correlation of each head's diagonal with TF-IDF, x 100 (Ditto, table 4)."""
    tfidf_of = {head["head"]: head["tfidf"] for head in ranked_heads(context)}
    for system in systems:
        assert system.recipe is not None
        tfidf = tfidf_of[str(system.recipe.parts.pooling.head)]
        names = ["STS-B:dev", "corpus"]
        yield _correlations("diagonal", tfidf["pearson"], tfidf["spearman"], names)


def impact_data(context: MeasurementContext) -> MeasureData:
    """Return the corpus; ``content`` are the sentences that get impact matrices."""
    sentences = [sentence for sentence in context.sentences if sentence.strip()][:_IMPACT_SENTENCES]
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
    settings = {"corpus": context.sentences, "first": _IMPACT_SENTENCES}
    correlation = context.analyze("impact-tfidf", data.content, **settings).correlation
    for _ in systems:
        yield _correlations("impact", correlation.pearson, correlation.spearman, _CORPUS)


def measure_tokens(
    systems: Systems, data: MeasureData, context: MeasurementContext
) -> Iterator[Cells]:
    """Yield the five most probable tokens at the mask, plain and denoised (PromptBERT, table 7)."""
    recipe = systems[0].recipe
    assert recipe is not None
    encoder = TorchEncoder(recipe, context.backbone, {})
    sentences = [system.row.argument for system in systems]
    [predictions] = analyze_each("mask-tokens", [encoder], sentences)
    for prediction in predictions:
        yield {
            "tokens": cell([guess.token for guess in prediction.plain]),
            "tokens-denoised": cell([guess.token for guess in prediction.denoised]),
        }


def _correlations(prefix: str, pearson: float, spearman: float, on: Sequence[str]) -> Cells:
    return {
        f"{prefix}-pearson": cell(round(100 * pearson, 4), on),
        f"{prefix}-spearman": cell(round(100 * spearman, 4), on),
    }


@dataclass(frozen=True)
class ColumnFormat:
    """How a column is shown."""

    header: str
    decimals: int | None = 2  #: of a number; None: values are shown unchanged
    mean_of: tuple[str, ...] = ()  #: the columns of an average; those without data do not count
    is_score: bool = True  #: of a number: whether a higher value is better


@dataclass(frozen=True)
class Measure:
    """A way of measuring some columns."""

    columns: Mapping[str, ColumnFormat]  #: by their names in the tables
    data: str = ""  #: the name of its data in the list of tables
    #: takes systems that share a model input, the data and the context; yields the cells of each
    #: system in order; None: these columns are not measured
    run: Callable[[Systems, MeasureData, MeasurementContext], Iterator[Cells]] | None = None
    load: Callable[[MeasurementContext], MeasureData] = lambda context: MeasureData()
    needs_analyze: bool = False  #: whether it calls the plug-in ``analyze``
    is_cached: bool = True


def _mean_cosine(
    column: str, header: str, decimals: int, preparation: Preparation, description: str
) -> Measure:
    """Return a measure of the mean cosine of sentences (PromptBERT, table 1; Ditto, table 5)."""

    def load(context: MeasurementContext) -> MeasureData:
        sentences = preparation.apply(context.sentences)
        setting = (
            f"mean cosine over all pairs of {len(sentences):,} sentences {description} of Wikipedia"
        )
        facts = {"sentences": len(sentences), "sha256": hash_of(sentences), "setting": setting}
        return MeasureData({"corpus": facts}, {}, sentences)

    def run(systems: Systems, data: MeasureData, context: MeasurementContext) -> Iterator[Cells]:
        encoders = [system.encoder for system in systems]
        unchanged = {"first": len(data.content), "lower": False, "words": 0}
        for result in analyze_each("anisotropy", encoders, data.content, **unchanged):
            yield {column: cell(round(result.value, 4), _CORPUS)}

    columns = {column: ColumnFormat(header, decimals, is_score=False)}
    return Measure(columns, "corpus", run, load, needs_analyze=True)


_STS_COLUMNS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
#: Columns of settings, which are not measured -> their headers.
_SETTING_HEADERS = {
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

#: The measures by name; together they have every column of the published tables.
MEASURES: dict[str, Measure] = {
    "sts": Measure(
        {
            **{name: ColumnFormat(name) for name in _STS_COLUMNS},
            **{name: ColumnFormat(name, mean_of=_STS_COLUMNS) for name in ("Avg", *EXTREMES)},
        },
        "STS12-16, STS-B, SICK-R",
        measure_sts,
        lambda context: context.tasks(_STS_COLUMNS),
    ),
    "gains": Measure(
        {"gain": ColumnFormat("- last-avg", mean_of=_STS_COLUMNS)},
        "STS12-16, STS-B, SICK-R",
        measure_gains,
        lambda context: context.tasks(_STS_COLUMNS),
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
    "anisotropy": _mean_cosine(
        "anisotropy",
        "anisotropy",
        4,
        Preparation(),
        "from the start, lower-cased, cut to 32 words; the paper's: 100,000",
    ),
    "mean-cosine": _mean_cosine(
        "mean-cosine",
        "cosine",
        3,
        Preparation(sample=1000, lower=False, words=0),
        "at random, seed 0, as they are; the paper's: 1,000",
    ),
    "vocabulary": Measure(
        {"vocabulary": ColumnFormat("cosine", 4, is_score=False)},
        run=measure_vocabulary,
        needs_analyze=True,
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
        needs_analyze=True,
    ),
    "tokens": Measure(
        {
            "tokens": ColumnFormat("plain", None),
            "tokens-denoised": ColumnFormat("denoised", None),
        },
        run=measure_tokens,
        needs_analyze=True,
    ),
    "settings": Measure(
        {name: ColumnFormat(header, None) for name, header in _SETTING_HEADERS.items()}
    ),
    "picture": Measure(
        {"picture": ColumnFormat("picture", None)},
        run=measure_pictures,
        needs_analyze=True,
        is_cached=False,
    ),
    "list": Measure({"list": ColumnFormat("list", None)}),
}

#: Column -> the name of its measure.
MEASURE_OF = {column: name for name, measure in MEASURES.items() for column in measure.columns}
#: Column -> its format.
COLUMNS = {
    column: format for measure in MEASURES.values() for column, format in measure.columns.items()
}


def data_of(name: str, context: MeasurementContext) -> MeasureData:
    """Return the data of a measure, which are loaded the first time.

    Raises:
        UsageError: The measure needs the plug-in ``analyze``, which is not installed.
    """
    measure = MEASURES[name]
    if measure.needs_analyze:
        try:
            from promptcli import analyze  # noqa: F401
        except ImportError:
            raise UsageError("this needs the plug-in analyze, which is not installed") from None
    return context.once(name, lambda: measure.load(context))
