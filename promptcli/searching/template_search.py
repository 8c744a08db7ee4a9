"""The search for the template that suits a backbone best (PromptBERT, section 4.2); a killed search resumes."""

import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from promptcli.backbones.backbone import Backbone
from promptcli.data import demo
from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import Encoder
from promptcli.errors import UsageError, unknown
from promptcli.evaluation.evaluator import evaluate
from promptcli.models.loading import home_folder
from promptcli.notes import note, working
from promptcli.recipe import RECIPES, Recipe
from promptcli.searching import generate_t5
from promptcli.searching.racing import race
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
)
from promptcli.storage.cache import Cache


@dataclass(frozen=True)
class SearchContext:
    """The input of a strategy."""

    scorer: TemplateScorer
    settings: SearchSettings
    candidates: Sequence[str] | None = None  #: the templates of the file of candidates


Outcome = tuple[dict[str, list[Ranked]], str]  #: heading of a stage -> its templates; and the comparisons, in words


def search_templates(
    backbone: Backbone, task: STSTask, settings: SearchSettings, candidates: Sequence[str] | None = None
) -> Search:
    """Find the template that suits a backbone best; ``candidates`` are those of the settings' file."""
    mode = choose_strategy(settings)
    protocol = STRATEGIES[mode].protocol
    recipe = protocol.replace(backbone=backbone.name, denoise=settings.denoise, period=settings.period)
    scorer = TemplateScorer(backbone, task, recipe=recipe, cache=Cache(home_folder() / "cache" / "search"))
    if backbone.provenance.family == "electra":
        note(f"backbone {backbone.name!r}: an ELECTRA discriminator never saw a mask in training")
    stages, compared = STRATEGIES[mode].search(SearchContext(scorer, settings, candidates))
    ranked = sorted(itertools.chain(*stages.values()), key=lambda item: -item.value)  # of equals the one tried first
    best = ranked[0]
    reading = {"seed": settings.seed, "period": settings.period, "denoise": settings.denoise}
    return Search(
        encoder=scorer.encoder(best.choice),
        task=task,
        ranked=ranked if len(stages) > 1 else ranked[: settings.top],
        about={"mode": mode, "compared": compared, **reading},
        stages=stages,
        baseline=_averages(backbone, task),
        score=scorer.full_score(best),
    )


def _averages(backbone: Backbone, task: STSTask) -> dict[str, Ranked]:
    recipes = {name: RECIPES[name].replace(backbone=backbone.name) for name in ("last-avg", "first-last-avg")}
    scores = evaluate([Encoder(recipe, backbone, {}) for recipe in recipes.values()], [task])
    return {name: Ranked(name, score.value, score.ci95) for name, score in zip(recipes, scores, strict=True)}


def choose_strategy(settings: SearchSettings) -> str:
    """Return the name of the strategy, after refusing settings that it would not read."""
    mode = settings.mode or ("free" if settings.candidates or settings.t5 else "greedy")
    if mode not in STRATEGIES:
        raise unknown("mode", mode, STRATEGIES)
    for item in dataclasses.fields(settings):
        modes = item.metadata.get("modes", (mode,))
        if mode not in modes and getattr(settings, item.name):
            others = " or ".join(modes)
            raise UsageError(f"`{item.name}` belongs to `mode` {others}, not to `mode` {mode}; leave one of them out")
    if settings.candidates and settings.t5:
        raise UsageError("`candidates` and `t5` exclude each other; leave one of them out")
    return mode


def _search_greedily(context: SearchContext) -> Outcome:
    scorer = context.scorer
    space = greedy_space().extended(context.settings.relation, context.settings.prefix)
    number = len(space.relations) + len(space.prefixes)
    with working(f"search {scorer.backbone.name}", number * scorer.size) as advance:
        return search_greedily(lambda texts, stage: scorer.score(texts, stage, advance), space)


