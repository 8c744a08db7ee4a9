"""The scores of a run: those of the trained encoder, and those it is measured against."""

from collections.abc import Sequence
from typing import Any

from promptcli.backbones.locating import SHIPPED
from promptcli.backbones.published_backbones import published_name
from promptcli.data.tasks import AnyTask, DevelopmentTask
from promptcli.encoder.encoder import TorchEncoder
from promptcli.evaluation.candidates import is_for_transfer
from promptcli.evaluation.evaluator import score_encoders, value_on
from promptcli.evaluation.scores import Label, Score
from promptcli.models.entries import Entry
from promptcli.models.loading import DEFAULT_MODEL, open_model, open_registry
from promptcli.notes import note
from promptcli.training.methods.method import Method


def documents_of(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """Return scores, JSON-ready."""
    return [score.to_dict() for score in scores]


def score_tasks(
    encoder: TorchEncoder, tasks: Sequence[AnyTask], label: Label, method: Method | None = None
) -> list[Score]:
    """Return an encoder's scores on tasks of any kind, in their order.

    On transfer tasks it is read as the method reads it there.
    """
    other = method.transfer_recipe(encoder.recipe) if method else None
    scores: list[Score] = []
    for task in tasks:
        reader = encoder
        if other is not None and is_for_transfer(task):
            reader = TorchEncoder(other, encoder.backbone, encoder.tensors())
        scores += score_encoders([reader], [task], [label])
    return scores


def score_default_model(
    plain: TorchEncoder, development: DevelopmentTask, start: Entry | None
) -> list[Score]:
    """Return the default model's score on the development set.

    Empty if the plain encoder is that model, or if the backbone is not shipped: whoever brings
    another one does not ask for the default model.
    """
    if published_name(plain.backbone) not in SHIPPED:
        return []
    entry = open_registry().load(DEFAULT_MODEL)
    if start is not None and start.name == DEFAULT_MODEL and plain.recipe == entry.recipe.resolve():
        return []
    encoder = open_model(entry, device=str(plain.device), dtype="float32")
    return score_tasks(encoder, [development], Label(DEFAULT_MODEL, DEFAULT_MODEL))


def score_by_dim(encoder: TorchEncoder, development: DevelopmentTask) -> dict[str, float]:
    """Return the development score of the vectors cut to each width that was trained."""
    recipe = encoder.recipe
    by_dim = {}
    for dim in recipe.dims:
        shorter = TorchEncoder(recipe.truncate(dim), encoder.backbone, encoder.tensors())
        by_dim[str(dim)] = value_on(shorter, development)
    if by_dim:
        shown = ", ".join(f"{dim} {value:.2f}" for dim, value in by_dim.items())
        note(f"{development.label} by dim: {shown}")
    return by_dim
