"""What a worker of Ray does before it imports anything of promptcli, and then.

Ray sends this module as code (``ray_engine.worker_module``), so it imports only Python's own
at its top.
"""

import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def others_may_replace(folder: str | Path) -> bool:
    """Return whether other users can move a folder away and put their own in its place.

    They can if they may write there, unless a sticky bit leaves a name to its owner, as in
    ``/tmp``.
    """
    path = Path(folder).resolve()
    modes = [place.stat().st_mode for place in (path, *path.parents) if place.exists()]
    return any(mode & stat.S_IWOTH and not mode & stat.S_ISVTX for mode in modes)


def others_may_write(folder: str | Path) -> bool:
    """Return whether other users can put a file into a folder."""
    path = Path(folder)
    is_open = path.exists() and bool(path.stat().st_mode & stat.S_IWOTH)
    return is_open or others_may_replace(path)


def prepare(environment: Mapping[str, str], current: str) -> None:
    """Set variables, and remove unsafe folders from the module path.

    Ray puts the folder in which the program runs first on it. What stays is Python's own, and
    folders that neither are ``current``, nor the worker's, nor can be written by others.
    """
    os.environ.update(environment)
    own = (os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix))
    left_out = (os.path.realpath(current), os.path.realpath("."))
    kept = []
    for folder in sys.path:
        place = os.path.realpath(folder)
        is_own = any(place.startswith(f"{prefix}{os.sep}") for prefix in own)
        if is_own or not (place in left_out or others_may_write(place)):
            kept.append(folder)
    sys.path[:] = kept


def make(environment: Mapping[str, str], current: str, job: "list[Any]", shard: int) -> int:
    """Make a part of a job, whose reference is in a list: else Ray would open it before."""
    prepare(environment, current)
    import ray

    from promptcli.plugins.cluster.kept_jobs import make_part

    return make_part(ray.get(job[0]), shard)


class Adder:
    """An actor that adds a column of vectors to tables, by what Ray's serializer packed."""

    def __init__(self, environment: Mapping[str, str], current: str, packed: bytes) -> None:
        prepare(environment, current)
        from ray import cloudpickle

        self._add = cloudpickle.loads(packed).open().add_to_table

    def __call__(self, table: Any) -> Any:
        return self._add(table)
