"""Code of a Ray worker, before and after it imports promptcli.

Ray sends this module as code (``ray_engine.worker_module``), so only the standard library is
imported at the top.
"""

import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def others_may_replace(folder: str | Path) -> bool:
    """Return whether other users can move a folder away and replace it.

    They can if they may write to its parent, unless a sticky bit protects names, as in ``/tmp``.
    """
    path = Path(folder).resolve()
    modes = [place.stat().st_mode for place in (path, *path.parents) if place.exists()]
    return any(mode & stat.S_IWOTH and not mode & stat.S_ISVTX for mode in modes)


def others_may_write(folder: str | Path) -> bool:
    """Return whether other users can create files in a folder."""
    path = Path(folder)
    is_open = path.exists() and bool(path.stat().st_mode & stat.S_IWOTH)
    return is_open or others_may_replace(path)


def prepare(environment: Mapping[str, str], current: str) -> None:
    """Set variables, and remove unsafe folders from the module path.

    Ray puts the program's folder first on the path. Python's own folders stay, and those that are
    neither ``current``, nor the worker's, nor writable by others.
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
    """Make a part of a job; the job's reference is in a list, else Ray would open it before."""
    prepare(environment, current)
    import ray

    from promptcli.plugins.cluster.kept_jobs import make_part

    return make_part(ray.get(job[0]), shard)


class Adder:
    """An actor that adds a column of vectors to tables, from an encoder packed by Ray's
    serializer.
    """

    def __init__(self, environment: Mapping[str, str], current: str, packed: bytes) -> None:
        prepare(environment, current)
        from ray import cloudpickle

        self._add = cloudpickle.loads(packed).open().add_to_table

    def __call__(self, table: Any) -> Any:
        return self._add(table)
