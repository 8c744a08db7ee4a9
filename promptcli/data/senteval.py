"""Readers of a SentEval `downstream` folder, the official SemEval files included: rows of sentences
and gold.

Raw text goes through the Moses tokeniser (STS), or through `cat -v` and the Treebank's tokeniser
(MR, CR, SUBJ, MPQA). Source: SentEval, data/downstream/get_transfer_data.bash. Its own output is a
fixed point of all three, so a folder that the script made is unchanged.
"""

import contextlib
import csv
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import ParamSpec, TypeVar

from promptcli.data.column_forms import finite_number
from promptcli.data.input_files import read_lines
from promptcli.errors import NotFoundError, UsageError
from promptcli.notes import keyword

#: A sentence, the other one of a pair, and the gold score or class number.
GoldRow = tuple[str, str | None, float]
#: The rows of a task: of each subset of an STS task, of each split of a transfer task.
Parts = dict[str, list[GoldRow]]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_FOLDER: ContextVar[Path | None] = ContextVar("promptcli_senteval", default=None)


def senteval_folder() -> Path | None:
    """Return the folder that holds the tasks in this context; None: the hub does."""
    return _FOLDER.get()


@contextlib.contextmanager
def tasks_from(folder: str | Path | None) -> Iterator[None]:
    """Read tasks that are named in the block from a SentEval `downstream` folder.

    None changes nothing.
    """
    before = _FOLDER.set(_FOLDER.get() if folder is None else Path(folder))
    try:
        yield
    finally:
        _FOLDER.reset(before)


def senteval_root(folder: Path, inside: Sequence[str]) -> Path:
    """Return the folder that holds one of the folders ``inside``: the one given, or a usual one
    within it.
    """
    if not folder.is_dir():
        shown = ", ".join(f"{name}/" for name in inside)
        raise NotFoundError(
            f"{keyword('data_dir')} {folder}: no such folder; give a SentEval `downstream` folder"
            f" ({shown})"
        )
    for inner in (".", "senteval", "downstream", "data/downstream"):
        root = folder / inner
        if any((root / name).is_dir() for name in inside):
            return root
    raise NotFoundError(
        f"{keyword('data_dir')} {folder}: no {' or '.join(inside)} folder in it, nor in its"
        " senteval/, downstream/"
    )


def _lines(path: Path, encoding: str = "utf-8-sig") -> list[str]:
    """Return the lines of a file.

    One that ends with a line feed has an empty last line: in a .gs file that may be a pair without
    a score.
    """
    lines = list(read_lines(path, encoding))
    sentences = [line.removesuffix("\n") for line in lines]
    if not lines or lines[-1].endswith("\n"):
        sentences.append("")
    return sentences


_INPUT = re.compile(r"(STS(?:\d{4})?)\.input\.(.+)\.txt")
#: Not subsets: all of them together, and one that was left out for its licence.
_NO_SUBSETS = {"ALL", "SMT"}


def read_year(root: Path, task: str) -> Parts:
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
    inputs = _lines(path)
    golds = _lines(gold_path)
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
        if not gold.strip():  # STS15 and STS16: most pairs were never scored
            continue
        fields = line.split("\t")
        if len(fields) < 2:
            raise UsageError(f"{path}:{number}: expected two sentences with a tab between them")
        rows.append((_words(fields[0]), _words(fields[1]), _score(gold, gold_path, number)))
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
) -> Parts:
    """Read the files of each split in a task's folder, one after another.

    With ``by_length`` rows are in the order by which SentEval draws the folds of a transfer task:
    by words, then by label.
    """
    paths = {split: [root / folder / file for file in files] for split, files in splits.items()}
    if missing := next(
        (path for path in itertools.chain(*paths.values()) if not path.exists()), None
    ):
        raise NotFoundError(f"{missing} is missing")
    parts = {
        split: [row for path in listed for row in read(path)] for split, listed in paths.items()
    }
    for split, rows in parts.items():
        if not any(row[0] for row in rows):
            raise UsageError(f"{paths[split][0]}: holds no sentences")
        if by_length:
            rows.sort(key=lambda row: (len(row[0].split()), len((row[1] or "").split()), row[2]))
    return parts


def read_benchmark(path: Path) -> Iterator[GoldRow]:
    """Read STS-B: tabs in spite of `.csv`, no header, score in column 5, sentences in 6 and 7,
    licences after.
    """
    for number, fields in _table(path, 7):
        yield _words(fields[5]), _words(fields[6]), _score(fields[4], path, number)


#: The languages of STS-B in machine translation (stsb-multi-mt), the original among them.
TRANSLATIONS = ("en", "de", "es", "fr", "it", "nl", "pl", "pt", "ru", "zh", "ja")
TRANSLATED_FOLDER = "stsb-multi"


