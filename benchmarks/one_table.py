"""Join mini-static and the table of ten languages into one table that reads all eleven alike.

    python benchmarks/one_table.py --table FOLDER --data DATA -o OUTPUT

FOLDER is what ``multilingual_table.py`` wrote, whose space is mini-static's. DATA has ``corpus/``,
``pairs/`` and ``stsb-multi/``.

1. The vocabulary gets mini-static's numbers and the most frequent English words that it lacks.
2. A token's row is a mean of two: what mini-static makes of it, weighed by how often it is English,
   and its row in FOLDER. Numbers and signs are mini-static's, which also serves other languages.
3. Gradient steps: English texts learn mini-static's vectors. Bags of frequent words in the other
   languages keep the vectors of step 2.
4. Two tables, of which one cares more for English, are averaged.

The table is scored on the development sets of STS-B in eleven languages, and written in 4 bits.
Needs wordfreq.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import wordfreq
from multilingual_table import (
    LANGUAGES,
    WIDTH,
    Bags,
    Development,
    packed,
    tokenizer_of,
    train,
    unit,
    unpacked,
    write,
)
from safetensors.numpy import load_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

import promptcli as pc

_SHIPPED = Path(pc.__file__).parent / "shipped"

_WORDS = 22_000  # that are added
_FREQUENT = 50_000  # words of a language that are drawn from
_ENGLISH_BAGS = 80_000  # texts of such words in English
#: Of two tables: how often an English use of a token counts, texts of such words in each other
#: language, and the share in the mean. The first is better in English, the second in the others.
_TABLES = ((20.0, 20_000, 0.6), (2.0, 40_000, 0.4))
_EPOCHS, _BATCH, _LEARNING_RATE = 5.0, 512, 0.004
#: Of those that ``mini-static`` learned from, too.
_PAIRS = ("captions_coco", "nli_entail", "nli_neutral_triplets", "nli_triplets", "tatoeba")


def added_words(known: set[str], numbers: list[str]) -> list[str]:
    """Return mini-static's numbers, and the most frequent English words, that are not known."""
    frequency = wordfreq.get_frequency_dict("en", "best")
    words = [word for word in frequency if word.isascii() and word.isalpha() and len(word) > 2]
    words.sort(key=frequency.__getitem__, reverse=True)
    chosen = [number for number in numbers if number not in known]
    return chosen + [word for word in words if word not in known][:_WORDS]


def english_shares(tokens: list[str], kept: int, english: float) -> np.ndarray:
    """Return how much of each token is English, (v,); the first ``kept`` are of all languages."""
    tables = [wordfreq.get_frequency_dict(language, "best") for language in LANGUAGES]
    uses = np.array([[table.get(token, 0.0) for table in tables] for token in tokens])
    uses[:, 0] *= english
    shares: np.ndarray = uses[:, 0] / np.maximum(uses.sum(1), 1e-12)
    for row, token in enumerate(tokens):
        if token.isdigit() or (len(token) == 1 and not token.isalpha()):
            shares[row] = 1
    shares[kept:] = 1
    return shares


def rows_of_static(tokens: list[str]) -> np.ndarray:
    """Return the sum of mini-static's rows for each token, zeros for unknown ones, (v, d)."""
    (weights,) = load_file(_SHIPPED / "mini-static" / "tensors.safetensors").values()
    vocabulary = wordpieces()
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rows = np.zeros((len(tokens), WIDTH), np.float32)
    encoded = tokenizer.encode_batch(tokens, add_special_tokens=False)
    for row, encoding in zip(rows, encoded, strict=True):
        if vocabulary["[UNK]"] not in encoding.ids:
            row[:] = weights[encoding.ids].astype(np.float32).sum(0)
    return rows


