"""Vectors that another program made of the tasks' sentences: read, and checked against the sentences."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from promptcli.data.tasks import STSTask, TransferTask
from promptcli.data.vectors import read_vectors
from promptcli.errors import UsageError
from promptcli.evaluation.evaluator import Embedded, distinct_sentences
from promptcli.evaluation.scores import Label
from promptcli.storage import files


def read_embedded(path: Path, tasks: Sequence[STSTask | TransferTask], listing: str) -> Embedded:
    """Read vectors whose row i is sentence i of ``distinct_sentences(tasks)``.

    Args:
        path: A file that ``read_vectors`` reads; where it holds texts, too, they must be the sentences.
        tasks: Whose sentences.
        listing: The command that lists the sentences, for messages.

    Raises:
        NotFoundError: There is no such file.
        UsageError: It is no vector file, has another number of rows, other texts, or a NaN or an infinity.
        CheckFailedError: It is damaged, or not the file that its manifest describes.
    """
    found, sentences = read_vectors(path), distinct_sentences(tasks)
    if len(found.matrix) != len(sentences):
        names = ", ".join(task.label if isinstance(task, STSTask) else task.name for task in tasks)
        raise UsageError(
            f"{path}: {len(found.matrix):,} rows for the {len(sentences):,} distinct sentences of {names};"
            f" embed these, in this order: `{listing}`"
        )
    for row, (text, sentence) in enumerate(zip(found.texts or (), sentences, strict=False), start=1):
        if text != sentence:
            raise UsageError(f"{path}: row {row} is of {text!r}, not of {sentence!r}; the order is that of `{listing}`")
    wrong = np.flatnonzero(~np.isfinite(found.matrix).all(axis=1))
    if len(wrong):
        raise UsageError(f"{path}: row {wrong[0] + 1} holds a NaN or an infinity; embed {sentences[wrong[0]]!r} anew")
    recipe = {"vectors": path.name} if found.manifest is None else found.manifest.get("recipe", {})
    return Embedded(Label("vectors", path.name), recipe, files.sha256(path), found.matrix)
