"""Training examples: sentences, pairs, or pairs with a hard negative, from text, CSV, TSV, JSONL or Parquet."""

import itertools
from dataclasses import dataclass
from pathlib import Path

from promptcli.data.tables import Fields
from promptcli.data.text import has_field, open_source
from promptcli.errors import UsageError

#: Columns of pairs and triplets, as SimCSE's files name them.
COLUMNS = ("sent0", "sent1", "hard_neg")


@dataclass(frozen=True)
class Examples:
    """n examples.

    Attributes:
        columns: One list of n texts per column: 1 (sentences), 2 (pairs) or 3 (pairs and hard negatives).
        sha256: Of the file.
        blank: Rows that were left out, a sentence of theirs being blank.
    """

    columns: tuple[list[str], ...]
    sha256: str
    blank: int = 0

    def __len__(self) -> int:
        return len(self.columns[0])

    @property
    def supervised(self) -> bool:
        """Whether an example is more than a sentence."""
        return len(self.columns) > 1

    @property
    def repeated(self) -> int:
        """Rows that say the same as one before them."""
        return len(self) - len(set(zip(*self.columns, strict=True)))


def read_examples(path: Path) -> Examples:
    """Read examples; rows with a blank sentence are left out.

    Plain text is one sentence a line. Files with fields are pairs or triplets where they have the columns ``sent0``,
    ``sent1`` and perhaps ``hard_neg``; else sentences, of their text field.

    Raises:
        NotFoundError: No such file.
        UsageError: Empty or malformed.
    """
    named = list(itertools.takewhile(lambda column: has_field(path, column), COLUMNS))
    columns: list[list[str]] = []
    digest = ""
    for fields in [Fields(text=column) for column in named] if len(named) > 1 else [Fields()]:
        with open_source(path, fields) as source:
            columns.append([record.text for record in source])
            digest = source.sha256()
    rows = [row for row in zip(*columns, strict=True) if all(text.strip() for text in row)]
    if not rows:
        raise UsageError(f"{path} has no sentence to train on")
    return Examples(tuple(list(column) for column in zip(*rows, strict=True)), digest, len(columns[0]) - len(rows))
