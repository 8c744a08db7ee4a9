"""Searches for heads and layers, the result of any search, and its selection bias."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptcli.data.senteval import senteval_folder, tasks_from
from promptcli.data.tasks import STSTask
from promptcli.data.training_data import development_task, fitting_sentences
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.prompts.causal import Contrastive
from promptcli.errors import UsageError, look_up, unknown
from promptcli.evaluation import statistics
from promptcli.evaluation.evaluator import check_rankable, score_encoders
from promptcli.evaluation.scores import Label, SpearmanScore, rounded
from promptcli.models.entries import Entry
from promptcli.models.loading import Model, backbone_model, open_model, open_registry
from promptcli.notes import note
from promptcli.recipe import RECIPES, SLOT, Recipe
from promptcli.select.head_pass import HEAD_WEIGHTS, HeadCosines, head_cosines
from promptcli.select.tfidf_correlation import (
    Correlation,
    corpus_idf,
    correlate,
    tfidf_weights,
)
from promptcli.settings import BARE, PAPER

SEARCHED = ("static", "last", "first-last")  #: states to try a head on (Ditto, table 2)
#: spread over the first half of the model; and C
_LAYERS_TRIED = 8
_FACTORS_TRIED = (0.25, 0.5, 0.75, 1.0, 2.0, 3.0)
HALVINGS, SEED = 20, 42  #: random halvings of the pairs, each used both ways, and their seed


@dataclass(frozen=True)
class Ranked:
    """One choice and its score."""

    choice: str  #: a pooling or template, in a recipe's notation
    value: float  #: Spearman x 100 over all development pairs
    ci95: tuple[float, float]  #: 95% bootstrap interval over the pairs
    stage: str = ""  #: the stage of the search that scored it
    gain: float | None = None  #: points above the baseline
    tfidf: Correlation | None = None  #: a head's diagonal with TF-IDF

    def to_dict(self) -> dict[str, Any]:
        """Return the known figures, JSON-ready."""
        figures = dataclasses.asdict(self)
        return {name: value for name, value in figures.items() if value not in (None, "")}


def rank(
    choices: Sequence[str],
    cosines: NDArray[np.float64],
    gold: NDArray[np.float64],
    stage: str = "",
) -> list[Ranked]:
    """Return choices with their scores, in their order.

    Args:
        choices: k choices in a recipe's notation.
        cosines: (k, p), of the pairs under each choice.
        gold: (p,) gold scores.
        stage: The stage of the search.
    """
    intervals = statistics.bootstrap_intervals(cosines, gold)
    return [
        Ranked(choice, 100 * statistics.spearman(row, gold), (100 * low, 100 * high), stage)
        for choice, row, (low, high) in zip(choices, cosines, intervals, strict=True)
    ]


@dataclass(frozen=True)
class CrossValidation:
    """Choices made on one half of the pairs and scored on the other half.

    All scores are means of Spearman x 100.
    """

    choices: int  #: number of choices: both ways of every halving
    chosen: float  #: score of the choice on the half that chose it
    held_out: float  #: on the other half
    gain: float  #: ``held_out`` minus the baseline there
    agreement: float  #: share of the choices that equal the best on all pairs

    @property
    def gap(self) -> float:
        """Optimism of the choice, in points."""
        return self.chosen - self.held_out


@dataclass(frozen=True, kw_only=True)
class Search:
    """The result of a search of heads, layers or templates."""

    encoder: TorchEncoder  #: the best choice's encoder
    task: STSTask  #: the development set
    ranked: list[Ranked]  #: the reported choices, best first
    #: how the search was done, JSON-ready; ``compared`` is the number of choices
    about: dict[str, Any]
    #: Scores of the baselines: the plain average per states, the recipe's ``own`` layer, or
    #: averages
    baseline: dict[str, Ranked] = field(default_factory=dict)
    #: heading of a stage -> its choices
    stages: dict[str, list[Ranked]] = field(default_factory=dict)
    #: states -> (L, h) Spearman x 100 of each head
    maps: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    cross_validation: CrossValidation | None = None
    score: SpearmanScore | None = None  #: of the best
    saved_as: str | None = None  #: its name in the registry

    @property
    def best(self) -> Ranked:
        return self.ranked[0]

    @property
    def better_baseline(self) -> Ranked | None:
        best = max(self.baseline.values(), key=lambda row: row.value, default=self.best)
        return best if best.value > self.best.value else None

    @property
    def recipe(self) -> Recipe:
        return self.encoder.recipe

    def entry(self, name: str) -> Entry:
        on = {**self._task_facts(), **self.about, "value": round(self.best.value, 4)}
        if self.cross_validation is not None:
            on["held_out"] = round(self.cross_validation.held_out, 4)
        encoder = self.encoder
        provenance = {**encoder.provenance, "width": encoder.width, "searched_on": on}
        scores = []
        if self.score is not None:
            label = Label(name, self.score.label.recipe)
            scores = [dataclasses.replace(self.score, label=label).to_dict()]
        return Entry(name, self.recipe, encoder.tensors(), provenance, scores)

    def saved(self, name: str | None, *, force: bool) -> "Search":
        """Save the best as a model if ``name`` is given; return the search with that name."""
        if name is not None:
            open_registry().save(self.entry(name), force=force)
        return dataclasses.replace(self, saved_as=name)

    def _task_facts(self) -> dict[str, Any]:
        task = self.task
        return {"task": task.label, "data_sha256": task.sha256(), "pairs": len(task.pairs())}

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "ranked": [row.to_dict() for row in self.ranked],
            "backbone": self.recipe.backbone,
            "recipe": self.recipe.to_dict(),
            **self._task_facts(),
            "text": self.task.text,
            "protocol": self.task.protocol,
            **self.about,
            "model": self.saved_as,
            "baseline": {name: row.to_dict() for name, row in self.baseline.items()},
            "baseline_is_better": self.better_baseline is not None,
        }
        if self.maps:
            document["maps"] = {name: rows.tolist() for name, rows in self.maps.items()}
        halves = self.cross_validation
        if halves is not None:
            document["cross_validation"] = {**vars(halves), "gap": halves.gap}
        figures: dict[str, Any] = rounded(document)
        return figures


def open_search(
    model: Model,
    on: str | Path | STSTask | None,
    name: str | None,
    *,
    force: bool,
    data_dir: str | Path | None,
) -> tuple[STSTask, TorchEncoder]:
    """Return the development set of a search, and a backbone's plain encoder or the given encoder;
    a taken name is refused first.
    """
    if name is not None:
        open_registry().check_free(name, force=force)
    with tasks_from(data_dir):
        if on is None:
            on = BARE.development if senteval_folder() is None else PAPER.development
            note(f"choosing on {on}; the papers used {PAPER.development} and {PAPER.backbone}")
        task = development_task(on)
    check_rankable(task)
    return task, open_model(backbone_model(model), dtype="stored")  # keeps the scores' precision


def cross_validate(
    heads: NDArray[np.float64], plain: NDArray[np.float64], gold: NDArray[np.float64]
) -> CrossValidation:
    """Choose the best head on a random half of the pairs and score it on the other half, both ways.

    ``heads`` are cosines (s, H, n) of H heads on s kinds of states, ``plain`` (s, n) those of the
    states' plain averages, and ``gold`` the gold scores (n,).
    """
    flat = heads.reshape(-1, len(gold))
    generator = np.random.default_rng(SEED)
    half = np.zeros((len(gold), HALVINGS))
    for column in half.T:
        column[generator.permutation(len(gold))[: len(gold) // 2]] = 1
    halves = np.hstack([half, 1 - half])
    others = np.hstack([1 - half, half])
    choice = np.arange(2 * HALVINGS)
    values = correlations(flat, gold, halves)
    chosen = values.argmax(axis=0)
    held_out = np.roll(values, HALVINGS, axis=1)[chosen, choice]
    average = correlations(plain, gold, others)[chosen // heads.shape[1], choice]
    overall = correlations(flat, gold, np.ones((len(gold), 1)))[:, 0].argmax()
    return CrossValidation(
        choices=2 * HALVINGS,
        chosen=100 * float(values[chosen, choice].mean()),
        held_out=100 * float(held_out.mean()),
        gain=100 * float((held_out - average).mean()),
        agreement=float((chosen == overall).mean()),
    )


def correlations(
    cosines: NDArray[np.float64], gold: NDArray[np.float64], counts: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return Spearman's correlations (k, r) of cosines (k, n) with gold (n,) in r samples, whose
    ``counts`` (n, r) repeat each pair.
    """
    ranks = [statistics.ResampledRanks(row) for row in cosines]
    return statistics.resampled_spearman(ranks, statistics.ResampledRanks(gold), counts)


