"""Reading the seven transfer tasks from a SentEval `downstream` folder. Knows no encoder and no classifier.

Text becomes what SentEval's folder holds, whether the files are its own or the raw ones: see ``treebank.py`` for MR,
CR, SUBJ and MPQA; TREC loses its quotes; SST and MRPC are taken as they are. Words are joined by one blank.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from promptcli.data.senteval_folder import existing, read_file_lines, senteval_root
from promptcli.data.treebank import treebank, visible
from promptcli.errors import NotFoundError, UsageError, unknown


@dataclass(frozen=True)
class LabelledExamples:
    """Labelled sentences or pairs, in the order by which SentEval draws its folds: by words, then by label.

    Attributes:
        first: n sentences.
        second: n sentences, or None where a single sentence is classified.
        labels: (n,) class numbers from 0.
    """

    first: list[str]
    second: list[str] | None
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class TransferTask:
    """A task: ``all`` its examples, or those of its splits ``train``, ``test`` and, for SST-2, ``dev``."""

    name: str
    splits: dict[str, LabelledExamples]

    def sentences(self) -> Iterator[str]:
        """Yield every sentence, as often as it occurs."""
        for examples in self.splits.values():
            yield from examples.first
            yield from examples.second or ()


@dataclass(frozen=True)
class LoadedTransfer:
    """The tasks that are there, and for each that is not the reason, by its name."""

    tasks: list[TransferTask]
    missing: dict[str, str]


#: A sentence, the second one of a pair, and the label.
_Row = tuple[str, str | None, int]


@dataclass(frozen=True)
class _Files:
    """The files of a task.

    Attributes:
        folder: Where they stand.
        splits: Names of each split's files.
        read: Yields the rows of one file.
        examples: How many each split holds in print, where that is known.
    """

    folder: str
    splits: dict[str, Sequence[str]]
    read: Callable[[Path], Iterator[_Row]]
    examples: dict[str, int]


def _read_polarity(path: Path) -> Iterator[_Row]:
    """Read one class of MR, CR, SUBJ or MPQA: Latin-1, a sentence a line; blank lines are examples, too."""
    lines = read_file_lines(path, "latin-1")
    label = int(path.name in _FIRST_CLASS)
    for line in lines[: None if lines[-1] else -1]:
        yield treebank(visible(line)), None, label


#: Files of class 1; SentEval puts SUBJ's objective sentences there.
_FIRST_CLASS = {"rt-polarity.pos", "custrev.pos", "subj.objective", "mpqa.pos"}
_QUESTIONS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")


def _read_questions(path: Path) -> Iterator[_Row]:
    """Read TREC: Latin-1, ``COARSE:fine question``; quotes are taken out."""
    for number, line in enumerate(read_file_lines(path, "latin-1"), start=1):
        if not line.strip():
            continue
        kind, _, question = line.replace("`", "").replace("'", "").strip().partition(" ")
        coarse, colon, _ = kind.partition(":")
        if not colon or coarse not in _QUESTIONS:
            raise UsageError(f"{path}:{number}: expected `CLASS:kind question`, CLASS one of {', '.join(_QUESTIONS)}")
        yield _words(question), None, _QUESTIONS.index(coarse)


def _read_sentiment(path: Path) -> Iterator[_Row]:
    """Read SST: a sentence, a tab, 0 or 1."""
    for number, line in enumerate(read_file_lines(path), start=1):
        if not line.strip():
            continue
        fields = line.strip().split("\t")
        if len(fields) != 2:
            raise UsageError(f"{path}:{number}: expected a sentence and a label with a tab between them")
        yield _words(fields[0]), None, _label(fields[1], path, number)


def _read_paraphrases(path: Path) -> Iterator[_Row]:
    """Read MRPC: a header, then label, two numbers and two sentences with tabs between them; quotes are text."""
    for number, line in enumerate(read_file_lines(path)[1:], start=2):
        if not line.strip():
            continue
        fields = line.strip().split("\t")
        if len(fields) != 5:
            raise UsageError(f"{path}:{number}: expected 5 columns with tabs between them, found {len(fields)}")
        yield _words(fields[3]), _words(fields[4]), _label(fields[0], path, number)


def _label(text: str, path: Path, number: int) -> int:
    if text not in ("0", "1"):
        raise UsageError(f"{path}:{number}: the label {text!r} is neither 0 nor 1")
    return int(text)


def _words(sentence: str) -> str:
    return " ".join(sentence.split())


def _polarity(folder: str, first: str, second: str, examples: int | None) -> _Files:
    return _Files(folder, {"all": (first, second)}, _read_polarity, {} if examples is None else {"all": examples})


#: The tasks in the column order of the papers' tables.
_TASKS: dict[str, _Files] = {
    "MR": _polarity("MR", "rt-polarity.pos", "rt-polarity.neg", 10662),
    "CR": _polarity("CR", "custrev.pos", "custrev.neg", None),
    "SUBJ": _polarity("SUBJ", "subj.objective", "subj.subjective", 10000),
    "MPQA": _polarity("MPQA", "mpqa.pos", "mpqa.neg", None),
    "SST-2": _Files(
        "SST/binary",
        {"train": ("sentiment-train",), "dev": ("sentiment-dev",), "test": ("sentiment-test",)},
        _read_sentiment,
        {"train": 67349, "dev": 872, "test": 1821},
    ),
    "TREC": _Files(
        "TREC",
        {"train": ("train_5500.label",), "test": ("TREC_10.label",)},
        _read_questions,
        {"train": 5452, "test": 500},
    ),
    "MRPC": _Files(
        "MRPC",
        {"train": ("msr_paraphrase_train.txt",), "test": ("msr_paraphrase_test.txt",)},
        _read_paraphrases,
        {"train": 4076, "test": 1725},
    ),
}
TRANSFER_TASKS = tuple(_TASKS)


def transfer_names(given: Sequence[str]) -> list[str]:
    """Return the tasks named, in the papers' order; none: all seven.

    Raises:
        UsageError: A name that is no task.
    """
    for name in given:
        if name not in _TASKS:
            raise unknown("task", name, _TASKS)
    return [name for name in _TASKS if name in given] or list(_TASKS)


def load_transfer(data_dir: Path, names: Sequence[str]) -> LoadedTransfer:
    """Read tasks from a SentEval `downstream` folder, or a folder that holds one.

    Args:
        data_dir: The folder, or one with a `senteval`, `downstream` or `data/downstream` folder inside.
        names: The tasks wanted.

    Raises:
        NotFoundError: There is no such folder.
        UsageError: A malformed or unreadable file, by name and line.
    """
    root = senteval_root(data_dir, [files.folder.split("/")[0] for files in _TASKS.values()])
    tasks, missing = [], {}
    for name in names:
        files = _TASKS[name]
        try:
            paths = {
                split: [existing(root / files.folder / file) for file in listed]
                for split, listed in files.splits.items()
            }
        except NotFoundError as error:
            missing[name] = str(error)
            continue
        tasks.append(TransferTask(name, {split: _examples(listed, files.read) for split, listed in paths.items()}))
    return LoadedTransfer(tasks, missing)


def unexpected_counts(task: TransferTask) -> dict[str, tuple[int, int]]:
    """Return, for each split whose size is not the printed one, how many examples it holds and how many are printed."""
    expected = _TASKS[task.name].examples
    counts = {split: (len(task.splits[split]), number) for split, number in expected.items()}
    return {split: pair for split, pair in counts.items() if pair[0] != pair[1]}


def _examples(paths: Sequence[Path], read: Callable[[Path], Iterator[_Row]]) -> LabelledExamples:
    rows = [row for path in paths for row in read(path)]
    if not any(row[0] for row in rows):
        raise UsageError(f"{paths[0]}: holds no sentences")
    rows.sort(key=lambda row: (len(row[0].split()), len((row[1] or "").split()), row[2]))
    first, second, labels = zip(*rows, strict=True)
    pairs = None if second[0] is None else list(second)
    return LabelledExamples(list(first), pairs, np.array(labels, dtype=np.int64))
