"""Sentences for fitting and training, and development pairs: from ``demo``, a task, a file, a list
or a data set.
"""

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from promptcli.data import demo
from promptcli.data.arguments import as_list_of
from promptcli.data.cells import cell_text, finite_number
from promptcli.data.hub_sets import FILE_OF_SET, hub_file
from promptcli.data.input_files import split_columns
from promptcli.data.layouts import (
    DEFINITIONS,
    GRADED_PAIRS,
    ID,
    LABELLED_PAIRS,
    NUMERIC,
    OPTIONAL,
    PAIRS,
    ROW_NUMBERS,
    SENTENCES,
    TEXT,
    TRIPLETS,
    ColumnChoice,
    ColumnNames,
    layout_of_width,
)
from promptcli.data.rows import name_in_batch, open_rows, read_texts, rows_of
from promptcli.data.senteval import senteval_folder
from promptcli.data.tables import ColumnTable
from promptcli.data.task_table import DEMO_TASK, TASKS, TaskName
from promptcli.data.tasks import (
    DevelopmentTask,
    RetrievalTask,
    STSTask,
    fitting_task_name,
    graded_task_names,
    load_tasks,
    task_names,
)
from promptcli.errors import NotFoundError, UsageError, did_you_mean

#: A source by its name or file; or examples in memory: a list, or a ``datasets.Dataset``; or a list
#: of sources.
TrainingData = str | Path | Sequence[Any] | Any

#: Layouts whose last column is a label or a score.
_JUDGED = (LABELLED_PAIRS, GRADED_PAIRS)
#: How many texts of a list are looked up as names of files.
_MAX_SOURCES = 100
#: A label as data sets spell it -> the label; None for pairs on which the annotators disagreed.
_LABELS = {
    "0": "entailment",
    "1": "neutral",
    "2": "contradiction",
    "entailment": "entailment",
    "neutral": "neutral",
    "contradiction": "contradiction",
    "-1": None,
}


@dataclass(frozen=True)
class TrainingExamples:
    """n examples."""

    #: one list of n texts per column; there may be several columns of hard negatives, and "" is an
    #: absent hard negative
    columns: tuple[list[str], ...]
    sha256: str  #: SHA-256 of the file, or of the texts of a list or data set
    blank_count: int = 0  #: rows left out because a text other than a hard negative is empty
    #: names of the columns, with a single hard negative; empty for sentences
    layout: tuple[str, ...] | None = None
    unlabelled_count: int = 0  #: rows left out because they have no label
    #: words whose rows were left out, because they are not a single token of the backbone
    untokenised_words: tuple[str, ...] = ()
    source_sizes: tuple[int, ...] = ()  #: rows of each source; empty if there is only one

    def __len__(self) -> int:
        return len(self.columns[0])

    @property
    def supervised(self) -> bool:
        """Whether an example is more than a sentence."""
        return len(self.columns) > 1

    @property
    def rows_without_negative(self) -> list[int]:
        """The rows of pairs without a hard negative; empty for other layouts."""
        if self.layout != TRIPLETS:
            return []
        return [
            row for row, texts in enumerate(zip(*self.columns[2:], strict=True)) if not any(texts)
        ]

    @property
    def repeat_count(self) -> int:
        """The number of rows that repeat an earlier row."""
        return len(self) - len(set(zip(*self.columns, strict=True)))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The characters of each example, (n,)."""
        return np.array([sum(map(len, row)) for row in zip(*self.columns, strict=True)])

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of rows of each source."""
        return self.source_sizes or (len(self),)

    def select(self, selected: Sequence[bool]) -> "TrainingExamples":
        """Return the selected examples."""
        rows = iter(selected)
        sizes = tuple(sum(itertools.islice(rows, size)) for size in self.source_sizes)
        columns = tuple(list(itertools.compress(column, selected)) for column in self.columns)
        return dataclasses.replace(self, columns=columns, source_sizes=sizes)


