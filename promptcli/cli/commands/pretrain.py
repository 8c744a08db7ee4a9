"""``promptcli pretrain``: a small BERT or Llama from plain text."""

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli.console import note, progress, result, result_json
from promptcli.cli.opening import configure_libraries
from promptcli.cli.options import FieldOptions, Json, Runtime, option_in, options_of
from promptcli.errors import UsageError, unknown
from promptcli.pretraining.plan import Plan

if TYPE_CHECKING:
    from torch import Tensor

    from promptcli.pretraining.begun import BegunModel
    from promptcli.pretraining.corpus import Corpus, CorpusFile
    from promptcli.pretraining.loop import Report, Trainer
    from promptcli.storage.runs import Position, RunFolder

_run_option = option_in("Run")
_MUCH_UNKNOWN = 0.05  # of the tokens; a vocabulary of the same text leaves less
_YEAR = 365 * 24 * 60  #: minutes


@options_of(Plan, panel="Run", flags={"tied": "--tied/--untie"}, defaults=True)
class PlanOptions(FieldOptions):
    """The fields of a pre-training plan."""


def pretrain(
    files: Annotated[list[Path], typer.Argument(help="Plain text, one sentence or paragraph a line.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the model.")],
    unrelated: Annotated[
        list[Path] | None,
        typer.Option(help="A further file, whose lines have nothing to do with one another. Repeatable."),
    ] = None,
    minutes: Annotated[
        float | None,
        _run_option(min=0.1, max=_YEAR, help="Time budget in place of --tokens: turned into tokens first."),
    ] = None,
    held_out: Annotated[
        Path | None, typer.Option(help="Text never trained on: its figures go on the model's card.")
    ] = None,
    begun_from: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="<str>",
            help="Go on from a BERT that this command made (`mini-bert`, a folder): its vocabulary, shape and weights."
            " Repeatable: from the mean of their weights.",
        ),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            metavar="<str>",
            help="masked: a BERT that predicts hidden tokens; bag-of-words: and the words of sentences at the masks of"
            " templates; causal: a Llama that predicts the next token.",
        ),
    ] = "masked",
    templates: Annotated[
        Path | None,
        typer.Option(help="For bag-of-words: templates, one a line, with [X] and [MASK]. Default: 49 of our own."),
    ] = None,
    causal: Annotated[bool, typer.Option("--causal", hidden=True)] = False,
    half: Annotated[bool, typer.Option("--half", help="Save weights in float16.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished run in the folder.")] = False,
    save_minutes: Annotated[float, _run_option(min=0, max=_YEAR, help="Minutes between two saved states.")] = 5.0,
    json_output: Json = False,
    *,
    options: PlanOptions,
    runtime: Runtime,
) -> None:
    """Pre-train a small language model on plain text: a BERT, or with --objective causal a Llama.

    Its lower-casing WordPiece vocabulary is trained on the same text. With --from a model is adapted to the text.

    A killed run goes on with --resume and ends at the same numbers. The folder is a backbone afterwards:
    `promptcli embed file.txt --backbone FOLDER`.
    """
    # nearly every step has a shape of its own, and the matrix library would keep memory for a thousand of them
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    configure_libraries(runtime)
    from promptcli.backbones.devices import choose_device
    from promptcli.pretraining.begun import BegunModel
    from promptcli.pretraining.corpus import CorpusFile
    from promptcli.pretraining.folder import finish, open_run
    from promptcli.pretraining.loop import Trainer
    from promptcli.pretraining.precision import choose_precision, keep_freed_memory

    corpus_files = [CorpusFile(path) for path in files] + [CorpusFile(path, unrelated=True) for path in unrelated or []]
    if causal:
        raise UsageError("--causal is now --objective causal")
    if objective == "causal" and begun_from:
        raise UsageError("--from goes on from a BERT, so it does not go with --objective causal; leave one out")
    begun = BegunModel.open(begun_from, offline=runtime.offline, announce=note) if begun_from else None
    wanted = _wanted(options, objective, templates, minutes, corpus_files, begun)
    device = choose_device(runtime.device)
    run_folder, plan = open_run(output, wanted, resume=resume)
    work = run_folder.folder
    keep_freed_memory()
    corpus, start = _prepared(work, plan, corpus_files, templates, begun)
    dtype, remark = choose_precision(device, output / "log.jsonl")
    if remark:
        note(remark)
    if not plan.tokens:
        plan = _with_budget(run_folder, plan, corpus, start, minutes or 0, dtype, device)
    trainer = Trainer(plan, device, start, dtype)
    if begun:
        begun.load(trainer.model.parameters)
    position = _trained(trainer, corpus, output, work, save_minutes)
    command = " ".join(["promptcli", *sys.argv[1:]])
    with progress("held-out text", None) as advance:
        figures = finish(
            trainer, position, output, corpus_files, command=command, half=half, held_out=held_out, progress=advance
        )
    note(f"model saved in {output}; try: promptcli eval --backbone {output}")
    if json_output:
        result_json(figures)
    else:
        for name, value in figures.items():
            result(f"{name}\t{json.dumps(value)}")


