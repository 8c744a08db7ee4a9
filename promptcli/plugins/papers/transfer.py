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
from promptcli.data.senteval import GoldRow, GoldRows, lines_of, read_splits, table_rows, words_of
from promptcli.data.task_table import TaskName, TaskRow
from promptcli.data.tasks import PluginTask, hash_lines
from promptcli.data.vectors.precision import check_finite
from promptcli.errors import UsageError
from promptcli.evaluation import statistics
from promptcli.evaluation.scores import ExampleScore
from promptcli.notes import note

if TYPE_CHECKING:
    from promptcli.evaluation.evaluator import EvalSettings, TaskVectors
    from promptcli.plugins.papers.classifier import ClassifierTraining

#: The tasks of the papers' tables, in their order.
NAMES = ("MR", "CR", "SUBJ", "MPQA", "SST-2", "TREC", "MRPC")


@dataclass(frozen=True, kw_only=True)
class AccuracyScore(ExampleScore):
    """The accuracy x 100 of linear classifiers on an encoder's frozen vectors."""

    averaged_over: ClassVar[tuple[str, ...]] = NAMES

    metric: str = "accuracy"
    dev: float  #: accuracy on the examples that chose the weight decay
    #: the chosen weight decays, one for each outer fold
    decays: list[float] = field(metadata={"json": "weight_decays"})
    examples: dict[str, int]  #: number of examples by split
    seconds: float  #: time that the classifiers took
    setting: dict[str, Any] = field(repr=False)  #: of the classifiers: folds, optimizer, seed
    caption: str = field(repr=False)  #: describes the classifiers below a table


