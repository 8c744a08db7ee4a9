"""Make the sentences that the shipped encoders are distilled on, none of them of STS or SICK.

    python benchmarks/distillation_corpus.py --data FOLDER -o sentences.txt [--wikipedia N]

FOLDER holds ``senteval`` and the files below, whose sources are named in ``NOTICE``. A sentence is
left out if its letters and digits, or its words in any order, are those of a sentence of an STS or
SICK set in ``senteval``.
"""

import argparse
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_SHORTEST, _LONGEST = 9, 159  # characters
_TABLES: dict[str, dict[str, tuple[int, ...]]] = {
    "COCO captions": {"pairs/captions_coco.tsv": (0, 1)},
    "NLI": {
        "pairs/nli_triplets.tsv": (0, 1, 2),
        "pairs/nli_neutral_triplets.tsv": (0, 1, 2),
        "pairs/nli_entail.tsv": (0, 1, 2),
        "nli/nli_pairs.tsv": (1, 2),
    },
    "Tatoeba": {"pairs/tatoeba.tsv": (0, 1)},
}
_ENGLISH_WIKIPEDIA = ("enwiki_contrastive_250k.txt", "enwiki_core.txt", "enwiki_mlm.txt")


def characters(sentence: str) -> str:
    """Return the letters and digits of a sentence."""
    return re.sub("[^a-z0-9]", "", sentence.lower())


def bag_of_words(sentence: str) -> tuple[str, ...]:
    """Return the words of a sentence in alphabetical order."""
    return tuple(sorted(re.findall("[a-z0-9]+", sentence.lower())))


def lines(path: Path, errors: str = "strict") -> list[str]:
    """Return the lines of a file."""
    with path.open(encoding="utf-8", errors=errors) as file:
        return [line.rstrip("\n") for line in file]


def test_sentences(folder: Path) -> set[str | tuple[str, ...]]:
    """Return every field of STS and SICK by its characters and by its words."""
    files = [
        path
        for pattern in ("STS/**/*", "SICK/*")
        for path in folder.glob(pattern)
        if path.is_file()
    ]
    fields = {
        field
        for path in files
        for line in lines(path, "replace")
        for field in line.rstrip("\r").split("\t")
    }
    return {
        form
        for field in fields
        if len(field) > 8
        for form in (characters(field), bag_of_words(field))
    }


def groups(
    folder: Path, draw: random.Random, wikipedia_count: int
) -> Iterator[tuple[str, list[str]]]:
    """Yield each source's name and its sentences."""
    for name, tables in _TABLES.items():
        rows = [
            (line.split("\t"), columns)
            for path, columns in tables.items()
            for line in lines(folder / path)[1:]
        ]
        yield (
            name,
            [
                fields[column]
                for fields, columns in rows
                for column in columns
                if column < len(fields)
            ],
        )
    yield "WordNet examples", lines(folder / "corpus/wordnet_examples.txt")
    yield (
        "WordNet glosses",
        [
            line.split("\t")[1]
            for line in lines(folder / "glosses/common_words.tsv")
            if "\t" in line
        ],
    )
    wikipedia = [
        line
        for file in _ENGLISH_WIKIPEDIA
        for line in lines(folder / "corpus" / file)
        if 15 < len(line) < 130
    ]
    draw.shuffle(wikipedia)
    yield "Wikipedia", wikipedia[:wikipedia_count]


def main() -> None:
    """Write the file, and say what each source gave and lost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument(
        "--wikipedia", type=int, default=200_000, help="sentences that are drawn from Wikipedia"
    )
    arguments = parser.parse_args()
    draw, excluded = random.Random(0), test_sentences(arguments.data / "senteval")
    seen: set[str] = set()
    corpus: list[str] = []
    for name, sentences in groups(arguments.data, draw, arguments.wikipedia):
        before, dropped = len(corpus), 0
        for sentence in (" ".join(text.split()) for text in sentences):
            if not _SHORTEST <= len(sentence) <= _LONGEST or sentence in seen:
                continue
            seen.add(sentence)
            if characters(sentence) in excluded or bag_of_words(sentence) in excluded:
                dropped += 1
            else:
                corpus.append(sentence)
        print(
            f"{name}: {len(corpus) - before:,} sentences, {dropped:,} of STS or SICK left out",
            file=sys.stderr,
        )
    draw.shuffle(corpus)
    arguments.output.write_text("\n".join(corpus) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
