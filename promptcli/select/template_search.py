"""The search for the template that suits a backbone best (PromptBERT, section 4.2).

The scores of templates are cached, so a killed search resumes. A race (successive halving, Jamieson
and Talwalkar, 2016) compares all templates on few pairs, the better ones on more, and the last ten
on all. The pairs of a rung are among those of the next one, so no sentence is encoded twice on the
way. The result does not depend on the order of the candidates.
"""

import itertools
import math
import random
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptcli.backbones.backbone import Backbone
from promptcli.data import demo
from promptcli.data.tasks import STSTask
from promptcli.data.training_data import stream_sentences
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.template import check_template, text_rule, with_period
from promptcli.errors import UsageError, if_stopped, look_up, with_count
from promptcli.evaluation import statistics
from promptcli.evaluation.evaluator import row_of_sentences, score_encoders
from promptcli.models.loading import Model
from promptcli.named_templates import templates_folder
from promptcli.notes import Advance, note, stage
from promptcli.recipe import MASK, RECIPES, SLOT, Recipe, last_part
from promptcli.select.generate_t5 import (
    Definition,
    choose_definitions,
    generate_templates,
    read_definitions,
)
from promptcli.select.search import ScoredChoice, SearchResult, open_search, score_choices
from promptcli.settings import BUILT_IN, home_folder
from promptcli.storage.cache import Cache

#: A template read at its mask (PromptBERT eq. 2), with the period rule of its evaluation.
PROTOCOL = Recipe(prompt=f"{SLOT} {MASK} .", period=True, pooling="last/mask")
#: Examples in front of PromptEOL's template, read at the last token.
DEMONSTRATIONS = RECIPES["prompteol"].replace(period=True)
#: Mode -> the recipe of its templates.
PROTOCOLS = {"greedy": PROTOCOL, "free": PROTOCOL, "demonstrations": DEMONSTRATIONS}
HEADINGS = {"free": "Free search", "demonstrations": "Search for a demonstration"}  #: of a race
GRAMMAR_LIMIT = 600  #: templates drawn from the packaged grammar by default
AVERAGES = ("last-avg", "first-last-avg")  #: baselines
MIN_FINALISTS = 10  #: fewest templates in the final, on all pairs
_SLOT_NAME = re.compile(r"<([a-z]+)>")
#: Sentences per pass for a subset of the pairs. Small batches sorted by length are hardly padded.
#: Under the full token budget, the 150 or so sentences of a rung would be one or two batches, a
#: third of them padding (STS-B dev).
_SMALL_BATCH = 32
#: How fast a race narrows. It costs about 12% of scoring every candidate on every pair.
_FIRST_SHARE = 1 / 20  # share of the pairs in the first rung
_MIN_PAIRS = 48  # fewest pairs of the first rung: with fewer a correlation is too uncertain
_PAIR_GROWTH = 2.0  # factor of the pairs from one rung to the next
_CANDIDATE_CUT = 2.5  # divisor of the candidates from one rung to the next


