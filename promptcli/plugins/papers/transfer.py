"""Transfer tasks: SentEval's data sets, scored by its classifier on frozen vectors."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from promptcli import errors
from promptcli.data.senteval import GoldRow, Parts, lines_of, read_splits, table_rows, words_of
from promptcli.data.task_table import TaskName, TaskRow
from promptcli.data.tasks import OtherTask, hash_lines
from promptcli.data.vectors.precision import check_finite
from promptcli.errors import UsageError
from promptcli.evaluation import statistics
from promptcli.evaluation.scores import ExampleScore
from promptcli.notes import note

if TYPE_CHECKING:
    from promptcli.evaluation.evaluator import EvalSettings, TaskVectors

#: The tasks of the papers' tables, in their order.
NAMES = ("MR", "CR", "SUBJ", "MPQA", "SST-2", "TREC", "MRPC")


@dataclass(frozen=True, kw_only=True)
class AccuracyScore(ExampleScore):
    """Accuracy x 100 of a linear classifier on an encoder's frozen vectors."""

    averaged_over: ClassVar[tuple[str, ...]] = NAMES

    metric: str = "accuracy"
    dev: float  #: accuracy on the examples that chose the weight decay
    #: chosen weight decays, one per outer fold
    decays: list[float] = field(metadata={"json": "weight_decays"})
    examples: dict[str, int]  #: number of examples per split
    seconds: float  #: spent on the classifiers
    setting: dict[str, Any] = field(repr=False)  #: of the classifiers: folds, optimizer, seed
    caption: str = field(repr=False)  #: the tables' line about the classifiers


@dataclass(frozen=True)
class TransferTask(OtherTask):
    """A classification task, by split: ``all``, or ``train``, ``test`` and, for SST-2, ``dev``.

    A row has a sentence, the other one of a pair or None, and a class number from 0. Rows are in
    the order in which SentEval draws its folds.
    """

    splits: Parts

    for_transfer: ClassVar[bool] = True
    kept_as: ClassVar[type | None] = AccuracyScore

    @classmethod
    def of(cls, name: TaskName, splits: Parts, folder: Path | None) -> "TransferTask":
        """Return the task of a row in the table of tasks."""
        return cls(name.task, splits)

    def sentences(self) -> Iterator[str]:
        for rows in self.splits.values():
            for side in _sides(rows):
                yield from side

    def sha256(self) -> str:
        """Return the hex SHA-256 over the splits' names, sentences and labels."""
        return hash_lines(
            f"{split}\t{first}\t{second or ''}\t{int(label)}"
            for split, rows in self.splits.items()
            for first, second, label in rows
        )

    def check(self, settings: "EvalSettings") -> None:
        """Refuse labels on which no classifier can be trained, and note empty sentences."""
        from promptcli.plugins.papers.classifier import check_labels, training_of

        errors.require("sklearn", extra="transfer")
        empty = sum(not sentence for sentence in self.sentences())
        if empty:
            note(f"{self.name}: {empty} empty sentences are also classified, as in SentEval")
        labels = {split: labels_of(rows) for split, rows in self.splits.items()}
        check_labels(self.name, labels, training_of(settings))

    def settings(self, settings: "EvalSettings") -> dict[str, Any]:
        from promptcli.plugins.papers.classifier import training_of

        return vars(training_of(settings))

    def scores(
        self, embedded: "Sequence[TaskVectors]", settings: "EvalSettings"
    ) -> list[AccuracyScore]:
        return [self._score(encoded, settings) for encoded in embedded]

    def _score(self, encoded: "TaskVectors", settings: "EvalSettings") -> AccuracyScore:
        from promptcli.plugins.papers.classifier import classify, training_of

        training = training_of(settings)
        start = time.perf_counter()
        check_finite(encoded.vectors, list(encoded.row_of))
        splits = {}
        for split, rows in self.splits.items():
            splits[split] = (features(encoded, rows), labels_of(rows))
        device = "cpu" if encoded.encoder is None else str(encoded.encoder.device)
        outcome = classify(splits, training, device=device, task=self.name)
        low, high = statistics.mean_interval(outcome.right)
        return AccuracyScore(
            **encoded.names,
            task=self.name,
            value=outcome.test,
            dev=outcome.dev,
            decays=outcome.decays,
            examples={split: len(rows) for split, rows in self.splits.items()},
            data_sha256=self.sha256(),
            seconds=time.perf_counter() - start,
            setting={name: getattr(training, name) for name in ("folds", "optimizer", "seed")},
            caption=training.caption(),
            ci95=(100 * low, 100 * high),
            by_example=outcome.right,
        )


def _sides(rows: Sequence[GoldRow]) -> list[list[str]]:
    """Return the first sentences, and for pairs the second ones."""
    first, second, _ = zip(*rows, strict=True)
    return [list(first)] if second[0] is None else [list(first), list(second)]


def labels_of(rows: Sequence[GoldRow]) -> NDArray[np.int64]:
    """Return the class numbers (n,) of labelled rows."""
    return np.array([label for _, _, label in rows], np.int64)


def features(encoded: "TaskVectors", rows: Sequence[GoldRow]) -> NDArray[Any]:
    """Return the classifier's input: vectors of sentences (n, d), or features of pairs (n, 2d)."""
    sides = [encoded.of(side) for side in _sides(rows)]
    return sides[0] if len(sides) == 1 else pair_features(*sides)


