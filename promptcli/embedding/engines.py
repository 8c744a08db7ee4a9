"""Engines that make the parts of a folder: a table that plug-ins extend."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from promptcli.errors import UsageError
from promptcli.extensions import Table
from promptcli.notes import Advance

if TYPE_CHECKING:
    from promptcli.embedding.parts import PartJob


class Engine(Protocol):
    """Makes parts in one process or many."""

    def check(self, address: str | None) -> None:
        """Refuse an address that the engine does not use, before anything is read."""

    def make(
        self,
        job: "PartJob",
        shards: Sequence[int],
        advance: Advance,
        *,
        address: str | None,
        workers: int | None,
    ) -> None:
        """Make the parts with these numbers, ``workers`` at once; ``advance`` receives the count of
        new rows.
        """


class LocalEngine:
    """Makes parts in this process, in one process for each GPU, or in the chosen number."""

    def check(self, address: str | None) -> None:
        """Refuse the address of a cluster."""
        if address is not None:
            raise UsageError("is for a Ray cluster; also give engine ray", parameter="address")

    def make(
        self,
        job: "PartJob",
        shards: Sequence[int],
        advance: Advance,
        *,
        address: str | None,
        workers: int | None,
    ) -> None:
        """Make parts; a single process uses the job's own encoder."""
        from promptcli.embedding import parts

        devices = parts.worker_devices(job.model.device, workers)[: len(shards)]
        if len(devices) == 1:
            for shard in shards:
                job.make(shard, advance)
        else:
            job.encoder = None  # the workers need its memory
            parts.make_by_processes(job, shards, devices, advance)


ENGINES = Table[Engine]("engines", {"local": LocalEngine()})
