"""Scores as plain data, for printing and storing."""

import dataclasses
import re
import textwrap
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from promptcli.data.task_table import TEST_TASKS, TaskName
from promptcli.errors import PromptcliError
from promptcli.evaluation import statistics
from promptcli.recipe import RECIPES, SLOT, Recipe


@dataclass(frozen=True)
class Label:
    """An encoder's name in results: its registry entry or backbone, and its recipe's name."""

    model: str
    recipe: str
    #: whether it is an unchanged saved model; its name then implies its pooling
    entry: bool = field(default=False, compare=False)

    def to_dict(self) -> dict[str, str]:
        return {"model": self.model, "recipe": self.recipe}

    @property
    def short_model(self) -> str:
        """The last name in the model's path or id."""
        return re.split(r"[/\\]", self.model.rstrip("/\\"))[-1] or self.model

    def __str__(self) -> str:
        return f"{self.short_model} {textwrap.shorten(self.recipe, 30)}"


@dataclass(frozen=True)
class SubsetScore:
    """Spearman's correlation x 100 on one subset."""

    value: float
    pairs: int


NAMING = ("label", "recipe", "fingerprint", "task")  #: fields that name the encoder and the task


@dataclass(frozen=True, kw_only=True)
class Score:
    """The score of an encoder on a task; a metric's subclass adds fields."""

    #: the papers' tasks of this kind, over which an average is taken
    averaged_over: ClassVar[tuple[str, ...]] = ()

    label: Label
    recipe: dict[str, Any]  #: all fields of the encoder's recipe
    fingerprint: str  #: of the encoder
    task: str  #: e.g. ``STS-B``
    value: float  #: x 100, except a user's metrics
    metric: str = "spearman"
    ci95: tuple[float, float] | None = None  #: 95% bootstrap interval, if the metric has one

    @property
    def column(self) -> str:
        """The header of the task's column, e.g. ``STS-B:dev``."""
        return self.task

    def figures(self) -> dict[str, Any]:
        """Return the metric's fields as JSON-ready values, by name or by ``json`` metadata."""
        values = {}
        for item in dataclasses.fields(self):
            if item.repr and item.name not in NAMING:
                values[item.metadata.get("json", item.name)] = rounded(getattr(self, item.name))
        return values

    def to_dict(self) -> dict[str, Any]:
        named = {**self.label.to_dict(), "task": self.task}
        origin = {"fingerprint": self.fingerprint, "recipe_fields": self.recipe}
        return {**named, **self.figures(), **origin}


