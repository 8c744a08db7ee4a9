"""The search for the template that suits a backbone best (PromptBERT, section 4.2): settings, strategies, result."""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcli.backbones.backbone import Backbone
from promptcli.data.sources import development_task
from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import Encoder, Progress, build_encoder, silent
from promptcli.encoder.prompts.named import NamedTemplate
from promptcli.errors import UsageError, unknown
from promptcli.recipe import Recipe
from promptcli.registry.entries import Entry
from promptcli.searching import generate_mlm, generate_t5
from promptcli.searching.racing import plan_rungs, planned_pairs, race
from promptcli.searching.search_settings import DRAWN, FINALISTS, SearchSettings
from promptcli.searching.template_scorer import DEMONSTRATIONS, PROTOCOL, ScoredTemplate, TemplateScorer
from promptcli.searching.template_space import (
    GreedySpace,
    demonstrations,
    draw,
    grammar_templates,
    greedy_space,
    published_templates,
    read_candidates,
)
from promptcli.settings import BARE
from promptcli.storage.cache import Cache

#: Begins a part of the work, by its name and its number of steps; what it yields takes the steps newly done.
Stage = Callable[[str, int], AbstractContextManager[Progress]]
Announce = Callable[[str], None]


def _silent_stage(name: str, steps: int) -> AbstractContextManager[Progress]:
    return nullcontext(silent)


@dataclass(frozen=True)
class SearchContext:
    """What a strategy works with."""

    scorer: TemplateScorer
    settings: SearchSettings
    stage: Stage = _silent_stage
    announce: Announce = lambda message: None
    offline: bool = False


@dataclass(frozen=True)
class SearchOutcome:
    """What a strategy found: templates under the headings of their stages, all of them ranked, what was compared."""

    stages: dict[str, list[ScoredTemplate]]
    ranked: list[ScoredTemplate]
    compared: str


def _search_greedily(context: SearchContext) -> SearchOutcome:
    scorer = context.scorer
    space = greedy_space().extended(context.settings.relation, context.settings.prefix)
    number = len(space.relations) + len(space.prefixes)
    with context.stage(f"search {scorer.backbone.name}", number * scorer.size) as advance:
        return search_greedily(lambda texts, stage: scorer.score(texts, stage=stage, progress=advance), space)


def search_greedily(score: Callable[[Sequence[str], str], list[ScoredTemplate]], space: GreedySpace) -> SearchOutcome:
    """Find a relation, then a prefix around the relation that really won (PromptBERT, section 4.2).

    Args:
        score: Scores templates, in their order; the second argument names the stage.
        space: The candidates.
    """
    relations = score([space.template(space.start, relation) for relation in space.relations], "relation")
    best = max(range(len(relations)), key=lambda number: relations[number].value)
    prefixes = score([space.template(prefix, space.relations[best]) for prefix in space.prefixes], "prefix")
    found = [*relations, *prefixes]
    return SearchOutcome(
        {"Searching for relationship tokens": relations, "Searching for prefix tokens": prefixes},
        sorted(found, key=lambda item: -item.value),  # of equals the one tried first
        f"{len(found)} templates, each on all pairs",
    )


def _race_freely(context: SearchContext) -> SearchOutcome:
    return _race(context, _candidates(context), "Free search")


def _race_demonstrations(context: SearchContext) -> SearchOutcome:
    """Race (text, word) examples in front of the template, none among them (PromptEOL, in-context learning)."""
    settings, plain = context.settings, DEMONSTRATIONS.prompt
    made = demonstrations(_definitions(context), DEMONSTRATIONS)
    everything = [plain, *made]
    drawn = draw(everything, 1 + (settings.limit or len(everything)), settings.seed, [plain])
    return _race(context, drawn, "Search for a demonstration")


def _race(context: SearchContext, templates: Sequence[str], heading: str) -> SearchOutcome:
    scorer, settings = context.scorer, context.settings
    finalists = max(FINALISTS, settings.top)
    rungs = plan_rungs(len(templates), scorer.size, finalists)
    total = planned_pairs(rungs, len(templates), scorer.size, finalists)
    with context.stage(f"search {scorer.backbone.name}", total) as advance:
        found = race(templates, scorer, seed=settings.seed, finalists=finalists, progress=advance)
    steps = [f"{rung.candidates} templates on {rung.pairs} pairs" for rung in found.rungs]
    compared = ", ".join([*steps, f"{len(found.finalists)} on all"])
    if found.twins:
        compared += f"; {found.twins} left out, whose tokens another has"
    return SearchOutcome({heading: found.finalists}, found.finalists, compared)


