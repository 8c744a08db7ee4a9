"""What is known of an index without a library: its options, and how its folder is recognised."""

import re

from promptcli.errors import UsageError

MANIFEST = "index.json"  #: in the folder of an index
TARGET = 0.95  #: recall@10 that an approximate index is tuned for
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size_of(text: str | int) -> int:
    """Return the bytes of a size such as 4GB."""
    size = re.fullmatch(r"(\d{1,18}(?:\.\d+)?) ?([kmgt]?)i?b?", str(text).strip(), re.IGNORECASE)
    if size is None:
        raise UsageError(
            f"`memory` {text} is not a size; give a number and a unit, e.g. 4GB or 800MB"
        )
    return int(float(size[1]) * _UNITS[size[2].upper()])
