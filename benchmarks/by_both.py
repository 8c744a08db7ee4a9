"""nDCG@10 x 100 by meaning, by words and by both in each language, and whether both together lose.

    python benchmarks/by_both.py --data DATA [--split dev] [--model mini-multi]

The texts are the German ones of ``benchmarks/german`` and those of DATA/stsb-multi: each second
sentence is a row, each first sentence with a pair of score 4 or more a query, unless it is a row
itself. The interval of a difference is a paired bootstrap's over queries, 95%.
"""

import argparse
import csv
import json
from pathlib import Path
from typing import Literal

import numpy as np

import promptcli as pc

LANGUAGES = ("en", "de", "es", "fr", "it", "nl", "pl", "pt", "ru", "zh", "ja")
WAYS: tuple[Literal["meaning", "words", "both"], ...] = ("meaning", "words", "both")
#: Texts of rows, queries, and for each query the gains of the rows that answer it.
Collection = tuple[list[str], list[str], list[dict[int, float]]]


def german() -> Collection:
    folder = Path(__file__).parent / "german"
    lines = (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    documents = {item["_id"]: item["text"] for item in map(json.loads, lines)}
    places = {name: place for place, name in enumerate(documents)}
    gains: dict[str, dict[int, float]] = {}
    judged = (folder / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]
    for query, document, gain in (line.split("\t") for line in judged):
        gains.setdefault(query, {})[places[document]] = float(gain)
    lines = (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    queries = {item["_id"]: item["text"] for item in map(json.loads, lines)}
    return list(documents.values()), [queries[name] for name in gains], list(gains.values())


def paraphrases(file: Path) -> Collection:
    with file.open(encoding="utf-8", newline="") as lines:
        pairs = [(one, other, float(score)) for one, other, score in csv.reader(lines)]
    places: dict[str, int] = {}
    for _, other, _ in pairs:
        places.setdefault(other, len(places))
    gains: dict[str, dict[int, float]] = {}
    for one, other, score in pairs:
        if score >= 4 and one not in places:
            gains.setdefault(one, {})[places[other]] = score - 3
    return list(places), list(gains), list(gains.values())


def ndcg(found: list[int], gains: dict[int, float]) -> float:
    """Return nDCG@10 x 100 of the rows found, best first."""
    discounts = 1 / np.log2(np.arange(2, 12))
    ideal = sorted(gains.values(), reverse=True)[:10]
    reached = [gains.get(row, 0.0) for row in found[:10]]
    return float(100 * (reached @ discounts[: len(reached)]) / (ideal @ discounts[: len(ideal)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--split", default="dev")
    parser.add_argument("--model", default="mini-multi")
    options = parser.parse_args()
    encoder = pc.load(options.model)
    collections = {"German texts": german()}
    for language in LANGUAGES:
        file = options.data / "stsb-multi" / f"stsb-{language}-{options.split}.csv"
        collections[language] = paraphrases(file)
    print("texts         queries  meaning  words   both  both - the better one, interval")
    for name, (texts, queries, gains) in collections.items():
        index = pc.SentenceIndex.build(texts, encoder)
        scores = {}
        for way in WAYS:
            found = index.search(queries, k=10, by=way)
            rows = [[int(hit.id) for hit in hits] for hits in found]
            scores[way] = np.array(list(map(ndcg, rows, gains)))
        better = max(WAYS[:2], key=lambda way: scores[way].mean())
        differences = scores["both"] - scores[better]
        drawn = np.random.default_rng(0).integers(0, len(queries), (2000, len(queries)))
        low, high = np.percentile(differences[drawn].mean(axis=1), [2.5, 97.5])
        means = "  ".join(f"{scores[way].mean():5.1f}" for way in WAYS)
        print(
            f"{name:12}  {len(queries):7}    {means}"
            f"  {differences.mean():+5.1f} ({better})  {low:+.1f} to {high:+.1f}"
        )


if __name__ == "__main__":
    main()
