"""The papers' figures: a picture for each, drawn by whoever opened the place."""

from collections.abc import Iterator, Mapping, Sequence

from promptcli.reproducing.cache import Figure
from promptcli.reproducing.place import Place, Sources
from promptcli.reproducing.published import Row
from promptcli.reproducing.subject import Subject

#: What a picture is counted on.
_ON = {"token-bias": ("corpus",), "token-bias-output": ("corpus",), "uniformity": ("STS-B",)}


def lacks_picture(row: Row, place: Place) -> str | None:
    """Return why nothing can be drawn here, or None."""
    return "drawing: needs matplotlib: pip install 'promptcli[plot]'" if place.draw is None else None


def measure_pictures(
    subjects: Sequence[Subject], sources: Sources, place: Place
) -> Iterator[tuple[Subject, Mapping[str, Figure]]]:
    """Draw each subject's picture and yield the name of its file."""
    assert place.draw is not None
    for subject in subjects:
        name = subject.row.argument
        yield subject, {"picture": Figure(place.draw(name, place), on=_ON.get(name, ()))}