def rounded(value: Any) -> Any:
    """Return JSON-ready values, floats rounded to four decimals."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, SubsetScore):
        value = vars(value)
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(rounded, value))
    return value


@dataclass(frozen=True, kw_only=True)
class DataScore(Score):
    """A score on data identified by a hash."""

    data_sha256: str  #: of the task's sentences and gold


@dataclass(frozen=True, kw_only=True)
class ExampleScore(DataScore):
    """A mean over test examples or queries."""

    ci95: tuple[float, float]  #: over examples or queries
    by_example: NDArray[np.float64] = field(repr=False, compare=False)  #: (n,), for ``compare``


@dataclass(frozen=True, kw_only=True)
class SpearmanScore(DataScore):
    """Spearman's correlation x 100 of an encoder's cosines with gold scores, over the pairs of all
    subsets together ("all").
    """

    averaged_over: ClassVar[tuple[str, ...]] = tuple(map(str, TEST_TASKS))

    split: str  #: ``test`` or ``dev``
    protocol: str  #: ``senteval`` or ``mteb``
    text: str  #: how the text was treated
    expected_pairs: int = field(repr=False)  #: number of pairs of the protocol
    ci95: tuple[float, float]  #: over pairs
    pairs: int  #: number scored
    subsets: dict[str, SubsetScore]
    cosines: NDArray[np.float64] = field(repr=False, compare=False)  #: (pairs,), for ``compare``
    gold: NDArray[np.float64] = field(repr=False, compare=False)  #: (pairs,)

    @property
    def column(self) -> str:
        return str(TaskName(self.task, self.split))

    @property
    def has_two_levels(self) -> bool:
        """Whether the gold scores have two values."""
        return len(np.unique(self.gold)) == 2

    @property
    def highest(self) -> float:
        """The highest value that similarities without ties can have with these gold scores."""
        return 100 * statistics.highest_spearman(self.gold)

    @property
    def auc(self) -> float:
        """The area under the ROC curve x 100, of gold scores of two levels."""
        return 100 * statistics.area_under_curve(self.cosines, self.gold)

    def figures(self) -> dict[str, Any]:
        figures = super().figures()
        if self.has_two_levels:
            figures |= {"highest": rounded(self.highest), "auc": rounded(self.auc)}
        return figures


@dataclass(frozen=True, kw_only=True)
class RetrievalScore(ExampleScore):
    """The mean nDCG@10 x 100 over queries, of the documents nearest to each."""

    metric: str = "ndcg@10"
    #: x 100: share of a query's graded documents among the ten nearest, mean over queries
    recall_at_10: float = field(metadata={"json": "recall@10"})
    recall_at_100: float = field(metadata={"json": "recall@100"})
    #: the highest recall@10 that can be reached, below 100 if queries have more than ten documents
    highest_recall_at_10: float = field(default=100, metadata={"json": "recall@10 highest"})
    highest_recall_at_100: float = field(default=100, metadata={"json": "recall@100 highest"})
    queries: int
    documents: int


SIGNIFICANT = 0.05  #: greatest corrected p-value of a difference beyond chance


@dataclass(frozen=True)
class Comparison:
    """The difference of two encoders in points, by a paired bootstrap over pairs, queries or test
    examples.
    """

    first: Label
    second: Label
    tasks: list[str]  #: columns; of several tasks the mean is compared
    metric: str
    difference: float
    ci95: tuple[float, float]
    p_value: float
    pairs: int  #: or queries, or test examples
    p_holm: float  #: corrected for all comparisons of the evaluation (Holm, 1979)

    @property
    def beyond_chance(self) -> bool:
        return self.p_holm < SIGNIFICANT

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.first.to_dict(),
            "against": self.second.to_dict(),
            "task": ", ".join(self.tasks),
            "metric": f"{self.metric} difference",
            "value": rounded(self.difference),
            "ci95": rounded(self.ci95),
            "p_value": rounded(self.p_value),
            "p_holm": rounded(self.p_holm),
            "beyond_chance": self.beyond_chance,
            "pairs": self.pairs,
        }


class Evaluation(list[Score]):
    """The scores of some models, one model after the other, with comparisons and omissions."""

    def __init__(
        self,
        rows: dict[Label, list[Score]],
        tasks: list[Any],
        *,
        missing: dict[str, str],
        refused: dict[Label, PromptcliError],
        comparisons: list[Comparison],
    ) -> None:
        super().__init__(score for row in rows.values() for score in row)
        #: the scores of each set of vectors, then of each model, by task; empty for a refused model
        self.rows = rows
        self.tasks, self.missing = tasks, missing  #: scored tasks; label -> why it is missing
        self.refused = refused  #: why a model has no scores
        #: with ``compare``, by task; else of every two of up to six models
        self.comparisons = comparisons

    def drop_refused(self) -> None:
        """Remove the rows of models that could not be scored, and the reasons."""
        for label in self.refused:
            del self.rows[label]
        self.refused.clear()


def recipe_name(recipe: Recipe) -> str:
    """Return the name of a recipe on any backbone.

    An unnamed recipe is described by its fields that differ from the defaults.
    """
    recipe = recipe.resolve()
    for name, named in RECIPES.items():
        if named.replace(backbone=recipe.backbone).resolve() == recipe:
            return name
    default = Recipe(backbone=recipe.backbone, prompt=recipe.prompt).resolve().to_dict()
    changed = {key: value for key, value in recipe.to_dict().items() if value != default.get(key)}
    if recipe.prompt != SLOT:
        changed = {"prompt": recipe.prompt, **changed}
    return " ".join(
        f"{key}={','.join(value) if isinstance(value, list) else value}"
        for key, value in changed.items()
    )
