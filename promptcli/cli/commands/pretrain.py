"""``promptcli pretrain``: a small masked-LM BERT from plain text; ``promptcli perplexity``: how well it predicts."""

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from promptcli.cli.console import note, progress, result, result_json
from promptcli.cli.opening import configure_libraries, default_backbone, open_backbone
from promptcli.cli.options import Runtime
from promptcli.errors import UsageError

_SHAPE, _RUN = "Model", "Run"


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """The fields of a pre-training plan."""

    layers: Annotated[int, typer.Option(min=1, help="Layers.", rich_help_panel=_SHAPE)] = 4
    width: Annotated[int, typer.Option(min=8, help="Width of the hidden states.", rich_help_panel=_SHAPE)] = 256
    heads: Annotated[
        int | None, typer.Option(min=1, help="Attention heads. Default: 32 wide each.", rich_help_panel=_SHAPE)
    ] = None
    positions: Annotated[int, typer.Option(help="Longest input in tokens.", rich_help_panel=_SHAPE)] = 512
    vocab_size: Annotated[int, typer.Option(min=100, help="WordPiece items.", rich_help_panel=_SHAPE)] = 16384
    untie: Annotated[
        bool,
        typer.Option("--untie", help="Output embeddings of their own, started as equals.", rich_help_panel=_SHAPE),
    ] = False
    batch_tokens: Annotated[
        int, typer.Option(help="Tokens a step, padding included. On a GPU: 65536.", rich_help_panel=_RUN)
    ] = 4096
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.", rich_help_panel=_RUN)] = 1e-3
    masking: Annotated[float, typer.Option(help="Share of tokens to predict.", rich_help_panel=_RUN)] = 0.2
    last_phase: Annotated[
        float,
        typer.Option(help="Share of the budget with dropout and long chunks, at the end.", rich_help_panel=_RUN),
    ] = 0.3
    dropout: Annotated[float, typer.Option(help="Dropout of the last phase.", rich_help_panel=_RUN)] = 0.1
    svd_start: Annotated[
        bool, typer.Option(help="Start token embeddings from a PPMI-SVD of the corpus.", rich_help_panel=_RUN)
    ] = True
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.", rich_help_panel=_RUN)] = 0


