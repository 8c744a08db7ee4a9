"""What ``adapt`` is asked for. Light: the command line reads it for its help."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from promptcli.jobs import argument, option
from promptcli.recipe import Choice


@dataclass(frozen=True)
class AdaptArguments:
    """The arguments of ``adapt``, as the files below its job read them."""

    files: Sequence[str | Path] = argument(
        "Texts, tables (FILE:COLUMN names that of the text), globs, and folders.",
        metavar="FILE...",
        typed=list[str],
    )
    _: KW_ONLY
    name: str = option(..., "Name of the model to save.")
    start: str | Choice = option(
        "mini",
        "Model to start from: `mini`, or one that `promptcli train` made.",
        names="model m",
        metavar="MODEL",
        typed=str,
        kind="named model",
    )
    hours: float = option(
        1.0, "Most time that it may take; the number of steps follows from it.", above=0, max=1000
    )
    margin: float = option(
        2.0,
        "Most points that a model may lose on other texts, to be saved: of Spearman x 100 on the"
        " demo's pairs, and of nDCG@10 x 100 on questions about promptcli's own guides.",
        min=0,
        max=100,
    )
    seed: int = option(0, "Random seed of the split and of the trainings.", min=0)
    resume: bool = option(False, "Go on with what was stopped under that name.")
    force: bool = option(False, "Replace a model of that name, and begin again.")
    dry_run: bool = option(
        False, "Tell what would be done and how long it would take, from a few timed steps."
    )

    @property
    def where(self) -> Choice:
        """The model to start from, and the device."""
        if isinstance(self.start, Choice):
            return self.start
        return Choice(self.start)
