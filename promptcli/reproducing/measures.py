"""How columns are measured. A new kind of column is one entry of ``MEASURES`` and the function that it names."""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from promptcli.analysis.anisotropy import Preparation
from promptcli.data.task_table import TEST_TASKS, TRANSFER_TASKS
from promptcli.reproducing import analysis_columns as analyses
from promptcli.reproducing import task_columns as tasks
from promptcli.reproducing.figures import EXTREMES, Figures
from promptcli.reproducing.measured_system import Systems
from promptcli.reproducing.measurement_context import MeasureData, MeasurementContext


@dataclass(frozen=True)
class Column:
    """How a column is printed."""

    head: str
    decimals: int | None = 2  #: of a number; None prints it as it is
    mean_of: tuple[str, ...] = ()  #: the columns that it is the mean of, as far as their data are there


@dataclass(frozen=True)
class Measure:
    """One way of measuring some columns."""

    columns: Mapping[str, Column]  #: by the name that tables use
    takes: str = ""  #: its data, for the list of tables
    #: Systems that share a model input, the data, the context -> each one's figures, in order, as soon as they are
    #: known; None for what is only looked at.
    run: Callable[[Systems, MeasureData, MeasurementContext], Iterator[Figures]] | None = None
    load: Callable[[MeasurementContext], MeasureData] = lambda context: MeasureData()
    cached: bool = True  #: not what is only looked up


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
        tasks.measure_sts_average,
        lambda context: context.tasks(_TESTS),
    ),
    "development": Measure(
        {"STS-B:dev": Column("STS-B dev")}, "STS-B", tasks.measure_sts, lambda context: context.tasks(["STS-B:dev"])
    ),
    "transfer": Measure(
        {**{name: Column(name) for name in TRANSFER_TASKS}, "transfer": Column("Avg", mean_of=TRANSFER_TASKS)},
        "transfer tasks",
        tasks.measure_transfer,
        tasks.transfer_data,
    ),
    "anisotropy": Measure(
        {"anisotropy": Column("anisotropy", 4)},
        "corpus",
        functools.partial(analyses.measure_cosines, column="anisotropy"),
        analyses.corpus_sentences(Preparation(), _FROM_THE_START),
    ),
    "mean-cosine": Measure(
        {"mean-cosine": Column("cosine", 3)},
        "corpus",
        functools.partial(analyses.measure_cosines, column="mean-cosine"),
        analyses.corpus_sentences(Preparation(sample=1000, lower=False, words=None), _AT_RANDOM),
    ),
    "vocabulary": Measure({"vocabulary": Column("cosine", 4)}, "", analyses.measure_vocabulary),
    "diagonals": Measure(
        {"diagonal-pearson": Column("Pearson"), "diagonal-spearman": Column("Spearman")},
        "STS-B",
        analyses.measure_diagonals,
        analyses.diagonal_data,
    ),
    "impact": Measure(
        {"impact-pearson": Column("Pearson"), "impact-spearman": Column("Spearman")},
        "corpus",
        analyses.measure_impact,
        analyses.impact_data,
    ),
    "tokens": Measure(
        {"tokens": Column("plain", None), "tokens-denoised": Column("denoised", None)}, "", analyses.measure_tokens
    ),
    "settings": Measure(
        {name: Column(head, None) for name, head in _SETTINGS.items()}, "", analyses.measure_settings, cached=False
    ),
    "picture": Measure({"picture": Column("picture", None)}, "", analyses.measure_pictures, cached=False),
    "list": Measure({"list": Column("list", None)}),
}

#: Every column's measure, by the column's name.
MEASURE_OF: dict[str, str] = {column: name for name, measure in MEASURES.items() for column in measure.columns}


def column_named(name: str) -> Column:
    """Return how a column is printed."""
    return MEASURES[MEASURE_OF[name]].columns[name]


def data_of(measure: str, context: MeasurementContext) -> MeasureData:
    """Return the data of a measure, loaded the first time."""
    return context.once(measure, lambda: MEASURES[measure].load(context))
