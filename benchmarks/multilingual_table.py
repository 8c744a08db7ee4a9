"""Train the table of mini-multi, and write it in 4 bits.

    python benchmarks/multilingual_table.py WORK -o FOLDER [--data FOLDER] [--corpus NAME=N ...]

WORK is what ``multilingual_corpus.py`` and ``multilingual_teacher.py`` wrote. A text with an
English original learns the vector that ``mini-static`` gives the original. Others learn their own
vector by multilingual-e5-small, times the matrix that turns such vectors of English bags of words
into mini-static's best by least squares; those whose vectors are still to be made are left out.

The rows of the table start as e5's vectors of the tokens, those of frequent tokens shorter (SIF),
times the matrix that fits the sentences best. Gradient steps follow with the loss of mini-static. A
batch is of one corpus, and the vectors of a corpus and language are centred.

FOLDER becomes an entry that promptcli loads: table, tokenizer and manifest. Its card is written by
hand.

With ``--data``, the table is scored on the development sets of ``stsb-multi``.
"""

import argparse
import csv
import itertools
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

import promptcli as pc
from promptcli.models.entries import Entry, write_entry

LANGUAGES = ("en", "de", "es", "fr", "it", "nl", "pl", "pt", "ru", "zh", "ja")
WIDTH = 256
BLOCK = 32  # numbers that share a scale
_UNKNOWN = "[UNK]"
_LONGEST_WORD = 200  # characters; the time for a word grows with the square of its length
_SPECIAL, _ESCAPED = r"[\\\[\]^&-]", r"\\\g<0>"  # in a class of characters of a pattern
_SIF = 1e-4  # a token of frequency p weighs SIF / (SIF + p)
_RIDGE = 1e-3
_BRIDGE_RIDGE = 1e-4
_FITTED = 100_000  # texts that the map is fitted on
_BATCH = 512
_SIMILARITY_WEIGHT = 30.0
_LEARNING_RATE = 0.005
_START_SCALE = 0.1
#: Texts of each corpus, drawn at random. Those of manuals and help pull a language away from plain
#: speech.
_CORPORA = {
    "bags": 1_000_000,
    "tatoeba": 120_000,
    "stories": 100_000,
    "translated": 165_000,
    "glossed": 140_000,
}
_LONGEST = 400  # characters of a text that are read
_EVALUATED = 1000  # sentences among which a translation is found


