"""The code of a Ray worker before it imports promptcli.

Ray sends this module as code (``ray_engine.worker_module``), so it imports only the standard
library at the top.
"""

import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def others_may_replace(folder: str | Path) -> bool:
    """Return whether other users can move a folder away and replace it.

    They can if they may write to one of the folders above it, unless a sticky bit protects the
    names in that folder, as in ``/tmp``.
    """
    path = Path(folder).resolve()
    modes = [level.stat().st_mode for level in (path, *path.parents) if level.exists()]
    return any(mode & stat.S_IWOTH and not mode & stat.S_ISVTX for mode in modes)


def others_may_write(folder: str | Path) -> bool:
    """Return whether other users can create files in a folder."""
    path = Path(folder)
    is_open = path.exists() and bool(path.stat().st_mode & stat.S_IWOTH)
    return is_open or others_may_replace(path)


def prepare(environment: Mapping[str, str], current: str) -> None:
    """Set variables of the environment, and remove unsafe folders from the module path.

    Ray puts the program's folder first on the path. Python's own folders stay. Other folders stay
    unless they are ``current`` or the worker's current folder, or others may write to them.
    """
    os.environ.update(environment)
    own = (os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix))
    unsafe = (os.path.realpath(current), os.path.realpath("."))
    safe_path = []
    for folder in sys.path:
        path = os.path.realpath(folder)
        is_own = any(path.startswith(f"{prefix}{os.sep}") for prefix in own)
        if is_own or not (path in unsafe or others_may_write(path)):
            safe_path.append(folder)
    sys.path[:] = safe_path


def make(environment: Mapping[str, str], current: str, job: "list[Any]", shard: int) -> int:
    """Make a part of a job. ``job`` has a reference to the job in a list: otherwise Ray would
    unpickle the job before the worker is prepared.
    """
    prepare(environment, current)
    import ray

    from promptcli.plugins.cluster.kept_jobs import make_part

    return make_part(ray.get(job[0]), shard)


class Adder:
    """An actor that adds a column of vectors to tables; it gets the column pickled by Ray."""

    def __init__(self, environment: Mapping[str, str], current: str, pickled: bytes) -> None:
        prepare(environment, current)
        from ray import cloudpickle

        self._add = cloudpickle.loads(pickled).open().add_to_table

    def __call__(self, table: Any) -> Any:
        return self._add(table)
