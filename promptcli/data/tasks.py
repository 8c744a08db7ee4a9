"""Tasks by name, from a folder, the hub, the package or a file: graded pairs (STS), labelled
sentences, others.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from promptcli.data.given import check_rows
from promptcli.data.hub_sets import UnreachableError, read_hub_set
from promptcli.data.senteval import TRANSLATED_FOLDER, GoldRow, Parts, moses, senteval_root
from promptcli.data.task_table import (
    FAMILIES,
    GROUPS,
    MTEB_LOCAL,
    PROTOCOLS,
    TASKS,
    TEST_TASKS,
    TRANSLATED,
    TRANSLATIONS,
    Protocol,
    TaskName,
    TaskRow,
    is_pair_file,
    task_row,
)
from promptcli.errors import NotFoundError, UsageError, look_up, unknown
from promptcli.notes import keyword, without_network


@dataclass(frozen=True)
class Pairs:
    """n sentence pairs with gold scores (n,).

    A pair may occur more than once, as in SMTeuroparl.
    """

    first: list[str]
    second: list[str]
    gold: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class LabelledExamples:
    """n labelled sentences, or pairs, in the order by which SentEval draws its folds."""

    first: list[str]
    second: list[str] | None  # None if single sentences are classified
    labels: NDArray[np.int64]  # (n,) class numbers from 0

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class STSTask:
    """The pairs of one task under one protocol, by subset."""

    name: str
    split: str
    protocol: str
    text: str  # how it was treated, printed with every figure
    subsets: dict[str, Pairs]

    @property
    def label(self) -> str:
        """The name of the task on the command line, e.g. ``STS-B:dev``."""
        return str(TaskName(self.name, self.split))

    @property
    def expected_pairs(self) -> int:
        """The number of pairs under the protocol."""
        row = task_row(TaskName(self.name, self.split), self.protocol)
        return row.sizes.get("all", len(self.pairs()))

    def pairs(self) -> Pairs:
        """Return the pairs of all subsets, one subset after the other ("all" aggregation)."""
        subsets = self.subsets.values()
        first, second = (
            [*itertools.chain(*(getattr(pairs, side) for pairs in subsets))]
            for side in ("first", "second")
        )
        return Pairs(first, second, np.concatenate([pairs.gold for pairs in subsets]))

    def sentences(self) -> Iterator[str]:
        for pairs in self.subsets.values():
            yield from pairs.first
            yield from pairs.second

    def sha256(self) -> str:
        """Return the hex SHA-256 over the subsets' names, sentences and gold scores."""
        return _hash_lines(
            f"{name}\t{first}\t{second}\t{gold!r}"
            for name, pairs in self.subsets.items()
            for first, second, gold in zip(
                pairs.first, pairs.second, pairs.gold.tolist(), strict=True
            )
        )


@dataclass(frozen=True)
class TransferTask:
    """A classification task, by split: ``all``, or ``train``, ``test`` and, for SST-2, ``dev``."""

    name: str
    splits: dict[str, LabelledExamples]

    def sentences(self) -> Iterator[str]:
        for examples in self.splits.values():
            yield from examples.first
            yield from examples.second or ()

    def sha256(self) -> str:
        """Return the hex SHA-256 over the splits' names, sentences and labels."""
        return _hash_lines(
            f"{split}\t{first}\t{second}\t{label}"
            for split, examples in self.splits.items()
            for first, second, label in zip(
                examples.first,
                examples.second or itertools.repeat(""),
                examples.labels.tolist(),
                strict=False,
            )
        )

    def unexpected_counts(self) -> dict[str, tuple[int, int]]:
        """Return the number of examples and the printed number of each split in which they
        differ.
        """
        counts = {
            split: (len(self.splits[split]), size) for split, size in TASKS[self.name].sizes.items()
        }
        return {split: (count, size) for split, (count, size) in counts.items() if count != size}


@dataclass(frozen=True)
class RetrievalTask:
    """Queries, the documents to be ranked for each, and graded relevance."""

    name: str
    queries: list[str]  # q distinct ones
    documents: list[str]  # m distinct ones
    grades: list[dict[int, float]]  # by query: number of a document -> its grade above 0
    ranking: str = "retrieval"  # by vectors; "lexical": by words; "hybrid": by both

    @property
    def label(self) -> str:
        """The name of the task on the command line."""
        return self.name

    @classmethod
    def of(cls, name: str, rows: Sequence[GoldRow], ranking: str = "retrieval") -> "RetrievalTask":
        """Return the task of rows (query, document, grade); a document of grade 0 is irrelevant."""
        documents = {
            document: number
            for number, document in enumerate(dict.fromkeys(row[1] or "" for row in rows))
        }
        relevant: dict[str, dict[int, float]] = {}
        for query, document, grade in rows:
            if grade > 0 and query:
                grades = relevant.setdefault(query, {})
                number = documents[document or ""]
                grades[number] = max(grade, grades.get(number, 0.0))
        if not relevant:
            raise UsageError(f"{name}: no query has a document with a grade above 0")
        return cls(name, list(relevant), list(documents), list(relevant.values()), ranking)

    def sentences(self) -> Iterator[str]:
        """Yield every query and document that a model encodes."""
        if self.ranking != "lexical":
            yield from self.queries
            yield from self.documents

    def sha256(self) -> str:
        """Return the hex SHA-256 over queries, documents and grades."""
        graded = [repr(sorted(grades.items())) for grades in self.grades]
        return _hash_lines(
            f"{kind}\t{line}"
            for kind, lines in (
                ("query", self.queries),
                ("document", self.documents),
                ("grades", graded),
            )
            for line in lines
        )


