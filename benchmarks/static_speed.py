"""Sentences per second of a static recipe with a fitted transform, next to model2vec with the very
same table.

pip install model2vec
python benchmarks/static_speed.py CORPUS [--lines N] [--rounds N]

The peer's table holds every token's row as the recipe turns it: zero where the recipe drops the
token, else (x - mu) W. So both say the same of a sentence up to its length, which the lowest cosine
shows. One thread each; interleaved rounds, each of other sentences.
"""

import argparse
import itertools
import os
import statistics
import time
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

import numpy as np
from model2vec import StaticModel
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

import promptcli as pc


def peer_of(encoder):
    """Return model2vec's model of a static, bias-free recipe with transforms."""
    tokens = encoder.backbone.tokenizer
    pieces = tokens.items()
    rewritten = encoder.token_ids(list(pieces.values()))
    kept = [token for token, ids in zip(pieces, rewritten, strict=True) if list(ids) == [token]]
    table = np.zeros((len(pieces), encoder.width), np.float32)
    rows = encoder.backbone.word_embeddings[kept].detach()
    for _, step in encoder.stages:
        rows = step(rows)
    table[kept] = rows.numpy()
    tokenizer = Tokenizer(
        models.WordPiece({text: token for token, text in pieces.items()}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return StaticModel(table, tokenizer, max_length=None)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with arguments.corpus.open(encoding="utf-8") as lines:
        read = itertools.islice(lines, arguments.lines * (arguments.rounds + 1))
        sentences = [line.rstrip("\n") for line in read]
    parts = [
        sentences[start : start + arguments.lines]
        for start in range(0, len(sentences), arguments.lines)
    ]

    recipe = pc.Recipe(pooling="static/unbiased", transforms=("whitening",))
    encoder = pc.fit(recipe, on=parts[0][:6000])
    peer = peer_of(encoder)
    runs = {
        "model2vec": lambda part: peer.encode(part, use_multiprocessing=False),
        "promptcli": lambda part: encoder.encode(part),
    }
    seconds, vectors = {name: [] for name in runs}, {}
    for part in parts:  # the first one warms up
        for name, run in runs.items():
            start, wall = time.process_time(), time.perf_counter()
            vectors[name] = run(part)
            seconds[name].append((time.process_time() - start, time.perf_counter() - wall))
    one, other = (
        made / np.linalg.norm(made, axis=1, keepdims=True).clip(1e-12) for made in vectors.values()
    )
    cosines = (one * other).sum(1)[np.linalg.norm(vectors["model2vec"], axis=1) > 0]
    print(f"rounds of {arguments.lines:,} sentences; lowest cosine of the last {cosines.min():.7f}")
    medians = {}
    for name, found in seconds.items():
        medians[name] = arguments.lines / statistics.median(cpu for cpu, _ in found[1:])
        wall = arguments.lines / statistics.median(clock for _, clock in found[1:])
        print(
            f"{name:10} {medians[name]:8,.0f} sentences per second of processor time, {wall:8,.0f}"
            " of wall clock"
        )
    print(f"ratio {medians['promptcli'] / medians['model2vec']:.2f}")


if __name__ == "__main__":
    main()