def wordpieces() -> dict[str, int]:
    """Return the tokens of mini-static, and their rows."""
    lines = (_SHIPPED / "mini-bert" / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return {token: row for row, token in enumerate(lines)}


def english_texts(data: Path) -> Iterator[str]:
    """Yield sentences of Wikipedia and WordNet, and texts of pairs."""
    for name in ("enwiki_contrastive_250k", "wordnet_examples"):
        with (data / "corpus" / f"{name}.txt").open(encoding="utf-8") as file:
            yield from map(str.rstrip, file)
    for name in _PAIRS:
        path = data / "pairs" / f"{name}.tsv"
        for line in path.read_text(encoding="utf-8").splitlines()[1:]:
            yield from filter(None, line.split("\t"))


def bags_of_words(language: str, count: int, draw: np.random.Generator) -> list[str]:
    """Return texts of 3 to 9 frequent words, each drawn by the square root of its frequency."""
    frequency = wordfreq.get_frequency_dict(language, "best")
    words = sorted(frequency, key=frequency.__getitem__, reverse=True)[:_FREQUENT]
    chances = np.sqrt([frequency[word] for word in words])
    sizes = draw.integers(3, 10, count)
    drawn = draw.choice(len(words), sizes.sum(), p=chances / chances.sum())
    parts = np.split(drawn, np.cumsum(sizes)[:-1])
    return [" ".join(words[word] for word in part) for part in parts]


def words_of(folder: Path) -> tuple[list[str], int]:
    """Return the tokens, (v,), and how many of them are of all languages."""
    about = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = list(about["model"]["vocab"])[1:]
    numbers = [token for token in wordpieces() if token.isdigit() and len(token) > 1]
    return tokens + added_words(set(tokens), numbers), len(tokens)


def joined(folder: Path, tokens: list[str], kept: int, english: float) -> np.ndarray:
    """Return the table (v + 1, d), whose row 0 is of unknown tokens."""
    tensors = load_file(folder / "model.safetensors")
    others = unpacked(tensors["embedding.packed"], tensors["embedding.scales"])
    static = rows_of_static(tokens)
    shares = english_shares(tokens, kept, english)
    shares[~static.any(axis=1)] = 0
    table = np.zeros((len(tokens) + 1, WIDTH), np.float32)
    table[: len(others)] = others
    table[1:] = shares[:, None] * static + (1 - shares[:, None]) * table[1:]
    return table


def trained(table: np.ndarray, tokenizer: Tokenizer, english: list[str], bags: int) -> np.ndarray:
    """Return the table after gradient steps on English texts, and on bags of the others' words."""
    torch.manual_seed(0)
    draw = np.random.default_rng(0)
    texts = english + bags_of_words("en", _ENGLISH_BAGS, draw)
    targets = [unit(pc.load("mini-static").encode(texts))]
    parts = [np.zeros(len(texts), int)]
    for number, language in enumerate(LANGUAGES[1:], start=1):
        found = bags_of_words(language, bags, draw)
        texts += found
        targets.append(Bags.of(found, tokenizer).means(table, np.arange(len(found))))
        parts.append(np.full(len(found), number))
    steps = int(_EPOCHS * len(texts) / _BATCH)
    print(f"{len(texts):,} texts, {steps:,} steps", flush=True)
    return train(
        table,
        Bags.of(texts, tokenizer),
        np.concatenate(targets).astype(np.float32),
        np.concatenate(parts),
        steps,
        np.random.default_rng(1),
        learning_rate=_LEARNING_RATE,
    )


def main() -> None:
    """Join, train and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokens, kept = words_of(arguments.table)
    tokenizer = tokenizer_of(tokens)
    development = Development(arguments.data, tokenizer)
    texts = list(dict.fromkeys(english_texts(arguments.data)))
    table = np.zeros((len(tokens) + 1, WIDTH), np.float32)
    for english, bags, share in _TABLES:
        begun = joined(arguments.table, tokens, kept, english)
        development.report("joined", begun)
        ended = unpacked(*packed(trained(begun, tokenizer, texts, bags)))
        development.report("trained, 4 bits", ended)
        table += share * ended
    halves, scales = packed(table)
    development.report("4 bits", unpacked(halves, scales))
    write(arguments.output, tokenizer, halves, scales)


if __name__ == "__main__":
    main()
