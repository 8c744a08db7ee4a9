"""The command lengths: the tokens of each line of a file."""

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

import promptcli as pc
from promptcli import UsageError
from promptcli.cli.console import print_json, print_table
from promptcli.cli.options import Json, Model, chosen_model


class Length(NamedTuple):
    """A line with its number, from 1, and its tokens."""

    line: int
    tokens: int
    text: str


def lengths(file, model="mini", *, longest=None) -> list[Length]:
    """Count the tokens of each line of a file, without special tokens and template.

    Args:
        file: Text, one sentence a line.
        model: What ``pc.load`` takes.
        longest: Only so many lines, longest first. Default: all, in order.
    """
    encoder = pc.load(model)
    lines = _lines(file)
    ids = encoder.tokenizer(encoder.prepare(lines), add_special_tokens=False)["input_ids"]
    counted = []
    for number, (text, tokens) in enumerate(zip(lines, ids, strict=True), start=1):
        counted.append(Length(number, len(tokens), text))
    if longest is None:
        return counted
    return sorted(counted, key=lambda row: -row.tokens)[:longest]


def _lines(file) -> list[str]:
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file} ({error}); give a text file in UTF-8") from None
    if not lines:
        raise UsageError(f"{file} is empty; give a text file, one sentence a line")
    return lines


def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Text, one sentence a line.")],
    model: Model = "mini",
    longest: Annotated[
        int | None, typer.Option(min=1, help="Only the N longest lines, longest first.")
    ] = None,
    json: Json = False,
) -> None:
    """Count the tokens of each line of a file."""
    rows = lengths(file, chosen_model(model), longest=longest)
    if json:
        print_json([row._asdict() for row in rows])
    else:
        cells = [(str(row.line), str(row.tokens), row.text) for row in rows]
        print_table(("line", "tokens", "text"), cells)
