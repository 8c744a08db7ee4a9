"""Tasks by name, from a folder, the hub, the package or a file: graded pairs (STS), labelled
sentences and others.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from promptcli.data.arguments import as_list_of
from promptcli.data.hub_sets import UnreachableError, read_hub_set
from promptcli.data.senteval import GoldRow, GoldRows, moses, senteval_folder
from promptcli.data.task_table import (
    FAMILIES,
    GROUPS,
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
from promptcli.errors import NotFoundError, UsageError, look_up, unknown_name_error
from promptcli.notes import note, without_network
from promptcli.settings import BUILT_IN


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
class STSTask:
    """The pairs of a task under a protocol, by subset."""

    name: str
    split: str
    protocol: str
    text: str  # how the text was treated; printed with every score
    subsets: dict[str, Pairs]

    @property
    def label(self) -> str:
        """The name of the task on the command line, e.g. ``STS-B:dev``."""
        return str(TaskName(self.name, self.split))

    @property
    def expected_pairs(self) -> int:
        """The number of pairs under the protocol."""
        row = task_row(TaskName(self.name, self.split), self.protocol)
        return row.pairs or len(self.pairs())

    def pairs(self) -> Pairs:
        """Return the pairs of all subsets, one subset after the other ("all" aggregation)."""
        subsets = self.subsets.values()
        first = itertools.chain(*(pairs.first for pairs in subsets))
        second = itertools.chain(*(pairs.second for pairs in subsets))
        gold = np.concatenate([pairs.gold for pairs in subsets])
        return Pairs(list(first), list(second), gold)

    def sentences(self) -> Iterator[str]:
        for pairs in self.subsets.values():
            yield from pairs.first
            yield from pairs.second

    def sha256(self) -> str:
        """Return the hex SHA-256 over the subsets' names, sentences and gold scores."""
        return hash_lines(
            f"{name}\t{first}\t{second}\t{gold!r}"
            for name, pairs in self.subsets.items()
            for first, second, gold in zip(
                pairs.first, pairs.second, pairs.gold.tolist(), strict=True
            )
        )


