"""Readers of a SentEval `downstream` folder, the official SemEval files included: rows of sentences and gold.

Every quirk of the native formats is met here. STS: line-aligned gold with empty lines, unbalanced quotes, several
columns; words are joined by one blank, as SentEval does. MR, CR, SUBJ and MPQA become what SentEval's folder holds
whether the files are its own or the raw ones; TREC loses its quotes; SST and MRPC stay.

What is done to raw text: the Moses tokeniser for STS, visible bytes and Treebank words for the rest. Source: SentEval,
data/downstream/get_transfer_data.bash (`cat -v`, then the Treebank's tokeniser). Its own output is a fixed point of all
three, so a folder that the script made is left as it is.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from promptcli.data.streams import check_file
from promptcli.errors import NotFoundError, UsageError

#: A sentence, the other one of a pair, and the gold score or class number.
GoldRow = tuple[str, str | None, float]
#: The rows of a task: of each subset of an STS task, of each split of a transfer task.
Parts = dict[str, list[GoldRow]]

_BOM = b"\xef\xbb\xbf"


def senteval_root(data_dir: Path, inside: Sequence[str]) -> Path:
    """Return the folder that holds one of the folders ``inside``: the one given, or a usual one within it.

    Raises:
        NotFoundError: There is none.
    """
    if not data_dir.is_dir():
        shown = ", ".join(f"{name}/" for name in inside)
        raise NotFoundError(f"--data-dir {data_dir}: no such folder; give a SentEval `downstream` folder ({shown})")
    for inner in (".", "senteval", "downstream", "data/downstream"):
        root = data_dir / inner
        if any((root / name).is_dir() for name in inside):
            return root
    raise NotFoundError(
        f"--data-dir {data_dir}: no {' or '.join(inside)} folder in it, nor in senteval/ or downstream/ inside it"
    )


def existing(path: Path) -> Path:
    """Return the path.

    Raises:
        NotFoundError: Nothing is there.
    """
    if not path.exists():
        raise NotFoundError(f"{path} is not there")
    return path


def read_file_lines(path: Path, encoding: str = "utf-8") -> list[str]:
    r"""Return the text between line feeds: `splitlines` would also split at characters that stand inside sentences.

    Raises:
        NotFoundError: There is no such file.
        UsageError: It is a folder, may not be read, or is not in the encoding; with the line.
    """
    check_file(path)
    data = path.read_bytes().removeprefix(_BOM)
    try:
        return data.decode(encoding).split("\n")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}:{line}: not UTF-8 (byte 0x{data[error.start]:02x})") from None


_INPUT = re.compile(r"(STS(?:\d{4})?)\.input\.(.+)\.txt")
#: Files that are no subsets: all of them together, and the one that was left out for its licence.
_NO_SUBSETS = {"ALL", "SMT"}


def read_year(root: Path, task: str) -> Parts:
    """Read the subsets of STS12 ... STS16: `STS.input.NAME.txt` (2 columns or more), scores in `STS.gs.NAME.txt`."""
    folder = existing(root / "STS" / f"{task}-en-test")
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
    inputs, golds = read_file_lines(path), read_file_lines(gold_path)
    while inputs and not inputs[-1].strip():
        inputs.pop()
    if len(golds) < len(inputs) or any(line.strip() for line in golds[len(inputs) :]):
        while golds and not golds[-1].strip():
            golds.pop()
        raise UsageError(f"{gold_path}:{len(golds)}: {len(golds)} scores for the {len(inputs)} lines of {path.name}")
    rows = []
    for number, (line, gold) in enumerate(zip(inputs, golds, strict=False), start=1):
        if not gold.strip():  # STS15 and STS16: most pairs were never scored
            continue
        fields = line.split("\t")
        if len(fields) < 2:
            raise UsageError(f"{path}:{number}: expected two sentences with a tab between them")
        rows.append((fields[0], fields[1], _score(gold, gold_path, number)))
    return _scored(rows, gold_path)


def read_benchmark(root: Path, splits: Sequence[str]) -> Parts:
    """Read splits of STS-B."""
    return {split: _read_benchmark(existing(root / "STS" / "STSBenchmark" / f"sts-{split}.csv")) for split in splits}


def _read_benchmark(path: Path) -> list[GoldRow]:
    """Read STS-B: tabs in spite of `.csv`, no header, score in column 5, sentences in 6 and 7, licences after."""
    rows = []
    for number, fields in _table(path):
        if len(fields) < 7:
            raise UsageError(f"{path}:{number}: expected 7 columns or more with tabs between them, found {len(fields)}")
        rows.append((fields[5], fields[6], _score(fields[4], path, number)))
    return _scored(rows, path)


def read_sick(root: Path, files: Mapping[str, str]) -> Parts:
    """Read files of SICK, given by the names of the subsets that they become."""
    return {split: _read_sick(existing(root / "SICK" / file)) for split, file in files.items()}


def _read_sick(path: Path) -> list[GoldRow]:
    """Read a SICK file: tab-separated, the header names the columns."""
    table = _table(path)
    header = [field.strip() for field in next(table, (1, []))[1]]
    wanted = ("sentence_A", "sentence_B", "relatedness_score")
    if not set(wanted) <= set(header):
        raise UsageError(f"{path}:1: expected a header with the columns {', '.join(wanted)}")
    first, second, score = (header.index(column) for column in wanted)
    rows = []
    for number, fields in table:
        if len(fields) < len(header):
            raise UsageError(f"{path}:{number}: expected {len(header)} columns, found {len(fields)}")
        rows.append((fields[first], fields[second], _score(fields[score], path, number)))
    return _scored(rows, path)


def _table(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, fields) of the lines that are not blank; quotes are text, since they come unbalanced."""
    return ((number, line.split("\t")) for number, line in enumerate(read_file_lines(path), start=1) if line.strip())


