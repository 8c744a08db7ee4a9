"""``promptcli pretrain``: pre-trains a small BERT on plain text."""

import dataclasses
import functools
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from promptcli.cli import options
from promptcli.cli.console import note, print_json, print_line
from promptcli.cli.options import Json
from promptcli.notes import current_command
from promptcli.plugins.pretrain.plan import Plan

_option = functools.partial(options.field_option, Plan, panel="Run")
#: Settings that have an option.
_OPTIONS = (
    *("layers", "width", "heads", "positions", "vocab_size", "objective"),
    *("tokens", "batch_tokens", "learning_rate", "seed"),
)
#: The types of the other settings, which ``--set`` takes.
_SET_TYPES = {
    name: kind for name, kind in options.field_types(Plan).items() if name not in _OPTIONS
}
_SET_HELP = [
    f"{options.spell_name(item.name)}={item.default}: {item.metadata['help']}"
    for item in dataclasses.fields(Plan)
    if item.name in _SET_TYPES
]


def pretrain(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Plain text, one sentence or paragraph on each line."),
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="Folder of the model.")],
    tokens: Annotated[int, _option("tokens")],
    unrelated: Annotated[
        list[str] | None,
        typer.Option(help="Another file, whose lines are unrelated; repeatable."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="MODEL",
            help="Continue a masked language model that has a head (`mini-bert`, a folder, a hub"
            " id), with its vocabulary, shape and weights.",
        ),
    ] = None,
    templates: Annotated[
        Path | None,
        typer.Option(
            help="For bag-of-words: a file with a template on each line, which has [X] and [MASK]."
            " Default: 49 templates that come with promptcli."
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Resume the run in the folder, if there is one. It ends with the weights of a run"
            " that was never stopped.",
        ),
    ] = False,
    layers: Annotated[int, _option("layers")] = Plan.layers,
    width: Annotated[int, _option("width")] = Plan.width,
    heads: Annotated[int, _option("heads")] = Plan.heads,
    positions: Annotated[int, _option("positions")] = Plan.positions,
    vocab_size: Annotated[int, _option("vocab_size")] = Plan.vocab_size,
    objective: Annotated[str, _option("objective")] = Plan.objective,
    batch_tokens: Annotated[int, _option("batch_tokens")] = Plan.batch_tokens,
    learning_rate: Annotated[float | None, _option("learning_rate")] = None,
    seed: Annotated[int, _option("seed")] = Plan.seed,
    set: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE",
            help=f"Another setting of the run; repeatable. {' '.join(_SET_HELP)}",
            rich_help_panel="Run",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Pre-train a small BERT on plain text, or continue a masked language model.

    A new BERT gets a lower-cased WordPiece vocabulary from the same text. A model that others made
    keeps its tokenizer, shape and head. Use the result as a backbone: `promptcli embed file.txt
    --backbone FOLDER`.
    """
    # nearly every step has inputs of another shape, and the matrix library would keep memory for
    # a thousand shapes
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    from promptcli.plugins.pretrain import pretraining

    settings = {
        "layers": layers,
        "width": width,
        "heads": heads,
        "positions": positions,
        "vocab_size": vocab_size,
        "objective": objective,
        "tokens": tokens,
        "batch_tokens": batch_tokens,
        "seed": seed,
        **options.parse_pairs(_SET_TYPES, set or ()),
    }
    if learning_rate is not None:
        settings["learning_rate"] = learning_rate
    pretrained = pretraining.pretrain(
        files,
        output,
        unrelated=unrelated or (),
        start=start,
        templates=templates,
        resume=resume,
        device=options.RUNTIME.get().device,
        command=current_command().replace(" --resume", ""),
        **settings,
    )
    note(f"model saved in {pretrained.folder}; try: promptcli eval --backbone {pretrained.folder}")
    if as_json:
        print_json(pretrained.figures)
        return
    for name, value in pretrained.figures.items():
        print_line(f"{name}\t{json.dumps(value)}")