@dataclass(frozen=True, eq=False)  # a task is the key of what is computed from its documents
class RetrievalTask:
    """Queries, the documents that are ranked for each query, and grades of relevance."""

    name: str
    queries: list[str]  # q distinct texts
    documents: list[str]  # m distinct texts
    #: for each query: number of a document -> its grade above 0; numbers from m on are missing
    #: documents
    grades: list[dict[int, float]]
    ranking: str = "retrieval"  # by vectors; "lexical": by words; "hybrid": by both
    #: number of a query -> number of the document with the same text, which does not count
    left_out: dict[int, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name of the task on the command line."""
        return self.name

    @classmethod
    def of(
        cls,
        name: str,
        rows: Sequence[GoldRow],
        ranking: str = "retrieval",
        *,
        missing: Sequence[GoldRow] = (),
        own: Sequence[GoldRow] = (),
    ) -> "RetrievalTask":
        """Return the task of rows (query, document, grade); a document of grade 0 is irrelevant.

        Args:
            name: The task's name.
            rows: Rows of all documents; a document without judgements has an empty query.
            ranking: See the class.
            missing: Judgements of missing documents, with the ids in place of the texts.
            own: Rows of the queries that are documents themselves.
        """
        documents = dict.fromkeys(document or "" for _, document, _ in rows)
        missing_ids = dict.fromkeys(document or "" for _, document, _ in missing)
        numbers = {text: number for number, text in enumerate(documents)}
        missing_numbers = {name: number for number, name in enumerate(missing_ids, len(documents))}
        relevant = dict[str, dict[int, float]]()
        for judgements, number_of in ((rows, numbers), (missing, missing_numbers)):
            for query, document, grade in judgements:
                if grade > 0 and query:
                    grades = relevant.setdefault(query, {})
                    number = number_of[document or ""]
                    grades[number] = max(grade, grades.get(number, 0.0))
        if not relevant:
            raise UsageError(f"{name}: no query has a document with a grade above 0")
        own_queries = {query for query, _, _ in own}
        left_out = {
            place: numbers[query]
            for place, query in enumerate(relevant)
            if query in own_queries and numbers[query] not in relevant[query]
        }
        graded = list(relevant.values())
        return cls(name, list(relevant), list(documents), graded, ranking, left_out)

    def sentences(self) -> Iterator[str]:
        """Yield every query and document that a model encodes."""
        if self.ranking != "lexical":
            yield from self.queries
            yield from self.documents

    def sha256(self) -> str:
        """Return the hex SHA-256 over queries, documents and grades."""
        lines = [f"query\t{query}" for query in self.queries]
        lines += [f"document\t{document}" for document in self.documents]
        lines += [f"grades\t{sorted(grades.items())!r}" for grades in self.grades]
        if self.left_out:
            lines.append(f"left out\t{sorted(self.left_out.items())!r}")
        return hash_lines(lines)


@dataclass(frozen=True)
class CustomMetricTask:
    """A task with its own metric, a function of the vectors and the gold of every part."""

    name: str
    metric: Callable[[Any], float]
    gold_rows: GoldRows

    @property
    def label(self) -> str:
        return self.name

    def sentences(self) -> Iterator[str]:
        for rows in self.gold_rows.values():
            for first, second, _ in rows:
                yield first
                if second is not None:
                    yield second


@dataclass(frozen=True)
class PluginTask:
    """A task that a plug-in makes and scores."""

    name: str

    #: whether models that have a recipe for transfer tasks use that recipe
    for_transfer: ClassVar[bool] = False
    #: the class of the stored scores; None: the task is scored each time
    kept_as: ClassVar[type | None] = None

    @property
    def label(self) -> str:
        return self.name

    def sentences(self) -> Iterator[str]:
        """Yield the sentences to encode before ``scores`` is called."""
        return iter(())

    def check(self, settings: Any) -> None:
        """Refuse data that cannot be scored, before anything is encoded."""

    def score_key(self, settings: Any) -> dict[str, Any]:
        """Return the settings that determine a score, as JSON values by name."""
        return {}

    def scores(self, embedded: Sequence[Any], settings: Any) -> list[Any]:
        """Return a ``Score`` for each ``TaskVectors``."""
        raise NotImplementedError


#: Anything that ``evaluate`` scores.
AnyTask = STSTask | RetrievalTask | CustomMetricTask | PluginTask
#: A task that can choose the best checkpoint of a training run.
DevelopmentTask = STSTask | RetrievalTask
Task = TypeVar("Task", STSTask, AnyTask)


@dataclass(frozen=True)
class LoadedTasks(Generic[Task]):
    """The tasks whose data were found."""

    tasks: list[Task]
    missing: dict[str, str]  #: label of each other task -> why it has no data


def task_names(words: str | Path | Sequence[str | Path]) -> list[TaskName]:
    """Return the named tasks of any metric: first those of ``TASKS``, in the papers' order.

    Files of graded pairs (``FILE`` or ``FILE:first,second,score``) and tasks of ``FAMILIES``
    follow.
    """
    labels: list[str] = []
    for word in [words] if isinstance(words, str | Path) else as_list_of(words, "tasks"):
        if not isinstance(word, str | Path):
            raise UsageError(
                f"task {word!r} is {type(word).__name__}, not a name; give e.g. 'STS-B'"
            )
        labels += GROUPS.get(str(word), (str(word),))
    place = {label: number for number, label in enumerate(TASKS.built_in)}
    labels.sort(key=lambda label: place.get(label, len(place)))
    return list(dict.fromkeys(map(_parse_task_name, labels)))


def _parse_task_name(label: str) -> TaskName:
    scored_tasks = [name for name, row in TASKS.items() if not row.fit_only]
    if label in scored_tasks:
        return TaskName(*label.split(":"))
    family, _, argument = label.partition(":")
    if argument in TRANSLATIONS if family == TRANSLATED else argument and family in FAMILIES:
        return TaskName(family, argument)
    if is_pair_file(label):
        return TaskName(label)
    families = [f"{family}:..." for family in FAMILIES if family not in TASKS]
    raise unknown_name_error("task", label, [*scored_tasks, *GROUPS, f"{TRANSLATED}:de", *families])


def graded_task_names(words: Sequence[str]) -> list[TaskName]:
    """Return the named STS tasks, as ``task_names`` does; without words, the papers' seven."""
    names = task_names(list(words))
    for name in names:
        if task_row(name).metric != "spearman":
            raise unknown_name_error("task", str(name), _graded_tasks())
    return names or list(TEST_TASKS)


def _graded_tasks() -> list[str]:
    return [label for label, row in TASKS.items() if row.metric == "spearman"]


def fitting_task_name(word: str) -> TaskName:
    """Return the task to fit on: an STS task, or all its splits (``STS-B:all``)."""
    if word not in _graded_tasks():
        raise unknown_name_error("task", word, _graded_tasks())
    return TaskName(*word.split(":"))


def load_tasks(
    folder: Path | None, names: Sequence[TaskName], protocol: str = "senteval"
) -> LoadedTasks[AnyTask]:
    """Load tasks: from a SentEval folder or the hub, ``demo`` from the package, or from files.

    Args:
        folder: A SentEval `downstream` folder (with STS/ and SICK/), or a folder that contains it
            as `senteval`, `downstream` or `data/downstream`; None: the Hugging Face data sets.
        names: As ``task_names``, ``graded_task_names`` or ``fitting_task_name`` returns them.
        protocol: A row of ``PROTOCOLS``.
    """
    rules = look_up("protocol", protocol, PROTOCOLS)
    rows = {name: task_row(name, protocol) for name in names}
    roots = {name: _find_root(row, folder) for name, row in rows.items()}
    tasks: list[AnyTask] = []
    missing = {}
    unreachable = False
    for name, row in rows.items():
        try:
            if row.folder is None or folder is not None:
                gold_rows = row.read(roots[name])
                text = row.text or _describe_text(row, gold_rows)
            else:
                # after one failure of the network, the other tasks are only sought in the cache
                with without_network(unreachable):
                    gold_rows, text = _read_from_hub(name, row, rules)
        except NotFoundError as error:
            unreachable = unreachable or isinstance(error, UnreachableError)
            missing[str(name)] = str(error)
            continue
        tasks.append(_make_task(name, row, gold_rows, text, protocol, folder))
    return LoadedTasks(tasks, missing)


def _find_root(row: TaskRow, folder: Path | None) -> Path:
    """Return the folder that contains the folder of a task's files, if the task has one."""
    if folder is None or row.folder is None:
        return Path()
    if not folder.is_dir():
        raise NotFoundError(
            f"{folder}: no such folder; give a SentEval `downstream` folder, which holds"
            f" {row.folder}/",
            parameter="data_dir",
        )
    usual = (folder / inner for inner in ("senteval", "downstream", "data/downstream"))
    return next((inner for inner in usual if (inner / row.folder).is_dir()), folder)


def load_graded_tasks(
    folder: Path | None, names: Sequence[TaskName | str], protocol: str = "senteval"
) -> LoadedTasks[STSTask]:
    """Load STS tasks, see ``load_tasks``; a name as text may be a group's, or ``STS-B:all``."""
    tasks = list[TaskName]()
    for name in names:
        if isinstance(name, TaskName):
            tasks.append(name)
        elif name.endswith(":all"):
            tasks.append(fitting_task_name(name))
        else:
            tasks += graded_task_names([name])
    return cast(LoadedTasks[STSTask], load_tasks(folder, tasks, protocol))


def load_named_tasks(
    tasks: str | Path | Sequence[str | Path] | None = None,
    *,
    protocol: str = "senteval",
    skip_missing: bool = False,
) -> LoadedTasks[AnyTask]:
    """Load tasks by their names (see ``evaluate``) from the folder of ``tasks_from``.

    Missing tasks are refused; with ``skip_missing`` they are noted, unless all are missing.
    """
    folder = senteval_folder()
    if tasks is None:
        tasks = BUILT_IN.corpus if folder is None else list(map(str, TEST_TASKS))
    names = task_names(tasks)
    if not names:
        raise UsageError("no task is named; leave tasks out for the default", parameter="tasks")
    loaded = load_tasks(folder, names, protocol)
    reasons = [f"{label} is missing: {why}" for label, why in loaded.missing.items()]
    if reasons and not (skip_missing and loaded.tasks):
        raise NotFoundError(reasons[0] if skip_missing else "; ".join(reasons))
    for reason in reasons:
        note(reason)
    return loaded


def _make_task(
    name: TaskName, row: TaskRow, gold_rows: GoldRows, text: str, protocol: str, folder: Path | None
) -> AnyTask:
    if row.make is not None:
        task: PluginTask = row.make(name, gold_rows, folder)
        return task
    if callable(row.metric):
        return CustomMetricTask(str(name), row.metric, gold_rows)
    if row.metric == "ndcg@10":
        rows = gold_rows.pop("all")
        return RetrievalTask.of(str(name), rows, name.task, **gold_rows)
    subsets = {}
    for subset, pairs in gold_rows.items():
        first, second, gold = zip(*pairs, strict=True)
        subsets[subset] = Pairs(list(first), list(second), np.array(gold, np.float64))
    return STSTask(name.task, name.split, protocol, text, subsets)


def _read_from_hub(name: TaskName, row: TaskRow, rules: Protocol) -> tuple[GoldRows, str]:
    """Return the pairs of a data set of the hub under a protocol, and a description of the text."""
    if row.hub is None:
        raise NotFoundError(
            f"{name} is read from files; give data_dir=FOLDER, with {row.folder}/ in it"
        )
    rows = read_hub_set(row.hub)
    if not rules.moses:
        return {name.split: rows}, "raw text"
    first, second, gold = zip(*rows, strict=True)
    sides = (moses(side, lower=not row.cased) for side in (first, second))
    rows = list(zip(*sides, gold, strict=True))
    return {name.split: rows}, f"Moses-tokenised, {'cased' if row.cased else 'lower-cased'}"


_UPPER_CASE = re.compile("[A-Z]")


def _describe_text(row: TaskRow, gold_rows: GoldRows) -> str:
    """Describe the text of a folder: SentEval's is lower-cased, except SICK's; official files are
    raw.
    """
    sides = (
        side for rows in gold_rows.values() for first, second, _ in rows for side in (first, second)
    )
    if not any(side and _UPPER_CASE.search(side) for side in sides):
        return "as in the folder, lower-cased"
    return "as in the folder, cased" if row.cased else "raw text, as in the folder"


def hash_lines(lines: Iterable[str]) -> str:
    """Return the hex SHA-256 over lines."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()
