"""Scoring of encoders on tasks: graded pairs, retrieval, labelled sentences, tasks of plug-ins."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from promptcli.data.senteval import tasks_from
from promptcli.errors import UsageError, look_up
from promptcli.settings import list_of_names

if TYPE_CHECKING:
    from promptcli.evaluation.scores import Evaluation, Label, Score
    from promptcli.models.loading import Model

Tasks = str | Path | Sequence[str | Path]  #: tasks by their names, see ``evaluate``
#: Ranking of documents -> the first word of its tasks' names.
_TASK_WORDS = {"meaning": "retrieval", "both": "hybrid", "words": "lexical"}


def evaluate(
    models: "Model | Sequence[Model]" = (),
    tasks: Tasks | None = None,
    *,
    by: Literal["both", "meaning", "words"] = "meaning",
    data_dir: str | Path | None = None,
    protocol: str = "senteval",
    vectors: str | Path | Sequence[str | Path] = (),
    compare: "Model | None" = None,
    fast: bool = False,
    mteb_folder: str | Path = "mteb-results",
    force: bool = False,
    skip_missing: bool = False,
) -> "Evaluation":
    """Score models on tasks of any kind. Global random states are unchanged.

    Each score of a named model is stored when its task ends, so that a second evaluation measures
    only missing scores.

    Args:
        models: One or several: a name, a recipe (``ditto:1-9``: a head), a folder, a hub id, an
            encoder, or what else ``load`` takes. A model with a separate recipe for transfer tasks
            uses it there.
        tasks: ``STS12`` to ``STS16``, ``STS-B``, ``SICK-R`` (``sts``: all), ``STS-B:dev``,
            ``STS-B:de`` and the like (stsb-multi-mt), ``demo``, ``demo:dev``; files of graded
            pairs, ``FILE`` or ``FILE:first,second,gold``; ``retrieval:FILE`` (columns query,
            document, grade) or a folder of BEIR; tasks of plug-ins: ``MR`` (``transfer``: all),
            ``mteb:NAME``. None: the seven STS tasks with a ``data_dir``, else ``demo``.
        by: How the documents of ``retrieval:FILE`` are ranked: by the model's cosines
            (``meaning``), by words, or by both.
        data_dir: SentEval's ``downstream`` folder; without it STS tasks come from the hub.
        protocol: ``senteval``, or ``mteb``: SICK-R with all its pairs, raw text.
        vectors: Files of another program's vectors to score as well (.npy, .parquet): row i is
            sentence i of ``task_sentences``.
        compare: The model that all others are compared with, task by task. Default: every two of
            up to six are compared on the averages of their tasks. By a paired bootstrap, corrected
            for the number of comparisons (Holm).
        fast: SentEval's 5-fold setting of transfer tasks: for development, not for print.
        mteb_folder: Folder of mteb's own result files.
        force: Measure again what an earlier evaluation kept.
        skip_missing: Leave out tasks without data and models that cannot be scored, with a note.

    Returns:
        A list of the scores of the vectors, then of one model after the other, each with its tasks
        in the papers' order: ``SpearmanScore``, ``AccuracyScore``, ``RetrievalScore`` or
        ``MtebScore``. Its ``comparisons`` are the differences; ``missing`` and
        ``refused`` give the reason for each omitted task and model.

    Raises:
        UsageError: No task, an unknown task, or a task that a model cannot be scored on.
        NotFoundError: A task's data are missing.

    Example:
        >>> import promptcli as pc
        >>> score = pc.evaluate("mini", tasks=["demo"])[0]
        >>> score.ci95[0] < score.value < score.ci95[1]
        True
    """
    from promptcli.data.tasks import PluginTask, load_named_tasks
    from promptcli.evaluation.candidates import open_candidates, score_models
    from promptcli.evaluation.evaluator import (
        EvalSettings,
        compare_encoders,
        read_embedded,
        score_vectors,
    )
    from promptcli.evaluation.kept_scores import KeptScores
    from promptcli.evaluation.scores import Evaluation
    from promptcli.models.loading import as_list

    settings = EvalSettings(fast, Path(mteb_folder))
    compared_models = as_list(models)
    if compare is not None:
        compared_models.append(compare)
    with tasks_from(data_dir):
        loaded = load_named_tasks(
            _ranked_by(by, tasks), protocol=protocol, skip_missing=skip_missing
        )
        for task in loaded.tasks:
            if isinstance(task, PluginTask):
                task.check(settings)
        rows: dict[Label, list[Score]] = {}
        for path in dict.fromkeys(list_of_names(vectors)):
            embedded = read_embedded(Path(path), loaded.tasks)
            rows[embedded.label] = score_vectors([embedded], loaded.tasks, settings)
        labels, opened, refused = open_candidates(compared_models)
        baseline = None if compare is None else labels[-1]
        if baseline is not None and not refused and {*labels, *rows} == {baseline}:
            raise UsageError(
                f"{baseline} cannot be compared with itself; score another model, too",
                parameter="compare",
            )
        if refused and not skip_missing:
            raise next(iter(refused.values()))
        kept = KeptScores(settings, fresh=force)
        scores, failures = score_models(
            opened, loaded.tasks, settings, kept, strict=not skip_missing
        )
        refused |= failures
        rows |= {label: scores.get(label, []) for label in labels}
    if baseline in refused:
        raise refused[baseline]
    if refused and not any(rows.values()):
        raise next(iter(refused.values()))
    comparisons = compare_encoders(rows, baseline)
    if baseline is not None and not comparisons:
        raise UsageError(
            "no two models have scores to compare; add a task of graded pairs, transfer or"
            " retrieval",
            parameter="compare",
        )
    return Evaluation(
        rows, loaded.tasks, missing=loaded.missing, refused=refused, comparisons=comparisons
    )


def _ranked_by(by: str, tasks: Tasks | None) -> Tasks | None:
    """Return the tasks, with the ranking of every retrieval task written into its name."""
    word = look_up("ranking", by, _TASK_WORDS)
    if by == "meaning":
        return tasks
    names = list_of_names(tasks or ())
    if not any(name.startswith("retrieval:") for name in names):
        raise UsageError(
            f"{by!r} applies only to retrieval, and no such task is named; add retrieval:FILE",
            parameter="by",
        )
    return [re.sub("^retrieval:", f"{word}:", name) for name in names]


def task_sentences(
    tasks: Tasks | None = None,
    *,
    data_dir: str | Path | None = None,
    protocol: str = "senteval",
    skip_missing: bool = False,
) -> list[str]:
    """Return every sentence of tasks once, in order, for another program to embed: see ``vectors``
    of ``evaluate``.

    Args:
        tasks: As in ``evaluate``.
        data_dir: As in ``evaluate``.
        protocol: As in ``evaluate``.
        skip_missing: As in ``evaluate``.
    """
    from promptcli.data.tasks import load_named_tasks
    from promptcli.evaluation.evaluator import distinct_sentences

    with tasks_from(data_dir):
        loaded = load_named_tasks(tasks, protocol=protocol, skip_missing=skip_missing)
    return distinct_sentences(loaded.tasks)