@dataclass(frozen=True)
class TransferTask(PluginTask):
    """A classification task.

    Its splits are ``all``; or ``train``, ``test`` and, for SST-2, ``dev``. A row has a sentence,
    the second sentence of a pair or None, and the number of a class. Rows are in the order in which
    SentEval draws its folds.
    """

    splits: GoldRows

    for_transfer: ClassVar[bool] = True
    kept_as: ClassVar[type | None] = AccuracyScore

    @classmethod
    def of(cls, name: TaskName, splits: GoldRows, folder: Path | None) -> "TransferTask":
        """Return the task of a row in the table of tasks."""
        return cls(name.task, splits)

    def sentences(self) -> Iterator[str]:
        for rows in self.splits.values():
            yield from (first for first, _, _ in rows)
            yield from (second for _, second, _ in rows if second is not None)

    def sha256(self) -> str:
        """Return the hex SHA-256 over the splits' names, sentences and labels."""
        return hash_lines(
            f"{split}\t{first}\t{second or ''}\t{int(label)}"
            for split, rows in self.splits.items()
            for first, second, label in rows
        )

    def check(self, settings: "EvalSettings") -> None:
        """Refuse labels on which no classifier can be trained, and note empty sentences."""
        from promptcli.plugins.papers.classifier import check_labels

        errors.require_libraries("sklearn", extra="transfer")
        empty = sum(not sentence for sentence in self.sentences())
        if empty:
            note(f"{self.name}: {empty} empty sentences are also classified, as in SentEval")
        labels = {split: labels_of(rows) for split, rows in self.splits.items()}
        check_labels(self.name, labels, _training(settings))

    def score_key(self, settings: "EvalSettings") -> dict[str, Any]:
        return vars(_training(settings))

    def scores(
        self, embedded: "Sequence[TaskVectors]", settings: "EvalSettings"
    ) -> list[AccuracyScore]:
        from promptcli.plugins.papers.classifier import classify

        training = _training(settings)
        scores = []
        for encoded in embedded:
            start = time.perf_counter()
            check_finite(encoded.vectors, list(encoded.row_of))
            splits = {}
            for split, rows in self.splits.items():
                splits[split] = (features(encoded, rows), labels_of(rows))
            device = "cpu" if encoded.encoder is None else str(encoded.encoder.device)
            outcome = classify(splits, training, device=device, task=self.name)
            low, high = statistics.mean_interval(outcome.right)
            score = AccuracyScore(
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
            scores.append(score)
        return scores


def _training(settings: "EvalSettings") -> "ClassifierTraining":
    from promptcli.plugins.papers.classifier import FAST, FULL

    return FAST if settings.fast else FULL


def labels_of(rows: Sequence[GoldRow]) -> NDArray[np.int64]:
    """Return the class numbers of rows, (n,)."""
    return np.array([label for _, _, label in rows], np.int64)


def features(encoded: "TaskVectors", rows: Sequence[GoldRow]) -> NDArray[Any]:
    """Return the classifier's input: vectors of sentences (n, d), or features of pairs (n, 2d)."""
    first = encoded.of([sentence for sentence, _, _ in rows])
    seconds = [sentence for _, sentence, _ in rows if sentence is not None]
    return pair_features(first, encoded.of(seconds)) if seconds else first


def pair_features(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Return |u - v| next to u * v, (n, 2d), for vectors u and v (n, d) (SentEval, mrpc.py)."""
    return np.concatenate([np.abs(first - second), first * second], axis=1)


def read_polarity(path: Path) -> Iterator[GoldRow]:
    """Read a class of MR, CR, SUBJ or MPQA: one sentence a line, in Latin-1.

    Empty lines are also examples.
    """
    lines = lines_of(path, "latin-1")
    label = int(path.name in _CLASS_1_FILES)
    if not lines[-1]:  # what follows the last line feed
        lines.pop()
    for line in lines:
        yield treebank(visible_bytes(line)), None, label


#: The files of class 1; SentEval puts SUBJ's objective sentences there.
_CLASS_1_FILES = {"rt-polarity.pos", "custrev.pos", "subj.objective", "mpqa.pos"}
_QUESTION_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")


def read_questions(path: Path) -> Iterator[GoldRow]:
    """Read TREC: ``COARSE:fine question`` in Latin-1; quotes are removed."""
    for number, [line, *_] in table_rows(path, 1, encoding="latin-1"):
        classes, _, question = line.replace("`", "").replace("'", "").strip().partition(" ")
        coarse, colon, _ = classes.partition(":")
        if not colon or coarse not in _QUESTION_CLASSES:
            raise UsageError(
                f"{path}:{number}: expected `CLASS:kind question`, CLASS one of"
                f" {', '.join(_QUESTION_CLASSES)}"
            )
        yield words_of(question), None, _QUESTION_CLASSES.index(coarse)


def read_sentiment(path: Path) -> Iterator[GoldRow]:
    """Read SST: a sentence, a tab, 0 or 1."""
    for number, fields in table_rows(path, 2):
        yield words_of(fields[0]), None, _label(fields[1], path, number)


def read_paraphrases(path: Path) -> Iterator[GoldRow]:
    """Read MRPC: a header, then rows of a label, two numbers and two sentences, separated by tabs.

    Quotes belong to the text.
    """
    for number, fields in table_rows(path, 5, start=2):
        yield words_of(fields[3]), words_of(fields[4]), _label(fields[0], path, number)


def _label(text: str, path: Path, number: int) -> int:
    if text.strip() not in ("0", "1"):
        raise UsageError(f"{path}:{number}: the label {text.strip()!r} is neither 0 nor 1")
    return int(text)


def _visible_byte(byte: int) -> str:
    if chr(byte) in "\t\n":
        return chr(byte)
    low = byte & 0x7F
    if low == 0x7F:
        shown = "^?"
    else:
        shown = chr(low) if low >= 0x20 else "^" + chr(low + 0x40)
    return f"M-{shown}" if byte >= 0x80 else shown


_VISIBLE_BYTES = {byte: _visible_byte(byte) for byte in range(256)}


def visible_bytes(text: str) -> str:
    """Write Latin-1 text in printable ASCII as `cat -v` does: ``é`` becomes ``M-i``.

    Tabs and line feeds are unchanged.
    """
    return text.translate(_VISIBLE_BYTES)


#: A double quote opens at the start, and after a space or an opening bracket; all others close.
_OPENING = re.compile(r'(^|[ (\[{<])"')
#: Only the last full stop is a word; others may belong to an abbreviation.
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
_MERGED_WORDS = [re.compile(f" ({first})({second})(?= )") for first, second in _TWO_WORDS]


def treebank(line: str) -> str:
    """Split a line into the words of the Penn Treebank, and join these by spaces.

    Example: ``it's "fair"`` becomes ``it 's `` fair ''``.
    """
    line = _OPENING.sub(r"\1 `` ", line)
    line = _LAST_STOP.sub(r" .\1 ", line)
    line = _MARKS.sub(r" \g<0> ", line)
    line = _CLOSING.sub(" '", " " + line.replace('"', " '' ") + " ")
    line = _CLITICS.sub(r" \g<0>", line)
    for merged in _MERGED_WORDS:
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
