"""``promptcli pretrain``: a small BERT or Llama from plain text."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from promptcli.cli.console import note, result, result_json
from promptcli.cli.options import FieldOptions, Json, Runtime, Section, option_in, options_of, set_help
from promptcli.pretraining.plan import Plan

_run_option = option_in("Run")
_YEAR = 365 * 24 * 60  #: minutes
#: Settings that have options of their own.
_OWN = ("layers", "width", "heads", "positions", "vocab_size", "tokens", "batch_tokens", "learning_rate", "seed")


@options_of(Plan, panel="Run", defaults=True, only=_OWN)
class PlanOptions(FieldOptions):
    """The fields of a pre-training plan."""


def help_text(_: Sequence[str]) -> Section:
    """Return the settings, for the end of the help page."""
    return set_help(Plan(), "Settings by --set", leave_out=_OWN)


def pretrain(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILES...", help="Plain text, one sentence or paragraph a line.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the model.")],
    unrelated: Annotated[
        list[Path] | None,
        typer.Option(help="A further file, whose lines have nothing to do with one another; repeatable."),
    ] = None,
    held_out: Annotated[
        Path | None, typer.Option(help="Text never trained on: its figures go on the model's card.")
    ] = None,
    start: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="MODEL",
            help="Start from a BERT that this command made (`mini-bert`, a folder): its vocabulary, shape and weights."
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
    half: Annotated[bool, typer.Option("--half", help="Save weights in float16.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the unfinished run in the folder.")] = False,
    minutes: Annotated[
        float | None, _run_option(min=0.1, max=_YEAR, help="Time budget in place of --tokens, turned into tokens.")
    ] = None,
    save_minutes: Annotated[float, _run_option(min=0, max=_YEAR, help="Minutes between two saved states.")] = 5.0,
    as_json: Json = False,
    *,
    options: PlanOptions,
    runtime: Runtime,
) -> None:
    """Pre-train a small language model on plain text: a BERT, or with --objective causal a Llama.

    Its lower-casing WordPiece vocabulary is trained on the same text. With --from a model is adapted to the text.

    --resume continues a killed run, which ends at the same numbers. The folder is a backbone afterwards:
    `promptcli embed file.txt --backbone FOLDER`.
    """
    # nearly every step has a shape of its own, and the matrix library would keep memory for a thousand of them
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    from promptcli.pretraining import pretrain as pretraining

    made = pretraining.pretrain(
        files,
        output,
        unrelated=unrelated or (),
        minutes=minutes,
        start=start or (),
        objective=objective,
        templates=templates,
        held_out=held_out,
        half=half,
        resume=resume,
        save_minutes=save_minutes,
        device=runtime.device,
        command=" ".join(["promptcli", *(word for word in sys.argv[1:] if word != "--resume")]),
        **options.changes(),
    )
    note(f"model saved in {output}; try: promptcli eval --backbone {output}")
    if as_json:
        result_json(made.figures)
    for name, value in made.figures.items() if not as_json else ():
        result(f"{name}\t{json.dumps(value)}")
