"""The public interface of the papers' tables measured again.

It imports nothing heavy, since the command line reads it.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli import PromptcliError, UsageError
from promptcli.extending import (
    Choice,
    Job,
    argument,
    function_of,
    keyword,
    notes,
    option,
    senteval,
)
from promptcli.plugins.papers.published import Texts, published_tables

if TYPE_CHECKING:
    from promptcli.plugins.papers.contexts import Draw, MeasurementContext
    from promptcli.plugins.papers.published import PublishedTable


@dataclass(frozen=True)
class Reproduction:
    """One table on one backbone."""

    label: str
    document: dict[str, Any] | None = None
    file: Path | None = None  #: None if nothing can be measured
    error: PromptcliError | None = None
    #: data set -> why it is missing
    missing: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def message(self) -> str:
        if self.error is not None:
            return f"{self.label} is left out: {self.error}"
        if self.file is None:
            return f"{self.label}: no figure can be measured here, so no file is written"
        return f"{self.label}: written to {self.file}"


@dataclass(frozen=True)
class ReproduceJob(Job[Iterator[Reproduction]]):
    """Measure tables of the papers and write the results; earlier figures come from the cache.

    Returns:
        The tables on their backbones, each as soon as it is measured; a failure ends only its own.
    """

    tables: str | Sequence[str] = argument(
        "`promptbert/5`, `ditto` (all of a paper), `all`, or several.",
        on_command_line="`list` shows them, `page` makes the page of all results.",
        metavar="TABLE...",
        typed=list[str],
    )
    backbone: str | Choice | None = option(
        None,
        "A shipped name, a folder, a hub id, or glove:FILE. Default: mini-bert.",
        names="model m backbone",
        typed=str,
        kind="named model",
    )
    _: KW_ONLY
    paper: bool = option(
        False,
        "Measure every row on the backbone that it was published for, unless one is given, and"
        " train with the settings that were published for it.",
    )
    train: bool = option(False, "Train the rows that need it.")
    seeds: int = option(1, "Runs of each of them; one run has seed 42, several 0, 1, ...", min=1)
    head: str | None = option(
        None,
        "Of Ditto's rows, e.g. 1-9, or a model that `promptcli ditto-search --name` saved. Default:"
        " the published one, which only published backbones and mini-bert have.",
    )
    texts: Texts = option(Texts(), "The data that rows are fitted, counted and trained on.")
    data_dir: str | Path | None = option(
        None,
        "SentEval folder of the tasks; without it they come from the hub.",
        typed=Path,
        kind="data folder",
    )
    output: str | Path = option("results", "Folder of the result files.", names="output o")
    force: bool = option(False, "Measure again what is cached.")
    draw: "Draw | None" = option(
        None,
        "Draws the papers' figures that have no numbers; without it they are left out.",
        hidden=True,
    )
    settings: Mapping[str, Any] = option(
        {},
        "Changes of the settings of the rows that are trained, of methods that have them.",
        names="set",
        metavar="FIELD=VALUE",
        typed=list[str],
        kind="settings of trained rows",
    )

    def run(self) -> Iterator[Reproduction]:
        from promptcli.plugins.papers.contexts import head_of
        from promptcli.plugins.papers.documents import wanted_tables

        if self.seeds > 1 and not self.train:
            raise UsageError(
                f"{keyword('seeds')} {self.seeds} is for rows that are trained; give"
                f" {keyword('train')}, too"
            )
        if self.settings and not self.train:
            raise UsageError(
                f"{keyword('settings')} are of rows that are trained; give {keyword('train')}, too"
            )
        choice = _choice(self.backbone)
        if self.head is not None and self.paper and choice.model is None:
            raise UsageError(
                f"{keyword('head')} is of one backbone, and {keyword('paper')} measures several;"
                f" give {keyword('backbone')}, too"
            )
        known_head = None
        if self.head is not None:
            known_head = head_of(self.head, choice.model or choice.backbone)
        wanted = wanted_tables(
            self.tables, choice.model, choice.backbone, paper=self.paper, train=self.train
        )
        if self.settings:
            _check_settings(self.settings, [table for table, _ in wanted])
        return self._measure(wanted, choice, known_head)

    def _measure(
        self, wanted: "Sequence[tuple[PublishedTable, str]]", choice: Choice, head: str | None
    ) -> Iterator[Reproduction]:
        """Yield each table on its backbone."""
        from promptcli import Recipe
        from promptcli.extending import make_encoder
        from promptcli.plugins.papers.contexts import open_context
        from promptcli.plugins.papers.documents import measure_table
        from promptcli.plugins.papers.report import write_result

        seeds: Sequence[int] = ()
        if self.train:
            seeds = (42,) if self.seeds == 1 else range(self.seeds)
        contexts: dict[str, MeasurementContext] = {}
        for table, name in wanted:
            if name not in contexts:
                on = dataclasses.replace(choice, model=name)
                with senteval.tasks_from(self.data_dir):
                    contexts[name] = open_context(
                        on,
                        self.texts,
                        seeds=seeds,
                        head=head,
                        draw=self.draw,
                        fresh=self.force,
                        paper=self.paper,
                        changes=self.settings,
                    )
            context = contexts[name]
            if head is not None:
                # refuses a head that does not exist
                recipe = Recipe(backbone=name, pooling=f"last/ditto:{head}")
                make_encoder(recipe, context.backbone, {})
            try:
                document = measure_table(table, context)
            except PromptcliError as error:
                yield Reproduction(f"{table.name} on {name}", error=error, missing=context.missing)
                continue
            file = None
            if any(row["figures"] for row in document["rows"]):
                file = write_result(Path(self.output), document)
            yield Reproduction(table.name, document, file, missing=context.missing)


reproduce = function_of(ReproduceJob, "reproduce")


def overviews(
    backbone: str | Choice | None = None,
    *,
    texts: Texts = Texts(),  # noqa: B008 - frozen
    draw: "Draw | None" = None,
) -> list[dict[str, Any]]:
    """Return the needs of every table and how many of its values can be measured here, offline.

    The result is JSON-ready.
    """
    from promptcli.plugins.papers.contexts import open_context
    from promptcli.plugins.papers.documents import overview

    with notes.without_network():
        context = open_context(_choice(backbone), texts, draw=draw)
        return [overview(table, context) for table in published_tables().values()]


def _check_settings(settings: Mapping[str, Any], tables: "Sequence[PublishedTable]") -> None:
    """Refuse a setting that no trained row of the tables has."""
    from promptcli.plugins.papers.systems import SYSTEMS, method_of

    methods = {}
    for table in tables:
        for row in table.rows:
            if SYSTEMS[row.kind].trains:
                method = method_of(row)
                methods[method.name] = method
    for name in settings:
        if not any(name in vars(method.small) for method in methods.values()):
            trained = ", ".join(methods) or "none"
            raise UsageError(
                f"{keyword('settings')} {name.replace('_', '-')}: no method trained here has it"
                f" ({trained})"
            )


def _choice(backbone: str | Choice | None) -> Choice:
    if isinstance(backbone, Choice):
        return backbone
    return Choice(backbone)