@dataclass(frozen=True)
class MtebTask:
    """A task of mteb, run by mteb itself."""

    name: str
    pairs: STSTask | None = None  # replace mteb's data

    def sentences(self) -> Iterator[str]:
        """Yield nothing: mteb asks for its vectors itself."""
        return iter(())


@dataclass(frozen=True)
class OwnTask:
    """A task with its own metric, a function of the vectors and the gold of every part."""

    name: str
    metric: Callable[[Any], float]
    parts: Parts

    def sentences(self) -> Iterator[str]:
        for rows in self.parts.values():
            for first, second, _ in rows:
                yield first
                if second is not None:
                    yield second


#: Anything that ``evaluate`` scores.
AnyTask = STSTask | TransferTask | RetrievalTask | MtebTask | OwnTask
#: What can choose the best checkpoint of a training.
DevelopmentTask = STSTask | RetrievalTask
Task = TypeVar("Task", STSTask, TransferTask, AnyTask)


@dataclass(frozen=True)
class Loaded(Generic[Task]):
    """The tasks that have data, and the reason for each that does not, by its label."""

    tasks: list[Task]
    missing: dict[str, str]


def any_task_names(words: str | Path | Sequence[str | Path]) -> list[TaskName]:
    """Return the tasks named, whatever their metric: those of ``TASKS`` in the papers' order, then
    the others.

    The others are files of graded pairs (``FILE`` or ``FILE:first,second,score``) and the tasks of
    ``FAMILIES``.
    """
    names: list[str] = []
    for name in [words] if isinstance(words, str | Path) else check_rows(words, "tasks"):
        if not isinstance(name, str | Path):
            raise UsageError(
                f"task {name!r} is {type(name).__name__}, not a name; give e.g. 'STS-B'"
            )
        names += GROUPS.get(str(name), (str(name),))
    known = [label for label, row in TASKS.items() if not row.fit_only]
    extra: dict[TaskName, None] = {}
    for name in (name for name in names if name not in known):
        family, _, argument = name.partition(":")
        translated = family != TRANSLATED or argument in TRANSLATIONS
        if argument and family in FAMILIES and translated:
            extra[TaskName(family, argument)] = None
        elif is_pair_file(name):
            extra[TaskName(name)] = None
        else:
            families = [f"{family}:..." for family in FAMILIES if family not in TASKS]
            raise unknown("task", name, [*known, *GROUPS, f"{TRANSLATED}:de", *families])
    return [*(TaskName(*label.split(":")) for label in known if label in names), *extra]


def task_names(words: Sequence[str]) -> list[TaskName]:
    """Return the STS tasks named, as ``any_task_names`` does; without words the papers' seven."""
    names = any_task_names(list(words))
    for name in names:
        if task_row(name).metric != "spearman":
            raise unknown(
                "task",
                str(name),
                [label for label, row in TASKS.items() if row.metric == "spearman"],
            )
    return names or list(TEST_TASKS)


def fitting_task(word: str) -> TaskName:
    """Return the task whose sentences are fitted on: an STS task, or all splits of one,
    ``STS-B:all``.
    """
    known = [label for label, row in TASKS.items() if row.metric == "spearman"]
    if word not in known:
        raise unknown("task", word, known)
    return TaskName(*word.split(":"))


