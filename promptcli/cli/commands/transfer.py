"""`promptcli transfer`: what a linear classifier makes of frozen vectors on SentEval's seven transfer tasks."""

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli.commands.eval_choice import EvalChoice, find_candidates, recipes_option, report_missing
from promptcli.cli.console import note, progress, result_json
from promptcli.cli.opening import configure_libraries, data_folder, open_entries, open_registry
from promptcli.cli.options import Json, Runtime
from promptcli.settings import PAPER

if TYPE_CHECKING:
    from promptcli.cli.commands.eval_choice import Candidate
    from promptcli.data.tasks import TransferTask
    from promptcli.encoder.encoder import Encoder
    from promptcli.evaluation.classifier import ClassifierTraining
    from promptcli.evaluation.scores import AccuracyScore, Label
    from promptcli.registry.entries import Entry


@dataclass(frozen=True)
class TransferChoice(EvalChoice):
    """Which encoders, as for ``eval``; nothing named means the default one."""

    recipe: Annotated[list[str] | None, recipes_option("the default model")] = None


def transfer(
    choice: TransferChoice,
    runtime: Runtime,
    data_dir: Annotated[
        Path | None, typer.Option(help="SentEval `downstream` folder (MR/, CR/, SUBJ/, MPQA/, SST/, TREC/, MRPC/).")
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(help="MR, CR, SUBJ, MPQA, SST-2, TREC, MRPC; repeatable. Default: all that are there."),
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="SentEval's 5-fold setting: for development, not for print.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Random seed. SentEval's is 1111.")] = 1111,
    json: Json = False,
) -> None:
    """Accuracy x 100 of SentEval's linear classifier on frozen vectors: MR, CR, SUBJ, MPQA, SST-2, TREC, MRPC."""
    configure_libraries(runtime)
    from promptcli.cli.commands.score_table import TableLine, accuracy_table, print_tables
    from promptcli.data.tasks import load_transfer, task_names
    from promptcli.evaluation.classifier import FAST, FULL
    from promptcli.evaluation.evaluator import check_tasks
    from promptcli.evaluation.scores import by_encoder, recipe_name

    wanted = [str(name) for name in task_names(task or [], metric="accuracy")]
    training = FAST if fast else FULL
    loaded = load_transfer(data_folder(data_dir), wanted)
    report_missing(loaded)
    _report_examples(loaded.tasks)
    check_tasks(loaded.tasks, training)
    candidates = find_candidates(open_registry(), choice, bare=[PAPER.recipe] if choice.paper and PAPER.recipe else [])
    entries = [_for_transfer(candidate) for candidate in candidates]
    encoders = open_entries(entries, runtime)
    labels = [
        dataclasses.replace(candidate.label, recipe=recipe_name(entry.recipe))
        for candidate, entry in zip(candidates, entries, strict=True)
    ]
    scores = _score(encoders, labels, loaded.tasks, training, seed)
    if json:
        setting = {"folds": training.folds, "optimizer": training.optimizer, "seed": seed}
        document: dict[str, Any] = {"results": [score.to_dict() for score in scores], "setting": setting}
        result_json({**document, "missing": loaded.missing} if loaded.missing else document)
        return
    title = f"SentEval's linear classifier, {training.folds} folds, {training.optimizer}, seed {seed}; accuracy x 100"
    print_tables([[TableLine(title), *accuracy_table(by_encoder(scores), wanted)]])


def _report_examples(tasks: "list[TransferTask]") -> None:
    for item in tasks:
        for split, (found, printed) in item.unexpected_counts().items():
            note(f"{item.name}: {found:,} examples in {split}, not {printed:,}: not comparable with printed figures")
        blank = sum(not sentence for sentence in item.sentences())
        if blank:
            note(f"{item.name}: {blank} empty sentences are classified, too, as in SentEval")


def _for_transfer(candidate: "Candidate") -> "Entry":
    """Return the entry with the recipe that it holds for transfer tasks, if it does."""
    entry = candidate.entry
    if entry.transfer is None:
        return entry
    note(f"{candidate.label.model}: vectors before head and denoising, as its method says")
    return dataclasses.replace(entry, recipe=entry.transfer)


def _score(
    encoders: "list[Encoder]",
    labels: "list[Label]",
    tasks: "list[TransferTask]",
    training: "ClassifierTraining",
    seed: int,
) -> "list[AccuracyScore]":
    from promptcli.evaluation.evaluator import EvalSettings, distinct_sentences, embed_tasks, score_vectors
    from promptcli.evaluation.scores import by_encoder

    count = len(distinct_sentences(tasks))
    with progress("encode", count) as advance:
        start = time.perf_counter()
        embedded = embed_tasks(encoders, tasks, labels=labels, progress=advance)
    note(f"{count:,} distinct sentences encoded in {time.perf_counter() - start:.1f} s")
    with progress("classify", len(tasks) * len(encoders)) as advance:
        scores = score_vectors(embedded, tasks, EvalSettings(training=training, seed=seed, progress=advance))
    for label, group in by_encoder(scores).items():
        seconds = ", ".join(f"{score.task} {score.seconds:.1f} s" for score in group)
        note(f"{label.model}, {label.recipe}: {seconds}")
    return scores