@dataclass(frozen=True)
class Strategy:
    """How a mode searches."""

    search: Callable[[SearchContext], SearchOutcome]
    protocol: Recipe = PROTOCOL  #: how its templates are read


STRATEGIES: dict[str, Strategy] = {
    "greedy": Strategy(_search_greedily),
    "free": Strategy(_race_freely),
    "demonstrations": Strategy(_race_demonstrations, DEMONSTRATIONS),
}


def choose_strategy(settings: SearchSettings) -> str:
    """Return the name of the strategy, after refusing settings that it would not read.

    Raises:
        UsageError: No such mode or generator, or a setting of another mode.
    """
    mode = settings.mode or ("free" if settings.candidates or settings.generate else "greedy")
    if mode not in STRATEGIES:
        raise unknown("mode", mode, STRATEGIES)
    for item in dataclasses.fields(settings):
        modes = item.metadata.get("modes", (mode,))
        if mode not in modes and getattr(settings, item.name):
            others = " or ".join(modes)
            raise UsageError(f"--{item.name} belongs to --mode {others}, not to --mode {mode}; leave one of them out")
    if settings.candidates and settings.generate:
        raise UsageError("--candidates and --generate exclude each other; leave one of them out")
    if settings.generate is not None and settings.generate not in GENERATORS:
        raise unknown("generator", settings.generate, GENERATORS)
    return mode


def _candidates(context: SearchContext) -> list[str]:
    """Return the templates of a free search: those of a grammar, of a file, or those that a model writes."""
    settings, always = context.settings, list[str]()
    if settings.generate is not None:
        everything, source = GENERATORS[settings.generate](context), f"that {settings.generate} wrote"
    elif settings.candidates is not None:
        everything = read_candidates(settings.candidates, announce=context.announce)
        source = f"of {settings.candidates}"
    else:
        everything, source, always = grammar_templates(), "of the grammar", published_templates()
    drawn = draw(everything, settings.limit or (DRAWN if always else len(everything)), settings.seed, always)
    if len(drawn) < len(everything):
        context.announce(f"{len(drawn):,} of the {len(everything):,} templates {source}; more: --limit")
    return drawn


def _definitions(context: SearchContext) -> list[generate_t5.Definition]:
    if context.settings.pairs is None:
        context.announce("assumed: 60 (word, definition) pairs of our own; others: --pairs FILE")
    return generate_t5.read_definitions(context.settings.pairs or generate_t5.DEMO)


def _generate_mlm(context: SearchContext) -> list[str]:
    pairs = context.scorer.task.pairs()
    with context.stage("generate", generate_mlm.steps()) as advance:
        return generate_mlm.generate_templates(
            context.scorer.backbone, [*pairs.first, *pairs.second], count=context.settings.beam, progress=advance
        )


def _generate_t5(context: SearchContext) -> list[str]:
    from promptcli.backbones.t5 import load_t5

    settings, backbone = context.settings, context.scorer.backbone
    if settings.t5 is None:
        raise UsageError(
            "--generate t5 needs --t5 NAME, e.g. google/t5-v1_1-base, or a folder; --generate mlm needs none"
        )
    definitions = generate_t5.choose_definitions(_definitions(context), backbone.tokenizer)
    t5 = load_t5(settings.t5, device=str(backbone.device), offline=context.offline, announce=context.announce)
    with context.stage("generate", generate_t5.steps()) as advance:
        return generate_t5.generate_templates(t5, definitions, beam=settings.beam, progress=advance)


#: Generator -> how it writes candidates.
GENERATORS: dict[str, Callable[[SearchContext], list[str]]] = {"mlm": _generate_mlm, "t5": _generate_t5}


