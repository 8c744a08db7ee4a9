"""Training a lower-casing WordPiece vocabulary on text."""

import functools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import BertWordPieceTokenizer

from promptcli import errors
from promptcli.backbones.language_models import MaskedCheckpoint
from promptcli.errors import UsageError

#: the special tokens, in the order of their ids
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNK, CLS, SEP, MASK = range(len(SPECIALS))


_ALPHABET = 300  # characters kept: rarer ones become [UNK]


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """A vocabulary: lines to ids, without those that are put around an input."""

    encode: Callable[[Sequence[str]], list[list[int]]]
    size: int
    pieces: tuple[str, ...] = ()  #: by id, of one that is made here
    pad: int = PAD
    unk: int | None = UNK  #: None if every text has tokens
    start: int = CLS  #: before an input
    end: int = SEP  #: after it
    mask: int = MASK
    others: tuple[int, ...] = ()  #: of special tokens

    @functools.cached_property
    def are_ordinary(self) -> np.ndarray:
        """Whether each token is not special, (size,) bool."""
        special = {self.pad, self.unk, self.start, self.end, self.mask, *self.others}
        return np.array([number not in special for number in range(self.size)])

    @functools.cached_property
    def ordinary(self) -> np.ndarray:
        """The ids of all tokens that are not special, ascending."""
        return np.flatnonzero(self.are_ordinary)

    @classmethod
    def of(cls, checkpoint: MaskedCheckpoint) -> "Vocabulary":
        """Return the vocabulary of a checkpoint's tokenizer."""
        tokenizer = checkpoint.backbone.tokenizer
        assert tokenizer.mask is not None
        [start] = tokenizer.start
        [end] = tokenizer.end
        return cls(
            checkpoint.encode,
            tokenizer.highest + 1,
            pad=tokenizer.pad,
            unk=tokenizer.unk,
            start=start,
            end=end,
            mask=tokenizer.mask,
            others=tuple(checkpoint.tokenizer.all_special_ids),
        )

    @classmethod
    def of_pieces(cls, tokenizer: BertWordPieceTokenizer) -> "Vocabulary":
        def encode(lines: Sequence[str]) -> list[list[int]]:
            encodings = tokenizer.encode_batch(list(lines), add_special_tokens=False)
            return [encoding.ids for encoding in encodings]

        ids = tokenizer.get_vocab()
        return cls(encode, len(ids), tuple(sorted(ids, key=ids.__getitem__)))

    def save(self, path: Path) -> None:
        """Write one item a line, in the order of the ids (BERT's ``vocab.txt``)."""
        path.write_text("".join(f"{text}\n" for text in self.pieces), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        try:
            return cls.of_pieces(BertWordPieceTokenizer(str(path), lowercase=True))
        except Exception as error:  # the library raises a bare one
            reason = errors.one_line(error, 120)
            raise UsageError(
                f"{path} is not a vocabulary: {reason}; delete {path.parent} and start again"
            ) from None


def train_vocabulary(lines: Callable[[], Iterable[str]], size: int) -> Vocabulary:
    """Return the WordPiece vocabulary of lower-cased lines, ``size`` items with the specials.

    One text has one.

    The library numbers the characters inside words in an order of chance, and breaks ties by these
    numbers. So the alphabet is counted first and handed over with its numbers: the lines are read
    twice.
    """
    tokenizer = BertWordPieceTokenizer(lowercase=True)
    first, inside = _alphabet(tokenizer, lines())
    tokenizer.train_from_iterator(
        lines(),
        vocab_size=size,
        min_frequency=2,
        limit_alphabet=len(first),
        initial_alphabet=first,
        special_tokens=[*SPECIALS, *(f"##{character}" for character in inside)],
        show_progress=False,
    )
    if tokenizer.get_vocab_size() != size:
        pieces = f"it has {tokenizer.get_vocab_size()} pieces that occur twice"
        raise UsageError(
            f"the corpus is too small for {size}: {pieces}; give less, or more text",
            parameter="vocab_size",
        )
    return Vocabulary.of_pieces(BertWordPieceTokenizer(tokenizer.get_vocab(), lowercase=True))


def _alphabet(
    tokenizer: BertWordPieceTokenizer, lines: Iterable[str]
) -> tuple[list[str], list[str]]:
    texts: Counter[str] = Counter()
    for line in lines:
        texts.update(line.split())
    inner = tokenizer._tokenizer
    counts: Counter[str] = Counter()
    inside: set[str] = set()
    for text, times in texts.items():
        for word, _ in inner.pre_tokenizer.pre_tokenize_str(inner.normalizer.normalize_str(text)):
            inside.update(word[1:])
            for character in word:
                counts[character] += times
    most_frequent = sorted(counts, key=lambda character: (-counts[character], character))
    alphabet = sorted(most_frequent[:_ALPHABET])
    return alphabet, [character for character in alphabet if character in inside]


def save_own_tokenizer(vocabulary: Path, folder: Path, positions: int) -> None:
    """Write ``vocab.txt`` and ``tokenizer_config.json`` as a BERT checkpoint has them."""
    shutil.copyfile(vocabulary, folder / "vocab.txt")
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "model_max_length": positions,
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(settings, indent=1) + "\n", encoding="utf-8"
    )


def token_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """Return the smallest integer type that holds every id."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)
