"""``promptcli search``: the lines of files that are nearest to a query."""

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli.commands.index import one_line
from promptcli.cli.console import note, result, result_json
from promptcli.cli.signatures import Flag, command_of
from promptcli.index import file_search

if TYPE_CHECKING:
    from promptcli.index.file_search import Line


@command_of(
    file_search.search,
    flags={"files": "FILE...", "k": Flag("-k", min=1), "model": "--model -m", "context": Flag(min=0)},
)
def search(
    search: "partial[list[Line]]",
    json: Annotated[
        bool, typer.Option("--json", help='JSONL {"file", "line", "score", "text", "before", "after"}.')
    ] = False,
) -> None:
    lines, context = search(), search.keywords["context"]
    for line in lines:
        if json:
            result_json({**asdict(line), "score": round(line.score, 6)})
            continue
        first = line.line - len(line.before)
        for number, text in enumerate((*line.before, line.text, *line.after), first):
            hit = number == line.line
            score = f"{line.score:.4f}" if hit else " " * 6
            result(f"{score}  {line.file}{':' if hit else '-'}{number}{':' if hit else '-'} {one_line(text)}")
        if context:
            result("")
    if not lines:
        note("no such line")