def read_translation(path: Path) -> Iterator[GoldRow]:
    """Read a file of stsb-multi-mt: two sentences and a score with commas between them."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        for number, fields in enumerate(csv.reader(file), start=1):
            if len(fields) != 3:
                raise UsageError(
                    f"{path}: row {number}: expected two sentences and a score, found"
                    f" {len(fields)} fields"
                )
            yield fields[0], fields[1], _score(fields[2], path, number)


def read_sick(path: Path) -> Iterator[GoldRow]:
    """Read a SICK file: tab-separated, the header names the columns."""
    header = [field.strip() for field in _lines(path)[0].split("\t")]
    wanted = ("sentence_A", "sentence_B", "relatedness_score")
    if not set(wanted) <= set(header):
        raise UsageError(f"{path}:1: expected a header with the columns {', '.join(wanted)}")
    first, second, score = (header.index(column) for column in wanted)
    for number, fields in _table(path, len(header), start=2):
        yield _words(fields[first]), _words(fields[second]), _score(fields[score], path, number)


def read_polarity(path: Path) -> Iterator[GoldRow]:
    """Read one class of MR, CR, SUBJ or MPQA: Latin-1, a sentence a line.

    Empty lines are examples, too.
    """
    lines = _lines(path, "latin-1")
    label = int(path.name in _FIRST_CLASS)
    if not lines[-1]:  # after the last line feed
        lines.pop()
    for line in lines:
        yield treebank(visible_bytes(line)), None, label


#: Files of class 1; SentEval puts SUBJ's objective sentences there.
_FIRST_CLASS = {"rt-polarity.pos", "custrev.pos", "subj.objective", "mpqa.pos"}
_QUESTIONS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")


def read_questions(path: Path) -> Iterator[GoldRow]:
    """Read TREC: Latin-1, ``COARSE:fine question``; quotes are taken out."""
    for number, [line, *_] in _table(path, 1, encoding="latin-1"):
        kind, _, question = line.replace("`", "").replace("'", "").strip().partition(" ")
        coarse, colon, _ = kind.partition(":")
        if not colon or coarse not in _QUESTIONS:
            raise UsageError(
                f"{path}:{number}: expected `CLASS:kind question`, CLASS one of"
                f" {', '.join(_QUESTIONS)}"
            )
        yield _words(question), None, _QUESTIONS.index(coarse)


def read_sentiment(path: Path) -> Iterator[GoldRow]:
    """Read SST: a sentence, a tab, 0 or 1."""
    for number, fields in _table(path, 2):
        yield _words(fields[0]), None, _label(fields[1], path, number)


def read_paraphrases(path: Path) -> Iterator[GoldRow]:
    """Read MRPC: a header, then label, two numbers and two sentences with tabs between them.

    Quotes are text.
    """
    for number, fields in _table(path, 5, start=2):
        yield _words(fields[3]), _words(fields[4]), _label(fields[0], path, number)


def _table(
    path: Path, columns: int, *, start: int = 1, encoding: str = "utf-8-sig"
) -> Iterator[tuple[int, list[str]]]:
    """Yield number and fields of the lines from ``start`` on, without empty ones.

    Quotes are text, often unbalanced.
    """
    for number, line in enumerate(_lines(path, encoding), start=1):
        if number < start or not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) < columns:
            raise UsageError(
                f"{path}:{number}: expected {columns} columns, found {len(fields)}; separate them"
                " by tabs"
            )
        yield number, fields


def _score(text: str, path: Path, number: int) -> float:
    value = finite_number(text)
    if value is None:
        raise UsageError(f"{path}:{number}: the score {text.strip()!r} is not a number")
    return value


def _label(text: str, path: Path, number: int) -> int:
    if text.strip() not in ("0", "1"):
        raise UsageError(f"{path}:{number}: the label {text.strip()!r} is neither 0 nor 1")
    return int(text)


def _words(sentence: str) -> str:
    return " ".join(sentence.split())


def moses(sentences: Sequence[str], *, lower: bool) -> list[str]:
    """Tokenise like Moses' `tokenizer.perl -l en -no-escape`, joined by spaces, and lower-case on
    request.

    SentEval's published text is a fixed point of that tokeniser: it holds ``russia ' s``, while one
    pass makes ``russia 's`` and a second one ``russia ' s``. So two passes are made; a tokeniser
    that splits at punctuation itself, like BERT's, sees no difference.
    """
    from sacremoses import MosesTokenizer  # slow to import, and text of a folder does not need it

    once = functools.partial(MosesTokenizer(lang="en").tokenize, return_str=True, escape=False)
    twice = {sentence: once(once(sentence)) for sentence in dict.fromkeys(sentences)}
    return [twice[sentence].lower() if lower else twice[sentence] for sentence in sentences]


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
