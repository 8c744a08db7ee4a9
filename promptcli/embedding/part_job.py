"""What a process needs to make any part of a folder: pickled to worker processes and to other machines."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from promptcli.backbones.devices import choose_device, set_threads
from promptcli.data.rows import InputFile
from promptcli.data.vectors.part_folder import Plan, parts_there
from promptcli.embedding.writing import make_part
from promptcli.encoder.batching import Progress, silent
from promptcli.encoder.encoder import Encoder
from promptcli.errors import CheckFailedError, PromptcliError, is_out_of_memory
from promptcli.models.backends import build_on
from promptcli.models.entries import Entry
from promptcli.notes import offline


@dataclass(frozen=True)
class PartJob:
    """A begun folder, where its inputs are, and its encoder as plain data."""

    folder: Path
    plan: Plan
    inputs: list[InputFile]
    entry: Entry
    graphs: Path  #: where those of other backends are kept
    threads: int | None = None  #: of a process; None: the library's choice
    offline: bool = False

    def open(self, device: str) -> Encoder:
        """Return the plan's encoder.

        Raises:
            NotFoundError: Its backbone is not there.
            CheckFailedError: What is there under its name is another one.
        """
        if self.threads is not None:
            set_threads(self.threads)
        options: dict[str, Any] = {"device": device, "dtype": str(self.plan.model["dtype"])}
        backend = str(self.plan.model.get("backend", "torch"))
        with offline(self.offline):
            encoder = build_on(backend, self.entry.recipe, folder=self.graphs, tensors=self.entry.tensors, **options)
        if encoder.fingerprint != self.plan.fingerprint:
            name = self.entry.recipe.backbone
            raise CheckFailedError(f"backbone {name!r} is another one here than the folder was begun with; copy that")
        return encoder

    def make(self, encoder: Encoder, shard: int, progress: Progress = silent) -> int:
        """Make a part; return its rows."""
        make_part(self.folder, self.plan, self.inputs, encoder, shard, progress=progress)
        start, stop = self.plan.bounds(shard)
        return stop - start

    def lost(self, shard: int, why: str) -> PromptcliError:
        """Return the error of a shard that cannot be made; what is whole stays."""
        whole = len(parts_there(self.folder, self.plan.shards))
        return PromptcliError(
            f"shard {shard}: {why}; {whole:,} of {self.plan.shards:,} parts are whole and stay; take fewer `workers` or"
            " a smaller `max_length`, and run the same command again"
        )


@dataclass(frozen=True)
class Pool:
    """How many processes work where, and whom they tell."""

    workers: int | None = None  #: None: one a GPU, else as the engine sees fit
    device: str = "auto"
    address: str | None = None  #: of a cluster
    progress: Progress = silent
    announce: Callable[[str], None] = lambda message: None

    def devices(self) -> list[str]:
        """Return the device of each worker process of this machine: all GPUs where no other device is named."""
        device = choose_device(self.device)
        gpus = torch.cuda.device_count() if device == "cuda" else 0
        found = [f"cuda:{number}" for number in range(gpus)] or [device]
        return [found[number % len(found)] for number in range(self.workers or len(found))]


def make_here(job: PartJob, shards: list[int], encoder: Encoder, progress: Progress) -> None:
    """Make parts in this process, one after another.

    Raises:
        PromptcliError: There is too little memory; see also ``make_part``.
    """
    for shard in shards:
        try:
            job.make(encoder, shard, progress)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise job.lost(shard, "out of memory") from None


def release_memory() -> None:
    """Give back what an encoder that nothing refers to any more held on a GPU."""
    gc.collect()
    torch.cuda.empty_cache()  # of a GPU that is not in use nothing is asked
