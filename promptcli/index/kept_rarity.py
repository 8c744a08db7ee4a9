"""The rarity of cosines in the folder of an index, and the notes if it is unknown."""

from pathlib import Path

from promptcli.errors import UsageError
from promptcli.evaluation.rarity import Rarity, check_least
from promptcli.index.basics import Way
from promptcli.notes import keyword

#: The cosines of random pairs of rows, and the number of rows that they come from.
RARITY = "rarity.npz"


def write_rarity(rarity: Rarity, folder: Path) -> None:
    """Write a rarity into the folder of an index."""
    rarity.write(folder / RARITY)


def read_rarity(folder: Path) -> Rarity:
    """Return the rarity in the folder of an index."""
    return Rarity.read(folder / RARITY)


def check_rarity(
    rarity: Rarity, min_rarity: float | None, by: Way, folder: str | Path = "DIR"
) -> str | None:
    """Return what an index of an earlier version lacks to say how rare a cosine is, None if it
    lacks nothing; refuse to leave out rows by a rarity that is unknown.
    """
    if min_rarity is not None:
        check_least(min_rarity, by)
    if by == "words" or rarity.is_known:
        return None
    remedy = None
    if rarity.rows:
        reason = rarity.too_few_rows
    else:
        remedy = reason = (
            "an index of an earlier version does not say how rare a cosine is: `promptcli index"
            f" compact {folder}` makes it count, once"
        )
    if min_rarity is not None:
        raise UsageError(f"{keyword('min_rarity')}: {reason}")
    return remedy
