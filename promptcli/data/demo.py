"""The demo sets of the package: sentences and graded pairs.

The demo pairs are not a benchmark, and results say so.
"""

from pathlib import Path

from promptcli.data.senteval import GoldRows
from promptcli.errors import UsageError, if_stopped
from promptcli.storage.files import check_output, write_text

_FOLDER = Path(__file__).parents[1] / "shipped" / "demo"
#: Varied sentences, one a line.
SENTENCES_FILE = _FOLDER / "sentences.txt"
#: A table of words and their meanings.
DEFINITIONS_FILE = _FOLDER / "definitions.tsv"
#: The description of the demo pairs, printed with every score.
TEXT = "the package's demo pairs, not a benchmark"


def read_demo(split: str) -> GoldRows:
    """Return the demo pairs of ``test`` or ``dev`` by kind (paraphrase, negation, order, ...).

    The two splits share no sentence.
    """
    kinds: GoldRows = {}
    for line in (_FOLDER / f"pairs.{split}.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        score, kind, first, second = line.split("\t")
        kinds.setdefault(kind, []).append((first, second, float(score)))
    return dict(sorted(kinds.items()))


#: The example files and their contents.
_EXAMPLES = {
    "sentences.txt": "500 sentences, one on each line",
    "more.csv": "50 more, with an id",
    "notes.md": "wrapped notes with headings",
    "pairs.tsv": "199 pairs graded from 0 to 5",  # of the development pairs
    "triplets.csv": "128 triplets: a sentence, its paraphrase, a misleading one",
}


def write_examples(folder: Path = Path(), *, force: bool = False) -> dict[str, str]:
    """Write small example files for the README's commands: sentences, a table, notes, graded pairs,
    triplets.

    Args:
        folder: The folder of the files; it is created if it is missing.
        force: Overwrite existing files.

    Returns:
        File name -> a description of its content.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(
            f"{str(folder)!r} is a file; give a folder, or leave it out for the current one"
        ) from None
    texts = {name: (_FOLDER.parent / "examples" / name).read_bytes() for name in _EXAMPLES}
    for name, text in texts.items():
        path = folder / name
        if path.is_file() and path.read_bytes() != text and not force:
            raise UsageError(
                f"is needed to replace {path}, which differs; or name a new folder",
                parameter="force",
            )
        check_output(path, force=True, parameter="folder")
    with if_stopped("some of the files are written"):
        for name, text in texts.items():
            write_text(folder / name, text.decode())
    return _EXAMPLES
