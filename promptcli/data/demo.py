"""The demo sets: sentences and graded pairs of our own inside the package. No benchmark, and figures say so."""

from pathlib import Path

from promptcli.data.senteval import Parts

_FOLDER = Path(__file__).parents[1] / "shipped" / "demo"
#: Varied sentences, one a line.
SENTENCES = _FOLDER / "sentences.txt"
#: How figures on the demo pairs name their text.
TEXT = "our own demo pairs, no benchmark"


def read_demo(split: str) -> Parts:
    """Return the demo pairs by kind (paraphrase, negation, order, ...); ``test`` and ``dev`` share no sentence."""
    kinds: Parts = {}
    for line in (_FOLDER / f"pairs.{split}.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        score, kind, first, second = line.split("\t")
        kinds.setdefault(kind, []).append((first, second, float(score)))
    return dict(sorted(kinds.items()))
