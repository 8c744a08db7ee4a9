"""What makes the parts of a folder: a table, to which plug-ins add rows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from promptcli.errors import UsageError
from promptcli.extensions import Table
from promptcli.notes import Advance

if TYPE_CHECKING:
    from promptcli.embedding.parts import PartJob


class Engine(Protocol):
    """Makes parts, by one process or many."""

    def check(self, address: str | None) -> None:
        """Refuse an address that is of no use, before anything is read."""

    def make(
        self,
        job: "PartJob",
        shards: Sequence[int],
        advance: Advance,
        *,
        address: str | None,
        workers: int | None,
    ) -> None:
        """Make parts by their numbers, ``workers`` at once; ``advance`` receives their rows."""


class LocalEngine:
    """The processes of this machine: this one alone, or one for each GPU or as many as asked."""

    def check(self, address: str | None) -> None:
        """Refuse the address of a cluster."""
        if address is not None:
            raise UsageError(
                "it is that of a Ray cluster; give engine ray, too", parameter="address"
            )

    def make(
        self,
        job: "PartJob",
        shards: Sequence[int],
        advance: Advance,
        *,
        address: str | None,
        workers: int | None,
    ) -> None:
        """Make parts; a process alone computes them with the job's own encoder."""
        from promptcli.embedding import parts

        devices = parts.worker_devices(job.model.device, workers)[: len(shards)]
        if len(devices) == 1:
            for shard in shards:
                job.make(shard, advance)
        else:
            job.encoder = None  # the workers need its memory
            parts.make_by_processes(job, shards, devices, advance)


ENGINES = Table[Engine]("engines", {"local": LocalEngine()})
