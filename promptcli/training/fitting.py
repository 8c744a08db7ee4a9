"""Fit the TF-IDF weights or transforms of a recipe on sentences, and choose the parameter of a
transform.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.data.task_table import TaskName
from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import TorchEncoder, build_encoder
from promptcli.encoder.pooling.tfidf import TENSOR, fit_idf, fit_word_idf
from promptcli.encoder.transforms import build_transforms
from promptcli.encoder.transforms.flow import Glow
from promptcli.encoder.transforms.principal_axes import (
    AllButTheTop,
    Spectral,
    Whitening,
)
from promptcli.errors import UsageError
from promptcli.evaluation import statistics
from promptcli.evaluation.evaluator import check_rankable, row_of_sentences
from promptcli.grammar import parse_transform
from promptcli.notes import Advance, stage
from promptcli.recipe import Recipe

#: Numbers of leading axes to remove; at most a quarter of all axes are removed.
_TOPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
#: The published settings of a flow: AdamW at a constant learning rate for one epoch.
_LEARNING_RATE = 1e-3
_WEIGHT_DECAY = 0.01
_EPSILON = 1e-6
_BATCH_SIZE = 32  # sentences per step (published: pairs)
_MAX_GRADIENT_NORM = 1.0
_SEED = 42  # seeds a flow's initial weights and the order; our choice
#: A function that takes the encoder of all earlier steps, n sentences and a progress callback, and
#: returns the fitted tensors.
Fit = Callable[[TorchEncoder, Sequence[str], Advance], dict[str, Tensor]]
_EXPONENTS = ("0.125", "0.25", "0.375", "0.5", "0.625", "0.75", "1")


def _ends(name: str, d: int) -> list[str]:
    tops = [top for top in (0, 1, 2, 4, 8, 16, 32, 64) if top <= d // 4]
    bottoms = [d * sixteenths // 16 for sixteenths in (0, 4, 7, 8, 10)]
    return [f"{name}:{top}-{bottom}" for top in tops for bottom in bottoms]


#: A transform's candidates for vectors of width d, plainest first; on ties the first is chosen.
CANDIDATES: dict[str, Callable[[int], list[str]]] = {
    "all-but-the-top": lambda d: [f"all-but-the-top:{k}" for k in _TOPS if k <= d // 4],
    "whitening": lambda d: [
        f"whitening:{k}:{a}" for k in ("all", d // 2, d // 4) for a in _EXPONENTS
    ],
    "spectral": lambda d: _ends("spectral", d),
    "embed-filter": lambda d: _ends("embed-filter", d),
}


@dataclass(frozen=True)
class FittedRecipe:
    """A recipe and the tensors fitted for it."""

    encoder: TorchEncoder  #: its ``tensors()`` are the fitted tensors
    #: ``fitted_on``, and ``selected_on``: how the last transform's parameter was chosen
    provenance: dict[str, Any]


def fit_recipe(
    recipe: Recipe,
    sentences: Sequence[str],
    *,
    choose_by: STSTask | None = None,
    backbone: Backbone | None = None,
    source: str = "a list",
    **options: Any,
) -> FittedRecipe:
    """Fit the recipe's weights and transforms that have to be fitted, in their order.

    The pairs ``choose_by`` choose the parameter of the last transform.
    """
    if choose_by is not None:
        _check_selection(recipe, choose_by)
    fits = _fits_of(recipe)
    if not fits and choose_by is None:
        fields = f"pooling {recipe.pooling!r}, transforms {list(recipe.transforms)}"
        raise UsageError(f"the recipe has nothing to fit ({fields}); allowed: {', '.join(FITS)}")
    texts = [sentence for sentence in sentences if sentence.strip()]
    if not texts:
        raise UsageError("no sentence to fit on; give a file with one sentence a line")
    provenance: dict[str, Any] = {"fitted_on": {"source": source, "sentences": len(texts)}}
    tensors: dict[str, Tensor] = {}

    def build(partial_recipe: Recipe) -> TorchEncoder:
        return build_encoder(partial_recipe, tensors=tensors, backbone=backbone, **options)

    for name, earlier in fits:
        encoder = build(earlier)
        backbone = encoder.backbone
        with stage(f"fit {name}", len(texts)) as advance:
            tensors |= FITS[name](encoder, texts, advance)
    if choose_by is not None:
        *earlier_transforms, last = recipe.transforms
        encoder = build(recipe.replace(transforms=tuple(earlier_transforms)))
        selection = _select(encoder, last, choose_by, tensors)
        provenance["selected_on"] = selection
        recipe = recipe.replace(transforms=(*earlier_transforms, selection["chosen"]))
    return FittedRecipe(build(recipe), provenance)


def _check_selection(recipe: Recipe, task: STSTask) -> None:
    """Refuse a test set, and a recipe that leaves no parameter to choose."""
    if TaskName(task.name, task.split).is_published_test:
        raise UsageError(
            f"{task.label} is a test set; choose by STS-B:dev, demo:dev or a FILE of graded pairs"
        )
    check_rankable(task)
    last = recipe.transforms[-1] if recipe.transforms else "none"
    name, _, argument = last.partition(":")
    if name not in CANDIDATES:
        raise UsageError(
            f"the last transform is {name!r}; select chooses parameters for:"
            f" {', '.join(CANDIDATES)}"
        )
    if argument:
        raise UsageError(
            f"{last!r} already has parameters; give {name}, or leave out select=TASK",
            parameter="transforms",
        )


def _select(
    encoder: TorchEncoder,
    name: str,
    task: STSTask,
    tensors: Mapping[str, Tensor],
) -> dict[str, Any]:
    """Score every candidate of a transform on development pairs, Spearman x 100.

    The ``encoder`` lacks the transform. The returned document is JSON-ready.
    """
    pairs = task.pairs()
    row_of = row_of_sentences([task])
    with stage("select", len(row_of)) as advance:
        encoded = encoder.encode(list(row_of), progress=advance)
    vectors = torch.from_numpy(encoded).to(encoder.device)
    first = [row_of[sentence] for sentence in pairs.first]
    second = [row_of[sentence] for sentence in pairs.second]
    specs = ["none", *CANDIDATES[name](vectors.size(1))]
    cosines = []
    for spec in specs:
        transformed = vectors
        transforms = [] if spec == "none" else [parse_transform(spec)]
        for transform in build_transforms(transforms, encoder.backbone, tensors):
            for _, step in transform.stages:
                transformed = step(transformed)
        on_host = transformed.cpu().numpy()
        cosines.append(statistics.cosine(on_host[first], on_host[second]))
    intervals = statistics.bootstrap_intervals(np.stack(cosines), pairs.gold)
    values = [100 * statistics.spearman(row, pairs.gold) for row in cosines]
    without, *candidates = (
        {"transform": spec, "value": round(value, 4), "ci95": [round(100 * end, 4) for end in ends]}
        for spec, value, ends in zip(specs, values, intervals, strict=True)
    )
    return {
        "task": task.label,
        "data_sha256": task.sha256(),
        "pairs": len(pairs),
        "chosen": specs[1 + int(np.argmax(values[1:]))],
        "without": without,
        "candidates": candidates,
    }


def fit_flow(vectors: np.ndarray, *, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Return the parameters of a flow trained on vectors (n, d) float32, by name.

    The published code recomputes the vectors in each step, with the frozen BERT's dropout on. Here
    they come from one pass without dropout, which is many times faster. The last batch is left out
    if it is short.
    """
    n, d = vectors.shape
    glow = Glow(d)
    if n < _BATCH_SIZE:
        raise UsageError(
            f"flow needs at least one batch of {_BATCH_SIZE} sentences; {n} were given: give more"
        )
    rows = torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32)).to(device)
    generator = torch.Generator().manual_seed(_SEED)
    order = torch.randperm(n, generator=generator).to(device)
    glow.start(rows[order[:_BATCH_SIZE]].cpu(), generator)
    glow.to(device)
    optimizer = torch.optim.AdamW(
        glow.parameters(), lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY, eps=_EPSILON
    )
    batches = order[: n - n % _BATCH_SIZE].reshape(-1, _BATCH_SIZE)
    with stage("train flow", len(batches)) as advance:
        for batch in batches:
            optimizer.zero_grad()
            glow.loss(rows[batch]).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(glow.parameters(), _MAX_GRADIENT_NORM)
            optimizer.step()
            advance(1)
    return {name: tensor.cpu() for name, tensor in glow.named_tensors().items()}


