"""Both sides of the pairs of a file, as data of natural language inference come: SimCSE's, SNLI's, MultiNLI's, plain.

Knows nothing of what the sentences are for.
"""

from pathlib import Path

from promptcli.data.streams import open_hashed, read_lines, strip_ending
from promptcli.data.tables import Fields
from promptcli.data.text import has_field, open_source
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
    if _is_labelled(path):
        return _read_labelled(path)
    for columns in COLUMNS:
        if all(has_field(path, column) for column in columns):
            first, second = (_column(path, column) for column in columns)
            return first, second
    return None


def _column(path: Path, column: str) -> list[str]:
    with open_source(path, Fields(text=column)) as source:
        return [record.text for record in source]


def _is_gzipped(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _is_labelled(path: Path) -> bool:
    if path.suffix.lower() == ".parquet":
        return False
    with open_hashed(path) as raw:
        _, line = next(read_lines(raw, str(path), gzipped=_is_gzipped(path)), (0, ""))
    fields = line.split("\t")
    return len(fields) > 2 and fields[0] in LABELS


def _read_labelled(path: Path) -> Sides:
    first, second = [], []
    with open_hashed(path) as raw:
        for number, line in read_lines(raw, str(path), gzipped=_is_gzipped(path)):
            fields = strip_ending(line).split("\t")
            if len(fields) < 3:
                raise UsageError(
                    f"{path}: line {number}: {len(fields)} columns; each line is label, premise and hypothesis with"
                    " tabs between them"
                )
            first.append(fields[1])
            second.append(fields[2])
    return first, second
