"""Training examples: sentences, pairs, pairs with a hard negative, labelled pairs; from files, a list or a dataset."""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from promptcli.data.dialect import OPTIONAL, SENTENCES, TEXT, Fields
from promptcli.data.given import check_rows, finite_number, is_unicode
from promptcli.data.rows import open_rows
from promptcli.errors import UsageError


class Table(Protocol):
    """What has columns by name, as a ``datasets.Dataset`` has."""

    @property
    def column_names(self) -> Sequence[str]:
        """The columns."""

    def __getitem__(self, name: str) -> Sequence[object]:
        """Return a column."""


#: A source by its name or file; examples in memory; or a list of sources.
TrainingData = str | Path | Table | Sequence[str | Path | Table | Sequence[object] | Mapping[str, object]]

#: Layouts, each by the names of its columns; pairs and triplets as SimCSE's files name them.
PAIRS = ("sent0", "sent1")
TRIPLETS = (*PAIRS, OPTIONAL)
#: A pair of natural language inference.
LABELLED_PAIRS = ("premise", "hypothesis", "label")
#: A pair graded for its likeness, and a word's definition.
GRADED_PAIRS = ("sentence1", "sentence2", "score")
DEFINITIONS = ("definition", "word")

#: Label as data sets spell it -> label; anything else in ``_UNLABELLED`` is a pair on which the annotators disagreed.
_LABELS = {"0": "entailment", "1": "neutral", "2": "contradiction"}
_LABELS |= {label: label for label in _LABELS.values()}
_UNLABELLED = ("-1", "-", "")


@dataclass(frozen=True)
class TrainingExamples:
    """n examples."""

    columns: tuple[list[str], ...]  #: one list of n texts per column; a hard negative may be "", for none
    sha256: str  #: of the file; of a list or a data set, of its texts; of several sources, of theirs
    blank: int = 0  #: rows that were left out because a text is blank, other than a hard negative
    layout: tuple[str, ...] | None = None  #: names of the columns; empty for sentences alone
    unlabelled: int = 0  #: rows that were left out because they have no label
    #: Words whose rows were left out because they are no single token of the backbone.
    untokenised: tuple[str, ...] = ()
    source_sizes: tuple[int, ...] = ()  #: rows of each source, one after the other; empty where there is one source

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

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each source."""
        return self.source_sizes or (len(self),)

    def only(self, chosen: Sequence[bool]) -> "TrainingExamples":
        """Return the examples without those rows that are not chosen."""
        rows = iter(chosen)
        sizes = tuple(sum(itertools.islice(rows, size)) for size in self.source_sizes)
        columns = tuple(list(itertools.compress(column, chosen)) for column in self.columns)
        return dataclasses.replace(self, columns=columns, source_sizes=sizes)


def join_examples(parts: Sequence[TrainingExamples], names: Sequence[str]) -> TrainingExamples:
    """Return the examples of several sources, one after the other; pairs and triplets may stand together."""
    if len(parts) == 1:
        return parts[0]
    layouts = {part.layout: name for part, name in zip(reversed(parts), reversed(names), strict=True)}
    if len(layouts) > 1 and not set(layouts) <= {PAIRS, TRIPLETS}:
        found = "; ".join(f"{name}: {', '.join(layout or ()) or 'sentences'}" for layout, name in layouts.items())
        raise UsageError(f"data of one run have the same columns, or are pairs and triplets; {found}")
    layout = max(layouts, key=lambda one: len(one or ()))
    wide = [(*part.columns, *[[""] * len(part)] * (len(layout or "1") - len(part.columns))) for part in parts]
    return TrainingExamples(
        tuple(list(itertools.chain(*column)) for column in zip(*wide, strict=True)),
        hashlib.sha256("".join(part.sha256 for part in parts).encode()).hexdigest(),
        sum(part.blank for part in parts),
        layout,
        sum(part.unlabelled for part in parts),
        source_sizes=tuple(len(part) for part in parts),
    )


def read_examples(path: Path, layouts: Sequence[tuple[str, ...]] = (TRIPLETS, PAIRS, SENTENCES)) -> TrainingExamples:
    """Read examples in one pass; rows with a blank text are left out, but a triplet may lack its hard negative.

    Args:
        path: Text (a sentence a line), CSV, TSV, JSONL or Parquet; labelled pairs and definitions also without a
            header, as lines of label, premise and hypothesis, or of word and definition, tabs between them.
        layouts: What is asked for, best first; ``SENTENCES`` stands for one text field, or lines.
    """
    with open_rows(path, Fields(layouts=tuple(layouts))) as rows:
        layout = SENTENCES if TEXT in rows.columns else tuple(rows.columns)
        return _examples(rows.tuples(), layout, str(path), rows.sha256)


def examples_of(data: Any, layouts: Sequence[tuple[str, ...]] = (TRIPLETS, PAIRS, SENTENCES)) -> TrainingExamples:
    """Return examples from memory; rows with a blank text are left out, but a triplet may lack its hard negative.

    Args:
        data: A list of sentences, of tuples (pairs, triplets, premise, hypothesis and label, or definition and word),
            or of dictionaries; or what has ``column_names`` and columns by name, as a ``datasets.Dataset`` has.
        layouts: What is asked for, best first.

    Example:
        >>> examples_of([("A dog runs.", "An animal moves."), ("He sleeps.", "He is not awake.")]).columns[1]
        ['An animal moves.', 'He is not awake.']
    """
    if hasattr(data, "column_names"):
        names, where = list(data.column_names), "the data set"
        rows: Iterable[tuple[Any, ...]] = zip(*(data[name] for name in names), strict=True)
    else:
        items, where = check_rows(data, "examples"), "the list"
        if not items:
            raise UsageError("the list has no sentence to train on")
        if isinstance(items[0], dict):
            names = list(items[0])
            rows = (tuple(item.get(name, "") for name in names) for item in items)
        else:
            rows = [tuple(item) if isinstance(item, tuple | list) else (item,) for item in items]
            widest = max(map(len, rows)) if len(rows[0]) > 1 else 1  # pairs and triplets may stand together
            names = next((list(layout) for layout in layouts if len(layout or "1") == widest), [])
            names = names or ["text"]
    columns = Fields(layouts=tuple(layouts)).choose(names, where)
    layout = SENTENCES if TEXT in columns else tuple(columns)
    at = [names.index(columns[name]) for name in layout or (TEXT,)]
    least = len(PAIRS) if layout == TRIPLETS else len(at)
    graded = at[-1] if layout in _LABEL_READERS else None
    texts = [_texts(row, at, least, graded, f"{where}: row {number}") for number, row in enumerate(rows, 1)]
    digest = hashlib.sha256("\0".join("\0".join(row) for row in texts).encode()).hexdigest()
    return _examples(texts, layout, where, lambda: digest)


def _texts(row: tuple[Any, ...], at: Sequence[int], least: int, graded: int | None, where: str) -> tuple[str, ...]:
    """Return the texts of a row's columns, of which ``least`` must be there; column ``graded`` may hold a number."""
    found = {place: row[place] if place < len(row) else None for place in at}
    found |= {place: "" for place in at[least:] if found[place] is None}
    for place, value in found.items():
        number = place == graded and isinstance(value, int | float) and not isinstance(value, bool)
        if not number and not (isinstance(value, str) and is_unicode(value)):
            raise UsageError(f"{where} holds {value!r:.60}; a sentence is UTF-8 text")
    return tuple(str(value) for value in found.values())


