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
from promptcli.recipe import RECIPES
from promptcli.settings import BARE, PAPER

if TYPE_CHECKING:
    from promptcli.data.task_table import TaskName
    from promptcli.data.tasks import AnyTask, Loaded, TransferTask
    from promptcli.encoder.encoder import Encoder
    from promptcli.evaluation.evaluator import Embedded, EvalSettings
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


_transfer_option = option_in("Transfer tasks and mteb")


@dataclass(frozen=True)
class SettingOptions:
    """What tasks leave open."""

    fast: Annotated[
        bool, _transfer_option("--fast", help="SentEval's 5-fold setting of transfer tasks: for development.")
    ] = False
    seed: Annotated[
        int | None,
        _transfer_option(
            min=0, help="Random seed of the classifiers (default: SentEval's 1111) and of masked tokens (default: 0)."
        ),
    ] = None
    output: Annotated[
        Path,
        _transfer_option(
            "--output",
            "-o",
            help="Where mteb's result files go: results/MODEL/REVISION/TASK.json in it.",
            metavar="FOLDER",
        ),
    ] = Path("mteb-results")


def evaluate_command(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="Models, folders, hub ids, named recipes or recipe files, as after --model and --recipe.",
        ),
    ] = None,
    *,
    choice: EvalChoice,
    external: ExternalVectors,
    setting: SettingOptions,
    runtime: Runtime,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="SentEval `downstream`-like folder (STS/, SICK/, MR/, ...). Without it named tasks come from the hub."
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="STS12 ... STS16, STS-B, STS-B:dev, SICK-R, or sts for all; demo, demo:dev; MR, CR, SUBJ, MPQA, SST-2,"
            " TREC, MRPC (a linear classifier's accuracy), or transfer for all; or a file of your own, CSV, TSV, JSONL"
            " or Parquet: FILE with columns sentence1, sentence2, score, or FILE:first,second,gold; retrieval:FILE with"
            " query, document, grade; perplexity:FILE of held-out lines; mteb:NAME. Repeatable."
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
    from promptcli.data.task_table import TEST_TASKS, protocol_named, task_row
    from promptcli.data.tasks import TransferTask, any_task_names, load_any
    from promptcli.evaluation.classifier import FAST, FULL
    from promptcli.evaluation.evaluator import EvalSettings, check_tasks

    data_dir = data_folder(data_dir)
    choice = choice.with_words(models or [])
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
    graded = any(task_row(name, protocol).metric == "spearman" for name in wanted)
    bare = list(RECIPES) if graded else _papers_recipe(choice)
    registry = open_registry()
    candidates = [] if external.vectors and is_bare(choice) else find_candidates(registry, choice, bare=bare)
    baseline = None if compare is None else find_baseline(registry, compare, choice)
    if baseline is not None and baseline.label not in [candidate.label for candidate in candidates]:
        candidates.append(baseline)
    if save:
        check_savable(registry, candidates)
    loaded = load_any(data_dir, wanted, protocol)
    report_missing(loaded)
    tasks = loaded.tasks
    settings = EvalSettings(FAST if setting.fast else FULL, setting.seed, output=setting.output)
    transfer = [task for task in tasks if isinstance(task, TransferTask)]
    _report_examples(transfer)
    check_tasks(transfer, settings.training)
    embedded = read_external(external.vectors or [], tasks, data_dir, protocol)
    encoders, candidates = open_candidates(candidates, runtime, bare=is_bare(choice))
    rows = _score(encoders, candidates, embedded, tasks, settings)
    _say_zeros(_graded(rows))
    comparisons = _compare(_graded(rows), baseline)
    if save:
        _save(registry, candidates, _graded(rows))
    if json:
        result_json(_document(rows, comparisons, loaded.missing, settings if transfer else None))
        return
    _print(rows, comparisons, wanted, loaded, settings, subsets=subsets)


def _papers_recipe(choice: EvalChoice) -> list[str]:
    return [PAPER.recipe] if choice.paper and PAPER.recipe else []


def _report_examples(tasks: "Sequence[TransferTask]") -> None:
    """Say what is not as in the printed data sets."""
    for item in tasks:
        for split, (found, printed) in item.unexpected_counts().items():
            note(f"{item.name}: {found:,} examples in {split}, not {printed:,}: not comparable with printed figures")
        blank = sum(not sentence for sentence in item.sentences())
        if blank:
            note(f"{item.name}: {blank} empty sentences are classified, too, as in SentEval")


