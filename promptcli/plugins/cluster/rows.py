"""What this plug-in adds to the tables of engines and of data sets; Ray is imported on use."""

from collections.abc import Callable, Sequence
from typing import Any

from promptcli import errors
from promptcli.embedding.datasets import VectorColumn
from promptcli.embedding.parts import PartJob


class RayEngine:
    """Each part is a task of a Ray cluster."""

    def check(self, address: str | None) -> None:
        """Refuse an address at which no cluster answers."""
        errors.require("ray", extra="ray")
        from promptcli.plugins.cluster.ray_engine import check_address

        check_address(address)

    def make(
        self,
        job: PartJob,
        shards: Sequence[int],
        advance: Callable[[float], object],
        *,
        address: str | None,
        workers: int | None,
    ) -> None:
        """Make parts by the tasks of a cluster, at most ``workers`` at once."""
        from promptcli.plugins.cluster.ray_engine import make_by_ray

        make_by_ray(job, shards, advance, address=address, workers=workers)


class RayDataSets:
    """A ``ray.data.Dataset``: it stays lazy, and actors of the cluster hold the encoders."""

    def columns(self, dataset: Any) -> list[str]:
        """Return the names of the columns."""
        return list(dataset.columns() or ())

    def add(self, dataset: Any, column: VectorColumn) -> Any:
        """Return the data set with the column."""
        from promptcli.plugins.cluster.ray_engine import add_by_actors

        return add_by_actors(dataset, column)


ENGINE = RayEngine()
DATA_SETS = RayDataSets()
