"""The search for the template that suits a backbone best (PromptBERT, section 4.2).

A killed search resumes.
"""

import itertools
import random
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcli.backbones.backbone import Backbone
from promptcli.data import demo
from promptcli.data.column_choice import ColumnChoice
from promptcli.data.rows import open_rows
from promptcli.data.senteval import tasks_from
from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.template import check_template
from promptcli.encoder.text_rules import text_rule, with_period
from promptcli.errors import UsageError, counted, if_stopped, unknown
from promptcli.evaluation.evaluator import score_encoders
from promptcli.models.loading import Model
from promptcli.named_templates import templates_folder
from promptcli.notes import note, stage
from promptcli.recipe import MASK, RECIPES, SLOT, Recipe, last_part
from promptcli.select.generate_t5 import (
    Definition,
    choose_definitions,
    generate_templates,
    read_definitions,
)
from promptcli.select.racing import race
from promptcli.select.search import Ranked, Search, development, open_backbone, saving
from promptcli.select.template_scorer import DEMONSTRATIONS, PROTOCOL, TemplateScorer
from promptcli.settings import BARE, home_folder
from promptcli.storage.cache import Cache

#: By mode: how its templates are read.
PROTOCOLS = {"greedy": PROTOCOL, "free": PROTOCOL, "demonstrations": DEMONSTRATIONS}
DRAWN = 600  #: templates drawn from the packaged grammar by default
AVERAGES = ("last-avg", "first-last-avg")  #: what templates compete with
FINALISTS = 10  #: templates that are scored on all pairs in the end, at least
_SLOT_NAME = re.compile(r"<([a-z]+)>")
#: heading of a stage -> its templates; and the comparisons, in words
Outcome = tuple[dict[str, list[Ranked]], str]


@dataclass(frozen=True)
class SearchSettings:
    """The candidates and how they are scored, see ``search_templates``."""

    candidates: str | Path | None
    t5: str | None
    pairs: str | Path | None
    beam: int
    limit: int | None
    top: int
    seed: int


@dataclass(frozen=True)
class GreedySpace:
    """The pieces of the greedy search (PromptBERT, section 4.2).

    A template is prefix, relation, ending.
    """

    start: str  #: the prefix of the first stage, ``[X]`` alone
    #: candidates of the first stage, without any prefix; empty is a candidate
    relations: tuple[str, ...]
    prefixes: tuple[str, ...]  #: candidates of the second stage, with [X]
    ending: str  #: after the relation, with [MASK]

    def template(self, prefix: str, relation: str) -> str:
        """Return the template of a prefix and a relation, one space between its parts."""
        return " ".join(part for part in (prefix, relation, self.ending) if part)


def greedy_space() -> GreedySpace:
    """Return the paper's candidates, in its order."""
    return GreedySpace(**_packaged()["greedy"])


def published_scores(backbone: str, task: str) -> Mapping[str, float]:
    """Return the published figure of each template for a backbone, by the last part of its name,
    and a task.
    """
    tables = {
        (table["backbone"], table["task"]): table["scores"] for table in _packaged()["published"]
    }
    scores: dict[str, float] = tables.get((last_part(backbone), task), {})
    return scores


def published_templates() -> list[str]:
    """Return the paper's templates of the greedy search, in its order."""
    return list(
        dict.fromkeys(text for table in _packaged()["published"] for text in table["scores"])
    )


def grammar_templates() -> list[str]:
    """Return the templates of the packaged grammar, each text once: patterns with every filling of
    ``<name>``.
    """
    patterns, slots = _packaged()["grammar"].values()
    templates: dict[str, None] = {}
    for pattern in patterns:
        names = list(dict.fromkeys(_SLOT_NAME.findall(pattern)))
        for fillings in itertools.product(*(slots[name] for name in names)):
            chosen = dict(zip(names, fillings, strict=True))
            filled = _SLOT_NAME.sub(lambda match: chosen[match[1]], pattern)  # noqa: B023 - called at once
            templates[" ".join(filled.split())] = None
    return list(templates)


def draw(templates: Sequence[str], limit: int, seed: int, always: Sequence[str] = ()) -> list[str]:
    """Return at most ``limit`` templates: those of ``always``, then others drawn by a seed."""
    rest = [text for text in templates if text not in set(always)]
    room = max(0, limit - len(always))
    return [*always, *(rest if len(rest) <= room else random.Random(seed).sample(rest, room))]