def load_any(
    folder: Path | None, names: Sequence[TaskName], protocol: str = "senteval"
) -> Loaded[AnyTask]:
    """Load tasks from a SentEval folder or else from the hub, ``demo`` from the package, and files.

    Args:
        folder: A SentEval `downstream` folder (holding STS/ and SICK/), or one with a `senteval`,
            `downstream` or `data/downstream` folder inside; None: the Hugging Face data sets.
        names: As ``any_task_names``, ``task_names`` or ``fitting_task`` returns them.
        protocol: A row of ``PROTOCOLS``.
    """
    rules = look_up("protocol", protocol, PROTOCOLS)
    rows = {name: task_row(name, protocol) for name in names}
    roots = {name: _root_of(row, folder) for name, row in rows.items()}
    tasks: list[AnyTask] = []
    missing = {}
    unreachable = False
    for name, row in rows.items():
        try:
            if row.folder is None or folder is not None:
                parts = row.read(roots[name])
                text = row.text or _text_of(row, parts)
            else:
                # one wait for the network is enough; the others may still be in the cache
                with without_network(unreachable):
                    parts, text = _from_hub(name, row, rules)
        except NotFoundError as error:
            unreachable = unreachable or isinstance(error, UnreachableError)
            missing[str(name)] = str(error)
            continue
        tasks.append(_task(name, row, parts, text, protocol, folder))
    return Loaded(tasks, missing)


def _root_of(row: TaskRow, folder: Path | None) -> Path:
    """Return the folder in which the folder of a task's files is, if it has one."""
    if folder is None or row.folder is None:
        return Path()
    if row.folder == TRANSLATED_FOLDER:
        return senteval_root(folder, [TRANSLATED_FOLDER])
    inside = [
        other.folder.split("/")[0]
        for other in TASKS.values()
        if other.folder and other.metric == row.metric
    ]
    return senteval_root(folder, list(dict.fromkeys(inside)))


def load_tasks(
    folder: Path | None, names: Sequence[TaskName | str], protocol: str = "senteval"
) -> Loaded[STSTask]:
    """Load STS tasks, see ``load_any``; a name as text may be a group's, or ``STS-B:all``."""
    wanted: list[TaskName] = []
    for name in names:
        if isinstance(name, TaskName):
            wanted.append(name)
        elif name.endswith(":all"):
            wanted.append(fitting_task(name))
        else:
            wanted += task_names([name])
    return cast(Loaded[STSTask], load_any(folder, wanted, protocol))


def load_transfer(folder: Path | None, names: Sequence[str]) -> Loaded[TransferTask]:
    """Load transfer tasks from a SentEval `downstream` folder, or a folder that holds one.

    See ``load_any``.
    """
    return cast(Loaded[TransferTask], load_any(folder, [TaskName(name) for name in names]))


def _task(
    name: TaskName, row: TaskRow, parts: Parts, text: str, protocol: str, folder: Path | None
) -> AnyTask:
    if callable(row.metric):
        return OwnTask(str(name), row.metric, parts)
    every = [row for rows in parts.values() for row in rows]
    match row.metric:
        case "spearman":
            subsets = {
                subset: Pairs(*_columns(pairs, np.float64)) for subset, pairs in parts.items()
            }
            return STSTask(name.task, name.split, protocol, text, subsets)
        case "accuracy":
            splits = {}
            for split, examples in parts.items():
                first, second, labels = _columns(examples, np.int64)
                splits[split] = LabelledExamples(
                    first, None if second[0] is None else second, labels
                )
            return TransferTask(name.task, splits)
        case "ndcg@10":
            return RetrievalTask.of(str(name), every, name.task)
    if folder is not None and name.split in MTEB_LOCAL:
        local = [TaskName(MTEB_LOCAL[name.split])]
    else:
        local = []
    return MtebTask(name.split, next(iter(load_tasks(folder, local, "mteb").tasks), None))


def _from_hub(name: TaskName, row: TaskRow, rules: Protocol) -> tuple[Parts, str]:
    """Return the pairs of a data set of the hub, treated by the protocol, and how."""
    if row.hub is None:
        raise NotFoundError(
            f"{name} is read from a folder; give {keyword('data_dir')} FOLDER with a folder"
            f" {row.folder}"
        )
    rows = read_hub_set(row.hub)
    if not rules.moses:
        return {name.split: rows}, "raw text"
    first, second, gold = zip(*rows, strict=True)
    sides = (moses(side, lower=not row.cased) for side in (first, second))
    rows = list(zip(*sides, gold, strict=True))
    return {name.split: rows}, f"Moses-tokenised, {'cased' if row.cased else 'lower-cased'}"


_UPPER_CASE = re.compile("[A-Z]")


def _text_of(row: TaskRow, parts: Parts) -> str:
    """Describe a folder's text: SentEval's own is lower-cased, except for SICK; official files are
    raw.
    """
    sides = (
        side for rows in parts.values() for first, second, _ in rows for side in (first, second)
    )
    if not any(side and _UPPER_CASE.search(side) for side in sides):
        return "as in the folder, lower-cased"
    return "as in the folder, cased" if row.cased else "raw text, as in the folder"


def _columns(rows: Sequence[GoldRow], dtype: Any) -> tuple[list[str], list[str], NDArray[Any]]:
    first, second, gold = zip(*rows, strict=True)
    return list(first), list(second), np.array(gold, dtype=dtype)


def _hash_lines(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()
