"""Layouts: the columns of a batch, and by what names files have them."""

import re
from collections.abc import Sequence

#: A layout is the names of the columns of a batch. That of sentences: ``text``, and ``id`` if the
#: file has ids.
SENTENCES: tuple[str, ...] = ()
TEXT = "text"
ID = "id"
#: In place of the column of ids: rows are numbered.
NONE = "-"
#: A column that a row may leave empty, or an object leave out: a triplet's hard negative. Further
#: ones have a number.
OPTIONAL = "hard_neg"
#: Columns whose cells may be numbers.
NUMERIC = ("label", "score", "grade")
#: Layouts, each by the names of its columns; pairs and triplets as SimCSE's files name them.
PAIRS = ("sent0", "sent1")
TRIPLETS = (*PAIRS, OPTIONAL)
#: A pair of natural language inference; a pair graded for its similarity; a word's definition.
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

#: Column of a batch -> names of it in files, best first; case, spaces, ``_`` and ``-`` do not
#: count.
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
#: The same if the second side is a positive of the first, graded or not.
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
    """Return the layout of a pair with that many hard negatives, at least one."""
    return (*TRIPLETS, *(f"{OPTIONAL}_{number}" for number in range(2, count + 1)))


def is_optional(column: str) -> bool:
    """Return whether a column of a batch holds hard negatives, which a row may lack."""
    return column.startswith(OPTIONAL)


def layout_of_width(layouts: Sequence[tuple[str, ...]], width: int) -> tuple[str, ...] | None:
    """Return the first layout with that many columns; a triplet may have more hard negatives."""
    for layout in layouts:
        if len(layout or (TEXT,)) == width:
            return layout
    if TRIPLETS in layouts and width > len(TRIPLETS):
        return with_negatives(width - len(PAIRS))
    return None


def find_column(name: str, header: Sequence[str]) -> str | None:
    """Return the only column of that name or number; None if none or several have it.

    The spelling counts first, then the name regardless of case and spaces, then the number.
    """
    if name in header:
        return name
    key = name_key(name)
    matches = [column for column in header if key and name_key(column) == key]
    if not matches and name.isdecimal() and len(name) < 10 and 1 <= int(name) <= len(header):
        return header[int(name) - 1]
    return matches[0] if len(matches) == 1 else None


def find_any(role: str, header: Sequence[str]) -> str | None:
    """Return the column with the best name of a role that a header has."""
    found = (find_column(name, header) for name in ALIASES.get(role, (role,)))
    return next(filter(None, found), None)


def columns_of_layout(layout: tuple[str, ...], header: Sequence[str]) -> ColumnNames | None:
    """Return the columns of a layout other than sentences; None if a header lacks one."""
    if not layout:
        return None
    further: list[str | None] = [find_any(role, header) for role in layout[2:]]
    if layout == TRIPLETS:
        further = [column for column in header if _NEGATIVE.fullmatch(name_key(column))]
        layout = with_negatives(max(len(further), 1))
    columns = [*_sides_of(layout[:2], header), *further]
    if len(columns) < len(layout) or None in columns:
        return None
    return {role: column for role, column in zip(layout, columns, strict=True) if column}


def _sides_of(sides: tuple[str, ...], header: Sequence[str]) -> list[str | None]:
    """Return the columns of the two sides of a pair, by any of the names that pairs have."""
    if sides not in SIDES:
        return [find_any(role, header) for role in sides]
    pairs = [sides, *SIDES, *POSITIVES]
    if sides == PAIRS:
        # a pair with a score or a label need not be a positive one
        is_graded = find_any("label", header) or find_any("score", header)
        pairs = [PAIRS, *POSITIVES, *(() if is_graded else SIDES)]
    found = ([find_column(name, header) for name in names] for names in pairs)
    return next((columns for columns in found if None not in columns), [None, None])
