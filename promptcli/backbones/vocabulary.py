"""Training a lower-casing WordPiece vocabulary on text."""

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from tokenizers import BertWordPieceTokenizer

from promptcli.errors import UsageError

#: The special tokens, in the order of their ids.
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNK, CLS, SEP, MASK = range(len(SPECIALS))

_ALPHABET = 300  # characters kept: rarer ones become [UNK]


class Vocabulary:
    """A WordPiece vocabulary: lines to ids without specials."""

    def __init__(self, tokenizer: BertWordPieceTokenizer) -> None:
        self._tokenizer = tokenizer
        self.size: int = tokenizer.get_vocab_size()

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(lines), add_special_tokens=False)]

    def save(self, path: Path) -> None:
        """Write one item a line, in the order of the ids (BERT's ``vocab.txt``)."""
        items = sorted(self._tokenizer.get_vocab().items(), key=lambda item: item[1])
        path.write_text("".join(f"{text}\n" for text, _ in items), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Read what ``save`` wrote."""
        return cls(BertWordPieceTokenizer(str(path), lowercase=True))


def train_vocabulary(lines: Iterable[str], size: int) -> Vocabulary:
    """Return the WordPiece vocabulary of lower-cased lines.

    The library breaks ties by chance, so two vocabularies of one text may differ in order and in rare items; a run
    keeps the one it made.

    Raises:
        UsageError: The text has too few distinct pieces for ``size``.
    """
    tokenizer = BertWordPieceTokenizer(lowercase=True)
    tokenizer.train_from_iterator(
        lines,
        vocab_size=size,
        min_frequency=2,
        limit_alphabet=_ALPHABET,
        special_tokens=list(SPECIALS),
        show_progress=False,
    )
    if tokenizer.get_vocab_size() != size:
        raise UsageError(
            f"the corpus is too small for --vocab-size {size}: it has {tokenizer.get_vocab_size()} pieces that occur"
            " twice; give a smaller vocabulary or more text"
        )
    return Vocabulary(tokenizer)


def save_tokenizer(vocabulary: Path, folder: Path, positions: int) -> None:
    """Write ``vocab.txt`` and ``tokenizer_config.json`` as a BERT checkpoint has them."""
    shutil.copyfile(vocabulary, folder / "vocab.txt")
    about = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": positions}
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def token_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """Return the smallest integer type that holds every id."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)
