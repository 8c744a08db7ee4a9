"""Small files of every layout that methods are trained from, by name."""

import itertools

from tests.tiny import SENTENCES

LABELS = ["entailment", "contradiction", "neutral", "neutral"]
GRADED = [
    (one, other, str(at % 6))
    for at, (one, other) in enumerate(itertools.product(SENTENCES, repeat=2))
]
FILES = {
    "text.txt": [f"{one} {other}" for one in SENTENCES for other in SENTENCES[:4]],
    "triplets.tsv": [
        "sent0\tsent1\thard_neg",
        *(f"{one}\t{other}\t{one}" for one, other in itertools.pairwise(SENTENCES)),
    ],
    "pairs.tsv": ["sent0\tsent1", *(f"{one}\t{one}" for one in SENTENCES[:4])],
    "nli.tsv": [
        "label\tpremise\thypothesis",
        *(f"{LABELS[at % 4]}\t{SENTENCES[at]}\t{SENTENCES[-at]}" for at in range(8)),
        "-\tNobody\tagreed",
    ],
    "graded.tsv": ["sentence1\tsentence2\tscore", *map("\t".join, GRADED)],
    "odd.tsv": ["word\tdefinition", "zxqv\tThey are plucked.", "vqxz\tThey too."],
    "words.tsv": [
        "word\tdefinition",
        "woman\tAn adult.",
        "dog\tIt barks.",
        "door\tIt opens.",
        "dog\tA pet.",
        "guitars\tThey are plucked.",
    ],
}


def write_graded_pairs(path, sentences=SENTENCES):
    """Write each sentence with the next, graded from 0 to 5, as a user's file."""
    pairs = enumerate(itertools.pairwise(sentences))
    rows = (f"{one}\t{other}\t{number % 6}" for number, (one, other) in pairs)
    path.write_text("\n".join(["sentence1\tsentence2\tscore", *rows]))
    return path
