"""Scoring models on tasks. Imports nothing heavy: the command line reads it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from promptcli.data.senteval import reads_data_dir

if TYPE_CHECKING:
    from promptcli.evaluation.scores import Score
    from promptcli.models.loading import Model

#: Tasks by their names, see ``evaluate``.
Tasks = str | Path | Sequence[str | Path]


@reads_data_dir
def evaluate(
    models: "Model | Sequence[Model]" = (),
    tasks: Tasks = (),
    *,
    data_dir: str | Path | None = None,
    protocol: str = "senteval",
    vectors: Sequence[str | Path] = (),
    fast: bool = False,
    seed: int | None = None,
    output: str | Path = "mteb-results",
    skip_missing: bool = False,
) -> "list[Score]":
    """Score models on tasks of any kind. Global random states are unchanged.

    Args:
        models: One or several: an encoder, or what ``load`` takes. A named model with another recipe for transfer
            tasks uses that one there.
        tasks: ``STS12`` to ``STS16``, ``STS-B``, ``SICK-R`` (``sts``: all), ``STS-B:dev``, ``demo``, ``demo:dev``, and
            files (CSV, TSV, JSONL, Parquet) of graded pairs, ``FILE`` with columns sentence1, sentence2, score or
            ``FILE:first,second,gold`` (Spearman x 100); ``MR``, ``CR``, ``SUBJ``, ``MPQA``, ``SST-2``, ``TREC``,
            ``MRPC`` (``transfer``: all; accuracy x 100 of SentEval's classifier); ``retrieval:FILE`` with columns
            query, document, grade (nDCG@10 x 100, recall); ``perplexity:FILE`` of held-out lines; ``mteb:NAME``, run by
            mteb. Default: the seven STS tasks with a ``data_dir``, else ``demo``.
        data_dir: SentEval's ``downstream`` folder; without it STS tasks are fetched from the hub.
        protocol: ``senteval``, or ``mteb``: SICK-R with all its pairs, raw text.
        vectors: Score the vectors in a file (.npy, .parquet, .jsonl), too: row i is sentence i of ``task_sentences``,
            on the command line of ``--list-sentences``.
        fast: SentEval's 5-fold setting of transfer tasks: for development, not for print.
        seed: Random seed of the classifiers (default: SentEval's 1111), and of the masked tokens of a perplexity (0).
        output: Folder of mteb's result files.
        skip_missing: Report tasks without data, and score the others.

    Returns:
        The scores of the vectors, then of one model after the other, each with its tasks in the papers' order:
        ``SpearmanScore``, ``AccuracyScore``, ``RetrievalScore``, ``PerplexityScore``, ``MtebScore``, each a ``Score``.

    Raises:
        UsageError: An unknown task, or a task that a model cannot be scored on.
        NotFoundError: A task's data are missing.

    Example:
        >>> import promptcli as pc
        >>> score = pc.evaluate("mini", tasks=["demo"])[0]
        >>> score.ci95[0] < score.value < score.ci95[1]
        True
    """
    from promptcli.evaluation.candidates import evaluate_all, load_named_tasks
    from promptcli.evaluation.classifier import FAST, FULL
    from promptcli.evaluation.evaluator import EvalSettings

    given = list(models) if isinstance(models, Sequence) and not isinstance(models, str) else [models]
    named = load_named_tasks(tasks, protocol=protocol, skip_missing=skip_missing)
    settings = EvalSettings(FAST if fast else FULL, seed, Path(output))
    scores = evaluate_all(given, named.tasks, settings, vectors=vectors).scores
    return [score for row in scores.values() for score in row]


@reads_data_dir
def task_sentences(tasks: Tasks = (), *, data_dir: str | Path | None = None, protocol: str = "senteval") -> list[str]:
    """Return every sentence of tasks once, in order, for another program to embed: see ``vectors`` of ``evaluate``.

    Args:
        tasks: As in ``evaluate``.
        data_dir: As in ``evaluate``.
        protocol: As in ``evaluate``.
    """
    from promptcli.evaluation.candidates import load_named_tasks
    from promptcli.evaluation.evaluator import distinct_sentences

    return distinct_sentences(load_named_tasks(tasks, protocol=protocol).tasks)
