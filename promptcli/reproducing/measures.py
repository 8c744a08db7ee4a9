"""How columns are measured, each kind by an entry of ``MEASURES``, and a table's overview and
result document.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

import numpy as np

import promptcli
from promptcli.analysis.geometry import (
    Preparation,
    check_enough,
    sentence_anisotropy,
    token_anisotropy,
)
from promptcli.analysis.mask_tokens import predict_mask_tokens
from promptcli.analysis.sentence import check_mask, compare_with_tfidf
from promptcli.data.task_table import TEST_TASKS, TRANSFER_TASKS
from promptcli.data.tasks import STSTask, TransferTask, load_transfer
from promptcli.encoder.encoder import Encoder
from promptcli.encoder.pooling.ditto import KNOWN_HEADS
from promptcli.errors import NotFoundError, PromptcliError
from promptcli.evaluation import evaluator, statistics
from promptcli.evaluation.classifier import DECAYS, FULL, HELD_OUT, SEED
from promptcli.evaluation.evaluator import evaluate
from promptcli.evaluation.scores import Label
from promptcli.recipe import split_spec
from promptcli.reproducing.published import (
    GIVEN_AS,
    NO_MODEL,
    PublishedRow,
    PublishedTable,
    Value,
    find_tables,
    same_backbone,
    short_name,
)
from promptcli.reproducing.systems import (
    PROTOCOL,
    SYSTEMS,
    MeasureData,
    MeasuredSystem,
    MeasurementContext,
    RowKind,
    Systems,
    examples_kind,
    grouped_by_input,
    hash_of,
    ranked_heads,
    recipe_id,
)
from promptcli.training.methods import find_method

Figures = dict[str, dict[str, Any]]  #: column -> its figure

#: Columns that show the extreme of several runs, not their mean.
EXTREMES: Mapping[str, Callable[[Sequence[float]], float]] = {"max": max, "min": min}


def figure(
    value: Value, on: Sequence[str] = (), ci95: tuple[float, float] | None = None
) -> dict[str, Any]:
    """Return a figure, JSON-ready: its value, the names of its data and its 95% interval."""
    return {
        "value": value,
        "ci95": None if ci95 is None else [round(end, 4) for end in ci95],
        "on": list(on),
    }


def rounded(
    value: float, on: Sequence[str] = (), ci95: tuple[float, float] | None = None
) -> dict[str, Any]:
    """Return ``figure`` with the four decimals that results keep."""
    return figure(round(value, 4), on, ci95)


def over_runs(runs: Sequence[Figures]) -> Figures:
    """Return the mean figures of a row's runs with standard deviations (n - 1), those of a single
    run unchanged.
    """
    if len(runs) == 1:
        return runs[0]
    figures: Figures = {}
    for column, first in runs[0].items():
        values = [run[column]["value"] for run in runs]
        common = {"ci95": None, "on": first["on"], "runs": len(runs)}
        figures[column] = {
            "value": round(fmean(values), 4),
            "std": round(stdev(values), 4),
            **common,
        }
        if column == "Avg":
            figures |= {
                name: {"value": round(of(values), 4), **common} for name, of in EXTREMES.items()
            }
    return figures


def measure_sts(
    systems: Systems, data: MeasureData, context: MeasurementContext
) -> Iterator[Figures]:
    """Yield each system's figure on every task with data, and their average."""
    tasks: list[STSTask] = data.content
    scores = evaluate([system.encoder for system in systems], tasks)
    rows = [scores[start : start + len(tasks)] for start in range(0, len(scores), len(tasks))]
    intervals = statistics.average_intervals(
        [np.stack([score.cosines for score in task]) for task in zip(*rows, strict=True)],
        [task.pairs().gold for task in tasks],
    )
    for row, (low, high) in zip(rows, intervals, strict=True):
        figures = {score.column: rounded(score.value, [score.column], score.ci95) for score in row}
        yield {
            **figures,
            "Avg": rounded(evaluator.average(row), list(figures), (100 * low, 100 * high)),
        }


