"""Choosing the numbers of a recipe's last transform by a development set: every candidate on vectors made once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from promptcli.data.task_table import TASKS
from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import Encoder, Progress
from promptcli.encoder.transforms import build_transforms
from promptcli.errors import UsageError
from promptcli.evaluation import statistics
from promptcli.evaluation.evaluator import check_rankable, rows_of
from promptcli.recipe import Recipe, split_spec

_TOPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  #: axes taken out at the top, where they are a quarter at most
_EXPONENTS = ("0.125", "0.25", "0.375", "0.5", "0.625", "0.75", "1")


def _ends(name: str, d: int) -> list[str]:
    tops = [top for top in (0, 1, 2, 4, 8, 16, 32, 64) if top <= d // 4]
    bottoms = [d * sixteenths // 16 for sixteenths in (0, 4, 7, 8, 10)]
    return [f"{name}:{top}-{bottom}" for top in tops for bottom in bottoms]


#: What is tried of a transform for vectors of width d, the plainest first: of equals the first is taken.
CANDIDATES: dict[str, Callable[[int], list[str]]] = {
    "all-but-the-top": lambda d: [f"all-but-the-top:{k}" for k in _TOPS if k <= d // 4],
    "whitening": lambda d: [f"whitening:{k}:{a}" for k in ("all", d // 2, d // 4) for a in _EXPONENTS],
    "spectral": lambda d: _ends("spectral", d),
    "embed-filter": lambda d: _ends("embed-filter", d),
}


@dataclass(frozen=True)
class Candidate:
    """One choice of numbers and its figure."""

    transform: str  #: as a recipe writes it
    value: float  #: Spearman x 100 on the development pairs
    ci95: tuple[float, float]  #: 95% bootstrap interval over the pairs

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON-ready values."""
        return {
            "transform": self.transform,
            "value": round(self.value, 4),
            "ci95": [round(bound, 4) for bound in self.ci95],
        }


@dataclass(frozen=True)
class Selection:
    """What was tried, on what, and what was chosen."""

    task: STSTask
    without: Candidate  #: the recipe without the transform
    candidates: list[Candidate]  #: in the order tried
    chosen: Candidate  #: the best of them

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as an entry's provenance holds them."""
        return {
            "task": self.task.label,
            "data_sha256": self.task.sha256(),
            "pairs": len(self.task.pairs()),
            "chosen": self.chosen.transform,
            "without": self.without.to_dict(),
            "candidates": [candidate.to_dict() for candidate in self.candidates],
        }


def check_selection(recipe: Recipe, task: STSTask) -> str:
    """Return the name of the transform whose numbers are to be chosen.

    Raises:
        UsageError: A test set to choose by; the last transform has nothing to choose, or its numbers are given.
    """
    if task.label in TASKS and task.split == "test":
        raise UsageError(
            f"{task.label} is a test set, and figures on what has chosen are no test; choose by STS-B:dev, demo:dev or"
            " a FILE of graded pairs"
        )
    check_rankable(task)
    name, argument = split_spec(recipe.transforms[-1]) if recipe.transforms else ("none", None)
    if name not in CANDIDATES:
        raise UsageError(f"the last transform is {name!r}; numbers are chosen for one of: {', '.join(CANDIDATES)}")
    if argument is not None:
        raise UsageError(f"{recipe.transforms[-1]!r} has its numbers already; give --transform {name}, or no --select")
    return name


def select(before: Encoder, name: str, tensors: Mapping[str, Tensor], task: STSTask, progress: Progress) -> Selection:
    """Score every candidate of a transform on the pairs of a development set.

    Args:
        before: The encoder of all that comes before the transform.
        name: Of the transform.
        tensors: The fitted numbers.
        task: The development set.
        progress: Called with the number of distinct sentences newly done.
    """
    pairs, rows = task.pairs(), rows_of([task])
    vectors = torch.from_numpy(before.encode(list(rows), progress=progress)).to(before.device)
    first, second = (np.array([rows[sentence] for sentence in side]) for side in (pairs.first, pairs.second))
    specs, cosines = ["none", *CANDIDATES[name](vectors.size(1))], []
    for spec in specs:
        made = vectors
        for transform in build_transforms([] if spec == "none" else [spec], before.backbone, tensors):
            for _, step in transform.stages:
                made = step(made)
        numbers = made.cpu().numpy()
        cosines.append(statistics.cosine(numbers[first], numbers[second]))
    intervals = statistics.bootstrap_intervals(np.stack(cosines), pairs.gold)
    without, *candidates = (
        Candidate(spec, 100 * statistics.spearman(row, pairs.gold), (100 * low, 100 * high))
        for spec, row, (low, high) in zip(specs, cosines, intervals, strict=True)
    )
    return Selection(task, without, candidates, max(candidates, key=lambda candidate: candidate.value))