def read_candidates(path: Path) -> list[str]:
    """Read a file with one template a line; return each text once, in its order."""
    with open_rows(path, ColumnChoice(remedy="")) as lines:
        texts = list(filter(None, map(str.strip, lines.texts())))
    if not texts:
        raise UsageError(f"{path} is empty; give a template a line")
    for number, text in enumerate(texts, 1):
        try:
            check_template(text)
            if MASK not in text:
                raise UsageError(f"template {text!r} has no {MASK}; it needs exactly one")
        except UsageError as error:
            raise UsageError(f"{path}, candidate {number}: {error}") from None
    return list(dict.fromkeys(texts))


def demonstrations(pairs: Iterable[tuple[str, str]], recipe: Recipe) -> list[str]:
    """Return a recipe's template with one example in front of it, one template for each (word, text
    that it sums up).

    The example is written as the evaluation writes a sentence, the word with a capital and closed
    by a quotation mark and a full stop: ``This sentence : "meat from a deer." means in one
    word:"Venison".This sentence : "[X]" ...``.

    Example:
        >>> demonstrations([("rain", "water that falls")], Recipe(prompt='"[X]" is:"'))
        ['"water that falls." is:"Rain"."[X]" is:"']
    """
    rule = text_rule(recipe.text_rule)
    texts = []
    for word, text in pairs:
        if SLOT in word + text:
            raise UsageError(
                f"demonstration {word!r}: {text!r} has {SLOT}, the place of the sentence; leave"
                " it out"
            )
        example = recipe.prompt.replace(SLOT, rule.change(with_period(text)))
        texts.append(f'{example}{word[:1].upper()}{word[1:]}".{recipe.prompt}')
    return list(dict.fromkeys(texts))


def search_templates(
    model: Model = BARE.backbone,
    on: str | Path | STSTask | None = None,
    *,
    mode: str | None = None,
    candidates: str | Path | None = None,
    t5: str | None = None,
    pairs: str | Path | None = None,
    beam: int = 100,
    limit: int | None = None,
    top: int = 10,
    seed: int = 42,
    name: str | None = None,
    force: bool = False,
    data_dir: str | Path | None = None,
) -> Search:
    """Find the template that suits a backbone best (PromptBERT, section 4.2).

    A search that was stopped resumes from its cached scores.

    Args:
        model: Backbone: ``mini-bert``, a folder, a hub id, or a model's.
        on: Development set, see ``search_heads``.
        mode: ``greedy``: PromptBERT 4.2, relation tokens, then prefix tokens around the best of
            them; ``free``: a race among the templates of a grammar or a file, or those that a T5
            writes; ``demonstrations``: a race among examples in front of PromptEOL's template, on a
            causal model. Default: greedy, with ``candidates`` or ``t5`` free.
        candidates: File of templates, one a line. Default: the packaged grammar's.
        t5: Folder or hub id of a T5 that writes the candidates as in LM-BFF.
        pairs: Of ``demonstrations`` and ``t5``: file of word<TAB>definition lines, or
            word<TAB>sentence that it sums up. Default: 235 shipped ones.
        beam: Templates that a T5 keeps (the paper: 500).
        limit: Number of candidates to draw. Default: 600 of the packaged grammar, else all.
        top: Number of templates of a race to list.
        seed: Of the draw and of the order of the pairs.
        name: Save the best as a model under this name.
        force: Replace a model of that name.
        data_dir: SentEval folder of the tasks.

    Returns:
        The templates, best first, in Spearman x 100.

    Raises:
        UsageError: Settings that do not go together, a name that is taken, or a backbone, templates
            or pairs that cannot be searched.
        NotFoundError: A model, a file or a task is missing.

    Example:
        >>> search_templates("mini-bert", mode="free", limit=12).best.choice  # doctest: +SKIP
    """
    for parameter, value, least in (
        ("beam", beam, 2),
        ("limit", limit, 1),
        ("top", top, 1),
        ("seed", seed, 0),
    ):
        if value is not None and value < least:
            raise UsageError(f"must be at least {least}, got {value}", parameter=parameter)
    if candidates and t5:
        raise UsageError("excludes t5; leave one of them out", parameter="candidates")
    mode = mode or ("free" if candidates or t5 else "greedy")
    if mode not in PROTOCOLS:
        raise unknown("mode", mode, PROTOCOLS)
    settings = SearchSettings(candidates, t5, pairs, beam, limit, top, seed)
    with tasks_from(data_dir):
        save = saving(name, force)
        texts = None if candidates is None else read_candidates(Path(candidates))
        task = development(on)
        backbone = open_backbone(model).backbone
        with if_stopped("scored templates are kept; run the same command to continue"):
            return save(_rank_templates(backbone, task, mode, settings, texts))


