"""Readers of a SentEval `downstream` folder, also with the official SemEval files: they return rows
of sentences and gold scores.

Raw text goes through the Moses tokeniser (STS), or through `cat -v` and the Treebank's tokeniser
(MR, CR, SUBJ, MPQA). Source: SentEval, data/downstream/get_transfer_data.bash. The text of a folder
that this script made does not change, since the script's output is a fixed point of all three.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path

from promptcli.data.cells import finite_number
from promptcli.data.input_files import read_lines
from promptcli.errors import NotFoundError, UsageError

#: A sentence, the second sentence of a pair, and the gold score or the number of the class.
GoldRow = tuple[str, str | None, float]
#: The rows of each subset of an STS task, or of each split of a transfer task.
GoldRows = dict[str, list[GoldRow]]

_FOLDER: ContextVar[Path | None] = ContextVar("promptcli_senteval", default=None)


def senteval_folder() -> Path | None:
    """Return the folder of the tasks in this context; None: they come from the hub."""
    return _FOLDER.get()


@contextlib.contextmanager
def tasks_from(folder: str | Path | None) -> Iterator[None]:
    """Read the tasks that the block names from a SentEval `downstream` folder; None changes
    nothing.
    """
    before = _FOLDER.set(_FOLDER.get() if folder is None else Path(folder))
    try:
        yield
    finally:
        _FOLDER.reset(before)


def lines_of(path: Path, encoding: str = "") -> list[str]:
    """Return the lines of a file; after a final line feed there is an empty line.

    In a .gs file the empty line may be a pair without a score.
    """
    return "".join(read_lines(path, encoding)).split("\n")


_INPUT = re.compile(r"(STS(?:\d{4})?)\.input\.(.+)\.txt")
#: Names in file names that are not subsets: the union of all, and one that its licence excludes.
_NO_SUBSETS = {"ALL", "SMT"}


def read_year(root: Path, task: str) -> GoldRows:
    """Read the subsets of STS12 ... STS16: `STS.input.NAME.txt` (2 columns or more), scores in
    `STS.gs.NAME.txt`.
    """
    folder = root / "STS" / f"{task}-en-test"
    if not folder.is_dir():
        raise NotFoundError(f"{folder} is missing")
    subsets = {}
    for path in sorted(folder.iterdir()):
        match = _INPUT.fullmatch(path.name)
        if match is None or match[2] in _NO_SUBSETS:
            continue
        gold_path = folder / f"{match[1]}.gs.{match[2]}.txt"
        if not gold_path.is_file():
            raise UsageError(f"{path}: its scores, {gold_path.name}, are not next to it")
        subsets[match[2]] = _read_subset(path, gold_path)
    if not subsets:
        raise NotFoundError(f"{folder} holds no STS.input.*.txt")
    return subsets


def _read_subset(path: Path, gold_path: Path) -> list[GoldRow]:
    inputs = lines_of(path)
    golds = lines_of(gold_path)
    while inputs and not inputs[-1].strip():
        inputs.pop()
    if len(golds) < len(inputs) or any(line.strip() for line in golds[len(inputs) :]):
        while golds and not golds[-1].strip():
            golds.pop()
        raise UsageError(
            f"{gold_path}:{len(golds)}: {len(golds)} scores for the {len(inputs)} lines of"
            f" {path.name}"
        )
    rows: list[GoldRow] = []
    for number, (line, gold) in enumerate(zip(inputs, golds, strict=False), start=1):
        if not gold.strip():  # most pairs of STS15 and STS16 were never scored
            continue
        fields = line.split("\t")
        if len(fields) < 2:
            raise UsageError(f"{path}:{number}: expected two sentences with a tab between them")
        rows.append(
            (words_of(fields[0]), words_of(fields[1]), _read_score(gold, gold_path, number))
        )
    if not rows:
        raise UsageError(f"{gold_path}: holds no scored pairs")
    return rows


def read_splits(
    root: Path,
    folder: str,
    splits: Mapping[str, Sequence[str]],
    read: Callable[[Path], Iterable[GoldRow]],
    *,
    by_length: bool = False,
) -> GoldRows:
    """Read the files of each split in a task's folder, one file after another.

    With ``by_length`` the rows are sorted by number of words, then by label. SentEval draws the
    folds of a transfer task in this order.
    """
    rows: GoldRows = {}
    for split, files in splits.items():
        paths = [root / folder / file for file in files]
        for path in paths:
            if not path.exists():
                raise NotFoundError(f"{path} is missing")
        rows[split] = [row for path in paths for row in read(path)]
        if not any(row[0] for row in rows[split]):
            raise UsageError(f"{paths[0]}: holds no sentences")
        if by_length:
            rows[split].sort(
                key=lambda row: (len(row[0].split()), len((row[1] or "").split()), row[2])
            )
    return rows


def read_benchmark(path: Path) -> Iterator[GoldRow]:
    """Read STS-B: cells between tabs in spite of `.csv`, no header, the score in column 5, and the
    sentences in columns 6 and 7.
    """
    for number, fields in table_rows(path, 7):
        yield words_of(fields[5]), words_of(fields[6]), _read_score(fields[4], path, number)


#: The languages of STS-B in machine translation (stsb-multi-mt), the original among them.
TRANSLATIONS = ("en", "de", "es", "fr", "it", "nl", "pl", "pt", "ru", "zh", "ja")
TRANSLATED_FOLDER = "stsb-multi"


def read_sick(path: Path) -> Iterator[GoldRow]:
    """Read a SICK file: tab-separated, the header names the columns."""
    header = [field.strip() for field in lines_of(path)[0].split("\t")]
    columns = ("sentence_A", "sentence_B", "relatedness_score")
    if not set(columns) <= set(header):
        raise UsageError(f"{path}:1: expected a header with the columns {', '.join(columns)}")
    first, second, score = map(header.index, columns)
    for number, fields in table_rows(path, len(header), start=2):
        yield (
            words_of(fields[first]),
            words_of(fields[second]),
            _read_score(fields[score], path, number),
        )


def table_rows(
    path: Path, columns: int, *, start: int = 1, encoding: str = ""
) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the fields of each line from ``start`` on that is not empty.

    Quotes are text; many are unbalanced.
    """
    for number, line in enumerate(lines_of(path, encoding), start=1):
        if number < start or not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) < columns:
            raise UsageError(
                f"{path}:{number}: expected {columns} columns, found {len(fields)}; separate them"
                " by tabs"
            )
        yield number, fields


def _read_score(text: str, path: Path, number: int) -> float:
    value = finite_number(text)
    if value is None:
        raise UsageError(f"{path}:{number}: the score {text.strip()!r} is not a number")
    return value


def words_of(sentence: str) -> str:
    """Return a sentence with one space between its words."""
    return " ".join(sentence.split())


def moses(sentences: Sequence[str], *, lower: bool) -> list[str]:
    """Tokenise like Moses' `tokenizer.perl -l en -no-escape`, join by spaces, and optionally
    lower-case.

    Two passes are made, because SentEval's published text is a fixed point of the tokeniser: one
    pass makes ``russia 's``, a second one ``russia ' s``. A tokeniser that splits at punctuation
    itself, like BERT's, makes the same tokens of both.
    """
    from sacremoses import MosesTokenizer  # slow to import, and only text of the hub needs it

    once = functools.partial(MosesTokenizer(lang="en").tokenize, return_str=True, escape=False)
    twice = {sentence: once(once(sentence)) for sentence in dict.fromkeys(sentences)}
    return [twice[sentence].lower() if lower else twice[sentence] for sentence in sentences]
