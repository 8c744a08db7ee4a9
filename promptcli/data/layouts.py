"""Layouts: the columns of a batch, and their usual names in files.

The columns of a table are those that the user names, else those with usual names.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from promptcli.errors import UsageError, did_you_mean

#: A layout is a tuple of the names of a batch's columns. Sentences have the empty layout; their
#: columns are ``text``, and ``id`` if the file has ids.
SENTENCES: tuple[str, ...] = ()
TEXT = "text"
ID = "id"
#: In place of a column of ids: the rows are numbered.
ROW_NUMBERS = "-"
#: A triplet's hard negative, which a row may lack. Further hard negatives have a number:
#: ``hard_neg_2``.
OPTIONAL = "hard_neg"
#: Columns whose cells may be numbers.
NUMERIC = ("label", "score", "grade")
#: Pairs and triplets have the columns of SimCSE's files.
PAIRS = ("sent0", "sent1")
TRIPLETS = (*PAIRS, OPTIONAL)
#: Pairs of natural language inference; pairs graded for similarity; words and their definitions.
LABELLED_PAIRS = ("premise", "hypothesis", "label")
GRADED_PAIRS = ("sentence1", "sentence2", "score")
DEFINITIONS = ("definition", "word")
#: Layouts of training data without scores, by their names.
LAYOUTS = {
    "sentences": SENTENCES,
    "pairs": PAIRS,
    "triplets": TRIPLETS,
    "labelled": LABELLED_PAIRS,
    "definitions": DEFINITIONS,
}

#: Column of a batch -> its names in files, best first, regardless of case, spaces, ``_`` and ``-``.
ALIASES: dict[str, tuple[str, ...]] = {
    TEXT: ("text", "sentence", "texts", "sentences"),
    ID: ("id", "_id"),
    "label": ("gold_label", "label", "entailment_judgment"),
    "score": (
        "score",
        "similarity",
        "relatedness_score",
        "similarity_score",
        "label",
        "is_duplicate",
    ),
    OPTIONAL: (OPTIONAL, "negative", "hard_negative"),
    "grade": ("grade", "relevance", "score"),
    "query": ("query", "question"),
    "document": ("document", "passage", "answer"),
}
#: Names of the two sides of a pair, best first.
SIDES = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("sentence_A", "sentence_B"),
    ("question1", "question2"),
    ("text1", "text2"),
    PAIRS,
)
#: Names of the two sides of a pair whose second side is a positive of the first.
POSITIVES = (
    ("anchor", "positive"),
    ("query", "positive"),
    ("query", "answer"),
    ("question", "answer"),
)

#: Column of a batch -> column of the file; plain text has one column without a name.
ColumnNames = dict[str, str]


def name_key(name: str) -> str:
    """Return a column's name regardless of case, spaces, ``_`` and ``-``."""
    return re.sub(r"[\s_-]", "", name).casefold()


#: The key of a column of hard negatives: ``negative``, ``negative_1`` (sentence-transformers),
#: ``negative.1`` (pandas).
_NEGATIVE = re.compile(rf"({'|'.join(map(name_key, ALIASES[OPTIONAL]))})(\.?\d+)?")


def with_negatives(count: int) -> tuple[str, ...]:
    """Return the layout of a pair with ``count`` hard negatives, at least one."""
    return (*TRIPLETS, *(f"{OPTIONAL}_{number}" for number in range(2, count + 1)))


def is_optional(column: str) -> bool:
    """Return whether a column of a batch holds hard negatives, which a row may lack."""
    return column.startswith(OPTIONAL)


def layout_of_width(layouts: Sequence[tuple[str, ...]], width: int) -> tuple[str, ...] | None:
    """Return the first layout with ``width`` columns; a triplet may have more hard negatives."""
    for layout in layouts:
        if len(layout or (TEXT,)) == width:
            return layout
    if TRIPLETS in layouts and width > len(TRIPLETS):
        return with_negatives(width - len(PAIRS))
    return None


