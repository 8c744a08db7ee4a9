"""The vocabulary and the corpus of a pre-training run: text files are streamed into a file of token
ids.

A chunk is a run of complete lines between [CLS] and [SEP]. Of files with unrelated lines, each
chunk is a single line.
"""

import functools
import itertools
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import BertWordPieceTokenizer

from promptcli import errors, notes
from promptcli.backbones.language_models import MaskedCheckpoint
from promptcli.data.training_data import stream_sentences
from promptcli.errors import UsageError
from promptcli.storage import files

#: The special tokens in the order of their ids.
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNK, CLS, SEP, MASK = range(len(SPECIALS))
_MAX_ALPHABET = 300  # number of characters; rarer characters become [UNK]
_LINES_PER_BATCH = 20_000  # tokenised together
_FUNCTION_PIECES = 150  # number of the most frequent pieces, which have no information
_MIN_CHUNK_TOKENS = 4  # without [CLS] and [SEP]

Template = tuple[list[int], list[int]]  #: ids before and after the sentence, with one [MASK]


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """A vocabulary, and the function that maps lines to their ids."""

    encode: Callable[[Sequence[str]], list[list[int]]]  #: adds no special tokens
    size: int
    pieces: tuple[str, ...] = ()  #: by id; empty for the vocabulary of a checkpoint
    pad: int = PAD
    unk: int | None = UNK  #: None if the tokenizer has a token for every text
    start: int = CLS  #: precedes an input
    end: int = SEP  #: follows an input
    mask: int = MASK
    others: tuple[int, ...] = ()  #: ids of further special tokens

    @functools.cached_property
    def are_ordinary(self) -> np.ndarray:
        """False for each special token, (size,) bool."""
        special = {self.pad, self.unk, self.start, self.end, self.mask, *self.others}
        return np.array([number not in special for number in range(self.size)])

    @functools.cached_property
    def ordinary(self) -> np.ndarray:
        """The ids of all tokens that are not special, in ascending order."""
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

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        try:
            return cls.of_pieces(BertWordPieceTokenizer(str(path), lowercase=True))
        except Exception as error:  # the library raises a bare one
            reason = errors.join_lines(error, 120)
            raise UsageError(
                f"{path} is not a vocabulary: {reason}; delete {path.parent} and start again"
            ) from None


def train_vocabulary(lines: Callable[[], Iterable[str]], size: int) -> Vocabulary:
    """Return the WordPiece vocabulary of lower-cased lines, with ``size`` items, special tokens
    included.

    The same text always gives the same vocabulary. The library would number the characters inside
    words in random order, and it breaks ties by these numbers. So the lines are read twice: the
    first time to count the alphabet, which is then passed in a fixed order.
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
        raise UsageError(
            f"the corpus gives {tokenizer.get_vocab_size()} pieces that occur twice, not {size};"
            " give another size, or more text",
            parameter="vocab_size",
        )
    return Vocabulary.of_pieces(BertWordPieceTokenizer(tokenizer.get_vocab(), lowercase=True))


def _alphabet(
    tokenizer: BertWordPieceTokenizer, lines: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Return the most frequent characters, sorted, and those of them that occur inside words."""
    texts: Counter[str] = Counter()
    for line in lines:
        texts.update(line.split())
    counts: Counter[str] = Counter()
    inside: set[str] = set()
    for text, times in texts.items():
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalize(text)):
            inside.update(word[1:])
            for character in word:
                counts[character] += times
    most_frequent = sorted(counts, key=lambda character: (-counts[character], character))
    alphabet = sorted(most_frequent[:_MAX_ALPHABET])
    return alphabet, [character for character in alphabet if character in inside]