def _print(
    rows: "dict[Label, list[Score]]",
    comparisons: "Sequence[Comparison]",
    wanted: "Sequence[TaskName]",
    loaded: "Loaded[AnyTask]",
    settings: "EvalSettings",
    *,
    subsets: bool,
) -> None:
    """Print the tables of graded pairs and of accuracies as the papers have them, other figures one below the other."""
    from promptcli.cli.commands.score_table import TableLine, accuracy_table, print_tables, score_tables
    from promptcli.data.task_table import TRANSFER_TASKS
    from promptcli.data.tasks import STSTask
    from promptcli.evaluation.scores import AccuracyScore, SpearmanScore, by_encoder

    pairs = [task for task in loaded.tasks if isinstance(task, STSTask)]
    missing = [name for name in wanted if str(name) in loaded.missing]
    sts = _graded(rows)
    tables = []
    if sts:
        labels = {*map(str, missing), *(task.label for task in pairs)}
        graded = [name for name in wanted if str(name) in labels and str(name) not in TRANSFER_TASKS]
        tables += score_tables(sts, comparisons, graded, pairs, subsets=subsets)
    every = [one for scores in rows.values() for one in scores]
    accuracies = [one for one in every if isinstance(one, AccuracyScore)]
    if accuracies:
        names = [str(name) for name in wanted if str(name) in TRANSFER_TASKS]
        tables.append([TableLine(_about_classifier(settings)), *accuracy_table(by_encoder(accuracies), names)])
    print_tables(tables)
    rest = [one for one in every if not isinstance(one, SpearmanScore | AccuracyScore)]
    if rest:
        cells = [[one.label.model, one.label.recipe, one.task, one.metric, *_value(one)] for one in rest]
        result_table(("model", "recipe", "task", "metric", "value", ""), cells)


def _about_classifier(settings: "EvalSettings") -> str:
    training, seed = settings.training, _classifier_seed(settings)
    return f"SentEval's linear classifier, {training.folds} folds, {training.optimizer}, seed {seed}; accuracy x 100"


def _classifier_seed(settings: "EvalSettings") -> int:
    from promptcli.evaluation.classifier import SEED

    return SEED if settings.seed is None else settings.seed


def _graded(rows: "dict[Label, list[Score]]") -> "dict[Label, list[SpearmanScore]]":
    """Return the scores on graded pairs, where there are some."""
    from promptcli.evaluation.scores import SpearmanScore

    found = {label: [one for one in scores if isinstance(one, SpearmanScore)] for label, scores in rows.items()}
    return {label: scores for label, scores in found.items() if scores}


def _save(registry: "Registry", candidates: "Sequence[Candidate]", rows: "dict[Label, list[SpearmanScore]]") -> None:
    for candidate in candidates:
        if candidate.saved_as is not None:
            registry.add_scores(candidate.saved_as, [score.to_dict() for score in rows[candidate.label]])


def _score(
    encoders: "Sequence[Encoder]",
    candidates: "Sequence[Candidate]",
    embedded: "Sequence[Embedded]",
    tasks: "Sequence[AnyTask]",
    settings: "EvalSettings",
) -> "dict[Label, list[Score]]":
    from promptcli.api.evaluating import score_models
    from promptcli.evaluation.evaluator import score_vectors

    labels = [candidate.label for candidate in candidates]
    recipes = [candidate.entry.transfer for candidate in candidates]
    scores = score_models(encoders, labels, recipes, tasks, settings)
    rows = {one.label: score_vectors([one], tasks, settings) for one in embedded}
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
    rows: "dict[Label, list[Score]]",
    comparisons: "Sequence[Comparison]",
    missing: dict[str, str],
    classifiers: "EvalSettings | None",
) -> dict[str, Any]:
    document: dict[str, Any] = {"results": [score.to_dict() for scores in rows.values() for score in scores]}
    if comparisons:
        document["comparisons"] = [comparison.to_dict() for comparison in comparisons]
    if classifiers is not None:
        training = classifiers.training
        about = {"folds": training.folds, "optimizer": training.optimizer, "seed": _classifier_seed(classifiers)}
        document["setting"] = about
    if missing:
        document["missing"] = missing
    return document
