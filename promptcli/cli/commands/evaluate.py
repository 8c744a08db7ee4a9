"""The command ``eval``: scores encoders on tasks of any kind."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from promptcli.cli.console import note, print_line
from promptcli.cli.options import (
    DataDir,
    Json,
    choice_of,
    data_folder,
    format_name,
    takes_model,
)
from promptcli.cli.result_files import (
    EXTENSIONS,
    Format,
    NoIntervals,
    Report,
    check_results_file,
    print_report,
    write_results,
)
from promptcli.errors import if_stopped, with_count
from promptcli.evaluation import evaluate, task_sentences
from promptcli.recipe import COMPARED, ModelChoice

if TYPE_CHECKING:
    from promptcli.evaluation.scores import Evaluation

#: Fields that can be changed in every recipe.
_FIELDS_OF_EVERY_RECIPE = {"backbone", "max_length"}
_PLUGIN_TASKS = "Transfer tasks and mteb"
_EXTERNAL = "Vectors of other programs"


@takes_model("model", "dim")
def evaluate_command(
    choice: ModelChoice,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="Names of models and recipes (ditto:1-9: a head), folders, hub ids, recipe files."
            " Default: every recipe that needs no fitting; mini for tasks without graded pairs.",
        ),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            help="Task; repeatable. Spearman x 100: `STS12` to `STS16`, `STS-B`, `SICK-R`"
            " (`sts`: all), `STS-B:dev`, `demo`, `demo:dev`; `STS-B:de` or `STS-B:de:dev`,"
            " in eleven languages (stsb-multi-mt); graded pairs in a `FILE` (CSV, TSV,"
            " JSONL, Parquet) with columns sentence1, sentence2, score, or"
            " `FILE:first,second,gold`. Accuracy x 100 of SentEval's classifier: `MR`, `CR`,"
            " `SUBJ`, `MPQA`, `SST-2`, `TREC`, `MRPC` (`transfer`: all). nDCG@10 x 100 and"
            " recall: `retrieval:FILE` with columns query, document, grade, or a folder of"
            " BEIR. `mteb:NAME`: run by mteb. Default: the seven STS tasks with a"
            " `--data-dir`, else `demo`.",
        ),
    ] = None,
    by: Annotated[
        Literal["both", "meaning", "words"],
        typer.Option(
            help="Ranking of the documents of `retrieval:FILE`, as in `promptcli search`:"
            " meaning (the model's cosines), words, or both together."
        ),
    ] = "meaning",
    data_dir: DataDir = None,
    protocol: Annotated[
        str, typer.Option(help="`senteval`, or `mteb`: SICK-R with all its pairs, raw text.")
    ] = "senteval",
    vectors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Also score the vectors in a file (.npy, .parquet): row i belongs to"
            " sentence i of `promptcli eval --list-sentences`.",
            rich_help_panel=_EXTERNAL,
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Compare each model with this one, task by task, by a paired bootstrap,"
            " corrected for the number of comparisons (Holm). Of the changes to a recipe,"
            " only --backbone and max-length apply to it. Default: compare every two of up"
            " to six models, on the averages of graded pairs and of accuracies.",
        ),
    ] = None,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast",
            help="Use SentEval's faster 5-fold setting in transfer tasks: for development, not"
            " for publication.",
            rich_help_panel=_PLUGIN_TASKS,
        ),
    ] = False,
    mteb_folder: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help="Folder of mteb's own result files.",
            rich_help_panel=_PLUGIN_TASKS,
        ),
    ] = "mteb-results",
    force: Annotated[
        bool, typer.Option("--force", help="Measure again, ignoring stored scores.")
    ] = False,
    format: Format = None,
    no_intervals: NoIntervals = False,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="The same as the argument; repeatable."),
    ] = None,
    subsets: Annotated[
        bool, typer.Option("--subsets", help="Also print the scores of each subset.")
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
            help="Print the tasks' distinct sentences, one on each line, and stop.",
            rich_help_panel=_EXTERNAL,
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Also write the results to a file, whose extension sets the format:"
            f" {', '.join(EXTENSIONS)}.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Score encoders: Spearman x 100 with 95% intervals on STS tasks and your own pairs, accuracy
    on transfer tasks.

    If a model cannot be scored, its row gives the reason, which also sets the exit code.
    """
    from promptcli.cli.tables import evaluation_records, evaluation_tables

    output_format = format_name(format, json=json)
    if output is not None:
        check_results_file(output, force=force)
    folder = data_folder(data_dir)
    task_names = tasks or _default_tasks(has_folder=folder is not None, paper=paper)
    if list_sentences:
        for sentence in task_sentences(
            task_names, data_dir=folder, protocol=protocol, skip_missing=True
        ):
            print_line(sentence)
        return
    changes = dict(choice.changes)
    shared_changes = {
        name: value for name, value in changes.items() if name in _FIELDS_OF_EVERY_RECIPE
    }
    names: list[str | None] = [*(models or []), *(model or [])]
    is_without_model = not names and changes == shared_changes
    if is_without_model:
        names = [] if vectors else _default_models(task_names, protocol, paper=paper)
    elif not names:
        names = [None]
    with if_stopped("the same command measures only the tasks that had not ended"):
        evaluation = evaluate(
            [choice_of(name, changes, paper=paper) for name in names],
            task_names,
            by=by,
            data_dir=folder,
            protocol=protocol,
            vectors=vectors or (),
            compare=None if compare is None else choice_of(compare, shared_changes, paper=paper),
            fast=fast,
            mteb_folder=mteb_folder,
            force=force,
            skip_missing=True,
        )
    if is_without_model:  # the user did not ask for recipes that do not fit the backbone
        evaluation.drop_refused()
    tables = evaluation_tables(evaluation, subsets=subsets, intervals=not no_intervals)
    report = Report(_document(evaluation), tables, evaluation_records(evaluation))
    print_report(report, output_format)
    if output is not None:
        write_results(output, report)
        note(f"results in {output}")
    if evaluation.refused:
        first = next(iter(evaluation.refused.values()))
        all_models = with_count(len(evaluation.rows), "model")
        raise type(first)(
            f"{len(evaluation.refused)} of {all_models} could not be scored; their rows say why"
        )


def _default_models(tasks: Sequence[str], protocol: str, *, paper: bool) -> list[str | None]:
    """Return every recipe if there are graded pairs among the tasks, else the default encoder."""
    from promptcli.data.task_table import task_row
    from promptcli.data.tasks import task_names

    if any(task_row(name, protocol).metric == "spearman" for name in task_names(tasks)):
        return list(COMPARED)
    return ["prompt" if paper else None]


def _default_tasks(*, has_folder: bool, paper: bool) -> list[str]:
    if paper or has_folder:
        return ["sts"]
    note(
        "using the shipped demo pairs, which are not a benchmark; for the papers' tasks give"
        " --task sts"
    )
    return ["demo"]


def _document(evaluation: "Evaluation") -> dict[str, Any]:
    refused = evaluation.refused.items()
    settings = [score.setting for score in evaluation if hasattr(score, "setting")]
    optional = {
        "refused": [{**label.to_dict(), "reason": str(error)} for label, error in refused],
        "comparisons": [comparison.to_dict() for comparison in evaluation.comparisons],
        "setting": settings and settings[-1],
        "missing": evaluation.missing,
    }
    results = [score.to_dict() for score in evaluation]
    return {"results": results, **{name: value for name, value in optional.items() if value}}
