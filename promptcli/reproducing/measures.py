"""How a column is measured. A new kind of column is one entry of ``MEASURES``; what runs is in a module of its own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from promptcli.data.task_table import TEST_TASKS, TRANSFER_TASKS
from promptcli.reproducing.analysis_columns import impact_sources, measure_impact
from promptcli.reproducing.context import MeasureData, MeasurementContext
from promptcli.reproducing.cosine_columns import measure_sentences, measure_vocabulary, sentence_sources
from promptcli.reproducing.diagonal_columns import diagonal_sources, measure_diagonals
from promptcli.reproducing.figures import EXTREMES, Figure
from promptcli.reproducing.measured_system import MeasuredSystem
from promptcli.reproducing.picture_columns import measure_pictures
from promptcli.reproducing.settings_columns import measure_settings
from promptcli.reproducing.task_columns import measure_sts
from promptcli.reproducing.token_columns import measure_tokens
from promptcli.reproducing.transfer_columns import measure_transfer, transfer_sources

Measured = Iterator[tuple[MeasuredSystem, Mapping[str, Figure]]]


@dataclass(frozen=True)
class Column:
    """How a column is printed.

    Attributes:
        head: Above it.
        decimals: Of a number; None prints it as it is.
        mean_of: The columns that it is the mean of, as far as their data are there.
    """

    head: str
    decimals: int | None = 2
    mean_of: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measure:
    """One way of measuring some columns.

    Attributes:
        columns: By the name that tables use.
        data: What it takes, for the list of tables.
        run: Systems with the same figures missing, the data, the context -> each system's figures as soon as they are
            known; None while it is not built.
        load: Gets the data.
        absent: Why ``run`` is None, as ``REASON: what``.
        kept: Figures are cached; not what is only looked up.
    """

    columns: Mapping[str, Column]
    data: str = ""
    run: Callable[[Sequence[MeasuredSystem], MeasureData, MeasurementContext], Measured] | None = None
    load: Callable[[MeasurementContext], MeasureData] = lambda context: MeasureData()
    absent: str = ""
    kept: bool = True


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

#: By name; every column of the published tables is in one of them.
MEASURES: dict[str, Measure] = {
    "sts": Measure(
        {
            **{name: Column(name) for name in _TESTS},
            "Avg": Column("Avg", mean_of=_TESTS),
            **{name: Column(name, mean_of=_TESTS) for name in EXTREMES},
        },
        "STS12-16, STS-B, SICK-R",
        measure_sts,
        lambda context: context.tasks(_TESTS),
    ),
    "development": Measure(
        {"STS-B:dev": Column("STS-B dev")}, "STS-B", measure_sts, lambda context: context.tasks(["STS-B:dev"])
    ),
    "diagonals": Measure(
        {"diagonal-pearson": Column("Pearson"), "diagonal-spearman": Column("Spearman")},
        "STS-B",
        measure_diagonals,
        diagonal_sources,
    ),
    "tokens": Measure(
        {"tokens": Column("plain", None), "tokens-denoised": Column("denoised", None)}, "", measure_tokens
    ),
    "settings": Measure(
        {name: Column(head, None) for name, head in _SETTINGS.items()}, "", measure_settings, kept=False
    ),
    "transfer": Measure(
        {**{name: Column(name) for name in TRANSFER_TASKS}, "transfer": Column("Avg", mean_of=TRANSFER_TASKS)},
        "transfer tasks",
        measure_transfer,
        transfer_sources,
    ),
    "anisotropy": Measure(
        {"anisotropy": Column("anisotropy", 4)}, "corpus", measure_sentences, sentence_sources("anisotropy")
    ),
    "mean-cosine": Measure(
        {"mean-cosine": Column("cosine", 3)}, "corpus", measure_sentences, sentence_sources("mean-cosine")
    ),
    "vocabulary": Measure({"vocabulary": Column("cosine", 4)}, "", measure_vocabulary),
    "impact": Measure(
        {"impact-pearson": Column("Pearson"), "impact-spearman": Column("Spearman")},
        "corpus",
        measure_impact,
        impact_sources,
    ),
    "picture": Measure({"picture": Column("picture", None)}, "", measure_pictures, kept=False),
    "list": Measure({"list": Column("list", None)}),
}

#: Every column's measure, by the column's name.
MEASURE_OF: dict[str, str] = {column: name for name, measure in MEASURES.items() for column in measure.columns}


def column_named(name: str) -> Column:
    """Return how a column is printed."""
    return MEASURES[MEASURE_OF[name]].columns[name]
