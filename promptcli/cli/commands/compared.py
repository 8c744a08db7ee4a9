"""Which encoders `analyze anisotropy` and `analyze uniformity` put side by side. Part of the entrance."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli.commands.eval_choice import EvalChoice, find_candidates, is_bare
from promptcli.cli.console import note
from promptcli.cli.opening import open_entries, open_registry
from promptcli.cli.options import Runtime
from promptcli.errors import UsageError

if TYPE_CHECKING:
    from promptcli.encoder.encoder import Encoder
    from promptcli.evaluation.scores import Label
    from promptcli.registry.registry import Entry

#: The rows of Ditto's table 5; one forward pass serves all.
ROWS = ["static-avg", "static-ditto", "last-avg", "last-ditto", "first-last-avg", "first-last-ditto"]


@dataclass(frozen=True)
class ComparedChoice(EvalChoice):
    """Which encoders; changes of single recipe fields apply to every one."""

    recipe: Annotated[
        list[str] | None,
        typer.Option(
            "--recipe",
            "-r",
            help="Named recipe, JSON text, or a .json/.toml file; repeatable. Default, without --model: average and"
            " Ditto of static, last and first-last states.",
            rich_help_panel="Model and recipe",
        ),
    ] = None


@dataclass(frozen=True)
class Compared:
    """Encoders and what they are called."""

    encoders: "Sequence[Encoder]"
    labels: "Sequence[Label]"

    @property
    def names(self) -> list[str]:
        """What to call each in a table."""
        from promptcli.cli.commands.score_table import table_names

        named = table_names(self.labels)
        return [named[label] for label in self.labels]


def open_compared(choice: ComparedChoice, runtime: Runtime, rows: Sequence[str] = ROWS) -> Compared:
    """Return the encoders that the options name, else ``rows``, of which those are left out that cannot be made."""
    bare = is_bare(choice)
    if bare:
        choice = dataclasses.replace(choice, recipe=list(rows))
    candidates = find_candidates(open_registry(), choice)
    left_out: dict[int, UsageError] = {}

    def refused(entry: "Entry", error: UsageError) -> None:
        left_out[id(entry)] = error

    encoders = open_entries([one.entry for one in candidates], runtime, refused=refused if bare else None)
    kept = [candidate for candidate in candidates if id(candidate.entry) not in left_out]
    for candidate in candidates:
        if id(candidate.entry) in left_out:
            note(f"{candidate.label.recipe} is left out: {left_out[id(candidate.entry)]}", quiet=runtime.quiet)
    return Compared(encoders, [candidate.label for candidate in kept])