def _of_vectors(fit_tensors: Callable[[np.ndarray], dict[str, Tensor]]) -> Fit:
    """Return a fit to the vectors (n, d) of all sentences, including repeated ones."""
    return lambda encoder, sentences, progress: fit_tensors(
        encoder.encode(sentences, progress=progress)
    )


def _of_tokens(fit_tensors: Callable[[RaggedIds, Backbone], dict[str, Tensor]]) -> Fit:
    def fit(
        encoder: TorchEncoder, sentences: Sequence[str], progress: Advance
    ) -> dict[str, Tensor]:
        progress(len(sentences))
        return fit_tensors(encoder.inputs(sentences).ids, encoder.backbone)

    return fit


#: Name of weights or of a transform in a recipe -> how it is fitted.
FITS: dict[str, Fit] = {
    "tfidf": _of_tokens(
        lambda rows, backbone: {TENSOR: fit_idf(rows, len(backbone.word_embeddings))}
    ),
    "tfidf:word": _of_tokens(fit_word_idf),
    "whitening": _of_vectors(Whitening.fit),
    "all-but-the-top": _of_vectors(AllButTheTop.fit),
    "spectral": _of_vectors(Spectral.fit),
    "flow": lambda encoder, sentences, progress: fit_flow(
        encoder.encode(sentences, progress=progress), device=encoder.device
    ),
}


def _fits_of(recipe: Recipe) -> list[tuple[str, Recipe]]:
    """Return the names of the fits of a recipe in their order, each with the recipe of all steps
    before that fit.
    """
    parts = recipe.parts
    fits = []
    weights = str(parts.pooling.weights[0])
    if len(parts.pooling.weights) == 1 and weights in FITS:
        average = f"{parts.pooling.states}/avg"
        fits.append((weights, recipe.replace(pooling=average, transforms=(), denoise="none")))
    for place, transform in enumerate(parts.transforms):
        if transform.name in FITS:
            fits.append((transform.name, recipe.replace(transforms=recipe.transforms[:place])))
    return fits
