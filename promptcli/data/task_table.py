"""The table of tasks, each with data and a metric: STS, transfer, and tasks on the user's files.

The pairs and the aggregation of STS follow SentEval's `sts.py` as the papers use it: all subsets of
a year are scored together ("all"), STS-B is scored on its test (or dev) pairs, and no regressor is
trained.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from promptcli.data import senteval
from promptcli.data.cells import finite_number
from promptcli.data.demo import TEXT, read_demo
from promptcli.data.hub_sets import HubSet
from promptcli.data.input_files import COMPRESSED, split_columns
from promptcli.data.layouts import GRADED_PAIRS, ColumnChoice
from promptcli.data.retrieval_sets import is_retrieval_folder, read_retrieval_folder
from promptcli.data.rows import TABLES, open_rows
from promptcli.data.senteval import GoldRow, GoldRows
from promptcli.errors import NotFoundError, UsageError, look_up, with_count
from promptcli.extensions import Table
from promptcli.notes import note

#: The demo pairs and sentences of the package.
DEMO_TASK = "demo"
#: The columns of a retrieval set.
RETRIEVAL = ("query", "document", "grade")


def is_pair_file(word: str) -> bool:
    """Return whether a word names a file of pairs rather than a task; refuse a missing file."""
    path = Path(split_columns(word)[0])
    looks_like_file = len(path.parts) > 1 or path.suffix.lower() in (*TABLES, *COMPRESSED)
    if looks_like_file and not path.exists():
        raise NotFoundError(
            f"no task and no file {str(path)!r}; give a task, or graded pairs: FILE or"
            " FILE:A,B,SCORE"
        )
    return looks_like_file or (path.exists() and not path.is_dir())


def read_graded_pairs(path: str | Path) -> list[GoldRow]:
    """Return the pairs of a file (``FILE:A,B,C``) and their scores, on any scale.

    Empty rows are left out. Rows with an empty sentence are left out with a note.
    """
    all_rows = read_rows(path, GRADED_PAIRS)
    rows = [row for row in all_rows if all(text and text.strip() for text in row[:2])]
    if len(rows) < len(all_rows):
        count = with_count(len(all_rows) - len(rows), "row")
        note(f"{path}: {count} with an empty sentence left out")
    if not rows:
        raise UsageError(f"{path} holds no pairs; give rows of {', '.join(GRADED_PAIRS)}")
    scores = {score for _, _, score in rows}
    if len(scores) < 2:
        raise UsageError(
            f"{path}: every score is {scores.pop():g} ({with_count(len(rows), 'pair')}); a"
            " correlation needs at least two different scores"
        )
    return rows


def read_rows(
    path: str | Path, layout: tuple[str, ...], *, csv: Mapping[str, Any] | None = None
) -> list[GoldRow]:
    """Return the rows of a file that are not empty, as two texts and a number."""
    pairs = list[GoldRow]()
    with open_rows(path, ColumnChoice(layouts=(layout,), remedy=""), csv=csv) as rows:
        for number, row in rows.numbered():
            if any(row):
                first, second, text = row
                score = finite_number(text)
                if score is None:
                    column = rows.columns[layout[2]]
                    problem = f"the score {text!r} in {column!r} is not a number, such as 1.5"
                    raise UsageError(f"{path}: row {number + 1}: {problem}")
                pairs.append((first, second, score))
    if not pairs:
        raise UsageError(f"{path} holds no pairs; give rows of {', '.join(layout)}")
    return pairs


@dataclass(frozen=True)
class TaskName:
    """A task and its split, written ``STS-B:dev``; the name of the task alone is its test split."""

    task: str
    split: str = "test"

    def __str__(self) -> str:
        if self.split == "test":
            return self.task
        return f"{self.task}:{self.split}"

    @property
    def is_published_test(self) -> bool:
        """Whether this is the test split of a published task, by which nothing may be chosen."""
        if self.task == TRANSLATED and self.split in senteval.TRANSLATIONS:
            return True
        return self.split == "test" and str(self) in TASKS


@dataclass(frozen=True)
class TaskRow:
    """How a task is read and scored."""

    #: ``spearman``, ``ndcg@10`` or the metric of a plug-in; or a function of the vectors and the
    #: gold of every part, {part: (first (n, d), second (n, d) or None, gold (n,))}, that returns
    #: the figure
    metric: str | Callable[[Any], float]
    read: Callable[[Path], GoldRows]  # takes SentEval's `downstream` folder
    folder: str | None = None  # the folder of its files inside `downstream`, if it has files
    pairs: int | None = None  # number of pairs of a published set
    hub: HubSet | None = None
    text: str | None = None  # description of its text; None: it depends on the source
    cased: bool = False  # whether text of a folder and Moses-tokenised text keep upper case
    fit_only: bool = False  # whether the task is only for fitting, not for scores
    # makes a plug-in's ``PluginTask`` from its name, its gold rows and the folder
    make: Callable[["TaskName", GoldRows, Path | None], Any] | None = None


def _year(name: str, pairs: int) -> TaskRow:
    read = partial(senteval.read_year, task=name)
    return TaskRow("spearman", read, "STS", pairs, HubSet(f"mteb/{name.lower()}-sts"))


_EVERY_SPLIT = "train+validation+test"


def _benchmark(split: str, pairs: int, *, hub_split: str | None = None) -> TaskRow:
    has_all = split == "all"
    names = ("train", "dev", "test") if has_all else (split,)
    splits = {name: [f"sts-{name}.csv"] for name in names}
    read = partial(
        senteval.read_splits, folder="STS/STSBenchmark", splits=splits, read=senteval.read_benchmark
    )
    hub = HubSet("mteb/stsbenchmark-sts", split=hub_split or split)
    return TaskRow("spearman", read, "STS", pairs, hub, fit_only=has_all)


_SICK_FILES = {
    "train": "SICK_train.txt",
    "trial": "SICK_trial.txt",
    "test": "SICK_test_annotated.txt",
}
#: This copy of SemEval 2014 has the official test split. The hub's own Parquet branch is read,
#: because the main branch may hold a script.
_SICK_SET = HubSet(
    "SemEvalWorkshop/sem_eval_2014_task_1",
    columns=("premise", "hypothesis", "relatedness_score"),
    revision="refs/convert/parquet",
)


def _sick(
    pairs: int, hub: HubSet, splits: Sequence[str] = tuple(_SICK_FILES), *, fit_only: bool = False
) -> TaskRow:
    files = {split: [_SICK_FILES[split]] for split in splits}
    read = partial(senteval.read_splits, folder="SICK", splits=files, read=senteval.read_sick)
    return TaskRow("spearman", read, "SICK", pairs, hub, cased=True, fit_only=fit_only)


def _demo(split: str, pairs: int) -> TaskRow:
    return TaskRow("spearman", lambda _: read_demo(split), pairs=pairs, text=TEXT)


#: The tasks of graded pairs, in the column order of the papers' tables.
TASKS = Table[TaskRow](
    "tasks",
    {
        "STS12": _year("STS12", 3108),
        "STS13": _year("STS13", 1500),
        "STS14": _year("STS14", 3750),
        "STS15": _year("STS15", 3000),
        "STS16": _year("STS16", 1186),
        "STS-B": _benchmark("test", 1379),
        "SICK-R": _sick(4927, _SICK_SET, ["test"]),
        "STS-B:dev": _benchmark("dev", 1500, hub_split="validation"),
        "STS-B:train": _benchmark("train", 5749),
        "demo": _demo("test", 1355),
        "demo:dev": _demo("dev", 1390),
        "STS-B:all": _benchmark("all", 8628, hub_split=_EVERY_SPLIT),
        "SICK-R:all": _sick(9927, replace(_SICK_SET, split=_EVERY_SPLIT), fit_only=True),
    },
)
#: The STS test splits of the papers' tables.
TEST_TASKS = tuple(
    TaskName(name) for name in ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
)
#: Name of a group -> its tasks.
GROUPS: Table[tuple[str, ...]] = Table("task_groups", {"sts": tuple(map(str, TEST_TASKS))})


def _retrieval(file: str) -> TaskRow:
    folder = Path(file)

    def read(_: Path) -> GoldRows:
        if is_retrieval_folder(folder):
            return read_retrieval_folder(folder)
        return {"all": read_rows(file, RETRIEVAL)}

    return TaskRow("ndcg@10", read, text="your documents, as they are in the files")


#: The task that has translations: ``STS-B:de``, ``STS-B:de:dev``.
TRANSLATED = "STS-B"


def _read_translation(path: Path) -> list[GoldRow]:
    """Read a file of stsb-multi-mt: two sentences and a score with commas between them."""
    options = {"header": "false", "delim": ","}
    return read_rows(f"{path}:1,2,3", GRADED_PAIRS, csv=options)


def _translated(language: str, split: str) -> TaskRow:
    read = partial(
        senteval.read_splits,
        folder=senteval.TRANSLATED_FOLDER,
        splits={split: [f"stsb-{language}-{split}.csv"]},
        read=_read_translation,
    )
    return TaskRow(
        "spearman", read, senteval.TRANSLATED_FOLDER, text="translated, raw text as in the folder"
    )


#: Text after ``STS-B:`` -> its row.
TRANSLATIONS = {
    language + suffix: _translated(language, split)
    for language in senteval.TRANSLATIONS
    for suffix, split in (("", "test"), (":dev", "dev"), (":train", "train"))
}

#: Word before a colon -> the task of the argument after it: ``STS-B:LANGUAGE``; ``retrieval:FILE``
#: (or ``FILE:query,document,grade``, or a folder of BEIR or MS MARCO), ranked by vectors;
#: ``lexical:...``, ranked by words; ``hybrid:...``, ranked by both.
FAMILIES = Table[Callable[[str], TaskRow]](
    "task_families",
    {
        "retrieval": _retrieval,
        "lexical": _retrieval,
        "hybrid": _retrieval,
        TRANSLATED: TRANSLATIONS.__getitem__,
    },
)


@dataclass(frozen=True)
class Protocol:
    """The pairs of tasks, and the treatment of raw text before encoding."""

    moses: bool  # whether raw text is Moses-tokenised, and lower-cased except for SICK
    rows: Mapping[str, TaskRow] = field(default_factory=dict)  # replacements of rows of ``TASKS``


#: The two published ways to score STS tasks. The papers use ``senteval``. ``mteb`` takes raw text,
#: and all 9,927 pairs of SICK-R, which are the `test` split of MTEB's copy.
PROTOCOLS = {
    "senteval": Protocol(moses=True),
    "mteb": Protocol(moses=False, rows={"SICK-R": _sick(9927, HubSet("mteb/sickr-sts"))}),
}


def task_row(name: TaskName, protocol: str = "senteval") -> TaskRow:
    """Return the row of a task under a protocol; any other name is a file of graded pairs."""
    row = look_up("protocol", protocol, PROTOCOLS).rows.get(str(name)) or TASKS.get(str(name))
    if row is not None:
        return row
    if name.task in FAMILIES and name.split != "test":
        return FAMILIES[name.task](name.split)
    return TaskRow(
        "spearman",
        lambda _: {"all": read_graded_pairs(str(name))},
        text="your pairs, as they are in the file",
    )
