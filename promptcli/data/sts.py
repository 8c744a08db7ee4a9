"""STS tasks: their names, their pairs, and the two protocols. Knows neither files nor the network.

Pair sets and aggregation follow SentEval's `sts.py` as the papers use it: all subsets of a year are put together and
scored at once ("all"); STS-B is scored on its test (or dev) pairs; no regressor is trained.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptcli.errors import unknown


@dataclass(frozen=True)
class Pairs:
    """Sentence pairs with gold scores; equal pairs may stand in it more than once, as in SMTeuroparl."""

    first: list[str]
    second: list[str]
    gold: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class TaskName:
    """A task and its split, written ``STS-B:dev``; the test split is written by the task's name alone."""

    task: str
    split: str = "test"

    def __str__(self) -> str:
        return self.task if self.split == "test" else f"{self.task}:{self.split}"


#: The test splits in the column order of the papers' tables.
TEST_TASKS = tuple(TaskName(name) for name in ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R"))
#: Pairs of our own, inside the package.
DEMO = "demo"
#: All splits together: to fit on, never to score.
WHOLE = (TaskName("STS-B", "all"), TaskName("SICK-R", "all"))
_OTHERS = (TaskName("STS-B", "dev"), TaskName("STS-B", "train"), TaskName(DEMO), TaskName(DEMO, "dev"))
_TASKS = {str(name): name for name in (*TEST_TASKS, *_OTHERS)}

#: Pairs of each task where both protocols agree.
_COUNTS = {"STS12": 3108, "STS13": 1500, "STS14": 3750, "STS15": 3000, "STS16": 1186, "STS-B": 1379, "STS-B:dev": 1500}
_COUNTS |= {"STS-B:train": 5749, "demo": 458, "demo:dev": 402, "STS-B:all": 8628, "SICK-R:all": 9927}


@dataclass(frozen=True)
class Protocol:
    """Which pairs make up a task and how raw text is treated before it is encoded."""

    help: str
    #: Files of SICK-R by subset.
    sick: dict[str, str]
    #: Pairs of each task; a folder that holds another number is not comparable.
    pairs: dict[str, int]
    #: Raw text goes through the Moses tokeniser, and to lower case except for SICK.
    moses: bool


#: All files of SICK-R, by split.
SICK = {"train": "SICK_train.txt", "trial": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}

#: The two ways in which these tasks are scored in print.
PROTOCOLS = {
    "senteval": Protocol(
        help="as in the papers: SICK-R is its test split (4927 pairs); Moses-tokenised, lower-cased text",
        sick={"test": SICK["test"]},
        pairs={**_COUNTS, "SICK-R": 4927},
        moses=True,
    ),
    "mteb": Protocol(
        help="as in MTEB: SICK-R is train, trial and test together (9927 pairs); raw text",
        sick=SICK,
        pairs={**_COUNTS, "SICK-R": 9927},
        moses=False,
    ),
}


@dataclass(frozen=True)
class STSTask:
    """The pairs of one task under one protocol, by subset."""

    name: str
    split: str
    protocol: str
    #: What was done to the text, as printed with every figure.
    text: str
    subsets: dict[str, Pairs]

    @property
    def label(self) -> str:
        """The task as it is written on the command line, e.g. ``STS-B:dev``."""
        return str(TaskName(self.name, self.split))

    @property
    def expected_pairs(self) -> int:
        """How many pairs the protocol says there are."""
        return PROTOCOLS[self.protocol].pairs[self.label]

    def pairs(self) -> Pairs:
        """Return the pairs of all subsets, one subset after the other ("all" aggregation)."""
        parts = self.subsets.values()
        return Pairs(
            [sentence for part in parts for sentence in part.first],
            [sentence for part in parts for sentence in part.second],
            np.concatenate([part.gold for part in parts]),
        )

    def sha256(self) -> str:
        """Return the hex SHA-256 over the subsets' names, sentences and gold scores."""
        digest = hashlib.sha256()
        for name, part in self.subsets.items():
            for first, second, gold in zip(part.first, part.second, part.gold.tolist(), strict=True):
                digest.update(f"{name}\t{first}\t{second}\t{gold!r}\n".encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Loaded:
    """The tasks that are there, and for each that is not the reason, by its label."""

    tasks: list[STSTask]
    missing: dict[str, str]


def task_names(given: Sequence[str]) -> list[TaskName]:
    """Return the tasks named ``STS12``, ``STS-B:dev``, ``demo``, ... in the papers' order; none: the seven test splits.

    Raises:
        UsageError: a name that is no task.
    """
    for name in given:
        if name not in _TASKS:
            raise unknown("task", name, _TASKS)
    return [name for label, name in _TASKS.items() if label in given] or list(TEST_TASKS)


def fitting_task(given: str) -> TaskName:
    """Return the task whose sentences are fitted on: one of ``task_names``, or all splits of one, ``STS-B:all``.

    Raises:
        UsageError: a name that is no task.
    """
    tasks = _TASKS | {str(name): name for name in WHOLE}
    if given not in tasks:
        raise unknown("task", given, tasks)
    return tasks[given]


def protocol_named(name: str) -> Protocol:
    """Return the protocol's row.

    Raises:
        UsageError: a name that is no protocol.
    """
    if name not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]
