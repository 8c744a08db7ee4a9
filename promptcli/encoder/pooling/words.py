"""Which word pieces make one word: read from the vocabulary's own marks, so that ids alone are enough."""

import itertools
import string
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from promptcli.backbones.backbone import Backbone

_CONTINUES = "##"  # WordPiece: before a piece that goes on with a word
_BLANKS = ("Ġ", "▁")  # byte-level BPE, SentencePiece: before a piece that stood behind a blank
_PUNCTUATION = frozenset(string.punctuation)

Word = tuple[int, ...]


class Words:
    """Cuts a row of token ids into words.

    A WordPiece vocabulary marks what continues a word (``##``); its punctuation marks and specials are words of their
    own. The others mark what follows a blank; there a word also ends before and behind a piece of ASCII punctuation
    and a special token, as their own pre-tokenizers cut.
    """

    def __init__(self, backbone: Backbone) -> None:
        tokens = backbone.tokenizer
        pieces = [tokens.text(token) for token in range(len(backbone.token_rows))]
        self._alone = np.array([_is_punctuation(piece) for piece in pieces])
        self._alone[[token for token in (tokens.cls, tokens.sep, tokens.mask) if token is not None]] = True
        if any(piece.startswith(_CONTINUES) and piece != _CONTINUES for piece in pieces):
            self._begins = np.array([not piece.startswith(_CONTINUES) for piece in pieces])
        else:
            self._begins = np.array([piece.startswith(_BLANKS) for piece in pieces])

    def cut(self, row: Sequence[int]) -> list[Word]:
        """Return the words of a row of ids, in order; put together they are the row."""
        if not len(row):
            return []
        ids: NDArray[np.int64] = np.asarray(row, dtype=np.int64)
        alone = self._alone[ids]
        begins = self._begins[ids] | alone
        begins[1:] |= alone[:-1]
        starts = [0, *(np.flatnonzero(begins[1:]) + 1).tolist(), len(ids)]
        whole = ids.tolist()
        return [tuple(whole[start:stop]) for start, stop in itertools.pairwise(starts)]


def _is_punctuation(piece: str) -> bool:
    bare = piece.removeprefix("Ġ").removeprefix("▁")
    return bool(bare) and _PUNCTUATION.issuperset(bare)
