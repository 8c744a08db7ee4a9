"""``promptcli pretrain``: a small BERT or Llama from plain text."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from promptcli.cli.console import note, result, result_json
from promptcli.cli.opening import configure_libraries
from promptcli.cli.options import FieldOptions, Json, Runtime, option_in, options_of
from promptcli.errors import UsageError
from promptcli.pretraining.plan import Plan

_run_option = option_in("Run")
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
    causal: Annotated[bool, typer.Option("--causal", hidden=True)] = False,
    half: Annotated[bool, typer.Option("--half", help="Save weights in float16.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the unfinished run in the folder.")] = False,
    save_minutes: Annotated[float, _run_option(min=0, max=_YEAR, help="Minutes between two saved states.")] = 5.0,
    json_output: Json = False,
    *,
    options: PlanOptions,
    runtime: Runtime,
) -> None:
    """Pre-train a small language model on plain text: a BERT, or with --objective causal a Llama.

    Its lower-casing WordPiece vocabulary is trained on the same text. With --from a model is adapted to the text.

    A killed run is resumed with --resume and ends at the same numbers. The folder is a backbone afterwards:
    `promptcli embed file.txt --backbone FOLDER`.
    """
    # nearly every step has a shape of its own, and the matrix library would keep memory for a thousand of them
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    configure_libraries(runtime)
    from promptcli.api.pretraining import pretrain as pretrain_model

    if causal:
        raise UsageError("--causal is now --objective causal")
    made = pretrain_model(
        files,
        output,
        unrelated=unrelated or (),
        minutes=minutes,
        held_out=held_out,
        start=begun_from or (),
        objective=objective,
        templates=templates,
        half=half,
        resume=resume,
        save_minutes=save_minutes,
        device=runtime.device,
        offline=runtime.offline,
        command=" ".join(["promptcli", *sys.argv[1:]]),
        **options.changes(),
    )
    note(f"model saved in {output}; try: promptcli eval --backbone {output}")
    if json_output:
        result_json(made.figures)
    else:
        for name, value in made.figures.items():
            result(f"{name}\t{json.dumps(value)}")