def _score(text: str, path: Path, number: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise UsageError(f"{path}:{number}: the score {text.strip()!r} is no number")
    return value


def _scored(rows: Sequence[GoldRow], path: Path) -> list[GoldRow]:
    """Return rows with the words of each sentence joined by one blank."""
    if not rows:
        raise UsageError(f"{path}: holds no scored pairs")
    return [(_words(first), _words(second or ""), gold) for first, second, gold in rows]


def read_labelled(
    root: Path, folder: str, splits: Mapping[str, Sequence[str]], read: Callable[[Path], Iterable[GoldRow]]
) -> Parts:
    """Read a transfer task: the files of each split, in the order by which SentEval draws its folds.

    Args:
        root: The `downstream` folder.
        folder: The task's, in it.
        splits: Names of each split's files.
        read: Yields the rows of one file.
    """
    paths = {split: [existing(root / folder / file) for file in files] for split, files in splits.items()}
    parts = {split: [row for path in listed for row in read(path)] for split, listed in paths.items()}
    for split, rows in parts.items():
        if not any(row[0] for row in rows):
            raise UsageError(f"{paths[split][0]}: holds no sentences")
        rows.sort(key=lambda row: (len(row[0].split()), len((row[1] or "").split()), row[2]))  # by words, then by label
    return parts


def read_polarity(path: Path) -> Iterator[GoldRow]:
    """Read one class of MR, CR, SUBJ or MPQA: Latin-1, a sentence a line; blank lines are examples, too."""
    lines = read_file_lines(path, "latin-1")
    label = int(path.name in _FIRST_CLASS)
    for line in lines[: None if lines[-1] else -1]:
        yield treebank(visible(line)), None, label


#: Files of class 1; SentEval puts SUBJ's objective sentences there.
_FIRST_CLASS = {"rt-polarity.pos", "custrev.pos", "subj.objective", "mpqa.pos"}
_QUESTIONS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")


def read_questions(path: Path) -> Iterator[GoldRow]:
    """Read TREC: Latin-1, ``COARSE:fine question``; quotes are taken out."""
    for number, line in enumerate(read_file_lines(path, "latin-1"), start=1):
        if not line.strip():
            continue
        kind, _, question = line.replace("`", "").replace("'", "").strip().partition(" ")
        coarse, colon, _ = kind.partition(":")
        if not colon or coarse not in _QUESTIONS:
            raise UsageError(f"{path}:{number}: expected `CLASS:kind question`, CLASS one of {', '.join(_QUESTIONS)}")
        yield _words(question), None, _QUESTIONS.index(coarse)


def read_sentiment(path: Path) -> Iterator[GoldRow]:
    """Read SST: a sentence, a tab, 0 or 1."""
    for number, line in enumerate(read_file_lines(path), start=1):
        if not line.strip():
            continue
        fields = line.strip().split("\t")
        if len(fields) != 2:
            raise UsageError(f"{path}:{number}: expected a sentence and a label with a tab between them")
        yield _words(fields[0]), None, _label(fields[1], path, number)


def read_paraphrases(path: Path) -> Iterator[GoldRow]:
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


def moses(sentences: Sequence[str], *, lower: bool) -> list[str]:
    """Tokenise like Moses' `tokenizer.perl -l en -no-escape`, joined by blanks, and lower-case on request.

    The text that circulates under SentEval's name is a fixed point of that tokeniser: it holds ``russia ' s`` where one
    pass makes ``russia 's`` and a second one ``russia ' s``. So two passes are made; a tokeniser that splits at
    punctuation itself, like BERT's, sees no difference.
    """
    from sacremoses import MosesTokenizer  # slow to import, and text of a folder does not need it

    tokenizer = MosesTokenizer(lang="en")
    done: dict[str, str] = {}
    for sentence in dict.fromkeys(sentences):
        once = tokenizer.tokenize(sentence, return_str=True, escape=False)
        twice = tokenizer.tokenize(once, return_str=True, escape=False)
        done[sentence] = twice.lower() if lower else twice
    return [done[sentence] for sentence in sentences]


def _shown(byte: int) -> str:
    if byte >= 0x80:
        return "M-" + _shown_low(byte - 0x80)
    return _shown_low(byte) if chr(byte) not in "\t\n" else chr(byte)


def _shown_low(byte: int) -> str:
    if byte == 0x7F:
        return "^?"
    return chr(byte) if byte >= 0x20 else "^" + chr(byte + 0x40)


_VISIBLE = {byte: _shown(byte) for byte in range(256)}


def visible(text: str) -> str:
    """Write Latin-1 text in printable ASCII as `cat -v` does: ``é`` becomes ``M-i``; tabs and line feeds stay."""
    return text.translate(_VISIBLE)


#: A double quote opens at the start, and after a blank or an opening bracket; every other one closes.
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
    """Split a line into the words of the Penn Treebank, joined by blanks: ``it's "fair"`` is ``it 's `` fair ''``."""
    line = _OPENING.sub(r"\1 `` ", line)
    line = _LAST_STOP.sub(r" .\1 ", line)
    line = _MARKS.sub(r" \g<0> ", line)
    line = _CLOSING.sub(" '", " " + line.replace('"', " '' ") + " ")
    line = _CLITICS.sub(r" \g<0>", line)
    for merged in _MERGED:
        line = merged.sub(r" \1 \2", line)
    return " ".join(line.split())
