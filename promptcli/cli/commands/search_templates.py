"""``promptcli search-templates``: the template that suits a backbone best."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from promptcli.cli import options
from promptcli.cli.commands.search_poolings import check_name, say_kept
from promptcli.cli.console import half_interval, note, result, result_json, result_table
from promptcli.cli.opening import (
    configure_libraries,
    default_backbone,
    open_backbone,
    open_development_set,
)
from promptcli.cli.options import FieldOptions, Runtime, option_in, options_of
from promptcli.searching.search_settings import SearchSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from promptcli.searching.search import Ranked, Search

_protocol_option, _saving_option = option_in("How it is scored"), option_in("What is kept")


@options_of(SearchSettings, panel="What is tried", flags={"t5": "--t5"})
class SpaceOptions(FieldOptions):
    """What is tried."""


@dataclass(frozen=True)
class ProtocolOptions:
    """How a template is scored."""

    backbone: Annotated[
        list[str] | None,
        _protocol_option(
            help="`mini-bert`, a local folder, or a hub id; repeatable, for a table across them. Default: mini-bert."
        ),
    ] = None
    on: options.DevelopmentPairs = None
    data_dir: options.DataDir = None
    period: Annotated[
        bool,
        _protocol_option(
            "--period/--no-period", help="Append '.' to a sentence without an end mark (PromptBERT's evaluation)."
        ),
    ] = True
    denoise: Annotated[str, _protocol_option(help="none, or hidden: minus the template's own bias.")] = "none"
    paper: Annotated[
        bool, _protocol_option("--paper", help="What is left open is the papers': bert-base-uncased, STS-B:dev.")
    ] = False


@dataclass(frozen=True)
class SavingOptions:
    """What is kept of a search."""

    name: Annotated[
        str | None,
        _saving_option(help="Save the best in the registry under this name; with several backbones NAME-BACKBONE."),
    ] = None
    output: Annotated[
        Path | None,
        _saving_option(
            "--output",
            "-o",
            help="File for the best templates; with --name by default templates/NAME.toml in the registry.",
        ),
    ] = None
    force: Annotated[bool, _saving_option("--force", help="Replace an entry or a file of that name.")] = False


def search_templates(
    space: SpaceOptions, protocol: ProtocolOptions, saving: SavingOptions, runtime: Runtime, json: options.Json = False
) -> None:
    """Find the template that suits a backbone best.

    A search that was killed goes on from its cached scores.
    """
    configure_libraries(runtime)
    from promptcli.api.searching import search_templates as search
    from promptcli.encoder.encoder import Encoder
    from promptcli.recipe import Recipe
    from promptcli.registry.registry import home
    from promptcli.searching.template_search import choose_strategy, entry_names
    from promptcli.searching.template_space import template_file
    from promptcli.storage.files import check_output, write_text

    settings = SearchSettings(**space.changes())
    choose_strategy(settings)
    backbones = list(dict.fromkeys(protocol.backbone or [default_backbone(paper=protocol.paper)]))
    names = [None] * len(backbones) if saving.name is None else entry_names(saving.name, backbones)
    for name in names:
        check_name(name, force=saving.force)
    file = saving.output or (saving.name and home(os.environ) / "templates" / f"{saving.name}.toml")
    if file:
        if saving.output is None:
            file.parent.mkdir(parents=True, exist_ok=True)
        check_output(file, force=saving.force)
    task = open_development_set(protocol.on, protocol.data_dir, runtime, paper=protocol.paper)
    start = time.perf_counter()
    found = []
    for name, loaded in zip(names, [open_backbone(backbone, runtime) for backbone in backbones], strict=True):
        encoder = Encoder(Recipe(backbone=loaded.name), loaded, {})
        how: dict[str, Any] = {"period": protocol.period, "denoise": protocol.denoise, "settings": settings}
        found.append(search(encoder, task, name=name, force=saving.force, **how))
    seconds = time.perf_counter() - start
    if file:
        called = names if saving.name else entry_names("template", backbones)
        named = [one.named_templates(str(name)).items() for name, one in zip(called, found, strict=True)]
        write_text(file, template_file(dict(item for items in named for item in items)))
    if json:
        searches = [{**one.to_dict(), "model": name} for name, one in zip(names, found, strict=True)]
        result_json({"searches": searches, "seconds": round(seconds, 3), "file": str(file) if file else None})
    else:
        _print_all(names, found)
    for name, one in zip(names, found, strict=True):
        say_kept(one, name)
    note("a figure on the pairs it was chosen by flatters a template; score others with `promptcli eval`")


def print_search(found: "Search") -> None:
    """Print one backbone's templates as PromptBERT's table 4, the published figures next to them where there are any.

    A search of a single stage is cut to its ``top``.
    """
    from promptcli.searching.template_space import published_scores

    recipe, task = found.recipe, found.task
    published = published_scores(recipe.backbone, task.label) if recipe.period and recipe.denoise == "none" else {}
    listed = set(map(id, found.ranked))
    rows: list[str | list[str]] = []
    for heading, templates in found.stages.items():
        rows.append(heading)
        for item in templates:
            if id(item) in listed:
                row = [item.choice, "*" if item is found.best else "", *_figures(item)]
                rows.append([*row, f"{published[item.choice]:.2f}" if item.choice in published else "-"])
    result(f"{recipe.backbone} on {task.label} ({len(task.pairs()):,} pairs, {task.text})")
    result(
        f"Spearman x 100 ± half of the 95% bootstrap interval; {recipe.pooling}, period rule"
        f" {'on' if recipe.period else 'off'}, denoise {recipe.denoise}; * the best"
    )
    result(found.about["compared"])
    heads = ["template", "", task.label, "", "published"]
    result_table(heads, rows) if published else result_table(
        heads[:-1], [row if isinstance(row, str) else row[:-1] for row in rows]
    )


def _print_all(names: "Sequence[str | None]", found: "Sequence[Search]") -> None:
    """Print each backbone's templates; of several, each one's best with the registry entry that holds it, too."""
    for one in found:
        print_search(one)
    if len(found) == 1:
        return
    rows = [
        [one.recipe.backbone, *_figures(one.best), name or "-", one.best.choice]
        for name, one in zip(names, found, strict=True)
    ]
    result("")
    result_table(["backbone", found[0].task.label, "", "model", "best template"], rows)


def _figures(item: "Ranked") -> list[str]:
    return [f"{item.value:.2f}", half_interval(item.ci95)]
