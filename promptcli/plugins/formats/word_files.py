"""Word vectors as text, ``glove:FILE``, in word2vec's format, which has a header, or in GloVe's
without a header. The file may be compressed (.gz).
"""

import math
import re
from array import array
from pathlib import Path

import numpy as np

from promptcli.backbones.model_folder import Provenance
from promptcli.backbones.word_tables import WordTable, WordTokenizer
from promptcli.data.input_files import read_lines
from promptcli.errors import UsageError
from promptcli.notes import note
from promptcli.storage import files

_BLANKS = " \t\r\n"  # a word may contain other white space, such as U+00A0
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]+)?|\.[0-9]+)(e[-+]?[0-9]+)?", re.IGNORECASE)


def read_words(name: str) -> WordTable:
    """Read the word vectors of ``glove:FILE``."""
    file = name.partition(":")[2]
    if not file:
        raise UsageError(
            f"{name!r} names no file; give {name}FILE, word vectors as text", parameter="backbone"
        )
    path = Path(file)
    row_of, vectors = read_word_vectors(path)
    note(
        f"{path.name}: {len(vectors) - 1:,} word vectors of {vectors.shape[1]:,} dimensions,"
        f" {vectors.nbytes / 2**20:,.1f} MiB in memory"
    )
    tokenizer = WordTokenizer(row_of)
    provenance = Provenance(name, "glove", None, files.sha256(path), tokenizer.sha256)
    return WordTable(tokenizer, vectors, provenance, path.parent)


def read_word_vectors(path: Path) -> tuple[dict[str, int], np.ndarray]:
    """Return the row of each word, from 1, and the vectors (v + 1, d) float32; row 0 is zero.

    Two whole numbers in the first line are word2vec's header: the number of words, and the width d.
    A word is everything before the last d numbers, because GloVe's largest file has words with
    spaces. If a word occurs twice, its first vector counts.
    """
    row_of: dict[str, int] = {}
    numbers = array("f")
    width = rows = 0
    expected_rows: int | None = None  # by the header
    for number, line in enumerate(read_lines(path), start=1):
        place = f"{path}: line {number}"
        line = line.strip(_BLANKS)
        if number == 1:
            header = re.fullmatch("([0-9]{1,18}) 0*([1-9][0-9]{0,17})", line)
            if header:
                expected_rows = int(header[1])
                width = int(header[2])
                continue
        word, *fields = line.rsplit(" ", width or -1)
        count = len(fields)
        # if the first line, which sets the width, lacks numbers, later words seem to contain some
        numbers_in_word = word.split(" ")[1:]
        if all(map(_NUMBER.fullmatch, numbers_in_word)):
            count += len(numbers_in_word)
        width = width or count
        if count != width or width < 1:
            raise UsageError(f"{place}: {count} numbers after a word, expected {width or 'some'}")
        if not rows:
            numbers.extend([0.0] * width)
        rows += 1
        row_of.setdefault(word, rows)
        numbers.extend(_numbers(fields, place))
    if not rows:
        raise UsageError(
            f"{path} holds no word vectors; give a text file with a word and its numbers on each"
            " line"
        )
    if expected_rows not in (None, rows):
        raise UsageError(
            f"{path}: its first line says {expected_rows:,} words, but it holds {rows:,}; is it"
            " complete?"
        )
    return row_of, np.frombuffer(numbers, dtype=np.float32).reshape(-1, width)


def _numbers(fields: list[str], place: str) -> list[float]:
    """Return the numbers of a line; ``place``: the file and the line, for messages."""
    try:
        values = [float(field) for field in fields]
    except ValueError as error:
        raise UsageError(
            f"{place}: {error}; expected a word and {len(fields)} numbers separated by spaces"
        ) from None
    if not all(map(math.isfinite, values)):
        raise UsageError(
            f"{place}: a number that is not finite; remove the line, or make the file again"
        )
    return values
