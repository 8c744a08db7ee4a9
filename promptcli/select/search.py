"""The result of a search for a head, a layer or a template, and its selection bias."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptcli.data.senteval import senteval_folder, tasks_from
from promptcli.data.tasks import STSTask
from promptcli.data.training_data import development_task
from promptcli.encoder.encoder import TorchEncoder
from promptcli.evaluation import statistics
from promptcli.evaluation.evaluator import check_rankable
from promptcli.evaluation.scores import Label, SpearmanScore, rounded
from promptcli.models.entries import Entry
from promptcli.models.loading import Model, backbone_model, open_registry, open_torch_encoder
from promptcli.notes import note
from promptcli.recipe import Recipe
from promptcli.select.tfidf_correlation import Correlation
from promptcli.settings import BUILT_IN, PAPER

HALVINGS = 20  #: random halvings of the pairs, each used both ways
SEED = 42  #: of the halvings


@dataclass(frozen=True)
class ScoredChoice:
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


def score_choices(
    choices: Sequence[str],
    cosines: NDArray[np.float64],
    gold: NDArray[np.float64],
    stage: str = "",
) -> list[ScoredChoice]:
    """Return choices with their scores, in their order.

    Args:
        choices: k choices in a recipe's notation.
        cosines: (k, p), of the pairs under each choice.
        gold: (p,) gold scores.
        stage: The stage of the search.
    """
    intervals = statistics.bootstrap_intervals(cosines, gold)
    return [
        ScoredChoice(choice, 100 * statistics.spearman(row, gold), (100 * low, 100 * high), stage)
        for choice, row, (low, high) in zip(choices, cosines, intervals, strict=True)
    ]


@dataclass(frozen=True)
class CrossValidation:
    """The mean scores, in Spearman x 100, of choices made on one half of the pairs."""

    choices: int  #: number of choices: both ways of every halving
    chosen: float  #: score of the choice on the half that chose it
    held_out: float  #: on the other half
    gain: float  #: ``held_out`` minus the baseline there
    agreement: float  #: share of the choices that are also the best on all pairs

    @property
    def gap(self) -> float:
        """The optimism of a choice, in points."""
        return self.chosen - self.held_out


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The result of a search of heads, layers or templates."""

    encoder: TorchEncoder  #: the encoder of the best choice
    task: STSTask  #: the development set
    ranked: list[ScoredChoice]  #: the reported choices, best first
    compared_in_words: str  #: how many choices were compared, in words
    settings: dict[str, Any]  #: of the search, JSON-ready
    #: name of a baseline -> its score: the plain average of each kind of states, the recipe's layer
    #: (``own``), or the average recipes
    baselines: dict[str, ScoredChoice]
    #: heading of a stage -> its choices
    stages: dict[str, list[ScoredChoice]] = field(default_factory=dict)
    #: states -> (L, h) Spearman x 100 of each head
    maps: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    cross_validation: CrossValidation | None = None
    score: SpearmanScore | None = None  #: of the best choice
    saved_as: str | None = None  #: its name in the registry

    @property
    def best(self) -> ScoredChoice:
        return self.ranked[0]

    @property
    def better_baseline(self) -> ScoredChoice | None:
        best = max(self.baselines.values(), key=lambda row: row.value)
        return best if best.value > self.best.value else None

    @property
    def recipe(self) -> Recipe:
        return self.encoder.recipe

    @property
    def facts(self) -> dict[str, Any]:
        """The development set and how the search was done, JSON-ready."""
        return {
            "task": self.task.label,
            "data_sha256": self.task.sha256(),
            "pairs": len(self.task.pairs()),
            "compared": self.compared_in_words,
            **self.settings,
        }

    def save(self, name: str, *, force: bool) -> "SearchResult":
        """Save the best choice as a model; return the search with its name."""
        open_registry().save(self.entry(name), force=force)
        return dataclasses.replace(self, saved_as=name)

    def entry(self, name: str) -> Entry:
        facts = {**self.facts, "value": round(self.best.value, 4)}
        if self.cross_validation is not None:
            facts["held_out"] = round(self.cross_validation.held_out, 4)
        encoder = self.encoder
        provenance = {**encoder.provenance, "width": encoder.width, "searched_on": facts}
        scores = []
        if self.score is not None:
            label = Label(name, self.score.label.recipe)
            scores.append(dataclasses.replace(self.score, label=label).to_dict())
        return Entry(name, self.recipe, encoder.tensors(), provenance, scores)

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "ranked": [row.to_dict() for row in self.ranked],
            "backbone": self.recipe.backbone,
            "recipe": self.recipe.to_dict(),
            **self.facts,
            "text": self.task.text,
            "protocol": self.task.protocol,
            "model": self.saved_as,
            "baseline": {name: row.to_dict() for name, row in self.baselines.items()},
            "baseline_is_better": self.better_baseline is not None,
        }
        if self.maps:
            document["maps"] = {states: rows.tolist() for states, rows in self.maps.items()}
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
    """Return the development set of a search, and the model's encoder; a backbone's name means its
    plain encoder. A taken name is refused first.
    """
    if name is not None:
        open_registry().check_free(name, force=force)
    with tasks_from(data_dir):
        if on is None:
            on = BUILT_IN.development if senteval_folder() is None else PAPER.development
            note(f"choosing on {on}; the papers used {PAPER.development} and {PAPER.backbone}")
        task = development_task(on)
    check_rankable(task)
    return task, open_torch_encoder(
        backbone_model(model), dtype="stored"
    )  # keeps the scores' precision


def cross_validate(
    heads: NDArray[np.float64], plain: NDArray[np.float64], gold: NDArray[np.float64]
) -> CrossValidation:
    """Choose the best head on a random half of the pairs and score it on the other half, both ways.

    ``heads`` are the cosines (s, H, n) of H heads on s kinds of states, ``plain`` (s, n) the
    cosines of the plain averages of the states, and ``gold`` the gold scores (n,).
    """
    flat = heads.reshape(-1, len(gold))
    generator = np.random.default_rng(SEED)
    half = np.zeros((len(gold), HALVINGS))
    for column in half.T:
        column[generator.permutation(len(gold))[: len(gold) // 2]] = 1
    halves = np.hstack([half, 1 - half])
    other_halves = np.hstack([1 - half, half])
    samples = np.arange(2 * HALVINGS)
    values = correlations(flat, gold, halves)
    choices = values.argmax(axis=0)
    held_out = np.roll(values, HALVINGS, axis=1)[choices, samples]
    average = correlations(plain, gold, other_halves)[choices // heads.shape[1], samples]
    overall = correlations(flat, gold, np.ones((len(gold), 1)))[:, 0].argmax()
    return CrossValidation(
        choices=2 * HALVINGS,
        chosen=100 * float(values[choices, samples].mean()),
        held_out=100 * float(held_out.mean()),
        gain=100 * float((held_out - average).mean()),
        agreement=float((choices == overall).mean()),
    )


def correlations(
    cosines: NDArray[np.float64], gold: NDArray[np.float64], counts: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return Spearman's correlations (k, r) of cosines (k, n) with gold (n,) in r samples; sample j
    has pair i ``counts[i, j]`` times.
    """
    ranks = [statistics.ResampledRanks(row) for row in cosines]
    return statistics.resampled_spearman(ranks, statistics.ResampledRanks(gold), counts)
