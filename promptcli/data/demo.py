"""The demo sets: sentences and graded pairs of our own inside the package. No benchmark, and figures say so."""

from pathlib import Path

import numpy as np

from promptcli.data.sts import Pairs, STSTask

_FOLDER = Path(__file__).parents[1] / "shipped" / "demo"
#: Varied sentences, one a line.
SENTENCES = _FOLDER / "sentences.txt"
#: How figures on the demo pairs name their text.
TEXT = "our own demo pairs, no benchmark"


def load_demo(split: str, protocol: str) -> STSTask:
    """Return the demo pairs as a task, its subsets the kinds of pairs (paraphrase, negation, order, ...).

    Args:
        split: ``test`` or ``dev``; they share no sentence.
        protocol: Carried along; both protocols agree on these pairs.
    """
    lines = (_FOLDER / f"pairs.{split}.tsv").read_text(encoding="utf-8").splitlines()[1:]
    by_kind: dict[str, list[tuple[float, str, str]]] = {}
    for line in lines:
        score, kind, first, second = line.split("\t")
        by_kind.setdefault(kind, []).append((float(score), first, second))
    subsets = {
        kind: Pairs([row[1] for row in rows], [row[2] for row in rows], np.array([row[0] for row in rows]))
        for kind, rows in sorted(by_kind.items())
    }
    return STSTask("demo", split, protocol, TEXT, subsets)