def join_examples(sources: Sequence[TrainingExamples], names: Sequence[str]) -> TrainingExamples:
    """Return the examples of several sources, one after the other; pairs and triplets may mix."""
    if len(sources) == 1:
        return sources[0]
    layouts = dict(zip([source.layout for source in sources], names, strict=True))
    if len(layouts) > 1 and not layouts.keys() <= {PAIRS, TRIPLETS}:
        columns = (
            f"{name}: {', '.join(layout or ()) or 'sentences'}" for layout, name in layouts.items()
        )
        raise UsageError(
            "all data of one run must have the same columns (pairs and triplets may be mixed);"
            f" {'; '.join(columns)}"
        )
    rows = itertools.chain(*(zip(*source.columns, strict=True) for source in sources))
    digests = "".join(source.sha256 for source in sources)
    return TrainingExamples(
        # a pair has no hard negative
        tuple(map(list, itertools.zip_longest(*rows, fillvalue=""))),
        hashlib.sha256(digests.encode()).hexdigest(),
        sum(source.blank_count for source in sources),
        max(layouts, key=lambda layout: len(layout or ())),
        sum(source.unlabelled_count for source in sources),
        source_sizes=tuple(map(len, sources)),
    )


def read_examples(
    path: Path,
    layouts: Sequence[tuple[str, ...]] = (TRIPLETS, PAIRS, SENTENCES),
    *,
    csv: Mapping[str, Any] | None = None,
    skip_bad: bool | None = None,
) -> TrainingExamples:
    """Read examples in one pass; a row that lacks a text other than a hard negative is left out.

    Args:
        path: Text (a sentence a line), CSV, TSV, JSONL or Parquet; or ``FILE:A,B,C``, which names
            the columns.
        layouts: The layouts asked for, best first; ``SENTENCES`` is one text field, or lines.
        csv: How a table is written.
        skip_bad: Whether rows that cannot be read are left out.
    """
    fields = ColumnChoice(layouts=tuple(layouts), remedy="")
    with open_rows(path, fields, csv=csv, skip_bad=skip_bad) as rows:
        return _make_examples(rows.numbered(), rows.columns, str(path), rows.sha256)


def examples_of(
    data: Any, layouts: Sequence[tuple[str, ...]] = (TRIPLETS, PAIRS, SENTENCES)
) -> TrainingExamples:
    """Return examples from memory; a row that lacks a text other than a hard negative is left out.

    Args:
        data: A list of sentences, of tuples (pairs, triplets, premise, hypothesis and label, or
            definition and word), or of dictionaries; or a ``datasets.Dataset``.
        layouts: The layouts asked for, best first.

    Example:
        >>> pairs = [("A dog runs.", "An animal moves."), ("He sleeps.", "He is not awake.")]
        >>> examples_of(pairs).columns[1]
        ['An animal moves.', 'He is not awake.']
    """
    name = "the list"
    if hasattr(data, "column_names"):
        name = "the data set"
        table = {column: data[column] for column in data.column_names}
    else:
        items = as_list_of(data, "examples")
        if not items:
            raise UsageError("the data are empty: there is no sentence to train on")
        if isinstance(items[0], dict):
            # an item that lacks a key has no text there
            keys = dict.fromkeys(key for item in items for key in item)
            table = {key: [item.get(key, "") for item in items] for key in keys}
        else:
            rows = [item if isinstance(item, tuple | list) else (item,) for item in items]
            width = max(map(len, rows)) if len(rows[0]) > 1 else 1
            layout = layout_of_width(layouts, width) or (TEXT,)
            # pairs and triplets may be mixed
            table = dict(zip(layout, itertools.zip_longest(*rows), strict=False))
    choice = ColumnChoice(layouts=tuple(layouts), id=ROW_NUMBERS, remedy="rename them")
    read = rows_of(ColumnTable(table), name, choice)
    examples = list(read.numbered())
    all_texts = "\0".join("\0".join(texts) for _, texts in examples)
    digest = hashlib.sha256(all_texts.encode()).hexdigest()
    return _make_examples(examples, read.columns, name, lambda: digest)


def _make_examples(
    rows: Iterable[tuple[int, tuple[str, ...]]],
    read: ColumnNames,
    name: str,
    digest: Callable[[], str],
) -> TrainingExamples:
    """Return the complete rows of a layout, in columns; triplets without a negative are pairs."""
    layout = tuple(read)
    if TEXT in read:
        layout = SENTENCES
    elif OPTIONAL in read:  # any number of hard negatives
        layout = TRIPLETS
    complete = list[tuple[str, ...]]()
    blank = unlabelled = 0
    for number, row in rows:
        if layout in _JUDGED:
            judgement = _read_judgement(layout, row[-1].strip(), f"{name}: row {number + 1}")
            if judgement is None:
                unlabelled += 1
                continue
            row = (*row[:-1], judgement)
        if all(map(str.strip, row[: 2 if layout == TRIPLETS else None])):
            complete.append(row)
        else:
            blank += 1
    if not complete:
        noun = "definition" if layout == DEFINITIONS else "sentence"
        raise UsageError(f"{name} has no {noun} to train on")
    columns = tuple(map(list, zip(*complete, strict=True)))
    _check_examples(columns, layout, read, name)
    if layout == TRIPLETS:
        columns = (*columns[:2], *filter(any, columns[2:]))
        layout = TRIPLETS if len(columns) > 2 else PAIRS
    return TrainingExamples(columns, digest(), blank, layout, unlabelled)