@dataclass(frozen=True)
class TemplateSearch:
    """One backbone's search."""

    scorer: TemplateScorer
    settings: SearchSettings
    strategy: str
    outcome: SearchOutcome

    @property
    def best(self) -> ScoredTemplate:
        """The template with the highest figure on all pairs."""
        return self.outcome.ranked[0]

    @property
    def encoder(self) -> Encoder:
        """The encoder of the best template."""
        return self.scorer.encoder(self.best.template)

    @property
    def recipe(self) -> Recipe:
        """The recipe of the best template."""
        return self.encoder.recipe

    @property
    def listed(self) -> list[ScoredTemplate]:
        """What is reported: all templates of a search in stages, else the first ``settings.top``."""
        ranked = self.outcome.ranked
        return ranked if len(self.outcome.stages) > 1 else ranked[: self.settings.top]

    def entry(self, name: str) -> Entry:
        """Return the best template's encoder as a registry entry, with its figure and how it was found."""
        scorer, encoder = self.scorer, self.encoder
        searched = {
            "mode": self.strategy,
            "task": scorer.task.label,
            "compared": self.outcome.compared,
            "seed": self.settings.seed,
        }
        provenance = {**encoder.provenance, "width": scorer.backbone.width, "searched": searched}
        return Entry(name, encoder.recipe, {}, provenance, [scorer.full_score(self.best, name).to_dict()])

    def named_templates(self, name: str) -> dict[str, NamedTemplate]:
        """Return the first ``settings.top`` templates as ``name``, ``name-2`` and so on, for a template file."""
        found = {}
        for number, item in enumerate(self.outcome.ranked[: self.settings.top], 1):
            low, high = item.ci95
            searched = f"{self.strategy} search, {self.scorer.backbone.name}, {self.scorer.task.label}"
            source = f"{searched}, 95% {low:.2f} to {high:.2f}"
            found[name if number == 1 else f"{name}-{number}"] = NamedTemplate(item.template, source, item.value)
        return found


def search_templates(
    backbone: Backbone | str,
    on: STSTask | str | Path = BARE.development,
    *,
    settings: SearchSettings | None = None,
    period: bool = True,
    denoise: str = "none",
    cache: Cache | None = None,
    stage: Stage = _silent_stage,
    announce: Announce = lambda message: None,
    data_dir: Path | None = None,
    device: str = "auto",
    dtype: str = "stored",
    offline: bool = False,
    **changes: Any,
) -> TemplateSearch:
    """Find the template that suits a backbone best.

    Args:
        backbone: What reads the templates: loaded, or its name.
        on: Development pairs to rank by: a task's name, a file of graded pairs, or loaded.
        settings: What is tried.
        period: A sentence without an end mark gets a "." (PromptBERT's evaluation).
        denoise: ``none``, or ``hidden``: minus the template's own bias.
        cache: Where cosines are kept, so that a search that was killed goes on.
        stage: Shows progress.
        announce: Called with one line on what is assumed or left out.
        data_dir: SentEval folder of a task that is named.
        device: Of a backbone that is named.
        dtype: Of a backbone that is named.
        offline: Never use the network.
        changes: Of single settings, e.g. ``mode="free"``.

    Raises:
        UsageError: Settings that do not go together, or a backbone, templates or pairs that cannot be searched.
        NotFoundError: A backbone, a file or a task that is not there.

    Example:
        >>> found = search_templates("mini", mode="free", limit=12)  # doctest: +SKIP
        >>> found.best.template, found.recipe.prompt  # doctest: +SKIP
    """
    settings = dataclasses.replace(settings or SearchSettings(), **changes)
    strategy = choose_strategy(settings)
    task = development_task(on, data_dir, offline=offline)
    if isinstance(backbone, str):
        recipe = Recipe(backbone=backbone)
        opened = build_encoder(recipe, device=device, dtype=dtype, offline=offline, announce=announce)
        backbone = opened.backbone
    recipe = STRATEGIES[strategy].protocol.replace(backbone=backbone.name, denoise=denoise, period=period)
    scorer = TemplateScorer(backbone, task, recipe=recipe, cache=cache)
    if backbone.provenance.family == "electra":
        announce(f"backbone {backbone.name!r}: an ELECTRA discriminator never saw a mask in training")
    context = SearchContext(scorer, settings, stage, announce, offline)
    return TemplateSearch(scorer, settings, strategy, STRATEGIES[strategy].search(context))


def entry_names(name: str, backbones: Sequence[str]) -> list[str]:
    """Return the name of each backbone's entry: ``name``, or ``name-BACKBONE`` where there are several.

    Raises:
        UsageError: Two backbones would have one name.
    """
    if len(backbones) == 1:
        return [name]
    parts = [
        "".join(sign if sign.isascii() and (sign.isalnum() or sign in "._-") else "-" for sign in last)
        for last in (backbone.rstrip("/").split("/")[-1] for backbone in backbones)
    ]
    if len(set(parts)) < len(parts):
        raise UsageError(
            f"backbones {', '.join(map(repr, backbones))} would be saved under one name; search them one by one, each"
            " with a --name"
        )
    return [f"{name}-{part}" for part in parts]