def pair_features(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Return (n, 2d): |u - v| next to u * v, for vectors u and v (n, d) (SentEval, mrpc.py)."""
    return np.concatenate([np.abs(first - second), first * second], axis=1)


def read_polarity(path: Path) -> Iterator[GoldRow]:
    """Read one class of MR, CR, SUBJ or MPQA: Latin-1, one sentence per line.

    Empty lines are also examples.
    """
    lines = lines_of(path, "latin-1")
    label = int(path.name in _FIRST_CLASS)
    if not lines[-1]:  # after the last line feed
        lines.pop()
    for line in lines:
        yield treebank(visible_bytes(line)), None, label


#: Files of class 1; SentEval puts SUBJ's objective sentences there.
_FIRST_CLASS = {"rt-polarity.pos", "custrev.pos", "subj.objective", "mpqa.pos"}
_QUESTIONS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")


def read_questions(path: Path) -> Iterator[GoldRow]:
    """Read TREC: Latin-1, ``COARSE:fine question``; quotes are removed."""
    for number, [line, *_] in table_rows(path, 1, encoding="latin-1"):
        kind, _, question = line.replace("`", "").replace("'", "").strip().partition(" ")
        coarse, colon, _ = kind.partition(":")
        if not colon or coarse not in _QUESTIONS:
            raise UsageError(
                f"{path}:{number}: expected `CLASS:kind question`, CLASS one of"
                f" {', '.join(_QUESTIONS)}"
            )
        yield words_of(question), None, _QUESTIONS.index(coarse)


def read_sentiment(path: Path) -> Iterator[GoldRow]:
    """Read SST: a sentence, a tab, 0 or 1."""
    for number, fields in table_rows(path, 2):
        yield words_of(fields[0]), None, _label(fields[1], path, number)


def read_paraphrases(path: Path) -> Iterator[GoldRow]:
    """Read MRPC: a header, then label, two numbers and two sentences with tabs between them.

    Quotes are text.
    """
    for number, fields in table_rows(path, 5, start=2):
        yield words_of(fields[3]), words_of(fields[4]), _label(fields[0], path, number)


def _label(text: str, path: Path, number: int) -> int:
    if text.strip() not in ("0", "1"):
        raise UsageError(f"{path}:{number}: the label {text.strip()!r} is neither 0 nor 1")
    return int(text)


def _show_byte(byte: int) -> str:
    low = byte & 0x7F
    if low == 0x7F:
        shown = "^?"
    else:
        shown = chr(low) if low >= 0x20 else "^" + chr(low + 0x40)
    if byte >= 0x80:
        return f"M-{shown}"
    return chr(byte) if chr(byte) in "\t\n" else shown


_VISIBLE = {byte: _show_byte(byte) for byte in range(256)}


def visible_bytes(text: str) -> str:
    """Write Latin-1 text in printable ASCII as `cat -v` does: ``é`` becomes ``M-i``.

    Tabs and line feeds stay.
    """
    return text.translate(_VISIBLE)


#: A double quote opens at the start, and after a space or an opening bracket; every other one
#: closes.
_OPENING = re.compile(r'(^|[ (\[{<])"')
#: The last full stop is split off: one inside may belong to an abbreviation.
_LAST_STOP = re.compile(r"""(?<=[^.])\.([\])}>"']*)[ \t]*$""")
_MARKS = re.compile(r"\.\.\.|--|[,;:@#$%&?!\[\](){}<>]")
_CLOSING = re.compile(r"(?<=[^'])'(?= )")
_CLITICS = re.compile(r"(?:n't|N'T|'(?:[sSmMdD]|ll|LL|re|RE|ve|VE))(?= )")
_TWO_WORDS = (
    ("[Cc]an", "not"),
    ("[Dd]'", "ye"),
    ("[Gg]im", "me"),
    ("[Gg]on", "na"),
    ("[Gg]ot", "ta"),
    ("[Ll]em", "me"),
    ("[Mm]ore", "'n"),
    ("'[Tt]", "is"),
    ("'[Tt]", "was"),
    ("[Ww]an", "na"),
)
_MERGED = [re.compile(f" ({first})({second})(?= )") for first, second in _TWO_WORDS]


def treebank(line: str) -> str:
    """Split a line into the words of the Penn Treebank, joined by spaces: ``it's "fair"`` is ``it
    's `` fair ''``.
    """
    line = _OPENING.sub(r"\1 `` ", line)
    line = _LAST_STOP.sub(r" .\1 ", line)
    line = _MARKS.sub(r" \g<0> ", line)
    line = _CLOSING.sub(" '", " " + line.replace('"', " '' ") + " ")
    line = _CLITICS.sub(r" \g<0>", line)
    for merged in _MERGED:
        line = merged.sub(r" \1 \2", line)
    return " ".join(line.split())


def _transfer(
    folder: str, read: Callable[[Path], Iterator[GoldRow]], **splits: Sequence[str]
) -> TaskRow:
    read_all = partial(read_splits, folder=folder, splits=splits, read=read, by_length=True)
    return TaskRow("accuracy", read_all, folder, make=TransferTask.of)


MR = _transfer("MR", read_polarity, all=["rt-polarity.pos", "rt-polarity.neg"])
CR = _transfer("CR", read_polarity, all=["custrev.pos", "custrev.neg"])
SUBJ = _transfer("SUBJ", read_polarity, all=["subj.objective", "subj.subjective"])
MPQA = _transfer("MPQA", read_polarity, all=["mpqa.pos", "mpqa.neg"])
SST2 = _transfer(
    "SST/binary",
    read_sentiment,
    train=["sentiment-train"],
    dev=["sentiment-dev"],
    test=["sentiment-test"],
)
TREC = _transfer("TREC", read_questions, train=["train_5500.label"], test=["TREC_10.label"])
MRPC = _transfer(
    "MRPC",
    read_paraphrases,
    train=["msr_paraphrase_train.txt"],
    test=["msr_paraphrase_test.txt"],
)
