"""Fitting what a learning-free recipe takes from sentences (TF-IDF weights, transforms, flow), choosing its numbers.

Numbers are chosen by a development set: every candidate on vectors made once.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from promptcli.backbones.backbone import Backbone
from promptcli.data.task_table import TASKS
from promptcli.data.tasks import STSTask
from promptcli.encoder.encoded import Progress, silent
from promptcli.encoder.encoder import Encoder, build_encoder
from promptcli.encoder.pooling.tfidf import TENSOR, fit_idf, fit_word_idf
from promptcli.encoder.transforms import build_transforms
from promptcli.encoder.transforms.flow import Glow
from promptcli.encoder.transforms.principal_axes import fit_all_but_the_top, fit_spectral, fit_whitening
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
        raise UsageError(f"{recipe.transforms[-1]!r} has its numbers already; give `transforms` {name}, or no `select`")
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


@dataclass(frozen=True)
class FlowSettings:
    """How a flow is trained: the published code's numbers, and our seed."""

    learning_rate: float = 1e-3  #: of AdamW, constant
    weight_decay: float = 0.01
    eps: float = 1e-6
    clip: float = 1.0  #: largest global norm of the gradient
    batch: int = 32  #: sentences a step; the published code takes as many pairs
    epochs: int = 1
    seed: int = 42  #: of the first weights and of the order


PUBLISHED = FlowSettings()


def fit_flow(
    vectors: np.ndarray, *, device: torch.device | str = "cpu", progress: Progress = silent
) -> dict[str, Tensor]:
    """Return the numbers of a flow trained on vectors (n, d), by name.

    The vectors are fixed. The published code makes them again in each step, with the frozen BERT's dropout on; ours
    come from one pass without dropout, which is many times faster. Batches are full; the rest of an epoch is left out.

    Args:
        vectors: (n, d) float32, a sentence as often as it occurs.
        device: Where it is trained.
        progress: Called with the number of vectors newly done; adds up to n an epoch.

    Raises:
        UsageError: Fewer than one batch, or d is not divisible by 8.
    """
    n, d = vectors.shape
    glow = Glow(d)
    if n < PUBLISHED.batch:
        raise UsageError(f"flow starts from one batch of {PUBLISHED.batch} sentences; {n} were given: give more")
    rows = torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32)).to(device)
    generator = torch.Generator().manual_seed(PUBLISHED.seed)
    orders = [torch.randperm(n, generator=generator).to(device) for _ in range(PUBLISHED.epochs)]
    glow.start(rows[orders[0][: PUBLISHED.batch]].cpu(), generator)
    glow.to(device)
    optimizer = torch.optim.AdamW(
        glow.parameters(), lr=PUBLISHED.learning_rate, weight_decay=PUBLISHED.weight_decay, eps=PUBLISHED.eps
    )
    for order in orders:
        for chosen in order[: n - n % PUBLISHED.batch].reshape(-1, PUBLISHED.batch):
            optimizer.zero_grad()
            glow.loss(rows[chosen]).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(glow.parameters(), PUBLISHED.clip)
            optimizer.step()
            progress(PUBLISHED.batch)
        progress(n % PUBLISHED.batch)
    return {name: tensor.cpu() for name, tensor in glow.named_tensors().items()}


@dataclasses.dataclass(frozen=True)
class Fitter:
    """One thing that can be fitted."""

    #: An encoder of all that comes before it, n sentences and a progress callback -> the fitted numbers.
    run: Callable[[Encoder, Sequence[str], Progress], dict[str, Tensor]]
    passes: int = 1  #: how often ``run`` goes over the sentences: its progress adds up to n times that


def _document_frequencies(count: Callable[[list[list[int]], Backbone], dict[str, Tensor]]) -> Fitter:
    """Return what counts in the model's own inputs, one sentence a document, specials included."""

    def run(encoder: Encoder, sentences: Sequence[str], progress: Progress) -> dict[str, Tensor]:
        rows = encoder.inputs(sentences).rows
        progress(len(rows))
        return count(rows, encoder.backbone)

    return Fitter(run)


def _of_vectors(fit_numbers: Callable[[np.ndarray], dict[str, Tensor]]) -> Fitter:
    """Return what is fitted to the vectors (n, d), a sentence counted as often as it occurs."""

    def run(encoder: Encoder, sentences: Sequence[str], progress: Progress) -> dict[str, Tensor]:
        return fit_numbers(encoder.encode(sentences, progress=progress))

    return Fitter(run)


