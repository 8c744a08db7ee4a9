"""The command lengths: the tokens of each line of a file."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import NamedTuple

import promptcli as pc
from promptcli import UsageError
from promptcli.extending import (
    Job,
    Json,
    Model,
    argument,
    function_of,
    option,
    result_json,
    result_table,
)


class Length(NamedTuple):
    """A line with its number, from 1, and its tokens."""

    line: int
    tokens: int
    text: str


@dataclass(frozen=True)
class LengthsJob(Job[list[Length]]):
    """Count the tokens of each line of a file, without special tokens and template."""

    file: Path = argument("Text, one sentence a line.", metavar="FILE")
    _: KW_ONLY
    model: Model = option("mini", "The model whose tokens are counted.", kind="model")
    longest: int | None = option(None, "Only the N longest lines, longest first.", min=1)

    def run(self) -> list[Length]:
        encoder = pc.load(self.model)
        lines = _lines(self.file)
        ids = encoder.tokenizer(encoder.prepare(lines), add_special_tokens=False)["input_ids"]
        counted = []
        for number, (text, tokens) in enumerate(zip(lines, ids, strict=True), start=1):
            counted.append(Length(number, len(tokens), text))
        if self.longest is None:
            return counted
        return sorted(counted, key=lambda row: -row.tokens)[: self.longest]


lengths = function_of(LengthsJob, "lengths")


def _lines(file: Path) -> list[str]:
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file} ({error}); give a text file in UTF-8") from None
    if not lines:
        raise UsageError(f"{file} is empty; give a text file, one sentence a line")
    return lines


def show(job: LengthsJob, json: Json = False) -> None:
    """Print the result of a job."""
    rows = job.run()
    if json:
        result_json([row._asdict() for row in rows])
    else:
        cells = [(str(row.line), str(row.tokens), row.text) for row in rows]
        result_table(("line", "tokens", "text"), cells)