def tokenizer_of(tokens: Sequence[str]) -> Tokenizer:
    """Return the tokenizer: at every place the longest token, in a word as at its start.

    Characters without a token are left out, since one would make its whole word unknown. wordfreq
    writes ss for ß.
    """
    ids = {_UNKNOWN: 0} | {token: number for number, token in enumerate(tokens, start=1)}
    tokenizer = Tokenizer(
        models.WordPiece(
            ids,
            unk_token=_UNKNOWN,
            continuing_subword_prefix="",
            max_input_chars_per_word=_LONGEST_WORD,
        )
    )
    known = "".join(sorted(token for token in tokens if len(token) == 1))
    others = Regex(rf"[^\s{re.sub(_SPECIAL, _ESCAPED, known)}]")
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Lowercase(),
            normalizers.Replace("ß", "ss"),
            normalizers.Replace(others, " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


@dataclass
class Bags:
    """The tokens of texts, one after another."""

    ids: np.ndarray
    ends: np.ndarray  #: (n + 1,), from 0

    @classmethod
    def of(cls, texts: Sequence[str], tokenizer: Tokenizer) -> "Bags":
        """Return the tokens of texts, an unknown one for a text without any."""
        arrays = []
        for start in range(0, len(texts), 10_000):
            part = [text[:_LONGEST] for text in texts[start : start + 10_000]]
            for encoding in tokenizer.encode_batch_fast(part, add_special_tokens=False):
                arrays.append(np.array(encoding.ids or [0], np.int32))
        ends = np.cumsum([0, *map(len, arrays)])
        return cls(np.concatenate(arrays), ends)

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of some texts, and where each begins."""
        ids = np.concatenate([self.ids[self.ends[row] : self.ends[row + 1]] for row in rows])
        lengths = self.ends[rows + 1] - self.ends[rows]
        return ids, np.cumsum(lengths) - lengths

    def means(self, table: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the sums of the table's rows for some texts, scaled to length 1."""
        means = np.empty((len(rows), table.shape[1]), np.float32)
        for start in range(0, len(rows), 2000):
            ids, begins = self.take(rows[start : start + 2000])
            means[start : start + 2000] = np.add.reduceat(table[ids], begins, axis=0)
        return unit(means)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return vectors scaled to length 1."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: np.ndarray = vectors / np.maximum(lengths, 1e-9)
    return scaled


@dataclass
class Corpus:
    """Texts, and the row of its target for each."""

    name: str
    sources: list[str]  #: (m,) what the teacher reads
    languages: np.ndarray  #: (m,) of the sources
    texts: list[str]  #: (n,)
    targets: np.ndarray  #: (n,) rows of the sources
    vectors: np.ndarray  #: (m or fewer, 384) of multilingual-e5-small


def read_vectors(folder: Path) -> np.ndarray:
    """Return the vectors of the parts from the first to the last before a gap."""
    parts: list[np.ndarray] = [np.zeros((0, 384), np.float32)]
    while (path := folder / f"{sum(map(len, parts)):09}.npy").exists():
        parts.append(np.load(path))
    return np.concatenate(parts).astype(np.float32)


def read_corpus(work: Path, name: str) -> Corpus:
    """Return a corpus. A source is its row's first text."""
    sources = (work / f"{name}.txt").read_text(encoding="utf-8").split("\n")[:-1]
    languages = [""] * len(sources)
    texts, targets = [], []
    with (work / f"{name}.tsv").open(encoding="utf-8") as file:
        for line in file:
            language, row, text = line.rstrip("\n").split("\t")
            languages[int(row)] = languages[int(row)] or language
            texts.append(text)
            targets.append(int(row))
    vectors = read_vectors(work / f"{name}.vectors")
    if name == "bags":  # those without a vector have no target
        sources, languages = sources[: len(vectors)], languages[: len(vectors)]
        texts, targets = texts[: len(vectors)], targets[: len(vectors)]
    return Corpus(name, sources, np.array(languages), texts, np.array(targets, np.int64), vectors)


def centred(vectors: np.ndarray) -> np.ndarray:
    """Return vectors without their mean, scaled to length 1."""
    return unit(vectors - vectors.mean(axis=0))


def bridge(bags: Corpus, teacher: pc.Encoder) -> np.ndarray:
    """Return the matrix from e5's vectors to the teacher's, fitted on English bags of words."""
    rows = np.flatnonzero(bags.languages[: len(bags.vectors)] == "en")
    if len(rows) == 0:
        raise SystemExit("bags.vectors holds no part: multilingual_teacher.py makes it")
    sources = centred(bags.vectors[rows])
    targets = centred(teacher.encode([bags.sources[row] for row in rows]))
    ridge = _BRIDGE_RIDGE * len(rows) / sources.shape[1] * np.eye(sources.shape[1])
    solved: np.ndarray = np.linalg.solve(sources.T @ sources + ridge, sources.T @ targets)
    cosines = (unit(sources @ solved) * targets).sum(1)
    print(f"bridge: {len(rows):,} English bags, cosine {cosines.mean():.3f}", flush=True)
    return solved.astype(np.float32)


def targets_of(corpus: Corpus, teacher: pc.Encoder, matrix: np.ndarray) -> np.ndarray:
    """Return the targets (m, d) of a corpus's sources, zeros where they are still to be made."""
    targets = np.zeros((len(corpus.sources), matrix.shape[1]), np.float32)
    for language in np.unique(corpus.languages):
        rows = np.flatnonzero(corpus.languages == language)
        if language == "en":
            targets[rows] = centred(teacher.encode([corpus.sources[row] for row in rows]))
        else:
            rows = rows[rows < len(corpus.vectors)]
            if len(rows):
                targets[rows] = unit(centred(corpus.vectors[rows]) @ matrix)
    return targets


def first_table(work: Path, tokens: dict[str, float]) -> np.ndarray:
    """Return the teacher's vectors of the tokens times their SIF weights, zeros for unknown."""
    vectors = read_vectors(work / "words.vectors")
    vectors -= vectors.mean(axis=0)
    frequencies = np.array(list(tokens.values()))
    weights = _SIF / (_SIF + frequencies)
    rows = vectors * weights[:, None].astype(np.float32)
    return np.concatenate([np.zeros((1, rows.shape[1]), np.float32), rows])


def fitted_map(
    bags: Bags, table: np.ndarray, targets: np.ndarray, draw: np.random.Generator
) -> np.ndarray:
    """Return the matrix that turns the table's sentence vectors into the targets (n, d) best."""
    rows = draw.permutation(len(targets))[:_FITTED]
    found = bags.means(table, rows)
    ridge = _RIDGE * len(rows) / found.shape[1] * np.eye(found.shape[1])
    solved: np.ndarray = np.linalg.solve(found.T @ found + ridge, found.T @ targets[rows])
    return solved.astype(np.float32)


def batches(parts: np.ndarray, size: int, draw: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield rows in random order without end; a batch is of one part."""
    while True:
        found: list[np.ndarray] = []
        for part in np.unique(parts):
            rows = draw.permutation(np.flatnonzero(parts == part))
            found += np.array_split(rows, max(1, len(rows) // size))
        for number in draw.permutation(len(found)):
            yield found[number]


def train(
    table: np.ndarray,
    bags: Bags,
    targets: np.ndarray,
    parts: np.ndarray,
    steps: int,
    draw: np.random.Generator,
    learning_rate: float = _LEARNING_RATE,
) -> np.ndarray:
    """Return the table after gradient steps."""
    module = torch.nn.EmbeddingBag.from_pretrained(
        torch.from_numpy(table), freeze=False, mode="mean", sparse=True
    )
    optimizer = torch.optim.SparseAdam(module.parameters(), lr=learning_rate)
    began = time.monotonic()
    for step, rows in enumerate(itertools.islice(batches(parts, _BATCH, draw), steps)):
        optimizer.param_groups[0]["lr"] = learning_rate * max(0.02, 1 - step / steps)
        ids, begins = bags.take(rows)
        students = F.normalize(
            module(torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(begins)), dim=1
        )
        wanted = F.normalize(torch.from_numpy(targets[rows]), dim=1)
        distance = (1 - (students * wanted).sum(1)).mean()
        apart = (students @ students.T - wanted @ wanted.T).square().mean()
        loss = distance + _SIMILARITY_WEIGHT * apart
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 500 == 0:
            seconds = time.monotonic() - began
            print(f"step {step:,} loss {loss.item():.4f} {seconds:.0f} s", flush=True)
    trained: np.ndarray = module.weight.detach().numpy()
    return trained


def packed(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the table in 4 bits: (v, d / 2) bytes, and (v, d / 32) scales.

    A number is (q - 8) times its block's scale. The first 16 numbers of a block are the low halves
    of its 16 bytes, the others the high ones.
    """
    blocks = table.reshape(len(table), -1, BLOCK)
    scales = (np.abs(blocks).max(axis=2) / 7).astype(np.float16)
    divisors = np.maximum(scales.astype(np.float32), 1e-12)[:, :, None]
    numbers = (np.clip(np.rint(blocks / divisors), -7, 7) + 8).astype(np.uint8)
    halves = numbers[:, :, : BLOCK // 2] | (numbers[:, :, BLOCK // 2 :] << 4)
    return halves.reshape(len(table), -1), scales


def unpacked(halves: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return the table (v, d) of ``packed``."""
    blocks = halves.reshape(*scales.shape, BLOCK // 2)
    numbers = np.concatenate([blocks & 15, blocks >> 4], axis=2).astype(np.float32) - 8
    return (numbers * scales[:, :, None].astype(np.float32)).reshape(len(scales), -1)


class Development:
    """The development sets of STS-B in eleven languages."""

    def __init__(self, data: Path, tokenizer: Tokenizer) -> None:
        self.sets = {}
        for language in LANGUAGES:
            path = data / f"stsb-multi/stsb-{language}-dev.csv"
            with path.open(newline="", encoding="utf-8") as file:
                rows = [row for row in csv.reader(file) if len(row) == 3]
            texts = [row[0] for row in rows] + [row[1] for row in rows]
            gold = np.array([float(row[2]) for row in rows])
            self.sets[language] = (Bags.of(texts, tokenizer), gold)

    def report(self, label: str, table: np.ndarray) -> dict[str, float]:
        """Print and return the scores."""
        scores, found = {}, {}
        first: dict[str, np.ndarray] = {}
        for language, (bags, gold) in self.sets.items():
            vectors = bags.means(table, np.arange(2 * len(gold)))
            one, two = vectors[: len(gold)], vectors[len(gold) :]
            scores[language] = 100 * float(spearmanr((one * two).sum(1), gold).statistic)
            first[language] = one[:_EVALUATED]
            nearest = (first["en"] @ first[language].T).argmax(1)
            found[language] = 100 * float((nearest == np.arange(_EVALUATED)).mean())
        others = LANGUAGES[1:]
        scores["mean"] = float(np.mean([scores[language] for language in others]))
        scores["found"] = float(np.mean([found[language] for language in others]))
        print(label, " ".join(f"{key} {score:.2f}" for key, score in scores.items()), flush=True)
        return scores


def main() -> None:
    """Train and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument(
        "--corpus", action="append", metavar="NAME=N", help="default: those of mini-multi"
    )
    parser.add_argument("--teacher", default="mini-static", help="of English texts")
    parser.add_argument("--epochs", type=float, default=3.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    draw = np.random.default_rng(0)
    tokens = json.loads((arguments.work / "vocabulary.json").read_text(encoding="utf-8"))
    tokenizer = tokenizer_of(list(tokens))
    table = first_table(arguments.work, tokens)
    counts = dict(_CORPORA)
    if arguments.corpus:
        counts = {
            name: int(count) for name, count in (pair.split("=") for pair in arguments.corpus)
        }
    corpora = [read_corpus(arguments.work, name) for name in counts]
    teacher = pc.load(arguments.teacher)
    matrix = bridge(read_corpus(arguments.work, "bags"), teacher)
    texts, found, places = [], [], []
    for number, corpus in enumerate(corpora):
        vectors = targets_of(corpus, teacher, matrix)[corpus.targets]
        known = np.flatnonzero(vectors.any(axis=1))
        drawn = draw.choice(len(known), min(counts[corpus.name], len(known)), replace=False)
        known = known[np.sort(drawn)]
        print(f"{corpus.name}: {len(known):,} texts of {len(corpus.texts):,}", flush=True)
        texts += [corpus.texts[row] for row in known]
        found.append(vectors[known])
        places.append(np.full(len(known), number))
    targets = np.concatenate(found)
    parts = np.concatenate(places)
    bags = Bags.of(texts, tokenizer)
    development = Development(arguments.data, tokenizer) if arguments.data else None

    table = table @ fitted_map(bags, table, targets, draw)
    if development:
        development.report("mapped", table)
    seen = np.bincount(bags.ids, minlength=len(table)) > 0
    print(f"{100 * seen.mean():.0f}% of the rows are seen", flush=True)
    table *= _START_SCALE / np.sqrt(np.square(table[seen]).mean())
    steps = int(arguments.epochs * len(texts) / _BATCH)
    table = train(table, bags, targets, parts, steps, np.random.default_rng(1))
    halves, scales = packed(table)
    if development:
        development.report("trained", table)
        development.report("4 bits", unpacked(halves, scales))
    if arguments.output:
        write(arguments.output, tokenizer, halves, scales)


def write(folder: Path, tokenizer: Tokenizer, halves: np.ndarray, scales: np.ndarray) -> None:
    """Write the table and its tokenizer as an entry."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {"embedding.packed": halves, "embedding.scales": scales}, folder / "model.safetensors"
    )
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    recipe = pc.Recipe(backbone="mini-multi", pooling="static/avg")
    about = {"backbone": "mini-multi", "width": WIDTH}
    write_entry(folder, Entry("mini-multi", recipe, provenance=about))
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size / 1e6:.1f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