def find_column(name: str, header: Sequence[str]) -> str | None:
    """Return the column of a header with a name or number; None if no column matches, or several.

    The exact name is tried first, then the name regardless of case and spaces, then the number.
    """
    if name in header:
        return name
    key = name_key(name)
    matches = [column for column in header if key and name_key(column) == key]
    if not matches and name.isdecimal() and len(name) < 10 and 1 <= int(name) <= len(header):
        return header[int(name) - 1]
    return matches[0] if len(matches) == 1 else None


def split_names(names: str, header: Sequence[str]) -> list[str]:
    """Return the names in ``first,second``; a column of a header may itself have a comma."""
    if find_column(names, header):
        return [names]
    return [name.strip() for name in names.split(",")]


def _if_present(names: str | None, header: Sequence[str]) -> str | None:
    """Return a column, joined columns or ``ROW_NUMBERS`` if a header has them, else None."""
    if names is None or names == ROW_NUMBERS:
        return names
    is_present = all(find_column(name, header) for name in split_names(names, header))
    return names if is_present else None


def find_any(role: str, header: Sequence[str]) -> str | None:
    """Return the column of a header whose name is the best one for a role, or None."""
    columns = (find_column(name, header) for name in ALIASES.get(role, (role,)))
    return next(filter(None, columns), None)


def columns_of_layout(layout: tuple[str, ...], header: Sequence[str]) -> ColumnNames | None:
    """Return the columns of a layout; None if a header lacks a column, and for sentences."""
    if not layout:
        return None
    later_columns: list[str | None] = [find_any(role, header) for role in layout[2:]]
    if layout == TRIPLETS:
        later_columns = [column for column in header if _NEGATIVE.fullmatch(name_key(column))]
        layout = with_negatives(max(len(later_columns), 1))
    columns = [*_sides_of(layout[:2], header), *later_columns]
    if len(columns) < len(layout) or None in columns:
        return None
    return {role: column for role, column in zip(layout, columns, strict=True) if column}


def _sides_of(sides: tuple[str, ...], header: Sequence[str]) -> list[str | None]:
    """Return the columns of the two sides of a pair, by any of their usual names."""
    if sides not in SIDES:
        return [find_any(role, header) for role in sides]
    pairs = [sides, *SIDES, *POSITIVES]
    if sides == PAIRS:
        # the second side of a pair with a score or a label may not be a positive of the first
        is_graded = find_any("label", header) or find_any("score", header)
        pairs = [PAIRS, *POSITIVES, *(() if is_graded else SIDES)]
    sides_of_pairs = ([find_column(name, header) for name in names] for names in pairs)
    return next((columns for columns in sides_of_pairs if None not in columns), [None, None])


# The choice of columns

#: The columns of a BEIR document; title and text are joined.
_BEIR = {"_id", "title", "text"}


