"""``promptcli eval``: score encoders on tasks of any kind."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli.console import as_typed, note, result, result_json
from promptcli.cli.options import (
    Backbone,
    Json,
    PoolingSpec,
    Prompt,
    RecipeFields,
    Transforms,
    choice_of,
    data_folder,
    field_option,
    recipe_changes,
)
from promptcli.cli.pictures import PictureOptions, draw_scores
from promptcli.cli.result_files import (
    FILES,
    FormatOptions,
    Report,
    check_file,
    print_report,
    write_results,
)
from promptcli.errors import counted, if_interrupted
from promptcli.evaluation import eval_settings, evaluate
from promptcli.recipe import RECIPES, Choice
from promptcli.settings import PAPER

if TYPE_CHECKING:
    from promptcli.evaluation.evaluator import EvalSettings
    from promptcli.evaluation.scores import Evaluation

_TASKS = "Transfer tasks and mteb"
_EXTERNAL = "Vectors of other programs"
#: Changes that every named recipe can take.
_NEUTRAL = {"backbone", "max_length"}


def evaluate_command(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help=(
                "Names of models and recipes (ditto:1-9: a head), folders, hub ids, recipe files."
                " Default: every recipe that needs no fitting; for tasks without graded pairs,"
                " mini."
            ),
        ),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            help=(
                "`STS12` to `STS16`, `STS-B`, `SICK-R` (`sts`: all), `STS-B:dev`, `demo`,"
                " `demo:dev`, and files (CSV, TSV, JSONL, Parquet) of graded pairs, `FILE` with"
                " columns sentence1, sentence2, score or `FILE:first,second,gold` (Spearman x"
                " 100); `MR`, `CR`, `SUBJ`, `MPQA`, `SST-2`, `TREC`, `MRPC` (`transfer`: all;"
                " accuracy x 100 of SentEval's classifier); `retrieval:FILE` with columns query,"
                " document, grade (nDCG@10 x 100, recall), and the same ranked by words,"
                " `lexical:FILE`, or by both, `hybrid:FILE` (as in `promptcli index search`);"
                " `mteb:NAME`, run by mteb. Default: the seven STS tasks with a `--data-dir`, else"
                " `demo`."
            ),
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help=("SentEval's `downstream` folder; without it STS tasks are fetched from the hub.")
        ),
    ] = None,
    protocol: Annotated[
        str,
        typer.Option(help="`senteval`, or `mteb`: SICK-R with all its pairs, raw text."),
    ] = "senteval",
    vectors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_EXTERNAL,
            help=(
                "Score the vectors in a file (.npy, .parquet, .jsonl), too: row i is sentence i of"
                " what `--list-sentences` prints."
            ),
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help=(
                "Compare with this model, task by task; of the changes only --backbone and"
                " max-length apply to it. Default: every two of up to six models are compared on"
                " the average of their graded pairs and on that of their accuracies."
            ),
        ),
    ] = None,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast",
            rich_help_panel=_TASKS,
            help="SentEval's 5-fold setting of transfer tasks: for development, not for print.",
        ),
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            rich_help_panel=_TASKS,
            help="Random seed of the classifiers (default: SentEval's 1111).",
        ),
    ] = None,
    mteb_folder: Annotated[
        str,
        typer.Option(
            metavar="FOLDER", rich_help_panel=_TASKS, help="Folder of mteb's own result files."
        ),
    ] = "mteb-results",
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
            rich_help_panel=_EXTERNAL,
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help=f"Also write the results, by the file's name: {', '.join(FILES)}.",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help=(
                "Measure again what an earlier evaluation kept; replace an existing result file."
            ),
        ),
    ] = False,
    json: Json = False,
    format: Annotated[str | None, field_option(FormatOptions, "format")] = None,
    no_intervals: Annotated[
        bool, field_option(FormatOptions, "no_intervals", "--no-intervals")
    ] = False,
    plot: Annotated[Path | None, field_option(PictureOptions, "plot")] = None,
    backbone: Backbone = None,
    prompt: Prompt = None,
    pooling: PoolingSpec = None,
    transforms: Transforms = None,
    set: RecipeFields = None,
) -> None:
    """Score encoders: Spearman x 100 with 95% intervals on STS tasks and your own pairs, accuracy
    on transfer tasks.

    A model that cannot be scored is a row with the reason; then the exit code is that of the
    reason.
    """
    formats = FormatOptions(format, no_intervals)
    printed = formats.name(json=json)
    picture = PictureOptions(plot, force)
    picture.check()
    if output is not None:
        check_file(output, force=force)
    data_dir = data_folder(data_dir)
    if not tasks and (paper or data_dir is not None):
        tasks = ["sts"]
    elif not tasks:
        tasks = ["demo"]
        note(
            "using the shipped demo pairs, which are no benchmark; for the papers' tasks give"
            " --task sts"
        )
    if list_sentences:
        as_json = formats.lines_or_json("--list-sentences", json=json)
        _print_sentences(tasks, data_dir, protocol, as_json=as_json)
        return
    changes = recipe_changes(backbone, prompt, pooling, transforms, set)
    neutral = {name: value for name, value in changes.items() if name in _NEUTRAL}
    words = [*(models or []), *(model or [])]
    is_bare = not words and changes == neutral
    chosen = list[Choice]()
    if not (is_bare and vectors):
        chosen = _chosen(words, changes, tasks, protocol, paper=paper)
    baseline = None
    if compare is not None:
        baseline = choice_of(compare, neutral, paper=paper)
    with if_interrupted("the same command measures only the tasks that had not ended"):
        evaluation = evaluate(
            chosen,
            tasks,
            data_dir=data_dir,
            protocol=protocol,
            vectors=vectors or [],
            compare=baseline,
            fast=fast,
            seed=seed,
            mteb_folder=mteb_folder,
            force=force,
            skip_missing=True,
        )
    if is_bare:  # recipes that do not fit the backbone were not asked for
        for label in evaluation.refused:
            del evaluation.rows[label]
        evaluation.refused.clear()
    if evaluation:
        picture.draw(draw_scores, evaluation)
    settings = eval_settings(fast=fast, seed=seed)
    report = _report(evaluation, settings, subsets=subsets, intervals=formats.intervals)
    print_report(report, printed)
    if output is not None:
        check_file(output, force=force)  # it may have appeared in the meantime
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

    if words:
        return [choice_of(word, changes, paper=paper) for word in words]
    if not changes.keys() <= _NEUTRAL:
        return [choice_of(None, changes, paper=paper)]
    if any(task_row(name, protocol).metric == "spearman" for name in any_task_names(tasks)):
        return [choice_of(name, changes, paper=paper) for name in RECIPES]
    if paper:
        return [choice_of(PAPER.recipe, changes, paper=True)]
    return [choice_of(None, changes)]


def _print_sentences(
    names: Sequence[str], data_dir: Path | None, protocol: str, *, as_json: bool
) -> None:
    from promptcli.data.senteval import tasks_from
    from promptcli.evaluation.candidates import load_named_tasks
    from promptcli.evaluation.evaluator import distinct_sentences

    with tasks_from(data_dir):
        tasks: Sequence[Any] = load_named_tasks(names, protocol=protocol, skip_missing=True).tasks
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
        refused.append({**label.to_dict(), "reason": as_typed(str(why))})
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
