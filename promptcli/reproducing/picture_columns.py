"""The papers' figures: a picture for each, drawn by whoever opened the context."""

from collections.abc import Iterator, Mapping, Sequence

from promptcli.reproducing.context import MeasureData, MeasurementContext
from promptcli.reproducing.figures import Figure
from promptcli.reproducing.measured_system import MeasuredSystem
from promptcli.reproducing.published import PublishedRow

#: What a picture is counted on.
_ON = {"token-bias": ("corpus",), "token-bias-output": ("corpus",), "uniformity": ("STS-B",)}


def lacks_picture(row: PublishedRow, context: MeasurementContext) -> str | None:
    """Return why nothing can be drawn here, or None."""
    return "drawing: needs matplotlib: pip install 'promptcli[plot]'" if context.draw is None else None


def measure_pictures(
    systems: Sequence[MeasuredSystem], sources: MeasureData, context: MeasurementContext
) -> Iterator[tuple[MeasuredSystem, Mapping[str, Figure]]]:
    """Draw each system's picture and yield the name of its file."""
    assert context.draw is not None
    for system in systems:
        name = system.row.argument
        yield system, {"picture": Figure(context.draw(name, context), on=_ON.get(name, ()))}
