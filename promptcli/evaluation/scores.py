"""The figures that commands print and store, as plain data. Knows nothing of how they are made."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptcli.data.task_table import TaskName
from promptcli.recipe import RECIPES, SLOT, Recipe


@dataclass(frozen=True)
class Label:
    """What an encoder is called in results: its registry entry or backbone, and its recipe's name."""

    model: str
    recipe: str


@dataclass(frozen=True)
class SubsetScore:
    """Spearman's correlation x 100 on one subset."""

    value: float
    pairs: int


#: Fields that say whose figure it is, not what it is.
_NAMING = ("label", "recipe", "fingerprint", "task")


@dataclass(frozen=True, kw_only=True)
class Score:
    """One figure of an encoder on a task; what else a metric knows is in the fields of its own class."""

    label: Label  # what the encoder is called
    recipe: dict[str, Any]  # all fields of its recipe
    fingerprint: str  # which encoder it is
    task: str  # e.g. ``STS-B``
    value: float  # x 100; perplexity and metrics of a user's own as they are
    metric: str = "spearman"
    ci95: tuple[float, float] | None = None  # 95% bootstrap interval, where the metric has one

    @property
    def column(self) -> str:
        """The task as it heads a column, e.g. ``STS-B:dev``."""
        return self.task

    def figures(self) -> dict[str, Any]:
        """Return what depends on the metric as JSON-ready values, by the names of its fields or their ``json``."""
        found = {}
        for item in dataclasses.fields(self):
            if item.repr and item.name not in _NAMING:
                value = getattr(self, item.name)
                found[item.metadata.get("json", item.name)] = round(value, 4) if isinstance(value, float) else value
        return found | {"ci95": None if self.ci95 is None else [round(bound, 4) for bound in self.ci95]}

    def to_dict(self) -> dict[str, Any]:
        """Return the figure as JSON-ready values."""
        named = {"model": self.label.model, "recipe": self.label.recipe, "task": self.task}
        return {**named, **self.figures(), "fingerprint": self.fingerprint, "recipe_fields": self.recipe}


@dataclass(frozen=True, kw_only=True)
class SpearmanScore(Score):
    """Spearman's correlation x 100 of an encoder's cosines with gold scores, over all pairs of all subsets ("all")."""

    split: str  # ``test`` or ``dev``
    protocol: str  # which pairs, treated how
    text: str  # what was done to the text
    data_sha256: str  # of the pairs
    expected_pairs: int = field(repr=False)  # how many the protocol says there are
    ci95: tuple[float, float]  # over pairs
    pairs: int  # how many were scored
    subsets: dict[str, SubsetScore]
    cosines: NDArray[np.float64] = field(repr=False, compare=False)  # (pairs,), for ``compare``
    gold: NDArray[np.float64] = field(repr=False, compare=False)  # (pairs,)
    zero_vectors: int = 0  # distinct sentences whose vector is zero: nothing in them is known, their cosines are 0

    @property
    def column(self) -> str:
        """The task as it heads a column, e.g. ``STS-B:dev``."""
        return str(TaskName(self.task, self.split))

    def figures(self) -> dict[str, Any]:
        """Return what depends on the metric as JSON-ready values."""
        subsets = {name: {"value": round(part.value, 4), "pairs": part.pairs} for name, part in self.subsets.items()}
        return {**super().figures(), "subsets": subsets}


@dataclass(frozen=True, kw_only=True)
class AccuracyScore(Score):
    """Accuracy x 100 of a linear classifier on an encoder's frozen vectors."""

    metric: str = "accuracy"

    dev: float  # on the examples that chose the weight decay
    decays: list[float] = field(metadata={"json": "weight_decays"})  # chosen, in each outer fold where there are some
    examples: dict[str, int]  # of each split
    seconds: float  # what the classifiers took


@dataclass(frozen=True, kw_only=True)
class RetrievalScore(Score):
    """nDCG@10 x 100 of an encoder's nearest documents, the mean over queries."""

    metric: str = "ndcg@10"
    #: x 100: share of a query's graded documents among the ten nearest, the mean over queries
    recall_at_10: float = field(metadata={"json": "recall@10"})
    recall_at_100: float = field(metadata={"json": "recall@100"})
    queries: int
    documents: int


@dataclass(frozen=True, kw_only=True)
class PerplexityScore(Score):
    """Perplexity of an encoder's backbone on held-out text: exp of the mean negative log-likelihood."""

    metric: str = "perplexity"
    accuracy: float  # percent of the predictions whose most probable token is the right one
    predicted: int  # tokens: masked ones, or for causal models all that others stand before
    sentences: int  # lines with at least one


@dataclass(frozen=True, kw_only=True)
class MtebScore(Score):
    """A main score of mteb x 100."""

    model: str = field(metadata={"json": "mteb_model"})  # as mteb calls it
    revision: str  # of the model: the fingerprint's first 40 characters
    mteb: str  # its version
    file: str  # mteb's result file


@dataclass(frozen=True)
class Comparison:
    """The difference of two encoders on one task, in points (Spearman x 100), by a paired bootstrap over its pairs."""

    first: Label
    second: Label
    task: str
    split: str
    protocol: str
    difference: float
    ci95: tuple[float, float]
    p_value: float
    pairs: int

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON-ready values."""
        return {
            "model": self.first.model,
            "recipe": self.first.recipe,
            "against": {"model": self.second.model, "recipe": self.second.recipe},
            "task": self.task,
            "split": self.split,
            "protocol": self.protocol,
            "metric": "spearman difference",
            "value": round(self.difference, 4),
            "ci95": [round(bound, 4) for bound in self.ci95],
            "p_value": round(self.p_value, 4),
            "pairs": self.pairs,
        }


def recipe_name(recipe: Recipe) -> str:
    """Return the name of a recipe whatever its backbone, or where it has none the fields that are not the defaults."""
    recipe = recipe.explicit()
    for name, named in RECIPES.items():
        if named.replace(backbone=recipe.backbone).explicit() == recipe:
            return name
    default = Recipe(backbone=recipe.backbone, prompt=recipe.prompt).explicit().to_dict()
    changed = {key: value for key, value in recipe.to_dict().items() if value != default.get(key)}
    if recipe.prompt != SLOT:
        changed = {"prompt": recipe.prompt, **changed}
    return " ".join(f"{key}={_plain(value)}" for key, value in changed.items())


def _plain(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)