@dataclass(frozen=True)
class Corpus:
    """The tokenised corpus."""

    tokens: np.ndarray  #: (t,) ids of all lines, one after the other; a file on the disk
    ends: np.ndarray  #: (lines,) the end of each line in ``tokens``
    unrelated_from: int  #: number of the first unrelated line; all lines after it are unrelated
    vocabulary: Vocabulary
    templates: tuple[Template, ...] = ()

    @functools.cached_property
    def information(self) -> np.ndarray:
        """The inverse document frequency of each piece, (v,) float32: ln(n / (df + 1)) of n lines,
        df of them with the piece.

        The 150 most frequent pieces, pieces without a letter and special tokens have 0.
        """
        size = self.vocabulary.size
        lines_with = np.zeros(size, np.int64)
        for first in range(0, len(self.ends), _LINES_PER_BATCH):
            ends = self.ends[first : first + _LINES_PER_BATCH]
            begin = int(self.ends[first - 1]) if first else 0
            line = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=begin))
            pairs = np.unique(line * size + self.tokens[begin : int(ends[-1])].astype(np.int64))
            lines_with += np.bincount(pairs % size, minlength=size)
        information = np.log(len(self.ends) / (lines_with + 1)).clip(0).astype(np.float32)
        most_frequent = np.argsort(-lines_with, kind="stable")[:_FUNCTION_PIECES]
        information[most_frequent] = 0
        for number, piece in enumerate(self.vocabulary.pieces):
            if not any(map(str.isalpha, piece)):
                information[number] = 0
        information[: len(SPECIALS)] = 0
        return information

    @property
    def unknown(self) -> float:
        """The share of tokens that are [UNK]; 0 if the vocabulary has no [UNK]."""
        if self.vocabulary.unk is None:
            return 0.0
        return float(np.mean(np.asarray(self.tokens) == self.vocabulary.unk))

    def lines(self, longest: int) -> np.ndarray:
        """Return begin and end of each line that is long enough, (lines, 2); a line is cut to at
        most ``longest`` tokens.
        """
        starts = np.concatenate([[0], self.ends[:-1]])
        return _long_enough(starts, np.minimum(self.ends, starts + longest))

    def chunks(
        self, lengths: tuple[int, ...], longest: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Return begin and end of each chunk in ``tokens``, (chunks, 2).

        For each chunk one of ``lengths`` is drawn. The chunk takes whole lines up to that length,
        but at least one line, and is cut to at most ``longest`` tokens.
        """
        related = self.ends[: self.unrelated_from].tolist()
        draws = iter(rng.choice(lengths, size=len(related) + 1).tolist())
        cuts: list[int] = []
        start = previous = 0
        target = next(draws)
        for end in related:
            if end - start > target and previous > start:
                cuts.append(previous)
                start = previous
                target = next(draws)
            previous = end
        bounds = np.concatenate(
            [np.array([0, *cuts], np.int64), self.ends[max(self.unrelated_from - 1, 0) :]]
        )
        return _long_enough(bounds[:-1], np.minimum(bounds[1:], bounds[:-1] + longest))


def _long_enough(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the spans that are long enough for a chunk, (n, 2)."""
    spans = np.stack([starts, ends], axis=1)
    return np.asarray(spans[ends - starts >= _MIN_CHUNK_TOKENS])


def make_corpus(
    folder: Path,
    texts: Sequence[Path],
    unrelated: Sequence[Path],
    vocabulary: Vocabulary,
    templates: tuple[Template, ...] = (),
) -> Corpus:
    """Return the corpus in a run's folder; if it is missing, it is tokenised, and ``lines.npz`` is
    written last.

    ``unrelated``: the files at the end of ``texts`` whose lines are in no order.
    """
    dtype = np.dtype(np.uint16 if vocabulary.size <= 1 << 16 else np.uint32)
    if not (folder / "lines.npz").is_file():
        lengths = [np.zeros(0, np.int64)]
        related = 0
        path = files.atomic_path(folder / "tokens.bin")
        with (
            notes.stage("tokenise", None) as advance,
            path as temporary,
            temporary.open("wb") as out,
        ):
            for file in texts:
                lines = stream_sentences(file)
                while batch := tuple(itertools.islice(lines, _LINES_PER_BATCH)):
                    ids = vocabulary.encode(batch)
                    out.write(np.fromiter(itertools.chain.from_iterable(ids), dtype).data)
                    lengths.append(np.array(list(map(len, ids)), np.int64))
                    advance(len(ids))
                    if file not in unrelated:
                        related += len(ids)
        with files.atomic_path(folder / "lines.npz") as temporary, temporary.open("wb") as out:
            np.savez(out, ends=np.cumsum(np.concatenate(lengths)), unrelated_from=related)
    try:
        tokens = np.memmap(folder / "tokens.bin", dtype=dtype, mode="r")
        with np.load(folder / "lines.npz", allow_pickle=False) as stored:
            ends = stored["ends"]
            related = int(stored["unrelated_from"])
        if ends[-1] != len(tokens):
            raise ValueError(f"lines.npz does not describe the {len(tokens):,} tokens")
    except (OSError, ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile) as error:
        reason = errors.join_lines(error, 100)
        raise UsageError(
            f"files in {folder} are damaged ({reason}); delete the folder and start again"
        ) from None
    return Corpus(tokens, ends, related, vocabulary, templates)
