"""Pre-train a small language model on plain text, or adapt one to it."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from promptcli.backbones.devices import choose_device
from promptcli.errors import UsageError, unknown
from promptcli.evaluation.evaluator import kept_random_states
from promptcli.notes import describe, note, obeys_offline, working
from promptcli.pretraining.batches import LONGEST_LINE
from promptcli.pretraining.begun import BegunModel
from promptcli.pretraining.corpus import Corpus, CorpusFile
from promptcli.pretraining.folder import finish, open_run
from promptcli.pretraining.loop import (
    OBJECTIVES,
    Report,
    Trainer,
    choose_precision,
    keep_freed_memory,
    run,
    tokens_in,
)
from promptcli.pretraining.plan import Plan
from promptcli.pretraining.prepare import make_corpus, make_start, make_vocabulary, templates_file
from promptcli.storage.files import sha256
from promptcli.storage.runs import Position, RunFolder

_MUCH_UNKNOWN = 0.05  # of the tokens; a vocabulary of the same text leaves less


@dataclass(frozen=True)
class Pretrained:
    """A pre-trained model."""

    folder: Path  #: a backbone, with its card, log and picture of the loss
    figures: dict[str, object]  #: parameters, steps, tokens, speed, and those of held-out text; JSON-ready


@kept_random_states()
@obeys_offline
def pretrain(
    files: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    unrelated: Sequence[str | Path] = (),
    minutes: float | None = None,
    held_out: str | Path | None = None,
    start: str | Sequence[str] = (),
    objective: str = "masked",
    templates: str | Path | None = None,
    half: bool = False,
    resume: bool = False,
    save_minutes: float = 5.0,
    device: str = "auto",
    offline: bool = False,
    command: str = "pc.pretrain(...)",
    **settings: str | int | float | bool,
) -> Pretrained:
    """Pre-train a small language model on plain text: a BERT, or with ``objective="causal"`` a Llama.

    Its lower-casing WordPiece vocabulary is trained on the same text; with ``start`` a model is adapted to the text.
    Global random numbers stay as they are.

    Args:
        files: Plain text, one sentence or paragraph a line.
        output: Folder of the model.
        unrelated: Further files, whose lines have nothing to do with one another.
        minutes: Time budget in place of ``tokens``: turned into tokens first.
        held_out: Text never trained on: its figures go on the model's card.
        start: A BERT that ``pretrain`` made (``mini-bert``, a folder): its vocabulary, shape and weights; of several
            the mean of their weights.
        objective: ``masked``: a BERT that predicts hidden tokens; ``bag-of-words``: and the words of sentences at the
            masks of templates; ``causal``: a Llama that predicts the next token.
        templates: For bag-of-words: templates, one a line, with [X] and [MASK].
        half: Save weights in float16.
        resume: Resume the unfinished run in the folder; it ends at the numbers of one that was never killed.
        save_minutes: Between two saved states.
        device: ``auto``, ``cpu``, ``cuda``, ...
        offline: Never use the network.
        command: What was typed, for the card.
        settings: Fields of ``pretraining.plan.Plan``: ``tokens=10**7``, ``layers=4``, ``width=256``, ...

    Raises:
        UsageError: Settings that do not go together, a file that is no text, or a folder that holds something else.
        NotFoundError: A file or a model that is not there.
        PromptcliError: The loss is not a number.

    Example:
        >>> import promptcli as pc
        >>> pc.pretrain("sentences.txt", "my-bert", tokens=10**7).figures["parameters"]  # doctest: +SKIP
    """
    listed = [files] if isinstance(files, str | Path) else files
    corpus_files = [CorpusFile(Path(path)) for path in listed]
    corpus_files += [CorpusFile(Path(path), unrelated=True) for path in unrelated]
    names = [start] if isinstance(start, str) else list(start)
    if objective == "causal" and names:
        raise UsageError("`start` starts from a BERT, so it does not go with `objective` causal; leave one out")
    begun = BegunModel.open(names) if names else None
    template_lines = None if templates is None else Path(templates)
    wanted = _wanted(settings, objective, template_lines, minutes, corpus_files, begun)
    if held_out is not None:
        next(CorpusFile(Path(held_out)).lines(), None)  # a wrong file is said before the work
    folder, device = Path(output), choose_device(device)
    run_folder, plan = open_run(folder, wanted, resume=resume)
    keep_freed_memory()
    corpus, vectors = _prepared(run_folder.folder, plan, corpus_files, template_lines, begun)
    dtype, remark = choose_precision(device, folder / "log.jsonl")
    if remark:
        note(remark)
    if not plan.tokens:
        plan = _with_budget(run_folder, plan, corpus, vectors, minutes or 0, dtype, device)
    trainer = Trainer(plan, device, vectors, dtype)
    if begun:
        begun.load(trainer.model.parameters)
    position = _trained(trainer, corpus, folder, run_folder.folder, save_minutes)
    figures = finish(
        trainer,
        position,
        folder,
        corpus_files,
        command=command,
        half=half,
        held_out=None if held_out is None else Path(held_out),
    )
    return Pretrained(folder, figures)


def _wanted(
    settings: dict[str, str | int | float | bool],
    objective: str,
    templates: Path | None,
    minutes: float | None,
    files: Sequence[CorpusFile],
    begun: BegunModel | None,
) -> Plan:
    """Return the plan that is asked for; no tokens where the budget is given in minutes.

    Raises:
        UsageError: An unknown setting, no budget or two, or a file that is no text.
        NotFoundError: A file is not there.
    """
    if objective not in OBJECTIVES:
        raise unknown("objective", objective, OBJECTIVES)
    known = [item.name for item in dataclasses.fields(Plan) if "help" in item.metadata]
    for name in settings:
        if name not in known:
            raise unknown("setting", name, known)
    stood_in = templates_file(objective, templates)
    plan = Plan(objective=objective, **settings)  # type: ignore[arg-type]
    if (not plan.tokens) == (minutes is None):
        raise UsageError("give the budget of the run: `tokens` N or `minutes` M")
    for file in [*files, *([CorpusFile(stood_in)] if stood_in else [])]:
        next(file.lines(), None)  # a wrong file is said before anything is read through
    hashes = tuple(sha256(file.path) + (" unrelated" if file.unrelated else "") for file in files)
    plan = dataclasses.replace(plan, files=hashes, templates=sha256(stood_in) if stood_in else "")
    return begun.plan(plan) if begun else plan


def _prepared(
    work: Path, plan: Plan, files: Sequence[CorpusFile], templates: Path | None, begun: BegunModel | None
) -> tuple[Corpus, Tensor | None]:
    """Return the tokenised corpus and the start vectors, made where they are not there yet."""
    if begun:
        begun.copy_vocabulary(work)
    with working("vocabulary", None) as advance:
        vocabulary = make_vocabulary(work, files, plan.vocab_size, advance)
    with working("tokenise", None) as advance:
        corpus = make_corpus(work, files, vocabulary, plan, templates, advance)
    note(f"corpus: {len(corpus.tokens):,} tokens in {len(corpus.ends):,} lines")
    if corpus.unknown > _MUCH_UNKNOWN:
        note(f"{corpus.unknown:.0%} of the tokens are [UNK]: the vocabulary is of other text or another script")
    if short := len(corpus.ends) - len(corpus.lines(LONGEST_LINE)):
        note(f"{short:,} lines have fewer than 4 tokens" + (" and stand in no template" if plan.templates else ""))
    with working("start vectors", None):
        return corpus, make_start(work, corpus, plan)


def _with_budget(
    folder: RunFolder,
    plan: Plan,
    corpus: Corpus,
    start: Tensor | None,
    minutes: float,
    dtype: torch.dtype,
    device: str,
) -> Plan:
    """Return the plan with the tokens that so many minutes allow, and keep it."""
    with working("measure speed", None):
        budget = tokens_in(plan, corpus, start, minutes=minutes, device=device, dtype=dtype)
    plan = dataclasses.replace(plan, tokens=budget)
    folder.keep(plan.to_dict())
    note(f"{minutes:g} minutes: {budget:,} tokens")
    return plan


def _trained(trainer: Trainer, corpus: Corpus, output: Path, work: Path, save_minutes: float) -> Position:
    """Run to the end of the budget, telling how it goes; return how far it came."""
    with working("pretrain", trainer.plan.tokens) as advance:
        done = 0

        def report(made: Report) -> None:
            nonlocal done
            advance(made.seen - done)
            done = made.seen
            about = f"loss {made.loss:.3f}  accuracy {100 * made.accuracy:.1f}%  {made.gflops:.0f} GFLOP/s"
            describe(advance, about)

        return run(
            trainer,
            corpus,
            state=work / "state.safetensors",
            log=output / "log.jsonl",
            save_seconds=60 * save_minutes,
            report=report,
        )