def _rank_templates(
    backbone: Backbone,
    task: STSTask,
    mode: str,
    settings: SearchSettings,
    candidates: Sequence[str] | None,
) -> Search:
    """Score the templates of a mode; ``candidates`` are those of the settings' file."""
    recipe = PROTOCOLS[mode].replace(backbone=backbone.name)
    scorer = TemplateScorer(
        backbone, task, recipe=recipe, cache=Cache(home_folder() / "cache" / "search")
    )
    if backbone.provenance.family == "electra":
        note(f"backbone {backbone.name!r}: an ELECTRA discriminator never saw a mask in training")
    if mode == "greedy":
        space = greedy_space()
        count = len(space.relations) + len(space.prefixes)
        with stage(f"search {backbone.name}", count * scorer.size) as advance:
            stages, compared = search_greedily(
                lambda texts, stage: scorer.score(texts, stage, advance), space
            )
    elif mode == "free":
        stages, compared = _race(
            scorer, settings, "Free search", _candidates(settings, candidates, backbone)
        )
    # one (text, word) example in front of the template, and none (PromptEOL, in-context learning)
    else:
        plain = DEMONSTRATIONS.prompt
        examples = demonstrations(_definitions(settings), DEMONSTRATIONS)
        drawn = draw(examples, settings.limit or len(examples), settings.seed)
        stages, compared = _race(scorer, settings, "Search for a demonstration", [plain, *drawn])
    # of equals the one tried first
    ranked = sorted(itertools.chain(*stages.values()), key=lambda item: -item.value)
    best = scorer.encoder(ranked[0].choice)
    averages = [
        TorchEncoder(RECIPES[name].replace(backbone=backbone.name), backbone, {})
        for name in AVERAGES
    ]
    score, *others = score_encoders([best, *averages], [task])
    return Search(
        encoder=best,
        task=task,
        ranked=ranked if len(stages) > 1 else ranked[: settings.top],
        about={"mode": mode, "compared": compared, "seed": settings.seed},
        stages=stages,
        baseline={
            name: Ranked(name, other.value, other.ci95)
            for name, other in zip(AVERAGES, others, strict=True)
        },
        score=score,
    )


def search_greedily(
    score: Callable[[Sequence[str], str], list[Ranked]], space: GreedySpace
) -> Outcome:
    """Find the best relation, then the best prefix around it.

    ``score`` takes templates and the name of the stage.
    """
    relations = score([space.template(space.start, each) for each in space.relations], "relation")
    values = [scored.value for scored in relations]
    relation = space.relations[values.index(max(values))]
    prefixes = score([space.template(each, relation) for each in space.prefixes], "prefix")
    stages = {
        "Searching for relationship tokens": relations,
        "Searching for prefix tokens": prefixes,
    }
    return stages, f"{len(relations) + len(prefixes)} templates were scored, each on all pairs"


def _candidates(
    settings: SearchSettings, candidates: Sequence[str] | None, backbone: Backbone
) -> list[str]:
    """Return the templates of a free race: of a grammar or a file, or written by a T5."""
    always: list[str] = []
    limit = settings.limit
    if settings.t5 is not None:
        from promptcli.backbones.t5 import load_t5

        definitions = choose_definitions(_definitions(settings), backbone.tokenizer)
        t5 = load_t5(settings.t5, device=str(backbone.device))
        templates = generate_templates(t5, definitions, beam=settings.beam)
        source = "that t5 wrote"
    elif candidates is not None:
        templates = list(candidates)
        source = f"of {settings.candidates}"
    else:
        templates = grammar_templates()
        source = "of the grammar"
        always = published_templates()
        limit = limit or DRAWN
    drawn = draw(templates, limit or len(templates), settings.seed, always)
    if len(drawn) < len(templates):
        note(
            f"{len(drawn):,} of the {len(templates):,} templates {source} are tried; a higher limit"
            " tries more"
        )
    return drawn


def _race(
    scorer: TemplateScorer, settings: SearchSettings, heading: str, templates: Sequence[str]
) -> Outcome:
    finalists, rungs = race(
        templates, scorer, seed=settings.seed, finalists=max(FINALISTS, settings.top)
    )
    steps = [f"{rung.candidates} templates were scored on {rung.pairs:,} pairs" for rung in rungs]
    last = f"{counted(len(finalists), 'finalist')} on all {scorer.size:,} pairs"
    return {heading: finalists}, "; ".join([*steps, last])


def _definitions(settings: SearchSettings) -> list[Definition]:
    definitions = read_definitions(Path(settings.pairs or demo.DEFINITIONS_FILE))
    if settings.pairs is None:
        note(f"using the {len(definitions)} shipped words and definitions")
    return definitions


def _packaged() -> dict[str, Any]:
    with (templates_folder() / "search.toml").open("rb") as file:
        return tomllib.load(file)
