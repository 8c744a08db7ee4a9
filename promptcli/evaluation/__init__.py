"""Scoring of encoders on tasks: graded pairs, retrieval, labelled sentences, tasks of plug-ins."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from promptcli.data.senteval import tasks_from
from promptcli.errors import PromptcliError, UsageError, look_up

if TYPE_CHECKING:
    from promptcli.evaluation.over_seeds import SeedGroup, SeedTable
    from promptcli.evaluation.scores import Comparison, Evaluation, Label, Score
    from promptcli.models.loading import Model

Tasks = str | Path | Sequence[str | Path]  #: tasks by their names, see ``evaluate``
#: Ways to rank documents -> the family of retrieval tasks that are ranked so.
_FAMILY_OF_WAY = {"meaning": "retrieval", "both": "hybrid", "words": "lexical"}


def evaluate(
    models: "Model | Sequence[Model]" = (),
    tasks: Tasks = (),
    *,
    by: Literal["both", "meaning", "words"] = "meaning",
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
        models: One or several: a name, a recipe (``ditto:1-9``: a head), a folder, a hub id, an
            encoder, or what else ``load`` takes. A model with another recipe for transfer tasks
            uses that one there.
        tasks: ``STS12`` to ``STS16``, ``STS-B``, ``SICK-R`` (``sts``: all), ``STS-B:dev``,
            ``STS-B:de`` and the like (stsb-multi-mt), ``demo``, ``demo:dev``; files of graded
            pairs, ``FILE`` or ``FILE:first,second,gold``; ``retrieval:FILE`` (columns query,
            document, grade) or a folder of BEIR; tasks of plug-ins: ``MR`` (``transfer``: all),
            ``mteb:NAME``. Default: the seven STS tasks with a ``data_dir``, else ``demo``.
        by: How the documents of ``retrieval:FILE`` are ranked: by the model's cosines
            (``meaning``), by words, or by both.
        data_dir: SentEval's ``downstream`` folder; without it STS tasks come from the hub.
        protocol: ``senteval``, or ``mteb``: SICK-R with all its pairs, raw text.
        vectors: Files of another program's vectors to score, too (.npy, .parquet, .jsonl): row i
            is sentence i of ``task_sentences``.
        compare: The model that all others are compared with, task by task. Default: every two of
            up to six are compared on the averages of their tasks. By a paired bootstrap, corrected
            for the number of comparisons (Holm).
        fast: SentEval's 5-fold setting of transfer tasks: for development, not for print.
        seed: Seed of the classifiers of transfer tasks (default: SentEval's 1111).
        mteb_folder: Folder of mteb's own result files.
        force: Measure again what an earlier evaluation kept.
        skip_missing: Leave out tasks without data and models that cannot be scored, with a note.

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
    from promptcli.data.tasks import TransferTask
    from promptcli.evaluation import candidates
    from promptcli.evaluation.evaluator import (
        check_comparable,
        check_tasks,
        compare_rows,
        eval_settings,
        read_embedded,
        score_vectors,
    )
    from promptcli.evaluation.kept_scores import KeptScores
    from promptcli.evaluation.scores import Evaluation
    from promptcli.models.loading import as_list

    settings = eval_settings(fast=fast, seed=seed, mteb_folder=mteb_folder)
    with tasks_from(data_dir):
        loaded = candidates.load_named_tasks(
            _ranked_by(by, tasks), protocol=protocol, skip_missing=skip_missing
        )
        named = as_list(models)
        if compare is not None:
            named = [*named, compare]
        rows = candidates.candidates_of(named)
        baseline = None
        if compare is not None:
            baseline = rows[-1][0]
            check_comparable([*dict(rows)], loaded.tasks, vectors)
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
        kept = KeptScores(settings, fresh=force)
        scored, failed = candidates.score_models(
            opened, loaded.tasks, settings, kept, strict=not skip_missing
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
        evaluation.settings = settings
        candidates.note_cosines(evaluation)
        evaluation.comparisons = compare_rows(evaluation.rows, baseline)
        return evaluation


def _ranked_by(by: str, tasks: Tasks) -> Tasks:
    """Return tasks with those of retrieval ranked in one way."""
    family = look_up("by", by, _FAMILY_OF_WAY)
    if family == "retrieval":
        return tasks
    names = [str(task) for task in ([tasks] if isinstance(tasks, str | Path) else tasks)]
    if not any(name.startswith("retrieval:") for name in names):
        raise UsageError("only retrieval is ranked; name a task retrieval:FILE", parameter="by")
    return [re.sub("^retrieval:", f"{family}:", name) for name in names]


def task_sentences(
    tasks: Tasks = (),
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
    from promptcli.evaluation.candidates import load_named_tasks
    from promptcli.evaluation.evaluator import distinct_sentences

    with tasks_from(data_dir):
        loaded = load_named_tasks(tasks, protocol=protocol, skip_missing=skip_missing)
    return distinct_sentences(loaded.tasks)


def compare_over_seeds(models: Sequence[str], *, data_dir: str | Path | None = None) -> "SeedTable":
    """Compare trained models over the seeds of their runs, task by task.

    Besides the test over seeds there is one over pairs, a paired bootstrap of the runs that are
    best on their development pairs, for tasks whose data are present.

    Args:
        models: Two or more: a model of several runs (``train --seeds``), several models with commas
            between, or a pattern (``simcse-*``), e.g. those of an array of jobs.
        data_dir: SentEval folder of the tasks.

    Returns:
        Mean and standard deviation of each group, and the difference of every two with its tests.

    Raises:
        NotFoundError: A model is missing.
        UsageError: A model is not of a training, or runs of one group differ in more than their
            seed.

    Example:
        >>> import promptcli as pc
        >>> table = pc.compare_over_seeds(["simcse-*", "promptbert-*"])  # doctest: +SKIP
        >>> table.comparisons[0].p_value  # doctest: +SKIP
        0.03
    """
    from promptcli.evaluation.over_seeds import SeedTable, compare_groups, read_groups
    from promptcli.models.loading import open_registry

    groups = read_groups(open_registry(), models)
    if len(groups) < 2:
        raise UsageError(f"{len(groups)} group of runs; name a second one to compare it with")
    with tasks_from(data_dir):
        return SeedTable(groups, compare_groups(groups, _over_pairs(groups)))


def _over_pairs(groups: "Sequence[SeedGroup]") -> "dict[tuple[str, str, str], Comparison]":
    """Return the comparisons of the best models of every two groups, by both names and task."""
    from promptcli.evaluation.scores import DataScore
    from promptcli.notes import note

    comparisons = {}
    for first, second in itertools.combinations(groups, 2):
        best = (first.best_model, second.best_model)
        tasks = [task for task in first.tasks if task in second.tasks]
        if best[0] == best[1] or not tasks:
            continue
        try:
            evaluation = evaluate([best[0]], tasks, compare=best[1], skip_missing=True)
        except PromptcliError as error:
            note(f"no test over pairs of {best[0]} and {best[1]}: {error}")
            continue
        here = {
            score.column: score.data_sha256 for score in evaluation if isinstance(score, DataScore)
        }
        for comparison in evaluation.comparisons:
            task = ", ".join(comparison.tasks)
            if first.task_sha256(task) not in ("", here.get(task)):
                note(f"no test over pairs of {task}: the data here are not those of the runs")
                continue
            comparisons[first.name, second.name, task] = comparison
    return comparisons
