"""How a file of rows is written, and which of its columns are read: every guess about a file is made here."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from promptcli.errors import UsageError

#: A layout is the names of the columns of a batch. That of sentences: ``text``, and ``id`` if the file has ids.
SENTENCES: tuple[str, ...] = ()
TEXT, ID = "text", "id"
#: A column that a row may leave empty, or an object leave out: a triplet's hard negative.
OPTIONAL = "hard_neg"
#: Columns whose cells may be numbers.
NUMERIC = ("label", "score")

#: Column of a batch -> names of it in files, best first; other columns go by their own name only.
ALIASES: dict[str, tuple[str, ...]] = {
    TEXT: ("text", "sentence"),
    "premise": ("premise", "sentence1"),  # SNLI's and MultiNLI's own files
    "hypothesis": ("hypothesis", "sentence2"),
    "label": ("gold_label", "label"),
}

#: Extension -> format; any other extension is plain text. ``.gz`` may follow all but ``.parquet``.
FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}

_LABELS = ("entailment", "neutral", "contradiction", "-")
#: Columns of tab-separated files without a header, and whether the fields of a first line are such.
HEADLESS: dict[tuple[str, ...], Callable[[list[str]], bool]] = {
    ("label", "premise", "hypothesis"): lambda fields: len(fields) > 2 and fields[0] in _LABELS,
    ("word", "definition"): lambda fields: len(fields) == 2 and "definition" not in fields,
}

#: Column of a batch -> column of the file; plain text has one column without a name.
Columns = dict[str, str]


@dataclass(frozen=True)
class Fields:
    """The columns to read: those of the first layout that a file has.

    ``text`` and ``id`` name the file's columns of the sentence and its id if the user has chosen them, ``named`` those
    of the only layout, in its order.
    """

    text: str | None = None
    id: str | None = None
    layouts: tuple[tuple[str, ...], ...] = (SENTENCES,)
    named: tuple[str, ...] = ()

    def choose(self, header: Sequence[str] | None, name: str) -> Columns:
        """Return the columns to read of the file ``name`` with this header; plain text has none."""
        unique = [column for column, times in Counter(header).items() if times == 1]
        for layout in filter(None, self.layouts):
            aliases = zip(self.named) if self.named else (ALIASES.get(column, (column,)) for column in layout)
            columns = [next((name for name in names if name in unique), None) for names in aliases]
            if None not in columns:
                return dict(zip(layout, map(str, columns), strict=True))
        if SENTENCES in self.layouts:
            return self._sentences(header, unique, name)
        wanted = "give a file with the columns " + " or ".join(", ".join(self.named or names) for names in self.layouts)
        if header is None:
            raise UsageError(f"{name} is plain text and has no columns; {wanted}")
        listed = f"its columns: {', '.join(header)}"
        if self.named:
            missing = next(column for column in self.named if column not in unique)
            raise UsageError(f"{name}: no column {missing!r}; {listed}; name them as {name}:{','.join(self.named)}")
        raise UsageError(f"{name}: {wanted}; {listed}")

    def _sentences(self, header: Sequence[str] | None, unique: list[str], name: str) -> Columns:
        if header is None:
            if self.text or self.id:
                raise UsageError(f"{name} is plain text and has no fields; leave out `text_field` and `id_field`")
            return {TEXT: ""}
        listed = ", ".join(header)
        for option, column in (("`text_field`", self.text), ("`id_field`", self.id)):
            if column is not None and column not in unique:
                raise UsageError(f"{name}: {option} {column!r} is not a column, or not unique; columns: {listed}")
        id_column = self.id or (ID if ID in header and self.text != ID else None)
        if id_column is not None and id_column not in unique:
            raise UsageError(f"{name}: several columns are named {id_column!r}; rename them; columns: {listed}")
        others = [column for column in header if column != id_column]
        usual = [column for column in ALIASES[TEXT] if column in unique] or (others if len(others) == 1 else [])
        if self.text is None and not usual:
            raise UsageError(f"{name}: no column 'text' or 'sentence'; choose one with `text_field`; columns: {listed}")
        return {TEXT: self.text or usual[0]} | ({} if id_column is None else {ID: id_column})


@dataclass(frozen=True)
class Dialect:
    """How the rows of a file are written."""

    format: str  #: ``text``, ``jsonl``, ``csv``, ``tsv`` or ``parquet``
    gzipped: bool = False
    header: tuple[str, ...] = ()  #: columns of a file without a header line; fields after them are ignored


def dialect_of(name: str | Path) -> Dialect:
    """Return the dialect of a file by its extension."""
    path = Path(name)
    gzipped = path.suffix.lower() == ".gz"
    suffix = (Path(path.stem) if gzipped else path).suffix.lower()
    return Dialect(FORMATS.get(suffix, "text"), gzipped)


def headless(line: str, fields: Fields) -> tuple[str, ...]:
    """Return the columns of ``HEADLESS`` that a first line looks like, if a layout that is asked for is among them."""
    cells = line.rstrip("\r\n").split("\t")
    wanted = [
        columns for columns in HEADLESS if any(set(layout) <= set(columns) for layout in fields.layouts if layout)
    ]
    return next((columns for columns in wanted if HEADLESS[columns](cells)), ())