class TemplateScorer:
    """Cosines and scores of templates on one task, for one backbone and one protocol: ``recipe``
    without its prompt.

    ``gold`` holds the gold scores (p,) of the ``size`` = p pairs. ``encoded`` counts the sentences
    encoded so far.
    """

    def __init__(
        self, backbone: Backbone, task: STSTask, recipe: Recipe, cache: Cache | None = None
    ) -> None:
        pairs = task.pairs()
        self.backbone = backbone
        self.task = task
        self.recipe = recipe
        self.gold = pairs.gold
        self.size = len(pairs)
        self.encoded = 0
        row_of = row_of_sentences([task])
        self._sentences = list(row_of)
        first = [row_of[sentence] for sentence in pairs.first]
        second = [row_of[sentence] for sentence in pairs.second]
        self._sides = np.array([first, second])  # (2, p) rows
        self._cache = cache

    def encoder(self, template: str) -> TorchEncoder:
        """Return the encoder with a template."""
        return TorchEncoder(self.recipe.replace(prompt=template), self.backbone, {})

    def cosines(self, template: str, pairs: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
        """Return the cosines (p,) of a template on the pairs with these numbers (p,), or on all.

        All pairs are encoded in the same batches as in ``eval``, a subset in small batches. On a
        GPU a subset has large batches, too: waiting costs more than padding there.
        """
        numbers = np.arange(self.size) if pairs is None else pairs
        encoder = self.encoder(template)
        key = {
            "fingerprint": encoder.fingerprint,
            "dtype": str(self.backbone.dtype),
            "data": self.task.sha256(),
            "pairs": numbers.tolist(),
        }
        cached = self._cache.get(key) if self._cache is not None else None
        if cached is not None:
            return np.array(cached)
        rows, (first, second) = np.unique(self._sides[:, numbers], return_inverse=True)
        is_small = pairs is not None and self.backbone.device.type != "cuda"
        sentences = [self._sentences[row] for row in rows]
        vectors = encoder.encode(sentences, batch_size=_SMALL_BATCH if is_small else None)
        self.encoded += len(rows)
        cosines = statistics.cosine(vectors[first], vectors[second])
        if self._cache is not None:
            self._cache.put(key, cosines.tolist())
        return cosines

    def score(self, templates: Sequence[str], stage: str, advance: Advance) -> list[ScoredChoice]:
        """Score templates on all pairs, in their order.

        ``advance`` takes the number of newly scored pairs.
        """
        cosines = []
        for template in templates:
            cosines.append(self.cosines(template))
            advance(self.size)
        return score_choices(templates, np.stack(cosines), self.gold, stage)


class Rung(NamedTuple):
    """A comparison of some candidates on some pairs."""

    candidates: int
    pairs: int


def plan_rungs(candidates: int, pairs: int, finalists: int) -> list[Rung]:
    """Return the rungs before the final; none if there are few candidates or pairs."""
    rungs = []
    rung_pairs = float(max(_MIN_PAIRS, pairs * _FIRST_SHARE))
    while candidates > finalists and round(rung_pairs) < pairs:
        rungs.append(Rung(candidates, round(rung_pairs)))
        candidates = max(finalists, math.ceil(candidates / _CANDIDATE_CUT))
        rung_pairs *= _PAIR_GROWTH
    return rungs


def spread_order(gold: NDArray[np.float64], seed: int) -> NDArray[np.intp]:
    """Return an order (p,) of the pairs in which every prefix covers all levels of the gold score
    evenly.

    The pairs are sorted by gold score, ties shuffled, and taken at the points of a shifted van der
    Corput sequence.
    """
    from scipy.stats import qmc  # slow to import, and not every search races

    generator = np.random.default_rng(seed)
    size = len(gold)
    by_gold = np.lexsort((generator.random(size), gold))
    count = 2 ** max(1, math.ceil(math.log2(size)))
    sequence = qmc.Halton(1, scramble=False).random(count)[:, 0]  # of base 2: van der Corput's
    shifted = (sequence + generator.random()) % 1.0
    points = np.floor(shifted * size).astype(np.intp)
    _, first_seen = np.unique(points, return_index=True)
    distinct = points[np.sort(first_seen)]
    order: NDArray[np.intp] = by_gold[distinct]
    return order


def race(
    templates: Sequence[str], scorer: TemplateScorer, *, seed: int = 42, finalists: int = 10
) -> tuple[list[ScoredChoice], list[Rung]]:
    """Find the best templates; the order of the given ones does not matter.

    Return the ``finalists``, best first, and the earlier rungs. Only the finalists are scored on
    all pairs.
    """
    remaining = sorted(set(templates))
    order = spread_order(scorer.gold, seed)
    rungs = plan_rungs(len(remaining), scorer.size, finalists)
    final = Rung(finalists, scorer.size)
    cosines: dict[str, NDArray[np.float64]] = {template: np.empty(0) for template in remaining}
    earlier_pairs = 0  # pairs of the earlier rungs
    with stage("race", None) as advance:
        for rung, following in itertools.pairwise([*rungs, final]):
            new_pairs = order[earlier_pairs : rung.pairs]
            gold = scorer.gold[order[: rung.pairs]]
            values: dict[str, float] = {}
            for template in remaining:
                new_cosines = scorer.cosines(template, new_pairs)
                cosines[template] = np.concatenate([cosines[template], new_cosines])
                values[template] = statistics.spearman(cosines[template], gold)
                advance(len(new_pairs))
            # on ties in the order of their texts
            ranking = sorted(values, key=lambda template: (-values[template], template))
            remaining = ranking[: following.candidates]
            earlier_pairs = rung.pairs
        final_rows = scorer.score(remaining, "final", advance)
    return sorted(final_rows, key=lambda row: (-row.value, row.choice)), rungs


def published_scores(backbone: str, task: str) -> Mapping[str, float]:
    """Return the published score of each template for a backbone, by the last part of its name, and
    a task.
    """
    tables = {
        (table["backbone"], table["task"]): table["scores"] for table in _packaged()["published"]
    }
    scores: dict[str, float] = tables.get((last_part(backbone), task), {})
    return scores


def published_templates() -> list[str]:
    """Return the templates of the paper's greedy search, in its order."""
    return list(
        dict.fromkeys(text for table in _packaged()["published"] for text in table["scores"])
    )


def grammar_templates() -> list[str]:
    """Return the templates of the packaged grammar, each once: its patterns with every filling of
    ``<name>``.
    """
    patterns, slots = _packaged()["grammar"].values()
    templates = []
    for pattern in patterns:
        filled = [pattern]
        for name in dict.fromkeys(_SLOT_NAME.findall(pattern)):
            fillings = itertools.product(filled, slots[name])
            filled = [text.replace(f"<{name}>", word) for text, word in fillings]
        templates += [" ".join(text.split()) for text in filled]
    return list(dict.fromkeys(templates))


def draw(templates: Sequence[str], limit: int, seed: int, always: Sequence[str] = ()) -> list[str]:
    """Return at most ``limit`` templates: those in ``always``, then some drawn with a seed."""
    optional = [text for text in templates if text not in set(always)]
    count = max(0, limit - len(always))
    if len(optional) > count:
        optional = random.Random(seed).sample(optional, count)
    return [*always, *optional]


def read_candidates(path: Path) -> list[str]:
    """Read a file with one template per line; return each text once, in order."""
    texts = list(map(str.strip, stream_sentences(path)))
    if not texts:
        raise UsageError(f"{path} is empty; put one template on each line")
    for number, text in enumerate(texts, 1):
        try:
            check_template(text)
            if MASK not in text:
                raise UsageError(f"template {text!r} has no {MASK}; it needs exactly one")
        except UsageError as error:
            raise UsageError(f"{path}, candidate {number}: {error}") from None
    return list(dict.fromkeys(texts))


def demonstrations(pairs: Iterable[tuple[str, str]], recipe: Recipe) -> list[str]:
    """Return one template per (word, summarised text): the recipe's template after that example.

    The example is written as the evaluation writes a sentence. Its word is capitalised, and a
    quotation mark and a full stop follow: ``This sentence : "meat from a deer." means in one
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
    model: Model = BUILT_IN.backbone,
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
) -> SearchResult:
    """Find the best template for a backbone (PromptBERT, section 4.2).

    A stopped search resumes from its cached scores.

    Args:
        model: Backbone: ``mini-bert``, a folder, a hub id, or a model's.
        on: Development set, see ``search_heads``.
        mode: ``greedy``: PromptBERT 4.2, relation tokens, then prefix tokens around the best
            relation; ``free``: a race among templates of a grammar, a file or a T5;
            ``demonstrations``: a race among examples in front of PromptEOL's template, on a causal
            model. Default: greedy; with ``candidates`` or ``t5``, free.
        candidates: File of templates, one a line. Default: the packaged grammar's.
        t5: Folder or hub id of a T5 that generates the candidates as in LM-BFF.
        pairs: For ``demonstrations`` and ``t5``: file of lines word<TAB>definition, or
            word<TAB>sentence that the word sums up. Default: 235 shipped pairs.
        beam: Templates that a T5 keeps (the paper: 500).
        limit: Number of candidates to draw. Default: 600 of the packaged grammar, else all.
        top: Number of templates of a race to list.
        seed: Seed of the draw and of the order of the pairs.
        name: Save the best as a model under this name.
        force: Replace a model of that name.
        data_dir: SentEval folder of the tasks.

    Returns:
        The templates, best first, in Spearman x 100.

    Raises:
        UsageError: Settings that exclude each other, a taken name, or a backbone, templates or
            pairs that cannot be searched.
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
    protocol = look_up("mode", mode, PROTOCOLS)
    listed = None if candidates is None else read_candidates(Path(candidates))
    task, opened = open_search(model, on, name, force=force, data_dir=data_dir)
    backbone = opened.backbone
    if backbone.provenance.family == "electra":
        note(f"backbone {backbone.name!r}: an ELECTRA discriminator never saw a mask in training")
    cache = Cache(home_folder() / "cache" / "search")
    scorer = TemplateScorer(backbone, task, protocol.replace(backbone=backbone.name), cache)
    with if_stopped("scored templates are kept; run the same command to continue"):
        if mode == "greedy":
            stages, compared = search_greedily(scorer.score, scorer.size)
        else:
            if mode == "demonstrations":  # templates with an example, and one without
                examples = demonstrations(_definitions(pairs), DEMONSTRATIONS)
                drawn = draw(examples, limit or len(examples), seed)
                templates = [DEMONSTRATIONS.prompt, *drawn]
            elif t5 is not None:
                generated = _generate_by_t5(t5, _definitions(pairs), beam, backbone)
                templates = _draw_for_race(generated, "that t5 wrote", limit, seed)
            elif listed is not None:
                templates = _draw_for_race(listed, f"of {candidates}", limit, seed)
            else:
                always = published_templates()
                grammar = grammar_templates()
                count = limit or GRAMMAR_LIMIT
                templates = _draw_for_race(grammar, "of the grammar", count, seed, always)
            finalists, rungs = race(templates, scorer, seed=seed, finalists=max(MIN_FINALISTS, top))
            stages = {HEADINGS[mode]: finalists}
            steps = [
                f"{rung.candidates} templates were scored on {rung.pairs:,} pairs" for rung in rungs
            ]
            steps.append(f"{with_count(len(finalists), 'finalist')} on all {scorer.size:,} pairs")
            compared = "; ".join(steps)
        # on ties the one that was tried first
        ranking = sorted(itertools.chain(*stages.values()), key=lambda row: -row.value)
        best = scorer.encoder(ranking[0].choice)
        averages = [
            TorchEncoder(RECIPES[name].replace(backbone=backbone.name), backbone, {})
            for name in AVERAGES
        ]
        score, *average_scores = score_encoders([best, *averages], [task])
    search = SearchResult(
        encoder=best,
        task=task,
        ranked=ranking if mode == "greedy" else ranking[:top],
        compared_in_words=compared,
        settings={"mode": mode, "seed": seed},
        stages=stages,
        baselines={
            average: ScoredChoice(average, average_score.value, average_score.ci95)
            for average, average_score in zip(AVERAGES, average_scores, strict=True)
        },
        score=score,
    )
    return search if name is None else search.save(name, force=force)


def search_greedily(
    score: Callable[[Sequence[str], str, Advance], list[ScoredChoice]], size: int
) -> tuple[dict[str, list[ScoredChoice]], str]:
    """Find the best relation, then the best prefix around it.

    ``score`` takes templates, the name of the stage, and a callback for the number of scored pairs
    out of ``size``. Return each stage's templates by its heading, and the comparisons in words.
    """
    space = _packaged()["greedy"]

    def template(prefix: str, relation: str) -> str:
        return " ".join(filter(None, (prefix, relation, space["ending"])))

    count = len(space["relations"]) + len(space["prefixes"])
    with stage("search", count * size) as advance:
        templates = [template(space["start"], relation) for relation in space["relations"]]
        relations = score(templates, "relation", advance)
        values = [row.value for row in relations]
        best = space["relations"][values.index(max(values))]
        templates = [template(prefix, best) for prefix in space["prefixes"]]
        prefixes = score(templates, "prefix", advance)
    stages = {
        "Searching for relationship tokens": relations,
        "Searching for prefix tokens": prefixes,
    }
    return stages, f"{count} templates were scored, each on all pairs"


def _generate_by_t5(
    name: str, definitions: Sequence[Definition], beam: int, backbone: Backbone
) -> list[str]:
    from promptcli.backbones.t5 import load_t5

    fitting = choose_definitions(definitions, backbone.tokenizer)
    t5 = load_t5(name, device=str(backbone.device))
    return generate_templates(t5, fitting, beam=beam)


def _draw_for_race(
    templates: Sequence[str], source: str, limit: int | None, seed: int, always: Sequence[str] = ()
) -> list[str]:
    """Draw the templates of a race; note their number if some are left out."""
    drawn = draw(templates, limit or len(templates), seed, always)
    if len(drawn) < len(templates):
        note(
            f"{len(drawn):,} of the {len(templates):,} templates {source} are tried; a higher limit"
            " tries more"
        )
    return drawn


def _definitions(pairs: str | Path | None) -> list[Definition]:
    definitions = read_definitions(Path(pairs or demo.DEFINITIONS_FILE))
    if pairs is None:
        note(f"using the {len(definitions)} shipped words and definitions")
    return definitions


def _packaged() -> dict[str, Any]:
    with (templates_folder() / "search.toml").open("rb") as file:
        return tomllib.load(file)
