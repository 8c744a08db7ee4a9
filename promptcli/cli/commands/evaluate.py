"""`promptcli eval`: score encoders on STS tasks. Part of the entrance: options, notes and tables, no arithmetic."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli.commands.eval_choice import (
    Candidate,
    EvalChoice,
    check_savable,
    find_baseline,
    find_candidates,
    is_bare,
    open_candidates,
    report_missing,
)
from promptcli.cli.console import half_interval, note, result, result_json, result_table
from promptcli.cli.opening import configure_libraries, data_folder, open_registry
from promptcli.cli.options import Json, Runtime, option_in
from promptcli.errors import UsageError
from promptcli.settings import BARE, PAPER

if TYPE_CHECKING:
    from promptcli.data.task_table import TaskName
    from promptcli.data.tasks import AnyTask, Loaded
    from promptcli.encoder.encoder import Encoder
    from promptcli.evaluation.evaluator import Embedded
    from promptcli.evaluation.scores import Comparison, Label, Score, SpearmanScore
    from promptcli.registry.registry import Registry

_option = option_in("Vectors of other programs")


@dataclass(frozen=True)
class ExternalVectors:
    """What goes out to another program and what comes back."""

    list_sentences: Annotated[
        bool,
        _option(
            "--list-sentences",
            help="Print the distinct sentences of the tasks in order, one a line, and score nothing.",
        ),
    ] = False
    vectors: Annotated[
        list[Path] | None,
        _option(
            help="Score the vectors in a .npy, .safetensors, .parquet or .jsonl file, row i of sentence i of"
            " --list-sentences; repeatable, alone or with --recipe and --model.",
            metavar="FILE",
        ),
    ] = None


def list_sentences(tasks: "Sequence[AnyTask]", *, json: bool) -> None:
    """Print every sentence of the tasks once."""
    from promptcli.evaluation.evaluator import distinct_sentences

    sentences = distinct_sentences(tasks)
    if json:
        result_json({"tasks": [getattr(task, "label", task.name) for task in tasks], "sentences": sentences})
        return
    for sentence in sentences:
        result(sentence)


def read_external(
    paths: Sequence[Path], tasks: "Sequence[AnyTask]", data_dir: Path | None, protocol: str
) -> "list[Embedded]":
    """Read the files of ``--vectors``; a file that does not fit is refused with the command that lists the sentences.

    Args:
        paths: The files, each once.
        tasks: Whose sentences they embed.
        data_dir: Where the tasks came from.
        protocol: Which text they have.
    """
    from promptcli.evaluation.evaluator import read_embedded

    parts = ["promptcli", "eval", "--list-sentences"]
    parts += [] if data_dir is None else ["--data-dir", str(data_dir)]
    parts += [] if protocol == "senteval" else ["--protocol", protocol]
    parts += [part for task in tasks for part in ("--task", getattr(task, "label", task.name))]
    return [read_embedded(path, tasks, shlex.join(parts)) for path in dict.fromkeys(paths)]


_mteb_option = option_in("mteb")


@dataclass(frozen=True)
class MtebChoice:
    """Tasks of mteb."""

    mteb: Annotated[
        list[str] | None,
        _mteb_option(
            help="A task of mteb (STS12, STSBenchmark, SICK-R, Banking77Classification, ...), run by mteb itself;"
            " repeatable. Its data come from the hub, those of STS from --data-dir where that is given.",
            metavar="TASK",
        ),
    ] = None
    output: Annotated[
        Path,
        _mteb_option(
            "--output",
            "-o",
            help="Where mteb's result files go: results/MODEL/REVISION/TASK.json in it.",
            metavar="FOLDER",
        ),
    ] = Path("mteb-results")


def evaluate_command(
    choice: EvalChoice,
    external: ExternalVectors,
    mteb: MtebChoice,
    runtime: Runtime,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="SentEval `downstream`-like folder (STS/, SICK/). Without it named tasks come from the hub."),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="STS12 ... STS16, STS-B, STS-B:dev, SICK-R; demo, demo:dev; MR, CR, SUBJ, MPQA, SST-2, TREC, MRPC"
            " (a linear classifier's accuracy); or a file of your own, CSV, TSV, JSONL or Parquet: FILE with columns"
            " sentence1, sentence2, score, or FILE:first,second,gold; retrieval:FILE with query, document, grade;"
            " perplexity:FILE; mteb:NAME. Repeatable."
            " Default: the seven test splits where --data-dir or --paper is given, else demo."
        ),
    ] = None,
    protocol: Annotated[
        str, typer.Option(help="senteval: the papers' pairs and text; mteb: SICK-R with all its pairs, raw text.")
    ] = "senteval",
    subsets: Annotated[bool, typer.Option("--subsets", help="Figures of each subset, too.")] = False,
    compare: Annotated[
        str | None,
        typer.Option(
            help="Recipe or registry entry to compare with, by a paired bootstrap;"
            " of the changes only --backbone and --max-length apply to it.",
            metavar="NAME",
        ),
    ] = None,
    save: Annotated[bool, typer.Option("--save", help="Store the scores in the registry entry (--model).")] = False,
    json: Json = False,
) -> None:
    """Score encoders on STS12-16, STS-B and SICK-R (Spearman x 100 with 95% intervals), transfer tasks, or your own."""
    from promptcli.data.task_table import TEST_TASKS, protocol_named
    from promptcli.data.tasks import TransferTask, any_task_names, load_any
    from promptcli.evaluation.classifier import FULL
    from promptcli.evaluation.evaluator import check_tasks

    if mteb.mteb:
        others: dict[str, Any] = {"--task": task, "--compare": compare, "--save": save, "--subsets": subsets}
        _refuse({**others, "--vectors": external.vectors, "--list-sentences": external.list_sentences})
        _run_mteb(mteb.mteb, mteb.output, choice, runtime, data_dir, json=json)
        return
    data_dir = data_folder(data_dir)
    assumed = PAPER.tasks if choice.paper or data_dir is not None else BARE.tasks
    wanted = any_task_names(task or assumed or [str(name) for name in TEST_TASKS])
    if not task and assumed:
        note(
            "assumed: our own demo pairs, no benchmark; the papers' tasks: --data-dir FOLDER, or --task from the hub;"
            " their whole setting: --paper"
        )
    protocol_named(protocol)
    if save and not choice.model:
        raise UsageError("--save stores scores in a registry entry: name it by --model NAME")
    configure_libraries(runtime)
    if external.list_sentences:
        loaded = load_any(data_dir, wanted, protocol)
        report_missing(loaded)
        list_sentences(loaded.tasks, json=json)
        return
    registry = open_registry()
    candidates = [] if external.vectors and is_bare(choice) else find_candidates(registry, choice)
    baseline = None if compare is None else find_baseline(registry, compare, choice)
    if baseline is not None and baseline.label not in [candidate.label for candidate in candidates]:
        candidates.append(baseline)
    if save:
        check_savable(registry, candidates)
    loaded = load_any(data_dir, wanted, protocol)
    report_missing(loaded)
    tasks = loaded.tasks
    check_tasks([task for task in tasks if isinstance(task, TransferTask)], FULL)
    embedded = read_external(external.vectors or [], tasks, data_dir, protocol)
    encoders, candidates = open_candidates(candidates, runtime, bare=is_bare(choice))
    rows = _score(encoders, candidates, embedded, tasks)
    _say_zeros(_graded(rows))
    comparisons = _compare(_graded(rows), baseline)
    if save:
        _save(registry, candidates, _graded(rows))
    if json:
        result_json(_document(rows, comparisons, loaded.missing))
        return
    _print(rows, comparisons, wanted, loaded, subsets=subsets)


def _print(
    rows: "dict[Label, list[Score]]",
    comparisons: "Sequence[Comparison]",
    wanted: "Sequence[TaskName]",
    loaded: "Loaded[AnyTask]",
    *,
    subsets: bool,
) -> None:
    """Print the table of graded pairs as the papers have it, and the other figures one below the other."""
    from promptcli.cli.commands.score_table import print_tables, score_tables
    from promptcli.data.tasks import STSTask

    pairs = [task for task in loaded.tasks if isinstance(task, STSTask)]
    graded = [name for name in wanted if str(name) in {*loaded.missing, *(task.label for task in pairs)}]
    sts = _graded(rows)
    if sts:
        print_tables(score_tables(sts, comparisons, graded, pairs, subsets=subsets))
    rest = [one for scores in rows.values() for one in scores if one.task not in {task.name for task in pairs}]
    if rest:
        cells = [[one.label.model, one.label.recipe, one.task, one.metric, *_value(one)] for one in rest]
        result_table(("model", "recipe", "task", "metric", "value", ""), cells)


def _graded(rows: "dict[Label, list[Score]]") -> "dict[Label, list[SpearmanScore]]":
    """Return the scores on graded pairs, where there are some."""
    from promptcli.evaluation.scores import SpearmanScore

    found = {label: [one for one in scores if isinstance(one, SpearmanScore)] for label, scores in rows.items()}
    return {label: scores for label, scores in found.items() if scores}


def _save(registry: "Registry", candidates: "Sequence[Candidate]", rows: "dict[Label, list[SpearmanScore]]") -> None:
    for candidate in candidates:
        if candidate.saved_as is not None:
            registry.add_scores(candidate.saved_as, [score.to_dict() for score in rows[candidate.label]])


def _refuse(options: dict[str, Any]) -> None:
    if given := [name for name, value in options.items() if value]:
        raise UsageError(f"--mteb runs mteb's own tasks by its own rules, without {given[0]}; leave that out")


def _run_mteb(
    names: Sequence[str], output: Path, choice: EvalChoice, runtime: Runtime, data_dir: Path | None, *, json: bool
) -> None:
    from promptcli.data.tasks import any_task_names, load_any
    from promptcli.evaluation.evaluator import EvalSettings, evaluate

    configure_libraries(runtime)
    tasks = load_any(data_dir, any_task_names([f"mteb:{name}" for name in names])).tasks
    encoders, candidates = open_candidates(find_candidates(open_registry(), choice), runtime, bare=is_bare(choice))
    labels = [candidate.label for candidate in candidates]
    scores = evaluate(encoders, tasks, labels=labels, settings=EvalSettings(output=output))
    if json:
        result_json({"results": [score.to_dict() for score in scores]})
        return
    rows = [[score.label.recipe, score.task, score.metric, f"{score.value:.4f}"] for score in scores]
    result_table(("model", "task", "main score", "value"), rows)


def _score(
    encoders: "Sequence[Encoder]",
    candidates: "Sequence[Candidate]",
    embedded: "Sequence[Embedded]",
    tasks: "Sequence[AnyTask]",
) -> "dict[Label, list[Score]]":
    from promptcli.api.evaluating import score_models
    from promptcli.evaluation.evaluator import EvalSettings, score_vectors

    labels = [candidate.label for candidate in candidates]
    recipes = [candidate.entry.transfer for candidate in candidates]
    scores = score_models(encoders, labels, recipes, tasks, EvalSettings())
    rows = {one.label: score_vectors([one], tasks) for one in embedded}
    for number, label in enumerate(labels):
        rows[label] = scores[number * len(tasks) : (number + 1) * len(tasks)]
    return rows


def _value(score: "Score") -> list[str]:
    return [f"{score.value:.2f}", "" if score.ci95 is None else half_interval(score.ci95)]


def _say_zeros(rows: "dict[Label, list[SpearmanScore]]") -> None:
    for score in (score for scores in rows.values() for score in scores if score.zero_vectors):
        zeros = f"{score.zero_vectors:,} sentences of {score.column} have a zero vector, so their cosines are 0"
        note(f"{score.label.model} {score.label.recipe}: {zeros}")


def _compare(rows: "dict[Label, list[SpearmanScore]]", baseline: "Candidate | None") -> "list[Comparison]":
    from promptcli.evaluation.evaluator import compare

    if baseline is None:
        return []
    others = [scores for label, scores in rows.items() if label != baseline.label]
    if not others:
        raise UsageError(f"--compare: {baseline.label.recipe} is the only encoder; name another by --recipe or --model")
    return [compare(*pair) for scores in others for pair in zip(scores, rows[baseline.label], strict=True)]


def _document(
    rows: "dict[Label, list[Score]]", comparisons: "Sequence[Comparison]", missing: dict[str, str]
) -> dict[str, Any]:
    document: dict[str, Any] = {"results": [score.to_dict() for scores in rows.values() for score in scores]}
    if comparisons:
        document["comparisons"] = [comparison.to_dict() for comparison in comparisons]
    if missing:
        document["missing"] = missing
    return document
