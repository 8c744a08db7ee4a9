"""The demo sets: sentences and graded pairs of our own inside the package. No benchmark, and figures say so."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from promptcli.data.senteval import Parts
from promptcli.errors import UsageError
from promptcli.notes import note
from promptcli.storage.files import check_output, write_text

_FOLDER = Path(__file__).parents[1] / "shipped" / "demo"
#: Varied sentences, one a line.
SENTENCES = _FOLDER / "sentences.txt"
#: Words and what they mean, a table.
DEFINITIONS = _FOLDER / "definitions.tsv"
#: How figures on the demo pairs name their text.
TEXT = "our own demo pairs, no benchmark"


def read_demo(split: str) -> Parts:
    """Return the demo pairs by kind (paraphrase, negation, order, ...); ``test`` and ``dev`` share no sentence."""
    kinds: Parts = {}
    for line in (_FOLDER / f"pairs.{split}.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        score, kind, first, second = line.split("\t")
        kinds.setdefault(kind, []).append((first, second, float(score)))
    return dict(sorted(kinds.items()))


#: Sentences, pairs and triplets of the example files; of the development pairs one in so many, so that all kinds occur.
_SENTENCES, _MORE, _ONE_IN, _TRIPLETS = 500, 50, 7, 128


def write_examples(folder: Path = Path(), *, force: bool = False) -> dict[str, str]:
    """Write small example files, for the commands of the README: sentences, a table, graded pairs, triplets.

    Args:
        folder: Where to write; created if it is missing. Default: the current folder.
        force: Overwrite existing files.

    Returns:
        File name -> its content in words.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{str(folder)!r} is a file; give a folder, or none for this one") from None
    lines = SENTENCES.read_text(encoding="utf-8").splitlines()
    # the development pairs: what is chosen by them can be scored on the test pairs
    pairs = [(one, other or "", score) for part in read_demo("dev").values() for one, other, score in part]
    more = [(f"s{number}", text) for number, text in enumerate(lines[_SENTENCES : _SENTENCES + _MORE], 1)]
    graded = [(one, other, f"{score:.1f}") for one, other, score in pairs[::_ONE_IN]]
    triplets = _triplets(pairs)
    tables = {
        "sentences.txt": (f"{_SENTENCES:,} sentences, one a line", "\n".join(lines[:_SENTENCES]) + "\n"),
        "more.csv": (f"{_MORE} more, with an id", _table(("id", "text"), more, ",")),
        "pairs.tsv": (
            f"{len(graded):,} pairs graded from 0 to 5",
            _table(("sentence1", "sentence2", "score"), graded, "\t"),
        ),
        "triplets.csv": (
            f"{len(triplets)} triplets: a sentence, its paraphrase, one that misleads",
            _table(("sent0", "sent1", "hard_neg"), triplets, ","),
        ),
    }
    new = {name: text for name, (_, text) in tables.items() if not _holds(folder / name, text)}
    for name in new:
        check_output(folder / name, force=force, option="examples")
    for name, text in new.items():
        write_text(folder / name, text)
    if not new:
        note("already there, unchanged")
    return {name: about for name, (about, _) in tables.items()}


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


def _triplets(pairs: Sequence[tuple[str, str, float]]) -> list[tuple[str, str, str]]:
    """Return paraphrases, each with that unlike sentence of the pairs which shares most words with it."""
    unlike = [(other, set(other.lower().split())) for _, other, score in pairs if score <= 2]
    alike = [(one, other) for one, other, score in pairs if score >= 4][:_TRIPLETS]
    return [
        (one, other, max(unlike, key=lambda item: len(item[1] & set(one.lower().split())))[0]) for one, other in alike
    ]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], separator: str) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=separator, lineterminator="\n").writerows([heads, *rows])
    return text.getvalue()