def _examples(
    rows: Iterable[tuple[str, ...]], layout: tuple[str, ...], where: str, digest: Callable[[], str]
) -> TrainingExamples:
    """Return the rows that are whole, in columns."""
    kept: list[tuple[str, ...]] = []
    blank = unlabelled = 0
    read = _LABEL_READERS.get(layout)
    for number, row in enumerate(rows, 1):
        if read is not None:
            if row[-1].strip() in _UNLABELLED:
                unlabelled += 1
                continue
            row = (*row[:-1], read(row[-1], f"{where}: row {number}"))
        if all(text.strip() for text in (row[:2] if layout == TRIPLETS else row)):
            kept.append((*row[:2], row[2] if row[2].strip() else "") if layout == TRIPLETS else row)
        else:
            blank += 1
    if not kept:
        what = "word with a definition" if layout == DEFINITIONS else "sentence"
        raise UsageError(f"{where} has no {what} to train on")
    if read is not None and len({row[-1] for row in kept}) == 1:
        raise UsageError(
            f"{where}: all {len(kept):,} {layout[-1]}s are {kept[0][-1]!r}; there is nothing to learn from one alone"
        )
    columns = tuple(list(column) for column in zip(*kept, strict=True))
    if layout == TRIPLETS and not any(columns[2]):
        columns, layout = columns[:2], PAIRS
    return TrainingExamples(columns, digest(), blank, layout, unlabelled)


def _label(text: str, where: str) -> str:
    label = _LABELS.get(text.strip().lower())
    if label is None:
        raise UsageError(
            f"{where} has the label {text!r}; labels are entailment, neutral, contradiction (or 0, 1, 2), and - or -1"
            " where there is none"
        )
    return label


def _score(text: str, where: str) -> str:
    number = finite_number(text)
    if number is None or number < 0:
        raise UsageError(f"{where} has the score {text!r}; a score is a number from 0, such as 3.8")
    return repr(number)


#: How the last column is read, of layouts whose last column is no text.
_LABEL_READERS: dict[tuple[str, ...], Callable[[str, str], str]] = {LABELLED_PAIRS: _label, GRADED_PAIRS: _score}
