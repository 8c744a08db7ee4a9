"""The public interface of evaluation: scoring models on tasks.

It imports nothing heavy, since the command line reads it: its functions import the work.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from promptcli.data.given import check_arguments
from promptcli.data.senteval import tasks_from
from promptcli.errors import PromptcliError, UsageError, look_up
from promptcli.jobs import Job, argument, function_of, option
from promptcli.notes import keyword

if TYPE_CHECKING:
    from promptcli.evaluation.evaluator import EvalSettings
    from promptcli.evaluation.over_seeds import SeedGroup, SeedTable
    from promptcli.evaluation.scores import Comparison, Evaluation, Label
    from promptcli.models.loading import Model

_TASKS = "Transfer tasks and mteb"
EXTERNAL = "Vectors of other programs"
Tasks = str | Path | Sequence[str | Path]  #: tasks by their names, see ``evaluate``


@dataclass(frozen=True)
class EvaluateJob(Job["Evaluation"]):
    """Score models on tasks of any kind. Global random states are unchanged.

    Each score of a named model is kept as its task ends, so that a second evaluation measures only
    what is missing.

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

    models: "Model | Sequence[Model]" = argument(
        "Names of models and recipes (ditto:1-9: a head), folders, hub ids, recipe files.",
        (),
        in_python="One or several, each also an encoder, or what else `load` takes. A named model"
        " with another recipe for transfer tasks uses that one there.",
        on_command_line="Default: every recipe that needs no fitting; for tasks without graded"
        " pairs, mini.",
        metavar="MODEL",
        typed=list[str],
    )
    tasks: Tasks = option(
        (),
        "`STS12` to `STS16`, `STS-B`, `SICK-R` (`sts`: all), `STS-B:dev`, `demo`, `demo:dev`;"
        " `STS-B:de` or `STS-B:de:dev` and the like in eleven languages (stsb-multi-mt);"
        " files (CSV, TSV, JSONL, Parquet) of graded pairs, `FILE` with columns sentence1,"
        " sentence2, score or `FILE:first,second,gold` (Spearman x 100); `MR`, `CR`, `SUBJ`,"
        " `MPQA`, `SST-2`, `TREC`, `MRPC` (`transfer`: all; accuracy x 100 of SentEval's"
        " classifier); `retrieval:FILE` with columns query, document, grade (nDCG@10 x 100,"
        " recall), and the same ranked by words, `lexical:FILE`, or by both, `hybrid:FILE` (as in"
        " `promptcli index search`); `mteb:NAME`, run by mteb. Default: the seven STS tasks with a"
        " `data_dir`, else `demo`.",
        names="task",
        typed=list[str],
    )
    _: KW_ONLY
    by: Literal["both", "meaning", "words"] = option(
        "meaning",
        "How the documents of `retrieval:FILE` are ranked, as in `promptcli search`: meaning (by"
        " the model's cosines), both (by cosines and words) or words.",
    )
    data_dir: str | Path | None = option(
        None,
        "SentEval's `downstream` folder; without it STS tasks are fetched from the hub.",
        typed=Path,
        kind="data folder",
    )
    protocol: str = option(
        "senteval", "`senteval`, or `mteb`: SICK-R with all its pairs, raw text."
    )
    vectors: Sequence[str | Path] = option(
        (),
        "Score the vectors in a file (.npy, .parquet, .jsonl), too: row i is sentence i of what"
        " `promptcli eval --list-sentences` prints.",
        in_python="In Python that is `task_sentences`.",
        metavar="FILE",
        panel=EXTERNAL,
        typed=list[str],
    )
    compare: "Model | None" = option(
        None,
        "Compare with this model, task by task. Default: every two of up to six models are compared"
        " on the average of their graded pairs and on that of their accuracies. By a paired"
        " bootstrap, corrected for the number of comparisons (Holm).",
        on_command_line="Only the backbone and max-length of the changes apply to it.",
        metavar="MODEL",
        typed=str,
    )
    fast: bool = option(
        False,
        "SentEval's 5-fold setting of transfer tasks: for development, not for print.",
        panel=_TASKS,
    )
    seed: int | None = option(
        None, "Random seed of the classifiers (default: SentEval's 1111).", min=0, panel=_TASKS
    )
    mteb_folder: str | Path = option(
        "mteb-results", "Folder of mteb's own result files.", metavar="FOLDER", panel=_TASKS
    )
    force: bool = option(False, "Measure again what an earlier evaluation kept.")
    skip_missing: bool = option(
        False,
        "Report tasks without data and models that cannot be opened or scored, and score the"
        " others.",
        hidden=True,
    )

    def run(self) -> "Evaluation":
        from promptcli.data.tasks import TransferTask
        from promptcli.evaluation import candidates
        from promptcli.evaluation.evaluator import (
            check_tasks,
            compare_rows,
            read_embedded,
            score_vectors,
        )
        from promptcli.evaluation.kept_scores import KeptScores
        from promptcli.evaluation.scores import Evaluation, Score
        from promptcli.models.loading import as_list

        with tasks_from(self.data_dir):
            loaded = candidates.load_named_tasks(
                _ranked_by(self.by, self.tasks),
                protocol=self.protocol,
                skip_missing=self.skip_missing,
            )
            settings = self.settings()
            named = as_list(self.models)
            if self.compare is not None:
                named = [*named, self.compare]
            rows = candidates.candidates_of(named)
            baseline = None
            if self.compare is not None:
                baseline = rows[-1][0]
                self._check_comparison(dict(rows), loaded.tasks)
            transfer = [task for task in loaded.tasks if isinstance(task, TransferTask)]
            candidates.note_examples(transfer)
            check_tasks(transfer, settings.training)
            external = [
                read_embedded(Path(path), loaded.tasks) for path in dict.fromkeys(self.vectors)
            ]
            scores: dict[Label, list[Score]] = {}
            for each in external:
                scores[each.label] = score_vectors([each], loaded.tasks, settings)
            opened, refused = candidates.open_candidates(dict(rows))
            if refused and not (self.skip_missing and (opened or external)):
                raise next(iter(refused.values()))
            scored, failed = candidates.score_models(
                opened,
                loaded.tasks,
                settings,
                KeptScores(settings, fresh=self.force),
                strict=not self.skip_missing,
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

    def _check_comparison(self, encoders: "Mapping[Label, Any]", tasks: Sequence[Any]) -> None:
        """Refuse a comparison without a suitable task or a second model."""
        from promptcli.data.tasks import RetrievalTask, STSTask, TransferTask

        comparable = STSTask | TransferTask | RetrievalTask
        if not any(isinstance(task, comparable) for task in tasks):
            raise UsageError(
                f"{keyword('compare')} takes graded pairs, transfer tasks or retrieval; name one,"
                " or leave it out"
            )
        if not self.vectors and len(encoders) == 1:
            (only,) = encoders
            raise UsageError(
                f"{keyword('compare')}: {only.recipe} is the only encoder; name a second one"
            )

    def settings(self) -> "EvalSettings":
        """Return the settings of transfer tasks and mteb."""
        from promptcli.evaluation.classifier import FAST, FULL, SENTEVAL_SEED
        from promptcli.evaluation.evaluator import EvalSettings

        training = FAST if self.fast else FULL
        seed = SENTEVAL_SEED if self.seed is None else self.seed
        return EvalSettings(training, seed, Path(self.mteb_folder))


evaluate = function_of(EvaluateJob, "evaluate")
#: Ways to rank documents -> the family of retrieval tasks that are ranked so.
_FAMILY_OF_WAY = {"meaning": "retrieval", "both": "hybrid", "words": "lexical"}


def _ranked_by(by: str, tasks: Tasks) -> Tasks:
    """Return tasks with those of retrieval ranked in one way."""
    family = look_up("by", by, _FAMILY_OF_WAY)
    if family == "retrieval":
        return tasks
    names = [str(task) for task in ([tasks] if isinstance(tasks, str | Path) else tasks)]
    if not any(name.startswith("retrieval:") for name in names):
        raise UsageError(
            f"{keyword('by')} is for retrieval, and no task is; name one: retrieval:FILE"
        )
    return [re.sub("^retrieval:", f"{family}:", name) for name in names]


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


@check_arguments
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
            evaluation = EvaluateJob([best[0]], tasks, compare=best[1], skip_missing=True).run()
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