def search_greedily(score: Callable[[Sequence[str], str], list[Ranked]], space: GreedySpace) -> Outcome:
    """Find the best relation, then the best prefix around it; ``score`` takes templates and the name of the stage."""
    relations = score([space.template(space.start, relation) for relation in space.relations], "relation")
    best = max(range(len(relations)), key=lambda number: relations[number].value)
    prefixes = score([space.template(prefix, space.relations[best]) for prefix in space.prefixes], "prefix")
    stages = {"Searching for relationship tokens": relations, "Searching for prefix tokens": prefixes}
    return stages, f"{len(relations) + len(prefixes)} templates, each on all pairs"


def _race_freely(context: SearchContext) -> Outcome:
    """Race the templates of a grammar or a file, or those that a T5 writes."""
    settings, always = context.settings, list[str]()
    if settings.t5 is not None:
        templates, source = _written_by_t5(context), "that t5 wrote"
    elif context.candidates is not None:
        templates, source = list(context.candidates), f"of {settings.candidates}"
    else:
        templates, source, always = grammar_templates(), "of the grammar", published_templates()
    drawn = draw(templates, settings.limit or (DRAWN if always else len(templates)), settings.seed, always)
    if len(drawn) < len(templates):
        note(f"{len(drawn):,} of the {len(templates):,} templates {source}; more: `limit`")
    return _race(context, drawn, "Free search")


def _race_demonstrations(context: SearchContext) -> Outcome:
    """Race (text, word) examples in front of the template, and no example (PromptEOL, in-context learning)."""
    settings, plain = context.settings, DEMONSTRATIONS.prompt
    templates = [plain, *demonstrations(_definitions(context), DEMONSTRATIONS)]
    drawn = draw(templates, 1 + (settings.limit or len(templates)), settings.seed, [plain])
    return _race(context, drawn, "Search for a demonstration")


def _race(context: SearchContext, templates: Sequence[str], heading: str) -> Outcome:
    finalists = max(FINALISTS, context.settings.top)
    result = race(templates, context.scorer, seed=context.settings.seed, finalists=finalists)
    steps = [f"{rung.candidates} templates on {rung.pairs} pairs" for rung in result.rungs]
    compared = ", ".join([*steps, f"{len(result.finalists)} on all"])
    if result.twins:
        compared += f"; {result.twins} left out, with the same tokens as another"
    return {heading: result.finalists}, compared


@dataclass(frozen=True)
class Strategy:
    """A way to search."""

    search: Callable[[SearchContext], Outcome]
    protocol: Recipe = PROTOCOL  #: how its templates are read


STRATEGIES: dict[str, Strategy] = {
    "greedy": Strategy(_search_greedily),
    "free": Strategy(_race_freely),
    "demonstrations": Strategy(_race_demonstrations, DEMONSTRATIONS),
}


def _definitions(context: SearchContext) -> list[generate_t5.Definition]:
    definitions = generate_t5.read_definitions(context.settings.pairs or demo.DEFINITIONS)
    if context.settings.pairs is None:
        note(f"assumed: {len(definitions)} shipped words and definitions; others: `pairs` FILE")
    return definitions


def _written_by_t5(context: SearchContext) -> list[str]:
    from promptcli.backbones.t5 import load_t5

    settings, backbone = context.settings, context.scorer.backbone
    assert settings.t5 is not None
    definitions = generate_t5.choose_definitions(_definitions(context), backbone.tokenizer)
    t5 = load_t5(settings.t5, device=str(backbone.device))
    return generate_t5.generate_templates(t5, definitions, beam=settings.beam)


def entry_names(name: str, backbones: Sequence[str]) -> list[str]:
    """Return the name of each backbone's entry: ``name``, or of several ``name-BACKBONE``."""
    if len(backbones) == 1:
        return [name]
    ends = [re.sub(r"[^A-Za-z0-9._-]", "-", backbone.rstrip("/").split("/")[-1]) for backbone in backbones]
    if len(set(ends)) < len(ends):
        raise UsageError(f"backbones {', '.join(map(repr, backbones))} would share a name; search them one by one")
    return [f"{name}-{end}" for end in ends]
