"""Search by vectors, by words (BM25) and by both: how often the right row is found, for
paraphrases, names and codes.

    python benchmarks/hybrid.py --data DATA --model mini

Each set has up to 2,000 queries and the rows that they are to find, one for each query, among up to
20,000:

- paraphrases: the first text of a pair asks for the second, among the second texts of all pairs; of
  an image's captions only this one counts;
- names: two or more capitalised words in a row, which only one sentence of Wikipedia's has, ask for
  that sentence;
- codes: an identifier (``KX-4831-QB``) asks for the one sentence into which it was put; every
  sentence has another.

Figures are accuracy@1 and nDCG@10 x 100, over the index's own answers (exact vectors; BM25 with k1
1.5 and b 0.75).
"""

import argparse
import math
import random
import re
from pathlib import Path

import promptcli as pc
from promptcli.models.loading import open_torch_encoder

QUERIES, ROWS = 2_000, 20_000
PAIRS = {
    "questions": "questions_quora.tsv",
    "headlines": "headlines.tsv",
    "captions": "captions_coco.tsv",
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True, help="folder with pairs/ and corpus/")
    parser.add_argument("--model", default="mini")
    options = parser.parse_args()
    encoder = open_torch_encoder(options.model, dtype="auto")
    print(
        f"| {options.model} | queries | rows | vectors | words | both |\n|---|---|---|---|---|---|"
    )
    for name, (queries, rows) in sets(options.data).items():
        index = pc.SentenceIndex.build(rows, encoder)
        figures = []
        texts = list(queries)
        for by in ("meaning", "words", "both"):
            answers = index.search(texts, 10, by=by)
            ranks = [
                next((hit.rank for hit in hits if hit.text == right), None)
                for hits, right in zip(answers, queries.values(), strict=True)
            ]
            first = sum(rank == 1 for rank in ranks) / len(ranks)
            gain = sum(1 / math.log2(1 + rank) for rank in ranks if rank) / len(ranks)
            figures.append(f"{100 * first:.1f} / {100 * gain:.1f}")
        print(f"| {name} | {len(queries):,} | {len(rows):,} | {' | '.join(figures)} |", flush=True)


def sets(data: Path) -> dict[str, tuple[dict[str, str], list[str]]]:
    """Return for each set its queries with the row that each is to find, and all rows."""
    drawn, made = random.Random(0), {}
    for name, file in PAIRS.items():
        lines = (data / "pairs" / file).read_text(encoding="utf-8").splitlines()[1:]
        pairs = dict(line.split("\t")[:2] for line in lines if line.count("\t") >= 1)
        pairs = {
            first: second for first, second in pairs.items() if first.strip() and second.strip()
        }
        rows = list(dict.fromkeys(pairs.values()))[:ROWS]
        known = set(rows)
        asked = drawn.sample(
            [one for one, other in pairs.items() if other in known and one not in known], QUERIES
        )
        made[f"paraphrases: {name}"] = {first: pairs[first] for first in asked}, rows
    lines = (
        (data / "corpus" / "enwiki_contrastive_250k.txt").read_text(encoding="utf-8").splitlines()
    )
    sentences = drawn.sample(list(dict.fromkeys(lines)), ROWS)
    named: dict[str, list[str]] = {}
    for sentence in sentences:
        for found in set(re.findall(r"(?<=[a-z,] )(?:[A-Z][a-z]+ )+[A-Z][a-z]+", sentence)):
            named.setdefault(found, []).append(sentence)
    whole = "\n".join(sentences)
    single = {
        name: rows[0] for name, rows in named.items() if len(rows) == 1 and whole.count(name) == 1
    }
    made["names"] = (
        {name: single[name] for name in drawn.sample(sorted(single), QUERIES)},
        sentences,
    )
    coded = {code(drawn): sentence for sentence in sentences}
    rows = [f"{sentence[:-1]} ({name})." for name, sentence in coded.items()]
    right = dict(zip(coded, rows, strict=True))
    made["codes"] = {name: right[name] for name in drawn.sample(list(right), QUERIES)}, rows
    return made


def code(drawn: random.Random) -> str:
    """Return an identifier such as KX-4831-QB."""
    letters = "".join(drawn.choices("ABCDEFGHJKLMNPQRSTUVWXYZ", k=4))
    return f"{letters[:2]}-{drawn.randrange(1000, 10_000)}-{letters[2:]}"


if __name__ == "__main__":
    main()
