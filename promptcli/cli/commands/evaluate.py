"""``promptcli eval``: score encoders on tasks of any kind."""

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli.console import half_interval, note, result, result_json, result_table
from promptcli.cli.options import RECIPE, Changes, Json, choice_of
from promptcli.cli.signatures import Flag, command_of
from promptcli.evaluation import evaluate as library
from promptcli.recipe import RECIPES, Choice
from promptcli.settings import PAPER

if TYPE_CHECKING:
    from promptcli.data.tasks import AnyTask, Loaded
    from promptcli.evaluation.candidates import Evaluation
    from promptcli.evaluation.evaluator import EvalSettings
    from promptcli.evaluation.scores import Label, Score

_TASKS = "Transfer tasks and mteb"
#: Changes that every named recipe can take.
_NEUTRAL = {"backbone", "max_length"}


@command_of(
    library.evaluate,
    flags={
        "models": Flag(
            "[MODEL]...",
            type=list[str],
            read=lambda words: words or [],
            help="Names of models and recipes, folders, hub ids, recipe files. Default: every recipe that needs no"
            " fitting; for tasks without graded pairs, mini.",
        ),
        "tasks": Flag("--task", type=list[str], read=lambda words: words or [], added="tasks"),
        "vectors": Flag(metavar="FILE", panel="Vectors of other programs"),
        "fast": Flag(panel=_TASKS),
        "seed": Flag(min=0, panel=_TASKS),
        "output": Flag("--output -o", metavar="FOLDER", panel=_TASKS),
        "skip_missing": None,
    },
)
def evaluate_command(
    evaluate: "partial[list[Score]]",
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="The same as an argument; repeatable.")
    ] = None,
    subsets: Annotated[bool, typer.Option("--subsets", help="Print the figures of each subset, too.")] = False,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Compare with this model by a paired bootstrap; of the changes only --backbone and max-length apply"
            " to it.",
        ),
    ] = None,
    save: Annotated[bool, typer.Option("--save", help="Store the scores with the models you saved.")] = False,
    paper: Annotated[
        bool,
        typer.Option("--paper", help="Default to the papers' settings: bert-base-uncased, all seven STS tasks."),
    ] = False,
    list_sentences: Annotated[
        bool,
        typer.Option(
            "--list-sentences",
            help="Print the tasks' distinct sentences, one a line, and stop.",
            rich_help_panel="Vectors of other programs",
        ),
    ] = False,
    json: Json = False,
    *,
    recipe: Annotated[Changes, RECIPE],
) -> None:
    """Score encoders: Spearman x 100 with 95% intervals on STS tasks and your own pairs, accuracy on transfer tasks."""
    from promptcli.data.senteval import tasks_from
    from promptcli.evaluation.candidates import evaluate_all, load_named_tasks
    from promptcli.evaluation.classifier import FAST, FULL
    from promptcli.evaluation.evaluator import EvalSettings

    options = evaluate.keywords
    folder, protocol = options["data_dir"], options["protocol"]
    words, tasks = [*options["models"], *(model or [])], options["tasks"]
    if not tasks:
        tasks = ["sts"] if paper or folder is not None else ["demo"]
        if tasks == ["demo"]:
            note("assumed: our own demo pairs, no benchmark; the papers' tasks: --data-dir FOLDER, or --task sts")
    vectors = options.get("vectors", ())
    changes = recipe()
    neutral = {name: value for name, value in changes.items() if name in _NEUTRAL}
    bare = not words and changes == neutral
    with tasks_from(folder):
        named = load_named_tasks(tasks, protocol=protocol, skip_missing=True)
    if list_sentences:
        _print_sentences(named.tasks, as_json=json)
        return
    settings = EvalSettings(FAST if options["fast"] else FULL, options["seed"], Path(options["output"]))
    evaluation = evaluate_all(
        [] if vectors and bare else _chosen(words, changes, tasks, protocol, paper=paper),
        named.tasks,
        settings,
        against=None if compare is None else choice_of(compare, neutral, paper=paper),
        save=save,
        skip_unfit=bare,
        vectors=vectors,
        listing=_listing(tasks, folder, protocol),
    )
    if json:
        result_json(_document(evaluation, named, settings))
    else:
        _print(evaluation, named, settings, subsets=subsets)


