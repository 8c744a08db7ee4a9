"""The figures that commands print and store, as plain data. Knows nothing of how they are made."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptcli.data.task_table import TaskName
from promptcli.encoder.recipe import RECIPES, SLOT, Recipe


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


@dataclass(frozen=True)
class SpearmanScore:
    """One figure: Spearman's correlation x 100 of an encoder's cosines with the gold scores of a task.

    Attributes:
        label: What the encoder is called.
        recipe: All fields of its recipe.
        fingerprint: Which encoder it is.
        task: E.g. ``STS-B``.
        split: ``test`` or ``dev``.
        protocol: Which pairs, treated how.
        text: What was done to the text.
        data_sha256: Hash of the pairs.
        expected_pairs: How many pairs the protocol says there are.
        value: The figure, over all pairs of all subsets ("all" aggregation).
        ci95: 95% bootstrap interval over pairs.
        pairs: How many pairs were scored.
        subsets: The figure of each subset.
        cosines: (pairs,) what was correlated; compared with another system's by ``compare``.
        gold: (pairs,) with what.
        zero_vectors: Distinct sentences whose vector is zero: no word of theirs is known, and their cosines are 0.
    """

    label: Label
    recipe: dict[str, Any]
    fingerprint: str
    task: str
    split: str
    protocol: str
    text: str
    data_sha256: str
    expected_pairs: int
    value: float
    ci95: tuple[float, float]
    pairs: int
    subsets: dict[str, SubsetScore]
    cosines: NDArray[np.float64] = field(repr=False, compare=False)
    gold: NDArray[np.float64] = field(repr=False, compare=False)
    zero_vectors: int = 0

    @property
    def column(self) -> str:
        """The task as it heads a column, e.g. ``STS-B:dev``."""
        return str(TaskName(self.task, self.split))

    def to_dict(self) -> dict[str, Any]:
        """Return the figure as JSON-ready values."""
        return {
            "model": self.label.model,
            "recipe": self.label.recipe,
            "task": self.task,
            "split": self.split,
            "protocol": self.protocol,
            "metric": "spearman",
            "value": round(self.value, 4),
            "ci95": [round(bound, 4) for bound in self.ci95],
            "pairs": self.pairs,
            "subsets": {
                name: {"value": round(part.value, 4), "pairs": part.pairs} for name, part in self.subsets.items()
            },
            "zero_vectors": self.zero_vectors,
            "text": self.text,
            "data_sha256": self.data_sha256,
            "fingerprint": self.fingerprint,
            "recipe_fields": self.recipe,
        }


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
    changed = {key: value for key, value in recipe.to_dict().items() if value != default[key]}
    if recipe.prompt != SLOT:
        changed = {"prompt": recipe.prompt, **changed}
    return " ".join(f"{key}={_plain(value)}" for key, value in changed.items())


def _plain(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)
