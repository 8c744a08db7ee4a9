"""``promptcli eval``: score encoders on tasks of any kind."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli.console import note, result, result_json
from promptcli.cli.options import Json, RecipeChanges, choice_of, words_of
from promptcli.cli.pictures import PictureOptions, draw_scores
from promptcli.cli.result_files import (
    WRITERS,
    FormatOptions,
    Report,
    check_results_file,
    print_report,
    write_results,
)
from promptcli.errors import counted, if_stopped
from promptcli.evaluation import EXTERNAL, EvaluateJob
from promptcli.recipe import COMPARED, Choice
from promptcli.settings import PAPER

if TYPE_CHECKING:
    from promptcli.evaluation.evaluator import EvalSettings
    from promptcli.evaluation.scores import Evaluation

#: Changes that every named recipe can take.
_NEUTRAL = {"backbone", "max_length"}


def evaluate_command(
    job: EvaluateJob,
    formats: FormatOptions,
    picture: PictureOptions,
    changes: RecipeChanges,
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="The same as an argument; repeatable.")
    ] = None,
    subsets: Annotated[
        bool, typer.Option("--subsets", help="Print the figures of each subset, too.")
    ] = False,
    paper: Annotated[
        bool,
        typer.Option(
            "--paper",
            help="Default to the papers' settings: bert-base-uncased, all seven STS tasks.",
        ),
    ] = False,
    list_sentences: Annotated[
        bool,
        typer.Option(
            "--list-sentences",
            help="Print the tasks' distinct sentences, one a line, and stop.",
            rich_help_panel=EXTERNAL,
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help=f"Also write the results, by the file's name: {', '.join(WRITERS)}.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Score encoders: Spearman x 100 with 95% intervals on STS tasks and your own pairs, accuracy
    on transfer tasks.

    A model that cannot be scored is a row with the reason; then the exit code is that of the
    reason.
    """
    printed = formats.name(json=json)
    picture.check()
    if output is not None:
        check_results_file(output, force=job.force)
    tasks = _task_names(job, paper=paper)
    if list_sentences:
        as_json = formats.lines_or_json("--list-sentences", json=json)
        _print_sentences(tasks, job, as_json=as_json)
        return
    neutral = {name: value for name, value in changes.items() if name in _NEUTRAL}
    words = [*words_of(job.models), *(model or [])]
    is_bare = not words and changes == neutral
    chosen = list[Choice]()
    if not (is_bare and job.vectors):
        chosen = _models_to_score(words, changes, tasks, job.protocol, paper=paper)
    baseline = None
    if job.compare is not None:
        baseline = choice_of(str(job.compare), neutral, paper=paper)
    job = dataclasses.replace(job, models=chosen, tasks=tasks, compare=baseline, skip_missing=True)
    with if_stopped("the same command measures only the tasks that had not ended"):
        evaluation = job.run()
    if is_bare:  # recipes that do not fit the backbone were not asked for
        for label in evaluation.refused:
            del evaluation.rows[label]
        evaluation.refused.clear()
    if evaluation:
        picture.draw(draw_scores, evaluation)
    settings = job.settings()
    report = _report(evaluation, settings, subsets=subsets, intervals=formats.intervals)
    print_report(report, printed)
    if output is not None:
        check_results_file(output, force=job.force)  # it may have appeared in the meantime
        write_results(output, report)
        note(f"results in {output}")
    for error in evaluation.refused.values():
        count = len(evaluation.refused)
        all_models = counted(len(evaluation.rows), "model")
        raise type(error)(f"{count} of {all_models} could not be scored; their rows say why")


def _report(
    evaluation: "Evaluation", settings: "EvalSettings", *, subsets: bool, intervals: bool
) -> Report:
    from promptcli.cli.tables import evaluation_parts, evaluation_records

    return Report(
        _document(evaluation, settings),
        evaluation_parts(evaluation, settings, subsets=subsets, intervals=intervals),
        evaluation_records(evaluation),
    )


def _models_to_score(
    words: Sequence[str],
    changes: dict[str, Any],
    tasks: Sequence[str],
    protocol: str,
    *,
    paper: bool,
) -> list[Choice]:
    """Return the models to score.

    Default: every recipe on graded pairs, the default encoder on other tasks.
    """
    from promptcli.data.task_table import task_row
    from promptcli.data.tasks import any_task_names

    if words:
        return [choice_of(word, changes, paper=paper) for word in words]
    if not changes.keys() <= _NEUTRAL:
        return [choice_of(None, changes, paper=paper)]
    if any(task_row(name, protocol).metric == "spearman" for name in any_task_names(tasks)):
        return [choice_of(name, changes, paper=paper) for name in COMPARED]
    if paper:
        return [choice_of(PAPER.recipe, changes, paper=True)]
    return [choice_of(None, changes)]


def _task_names(job: EvaluateJob, *, paper: bool) -> list[str]:
    """Return the tasks that are asked for, else the default ones, the demo with a note."""
    if job.tasks:
        return words_of(job.tasks)
    if paper or job.data_dir is not None:
        return ["sts"]
    note(
        "using the shipped demo pairs, which are no benchmark; for the papers' tasks give"
        " --task sts"
    )
    return ["demo"]


def _print_sentences(names: Sequence[str], job: EvaluateJob, *, as_json: bool) -> None:
    from promptcli.data.senteval import tasks_from
    from promptcli.evaluation.candidates import load_named_tasks
    from promptcli.evaluation.evaluator import distinct_sentences

    with tasks_from(job.data_dir):
        tasks: Sequence[Any] = load_named_tasks(
            names, protocol=job.protocol, skip_missing=True
        ).tasks
    sentences = distinct_sentences(tasks)
    if as_json:
        labels = [getattr(task, "label", task.name) for task in tasks]
        result_json({"tasks": labels, "sentences": sentences})
        return
    for sentence in sentences:
        result(sentence)


def _document(evaluation: "Evaluation", settings: "EvalSettings") -> dict[str, Any]:
    from promptcli.data.tasks import TransferTask

    document: dict[str, Any] = {"results": [score.to_dict() for score in evaluation]}
    refused = []
    for label, why in evaluation.refused.items():
        refused.append({**label.to_dict(), "reason": str(why)})
    if refused:
        document["refused"] = refused
    if evaluation.comparisons:
        document["comparisons"] = [comparison.to_dict() for comparison in evaluation.comparisons]
    if any(isinstance(task, TransferTask) for task in evaluation.tasks):
        document["setting"] = {
            "folds": settings.training.folds,
            "optimizer": settings.training.optimizer,
            "seed": settings.seed,
        }
    if evaluation.missing:
        document["missing"] = evaluation.missing
    return document
