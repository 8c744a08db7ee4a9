"""The search for the template that suits a backbone best (PromptBERT, section 4.2); a killed search resumes."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

from promptcli.backbones.backbone import Backbone
from promptcli.data import demo
from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import Encoder
from promptcli.errors import UsageError, unknown
from promptcli.evaluation.evaluator import evaluate
from promptcli.models.loading import home_folder
from promptcli.notes import note, working
from promptcli.recipe import RECIPES
from promptcli.searching.generate_t5 import Definition, choose_definitions, generate_templates, read_definitions
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

#: By mode: how its templates are read.
PROTOCOLS = {"greedy": PROTOCOL, "free": PROTOCOL, "demonstrations": DEMONSTRATIONS}
Outcome = tuple[dict[str, list[Ranked]], str]  #: heading of a stage -> its templates; and the comparisons, in words


def search_templates(
    backbone: Backbone, task: STSTask, settings: SearchSettings, candidates: Sequence[str] | None = None
) -> Search:
    """Find the template that suits a backbone best; ``candidates`` are those of the settings' file."""
    mode = choose_mode(settings)
    recipe = PROTOCOLS[mode].replace(backbone=backbone.name, denoise=settings.denoise, period=settings.period)
    scorer = TemplateScorer(backbone, task, recipe=recipe, cache=Cache(home_folder() / "cache" / "search"))
    if backbone.provenance.family == "electra":
        note(f"backbone {backbone.name!r}: an ELECTRA discriminator never saw a mask in training")
    if mode == "greedy":
        space = greedy_space().extended(settings.relation, settings.prefix)
        count = len(space.relations) + len(space.prefixes)
        with working(f"search {backbone.name}", count * scorer.size) as advance:
            stages, compared = search_greedily(lambda texts, stage: scorer.score(texts, stage, advance), space)
    elif mode == "free":
        stages, compared = _race(scorer, settings, "Free search", _candidates(settings, candidates, backbone))
    else:  # one (text, word) example in front of the template, and none (PromptEOL, in-context learning)
        plain = DEMONSTRATIONS.prompt
        examples = demonstrations(_definitions(settings), DEMONSTRATIONS)
        drawn = draw(examples, settings.limit or len(examples), settings.seed)
        stages, compared = _race(scorer, settings, "Search for a demonstration", [plain, *drawn])
    ranked = sorted(itertools.chain(*stages.values()), key=lambda item: -item.value)  # of equals the one tried first
    reading = {"seed": settings.seed, "period": settings.period, "denoise": settings.denoise}
    averages = {name: RECIPES[name].replace(backbone=backbone.name) for name in ("last-avg", "first-last-avg")}
    scores = evaluate([Encoder(average, backbone, {}) for average in averages.values()], [task])
    return Search(
        encoder=scorer.encoder(ranked[0].choice),
        task=task,
        ranked=ranked if len(stages) > 1 else ranked[: settings.top],
        about={"mode": mode, "compared": compared, **reading},
        stages=stages,
        baseline={name: Ranked(name, row.value, row.ci95) for name, row in zip(averages, scores, strict=True)},
        score=scorer.full_score(ranked[0]),
    )


def choose_mode(settings: SearchSettings) -> str:
    """Return the mode of a search, after refusing settings that it would not read."""
    mode = settings.mode or ("free" if settings.candidates or settings.t5 else "greedy")
    if mode not in PROTOCOLS:
        raise unknown("mode", mode, PROTOCOLS)
    for item in dataclasses.fields(settings):
        modes = item.metadata.get("modes", (mode,))
        if mode not in modes and getattr(settings, item.name):
            others = " or ".join(modes)
            raise UsageError(f"`{item.name}` belongs to `mode` {others}, not to `mode` {mode}; leave one of them out")
    if settings.candidates and settings.t5:
        raise UsageError("`candidates` and `t5` exclude each other; leave one of them out")
    return mode


def search_greedily(score: Callable[[Sequence[str], str], list[Ranked]], space: GreedySpace) -> Outcome:
    """Find the best relation, then the best prefix around it; ``score`` takes templates and the name of the stage."""
    relations = score([space.template(space.start, relation) for relation in space.relations], "relation")
    best = max(range(len(relations)), key=lambda number: relations[number].value)
    prefixes = score([space.template(prefix, space.relations[best]) for prefix in space.prefixes], "prefix")
    stages = {"Searching for relationship tokens": relations, "Searching for prefix tokens": prefixes}
    return stages, f"{len(relations) + len(prefixes)} templates, each on all pairs"


def _candidates(settings: SearchSettings, candidates: Sequence[str] | None, backbone: Backbone) -> list[str]:
    """Return the templates of a free race: of a grammar or a file, or written by a T5."""
    always: list[str] = []
    if settings.t5 is not None:
        from promptcli.backbones.t5 import load_t5

        definitions = choose_definitions(_definitions(settings), backbone.tokenizer)
        t5 = load_t5(settings.t5, device=str(backbone.device))
        templates, source = generate_templates(t5, definitions, beam=settings.beam), "that t5 wrote"
    elif candidates is not None:
        templates, source = list(candidates), f"of {settings.candidates}"
    else:
        templates, source, always = grammar_templates(), "of the grammar", published_templates()
    drawn = draw(templates, settings.limit or (DRAWN if always else len(templates)), settings.seed, always)
    if len(drawn) < len(templates):
        note(f"{len(drawn):,} of the {len(templates):,} templates {source}; more: `limit`")
    return drawn


def _race(scorer: TemplateScorer, settings: SearchSettings, heading: str, templates: Sequence[str]) -> Outcome:
    result = race(templates, scorer, seed=settings.seed, finalists=max(FINALISTS, settings.top))
    steps = [f"{rung.candidates} templates on {rung.pairs} pairs" for rung in result.rungs]
    compared = ", ".join([*steps, f"{len(result.finalists)} on all"])
    if result.twins:
        compared += f"; {result.twins} left out, with the same tokens as another"
    return {heading: result.finalists}, compared


def _definitions(settings: SearchSettings) -> list[Definition]:
    definitions = read_definitions(settings.pairs or demo.DEFINITIONS)
    if settings.pairs is None:
        note(f"assumed: {len(definitions)} shipped words and definitions; others: `pairs` FILE")
    return definitions
