"""``promptcli eval``: score encoders on tasks of any kind."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli.console import as_typed, note, result, result_json
from promptcli.cli.options import RECIPE, Changes, Json, choice_of
from promptcli.cli.result_files import FORMATS, check_format, write_results
from promptcli.cli.signatures import Flag, command_of
from promptcli.errors import counted, if_interrupted
from promptcli.evaluation import evaluate
from promptcli.recipe import RECIPES, Choice
from promptcli.settings import PAPER

if TYPE_CHECKING:
    from promptcli.evaluation.evaluator import EvalSettings
    from promptcli.evaluation.scores import Evaluation

_TASKS = "Transfer tasks and mteb"
#: Changes that every named recipe can take.
_NEUTRAL = {"backbone", "max_length"}


@command_of(
    evaluate,
    flags={
        "models": Flag(
            "[MODEL]...",
            type=list[str],
            read=lambda words: words or [],
            help=(
                "Names of models and recipes (ditto:1-9: a head), folders, hub ids, recipe files."
                " Default: every recipe that needs no fitting; for tasks without graded pairs,"
                " mini."
            ),
        ),
        "tasks": Flag("--task", type=list[str], read=lambda words: words or []),
        "vectors": Flag(metavar="FILE", panel="Vectors of other programs"),
        "compare": Flag(
            metavar="MODEL",
            read=lambda word: word,
            help=(
                "Compare with this model, task by task; of the changes only --backbone and"
                " max-length apply to it. Default: every two of up to six models are compared on"
                " the average of their graded pairs and on that of their accuracies."
            ),
        ),
        "fast": Flag(panel=_TASKS),
        "seed": Flag(min=0, panel=_TASKS),
        "mteb_folder": Flag(metavar="FOLDER", panel=_TASKS),
        "skip_missing": None,
    },
)
def evaluate_command(
    evaluate: "partial[Evaluation]",
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
            rich_help_panel="Vectors of other programs",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help=f"Also write the results, by the file's name: {', '.join(FORMATS)}.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing result file.")
    ] = False,
    json: Json = False,
    *,
    recipe: Annotated[Changes, RECIPE],
) -> None:
    """Score encoders: Spearman x 100 with 95% intervals on STS tasks and your own pairs, accuracy
    on transfer tasks.

    A model that cannot be scored is a row with the reason; then the exit code is that of the
    reason.
    """
    from promptcli.data.senteval import tasks_from
    from promptcli.evaluation.candidates import load_named_tasks

    if output is not None:
        check_format(output, force=force)
    options = evaluate.keywords
    protocol, compare = options["protocol"], options["compare"]
    words, tasks = [*options["models"], *(model or [])], options["tasks"]
    if not tasks:
        tasks = ["sts"] if paper or options["data_dir"] is not None else ["demo"]
        if tasks == ["demo"]:
            note(
                "using the shipped demo pairs, which are no benchmark; for the papers' tasks give"
                " --task sts"
            )
    if list_sentences:
        with tasks_from(options["data_dir"]):
            _print_sentences(
                load_named_tasks(tasks, protocol=protocol, skip_missing=True).tasks, as_json=json
            )
        return
    changes = recipe()
    neutral = {name: value for name, value in changes.items() if name in _NEUTRAL}
    bare = not words and changes == neutral
    with if_interrupted("no results were saved"):
        evaluation = evaluate(
            models=(
                []
                if bare and options.get("vectors")
                else _chosen(words, changes, tasks, protocol, paper=paper)
            ),
            tasks=tasks,
            compare=None if compare is None else choice_of(compare, neutral, paper=paper),
            skip_missing=True,
        )
    if bare:  # recipes that do not fit the backbone were not asked for
        evaluation.rows = {
            label: row for label, row in evaluation.rows.items() if label not in evaluation.refused
        }
        evaluation.refused.clear()
    _show(evaluation, options, subsets=subsets, as_json=json, output=output, force=force)
    if evaluation.refused:
        first, count = next(iter(evaluation.refused.values())), len(evaluation.refused)
        models = counted(len(evaluation.rows), "model")
        raise type(first)(f"{count} of {models} could not be scored; their rows say why")


def _show(
    evaluation: "Evaluation",
    options: Mapping[str, Any],
    *,
    subsets: bool,
    as_json: bool,
    output: Path | None,
    force: bool,
) -> None:
    """Print the tables or the document, and write them to a file if one is named."""
    from promptcli.cli.tables import evaluation_tables, show_tables
    from promptcli.evaluation.classifier import FAST, FULL, SEED
    from promptcli.evaluation.evaluator import EvalSettings

    seed = SEED if options["seed"] is None else options["seed"]
    settings = EvalSettings(FAST if options["fast"] else FULL, seed)
    document = _document(evaluation, settings)
    tables = evaluation_tables(evaluation, settings, subsets=subsets)
    if as_json:
        result_json(document)
    else:
        show_tables(tables)
    if output is not None:
        check_format(output, force=force)  # it may have appeared in the meantime
        write_results(output, document, tables)
        note(f"results in {output}")


def _chosen(
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

    named: Sequence[str | None] = words
    if words or not changes.keys() <= _NEUTRAL:
        return [choice_of(word, changes, paper=paper) for word in named or [None]]
    if any(task_row(name, protocol).metric == "spearman" for name in any_task_names(tasks)):
        return [choice_of(name, changes, paper=paper) for name in RECIPES]
    return [choice_of(PAPER.recipe if paper else None, changes, paper=paper)]


def _print_sentences(tasks: Sequence[Any], *, as_json: bool) -> None:
    from promptcli.evaluation.evaluator import distinct_sentences

    sentences = distinct_sentences(tasks)
    if as_json:
        result_json(
            {"tasks": [getattr(task, "label", task.name) for task in tasks], "sentences": sentences}
        )
        return
    for sentence in sentences:
        result(sentence)


def _document(evaluation: "Evaluation", settings: "EvalSettings") -> dict[str, Any]:
    from promptcli.data.tasks import TransferTask

    document: dict[str, Any] = {"results": [score.to_dict() for score in evaluation]}
    if evaluation.refused:
        document["refused"] = [
            {**label.to_dict(), "reason": as_typed(str(why))}
            for label, why in evaluation.refused.items()
        ]
    if evaluation.comparisons:
        document["comparisons"] = [comparison.to_dict() for comparison in evaluation.comparisons]
    if any(isinstance(task, TransferTask) for task in evaluation.tasks):
        training, seed = settings.training, settings.seed
        document["setting"] = {
            "folds": training.folds,
            "optimizer": training.optimizer,
            "seed": seed,
        }
    if evaluation.missing:
        document["missing"] = evaluation.missing
    return document
