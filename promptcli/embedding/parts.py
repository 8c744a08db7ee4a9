"""The parts of a folder, made by this process, by worker processes of this machine, or by an engine
of a plug-in.

The inputs and the number of shards determine the rows of a part. Its bytes depend on nothing else.
"""

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from promptcli.backbones.model_folder import portable_name
from promptcli.children import safe_path
from promptcli.data.input_files import is_remote
from promptcli.data.layouts import TEXT
from promptcli.data.vectors.formats import EmbedSettings, closing_sink
from promptcli.data.vectors.parquet import ParquetSink
from promptcli.data.vectors.part_folder import (
    InputFile,
    PartsManifest,
    begin_folder,
    counted_inputs,
    part_metadata,
    part_name,
    parts_in,
    read_range,
)
from promptcli.embedding.writing import VectorWriter, library_versions
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.errors import CheckFailedError, PromptcliError, UsageError
from promptcli.extensions import Table
from promptcli.models import loading
from promptcli.notes import Advance, is_offline, no_progress, without_network
from promptcli.recipe import ModelChoice
from promptcli.storage.files import atomic_path, delete_leftovers

if TYPE_CHECKING:
    from promptcli.encoder.encoder import TorchEncoder

#: Workers are spawned, since a forked process cannot use a GPU.
CONTEXT: Any = multiprocessing.get_context("spawn")


@dataclass
class PartJob:
    """A begun folder with its encoder; a process opens the encoder for its first part."""

    folder: Path
    manifest: PartsManifest
    model: ModelChoice
    encoder: "TorchEncoder | None" = None
    offline: bool = False

    def make(self, shard: int, progress: Advance = no_progress) -> int:
        """Encode the rows of a shard into its part, and return their number.

        The part takes its name when it is complete.
        """
        encoder = self.encoder = self.encoder or self._open()
        start, stop = self.manifest.bounds(shard)
        with (
            atomic_path(self.folder / part_name(shard, self.manifest.shards)) as temporary,
            temporary.open("xb") as file,
            closing_sink(ParquetSink(file, self.manifest.dim)) as sink,
        ):
            settings = self.manifest.settings
            # gives the same bits, whatever this process has encoded before
            writer = VectorWriter(encoder.without_cache(), settings)
            rows = read_range(self.manifest.inputs, start, stop, str(self.folder), settings.csv)
            report = writer.write(rows, sink, first=start, progress=progress)
            sink.metadata = part_metadata(self.manifest, report)
        return stop - start

    def for_workers(self, device: str) -> "PartJob":
        """Return the job for processes with another device and current folder.

        Its paths are absolute, and each process opens its own encoder.
        """
        inputs = list[InputFile]()
        for file in self.manifest.inputs:
            if not is_remote(file.path):
                file = replace(file, path=os.path.abspath(file.path))
            inputs.append(file)
        return replace(
            self,
            folder=self.folder.absolute(),
            manifest=replace(self.manifest, inputs=inputs),
            model=replace(self.model, device=device),
            encoder=None,
            offline=self.offline or is_offline(),
        )

    def _open(self) -> "TorchEncoder":
        with without_network(self.offline):
            encoder = loading.open_torch_encoder(self.model)
        if encoder.fingerprint != self.manifest.fingerprint:
            name = self.model.model.recipe.backbone
            raise CheckFailedError(
                f"backbone {name!r} differs here from the one with which the folder was started;"
                " copy that backbone here"
            )
        return encoder


def begin_job(
    folder: Path, names: Sequence[str], settings: EmbedSettings, shards: int, model: loading.Model
) -> PartJob:
    """Begin a folder of parts, or continue the folder, with a new encoder.

    The input files are counted once, for the manifest.
    """
    inputs = counted_inputs(folder, names, settings, shards)
    rows = sum(file.rows for file in inputs)
    batches = read_range(inputs, 0, rows, str(folder), settings.csv)
    texts = (text for batch in batches for text in batch[TEXT])
    encoder = loading.open_torch_encoder(model, dtype="auto", rows=rows, calibration=texts)
    manifest = PartsManifest(
        dim=encoder.width,
        settings=settings,
        recipe=encoder.recipe.to_dict(),
        fingerprint=encoder.fingerprint,
        model=encoder.provenance,
        name=encoder.name,
        prompts=encoder.leading,
        versions=library_versions(),
        shards=shards,
        rows=rows,
        inputs=inputs,
    )
    manifest = begin_folder(folder, manifest)
    return PartJob(folder, manifest, portable_choice(model, manifest.model), encoder)


