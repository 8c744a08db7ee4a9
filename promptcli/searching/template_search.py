"""The search for the template that suits a backbone best (PromptBERT, section 4.2): settings, strategies, result."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from promptcli.data import demo
from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import Encoder
from promptcli.errors import UsageError, unknown
from promptcli.notes import note, working
from promptcli.recipe import Recipe
from promptcli.searching import generate_mlm, generate_t5
from promptcli.searching.racing import plan_rungs, planned_pairs, race
from promptcli.searching.search import Ranked, Search
from promptcli.searching.search_settings import DRAWN, FINALISTS, SearchSettings
from promptcli.searching.template_scorer import DEMONSTRATIONS, PROTOCOL, TemplateScorer
from promptcli.searching.template_space import (
    GreedySpace,
    demonstrations,
    draw,
    grammar_templates,
    greedy_space,
    published_templates,
    read_candidates,
)
from promptcli.storage.cache import Cache


@dataclass(frozen=True)
class SearchContext:
    """What a strategy works with."""

    scorer: TemplateScorer
    settings: SearchSettings
    candidates: Sequence[str] | None = None  #: what the file of candidates holds


@dataclass(frozen=True)
class SearchOutcome:
    """What a strategy found: templates under the headings of their stages, all of them ranked, what was compared."""

    stages: dict[str, list[Ranked]]
    ranked: list[Ranked]
    compared: str


def _search_greedily(context: SearchContext) -> SearchOutcome:
    scorer = context.scorer
    space = greedy_space().extended(context.settings.relation, context.settings.prefix)
    number = len(space.relations) + len(space.prefixes)
    with working(f"search {scorer.backbone.name}", number * scorer.size) as advance:
        return search_greedily(lambda texts, stage: scorer.score(texts, stage=stage, progress=advance), space)


def search_greedily(score: Callable[[Sequence[str], str], list[Ranked]], space: GreedySpace) -> SearchOutcome:
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
    with working(f"search {scorer.backbone.name}", total) as advance:
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
    """Return the name of the strategy, after refusing settings that it would not read."""
    mode = settings.mode or ("free" if settings.candidates or settings.generate else "greedy")
    if mode not in STRATEGIES:
        raise unknown("mode", mode, STRATEGIES)
    for item in dataclasses.fields(settings):
        modes = item.metadata.get("modes", (mode,))
        if mode not in modes and getattr(settings, item.name):
            others = " or ".join(modes)
            raise UsageError(f"`{item.name}` belongs to `mode` {others}, not to `mode` {mode}; leave one of them out")
    if settings.candidates and settings.generate:
        raise UsageError("`candidates` and `generate` exclude each other; leave one of them out")
    if settings.generate is not None and settings.generate not in GENERATORS:
        raise unknown("generator", settings.generate, GENERATORS)
    return mode


def _candidates(context: SearchContext) -> list[str]:
    """Return the templates of a free search: those of a grammar, of a file, or those that a model writes."""
    settings, always = context.settings, list[str]()
    if settings.generate is not None:
        everything, source = GENERATORS[settings.generate](context), f"that {settings.generate} wrote"
    elif settings.candidates is not None:
        everything = read_candidates(settings.candidates) if context.candidates is None else [*context.candidates]
        source = f"of {settings.candidates}"
    else:
        everything, source, always = grammar_templates(), "of the grammar", published_templates()
    drawn = draw(everything, settings.limit or (DRAWN if always else len(everything)), settings.seed, always)
    if len(drawn) < len(everything):
        note(f"{len(drawn):,} of the {len(everything):,} templates {source}; more: `limit`")
    return drawn


def _definitions(context: SearchContext) -> list[generate_t5.Definition]:
    found = generate_t5.read_definitions(context.settings.pairs or demo.DEFINITIONS)
    if context.settings.pairs is None:
        note(f"assumed: {len(found)} words and definitions of our own; others: `pairs` FILE")
    return found


def _generate_mlm(context: SearchContext) -> list[str]:
    pairs = context.scorer.task.pairs()
    with working("generate", generate_mlm.steps()) as advance:
        return generate_mlm.generate_templates(
            context.scorer.backbone, [*pairs.first, *pairs.second], count=context.settings.beam, progress=advance
        )


def _generate_t5(context: SearchContext) -> list[str]:
    from promptcli.backbones.t5 import load_t5

    settings, backbone = context.settings, context.scorer.backbone
    if settings.t5 is None:
        raise UsageError(
            "`generate` t5 needs `t5` NAME, e.g. google/t5-v1_1-base, or a folder; `generate` mlm needs none"
        )
    definitions = generate_t5.choose_definitions(_definitions(context), backbone.tokenizer)
    t5 = load_t5(settings.t5, device=str(backbone.device))
    with working("generate", generate_t5.steps()) as advance:
        return generate_t5.generate_templates(t5, definitions, beam=settings.beam, progress=advance)


#: Generator -> how it writes candidates.
GENERATORS: dict[str, Callable[[SearchContext], list[str]]] = {"mlm": _generate_mlm, "t5": _generate_t5}


def search_templates(
    encoder: Encoder,
    task: STSTask,
    settings: SearchSettings | None = None,
    *,
    period: bool = True,
    denoise: str = "none",
    cache: Cache | None = None,
    candidates: Sequence[str] | None = None,
) -> Search:
    """Find the template that suits a backbone best.

    Args:
        encoder: Its backbone reads the templates.
        task: Development pairs to rank by.
        settings: What is tried.
        period: A sentence without an end mark gets a "." (PromptBERT's evaluation).
        denoise: ``none``, or ``hidden``: minus the template's own bias.
        cache: Where cosines are kept, so that a search that was killed is resumed.
        candidates: What the settings' file of candidates holds, where it was read already.

    Raises:
        UsageError: Settings that do not go together, or a backbone, templates or pairs that cannot be searched.
        NotFoundError: A file that is not there.
    """
    backbone, settings = encoder.backbone, settings or SearchSettings()
    mode = choose_strategy(settings)
    recipe = STRATEGIES[mode].protocol.replace(backbone=backbone.name, denoise=denoise, period=period)
    scorer = TemplateScorer(backbone, task, recipe=recipe, cache=cache)
    if backbone.provenance.family == "electra":
        note(f"backbone {backbone.name!r}: an ELECTRA discriminator never saw a mask in training")
    found = STRATEGIES[mode].search(SearchContext(scorer, settings, candidates))
    best = found.ranked[0]
    return Search(
        encoder=scorer.encoder(best.choice),
        task=task,
        ranked=found.ranked if len(found.stages) > 1 else found.ranked[: settings.top],
        about={"mode": mode, "compared": found.compared, "seed": settings.seed, "period": period, "denoise": denoise},
        stages=found.stages,
        score=scorer.full_score(best),
    )


def entry_names(name: str, backbones: Sequence[str]) -> list[str]:
    """Return the name of each backbone's entry: ``name``, or ``name-BACKBONE`` where there are several."""
    if len(backbones) == 1:
        return [name]
    parts = [
        "".join(sign if sign.isascii() and (sign.isalnum() or sign in "._-") else "-" for sign in last)
        for last in (backbone.rstrip("/").split("/")[-1] for backbone in backbones)
    ]
    if len(set(parts)) < len(parts):
        raise UsageError(
            f"backbones {', '.join(map(repr, backbones))} would be saved under one name; search them one by one, each"
            " with a `name`"
        )
    return [f"{name}-{part}" for part in parts]
