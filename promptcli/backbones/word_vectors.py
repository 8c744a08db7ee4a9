"""``glove:FILE``: static word vectors in a backbone's place, for the average of a sentence's words and nothing else.

Words are the sentence's text, lower-cased and split at blanks: the tasks' text is tokenised already. The file is text
in word2vec's format, with a header, or in GloVe's, without; both also .gz. What is held is the matrix and the words.
"""

import contextlib
import gzip
import hashlib
import math
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone, Provenance
from promptcli.backbones.states import Batch, HiddenStates, Needs
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.errors import NotFoundError, UsageError
from promptcli.storage.files import sha256

_FAMILY = "glove"
_PREFIX = "glove:"
_BLANKS = " \t\r\n"  # a word may hold other white space, such as U+00A0
_NOTHING = 0  # id and row of a sentence without any known word: a vector of zeros


class WordTokenizer(PieceTokenizer):
    """Sentences to the ids of their known words; unknown words are skipped, no special token is added."""

    def __init__(self, row_of: dict[str, int]) -> None:
        self.start = self.end = ()
        self.pad = _NOTHING
        self.unk = self.mask = self.mask_text = None
        self.causal = self.mask_takes_blank = self.start_blank = self.segment_blank = self.byte_level = False
        self.splits_punctuation = self.splits_at_blanks = True
        self.sha256 = hashlib.sha256(b"lower-cased, split at blanks").hexdigest()
        self._row_of = row_of

    def encode(self, pieces: Sequence[str]) -> list[list[int]]:
        """Return the ids of every sentence's known words; ``[0]`` where there are none."""
        known = ([self._row_of[word] for word in piece.lower().split() if word in self._row_of] for piece in pieces)
        return [ids or [_NOTHING] for ids in known]


class WordVectors(Backbone):
    """A matrix of word vectors; no layers, no attention, no head. Always float32."""

    words_only = True
    causal = False

    def __init__(self, tokenizer: WordTokenizer, rows: Tensor, provenance: Provenance) -> None:
        self.tokenizer = tokenizer
        self.provenance = provenance
        self.width = self.last_width = rows.size(1)
        self.n_layers = self.n_heads = 0
        self.max_tokens = 1 << 30
        self._rows = rows

    @property
    def token_rows(self) -> Tensor:
        """The vectors, (v + 1, d); row 0 is zero."""
        return self._rows

    def run(self, batch: Batch, needs: Needs) -> HiddenStates:
        """Return the words' vectors as static states."""
        return HiddenStates(static=self._rows[batch.ids])


def load_word_vectors(
    name: str, *, device: str = "cpu", announce: Callable[[str], None] = lambda message: None
) -> WordVectors:
    """Load word vectors.

    Args:
        name: ``glove:FILE``.
        device: A torch device.
        announce: Called with one line: how many they are, and the memory they take.

    Raises:
        NotFoundError: There is no such file.
        UsageError: No file is named, or it is malformed.
    """
    path = Path(name.removeprefix(_PREFIX))
    if name == _PREFIX:
        raise UsageError("backbone 'glove:' names no file; give --backbone glove:FILE, word vectors as text")
    table = read_word_vectors(path)
    count, width = len(table.rows) - 1, table.rows.shape[1]
    announce(f"{path.name}: {count:,} words of {width:,} numbers, {table.rows.nbytes / 2**20:,.1f} MiB in memory")
    rows = torch.from_numpy(table.rows).to(device)
    tokenizer = WordTokenizer(table.row_of)
    return WordVectors(tokenizer, rows, Provenance(name, _FAMILY, None, sha256(path), tokenizer.sha256))


@dataclass(frozen=True)
class WordTable:
    """Words and their vectors."""

    row_of: dict[str, int]  #: word -> row from 1, the first one where a word stands twice
    rows: np.ndarray  #: (v + 1, d) float32; row 0 is zero


def read_word_vectors(path: Path) -> WordTable:
    """Read a file of word vectors.

    The first line tells the formats apart: two whole numbers are word2vec's header (words, width). A word is all that
    stands before the last d numbers: GloVe's largest file has words with blanks inside.

    Raises:
        NotFoundError: There is no such file.
        UsageError: A malformed line, with its number; or fewer or more words than the header says.
    """
    words: list[str] = []
    numbers = array("f")
    width: int | None = None
    header: tuple[int, int] | None = None
    for number, line in _lines(path):
        where = f"{path}: line {number}"
        fields = line.strip(_BLANKS).split(" ") if width is None else line.strip(_BLANKS).rsplit(" ", width)
        if number == 1 and _is_header(fields):
            header = (int(fields[0]), int(fields[1]))
            width = header[1]
            continue
        width = width or len(fields) - 1
        if len(fields) != width + 1 or width < 1:
            raise UsageError(f"{where}: {len(fields) - 1} numbers after a word, expected {width or 'some'}")
        if not words:
            numbers.extend([0.0] * width)
        words.append(fields[0])
        numbers.extend(_numbers(fields[1:], where))
    if not words or width is None:
        raise UsageError(f"{path} holds no word vectors; give a text file with a word and its numbers a line")
    if header is not None and header[0] != len(words):
        raise UsageError(f"{path}: its first line says {header[0]:,} words, but it holds {len(words):,}; is it whole?")
    row_of: dict[str, int] = {}
    for row, word in enumerate(words, start=1):
        row_of.setdefault(word, row)
    return WordTable(row_of, np.frombuffer(numbers, dtype=np.float32).reshape(-1, width))


def _is_header(fields: list[str]) -> bool:
    return len(fields) == 2 and all(field.isdecimal() and field.isascii() and int(field) > 0 for field in fields)


def _numbers(fields: list[str], where: str) -> list[float]:
    try:
        values = [float(field) for field in fields]
    except ValueError as error:
        raise UsageError(f"{where}: {error}; expected a word and {len(fields)} numbers with blanks between") from None
    if not all(map(math.isfinite, values)):
        raise UsageError(f"{where}: a number that is not finite; leave the line out or make the file anew")
    return values


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line)."""
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    number = 0
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(opened(path, "rb"))
            for number, line in enumerate(file, start=1):
                yield number, line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"{path}: line {number}, byte {error.start + 1}: not UTF-8 text") from None
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UsageError(f"{path}: line {number + 1}: damaged or cut-off gzip data ({error})") from None
        except FileNotFoundError:
            raise NotFoundError(f"no file of word vectors {str(path)!r}; give --backbone glove:FILE") from None
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