def portable_choice(
    model: loading.Model, provenance: Mapping[str, Any] | None = None
) -> ModelChoice:
    """Return a choice of the model that any process can open from any folder.

    Its dtype and backend are those in an encoder's ``provenance``, else the user's choice.
    """
    entry = loading.resolve_entry(model)
    backbone = portable_name(entry.recipe.backbone)
    entry = replace(entry, recipe=entry.recipe.replace(backbone=backbone))
    choice = model if isinstance(model, ModelChoice) else ModelChoice()
    dtype, backend = choice.dtype, choice.backend
    if isinstance(model, Encoder):
        provenance = model.provenance
    if provenance is not None:
        dtype, backend = provenance["dtype"], provenance.get("backend", "torch")
    return ModelChoice(entry, device=choice.device, dtype=dtype, backend=backend)


# Engines


class Engine(Protocol):
    """Makes parts in one process or many."""

    def check(self, address: str | None) -> None:
        """Refuse an address that the engine does not use, before anything is read."""

    def make(
        self,
        job: PartJob,
        shards: Sequence[int],
        advance: Advance,
        *,
        address: str | None,
        workers: int | None,
    ) -> None:
        """Make the parts of these shards, ``workers`` at once.

        ``advance`` is called with the number of new rows.
        """


class LocalEngine:
    """Makes parts in this process, in one process for each GPU, or in the chosen number."""

    def check(self, address: str | None) -> None:
        """Refuse the address of a cluster."""
        if address is not None:
            raise UsageError('is for a Ray cluster; also give engine="ray"', parameter="address")

    def make(
        self,
        job: PartJob,
        shards: Sequence[int],
        advance: Advance,
        *,
        address: str | None,
        workers: int | None,
    ) -> None:
        """Make parts; a single process uses the job's own encoder."""
        import torch

        from promptcli.backbones.devices import choose_device

        device = choose_device(job.model.device)
        gpus = torch.cuda.device_count() if device == "cuda" else 0
        choices = [f"cuda:{number}" for number in range(gpus)] or [device]
        processes = min(workers or len(choices), len(shards))
        devices = [choices[number % len(choices)] for number in range(processes)]
        if processes == 1:
            for shard in shards:
                job.make(shard, advance)
        else:
            job.encoder = None  # the workers need its memory
            make_by_processes(job, shards, devices, advance)


ENGINES = Table[Engine]("engines", {"local": LocalEngine()})


@safe_path()
def make_by_processes(
    job: PartJob, shards: Sequence[int], devices: Sequence[str], advance: Advance
) -> None:
    """Make parts with one worker process for each device.

    If a worker dies or the user interrupts, all workers end.
    """
    import torch

    gc.collect()
    torch.cuda.empty_cache()  # the workers need the memory
    threads = max(1, torch.get_num_threads() // len(devices))
    free_devices = CONTEXT.SimpleQueue()
    for device in devices:
        free_devices.put(device)
    other_processes = multiprocessing.active_children()
    with ProcessPoolExecutor(
        len(devices), CONTEXT, _start_worker, (job, free_devices, threads)
    ) as pool:
        try:
            for part in as_completed([pool.submit(_make, shard) for shard in shards]):
                advance(part.result())
        except BaseException as error:
            for worker in set(multiprocessing.active_children()).difference(other_processes):
                worker.kill()
            pool.shutdown(cancel_futures=True)
            delete_leftovers(job.folder)
            if not isinstance(error, BrokenProcessPool):
                raise
            complete = len(parts_in(job.folder, job.manifest.shards))
            raise PromptcliError(
                "a worker process died (out of memory?);"
                f" {complete:,} of {job.manifest.shards:,} parts are complete and stay;"
                " take fewer workers, and run the same command again"
            ) from None


#: In a worker process: its job.
_JOB: list[PartJob] = []


def _start_worker(job: PartJob, free_devices: Any, threads: int) -> None:
    import torch

    # a terminal sends SIGINT to every process; the parent ends the workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    _JOB.append(job.for_workers(free_devices.get()))


def _make(shard: int) -> int:
    return _JOB[0].make(shard)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
