"""Vocabulary and corpus of a pre-training run: text files are streamed into a file of token ids.

A chunk is a run of complete lines between [CLS] and [SEP]; for unrelated lines, a single line.
"""

import functools
import itertools
import json
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
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


_ALPHABET = 300  # most characters of the alphabet; rarer ones become [UNK]


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """A vocabulary, which maps lines to ids without special tokens around them."""

    encode: Callable[[Sequence[str]], list[list[int]]]
    size: int
    pieces: tuple[str, ...] = ()  #: by id, of a vocabulary made here
    pad: int = PAD
    unk: int | None = UNK  #: None if every text has tokens
    start: int = CLS  #: before an input
    end: int = SEP  #: after it
    mask: int = MASK
    others: tuple[int, ...] = ()  #: ids of further special tokens

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

    The same text always gives the same vocabulary. The library numbers word-internal characters in
    random order, and breaks ties by these numbers. The alphabet is therefore counted first and
    passed in a fixed order, and the lines are read twice.
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
    """Write ``vocab.txt`` and ``tokenizer_config.json`` in the form of a BERT checkpoint."""
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


_LINES = 20_000  # tokenised at a time
_FUNCTION_PIECES = 150  # pieces that occur in the most lines, and have no information
_SHORTEST = 4  # fewest tokens of a chunk without [CLS] and [SEP]


Template = tuple[list[int], list[int]]  #: ids before and after the sentence, [MASK] in one of them


@dataclass(frozen=True)
class Corpus:
    """The tokenised corpus."""

    tokens: np.ndarray  #: (t,) ids of all lines, one after the other; on the disk
    ends: np.ndarray  #: (lines,) where each line ends
    #: number of the first line of the files of unrelated lines, which come last
    unrelated_from: int
    vocabulary: Vocabulary
    templates: tuple[Template, ...] = ()

    @functools.cached_property
    def information(self) -> np.ndarray:
        """Inverse document frequency of each piece, (v,) float32: ln(lines / (lines with it + 1)).

        0 for the 150 most frequent pieces, for pieces without a letter and for special tokens.
        """
        size = self.vocabulary.size
        lines_with = np.zeros(size, np.int64)
        for first in range(0, len(self.ends), _LINES):
            ends = self.ends[first : first + _LINES]
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
        """The share of tokens that are [UNK]; 0 if the vocabulary has none."""
        if self.vocabulary.unk is None:
            return 0.0
        return float(np.mean(np.asarray(self.tokens) == self.vocabulary.unk))

    def lines(self, longest: int) -> np.ndarray:
        """Return begin and end of each line that is long enough, (lines, 2); lines are cut to at
        most ``longest`` tokens.
        """
        starts = np.concatenate([[0], self.ends[:-1]])
        return _long_enough(starts, np.minimum(self.ends, starts + longest))

    def chunks(
        self, lengths: tuple[int, ...], longest: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Return begin and end of each chunk in ``tokens``, (chunks, 2).

        One of ``lengths`` is drawn for each chunk, which takes whole lines up to that length (at
        least one line), and at most ``longest`` tokens; the rest is left out.
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
    return np.asarray(spans[ends - starts >= _SHORTEST])


def make_vocabulary(folder: Path, texts: Sequence[Path], size: int) -> Vocabulary:
    """Return the run's vocabulary, trained on all lines unless it exists."""
    if not (folder / "vocab.txt").is_file():
        with notes.stage("vocabulary", None) as advance:

            def lines() -> Iterator[str]:
                for line in itertools.chain.from_iterable(map(stream_sentences, texts)):
                    advance(1)
                    yield line

            vocabulary = train_vocabulary(lines, size)
        with files.atomic_path(folder / "vocab.txt") as temporary:
            vocabulary.save(temporary)
    return Vocabulary.load(folder / "vocab.txt")


def make_corpus(
    folder: Path,
    texts: Sequence[Path],
    unrelated: Sequence[Path],
    vocabulary: Vocabulary,
    templates: tuple[Template, ...] = (),
) -> Corpus:
    """Return the corpus; unless it is present, it is tokenised into ``folder``, ``lines.npz`` last.

    ``unrelated`` are the files at the end of ``texts`` whose lines are in no order.
    """
    dtype = token_dtype(vocabulary.size)
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
                while batch := tuple(itertools.islice(lines, _LINES)):
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
            raise ValueError(f"lines.npz is not of the {len(tokens):,} tokens")
    except (OSError, ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile) as error:
        reason = errors.one_line(error, 100)
        raise UsageError(
            f"files in {folder} are damaged ({reason}); delete the folder and start again"
        ) from None
    return Corpus(tokens, ends, related, vocabulary, templates)
