"""The tables of hyper-parameters, templates and heads: no figures, but what promptcli holds for them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from promptcli.encoder.pooling.ditto import KNOWN_HEADS
from promptcli.reproducing.context import MeasureData, MeasurementContext
from promptcli.reproducing.figures import Figure
from promptcli.reproducing.measured_system import MeasuredSystem
from promptcli.reproducing.published import PublishedRow, short_name
from promptcli.training.methods import find_method


def measure_settings(
    systems: Sequence[MeasuredSystem], sources: MeasureData, context: MeasurementContext
) -> Iterator[tuple[MeasuredSystem, Mapping[str, Figure]]]:
    """Yield what promptcli's own tables say for each row's columns; a column that they do not hold is left out."""
    for system in systems:
        held = _HELD.get(system.row.argument, _method)(system.row)
        yield system, {name: Figure(value) for name, value in held.items() if name in system.row.published}


def _method(row: PublishedRow) -> dict[str, Any]:
    method = find_method(row.argument, supervised=row.setting == "sup")
    views = method.variant("roberta" if row.backbone.startswith("roberta") else "bert").views
    return {**vars(method.paper[row.backbone]), "view-1": views[0], "view-2": views[1]}


def _chosen_head(row: PublishedRow) -> dict[str, Any]:
    return {"head": {short_name(name): head for name, head in KNOWN_HEADS.items()}[short_name(row.backbone)]}


_HELD: dict[str, Callable[[PublishedRow], dict[str, Any]]] = {"ditto": _chosen_head}
