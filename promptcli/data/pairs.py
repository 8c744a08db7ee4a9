"""Pairs of sentences as natural language inference has them: SimCSE's, SNLI's, MultiNLI's files, labelled or not.

Knows nothing of what the sentences are for.
"""

from collections.abc import Iterator
from pathlib import Path

from promptcli.data.streams import open_hashed, read_lines, strip_ending
from promptcli.data.tables import FirstLayout, NoFieldError
from promptcli.data.text import open_source
from promptcli.errors import UsageError

#: Names of the two sides' columns, in files that name their columns.
COLUMNS = (("sent0", "sent1"), ("premise", "hypothesis"), ("sentence1", "sentence2"))
#: What a file without a header begins each line with: label, premise, hypothesis, with tabs between them.
LABELS = ("entailment", "neutral", "contradiction", "-")

Sides = tuple[list[str], list[str]]


def read_sides(path: Path) -> Sides | None:
    """Return the first and the second sentence of every pair, or None where the file holds no pairs.

    A file holds pairs where it has two columns of ``COLUMNS``, or where its first line begins with one of ``LABELS``
    and a tab. Pairs are neither joined nor sorted out; other columns (label, hard negative) are left alone.

    Raises:
        NotFoundError: There is no such file.
        UsageError: It is malformed; with the line.
    """
    if is_labelled(path):
        _, first, second = zip(*read_labelled(path), strict=True)
        return list(first), list(second)
    try:
        with open_source(path, FirstLayout(*COLUMNS)) as source:
            first, second = zip(*((record.text, *record.more) for record in source), strict=True)
            return list(first), list(second)
    except NoFieldError:
        return None


def is_labelled(path: Path) -> bool:
    """Return whether a file has no header and begins with a label, a premise and a hypothesis, tabs between them."""
    if path.suffix.lower() == ".parquet":
        return False
    with open_hashed(path) as raw:
        _, line = next(read_lines(raw, str(path), gzipped=_is_gzipped(path)), (0, ""))
    fields = line.split("\t")
    return len(fields) > 2 and fields[0] in LABELS


def read_labelled(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield label, premise and hypothesis of every line of a file for which ``is_labelled``.

    Raises:
        UsageError: A line has fewer columns.
    """
    with open_hashed(path) as raw:
        for number, line in read_lines(raw, str(path), gzipped=_is_gzipped(path)):
            fields = strip_ending(line).split("\t")
            if len(fields) < 3:
                raise UsageError(
                    f"{path}: line {number}: {len(fields)} columns; each line is label, premise and hypothesis with"
                    " tabs between them"
                )
            yield fields[0], fields[1], fields[2]


def _is_gzipped(path: Path) -> bool:
    return path.suffix.lower() == ".gz"