def _flow(encoder: Encoder, sentences: Sequence[str], progress: Progress) -> dict[str, Tensor]:
    """Numbers of a flow trained on the sentences' vectors, a sentence seen as often as it occurs."""
    vectors = encoder.encode(sentences, progress=progress)
    return fit_flow(vectors, device=encoder.backbone.device, progress=progress)


#: What can be fitted: weights as a recipe writes them, transforms by name.
FITS: dict[str, Fitter] = {
    "tfidf": _document_frequencies(lambda rows, backbone: {TENSOR: fit_idf(rows, len(backbone.token_rows))}),
    "tfidf:word": _document_frequencies(fit_word_idf),
    "whitening": _of_vectors(fit_whitening),
    "all-but-the-top": _of_vectors(fit_all_but_the_top),
    "spectral": _of_vectors(fit_spectral),
    "flow": Fitter(_flow, passes=2),
}


@dataclasses.dataclass(frozen=True)
class FittedRecipe:
    """A recipe and the numbers fitted for it."""

    encoder: Encoder  #: ready to use; ``tensors()`` are the fitted numbers
    sentences: int  #: how many were fitted on
    selection: Selection | None = None  #: of the last transform's numbers, where they were chosen

    @property
    def selected_on(self) -> dict[str, Any]:
        """The selection as an entry's provenance holds it, under its key; nothing where there was none."""
        return {} if self.selection is None else {"selected_on": self.selection.to_dict()}


def plan_fits(recipe: Recipe, *, choosing: bool = False) -> list[tuple[Fitter, Recipe]]:
    """Return what is to be fitted for a recipe, in order, each with the recipe of all that comes before it.

    Args:
        recipe: Of the encoder to make.
        choosing: Numbers are chosen, which is reason enough to do without anything to fit.

    Raises:
        UsageError: There is nothing.
    """
    states, _, weights = recipe.pooling.partition("/")
    planned = []
    if weights in FITS:
        planned.append((FITS[weights], recipe.replace(pooling=f"{states}/avg", transforms=(), denoise="none")))
    for place, transform in enumerate(recipe.transforms):
        name = split_spec(transform)[0]
        if name in FITS:
            before = recipe.replace(transforms=recipe.transforms[:place])
            planned.append((FITS[name], before))
    if not planned and not choosing:
        raise UsageError(
            f"the recipe has nothing to fit (pooling {recipe.pooling!r}, transforms {list(recipe.transforms)});"
            f" fitted are: {', '.join(FITS)}, e.g. `model` whitening"
        )
    return planned


def fit(
    recipe: Recipe,
    sentences: Sequence[str],
    *,
    choose_by: STSTask | None = None,
    progress: Progress = silent,
    backbone: Backbone | None = None,
    **options: Any,
) -> FittedRecipe:
    """Fit whatever the recipe needs, in the order in which it is used.

    Args:
        recipe: With ``tfidf`` weights, a ``whitening``, ``flow``, ... transform, or several.
        sentences: n texts; blank ones are left out.
        choose_by: Development pairs by which the numbers of the last transform are chosen; it then names none.
        progress: Called with the number of sentences newly done; adds up to n times the passes planned, and to the
            distinct sentences of the pairs.
        backbone: An already loaded one to use; else the recipe's is loaded.
        options: Of ``build_encoder``: device, dtype.

    Raises:
        UsageError: The recipe has nothing to fit or to choose, or there are no sentences.
    """
    chosen_name = None if choose_by is None else check_selection(recipe, choose_by)
    planned = plan_fits(recipe, choosing=choose_by is not None)
    texts = [sentence for sentence in sentences if sentence.strip()]
    if not texts:
        raise UsageError("there is no sentence to fit on; give a file with one sentence a line")
    tensors: dict[str, Tensor] = {}
    for one, before in planned:
        made = build_encoder(before, tensors=tensors, backbone=backbone, **options)
        tensors |= one.run(made, texts, progress)
        backbone = made.backbone
    selection = None
    if choose_by is not None and chosen_name is not None:
        without = recipe.replace(transforms=recipe.transforms[:-1])
        made = build_encoder(without, tensors=tensors, backbone=backbone, **options)
        backbone = made.backbone
        selection = select(made, chosen_name, tensors, choose_by, progress)
        recipe = recipe.replace(transforms=(*without.transforms, selection.chosen.transform))
    encoder = build_encoder(recipe, tensors=tensors, backbone=backbone, **options)
    return FittedRecipe(encoder, len(texts), selection)