def _chosen(
    words: Sequence[str], changes: dict[str, Any], tasks: Sequence[str], protocol: str, *, paper: bool
) -> list[Choice]:
    """Return the models to score. Default: every recipe on graded pairs, the default encoder on other tasks."""
    from promptcli.data.task_table import task_row
    from promptcli.data.tasks import any_task_names

    named: Sequence[str | None] = words
    if words or not changes.keys() <= _NEUTRAL:
        return [choice_of(word, changes, paper=paper) for word in named or [None]]
    if any(task_row(name, protocol).metric == "spearman" for name in any_task_names(tasks)):
        return [choice_of(name, changes, paper=paper) for name in RECIPES]
    return [choice_of(PAPER.recipe if paper else None, changes, paper=paper)]


def _listing(tasks: Sequence[str], folder: Path | None, protocol: str) -> str:
    words = ["promptcli", "eval", "--list-sentences"]
    words += [] if folder is None else ["--data-dir", str(folder)]
    words += [] if protocol == "senteval" else ["--protocol", protocol]
    return shlex.join([*words, *(word for task in tasks for word in ("--task", task))])


def _print_sentences(tasks: Sequence[Any], *, as_json: bool) -> None:
    from promptcli.evaluation.evaluator import distinct_sentences

    sentences = distinct_sentences(tasks)
    if as_json:
        result_json({"tasks": [getattr(task, "label", task.name) for task in tasks], "sentences": sentences})
        return
    for sentence in sentences:
        result(sentence)


def _print(evaluation: "Evaluation", named: "Loaded[AnyTask]", settings: "EvalSettings", *, subsets: bool) -> None:
    """Print the tables of graded pairs and of accuracies as in the papers, other figures one below the other."""
    from promptcli.cli.tables import accuracy_table, print_tables, score_tables
    from promptcli.data.task_table import TRANSFER_TASKS
    from promptcli.data.tasks import STSTask, any_task_names
    from promptcli.evaluation.scores import AccuracyScore, RetrievalScore, SpearmanScore

    def of(kind: type) -> "dict[Label, list[Any]]":
        rows = {label: [score for score in row if isinstance(score, kind)] for label, row in evaluation.scores.items()}
        return {label: row for label, row in rows.items() if row}

    pairs = [task for task in named.tasks if isinstance(task, STSTask)]
    graded, accuracies, tables = of(SpearmanScore), of(AccuracyScore), []
    if graded:
        names = any_task_names([*named.missing, *(task.label for task in pairs)])
        columns = [name for name in names if str(name) not in TRANSFER_TASKS]
        tables += score_tables(graded, evaluation.comparisons, columns, pairs, subsets=subsets)
    if accuracies:
        caption = settings.training.caption(settings.classifier_seed)
        wanted = {*named.missing, *(task.name for task in named.tasks)}
        tables.append([caption, *accuracy_table(accuracies, [name for name in TRANSFER_TASKS if name in wanted])])
    print_tables(tables)
    scores = [score for row in evaluation.scores.values() for score in row]
    rows = []
    for score in (score for score in scores if not isinstance(score, SpearmanScore | AccuracyScore)):
        half = "" if score.ci95 is None else half_interval(score.ci95)
        rows.append([score.label.model, score.label.recipe, score.task, score.metric, f"{score.value:.2f}", half])
        if isinstance(score, RetrievalScore):
            recalls = {"recall@10": score.recall_at_10, "recall@100": score.recall_at_100}
            rows += [["", "", "", name, f"{recall:.2f}", ""] for name, recall in recalls.items()]
    if rows:
        result_table(("model", "recipe", "task", "metric", "value", ""), rows)


def _document(evaluation: "Evaluation", named: "Loaded[AnyTask]", settings: "EvalSettings") -> dict[str, Any]:
    from promptcli.data.tasks import TransferTask

    document: dict[str, Any] = {"results": [score.to_dict() for row in evaluation.scores.values() for score in row]}
    if evaluation.comparisons:
        document["comparisons"] = [comparison.to_dict() for comparison in evaluation.comparisons]
    if any(isinstance(task, TransferTask) for task in named.tasks):
        training, seed = settings.training, settings.classifier_seed
        document["setting"] = {"folds": training.folds, "optimizer": training.optimizer, "seed": seed}
    if named.missing:
        document["missing"] = named.missing
    return document
