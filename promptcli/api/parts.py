"""Folders of vectors in parts, as ``embed_parts`` makes them: checked, merged into one file, sampled from."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from promptcli.data.tables import Record
from promptcli.data.vectors.part_folder import Plan, faults_of, merge_folder, read_folder, read_plan, sample_folder
from promptcli.notes import working


@dataclass(frozen=True)
class CheckedParts:
    """A folder that was looked over."""

    plan: Plan
    faults: list[str]  #: one line each; none where every part is whole


def check_parts(folder: str | Path) -> CheckedParts:
    """Read every part of a folder once and return what is wrong.

    Raises:
        NotFoundError: It is no such folder.
    """
    return CheckedParts(read_plan(Path(folder)), faults_of(Path(folder)))


def merge_parts(folder: str | Path, output: str | Path, *, force: bool = False) -> int:
    """Write all parts into one vector file with a manifest; return its rows.

    Raises:
        UsageError: The output cannot be written.
        CheckFailedError: The folder is unfinished, or a part is damaged.
    """
    with working("merge", read_folder(Path(folder)).rows) as advance:
        return merge_folder(Path(folder), Path(output), force=force, progress=advance)


def sample_parts(folder: str | Path, rows: int, *, seed: int = 0) -> list[tuple[Record, NDArray[np.float32]]]:
    """Return so many random rows with their vectors, in their order.

    Raises:
        UsageError: There are fewer.
        CheckFailedError: The folder is unfinished, or a part is cut short.
    """
    return list(sample_folder(Path(folder), rows, seed))