def _wanted(
    options: PlanOptions,
    objective: str,
    templates: Path | None,
    minutes: float | None,
    files: "list[CorpusFile]",
    begun: "BegunModel | None",
) -> Plan:
    """Return the plan that is asked for; no tokens where the budget is given in minutes.

    Raises:
        UsageError: No budget or two, or a file that is no text.
        NotFoundError: A file is not there.
    """
    from promptcli.pretraining.corpus import CorpusFile
    from promptcli.pretraining.objectives import OBJECTIVES
    from promptcli.pretraining.prepare import templates_file
    from promptcli.storage.files import sha256

    if objective not in OBJECTIVES:
        raise unknown("--objective", objective, OBJECTIVES)
    stood_in = templates_file(objective, templates)
    plan = Plan(objective=objective, **options.changes())
    if (not plan.tokens) == (minutes is None):
        raise UsageError("give the budget of the run: --tokens N or --minutes M")
    for file in [*files, *([CorpusFile(stood_in)] if stood_in else [])]:
        next(file.lines(), None)  # a wrong file is said before anything is read through
    hashes = tuple(sha256(file.path) + (" unrelated" if file.unrelated else "") for file in files)
    plan = dataclasses.replace(plan, files=hashes, templates=sha256(stood_in) if stood_in else "")
    return begun.plan(plan) if begun else plan


def _prepared(
    work: Path, plan: Plan, files: "list[CorpusFile]", templates: Path | None, begun: "BegunModel | None"
) -> "tuple[Corpus, Tensor | None]":
    """Return the tokenised corpus and the start vectors, made where they are not there yet."""
    from promptcli.pretraining.batches import LONGEST_LINE
    from promptcli.pretraining.prepare import make_corpus, make_start, make_vocabulary

    if begun:
        begun.copy_vocabulary(work)
    with progress("vocabulary", None) as advance:
        vocabulary = make_vocabulary(work, files, plan.vocab_size, advance)
    with progress("tokenise", None) as advance:
        corpus = make_corpus(work, files, vocabulary, plan, templates, advance)
    note(f"corpus: {len(corpus.tokens):,} tokens in {len(corpus.ends):,} lines")
    if corpus.unknown > _MUCH_UNKNOWN:
        note(f"{corpus.unknown:.0%} of the tokens are [UNK]: the vocabulary is of other text or another script")
    if short := len(corpus.ends) - len(corpus.lines(LONGEST_LINE)):
        note(f"{short:,} lines have fewer than 4 tokens" + (" and stand in no template" if plan.templates else ""))
    with progress("start vectors", None):
        return corpus, make_start(work, corpus, plan)


def _with_budget(
    folder: "RunFolder", plan: Plan, corpus: "Corpus", start: "Tensor | None", minutes: float, dtype: Any, device: str
) -> Plan:
    """Return the plan with the tokens that so many minutes allow, and keep it."""
    from promptcli.pretraining.loop import tokens_in

    with progress("measure speed", None):
        budget = tokens_in(plan, corpus, start, minutes=minutes, device=device, dtype=dtype)
    plan = dataclasses.replace(plan, tokens=budget)
    folder.keep(plan.to_dict())
    note(f"{minutes:g} minutes: {budget:,} tokens")
    return plan


def _trained(trainer: "Trainer", corpus: "Corpus", output: Path, work: Path, save_minutes: float) -> "Position":
    """Run to the end of the budget, telling how it goes; return how far it came."""
    from promptcli.pretraining.loop import run

    with progress("pretrain", trainer.plan.tokens) as advance:
        done = 0

        def report(made: "Report") -> None:
            nonlocal done
            advance(made.seen - done)
            done = made.seen
            advance.describe(f"loss {made.loss:.3f}  accuracy {100 * made.accuracy:.1f}%  {made.gflops:.0f} GFLOP/s")

        return run(
            trainer,
            corpus,
            state=work / "state.safetensors",
            log=output / "log.jsonl",
            save_seconds=60 * save_minutes,
            report=report,
        )
