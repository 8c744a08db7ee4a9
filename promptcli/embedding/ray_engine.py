"""Ray Data as a transport: a pool of actors, each with one encoder; one task a shard. All that knows Ray is here."""

import dataclasses
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from promptcli.data.files import is_remote
from promptcli.embedding.part_job import PartJob, Pool, release_memory
from promptcli.encoder.encoder import Encoder, build_encoder
from promptcli.errors import PromptcliError, UsageError, is_out_of_memory, one_line


def run_ray(job: PartJob, shards: list[int], pool: Pool) -> None:
    """Make parts by actors of a Ray cluster, of this machine where no address is given.

    A part that is whole is its own mark: an actor that dies loses the shard it was at, which Ray gives away once more.

    Raises:
        UsageError: Ray is not installed, is not reached, or has only one CPU.
        PromptcliError: What an actor met, or a shard whose actor died twice.
    """
    ray = start_ray(pool.address)
    release_memory()
    actors, resources = actors_of(ray, pool, most=len(shards))
    where = ray.put(_reachable(job))
    data = ray.data.from_items([{"shard": shard} for shard in shards], override_num_blocks=len(shards))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that remote arguments are to get names of their own; these have none yet
        made = data.map_batches(
            _Maker,
            fn_constructor_args=([where], "cuda" if "num_gpus" in resources else "cpu"),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=actors),
            max_restarts=-1,
            max_task_retries=1,
            **resources,
        )
    for row in _rows(ray, made, job):
        if row["error"]:
            raise _again(row["error"], row["message"], job, row["shard"])
        pool.progress(row["rows"])


def start_ray(address: str | None) -> Any:
    """Return the module ``ray``, connected.

    Raises:
        UsageError: It is not installed, or no cluster answers at the address.
    """
    try:
        import ray
        import ray.data
    except ImportError:
        raise UsageError("`engine` ray needs Ray Data; install the extra: pip install 'promptcli[ray]'") from None
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = one_line(error, 120)
            raise UsageError(
                f"`address` {address}: no Ray cluster answers ({reason}); start one by ray start"
            ) from None
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    return ray


def actors_of(ray: Any, pool: Pool, most: int) -> tuple[int, dict[str, float]]:
    """Return the size of the pool of actors and what each takes: a GPU where there are any, else a CPU.

    One CPU stays free: actors on all of them leave none for Ray Data's own tasks, which wait for ever then, silently.

    Raises:
        UsageError: The cluster has only one CPU.
    """
    there = ray.cluster_resources()
    cpus, gpus = int(there.get("CPU", 0)), int(there.get("GPU", 0))
    if cpus < 2:
        raise UsageError(f"`engine` ray: {cpus} CPU in the cluster, and one must stay free; leave out `engine` here")
    wanted = pool.workers or gpus or cpus - 1
    size = min(wanted, cpus - 1, gpus or wanted)
    if size < wanted:
        what = f"{gpus} GPUs and {cpus} CPUs" if gpus else f"{cpus} CPUs"
        pool.announce(f"`workers` {wanted}: the cluster has {what}, of which one CPU stays free; {size} workers")
    return min(size, most), {"num_cpus": 1, "num_gpus": 1} if gpus else {"num_cpus": 1}


class _Maker:
    """An actor: opens the encoder once and makes parts."""

    def __init__(self, job: list[Any], device: str) -> None:
        import ray

        self._job: PartJob = ray.get(job[0])
        self._device = device
        self._encoder: Any = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        shard, rows, error, message = int(batch["shard"][0]), 0, "", ""
        try:
            self._encoder = self._encoder or self._job.open(self._device)
            rows = self._job.make(self._encoder, shard)
        except PromptcliError as met:
            error, message = type(met).__name__, str(met)
        except (MemoryError, RuntimeError) as met:
            if not is_out_of_memory(met):
                raise
            error = "MemoryError"
        return {"shard": [shard], "rows": [rows], "error": [error], "message": [message]}


def _rows(ray: Any, data: Any, job: PartJob) -> Iterator[dict[str, Any]]:
    try:
        yield from data.iter_rows()
    except ray.exceptions.RayError as error:
        reason = one_line(error, 160)
        raise PromptcliError(
            f"Ray gave up ({type(error).__name__}: {reason}); the parts of {job.folder} that are whole stay; run the"
            " same command again"
        ) from None


def _again(kind: str, message: str, job: PartJob, shard: int) -> PromptcliError:
    """Return an actor's error as it was there."""
    import promptcli.errors

    known: Any = getattr(promptcli.errors, kind, None)
    return job.lost(shard, "out of memory") if known is None else known(message)


def _reachable(job: PartJob) -> PartJob:
    """Return a job whose paths mean the same in any folder."""
    inputs = [
        file if is_remote(file.path) else dataclasses.replace(file, path=str(Path(file.path).resolve()))
        for file in job.inputs
    ]
    recipe = job.entry.recipe
    if Path(recipe.backbone).is_dir():
        recipe = recipe.replace(backbone=str(Path(recipe.backbone).resolve()))
    entry = dataclasses.replace(job.entry, recipe=recipe)
    return dataclasses.replace(job, folder=job.folder.resolve(), inputs=inputs, entry=entry)


class _Column:
    """An actor: opens the encoder once and adds vectors to tables."""

    def __init__(self, encoder: list[Any], device: str, add: Callable[[Any, Encoder], Any]) -> None:
        import ray

        recipe, tensors, dtype = ray.get(encoder[0])
        self._encoder, self._add = build_encoder(recipe, device=device, dtype=dtype, tensors=tensors), add

    def __call__(self, table: Any) -> Any:
        return self._add(table, self._encoder)


def embed_ray(data: Any, encoder: Encoder, add: Callable[[Any, Encoder], Any], size: int) -> Any:
    """Return a ``ray.data.Dataset`` on whose tables ``add`` was called, up to ``size`` rows at once; lazy."""
    ray = start_ray(None)
    actors, resources = actors_of(ray, Pool(), most=1 << 30)
    plain = ray.put((encoder.recipe, encoder.tensors(), encoder.provenance["dtype"]))
    return data.map_batches(
        _Column,
        fn_constructor_args=([plain], "cuda" if "num_gpus" in resources else "cpu", add),
        batch_size=size,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=actors),
        **resources,
    )