def _check_examples(
    columns: Sequence[list[str]], layout: tuple[str, ...], read: ColumnNames, name: str
) -> None:
    """Refuse numbers in place of texts, and labels or scores that are all equal."""
    for role, texts in zip(layout, columns, strict=False):
        numbers = [finite_number(text) for text in texts if text]
        if role not in NUMERIC and numbers and None not in numbers:
            raise UsageError(f"{name}: column {read[role]!r} holds numbers; {role} must be text")
    if layout in _JUDGED and len(set(columns[-1])) == 1:
        raise UsageError(
            f"{name}: all {len(columns[-1]):,} {layout[-1]}s are {columns[-1][0]!r}; at"
            " least two different ones are needed"
        )


def _read_judgement(layout: tuple[str, ...], cell: str, where: str) -> str | None:
    """Return the label or the score in a cell; None if the pair has none."""
    if cell in ("", "-"):
        return None
    if layout == LABELLED_PAIRS:
        if cell.lower() in _LABELS:
            return _LABELS[cell.lower()]
        raise UsageError(
            f"{where} has the label {cell!r}; use entailment, neutral or contradiction (or 0, 1,"
            " 2), or - for no label"
        )
    score = finite_number(cell)
    if score is None:
        raise UsageError(
            f"{where} has the score {cell!r}, not a number such as 3.8; for 3,8 give"
            " decimal_separator=,",
            parameter="csv",
        )
    return repr(score)


def stream_sentences(path: Path) -> Iterator[str]:
    """Return the sentences of a file that are not blank, read lazily; ``FILE:COLUMN`` names a
    column.
    """
    return filter(str.strip, read_texts(path, ColumnChoice(remedy="")))


def fitting_sentences(on: str, *, text_field: str | None = None) -> list[str]:
    """Return the sentences that ``on`` names, in order, with repetitions.

    Args:
        on: ``demo``; a task, for both sides of every pair of its test split, or of all splits
            (``STS-B:all``, ``SICK-R:all``); one of the papers' training files (see
            ``training_examples``); or a file of sentences or of pairs. Pairs have columns named as
            in ``SIDES``, or are lines of label, premise and hypothesis. All first sentences come
            before all second sentences; other columns are ignored.
        text_field: The column of the sentence; in a file of pairs, the only side to return.
    """
    path = _find_training_file(on)
    if not _is_file(str(path)):
        try:
            name = fitting_task_name(on)
        except UsageError as error:
            raise NotFoundError(f"no file {on!r}, and {error}") from None
        pairs = _load_task(name).pairs()
        return [*pairs.first, *pairs.second]
    if text_field:
        fields = ColumnChoice(text=text_field)
    else:
        fields = ColumnChoice(layouts=(LABELLED_PAIRS[:2], SENTENCES), remedy="")
    with open_rows(path, fields) as rows:  # once, since the file may be a pipe
        columns = zip(*(texts for _, texts in rows.numbered()), strict=True)
        return [*itertools.chain(*columns)]


def sentences_with_column(
    path: str, column: str, *, text_field: str | None = None
) -> tuple[list[str], list[str]]:
    """Return the sentences of a table and the cells of another column; an empty cell is ""."""
    if not _is_file(path):
        raise UsageError(
            f"names a column, so the input must be a table; {path!r} is not a file",
            parameter="color",
        )
    fields = ColumnChoice(text=text_field, id=ROW_NUMBERS, cells=True)
    sentences, cells = list[str](), list[str]()
    with open_rows(path, fields) as rows:
        key = name_in_batch(column, rows.columns)
        if key not in rows.types:
            names = [ID if name == f"{ID}.1" else name for name in rows.types]
            raise UsageError(
                f"{path} has no column {column!r} apart from its sentences; other columns:"
                f" {', '.join(names) or 'none'}{did_you_mean(column, names)}",
                parameter="color",
            )
        for batch in rows:
            sentences += batch[TEXT]
            cells += ["" if cell is None else cell_text(cell) for cell in batch[key]]
    return sentences, cells


