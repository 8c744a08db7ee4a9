"""`promptcli search-templates`: rank templates on a development set. Part of the entrance: options, notes, tables."""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli.commands.generate_candidates import generate
from promptcli.cli.commands.search_templates_options import DRAWN, FINALISTS, Saving, Scoring, Space
from promptcli.cli.commands.search_templates_table import search_table, summary_table
from promptcli.cli.console import note, progress, result, result_json
from promptcli.cli.opening import (
    configure_libraries,
    default_backbone,
    open_development_set,
    open_entries,
    open_registry,
)
from promptcli.cli.options import Runtime
from promptcli.errors import UsageError

if TYPE_CHECKING:
    from promptcli.data.tasks import STSTask
    from promptcli.registry.registry import Registry
    from promptcli.searching.template_scorer import ScoredTemplate, TemplateScorer


@dataclass(frozen=True)
class Search:
    """One backbone's search.

    Attributes:
        scorer: Backbone, task and protocol.
        groups: Heading and templates of each part of the table.
        ranked: Templates scored on all pairs, the best first.
        about: What was compared.
        saved: Registry entry of the best.
    """

    scorer: "TemplateScorer"
    groups: "list[tuple[str, list[ScoredTemplate]]]"
    ranked: "list[ScoredTemplate]"
    about: str
    saved: str


