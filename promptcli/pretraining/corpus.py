"""The corpus of a pre-training run: text files streamed once into a file of token ids, read from the disk after.

A chunk is a run of whole lines, [CLS] before and [SEP] after it; of unrelated lines, one line.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from promptcli.backbones.vocabulary import Vocabulary, token_dtype
from promptcli.data.text import open_source
from promptcli.errors import UsageError
from promptcli.storage.files import atomic_path

_LINES = 20_000  # tokenised at a time
_SHORTEST = 4  # tokens of a chunk without [CLS] and [SEP]: shorter ones teach nothing


@dataclass(frozen=True)
class CorpusFile:
    """A file of plain text, one sentence or paragraph a line.

    Attributes:
        path: Of the file.
        unrelated: Its lines have nothing to do with one another.
    """

    path: Path
    unrelated: bool = False

    def lines(self) -> Iterator[str]:
        """Yield its lines that are not blank.

        Raises:
            NotFoundError: There is no such file.
            UsageError: Empty, a folder, or not text.
        """
        with open_source(self.path) as source:
            yield from (record.text for record in source if not record.text.isspace() and record.text)


@dataclass(frozen=True)
class Corpus:
    """The tokenised corpus.

    Attributes:
        tokens: (t,) ids of all lines, one after the other; on the disk.
        ends: (lines,) where each line ends.
        unrelated_from: Number of the first line of the files of unrelated lines, which come last.
    """

    tokens: np.ndarray
    ends: np.ndarray
    unrelated_from: int

    def chunks(self, lengths: tuple[int, ...], longest: int, rng: np.random.Generator) -> np.ndarray:
        """Cut the corpus into chunks.

        Args:
            lengths: Targets in tokens; one is drawn for each chunk, which takes whole lines up to it (at least one).
            longest: Tokens of a chunk at most; the rest is left out.
            rng: Draws the targets.

        Returns:
            (chunks, 2) where each begins and ends in ``tokens``.
        """
        related = self.ends[: self.unrelated_from].tolist()
        draws = iter(rng.choice(lengths, size=len(related) + 1).tolist())
        cuts: list[int] = []
        start = previous = 0
        target = next(draws)
        for end in related:
            if end - start > target and previous > start:
                cuts.append(previous)
                start, target = previous, next(draws)
            previous = end
        bounds = np.concatenate([np.array([0, *cuts], np.int64), self.ends[max(self.unrelated_from - 1, 0) :]])
        spans = np.stack([bounds[:-1], bounds[1:]], axis=1)
        spans[:, 1] = np.minimum(spans[:, 1], spans[:, 0] + longest)
        long_enough: np.ndarray = spans[:, 1] - spans[:, 0] >= _SHORTEST
        return np.asarray(spans[long_enough])


def tokenise(
    files: Sequence[CorpusFile], vocabulary: Vocabulary, folder: Path, progress: Callable[[int], None]
) -> None:
    """Write the corpus' ids to ``folder``; the small file that says how it lies comes last.

    Raises:
        UsageError: A file is empty or not text.
    """
    dtype = token_dtype(vocabulary.size)
    ends: list[np.ndarray] = []
    total = lines = 0
    unrelated_from = 0
    with atomic_path(folder / "tokens.bin") as temporary, temporary.open("wb") as out:
        for file in sorted(files, key=lambda file: file.unrelated):
            for part in _parts(file):
                ids = vocabulary.encode(part)
                lengths = np.fromiter((len(row) for row in ids), np.int64, len(ids))
                np.fromiter(itertools.chain.from_iterable(ids), dtype, int(lengths.sum())).tofile(out)
                ends.append(total + np.cumsum(lengths))
                total, lines = int(ends[-1][-1]), lines + len(ids)
                progress(len(ids))
            if not file.unrelated:
                unrelated_from = lines
    with atomic_path(folder / "lines.npy") as temporary, temporary.open("wb") as out:
        np.save(out, np.concatenate(ends), allow_pickle=False)
    with atomic_path(folder / "corpus.json") as temporary:
        temporary.write_text(json.dumps({"tokens": total, "dtype": str(dtype), "unrelated_from": unrelated_from}))


def _parts(file: CorpusFile) -> Iterator[tuple[str, ...]]:
    lines = file.lines()
    while part := tuple(itertools.islice(lines, _LINES)):
        yield part


def open_corpus(folder: Path) -> Corpus:
    """Return the corpus that ``tokenise`` wrote; its ids stay on the disk.

    Raises:
        UsageError: The files do not fit together.
    """
    about = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
    tokens = np.memmap(folder / "tokens.bin", dtype=about["dtype"], mode="r")
    if len(tokens) != about["tokens"]:
        raise UsageError(f"{folder / 'tokens.bin'} was changed since it was written; delete {folder} and start anew")
    return Corpus(tokens, np.load(folder / "lines.npy", allow_pickle=False), about["unrelated_from"])
