"""Sentences to fit or train on and pairs to choose by, from ``demo``, a task or a file."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from promptcli.data import demo
from promptcli.data.dialect import SENTENCES, Fields
from promptcli.data.hub import FILES, hub_file
from promptcli.data.rows import open_rows
from promptcli.data.senteval import senteval_folder
from promptcli.data.task_table import DEMO, TASKS, TaskName
from promptcli.data.tasks import STSTask, fitting_task, load_tasks, task_names
from promptcli.data.training_examples import (
    DEFINITIONS,
    GRADED_PAIRS,
    PAIRS,
    TRIPLETS,
    TrainingExamples,
    examples_of,
    join_examples,
    read_examples,
)
from promptcli.errors import NotFoundError, UsageError

_SOURCES = 100  # the first texts of a list are tried as names of files
#: Columns of both sides of a pair: SimCSE's, and those of natural language inference.
SIDES = (PAIRS, ("premise", "hypothesis"))


def fitting_sentences(on: str, *, text_field: str | None = None) -> list[str]:
    """Return the sentences that ``on`` names, in order, repeated as often as they occur.

    Args:
        on: ``demo``, a task's name (its sentences, both sides of every pair: of its test split, or of all splits by
            ``STS-B:all``, ``SICK-R:all``), a name of the papers' training files (see ``training_examples``), or a file:
            sentences, or pairs as natural language inference has them, by the columns of ``SIDES`` or as lines of
            label, premise and hypothesis (all first sentences, then all second ones; other columns are left alone).
        text_field: Field of the sentence, for files that have fields; of a file of pairs, that side alone.
    """
    path = _training_file(on)
    if not path.exists():
        try:
            name = fitting_task(on)
        except UsageError as error:
            raise NotFoundError(f"no file {on!r} with sentences, and {error}; or `demo`") from None
        pairs = _task(name).pairs()
        return [*pairs.first, *pairs.second]
    fields = Fields(text=text_field) if text_field else Fields(layouts=(*SIDES, SENTENCES))
    with open_rows(path, fields) as rows:  # once: it may be a pipe
        return [*itertools.chain(*zip(*rows.tuples(), strict=True))]


def training_examples(data: Any, *, layouts: Sequence[tuple[str, ...]] | None = None) -> TrainingExamples:
    """Return the examples that ``data`` names or holds.

    Args:
        data: ``demo``, a file, or a name of the papers' training files (``wiki1m_for_simcse``, ``nli_for_simcse``); or
            a list, or a ``datasets.Dataset`` (see ``examples_of``); or a list of files or of such names (see
            ``is_sources``), which are read one after the other.
        layouts: The layouts asked for, best first; default: triplets, pairs or sentences. If graded pairs are among
            them, ``data`` may be a task (``STS-B:train``).
    """
    layouts = layouts or (TRIPLETS, PAIRS, SENTENCES)
    if is_sources(data):
        return join_examples(
            [training_examples(source, layouts=layouts) for source in data], [source_name(source) for source in data]
        )
    if not isinstance(data, str | Path):
        return examples_of(data, layouts)
    if data == DEMO and SENTENCES not in layouts:
        if DEFINITIONS in layouts:
            return read_examples(demo.DEFINITIONS, layouts)
        wanted = " or ".join(", ".join(layout) for layout in layouts)
        raise UsageError(f"demo has no such examples; give `data` FILE with the columns {wanted}")
    if GRADED_PAIRS in layouts and str(data) in TASKS and not Path(data).exists():
        pairs = development_task(str(data)).pairs()
        return examples_of(list(zip(pairs.first, pairs.second, pairs.gold.tolist(), strict=True)), layouts)
    return read_examples(_training_file(str(data)), layouts)


def is_sources(data: Any) -> bool:
    """Return whether data are a list of sources, not of examples: paths, data sets, or names of which a file is one."""
    if not isinstance(data, list | tuple) or not data:
        return False
    if all(isinstance(item, str) for item in data):
        return any(map(_is_file, data[:_SOURCES]))
    return all(isinstance(item, Path) or hasattr(item, "column_names") for item in data)


def is_fetched(data: Any) -> bool:
    """Return whether training data, or some of them, are names of the papers' files."""
    if is_sources(data):
        return any(map(is_fetched, data))
    return isinstance(data, str) and data in FILES and not Path(data).exists()


def source_name(data: Any) -> str:
    """Return the name of training data in messages and provenance."""
    if is_sources(data):
        return ", ".join(map(source_name, data))
    return str(data) if isinstance(data, str | Path) else type(data).__name__


def development_task(on: STSTask | str | Path) -> STSTask:
    """Return the graded pairs that a search or a run chooses by: loaded, a task, ``FILE`` or ``FILE:A,B,C``."""
    return on if isinstance(on, STSTask) else _task(task_names([str(on)])[0])


def _task(name: TaskName) -> STSTask:
    loaded = load_tasks(senteval_folder(), [name])
    if loaded.missing:
        raise NotFoundError(f"task {name} is missing: {loaded.missing[str(name)]}; `demo:dev` always is")
    return loaded.tasks[0]


def _training_file(name: str) -> Path:
    """Return the demo sentences, a file of the papers fetched by its name, or a file that may be missing."""
    if name == DEMO:
        return demo.SENTENCES
    return hub_file(name) if is_fetched(name) else Path(name)


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # no sentence is too long to be asked about
        return False
