"""Options of `promptcli search-templates`, in groups. Part of the entrance."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from promptcli.errors import UsageError, unknown

#: Templates drawn from the packaged grammar where no number is given.
DRAWN = 600
#: Templates that are scored on all pairs in the end, at least.
FINALISTS = 10

_SPACE, _PROTOCOL, _SAVING = "What is tried", "How it is scored", "What is kept"


@dataclass(frozen=True)
class Space:
    """What is tried."""

    mode: Annotated[
        str | None,
        typer.Option(
            help="greedy: PromptBERT 4.2, relation tokens, then prefix tokens around the best of them; free: a race"
            " among the templates of a grammar or a file. Default: greedy, with --candidates free.",
            rich_help_panel=_SPACE,
            show_default=False,
        ),
    ] = None
    relation: Annotated[
        list[str] | None,
        typer.Option(help="Greedy: a further relation, e.g. `implies`; repeatable.", rich_help_panel=_SPACE),
    ] = None
    prefix: Annotated[
        list[str] | None,
        typer.Option(help="Greedy: a further prefix, e.g. `The text [X]`; repeatable.", rich_help_panel=_SPACE),
    ] = None
    candidates: Annotated[
        Path | None,
        typer.Option(
            help="Free: templates, one a line, or .toml as in templates/named.toml, or a [grammar] as in"
            " templates/search.toml. Default: the grammar there.",
            rich_help_panel=_SPACE,
        ),
    ] = None
    generate: Annotated[
        str | None,
        typer.Option(
            help="Free: let a model write the candidates: mlm, the backbone's own head; t5, a T5 as in LM-BFF.",
            rich_help_panel=_SPACE,
        ),
    ] = None
    t5: Annotated[
        str | None, typer.Option("--t5", help="--generate t5: a T5, local folder or hub id.", rich_help_panel=_SPACE)
    ] = None
    pairs: Annotated[
        Path | None,
        typer.Option(help="--generate t5: word<TAB>definition lines. Default: 60 of our own.", rich_help_panel=_SPACE),
    ] = None
    beam: Annotated[
        int, typer.Option(min=2, help="--generate: templates to keep (the paper: 500).", rich_help_panel=_SPACE)
    ] = 100
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Free: draw so many candidates. Default: {DRAWN} of the packaged grammar, all of --candidates.",
            rich_help_panel=_SPACE,
        ),
    ] = None
    top: Annotated[
        int, typer.Option(min=1, help="Free: how many to list and to write to the file.", rich_help_panel=_SPACE)
    ] = FINALISTS
    seed: Annotated[
        int, typer.Option(min=0, help="Free: of the draw and of the order of the pairs.", rich_help_panel=_SPACE)
    ] = 42

    def resolved_mode(self) -> str:
        """Return the mode, after refusing options that it would not read.

        Raises:
            UsageError: No such mode, or an option of the other one.
        """
        mode = self.mode or ("free" if self.candidates or self.generate else "greedy")
        of_other: dict[str, dict[str, object]] = {
            "greedy": {"--candidates": self.candidates, "--generate": self.generate, "--limit": self.limit},
            "free": {"--relation": self.relation, "--prefix": self.prefix},
        }
        if mode not in of_other:
            raise unknown("mode", mode, of_other)
        for option, given in of_other[mode].items():
            if given:
                other = next(name for name in of_other if name != mode)
                raise UsageError(f"{option} belongs to --mode {other}, not to --mode {mode}; leave one of them out")
        if self.candidates and self.generate:
            raise UsageError("--candidates and --generate exclude each other; leave one of them out")
        return mode


@dataclass(frozen=True)
class Scoring:
    """How a template is scored."""

    backbone: Annotated[
        list[str] | None,
        typer.Option(
            help="`mini`, a local folder, or a hub id; repeatable, for a table across them. Default: mini.",
            rich_help_panel=_PROTOCOL,
            show_default=False,
        ),
    ] = None
    on: Annotated[
        str | None,
        typer.Option(
            help="Development pairs, e.g. STS-B:dev. Default: with a SentEval folder STS-B:dev, else demo:dev.",
            rich_help_panel=_PROTOCOL,
            show_default=False,
        ),
    ] = None
    data_dir: Annotated[
        Path | None, typer.Option(help="SentEval `downstream`-like folder.", rich_help_panel=_PROTOCOL)
    ] = None
    period: Annotated[
        bool,
        typer.Option(
            "--period/--no-period",
            help="Append '.' to a sentence without an end mark (PromptBERT's evaluation).",
            rich_help_panel=_PROTOCOL,
        ),
    ] = True
    denoise: Annotated[
        str, typer.Option(help="none, or hidden: minus the template's own bias.", rich_help_panel=_PROTOCOL)
    ] = "none"
    paper: Annotated[
        bool,
        typer.Option(
            "--paper", help="What is left open is the papers': bert-base-uncased, STS-B:dev.", rich_help_panel=_PROTOCOL
        ),
    ] = False


@dataclass(frozen=True)
class Saving:
    """What is kept of a search."""

    name: Annotated[
        str,
        typer.Option(
            help="Registry entry for the best; with several backbones NAME-BACKBONE.", rich_help_panel=_SAVING
        ),
    ] = "template"
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File for the best templates. Default: templates/NAME.toml beside the registry's models.",
            rich_help_panel=_SAVING,
        ),
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Replace an entry of that name.", rich_help_panel=_SAVING)] = (
        False
    )