def search_templates(
    space: Space,
    scoring: Scoring,
    saving: Saving,
    runtime: Runtime,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Find the template that suits a backbone best, and save it as a model.

    A search that was killed goes on from its cached scores.
    """
    mode = space.resolved_mode()
    configure_libraries(runtime)
    registry = open_registry()
    backbones = _backbones(scoring)
    names = _entry_names(saving.name, backbones)
    for name in names:
        registry.check_free(name, force=saving.force)
    task = open_development_set(scoring.on, scoring.data_dir, runtime, paper=scoring.paper)
    start = time.perf_counter()
    scorers = [_scorer(scoring, task, backbone, runtime) for backbone in backbones]
    searches = []
    for scorer, name in zip(scorers, names, strict=True):
        groups, ranked, about = _MODES[mode](space, scorer, runtime)
        searches.append(Search(scorer, groups, ranked, about, name))
    seconds = time.perf_counter() - start
    file = _save(searches, mode, space, saving, registry)
    if json:
        result_json(_document(searches, space.top, seconds, file))
    else:
        for search in searches:
            for line in search_table(search.scorer, search.groups, search.about, top=space.top):
                result(line)
        if len(searches) > 1:
            for line in summary_table([(search.scorer, search.ranked[0], search.saved) for search in searches]):
                result(line)
    note(
        f"saved as model {', '.join(map(repr, names))} and in {file}; a figure on the pairs it was chosen by flatters"
        f" it: score others with `promptcli eval --model {names[0]}`",
        quiet=runtime.quiet,
    )


def _search_greedily(
    space: Space, scorer: "TemplateScorer", runtime: Runtime
) -> "tuple[list[tuple[str, list[ScoredTemplate]]], list[ScoredTemplate], str]":
    from promptcli.searching.greedy import search_greedily
    from promptcli.searching.template_space import greedy_space

    pieces = greedy_space().extended(space.relation or (), space.prefix or ())
    number = len(pieces.relations) + len(pieces.prefixes)
    with progress(f"search {scorer.backbone.name}", number * scorer.size, quiet=runtime.quiet) as advance:
        found = search_greedily(lambda templates, stage: scorer.score(templates, stage=stage, progress=advance), pieces)
    groups = [
        ("Searching for relationship tokens", found.relations),
        ("Searching for prefix tokens", found.prefixes),
    ]
    return groups, found.ranked, f"{number} templates, each on all pairs"


def _search_freely(
    space: Space, scorer: "TemplateScorer", runtime: Runtime
) -> "tuple[list[tuple[str, list[ScoredTemplate]]], list[ScoredTemplate], str]":
    from promptcli.searching.racing import plan_rungs, planned_pairs, race

    templates = _free_candidates(space, scorer, runtime)
    finalists = max(FINALISTS, space.top)
    rungs = plan_rungs(len(templates), scorer.size, finalists)
    total = planned_pairs(rungs, len(templates), scorer.size, finalists)
    with progress(f"search {scorer.backbone.name}", total, quiet=runtime.quiet) as advance:
        found = race(templates, scorer, seed=space.seed, finalists=finalists, progress=advance)
    steps = [f"{rung.candidates} templates on {rung.pairs} pairs" for rung in found.rungs]
    about = ", ".join([*steps, f"{len(found.finalists)} on all"])
    if found.twins:
        about += f"; {found.twins} left out, whose tokens another has"
    return [("Free search", found.finalists)], found.finalists, about


#: Mode -> how it searches: space, scorer and runtime to the groups of the table, the ranking, and what was compared.
_MODES = {"greedy": _search_greedily, "free": _search_freely}


def _free_candidates(space: Space, scorer: "TemplateScorer", runtime: Runtime) -> list[str]:
    from promptcli.searching.template_space import draw, grammar_templates, published_templates, read_candidates

    def told(message: str) -> None:
        note(message, quiet=runtime.quiet)

    if space.generate is not None:
        everything, always = generate(space, scorer, runtime), []
        source, limit = f"that {space.generate} wrote", space.limit or len(everything)
    elif space.candidates is None:
        everything, always = grammar_templates(), published_templates()
        source, limit = "of the grammar", space.limit or DRAWN
    else:
        everything, always = read_candidates(space.candidates, told=told), []
        source, limit = f"of {space.candidates}", space.limit or len(everything)
    templates = draw(everything, limit, space.seed, always)
    if len(templates) < len(everything):
        note(f"{len(templates):,} of the {len(everything):,} templates {source}; more: --limit", quiet=runtime.quiet)
    return templates


def _backbones(scoring: Scoring) -> list[str]:
    """Return the backbones to search for, each once."""
    return list(dict.fromkeys(scoring.backbone or [default_backbone(paper=scoring.paper)]))


def _entry_names(name: str, backbones: list[str]) -> list[str]:
    """Return the registry entry of each backbone's best template."""
    if len(backbones) == 1:
        return [name]
    parts = [re.sub(r"[^A-Za-z0-9._-]", "-", backbone.rstrip("/").split("/")[-1]) for backbone in backbones]
    if len(set(parts)) < len(parts):
        raise UsageError(
            f"backbones {', '.join(map(repr, backbones))} would be saved under one name; search them one by one, each"
            " with a --name"
        )
    return [f"{name}-{part}" for part in parts]


def _scorer(scoring: Scoring, task: "STSTask", backbone: str, runtime: Runtime) -> "TemplateScorer":
    from promptcli.registry.registry import Entry, home
    from promptcli.searching.template_scorer import PROTOCOL, TemplateScorer
    from promptcli.storage.cache import Cache

    recipe = PROTOCOL.replace(backbone=backbone, denoise=scoring.denoise, period=scoring.period)
    loaded = open_entries([Entry("template", recipe)], runtime)[0].backbone
    if loaded.provenance.family == "electra":
        note(f"backbone {backbone!r}: an ELECTRA discriminator never saw a mask in training", quiet=runtime.quiet)
    cache = Cache(home(os.environ) / "cache" / "search")
    return TemplateScorer(loaded, task, recipe=recipe, cache=cache)


def _save(searches: list[Search], mode: str, space: Space, saving: Saving, registry: "Registry") -> Path:
    """Save each backbone's best template as a registry entry, and the top ones of all as a template file."""
    from promptcli.encoder.prompts.named import NamedTemplate
    from promptcli.registry.registry import Entry, home
    from promptcli.searching.template_space import template_file
    from promptcli.storage.files import write_text

    found: dict[str, NamedTemplate] = {}
    for search in searches:
        scorer, best = search.scorer, search.ranked[0]
        encoder = scorer.encoder(best.template)
        searched = {"mode": mode, "task": scorer.task.label, "compared": search.about, "seed": space.seed}
        provenance = {**encoder.provenance, "width": scorer.backbone.width, "searched": searched}
        score = scorer.full_score(best, search.saved).to_dict()
        registry.save(Entry(search.saved, encoder.recipe, {}, provenance, [score]), force=saving.force)
        for number, item in enumerate(search.ranked[: space.top], 1):
            name = search.saved if number == 1 else f"{search.saved}-{number}"
            low, high = item.ci95
            source = f"{mode} search, {scorer.backbone.name}, {scorer.task.label}, 95% {low:.2f} to {high:.2f}"
            found[name] = NamedTemplate(item.template, source, item.value)
    file = saving.output or home(os.environ) / "templates" / f"{saving.name}.toml"
    if saving.output is None:
        file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, template_file(found))
    return file


def _document(searches: list[Search], top: int, seconds: float, file: Path) -> dict[str, Any]:
    """Return the JSON document: every backbone's templates in one list, each backbone's best first."""
    rows = [
        {
            "backbone": search.scorer.backbone.name,
            "template": item.template,
            "value": round(item.value, 4),
            "ci95": [round(bound, 4) for bound in item.ci95],
            "stage": item.stage,
        }
        for search in searches
        for item in (search.ranked if len(search.groups) > 1 else search.ranked[:top])
    ]
    first = searches[0].scorer
    return {
        "templates": rows,
        "seconds": round(seconds, 3),
        "task": first.task.label,
        "pairs": first.size,
        "protocol": first.task.protocol,
        "text": first.task.text,
        "period": first.recipe.period,
        "denoise": first.recipe.denoise,
        "saved": {search.scorer.backbone.name: search.saved for search in searches},
        "file": str(file),
    }
