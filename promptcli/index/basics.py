"""What is known of an index without a library: its options, and how its folder is recognised."""

import re
from typing import Any, Literal

from promptcli.errors import UsageError, unknown
from promptcli.jobs import argument, option
from promptcli.notes import keyword

INDEX_MANIFEST = "index.json"  #: in the folder of an index
TARGET = 0.95  #: recall@10 that an approximate index is tuned for
#: Scores are compared to six decimals, like the printed ones: the product of a unit vector with
#: itself may be 0.9999999. Those of vectors that an index keeps rounded are compared to four.
ROUNDING, ROUGHLY = 5e-7, 5e-5
#: Ways to rank rows -> what ranks them.
WAYS = {
    "both": "cosines and words together",
    "meaning": "cosines",
    "words": "words alone (BM25)",
}
Way = Literal["both", "meaning", "words"]
#: Of a hit that both ways ranked: what found it, its BM25, and its ranks by cosine and by words.
WAY_FIELDS = ("found_by", "bm25", "cosine_rank", "bm25_rank")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def reaches(score: float, least: float, rounding: float = ROUNDING) -> bool:
    """Return whether a score is at least ``least``, within rounding."""
    return score >= least - rounding


def is_answer(
    score: float,
    rarity: float | None,
    min_score: float | None,
    min_rarity: float | None,
    rounding: float = ROUNDING,
) -> bool:
    """Return whether a row is near enough and rare enough to be an answer."""
    if min_score is not None and not reaches(score, min_score, rounding):
        return False
    return min_rarity is None or (rarity or 0) >= min_rarity


def way_record(hit: Any) -> dict[str, Any]:
    """Return the ``WAY_FIELDS`` of a hit; nothing if one way ranked."""
    if hit.found_by is None:
        return {}
    return {name: getattr(hit, name) for name in WAY_FIELDS}


def chosen_way(by: Way | None, *, hybrid: bool, lexical: bool) -> Way | None:
    """Return the way to rank that is asked for; None: none is.

    ``hybrid`` is another name of both, ``lexical`` of words.
    """
    ways: list[Way] = []
    if by is not None:
        if by not in WAYS:
            raise unknown("by", by, WAYS)
        ways.append(by)
    if hybrid:
        ways.append("both")
    if lexical:
        ways.append("words")
    if len(set(ways)) > 1:
        names = f"{keyword('by')}, {keyword('hybrid')} and {keyword('lexical')}"
        raise UsageError(f"{names} name two rankings ({', '.join(ways)}); give one")
    return ways[0] if ways else None


def size_of(text: str | int) -> int:
    """Return the bytes of a size such as 4GB."""
    size = re.fullmatch(r"(\d{1,18}(?:\.\d+)?) ?([kmgt]?)i?b?", str(text).strip(), re.IGNORECASE)
    if size is None:
        raise UsageError(
            f"{keyword('memory')} {text} is not a size; give a number and a unit, e.g. 4GB or 800MB"
        )
    return int(float(size[1]) * _UNITS[size[2].upper()])


def min_score_option() -> Any:
    """Return the field of the score that an answer must have."""
    about = (
        "Leave out answers below this score, as it is printed: the cosine, or by words BM25. 1"
        " finds exact copies of the query."
    )
    return option(None, about)


def min_rarity_option() -> Any:
    """Return the field of the rarity that an answer must have."""
    about = (
        "Leave out answers whose cosine exceeds that of fewer random pairs of rows than this, in"
        " percent, e.g. 99.9."
    )
    return option(None, about)


def folder_argument() -> Any:
    """Return the field of the folder of an index that a job reads or changes."""
    return argument("Folder of the index.", metavar="DIR", typed=str)


def memory_option() -> Any:
    """Return the field of the memory that a job on an index may take."""
    about = "Memory that the process may take, e.g. 4GB or 800MB."
    return option("4GB", about, metavar="SIZE", typed=str)


def bad_lines_option() -> Any:
    """Return the field of the file that gets the rows that cannot be read."""
    about = (
        "File that gets the rows that cannot be read, as JSON lines with number, reason and line;"
        " they are left out. Default: the first one is refused."
    )
    return option(None, about, metavar="FILE", typed=str)