def transfer_data(context: MeasurementContext) -> MeasureData:
    """Return the tasks of the data folder; ``content`` is the list of those that can be scored."""
    if context.data_dir is None:
        why = "it is read from a folder; give `data_dir` FOLDER, SentEval's `downstream`"
        return MeasureData(missing=dict.fromkeys(TRANSFER_TASKS, why))
    loaded = load_transfer(context.data_dir, TRANSFER_TASKS)
    data = MeasureData({}, dict(loaded.missing), [])
    for task in loaded.tasks:
        try:
            evaluator.check_tasks([task], FULL)
        except PromptcliError as error:
            data.missing[task.name] = str(error)
            continue
        data.content.append(task)
        splits = {
            name: [part.first, part.second or [], part.labels.tolist()]
            for name, part in task.splits.items()
        }
        data.facts[task.name] = {
            "examples": {split: len(part) for split, part in task.splits.items()},
            "unexpected": {
                split: list(counts) for split, counts in task.unexpected_counts().items()
            },
            "sha256": hash_of(splits),
            "setting": FULL.caption(SEED),
            "training": {
                **dataclasses.asdict(FULL),
                "weight_decays": list(DECAYS),
                "held_out": HELD_OUT,
                "seed": SEED,
            },
        }
    return data


def measure_transfer(
    systems: Systems, data: MeasureData, context: MeasurementContext
) -> Iterator[Figures]:
    """Yield each system's accuracy on every task with data, and the average, one system after the
    other.
    """
    tasks: list[TransferTask] = data.content
    for system in systems:
        encoder = system.encoder
        if system.transfer is not None:
            encoder = Encoder(system.transfer, encoder.backbone, encoder.tensors())
        embedded = evaluator.embed_tasks(
            [encoder], tasks, [Label(context.backbone_name, system.row.label)]
        )
        scores = evaluator.score_vectors(embedded, tasks)
        figures = {score.task: rounded(score.value, [score.task], score.ci95) for score in scores}
        draws = statistics.resampled_mean_of_means([score.by_example for score in scores])
        low, high = statistics.interval(draws)
        average = rounded(evaluator.average(scores), list(figures), (100 * low, 100 * high))
        yield {**figures, "transfer": average}


_CORPUS = ["corpus"]
_FIRST = 1000  #: number of sentences of the corpus for impact matrices


def measure_vocabulary(
    systems: Systems, data: MeasureData, context: MeasurementContext
) -> Iterator[Figures]:
    """Yield the mean cosine of all rows of the backbone's word-embedding matrix (PromptBERT, table
    2).
    """
    value = token_anisotropy(context.backbone).value
    yield from ({"vocabulary": rounded(value)} for _ in systems)


def diagonal_data(context: MeasurementContext) -> MeasureData:
    """Return the development pairs, and which sentences idf is counted on."""
    pairs = context.tasks(["STS-B:dev"])
    return MeasureData(
        {**pairs.facts, "idf": context.corpus_facts} if pairs.facts else {}, pairs.missing
    )


