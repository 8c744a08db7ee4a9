"""The door of evaluation: scoring models on tasks.

It imports nothing heavy, since the command line reads it: its functions import the work.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from promptcli.data.given import check_arguments
from promptcli.data.senteval import tasks_from
from promptcli.errors import UsageError

if TYPE_CHECKING:
    from promptcli.evaluation.evaluator import EvalSettings
    from promptcli.evaluation.scores import Evaluation, Label
    from promptcli.models.loading import Model

Tasks = str | Path | Sequence[str | Path]  #: tasks by their names, see ``evaluate``


@check_arguments
def evaluate(
    models: "Model | Sequence[Model]" = (),
    tasks: Tasks = (),
    *,
    data_dir: str | Path | None = None,
    protocol: str = "senteval",
    vectors: Sequence[str | Path] = (),
    compare: "Model | None" = None,
    fast: bool = False,
    seed: int | None = None,
    mteb_folder: str | Path = "mteb-results",
    force: bool = False,
    skip_missing: bool = False,
) -> "Evaluation":
    """Score models on tasks of any kind. Global random states are unchanged.

    Each score of a named model is kept as its task ends, so that a second evaluation measures only
    what is missing.

    Args:
        models: One or several: an encoder, or what ``load`` takes. A named model with another
            recipe for transfer tasks uses that one there.
        tasks: ``STS12`` to ``STS16``, ``STS-B``, ``SICK-R`` (``sts``: all), ``STS-B:dev``,
            ``demo``, ``demo:dev``, and files (CSV, TSV, JSONL, Parquet) of graded pairs, ``FILE``
            with columns sentence1, sentence2, score or ``FILE:first,second,gold`` (Spearman x 100);
            ``MR``, ``CR``, ``SUBJ``, ``MPQA``, ``SST-2``, ``TREC``, ``MRPC`` (``transfer``: all;
            accuracy x 100 of SentEval's classifier); ``retrieval:FILE`` with columns query,
            document, grade (nDCG@10 x 100, recall), and the same ranked by words, ``lexical:FILE``,
            or by both, ``hybrid:FILE`` (as in ``search_index``); ``mteb:NAME``, run by mteb.
            Default: the seven STS tasks with a ``data_dir``, else ``demo``.
        data_dir: SentEval's ``downstream`` folder; without it STS tasks are fetched from the hub.
        protocol: ``senteval``, or ``mteb``: SICK-R with all its pairs, raw text.
        vectors: Score the vectors in a file (.npy, .parquet, .jsonl), too: row i is sentence i of
            what ``--list-sentences`` prints. In Python that is ``task_sentences``.
        compare: Compare each with this model, task by task (graded pairs and retrieval). Default:
            every two of up to six models are compared on the mean of the graded pairs. By a paired
            bootstrap, corrected for the number of comparisons (Holm).
        fast: SentEval's 5-fold setting of transfer tasks: for development, not for print.
        seed: Random seed of the classifiers (default: SentEval's 1111).
        mteb_folder: Folder of mteb's own result files.
        force: Measure again what an earlier evaluation kept.
        skip_missing: Report tasks without data and models that cannot be opened or scored, and
            score the others.

    Returns:
        A list of the scores of the vectors, then of one model after the other, each with its tasks
        in the papers' order: ``SpearmanScore``, ``AccuracyScore``, ``RetrievalScore``,
        ``MtebScore``, each a ``Score``. Its ``comparisons`` are the differences, ``missing`` and
        ``refused`` what is left out and why.

    Raises:
        UsageError: An unknown task, or a task that a model cannot be scored on.
        NotFoundError: A task's data are missing.

    Example:
        >>> import promptcli as pc
        >>> score = pc.evaluate("mini", tasks=["demo"])[0]
        >>> score.ci95[0] < score.value < score.ci95[1]
        True
    """
    from promptcli.data.tasks import RetrievalTask, STSTask, TransferTask
    from promptcli.evaluation import candidates
    from promptcli.evaluation.evaluator import (
        check_tasks,
        compare_rows,
        read_embedded,
        score_vectors,
    )
    from promptcli.evaluation.kept import KeptScores
    from promptcli.evaluation.scores import Evaluation, Score
    from promptcli.models.loading import as_list

    with tasks_from(data_dir):
        loaded = candidates.load_named_tasks(tasks, protocol=protocol, skip_missing=skip_missing)
        settings = eval_settings(fast=fast, seed=seed, mteb_folder=mteb_folder)
        named = as_list(models)
        if compare is not None:
            named = [*named, compare]
        rows = candidates.candidates_of(named)
        baseline = None
        if compare is not None:
            baseline = rows[-1][0]
        comparable = STSTask | TransferTask | RetrievalTask
        if baseline is not None and not any(isinstance(task, comparable) for task in loaded.tasks):
            raise UsageError(
                "`compare` takes graded pairs, transfer tasks or retrieval; name one, or leave"
                " it out"
            )
        if baseline is not None and not vectors and len(dict(rows)) == 1:
            raise UsageError(f"`compare`: {baseline.recipe} is the only encoder; name a second one")
        transfer = [task for task in loaded.tasks if isinstance(task, TransferTask)]
        candidates.note_examples(transfer)
        check_tasks(transfer, settings.training)
        external = [read_embedded(Path(path), loaded.tasks) for path in dict.fromkeys(vectors)]
        scores: dict[Label, list[Score]] = {}
        for each in external:
            scores[each.label] = score_vectors([each], loaded.tasks, settings)
        opened, refused = candidates.open_candidates(dict(rows))
        if refused and not (skip_missing and (opened or external)):
            raise next(iter(refused.values()))
        scored, failed = candidates.score_models(
            opened,
            loaded.tasks,
            settings,
            KeptScores(settings, fresh=force),
            strict=not skip_missing,
        )
        refused |= failed
        if baseline is not None and baseline in refused:
            raise refused[baseline]
        if refused and not any(scored.values()) and not external:
            raise next(iter(refused.values()))
        for label, _ in rows:
            scores[label] = scored.get(label, [])
        evaluation = Evaluation(scores, loaded.tasks, loaded.missing)
        evaluation.refused = refused
        candidates.note_cosines(evaluation)
        evaluation.comparisons = compare_rows(evaluation.rows, baseline)
        return evaluation


def eval_settings(
    *, fast: bool = False, seed: int | None = None, mteb_folder: str | Path = "mteb-results"
) -> "EvalSettings":
    """Return the settings of transfer tasks and mteb that ``evaluate`` uses for these arguments."""
    from promptcli.evaluation.classifier import FAST, FULL, SEED
    from promptcli.evaluation.evaluator import EvalSettings

    training = FAST if fast else FULL
    if seed is None:
        seed = SEED
    return EvalSettings(training, seed, Path(mteb_folder))


@check_arguments
def task_sentences(
    tasks: Tasks = (), *, data_dir: str | Path | None = None, protocol: str = "senteval"
) -> list[str]:
    """Return every sentence of tasks once, in order, for another program to embed: see ``vectors``
    of ``evaluate``.

    Args:
        tasks: As in ``evaluate``.
        data_dir: As in ``evaluate``.
        protocol: As in ``evaluate``.
    """
    from promptcli.evaluation.candidates import load_named_tasks
    from promptcli.evaluation.evaluator import distinct_sentences

    with tasks_from(data_dir):
        return distinct_sentences(load_named_tasks(tasks, protocol=protocol).tasks)
