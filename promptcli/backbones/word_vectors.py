"""``glove:FILE``: static word vectors in a backbone's place, for the average of a sentence's words and nothing else.

Words are the sentence's text, lower-cased and split at blanks: the tasks' text is tokenised already.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone, Provenance
from promptcli.backbones.states import Batch, HiddenStates, Needs
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.backbones.word_vectors_file import read_word_vectors
from promptcli.errors import UsageError
from promptcli.storage.files import sha256

_FAMILY = "glove"
_PREFIX = "glove:"
_NOTHING = 0  # id and row of a sentence without any known word: a vector of zeros


class WordTokenizer(PieceTokenizer):
    """Sentences to the ids of their known words; unknown words are skipped, no special token is added."""

    def __init__(self, row_of: dict[str, int]) -> None:
        self.start = self.end = ()
        self.pad = _NOTHING
        self.unk = self.mask = self.mask_text = None
        self.mask_takes_blank = self.start_blank = self.segment_blank = self.byte_level = False
        self.splits_punctuation = True
        self.sha256 = hashlib.sha256(b"lower-cased, split at blanks").hexdigest()
        self._row_of = row_of

    def encode(self, pieces: Sequence[str]) -> list[list[int]]:
        """Return the ids of every sentence's known words; ``[0]`` where there are none."""
        known = ([self._row_of[word] for word in piece.lower().split() if word in self._row_of] for piece in pieces)
        return [ids or [_NOTHING] for ids in known]


class WordVectors(Backbone):
    """A matrix of word vectors; no layers, no attention, no head. Always float32."""

    words_only = True

    def __init__(self, tokenizer: WordTokenizer, rows: Tensor, provenance: Provenance) -> None:
        self.tokenizer = tokenizer
        self.provenance = provenance
        self.width = rows.size(1)
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