def measure_diagonals(
    systems: Systems, data: MeasureData, context: MeasurementContext
) -> Iterator[Figures]:
    """Yield the correlation of each head's diagonal with TF-IDF, x 100 over the sentences (Ditto,
    table 4).
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
) -> Iterator[Figures]:
    """Yield the correlation of tokens' impacts with their TF-IDF, x 100 over all sentences (Ditto,
    table 3).
    """
    study = compare_with_tfidf(context.backbone, data.content, context.sentences).correlation
    yield from (_correlations("impact", study.pearson, study.spearman, _CORPUS) for _ in systems)


def measure_tokens(
    systems: Systems, data: MeasureData, context: MeasurementContext
) -> Iterator[Figures]:
    """Yield the five most probable tokens at each sentence's mask, plain and denoised (PromptBERT,
    table 7).
    """
    recipe = systems[0].recipe
    assert recipe is not None
    for guesses in predict_mask_tokens(
        context.backbone, recipe, [system.row.argument for system in systems]
    ):
        lists = {"tokens": guesses.plain, "tokens-denoised": guesses.denoised}
        yield {name: figure([guess.token for guess in best]) for name, best in lists.items()}


def measure_settings(
    systems: Systems, data: MeasureData, context: MeasurementContext
) -> Iterator[Figures]:
    """Yield the settings in promptcli's own tables for each row's columns, as far as they have
    them.
    """
    for system in systems:
        yield {
            name: figure(value)
            for name, value in _settings(system.row).items()
            if name in system.row.published
        }


def _settings(row: PublishedRow) -> dict[str, Any]:
    if row.argument == "ditto":
        return {
            "head": {short_name(name): head for name, head in KNOWN_HEADS.items()}[
                short_name(row.backbone)
            ]
        }
    method = find_method(row.argument, supervised=row.setting == "sup")
    views = method.variant("roberta" if row.backbone.startswith("roberta") else "bert").views
    settings = vars(method.paper[row.backbone])
    return {
        **settings,
        "masked_lm": settings.get("mlm_weight", 0) > 0,
        "view-1": views[0],
        "view-2": views[1],
    }


def _correlations(what: str, pearson: float, spearman: float, on: Sequence[str]) -> Figures:
    return {
        f"{what}-pearson": rounded(100 * pearson, on),
        f"{what}-spearman": rounded(100 * spearman, on),
    }


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
    #: Systems that share a model input, the data, the context -> each one's figures, in order;
    #: None: not measured.
    run: Callable[[Systems, MeasureData, MeasurementContext], Iterator[Figures]] | None = None
    load: Callable[[MeasurementContext], MeasureData] = lambda context: MeasureData()
    cached: bool = True


def _mean_cosines(
    column: str, head: str, decimals: int, preparation: Preparation, described: str
) -> Measure:
    """Return a measure of the mean cosine of sentence vectors (PromptBERT, table 1; Ditto, table
    5).
    """

    def load(context: MeasurementContext) -> MeasureData:
        sentences = preparation.apply(context.sentences)
        check_enough(len(sentences))
        setting = (
            f"mean cosine over all pairs of {len(sentences):,} sentences {described} of Wikipedia"
        )
        facts = {"sentences": len(sentences), "sha256": hash_of(sentences), "setting": setting}
        return MeasureData({"corpus": facts}, {}, sentences)

    def run(systems: Systems, data: MeasureData, context: MeasurementContext) -> Iterator[Figures]:
        for result in sentence_anisotropy([system.encoder for system in systems], data.content):
            yield {column: rounded(result.value, _CORPUS)}

    return Measure({column: Column(head, decimals)}, "corpus", run, load)


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
        {"STS-B:dev": Column("STS-B dev")},
        "STS-B",
        measure_sts,
        lambda context: context.tasks(["STS-B:dev"]),
    ),
    "transfer": Measure(
        {
            **{name: Column(name) for name in TRANSFER_TASKS},
            "transfer": Column("Avg", mean_of=TRANSFER_TASKS),
        },
        "transfer tasks",
        measure_transfer,
        transfer_data,
    ),
    "anisotropy": _mean_cosines("anisotropy", "anisotropy", 4, Preparation(), _FROM_THE_START),
    "mean-cosine": _mean_cosines(
        "mean-cosine", "cosine", 3, Preparation(sample=1000, lower=False, words=0), _AT_RANDOM
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
        {"tokens": Column("plain", None), "tokens-denoised": Column("denoised", None)},
        "",
        measure_tokens,
    ),
    "settings": Measure(
        {name: Column(head, None) for name, head in _SETTINGS.items()},
        "",
        measure_settings,
        cached=False,
    ),
    "picture": Measure({"picture": Column("picture", None)}),
    "list": Measure({"list": Column("list", None)}),
}

#: By a column's name, its measure and its format.
MEASURE_OF: dict[str, str] = {
    column: name for name, measure in MEASURES.items() for column in measure.columns
}
COLUMNS: dict[str, Column] = {
    name: column for measure in MEASURES.values() for name, column in measure.columns.items()
}


def data_of(measure: str, context: MeasurementContext) -> MeasureData:
    """Return the data of a measure, loaded the first time."""
    return context.once(measure, lambda: MEASURES[measure].load(context))


@dataclass
class PlannedRow:
    """One row of a table, its obstacles and its figures."""

    row: PublishedRow
    lacks: dict[str, str]  #: column that cannot be measured -> why
    system: MeasuredSystem | None = None  #: once it is built
    figures: Figures = field(default_factory=dict)

    @property
    def kind(self) -> RowKind:
        return SYSTEMS[self.row.kind]


def plan_table(table: PublishedTable, context: MeasurementContext) -> list[PlannedRow]:
    """Return the rows with the obstacles of each column.

    A published backbone is measured on its own rows only.
    """
    columns = {
        column: why
        for column in table.columns
        if (why := _lacks_measure(column, context)) is not None
    }
    reasons = [(row, _lacks_row(row, table, context)) for row in table.rows]
    return [
        PlannedRow(row, dict.fromkeys(table.columns, why) if why else dict(columns))
        for row, why in reasons
    ]


def wanted_tables(
    names: str | Sequence[str], backbone: str | None, default: str, *, paper: bool, train: bool
) -> list[tuple[PublishedTable, str]]:
    """Return tables with their backbones: the given one, with ``paper`` the published ones, else
    the default.
    """
    tables = find_tables(names)
    if backbone is not None or not paper:
        return [(table, backbone or default) for table in tables]
    pairs = []
    for table in tables:
        rows = (
            row
            for row in table.rows
            if row.backbone != NO_MODEL and SYSTEMS[row.kind].on_backbone(train=train)
        )
        pairs += [
            (table, name) for name in dict.fromkeys(row.backbone for row in rows) or [default]
        ]
    return pairs


def _lacks_row(row: PublishedRow, table: PublishedTable, context: MeasurementContext) -> str | None:
    kind = SYSTEMS[row.kind]
    if kind.make is None or (kind.trains and not context.seeds):
        return kind.absent.format(row.argument)
    if kind.backbone == "none":
        return kind.lacks(row, context)
    own = same_backbone(row.backbone, context.backbone_name)
    on_published = any(same_backbone(name, context.backbone_name) for name in table.backbones)
    if not own and (on_published or kind.backbone == "own"):
        given_as = f"{GIVEN_AS[row.backbone]}FILE" if row.backbone in GIVEN_AS else row.backbone
        return f"needs backbone {given_as}"
    try:
        _ = context.backbone
        return kind.lacks(row, context)
    except NotFoundError:
        return f"no weights here: {context.backbone_name}"
    except PromptcliError as error:
        return str(error)


def _lacks_measure(column: str, context: MeasurementContext) -> str | None:
    if column in EXTREMES and len(context.seeds) < 2:
        return "several runs: ask for them by `train` and `seeds`"
    measure = MEASURE_OF[column]
    if MEASURES[measure].run is None:
        return "no figure"
    try:
        data = data_of(measure, context)
    except PromptcliError as error:
        return str(error)
    if data.facts or not data.missing:
        return None if column not in data.missing else f"no data: {column}"
    return f"no data: {', '.join(data.missing)}"


def overview(table: PublishedTable, context: MeasurementContext) -> dict[str, Any]:
    """Return a table's needs and how many figures can be measured in a context, JSON-ready.

    Nothing is measured.
    """
    lacks = grouped(
        reason for planned in plan_table(table, context) for reason in planned.lacks.values()
    )
    figures = len(table.rows) * len(table.columns)
    return {
        "table": table.name,
        "title": table.title,
        "rows": len(table.rows),
        "figures": figures,
        "now": figures - sum(lacks.values()),
        "backbones": table.backbones,
        "data": list(
            filter(
                None, dict.fromkeys(MEASURES[MEASURE_OF[column]].takes for column in table.columns)
            )
        ),
        "time": [
            time
            for time in dict.fromkeys(SYSTEMS[row.kind].time for row in table.rows)
            if time != "-"
        ],
        "lacks": lacks,
    }


def grouped(reasons: Iterable[str]) -> dict[str, int]:
    """Return reasons with their counts.

    ``REASON: one`` and ``REASON: two`` become ``REASON: one, two``.
    """
    details: dict[str, list[str]] = {}
    for reason in reasons:
        start, _, what = reason.partition(": ")
        details.setdefault(start, []).append(what)
    named = {
        start: ", ".join(dict.fromkeys(filter(None, names))) for start, names in details.items()
    }
    return {
        f"{start}: {names}" if names else start: len(details[start])
        for start, names in named.items()
    }


#: keys of a system's identity that name its training and fitting text
_TEXTS = {
    "corpus",
    "triplets",
    "examples",
}


def measure_table(table: PublishedTable, context: MeasurementContext) -> dict[str, Any]:
    """Return the result document, JSON-ready: every row's published and measured figures, or why it
    is not measured.
    """
    rows = plan_table(table, context)
    on_backbone = any(planned.kind.on_backbone(train=bool(context.seeds)) for planned in rows)
    for row in rows:
        if row.kind.make is not None and len(row.lacks) < len(table.columns):
            try:
                row.system = row.kind.make(row.row, context)
            except PromptcliError as error:
                row.lacks.update(dict.fromkeys(table.columns, str(error)))
    data: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for measure in dict.fromkeys(MEASURE_OF[column] for column in table.columns):
        columns = [column for column in table.columns if MEASURE_OF[column] == measure]
        able = [
            (row, row.system)
            for row in rows
            if row.system and any(name not in row.lacks for name in columns)
        ]
        if able:
            data |= data_of(measure, context).facts
            missing |= data_of(measure, context).missing
            figures = iter(
                _measure(measure, [run for _, system in able for run in system.runs], context)
            )
            for row, system in able:
                row.figures |= over_runs([next(figures) for _ in system.runs])
    means = {column: COLUMNS[column].mean_of for column in table.columns if COLUMNS[column].mean_of}
    present = {column: [name for name in names if name in data] for column, names in means.items()}
    trained = [row for row in rows if row.kind.trains and row.figures]
    return {
        "promptcli": promptcli.__version__,
        "table": table.name,
        "title": table.title,
        "columns": list(table.columns),
        "backbone": context.backbone_facts if on_backbone else None,
        "protocol": PROTOCOL,
        "seeds": {
            "bootstrap": statistics.SEED,
            **({"training": list(context.seeds)} if trained else {}),
        },
        "resamples": statistics.RESAMPLES,
        "data": data,
        "missing": list(missing),
        **_texts(rows, trained, context),
        "rows": [_row(row, context, present) for row in rows],
    }


def _measure(name: str, systems: Systems, context: MeasurementContext) -> list[Figures]:
    """Return each system's figures.

    Equal systems are measured once, known figures come from the cache.
    """
    measure, data = MEASURES[name], data_of(name, context)
    assert measure.run is not None
    keys = [{"measure": name, **system.identity, "data": data.facts} for system in systems]
    hashes = [hash_of(key) for key in keys]
    known: dict[str, Figures | None] = {
        digest: context.cache.get(key) if measure.cached else None
        for digest, key in zip(hashes, keys, strict=True)
    }
    todo = [systems[hashes.index(digest)] for digest, figures in known.items() if figures is None]
    for members in grouped_by_input(todo):
        for system, figures in zip(members, measure.run(members, data, context), strict=True):
            number = systems.index(system)
            known[hashes[number]] = kept = {
                name: row for name, row in figures.items() if name in measure.columns
            }
            if measure.cached:
                context.cache.put(keys[number], kept)
    return [known[digest] or {} for digest in hashes]


def _texts(
    rows: Sequence[PlannedRow], trained: Sequence[PlannedRow], context: MeasurementContext
) -> dict[str, Any]:
    """Return the facts of the corpus and of all examples that something was fitted, trained or
    counted on.
    """
    used = {examples_kind(planned.row, context) for planned in trained}
    used |= {
        text
        for row in rows
        if row.system is not None
        for text in _TEXTS & row.system.identity.keys()
    }
    counted = any("corpus" in figure["on"] for row in rows for figure in row.figures.values())
    return {
        "corpus": context.corpus_facts if "corpus" in used or counted else None,
        "triplets": context.example_facts("triplets") if "triplets" in used else None,
        **{
            kind: context.example_facts(kind)
            for kind in ("labelled", "definitions")
            if kind in used
        },
    }


def _row(
    planned: PlannedRow, context: MeasurementContext, present: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Return one row of the document; ``present``: column of an average -> its tasks with data."""
    row, system = planned.row, planned.system
    on_none = planned.kind.make is not None and planned.kind.backbone == "none"
    own = on_none or same_backbone(row.backbone, context.backbone_name)
    published = {
        "backbone": row.backbone,
        "own": own,
        "figures": dict(row.published),
        "std": dict(row.std),
    }
    same = {column: _same_tasks(row, column, names) for column, names in present.items()}
    for mean in (mean for mean in same.values() if mean is not None):
        published["average_of_same_tasks"] = mean
    recipe = None if system is None else system.recipe
    return {
        "method": row.method,
        "setting": row.setting,
        "run": row.run,
        "note": row.note,
        "recipe_id": None if system is None or recipe is None else recipe_id(system),
        "recipe": None if recipe is None else {**recipe.to_dict(), "backbone": None},
        "fitted": system is not None and bool(_TEXTS & system.identity.keys()),
        "fitted_on": None if system is None else _fitted_on(system, context),
        "head": None if recipe is None else split_spec(recipe.pooling.partition("/ditto")[2])[1],
        "published": published,
        "figures": planned.figures,
        "difference": _differences(row, planned.figures, same) if own else {},
        "not_measured": planned.lacks,
    }