@dataclass(frozen=True)
class ColumnChoice:
    """The columns to read: those of the first layout that the file contains.

    Columns are named by their names, or by their numbers from 1.
    """

    #: the columns that the user names: ``COLUMN``, or all columns of a layout in its order:
    #: ``first,second``. If no layout has that many columns, they are joined to one sentence.
    text: str | None = None
    id: str | None = None  #: the column of the ids; ``ROW_NUMBERS`` numbers the rows
    layouts: tuple[tuple[str, ...], ...] = (SENTENCES,)
    #: How the user names columns, for messages. None: by the option ``text_field``; "": by
    #: ``FILE:COLUMN,...``.
    remedy: str | None = None
    cells: bool = False  #: whether the other columns of a table are also read
    #: the columns of an index so far; a file without them is read by the usual names
    text_before: str | None = None
    id_before: str | None = None

    def names(self) -> list[str]:
        """Return the names of all columns that the user names."""
        names = self.text.split(",") if self.text else []
        if self.id and self.id != ROW_NUMBERS:
            names.append(self.id)
        return [name.strip() for name in names]

    def choose(
        self, header: Sequence[str], name: str, *, accepts_single: bool = True
    ) -> ColumnNames:
        """Return the columns to read of the file ``name``, by their roles.

        Args:
            header: The columns of the file.
            name: For messages.
            accepts_single: Whether a single column holds the sentence, whatever its name.
        """
        columns: ColumnNames | None = None
        if self.text:
            names = split_names(self.text, header)
            layout = layout_of_width(self.layouts, len(names))
            if layout:
                return {
                    role: self._find(column, header, name)
                    for role, column in zip(layout, names, strict=True)
                }
        else:
            columns_of_layouts = (columns_of_layout(layout, header) for layout in self.layouts)
            columns = next(filter(None, columns_of_layouts), None)
        if columns:
            return columns
        if SENTENCES not in self.layouts:
            roles = " or ".join(", ".join(layout) for layout in self.layouts)
            raise self._unnamed_error(f"no columns {roles}", header, name)
        return self._sentence_columns(header, name, accepts_single=accepts_single)

    def _sentence_columns(
        self, header: Sequence[str], name: str, *, accepts_single: bool
    ) -> ColumnNames:
        text = self.text or _if_present(self.text_before, header)
        columns: ColumnNames = {}
        identifier = self.id or _if_present(self.id_before, header)
        if identifier is None:
            ids = [column for column in header if name_key(column) == ID and column != text]
            if len(ids) > 1:
                raise UsageError(f"{name}: several columns are named {ids[0]!r}; rename them")
            columns.update({ID: ids[0]} if ids else {})
        elif identifier != ROW_NUMBERS:
            columns[ID] = self._find(identifier, header, name, "id_field")
        if text:
            names = (self._find(column, header, name) for column in split_names(text, header))
            return {TEXT: ",".join(names), **columns}
        usual = find_any(TEXT, header)
        if _BEIR <= set(header):
            usual = "title,text"
        text_columns = [column for column in header if column != columns.get(ID)]
        if usual is None and len(text_columns) == 1 and (accepts_single or ID in columns):
            usual = text_columns[0]
        if usual is None:
            raise self._unnamed_error("no column 'text' or 'sentence'", header, name)
        return {TEXT: usual, **columns}

    def _find(self, word: str, header: Sequence[str], name: str, option: str = "") -> str:
        """Return the column that a word of the user names; refuse a missing column."""
        column = find_column(word.rpartition("[].")[2], header)
        if column is None:
            raise UsageError(
                f"{name}: no column {word!r}; columns: {', '.join(header)}"
                f"{did_you_mean(word, header)}",
                parameter=option or self._option,
            )
        return column

    @property
    def _option(self) -> str:
        return "text_field" if self.remedy is None else ""

    def _unnamed_error(self, problem: str, header: Sequence[str], name: str) -> UsageError:
        """Return the error that asks the user to name columns."""
        hint = "choose one" if self.remedy is None else self.remedy
        if not hint:
            widths = sorted({len(layout or (TEXT,)) for layout in self.layouts})
            examples = (f'"{name}:{",".join(header[:width])}"' for width in widths)
            hint = f"name the columns, e.g. {' or '.join(examples)}"
            if PAIRS in self.layouts and columns_of_layout(GRADED_PAIRS, header):
                # without scores and labels, all pairs would count as paraphrases
                hint = (
                    "train on pairs with scores by sbert-regression, on pairs with labels by sbert"
                )
        return UsageError(
            f"{name}: {problem}; {hint}; columns: {', '.join(header)}",
            parameter=self._option,
        )

    def without_sheet(self) -> tuple[str, "ColumnChoice"]:
        """Return the sheet of ``SHEET:COLUMN``, or "", and the choice without the sheet."""
        sheet, _, column = (self.text or "").rpartition(":")
        return sheet, replace(self, text=column or None)
