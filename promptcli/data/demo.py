"""The demo sets of the package: sentences and graded pairs.

They are not a benchmark, and figures say so.
"""

import contextlib
import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from promptcli.data.senteval import Parts
from promptcli.errors import UsageError, if_stopped
from promptcli.storage.files import check_output, write_text

_FOLDER = Path(__file__).parents[1] / "shipped" / "demo"
#: Varied sentences, one a line.
SENTENCES_FILE = _FOLDER / "sentences.txt"
NOTES = _FOLDER / "notes.md"
#: Words and their meanings, a table.
DEFINITIONS_FILE = _FOLDER / "definitions.tsv"
#: How figures on the demo pairs name their text.
TEXT = "our own demo pairs, no benchmark"


def read_demo(split: str) -> Parts:
    """Return the demo pairs by kind (paraphrase, negation, order, ...).

    ``test`` and ``dev`` share no sentence.
    """
    kinds: Parts = {}
    for line in (_FOLDER / f"pairs.{split}.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        score, kind, first, second = line.split("\t")
        kinds.setdefault(kind, []).append((first, second, float(score)))
    return dict(sorted(kinds.items()))


#: Sizes of the example files; one of 7 development pairs is taken, so that all kinds occur.
_SENTENCES = 500
_MORE = 50
_STEP = 7
_TRIPLETS = 128


def write_examples(folder: Path = Path(), *, force: bool = False) -> dict[str, str]:
    """Write small example files, for the commands of the README: sentences, a table, notes, graded
    pairs, triplets.

    Args:
        folder: Where to write; created if it is missing.
        force: Overwrite existing files.

    Returns:
        File name -> its content in words.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(
            f"{str(folder)!r} is a file; give a folder, or none for this one"
        ) from None
    lines = SENTENCES_FILE.read_text(encoding="utf-8").splitlines()
    # the development pairs: a choice by them can be scored on the test pairs
    pairs = [
        (first, second or "", score)
        for rows in read_demo("dev").values()
        for first, second, score in rows
    ]
    more = [
        (f"s{number}", text)
        for number, text in enumerate(lines[_SENTENCES : _SENTENCES + _MORE], 1)
    ]
    graded = [(first, second, f"{score:.1f}") for first, second, score in pairs[::_STEP]]
    triplets = _triplets(pairs)
    tables = {
        "sentences.txt": (
            f"{_SENTENCES:,} sentences, one a line",
            "\n".join(lines[:_SENTENCES]) + "\n",
        ),
        "more.csv": (f"{_MORE} more, with an id", _table(("id", "text"), more, ",")),
        "notes.md": ("wrapped notes with headings", NOTES.read_text(encoding="utf-8")),
        "pairs.tsv": (
            f"{len(graded):,} pairs graded from 0 to 5",
            _table(("sentence1", "sentence2", "score"), graded, "\t"),
        ),
        "triplets.csv": (
            f"{len(triplets)} triplets: a sentence, its paraphrase, a misleading one",
            _table(("sent0", "sent1", "hard_neg"), triplets, ","),
        ),
    }
    for name, (_, text) in tables.items():
        unchanged = (folder / name).is_file() and (folder / name).read_bytes() == text.encode()
        if not unchanged and not force and (folder / name).is_file():
            raise UsageError(
                f"needed to replace {folder / name}, another file; or name a new folder",
                parameter="force",
            )
        check_output(folder / name, force=True, parameter="folder")
    with _all_or_none(folder, made):
        for name, (_, text) in tables.items():
            write_text(folder / name, text)
    return {name: content for name, (content, _) in tables.items()}


@contextlib.contextmanager
def _all_or_none(folder: Path, new_folders: Sequence[Path]) -> Iterator[None]:
    """Write files into a folder; if that fails, remove those that were not there before, and the
    folders ``new_folders`` for them.
    """
    before = set(folder.iterdir())
    replaced = "files of the examples that were there may have been replaced"
    try:
        with if_stopped(replaced) if before else contextlib.nullcontext():
            yield
    except BaseException:
        for path in set(folder.iterdir()) - before:
            path.unlink()
        with contextlib.suppress(OSError):  # not empty
            for path in new_folders:
                path.rmdir()
        raise


def _triplets(pairs: Sequence[tuple[str, str, float]]) -> list[tuple[str, str, str]]:
    """Return paraphrases, each with the dissimilar sentence of the pairs that shares most words
    with it.
    """
    negatives = [second for _, second, score in pairs if score <= 2]
    words = [set(negative.lower().split()) for negative in negatives]
    triplets = []
    for first, second, _ in [pair for pair in pairs if pair[2] >= 4][:_TRIPLETS]:
        own = set(first.lower().split())
        shared = [len(others & own) for others in words]
        triplets.append((first, second, negatives[shared.index(max(shared))]))
    return triplets


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], separator: str) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=separator, lineterminator="\n").writerows([heads, *rows])
    return text.getvalue()