def pretrain(
    files: Annotated[list[Path], typer.Argument(help="Plain text, one sentence or paragraph a line.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the model.")],
    unrelated: Annotated[
        list[Path] | None,
        typer.Option(help="A further file, whose lines have nothing to do with one another. Repeatable."),
    ] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="Token budget.", rich_help_panel=_RUN)] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.1, help="Time budget; turned into tokens before the run.", rich_help_panel=_RUN),
    ] = None,
    held_out: Annotated[
        Path | None, typer.Option(help="Text never trained on: its figures go on the model's card.")
    ] = None,
    half: Annotated[bool, typer.Option("--half", help="Save weights in float16.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished run in the folder.")] = False,
    save_minutes: Annotated[float, typer.Option(help="Minutes between two saved states.", rich_help_panel=_RUN)] = 5.0,
    json_output: Annotated[bool, typer.Option("--json", help="Figures as JSON.")] = False,
    *,
    options: PlanOptions,
    runtime: Runtime,
) -> None:
    """Pre-train a small BERT by masked-language modelling, with a WordPiece vocabulary of its own.

    A killed run goes on with --resume and ends at the same numbers. The folder is a backbone afterwards:
    `promptcli embed file.txt --backbone FOLDER`.
    """
    # nearly every step has a shape of its own, and the matrix library would keep memory for a thousand of them
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    configure_libraries(runtime)
    from promptcli.backbones.devices import choose_device
    from promptcli.pretraining.corpus import CorpusFile
    from promptcli.pretraining.folder import finish, open_run
    from promptcli.pretraining.loop import Report, Trainer, run, tokens_in
    from promptcli.pretraining.plan import Plan
    from promptcli.pretraining.prepare import keep_plan, make_corpus, make_start, make_vocabulary
    from promptcli.storage.files import sha256

    if (tokens is None) == (minutes is None):
        raise UsageError("give the budget of the run: --tokens N or --minutes M")
    corpus_files = [CorpusFile(path) for path in files] + [CorpusFile(path, unrelated=True) for path in unrelated or []]
    fields: dict[str, Any] = dataclasses.asdict(options)
    fields["tied"] = not fields.pop("untie")
    fields["heads"] = options.heads or max(1, options.width // 32)
    for file in corpus_files:
        next(file.lines(), None)  # a wrong file is said before anything is read through
    hashes = tuple(sha256(file.path) + (" unrelated" if file.unrelated else "") for file in corpus_files)
    device = choose_device(runtime.device)
    work, plan = open_run(output, Plan(**fields, tokens=tokens or 0, files=hashes), resume=resume)

    def stage(label: str) -> Any:
        return progress(label, None, quiet=runtime.quiet)

    with stage("vocabulary") as advance:
        vocabulary = make_vocabulary(work, corpus_files, plan.vocab_size, advance)
    with stage("tokenise") as advance:
        corpus = make_corpus(work, corpus_files, vocabulary, advance)
    note(f"corpus: {len(corpus.tokens):,} tokens in {len(corpus.ends):,} lines", quiet=runtime.quiet)
    with stage("start vectors"):
        start = make_start(work, corpus, plan)
    if not plan.tokens:
        with stage("measure speed"):
            budget = tokens_in(plan, corpus, start, minutes=minutes or 0, device=device)
        plan = dataclasses.replace(plan, tokens=budget)
        keep_plan(work, plan)
        note(f"{minutes:g} minutes: {budget:,} tokens", quiet=runtime.quiet)
    trainer = Trainer(plan, device, start)
    with progress("pretrain", plan.tokens, quiet=runtime.quiet) as advance:
        done = 0

        def report(made: Report) -> None:
            nonlocal done
            advance(made.seen - done)
            done = made.seen
            advance.describe(f"loss {made.loss:.3f}  accuracy {100 * made.accuracy:.1f}%  {made.gflops:.0f} GFLOP/s")

        position = run(
            trainer,
            corpus,
            state=work / "state.safetensors",
            log=output / "log.jsonl",
            save_seconds=60 * save_minutes,
            report=report,
        )
    command = " ".join(["promptcli", *sys.argv[1:]])
    with stage("held-out text") as advance:
        figures = finish(
            trainer, position, output, corpus_files, command=command, half=half, held_out=held_out, progress=advance
        )
    note(f"model saved in {output}; try: promptcli eval --backbone {output}", quiet=runtime.quiet)
    if json_output:
        result_json(figures)
    else:
        for name, value in figures.items():
            result(f"{name}\t{json.dumps(value)}")


def perplexity(
    file: Annotated[Path, typer.Argument(help="Held-out text, one sentence a line.")],
    backbone: Annotated[
        str | None, typer.Option(help="A local folder or a hub id. Default: mini (shipped).", show_default=False)
    ] = None,
    share: Annotated[float, typer.Option(min=0.01, max=0.99, help="Share of the tokens masked.")] = 0.15,
    seed: Annotated[int, typer.Option(min=0, help="Of the choice of tokens.")] = 0,
    json_output: Annotated[bool, typer.Option("--json", help="Figures as JSON.")] = False,
    *,
    runtime: Runtime,
) -> None:
    """How well a backbone predicts masked tokens of held-out text: top-1 accuracy and perplexity."""
    configure_libraries(runtime)
    from promptcli.evaluation.perplexity import masked_accuracy
    from promptcli.pretraining.corpus import CorpusFile

    sentences = list(CorpusFile(file).lines())
    backbone = backbone or default_backbone(paper=False)
    loaded = open_backbone(backbone, runtime)
    with progress("perplexity", len(sentences), quiet=runtime.quiet) as advance:
        found = masked_accuracy(loaded, sentences, share=share, seed=seed, progress=advance)
    about = {"backbone": backbone, "file": str(file), "share": share, "seed": seed}
    if json_output:
        result_json({**about, **dataclasses.asdict(found)})
    else:
        result(f"accuracy\t{found.accuracy:.2f}")
        result(f"perplexity\t{found.perplexity:.2f}")
        note(f"{found.masked:,} masked tokens in {found.sentences:,} sentences", quiet=runtime.quiet)