def training_examples(
    data: Any,
    *,
    layouts: Sequence[tuple[str, ...]] = (TRIPLETS, PAIRS, SENTENCES),
    csv: Mapping[str, Any] | None = None,
    skip_bad: bool | None = None,
) -> TrainingExamples:
    """Return the examples that ``data`` names or holds.

    Args:
        data: ``demo``, a file, or one of the papers' training files (``wiki1m_for_simcse``,
            ``nli_for_simcse``); or a list or a ``datasets.Dataset`` (see ``examples_of``); or a
            list of files or names (see ``is_list_of_sources``), which are read one after the other.
        layouts: The layouts asked for, best first. If graded pairs are among them, ``data`` may be
            a task (``STS-B:train``).
        csv: How tables are written.
        skip_bad: Whether rows of files that cannot be read are left out.
    """
    if is_list_of_sources(data):
        sources = [
            training_examples(source, layouts=layouts, csv=csv, skip_bad=skip_bad)
            for source in data
        ]
        return join_examples(sources, list(map(source_name, data)))
    if not isinstance(data, str | Path):
        return examples_of(data, layouts)
    if data == DEMO_TASK and SENTENCES not in layouts:
        if DEFINITIONS in layouts:
            return read_examples(demo.DEFINITIONS_FILE, layouts)
        columns = " or ".join(", ".join(layout) for layout in layouts)
        raise UsageError(
            f"the demo data have no such examples; give a file with the columns {columns}",
            parameter="data",
        )
    if GRADED_PAIRS in layouts and str(data) in TASKS and not Path(data).exists():
        pairs = development_task(str(data)).pairs()
        return examples_of(
            list(zip(pairs.first, pairs.second, pairs.gold.tolist(), strict=True)), layouts
        )
    return read_examples(_find_training_file(str(data)), layouts, csv=csv, skip_bad=skip_bad)


def is_list_of_sources(data: Any) -> bool:
    """Return whether data are a list of sources: paths, data sets, or names of which at least one
    is a file.
    """
    if not isinstance(data, list | tuple) or not data:
        return False
    if all(isinstance(item, str) for item in data):
        return any(map(_is_file, data[:_MAX_SOURCES]))
    return all(isinstance(item, str | Path) or hasattr(item, "column_names") for item in data)


def is_published_set(data: Any) -> bool:
    """Return whether the training data name one of the papers' files."""
    if is_list_of_sources(data):
        return any(map(is_published_set, data))
    return isinstance(data, str) and data in FILE_OF_SET and not Path(data).exists()


def source_name(data: Any) -> str:
    """Return the name of training data in messages and provenance."""
    if is_list_of_sources(data):
        return ", ".join(map(source_name, data))
    if isinstance(data, str | Path):
        return str(data)
    return type(data).__name__


def development_task(on: STSTask | str | Path) -> STSTask:
    """Return the graded pairs for model selection, from loaded pairs, a task, ``FILE`` or
    ``FILE:A,B,C``.
    """
    if isinstance(on, STSTask):
        return on
    return cast(STSTask, _load_task(graded_task_names([str(on)])[0]))


def checkpoint_task(on: DevelopmentTask | str | Path) -> DevelopmentTask:
    """Return the task that chooses the best checkpoint: a retrieval set (``retrieval:FILE``), or
    graded pairs as for ``development_task``.
    """
    if isinstance(on, RetrievalTask):
        return on
    if isinstance(on, STSTask) or not str(on).startswith("retrieval:"):
        return development_task(on)
    [name] = task_names(str(on))
    return cast(RetrievalTask, _load_task(name))


def _load_task(name: TaskName) -> Any:
    loaded = load_tasks(senteval_folder(), [name])
    if loaded.missing:
        raise NotFoundError(
            f"task {name} is missing: {loaded.missing[str(name)]}; `demo:dev` is always there"
        )
    return loaded.tasks[0]


def _find_training_file(name: str) -> Path:
    """Return the path of the demo sentences, of a fetched file of the papers, or of another file,
    which may be missing.
    """
    if name == DEMO_TASK:
        return demo.SENTENCES_FILE
    return hub_file(name) if is_published_set(name) else Path(name)


def _is_file(name: str) -> bool:
    return os.path.exists(split_columns(name)[0])
