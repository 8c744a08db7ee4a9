"""``promptcli search-templates``: the template that suits a backbone best, into a registry entry."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from promptcli.cli import options
from promptcli.cli.console import half_interval, note, progress, result, result_json, result_table
from promptcli.cli.opening import (
    configure_libraries,
    default_backbone,
    open_backbone,
    open_development_set,
    open_registry,
)
from promptcli.cli.options import FieldOptions, Runtime, option_in, options_of
from promptcli.searching.search_settings import SearchSettings

if TYPE_CHECKING:
    from promptcli.searching.template_scorer import ScoredTemplate
    from promptcli.searching.template_search import TemplateSearch

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
            help="`mini`, a local folder, or a hub id; repeatable, for a table across them. Default: mini."
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

    name: Annotated[str, _saving_option(help="Registry entry for the best; with several backbones NAME-BACKBONE.")] = (
        "template"
    )
    output: Annotated[
        Path | None,
        _saving_option(
            "--output", "-o", help="File for the best templates. Default: templates/NAME.toml in the registry's folder."
        ),
    ] = None
    force: Annotated[bool, _saving_option("--force", help="Replace an entry or a file of that name.")] = False


def search_templates(
    space: SpaceOptions, protocol: ProtocolOptions, saving: SavingOptions, runtime: Runtime, json: options.Json = False
) -> None:
    """Find the template that suits a backbone best, and save it as a model.

    A search that was killed goes on from its cached scores.
    """
    configure_libraries(runtime)
    from promptcli.registry.registry import home
    from promptcli.searching.template_search import choose_strategy, entry_names
    from promptcli.searching.template_search import search_templates as search
    from promptcli.searching.template_space import template_file
    from promptcli.storage.cache import Cache
    from promptcli.storage.files import check_output, write_text

    settings = SearchSettings(**space.changes())
    choose_strategy(settings)
    registry, folder = open_registry(), home(os.environ)
    backbones = list(dict.fromkeys(protocol.backbone or [default_backbone(paper=protocol.paper)]))
    names = entry_names(saving.name, backbones)
    for name in names:
        registry.check_free(name, force=saving.force)
    file = saving.output or folder / "templates" / f"{saving.name}.toml"
    if saving.output is None:
        file.parent.mkdir(parents=True, exist_ok=True)
    check_output(file, force=saving.force)
    task = open_development_set(protocol.on, protocol.data_dir, runtime, paper=protocol.paper)
    start = time.perf_counter()
    found = [
        search(
            backbone,
            task,
            settings=settings,
            period=protocol.period,
            denoise=protocol.denoise,
            cache=Cache(folder / "cache" / "search"),
            stage=progress,
            announce=note,
            offline=runtime.offline,
        )
        for backbone in [open_backbone(backbone, runtime) for backbone in backbones]
    ]
    seconds = time.perf_counter() - start
    searches = dict(zip(names, found, strict=True))
    for name, one in searches.items():
        registry.save(one.entry(name), force=saving.force)
    named = [one.named_templates(name).items() for name, one in searches.items()]
    write_text(file, template_file(dict(item for items in named for item in items)))
    if json:
        result_json({**_document(searches, seconds), "file": str(file)})
    else:
        for one in found:
            print_search(one)
        if len(found) > 1:
            _print_summary(searches)
    note(
        f"saved as model {', '.join(map(repr, names))} and in {file}; a figure on the pairs it was chosen by flatters"
        f" it: score others with `promptcli eval --model {names[0]}`"
    )


def _document(searches: "dict[str, TemplateSearch]", seconds: float) -> dict[str, Any]:
    """Return the JSON document: every backbone's templates in one list, each backbone's best first."""
    rows = [
        {
            "backbone": one.scorer.backbone.name,
            "template": item.template,
            "value": round(item.value, 4),
            "ci95": [round(bound, 4) for bound in item.ci95],
            "stage": item.stage,
        }
        for one in searches.values()
        for item in one.listed
    ]
    first = next(iter(searches.values())).scorer
    return {
        "templates": rows,
        "seconds": round(seconds, 3),
        "task": first.task.label,
        "pairs": first.size,
        "protocol": first.task.protocol,
        "text": first.task.text,
        "period": first.recipe.period,
        "denoise": first.recipe.denoise,
        "saved": {one.scorer.backbone.name: name for name, one in searches.items()},
    }


def print_search(search: "TemplateSearch") -> None:
    """Print one backbone's templates as PromptBERT's table 4, the published figures next to them where there are any.

    A search of a single stage is cut to its ``top``.
    """
    from promptcli.searching.template_space import published_scores

    scorer, stages = search.scorer, search.outcome.stages
    recipe, task, backbone = scorer.recipe, scorer.task, scorer.backbone.name
    published = published_scores(backbone, task.label) if recipe.period and recipe.denoise == "none" else {}
    listed = set(map(id, search.listed))
    rows: list[str | list[str]] = []
    for heading, templates in stages.items():
        rows.append(heading)
        for item in templates:
            if id(item) in listed:
                row = [item.template, "*" if item is search.best else "", *_figures(item)]
                rows.append([*row, f"{published[item.template]:.2f}" if item.template in published else "-"])
    result(f"{backbone} on {task.label} ({scorer.size:,} pairs, {task.text})")
    result(
        f"Spearman x 100 ± half of the 95% bootstrap interval; {recipe.pooling}, period rule"
        f" {'on' if recipe.period else 'off'}, denoise {recipe.denoise}; * the best"
    )
    result(search.outcome.compared)
    heads = ["template", "", task.label, "", "published"]
    result_table(heads, rows) if published else result_table(
        heads[:-1], [row if isinstance(row, str) else row[:-1] for row in rows]
    )


def _print_summary(searches: "dict[str, TemplateSearch]") -> None:
    """Print each backbone's best template and the registry entry that holds it."""
    label = next(iter(searches.values())).scorer.task.label
    rows = [[one.scorer.backbone.name, *_figures(one.best), name, one.best.template] for name, one in searches.items()]
    result("")
    result_table(["backbone", label, "", "model", "best template"], rows)


def _figures(item: "ScoredTemplate") -> list[str]:
    return [f"{item.value:.2f}", half_interval(item.ci95)]