def _fitted_on(system: MeasuredSystem, context: MeasurementContext) -> str | None:
    """Return the name of the text that a system was fitted or trained on."""
    if "corpus" in system.identity:
        return str(context.corpus_facts["name"])
    if "triplets" in system.identity:
        return str(context.example_facts("triplets")["name"])
    if "examples" in system.identity:
        return str(context.example_facts(examples_kind(system.row, context))["name"])
    return None


def _same_tasks(row: PublishedRow, column: str, present: Sequence[str]) -> float | None:
    """Return the published average of the tasks with data, unless these are all or a figure is
    unknown.
    """
    values = [row.published[task] for task in present if _is_number(row.published.get(task))]
    fewer = 0 < len(values) == len(present) < len(COLUMNS[column].mean_of)
    return round(float(np.mean(values)), 2) if fewer else None  # type: ignore[arg-type]


def _differences(
    row: PublishedRow, figures: Figures, same_tasks: Mapping[str, float | None]
) -> dict[str, float]:
    """Return measured minus published.

    An average over fewer tasks is compared with the same tasks' or not at all.
    """
    result: dict[str, float] = {}
    for column, published in row.published.items():
        if column in figures:
            fewer = len(figures[column]["on"]) < len(COLUMNS[column].mean_of)
            value, against = figures[column]["value"], same_tasks[column] if fewer else published
            if _is_number(value) and _is_number(against):
                result[column] = round(float(value) - float(against), 6)  # type: ignore[arg-type]
    return result


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