def search_heads(
    model: Model = BARE.backbone,
    on: str | Path | STSTask | None = None,
    corpus: str | Path | Sequence[str] = BARE.corpus,
    *,
    weights: str = "ditto",
    states: Sequence[str] = ("static", "last", "first-last"),
    top: int = 10,
    name: str | None = None,
    force: bool = False,
    data_dir: str | Path | None = None,
) -> Search:
    """Rank all attention heads of a backbone by Ditto pooling, in one pass (Ditto, section 2).

    Every layer-head (both counted from 1) is tried on each kind of states. The scores, Spearman x
    100, are those of the pooling ``STATES/ditto:LAYER-HEAD`` on the development set.

    Args:
        model: Backbone: ``mini-bert``, a folder, a hub id, or a model's; the pooling is not used.
        on: Development set: a task, or a file of graded pairs. Default: STS-B:dev with
            ``data_dir``, else demo:dev.
        corpus: Sentences for counting idf, for the correlation with TF-IDF: texts in a list, a
            file, a task or ``demo``.
        weights: The head's weights of tokens: its diagonal (``ditto``), or its row at the
            template's mask, or last token in causal models (``slot-attention``; a model without a
            template gets a well-known one).
        states: States to try: ``static``, ``last``, ``first-last``.
        top: Number of heads to describe.
        name: Save the best as a model under this name.
        force: Replace a model of that name.
        data_dir: SentEval folder of the tasks.

    Returns:
        The heads, best first, the (L, h) map of each kind of states, and the selection bias.

    Raises:
        UsageError: Unknown states, pairs that cannot rank anything, no corpus, a taken name, or a
            backbone that does not expose its attention.
        NotFoundError: A model, a task or a file is missing.

    Example:
        >>> search = search_heads("mini-bert", states=["first-last"])  # doctest: +SKIP
        >>> search.best.choice, search.best.value  # doctest: +SKIP
    """
    if top < 1:
        raise UsageError(f"must be at least 1, got {top}", parameter="top")
    kind_of_weights = look_up("weights", weights, HEAD_WEIGHTS)
    for kind in states:
        if kind not in SEARCHED:
            raise unknown("states", kind, SEARCHED)
    states = [kind for kind in SEARCHED if kind in states]
    task, encoder = open_search(model, on, name, force=force, data_dir=data_dir)
    if isinstance(corpus, str | Path):
        with tasks_from(data_dir):
            corpus = fitting_sentences(str(corpus))
    backbone = encoder.backbone
    pairs = task.pairs()
    prompt = _with_slot(encoder) if weights == "slot-attention" else SLOT
    recipe = Recipe(backbone=backbone.name, prompt=prompt)
    encoder = TorchEncoder(recipe, backbone, encoder.tensors())
    idf = corpus_idf(encoder, corpus)
    cosines = head_cosines(encoder, pairs.first, pairs.second, states, weights)
    flat = cosines.heads.reshape(-1, len(pairs))
    values = 100 * correlations(flat, pairs.gold, np.ones((len(pairs), 1)))[:, 0]
    best = np.argsort(-values, kind="stable")[:top].tolist()
    shape = (len(states), backbone.n_layers, backbone.n_heads)
    names = [
        f"{states[of_states]}/{weights}:{layer + 1}-{head + 1}{kind_of_weights.suffix}"
        for of_states, layer, head in np.ndindex(shape)
    ]
    count = backbone.n_layers * backbone.n_heads
    averages = rank([f"{kind}/avg" for kind in states], cosines.plain, pairs.gold)
    tfidf = _tfidf(encoder, cosines, [place % count for place in best], idf)
    ranked = []
    chosen = rank([names[place] for place in best], flat[best], pairs.gold)
    for place, item, correlation in zip(best, chosen, tfidf, strict=True):
        gain = item.value - averages[place // count].value
        ranked.append(dataclasses.replace(item, gain=gain, tfidf=correlation))
    compared = f"{count} heads"
    if len(states) > 1:
        compared = f"{len(values)} pairs of a head ({count}) and states ({len(states)})"
    about = {"weights": weights, "states": states, "compared": compared, "idf": len(corpus)}
    search = Search(
        encoder=TorchEncoder(recipe.replace(pooling=ranked[0].choice), backbone, encoder.tensors()),
        task=task,
        ranked=ranked,
        about=about,
        baseline=dict(zip(states, averages, strict=True)),
        maps=dict(zip(states, values.reshape(shape), strict=True)),
        cross_validation=cross_validate(cosines.heads, cosines.plain, pairs.gold),
    )
    return search.saved(name, force=force)


def _with_slot(encoder: TorchEncoder) -> str:
    """Return the prompt whose slot's attention is read: the recipe's own, or a well-known one."""
    if encoder.backbone.causal:
        return encoder.recipe.prompt if encoder.recipe.prompt != SLOT else "prompteol"
    return encoder.recipe.prompt if encoder.template.masks else RECIPES["prompt"].prompt


def _tfidf(
    encoder: TorchEncoder, cosines: HeadCosines, heads: list[int], idf: NDArray[np.float32]
) -> list[Correlation]:
    words = slice(len(encoder.template.left), -len(encoder.template.right) or None)
    attention = np.concatenate([rows[words, heads] for rows in cosines.attention])
    weights = np.concatenate([tfidf_weights(row, idf)[words] for row in cosines.rows])
    return [correlate(column, weights) for column in attention.T]


def search_layers(
    model: Model = BARE.backbone,
    on: str | Path | STSTask | None = None,
    *,
    weights: Sequence[str] = (),
    name: str | None = None,
    force: bool = False,
    data_dir: str | Path | None = None,
) -> Search:
    """Rank the layers of a backbone as a recipe reads them, in one pass.

    The candidates are every layer (0: the embeddings), the last, and the means of first and last.
    For a recipe of ``attention`` or ``values``, its first layers and its last layers are added, and
    for ``values`` each layer alone. A contrastive prompt's own layer and C are also chosen, one
    pass for each.

    Args:
        model: An encoder, or what ``load`` takes; a backbone's name means its plain recipe.
        on: Development set, see ``search_heads``.
        weights: Weights to try on every layer: ``avg``, ``last-token``. Default: the recipe's.
        name: Save the best as a model under this name.
        force: Replace a model of that name.
        data_dir: SentEval folder of the tasks.

    Returns:
        The poolings, best first, in Spearman x 100, and the selection bias.

    Raises:
        UsageError: Unknown weights, transforms in the recipe, a taken name, or pairs that cannot
            rank anything.
        NotFoundError: A model, a task or a file is missing.

    Example:
        >>> search_layers("mini-bert").best.choice  # doctest: +SKIP
    """
    task, encoder = open_search(model, on, name, force=force, data_dir=data_dir)
    if encoder.transforms:
        transforms = ", ".join(encoder.recipe.transforms)
        raise UsageError(
            f"layers are compared without transforms; leave out {transforms}, then fit on the best"
            " layer"
        )
    backbone = encoder.backbone
    own = encoder.recipe
    prompt = encoder.prompt
    scored: list[tuple[TorchEncoder, SpearmanScore]] = []

    def rank(prompts: Iterable[str]) -> TorchEncoder:
        """Score every pooling under some prompts, one pass for each prompt.

        Return the best encoder of all so far.
        """
        for spec in prompts:
            recipes = [
                own.replace(prompt=spec, pooling=pooling) for pooling in _poolings(encoder, weights)
            ]
            encoders = [TorchEncoder(recipe, backbone, encoder.tensors()) for recipe in recipes]
            scored.extend(zip(encoders, score_encoders(encoders, [task]), strict=True))
        return max(scored, key=lambda pair: pair[1].value)[0]  # on ties the earlier

    best = rank([own.prompt])
    if isinstance(prompt, Contrastive):  # the layer first, then C there
        half = np.linspace(0, backbone.n_layers // 2, _LAYERS_TRIED).round().astype(int)
        layers = [layer for layer in dict.fromkeys(half.tolist()) if layer != prompt.layer]
        best = rank(prompt.with_subtraction(layer, prompt.factor) for layer in layers)
        assert isinstance(best.prompt, Contrastive)
        layer = best.prompt.layer
        factors = [factor for factor in _FACTORS_TRIED if factor != prompt.factor]
        best = rank(prompt.with_subtraction(layer, factor) for factor in factors)
    before = scored[0][1].value
    rows = [
        Ranked(_choice(chosen), score.value, score.ci95, gain=score.value - before)
        for chosen, score in scored
    ]
    cosines = np.stack([score.cosines for _, score in scored])
    search = Search(
        encoder=best,
        task=task,
        ranked=sorted(rows, key=lambda row: -row.value),
        about={"compared": f"{len(rows)} poolings"},
        baseline={"own": rows[0]},
        cross_validation=cross_validate(cosines[None], cosines[:1], task.pairs().gold),
    )
    return search.saved(name, force=force)


def _choice(encoder: TorchEncoder) -> str:
    prompt = encoder.prompt
    pooling = encoder.recipe.pooling
    if isinstance(prompt, Contrastive):
        return f"{prompt.settings} {pooling}"
    return pooling


def _poolings(encoder: TorchEncoder, weights: Sequence[str]) -> list[str]:
    """Return the poolings to try, the recipe's own first.

    For ``attention`` and ``values``, the first layers and the last; for ``values`` also each layer
    alone.
    """
    layers = encoder.backbone.n_layers
    own = encoder.recipe.parts.pooling.states.name
    states = [*(f"layer-{layer}" for layer in range(layers)), "last", "first-last", "first-last:1"]
    if own in ("attention", "values"):
        states += [f"{own}:{first}-{layers}" for first in range(1, layers + 1)]
        states += [f"{own}:1-{last}" for last in range(1, layers)]
    if own == "values":  # values of one layer have their own basis
        states += [f"{own}:{layer}-{layer}" for layer in range(2, layers)]
    tried = [
        f"{kind}/{spec}" for spec in weights or [encoder.pooling.weights.spec] for kind in states
    ]
    return list(dict.fromkeys([encoder.recipe.pooling, *tried]))
